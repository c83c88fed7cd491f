"""Audio by soundfile, and video by PyAV.

The same samples or frames give the same bytes: times and random numbers that the libraries would write are set to zero
or turned off.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal._optional import require
from shoal._typing import AnyArray
from shoal.errors import DecodeError, EncodeError, OptionError

from ._arrays import as_array
from ._codec import Buffer, Codec, Decoder, EncodeOptions, Encoder, Limits
from ._frameworks import tensor

__all__ = [
    "AUDIO_CODECS",
    "AUDIO_FORMS",
    "VIDEO_CODECS",
    "VIDEO_FORMS",
    "Audio",
    "Clip",
    "Video",
    "audio_decoder",
    "clear_ogg_serial",
    "video_decoder",
]

AudioForm = Literal["audio", "audio16", "torchaudio"]
AUDIO_FORMS: tuple[AudioForm, ...] = ("audio", "audio16", "torchaudio")
_AUDIO_CONTAINERS = {"wav": "WAV", "flac": "FLAC", "mp3": "MP3", "ogg": "OGG", "opus": "OGG"}
_AUDIO_SUBTYPES: dict[str, dict[str, str]] = {
    "wav": {"int16": "PCM_16", "int32": "PCM_32", "float32": "FLOAT", "float64": "DOUBLE"},
    "flac": {"int16": "PCM_16", "int32": "PCM_24", "float32": "PCM_24", "float64": "PCM_24"},
    "mp3": dict.fromkeys(("int16", "int32", "float32", "float64"), "MPEG_LAYER_III"),
    "ogg": dict.fromkeys(("int16", "int32", "float32", "float64"), "VORBIS"),
    "opus": dict.fromkeys(("int16", "int32", "float32", "float64"), "OPUS"),
}
VideoForm = Literal["video", "torchvideo"]
VIDEO_FORMS: tuple[VideoForm, ...] = ("video", "torchvideo")
_RIFF_CHUNK = struct.Struct("<4sI")
_OGG_HEADER_BYTES = 27
_OGG_SERIAL, _OGG_CHECKSUM, _OGG_SEGMENTS = 14, 22, 26
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class Audio(NamedTuple):
    """Decoded audio: ``samples`` has the shape frames x channels; floats are in -1 to 1.

    A tuple, because soundfile and torchaudio return ``samples, rate``, and code written for them unpacks it.

    Examples:
        >>> samples, rate = Audio(np.zeros((160, 1), np.float32), 16000)
        >>> rate
        16000
    """

    samples: Any
    sample_rate: int


def audio_decoder(form: AudioForm, limits: Limits) -> Decoder:
    """Return the function that decodes an audio file to `Audio`.

    ``"audio"``: float32; ``"audio16"``: int16, exact for 16-bit files; ``"torchaudio"``: a float32 tensor, channels x
    frames.
    """
    soundfile = require("soundfile", extra="audio")
    dtype = "int16" if form == "audio16" else "float32"

    def decode(data: Buffer) -> Audio:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_audio_size(file.frames, file.channels, np.dtype(dtype).itemsize, limits)
            file.seek(0)  # as soundfile.read does: a seek changes how the mp3 decoder rounds the last bit
            samples = file.read(dtype=dtype, always_2d=True)
            return Audio(tensor(samples.T) if form == "torchaudio" else samples, file.samplerate)

    return decode


def _check_audio_size(frames: int, channels: int, width: int, limits: Limits) -> None:
    if frames * channels * width > limits.max_bytes:
        raise DecodeError(
            "the sound is too long",
            expected=f"at most {limits.max_bytes} bytes",
            found=f"{frames} frames of {channels} channels",
            hint="raise max_bytes",
        )


def _encode_audio(value: Any, extension: str) -> bytes:
    samples, sample_rate = _as_audio(value)
    subtype = _AUDIO_SUBTYPES[extension].get(samples.dtype.name)
    if subtype is None:
        raise EncodeError(
            "this type is not a sound's", expected="int16, int32, float32 or float64", found=samples.dtype
        )
    soundfile = require("soundfile", extra="audio")
    stream = io.BytesIO()
    soundfile.write(stream, samples, sample_rate, format=_AUDIO_CONTAINERS[extension], subtype=subtype)
    return _make_deterministic(stream.getvalue(), extension)


def _as_audio(value: Any) -> Audio:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise EncodeError("this is not a sound", expected="Audio(samples, sample_rate)", found=type(value).__name__)
    samples = as_array(value[0])
    if hasattr(value[0], "detach") and samples.ndim == 2:
        samples = samples.T  # tensors are channels-first, as "torchaudio" decodes them
    if samples.ndim not in (1, 2):
        raise EncodeError("this shape is not a sound", expected="frames, or frames x channels", found=samples.shape)
    return Audio(np.ascontiguousarray(samples), int(value[1]))


def _make_deterministic(data: bytes, extension: str) -> bytes:
    """Return the same file without the time and the random number that libsndfile writes."""
    if extension == "wav":
        return clear_peak_time(data)
    return clear_ogg_serial(data) if extension in ("ogg", "opus") else data


def clear_peak_time(data: bytes) -> bytes:
    """Return a RIFF file with the time in its PEAK chunk (written for float samples) set to zero."""
    result, offset = bytearray(data), 12
    while offset + _RIFF_CHUNK.size <= len(data):
        name, size = _RIFF_CHUNK.unpack_from(data, offset)
        if name == b"PEAK":
            start = offset + _RIFF_CHUNK.size + 4  # after the version
            result[start : start + 4] = bytes(4)
        offset += _RIFF_CHUNK.size + size + size % 2
    return bytes(result)


def clear_ogg_serial(data: bytes) -> bytes:
    """Return an Ogg file with its stream's random serial number set to zero, and new page checksums."""
    pages, offset = [], 0
    while offset < len(data):
        lengths = offset + _OGG_HEADER_BYTES
        end = lengths + data[offset + _OGG_SEGMENTS]
        end += sum(data[lengths:end])
        pages.append(_clear_page_serial(data[offset:end]))
        offset = end
    return b"".join(pages)


def _clear_page_serial(page: bytes) -> bytes:
    blank = bytearray(page)
    blank[_OGG_SERIAL : _OGG_SERIAL + 4] = blank[_OGG_CHECKSUM : _OGG_CHECKSUM + 4] = bytes(4)
    blank[_OGG_CHECKSUM : _OGG_CHECKSUM + 4] = _ogg_crc(blank).to_bytes(4, "little")
    return bytes(blank)


def _ogg_crc(data: bytearray) -> int:
    # Ogg's checksum is zlib's with reversed bits, without the inversion of its initial and final value.
    mirrored = zlib.crc32(data.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)


def _audio_codec(extension: str) -> Codec:
    def encoder(options: EncodeOptions) -> Encoder:
        return lambda value: _encode_audio(value, extension)

    def decoder(limits: Limits) -> Decoder:
        return audio_decoder("audio", limits)

    return Codec(extension, (extension,), "a sound file", decoder, encoder, kind="audio")


AUDIO_CODECS = tuple(map(_audio_codec, _AUDIO_CONTAINERS))


@dataclass(frozen=True, slots=True)
class Clip:
    """The part of a video to decode, in seconds from its start: frames with ``start <= time < stop``.

    Examples:
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
    """Decoded video: ``frames`` is T x H x W x 3, uint8; ``times`` are seconds, one per frame (not used to encode)."""

    frames: Any
    fps: float
    times: Any = None


_ALL_FRAMES = Clip()

# Playlist demuxers open other files and URLs that the data names, so only real containers are allowed.
_DEMUXERS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,ogg,asf,flv,mjpeg,h264,mp4,webm"
_BIT_EXACT = {"fflags": "+bitexact"}  # no dates, no random ids, no version strings
_READ_ONLY_EXTENSIONS = ("mpg", "mpeg", "ogv", "wmv", "flv", "3gp", "mjpeg", "h264")


class _VideoWriter(NamedTuple):
    container: str
    codec: str
    options: dict[str, str]


# x264's macroblock tree is not deterministic, even with one thread: 30 of 183 runs gave other bytes, none without it.
_H264 = ("libx264", {"crf": "17", "preset": "medium", "x264-params": "no-mbtree=1"})


_VIDEO_WRITERS = {
    "mp4": _VideoWriter("mp4", *_H264),
    "m4v": _VideoWriter("mp4", *_H264),
    "mov": _VideoWriter("mov", *_H264),
    "mkv": _VideoWriter("matroska", *_H264),
    "webm": _VideoWriter("webm", "libvpx-vp9", {"crf": "20", "b": "0"}),
    "avi": _VideoWriter("avi", "mpeg4", {"qscale": "2", "flags": "+qscale+bitexact"}),
}


def video_decoder(form: VideoForm, limits: Limits, clip: Clip = _ALL_FRAMES) -> Decoder:
    """Return the function that decodes a video file to `Video`.

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
            pairs = list(_check_video_size(_decode_frames(container, stream, clip), limits))
            return _stack_frames(form, pairs, (stream.height, stream.width), float(stream.average_rate or 0))

    return decode


def _decode_frames(container: Any, stream: Any, clip: Clip) -> Iterator[tuple[float, AnyArray]]:
    begin = float((stream.start_time or 0) * stream.time_base)
    if clip.start:
        container.seek(int((clip.start + begin) / stream.time_base), stream=stream, backward=True)
    for frame in container.decode(stream):
        time = round((frame.time or 0.0) - begin, 9)
        if clip.stop is not None and time >= clip.stop:
            return
        if time >= clip.start:
            yield time, frame.to_ndarray(format="rgb24")


def _check_video_size(frames: Iterator[tuple[float, AnyArray]], limits: Limits) -> Iterator[tuple[float, AnyArray]]:
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


def _stack_frames(form: VideoForm, pairs: list[tuple[float, AnyArray]], size: tuple[int, int], fps: float) -> Video:
    frames = np.stack([frame for _, frame in pairs]) if pairs else np.empty((0, *size, 3), np.uint8)
    times = np.array([time for time, _ in pairs], np.float64)
    return Video(tensor(frames.transpose(0, 3, 1, 2)) if form == "torchvideo" else frames, fps, times)


def _encode_video(value: Any, extension: str) -> bytes:
    frames, fps = _as_frames(value)
    av = require("av", extra="video")
    writer = _VIDEO_WRITERS[extension]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=writer.container, container_options=_BIT_EXACT) as container:
        stream = _add_stream(container, writer, frames, fps)
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def _add_stream(container: Any, writer: _VideoWriter, frames: AnyArray, fps: Fraction) -> Any:
    stream = container.add_stream(
        writer.codec, rate=fps, options={"flags": "+bitexact", "threads": "1", **writer.options}
    )
    stream.height, stream.width = frames.shape[1:3]
    stream.pix_fmt = "yuv420p"  # supported by every player and decoder
    return stream


def _as_frames(value: Any) -> tuple[AnyArray, Fraction]:
    if not isinstance(value, Video):
        raise EncodeError("this is not a video", expected="Video(frames, fps)", found=type(value).__name__)
    frames = as_array(value.frames)
    if hasattr(value.frames, "detach") and frames.ndim == 4 and frames.shape[1] == 3:
        frames = frames.transpose(0, 2, 3, 1)  # tensors are channels-first, as "torchvideo" decodes them
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise EncodeError(
            "these are not frames", expected="uint8 T x H x W x 3", found=f"{frames.dtype} {frames.shape}"
        )
    if frames.shape[1] % 2 or frames.shape[2] % 2:
        raise EncodeError("video sizes are even", expected="an even height and width", found=frames.shape[1:3])
    if not value.fps > 0:
        raise EncodeError("a video needs its frame rate", expected="fps above 0", found=value.fps)
    return np.ascontiguousarray(frames), Fraction(value.fps).limit_denominator(100_000)


def _video_codec(extension: str) -> Codec:
    def encoder(options: EncodeOptions) -> Encoder:
        return lambda value: _encode_video(value, extension)

    def decoder(limits: Limits) -> Decoder:
        return video_decoder("video", limits)

    can_write = extension in _VIDEO_WRITERS
    return Codec(extension, (extension,), "a video", decoder, encoder if can_write else None, kind="video")


VIDEO_CODECS = tuple(map(_video_codec, (*_VIDEO_WRITERS, *_READ_ONLY_EXTENSIONS)))
