"""Audio and video: exact where the format is, deterministic, and playlists cannot open other files."""

from __future__ import annotations

import io
import struct

import av
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import Audio, Clip, Video, decode, decode_spec, encode
from shoal.codec._audio_video import clear_ogg_serial
from shoal.errors import DecodeError, EncodeError, OptionError

RATE = 16000
TONE = (np.sin(np.arange(RATE) / 20) * 0.5).astype(np.float32)
STEREO = np.stack([TONE, TONE[::-1]], axis=1)
EXTENSIONS = ["wav", "flac", "mp3", "ogg", "opus"]
AUDIO, AUDIO16 = decode_spec("audio"), decode_spec("audio16")
sounds = hnp.arrays(np.int16, st.tuples(st.integers(1, 300), st.integers(1, 3)))


@pytest.mark.parametrize("extension", ["wav", "flac"])
@given(samples=sounds)
def test_sixteen_bits_come_back(extension, samples):
    decoded = decode(extension, encode(extension, Audio(samples, RATE)), AUDIO16)
    assert decoded.sample_rate == RATE
    assert np.array_equal(decoded.samples, samples)


@given(
    samples=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 300), st.integers(1, 3)), elements=st.floats(-1, 1, width=32)
    )
)
def test_float_wav_comes_back(samples):
    assert np.array_equal(decode("wav", encode("wav", (samples, RATE)), AUDIO).samples, samples)


@pytest.mark.parametrize("extension, error", [("wav", 0), ("flac", 1e-6), ("mp3", 0.1), ("ogg", 0.1)])
@pytest.mark.parametrize("samples", [TONE, STEREO], ids=["mono", "stereo"])
def test_sound_comes_back(extension, error, samples):
    decoded = decode(f"x.{extension}", memoryview(encode(extension, Audio(samples, RATE))), AUDIO)
    assert decoded.samples.dtype == np.float32
    assert decoded.samples.shape == (RATE, samples.size // RATE)
    assert np.abs(decoded.samples - samples.reshape(RATE, -1)).max() <= error


def test_opus_comes_back_as_long_as_it_was():
    samples, rate = decode("opus", encode("opus", Audio(TONE, RATE)), AUDIO)
    assert (samples.shape, rate) == ((RATE, 1), RATE)
    assert abs(np.abs(samples).mean() - np.abs(TONE).mean()) < 0.02


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_decoding_is_soundfiles(extension):
    data = encode(extension, Audio(STEREO, RATE))
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    decoded = decode(extension, data, AUDIO)
    assert decoded.sample_rate == rate
    assert np.array_equal(decoded.samples, samples)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_the_same_sound_gives_the_same_bytes(extension, dtype):
    audio = Audio((TONE * (32767 if dtype == np.int16 else 1)).astype(dtype), RATE)
    assert len({encode(extension, audio) for _ in range(3)}) == 1


def test_a_float_wav_has_no_time_in_it():
    data = encode("wav", Audio(TONE, RATE))
    peak = data.index(b"PEAK")
    assert struct.unpack_from("<4sIII", data, peak)[2:] == (1, 0)  # version, time


def test_an_ogg_has_no_random_serial_and_right_checksums():
    data = encode("ogg", Audio(TONE, RATE))
    assert data.startswith(b"OggS")
    assert data[14:18] == bytes(4)
    assert clear_ogg_serial(data) == data
    stream = io.BytesIO()
    soundfile.write(stream, TONE, RATE, format="OGG")
    page_size = 27 + stream.getvalue()[26] + sum(stream.getvalue()[27 : 27 + stream.getvalue()[26]])
    zeroed = bytearray(stream.getvalue()[:page_size])
    zeroed[14:18] = zeroed[22:26] = bytes(4)
    assert int.from_bytes(data[22:26], "little") == slow_crc(zeroed)


def slow_crc(data):
    """Ogg's checksum from its definition, a bit at a time."""
    crc = 0
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc


def test_torchaudio_gives_channels_first_and_takes_them():
    data = encode("wav", Audio(STEREO, RATE))
    samples, rate = decode("wav", data, decode_spec("torchaudio"))
    assert isinstance(samples, torch.Tensor)
    assert np.array_equal(samples.numpy(), STEREO.T)
    assert encode("wav", (samples, rate)) == data


def test_true_leaves_sound_as_bytes():
    data = encode("flac", Audio(TONE, RATE))
    assert decode("flac", data, decode_spec(True)) is data


@pytest.mark.parametrize(
    "value", [TONE, "path.wav", None, (TONE,), ("x", RATE), (np.zeros((2, 2, 2), np.float32), RATE), (TONE > 0, RATE)]
)
def test_what_is_no_sound_is_refused(value):
    with pytest.raises(EncodeError, match="field wav"):
        encode("wav", value)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("data", [b"", b"not a sound file at all"])
def test_what_is_no_sound_file_is_refused(extension, data):
    with pytest.raises(DecodeError, match="a sound file"):
        decode(extension, data, AUDIO)


def test_a_sound_longer_than_allowed_is_refused():
    data = encode("flac", Audio(TONE, RATE))
    with pytest.raises(DecodeError, match="too long"):
        decode("flac", data, decode_spec("audio", max_bytes=4 * RATE - 1))
    assert len(decode("flac", data, decode_spec("audio", max_bytes=4 * RATE)).samples) == RATE


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
