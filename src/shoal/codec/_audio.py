"""Sound, by soundfile (libsndfile)."""

from __future__ import annotations

import io
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal._optional import require
from shoal.codec._array import as_array
from shoal.codec._codec import Buffer, Codec, Decoder, EncodeOptions, Encoder, Limits
from shoal.codec._riff_ogg import without_serial, without_time
from shoal.codec._torch import tensor
from shoal.errors import DecodeError, EncodeError

__all__ = ["AUDIO_FORMS", "CODECS", "Audio", "audio_decoder"]


class Audio(NamedTuple):
    """Sound: ``samples`` is frames x channels, in -1 to 1 where it is float.

    A tuple, because soundfile and torchaudio give ``samples, rate``, and code written for them unpacks it.

    Example:
        >>> samples, rate = Audio(np.zeros((160, 1), np.float32), 16000)
        >>> rate
        16000
    """

    samples: Any
    sample_rate: int


AudioForm = Literal["audio", "audio16", "torchaudio"]
AUDIO_FORMS: tuple[AudioForm, ...] = ("audio", "audio16", "torchaudio")

_CONTAINERS = {"wav": "WAV", "flac": "FLAC", "mp3": "MP3", "ogg": "OGG", "opus": "OGG"}
_SUBTYPES: dict[str, dict[str, str]] = {
    "wav": {"int16": "PCM_16", "int32": "PCM_32", "float32": "FLOAT", "float64": "DOUBLE"},
    "flac": {"int16": "PCM_16", "int32": "PCM_24", "float32": "PCM_24", "float64": "PCM_24"},
    "mp3": dict.fromkeys(("int16", "int32", "float32", "float64"), "MPEG_LAYER_III"),
    "ogg": dict.fromkeys(("int16", "int32", "float32", "float64"), "VORBIS"),
    "opus": dict.fromkeys(("int16", "int32", "float32", "float64"), "OPUS"),
}


def audio_decoder(form: AudioForm, limits: Limits) -> Decoder:
    """The function that turns a sound file's bytes into `Audio`.

    ``"audio"``: float32; ``"audio16"``: int16, exact for 16-bit files; ``"torchaudio"``: a float32 tensor, channels x
    frames.
    """
    soundfile = require("soundfile", extra="audio")
    dtype = "int16" if form == "audio16" else "float32"

    def decode(data: Buffer) -> Audio:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_size(file.frames, file.channels, np.dtype(dtype).itemsize, limits)
            file.seek(0)  # as soundfile.read does: after a seek the mp3 decoder rounds the last bit another way
            samples = file.read(dtype=dtype, always_2d=True)
            return Audio(tensor(samples.T) if form == "torchaudio" else samples, file.samplerate)

    return decode


def _check_size(frames: int, channels: int, width: int, limits: Limits) -> None:
    if frames * channels * width > limits.max_bytes:
        found = f"{frames} frames of {channels} channels"
        raise DecodeError(
            "the sound is too long", expected=f"at most {limits.max_bytes} bytes", found=found, hint="raise max_bytes"
        )


def _encode_audio(value: Any, extension: str) -> bytes:
    samples, sample_rate = _as_audio(value)
    subtype = _SUBTYPES[extension].get(samples.dtype.name)
    if subtype is None:
        raise EncodeError(
            "this type is not a sound's", expected="int16, int32, float32 or float64", found=samples.dtype
        )
    soundfile = require("soundfile", extra="audio")
    stream = io.BytesIO()
    soundfile.write(stream, samples, sample_rate, format=_CONTAINERS[extension], subtype=subtype)
    return _without_chance(stream.getvalue(), extension)


def _as_audio(value: Any) -> Audio:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise EncodeError("this is not a sound", expected="Audio(samples, sample_rate)", found=type(value).__name__)
    samples = as_array(value[0])
    if hasattr(value[0], "detach") and samples.ndim == 2:
        samples = samples.T  # tensors have their channels first, as "torchaudio" gives them
    if samples.ndim not in (1, 2):
        raise EncodeError("this shape is not a sound", expected="frames, or frames x channels", found=samples.shape)
    return Audio(np.ascontiguousarray(samples), int(value[1]))


def _without_chance(data: bytes, extension: str) -> bytes:
    """The same file without what libsndfile puts in from the clock."""
    if extension == "wav":
        return without_time(data)
    return without_serial(data) if extension in ("ogg", "opus") else data


def _codec(extension: str) -> Codec:
    def encoder(options: EncodeOptions) -> Encoder:
        return lambda value: _encode_audio(value, extension)

    def decoder(limits: Limits) -> Decoder:
        return audio_decoder("audio", limits)

    return Codec(extension, (extension,), "a sound file", decoder, encoder, kind="audio")


CODECS = tuple(map(_codec, _CONTAINERS))
