"""Video: all frames or a clip by time, deterministic, and no playlist that reaches out."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
import torch

from shoal.codec import Clip, Video, decode, decode_spec, encode
from shoal.errors import DecodeError, EncodeError, OptionError

FPS = 10
COUNT = 40
LEVELS = np.arange(COUNT) * 5 + 20
FRAMES = np.broadcast_to(LEVELS[:, None, None, None], (COUNT, 32, 48, 3)).astype(np.uint8)
WRITABLE = ["mp4", "m4v", "mov", "mkv", "webm", "avi"]
VIDEO = decode_spec("video")


@pytest.fixture(scope="module")
def videos():
    return {extension: encode(extension, Video(FRAMES, FPS)) for extension in WRITABLE}


def levels(video):
    return video.frames.astype(float).mean(axis=(1, 2, 3))


@pytest.mark.parametrize("extension", WRITABLE)
def test_frames_come_back(videos, extension):
    video = decode(f"clip.{extension}", memoryview(videos[extension]), VIDEO)
    assert video.frames.shape == FRAMES.shape
    assert video.frames.dtype == np.uint8
    assert video.fps == FPS
    assert np.allclose(video.times, np.arange(COUNT) / FPS)
    assert np.abs(levels(video) - LEVELS).max() < 3


@pytest.mark.parametrize("extension", WRITABLE)
@pytest.mark.parametrize("start, stop", [(0, 1), (1, 2), (1.25, 3.05), (3.5, None), (3.9, 100), (0, None)])
def test_a_clip_is_the_frames_of_its_time(videos, extension, start, stop):
    whole = decode(extension, videos[extension], VIDEO)
    wanted = (whole.times >= start) & (whole.times < (stop or np.inf))
    clip = decode(extension, videos[extension], decode_spec({extension: Clip(start, stop)}))
    assert np.array_equal(clip.times, whole.times[wanted])
    assert np.array_equal(clip.frames, whole.frames[wanted])


def test_a_clip_for_all_videos(videos):
    assert len(decode("mp4", videos["mp4"], decode_spec(Clip(1, 2))).frames) == FPS
    assert decode("json", b"1", decode_spec(Clip(1, 2))) == 1


def test_a_clip_after_the_end_is_empty(videos):
    video = decode("mp4", videos["mp4"], decode_spec(Clip(50)))
    assert video.frames.shape == (0, 32, 48, 3)


@pytest.mark.parametrize("extension", WRITABLE)
def test_the_same_frames_give_the_same_bytes(videos, extension):
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, (6, 70, 90, 3), dtype=np.uint8)
    assert len({encode(extension, Video(noise, 12.5)) for _ in range(4)}) == 1
    assert encode(extension, Video(FRAMES, FPS)) == videos[extension]


def test_torchvideo_gives_channels_first_and_takes_them(videos):
    video = decode("mp4", videos["mp4"], decode_spec("torchvideo"))
    assert isinstance(video.frames, torch.Tensor)
    assert tuple(video.frames.shape) == (COUNT, 3, 32, 48)
    arrays = decode("mp4", videos["mp4"], VIDEO)
    assert encode("mp4", video) == encode("mp4", arrays)


def test_true_leaves_video_as_bytes(videos):
    assert decode("mp4", videos["mp4"], decode_spec(True)) is videos["mp4"]


@pytest.mark.parametrize(
    "value",
    [
        FRAMES,
        "path.mp4",
        None,
        Video(FRAMES, 0),
        Video(FRAMES[:0], 10),
        Video(FRAMES[:, :31], 10),
        Video(FRAMES / 255, 10),
        Video(FRAMES[..., :1], 10),
    ],
)
def test_what_is_no_video_is_refused(value):
    with pytest.raises(EncodeError, match="field mp4"):
        encode("mp4", value)


def test_containers_that_are_only_read_say_so():
    with pytest.raises(EncodeError, match="no codec encodes"):
        encode("wmv", Video(FRAMES, 10))


@pytest.mark.parametrize("data", [b"", b"not a video", bytes(5000)])
def test_what_is_no_video_file_is_refused(data):
    with pytest.raises(DecodeError, match="a video") as caught:
        decode("mp4", data, VIDEO)
    assert caught.value.field == "mp4"


def test_a_video_cut_short_is_refused(videos):
    with pytest.raises(DecodeError):
        decode("mp4", videos["mp4"][: len(videos["mp4"]) // 2], VIDEO)


def test_a_playlist_cannot_open_other_files(videos, tmp_path, monkeypatch):
    (tmp_path / "secret.avi").write_bytes(videos["avi"])
    monkeypatch.chdir(tmp_path)
    playlist = b"ffconcat version 1.0\nfile secret.avi\n"
    with av.open(io.BytesIO(playlist)) as container:
        assert len(list(container.decode(video=0))) == COUNT, "FFmpeg left to itself opens the file"
    with pytest.raises(DecodeError):
        decode("mp4", playlist, VIDEO)


def test_a_video_larger_than_allowed_is_refused(videos):
    with pytest.raises(DecodeError, match="too long"):
        decode("mp4", videos["mp4"], decode_spec("video", max_bytes=FRAMES.nbytes - 1))


@pytest.mark.parametrize("start, stop", [(-1, None), (2, 2), (2, 1), (float("nan"), None), (0, float("nan"))])
def test_a_clip_that_is_none_is_refused(start, stop):
    with pytest.raises(OptionError):
        Clip(start, stop)
