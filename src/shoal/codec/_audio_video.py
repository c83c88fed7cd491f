"""Moving pictures, by PyAV (FFmpeg): all frames, or a clip by time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal._optional import require
from shoal.codec._array import Array, as_array
from shoal.codec._codec import Buffer, Codec, Decoder, EncodeOptions, Encoder, Limits
from shoal.codec._torch import tensor
from shoal.errors import DecodeError, EncodeError, OptionError

__all__ = ["CODECS", "VIDEO_FORMS", "Clip", "Video", "video_decoder"]


@dataclass(frozen=True, slots=True)
class Clip:
    """The part of a video to decode, in seconds from its start: frames with ``start <= time < stop``.

    Example:
        >>> Clip(1.5, 3)
        Clip(start=1.5, stop=3)
    """

    start: float = 0.0
    stop: float | None = None

    def __post_init__(self) -> None:
        if not self.start >= 0:
            raise OptionError("a clip starts at 0 or later", found=self.start)
        if self.stop is not None and not self.stop > self.start:
            raise OptionError("a clip stops after it starts", expected=f"more than {self.start}", found=self.stop)


class Video(NamedTuple):
    """Moving pictures: ``frames`` is T x H x W x 3, uint8; ``times`` has each frame's second (encoding needs none)."""

    frames: Any
    fps: float
    times: Any = None


VideoForm = Literal["video", "torchvideo"]
VIDEO_FORMS: tuple[VideoForm, ...] = ("video", "torchvideo")
_WHOLE = Clip()

# Playlist demuxers open other files and URLs that the data names, so only real containers are let in.
_DEMUXERS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,ogg,asf,flv,mjpeg,h264,mp4,webm"
_BIT_EXACT = {"fflags": "+bitexact"}  # no dates, no random ids, no version strings
_DECODED_ONLY = ("mpg", "mpeg", "ogv", "wmv", "flv", "3gp", "mjpeg", "h264")


class _Writing(NamedTuple):
    container: str
    codec: str
    options: dict[str, str]


# x264's macroblock tree gives other bytes on some runs, even with one thread (30 of 183 tried; none without it).
_H264 = ("libx264", {"crf": "17", "preset": "medium", "x264-params": "no-mbtree=1"})
_WRITING = {
    "mp4": _Writing("mp4", *_H264),
    "m4v": _Writing("mp4", *_H264),
    "mov": _Writing("mov", *_H264),
    "mkv": _Writing("matroska", *_H264),
    "webm": _Writing("webm", "libvpx-vp9", {"crf": "20", "b": "0"}),
    "avi": _Writing("avi", "mpeg4", {"qscale": "2", "flags": "+qscale+bitexact"}),
}


def video_decoder(form: VideoForm, limits: Limits, clip: Clip = _WHOLE) -> Decoder:
    """The function that turns a video's bytes into `Video`.

    ``"video"``: frames as an array, T x H x W x C; ``"torchvideo"``: as a tensor, T x C x H x W.
    """
    av = require("av", extra="video")

    def decode(data: Buffer) -> Video:
        with av.open(io.BytesIO(data), options={"format_whitelist": _DEMUXERS}) as container:
            if not container.streams.video:
                raise DecodeError(
                    "the file has no video stream", expected="a video stream", found=container.format.name
                )
            stream = container.streams.video[0]
            pairs = list(_bounded(_frames(container, stream, clip), limits))
            return _video(form, pairs, (stream.height, stream.width), float(stream.average_rate or 0))

    return decode


def _frames(container: Any, stream: Any, clip: Clip) -> Iterator[tuple[float, Array]]:
    begin = float((stream.start_time or 0) * stream.time_base)
    if clip.start:
        container.seek(int((clip.start + begin) / stream.time_base), stream=stream, backward=True)
    for frame in container.decode(stream):
        time = round((frame.time or 0.0) - begin, 9)
        if clip.stop is not None and time >= clip.stop:
            return
        if time >= clip.start:
            yield time, frame.to_ndarray(format="rgb24")


def _bounded(frames: Iterator[tuple[float, Array]], limits: Limits) -> Iterator[tuple[float, Array]]:
    size = 0
    for time, frame in frames:
        size += frame.nbytes
        if size > limits.max_bytes:
            raise DecodeError(
                "the video is too long",
                expected=f"at most {limits.max_bytes} bytes",
                found="more",
                hint="ask for a Clip",
            )
        yield time, frame


def _video(form: VideoForm, pairs: list[tuple[float, Array]], size: tuple[int, int], fps: float) -> Video:
    frames = np.stack([frame for _, frame in pairs]) if pairs else np.empty((0, *size, 3), np.uint8)
    times = np.array([time for time, _ in pairs], np.float64)
    return Video(tensor(frames.transpose(0, 3, 1, 2)) if form == "torchvideo" else frames, fps, times)


def _encode_video(value: Any, extension: str) -> bytes:
    frames, fps = _as_frames(value)
    av = require("av", extra="video")
    writing = _WRITING[extension]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=writing.container, container_options=_BIT_EXACT) as container:
        stream = _add_stream(container, writing, frames, fps)
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def _add_stream(container: Any, writing: _Writing, frames: Array, fps: Fraction) -> Any:
    stream = container.add_stream(
        writing.codec, rate=fps, options={"flags": "+bitexact", "threads": "1", **writing.options}
    )
    stream.height, stream.width = frames.shape[1:3]
    stream.pix_fmt = "yuv420p"  # what every player and decoder takes
    return stream


def _as_frames(value: Any) -> tuple[Array, Fraction]:
    if not isinstance(value, Video):
        raise EncodeError("this is not a video", expected="Video(frames, fps)", found=type(value).__name__)
    frames = as_array(value.frames)
    if hasattr(value.frames, "detach") and frames.ndim == 4 and frames.shape[1] == 3:
        frames = frames.transpose(0, 2, 3, 1)  # tensors have their channels first, as "torchvideo" gives them
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise EncodeError(
            "these are not frames", expected="uint8 T x H x W x 3", found=f"{frames.dtype} {frames.shape}"
        )
    if frames.shape[1] % 2 or frames.shape[2] % 2:
        raise EncodeError("video sizes are even", expected="an even height and width", found=frames.shape[1:3])
    if not value.fps > 0:
        raise EncodeError("a video needs its frame rate", expected="fps above 0", found=value.fps)
    return np.ascontiguousarray(frames), Fraction(value.fps).limit_denominator(100_000)


def _codec(extension: str) -> Codec:
    def encoder(options: EncodeOptions) -> Encoder:
        return lambda value: _encode_video(value, extension)

    def decoder(limits: Limits) -> Decoder:
        return video_decoder("video", limits)

    writes = extension in _WRITING
    return Codec(extension, (extension,), "a video", decoder, encoder if writes else None, kind="video")


CODECS = tuple(map(_codec, (*_WRITING, *_DECODED_ONLY)))
