"""The `Codec` type with its limits and options, tests for plain values, and the time spent decoding."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError

__all__ = [
    "DEFAULT_MAX_BYTES",
    "Buffer",
    "Codec",
    "Decoder",
    "DecoderMaker",
    "EncodeOptions",
    "Encoded",
    "Encoder",
    "EncoderMaker",
    "Kind",
    "Limits",
    "SizedDecoder",
    "decoding_seconds",
    "has_non_finite",
    "is_plain",
    "time_decoding",
    "to_plain",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
Encoded: TypeAlias = bytes | memoryview
Decoder: TypeAlias = Callable[[Buffer], Any]
Encoder: TypeAlias = Callable[[Any], Encoded]
Kind: TypeAlias = Literal["data", "image", "audio", "video"]
DEFAULT_MAX_BYTES = 4 << 30
_SCALARS = frozenset((str, int, float, bool, type(None), bytes))


@dataclass(frozen=True, slots=True)
class Limits:
    """What decoding may do: whether to load pickles, and the maximum size of one decoded field."""

    allow_pickle: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise OptionError("max_bytes must be positive", expected="1 or more", found=self.max_bytes)


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How values are encoded.

    ``quality`` is used for lossy images (jpg, webp, avif, jpg in ``img``).

    Examples:
        >>> EncodeOptions(quality=80).quality
        80
    """

    # Not webdataset's 100: above 95 libjpeg loses part of its compression. On noise with the spectrum of photographs,
    # 100 took twice the bytes of 95, for pixels closer by at most one level on average. Where that matters, write png.
    quality: int = 95
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise OptionError("quality is out of range", expected="1 to 100", found=self.quality)


@dataclass(frozen=True, slots=True)
class SizedDecoder:
    """A decoder whose values all have one shape and dtype, and which can fill an existing array.

    So a batch is allocated once, and each value is decoded into its row.

    Examples:
        >>> from shoal.codec import decode_spec, decoders, encode
        >>> decoder = decoders(decode_spec({"jpg": "rgb8@4"}), ["jpg"])["jpg"]
        >>> decoder.shape, str(decoder.dtype)
        ((4, 4, 3), 'uint8')
        >>> batch = np.empty((2, *decoder.shape), decoder.dtype)
        >>> decoder.decode_into(encode("jpg", np.full((9, 7, 3), 50, np.uint8)), batch[1])
        >>> batch[1].min(), batch[1].max()
        (np.uint8(50), np.uint8(50))
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    decode_into: Callable[[Buffer, npt.NDArray[Any]], None]
    """Fill an array of this shape and dtype, such as one row of a batch."""

    def __call__(self, data: Buffer) -> npt.NDArray[Any]:
        """Return the value as a new array."""
        out: npt.NDArray[Any] = np.empty(self.shape, self.dtype)
        self.decode_into(data, out)
        return out


DecoderMaker: TypeAlias = Callable[[Limits], Decoder]
EncoderMaker: TypeAlias = Callable[[EncodeOptions], Encoder]


@dataclass(frozen=True, slots=True)
class Codec:
    """How the bytes of some extensions become a value and back.

    ``decoder`` and ``encoder`` are called once per field, before samples are read or written; the functions they return
    are called per sample.

    Attributes:
        name: Name in error messages.
        extensions: The lower-case last components of field names that choose it.
        expects: What its bytes should be, in words, for error messages.
        kind: Named specs such as ``"rgb8"`` apply to all codecs of one kind.
        automatic: Whether ``decode=True`` decodes it.
        textual: Whether a ``str`` given to its encoder is the text itself, and is written as UTF-8.
        unsafe: Whether decoding may run code, so that it needs ``allow_pickle=True``.
    """

    name: str
    extensions: tuple[str, ...]
    expects: str
    decoder: DecoderMaker | None = None
    encoder: EncoderMaker | None = None
    kind: Kind = "data"
    automatic: bool = False
    textual: bool = False
    unsafe: bool = False


def is_plain(value: Any) -> bool:
    """Whether a value consists of dicts, lists and scalars only, so that its order is deterministic.

    Sets have the order of their hashes, which differ from one process to the next.
    """
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return False
    # The first test is one loop in C, and enough for long lists of numbers.
    return _SCALARS.issuperset(map(type, value)) or all(map(is_plain, value))


def has_non_finite(value: Any) -> bool:
    """Whether a plain value holds a NaN or an infinity anywhere."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(has_non_finite, value.values()))
    return isinstance(value, list | tuple) and any(map(has_non_finite, value))


def to_plain(value: Any) -> Any:
    """Convert NumPy scalars, arrays and tensors to numbers and lists; raise TypeError for other values."""
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"a value of type {type(value).__name__} has no plain form")
    return to_list()


class _Clock(threading.local):
    seconds = 0.0


_clock = _Clock()


def decoding_seconds() -> float:
    """Return the seconds that this thread has spent decoding images, audio and video since it started.

    Text, numbers and arrays are not counted: decoding them takes about as long as reading the clock.

    Examples:
        >>> decoding_seconds() >= 0.0
        True
    """
    return _clock.seconds


def time_decoding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its time counts in `decoding_seconds`."""

    def run(*arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            _clock.seconds += time.perf_counter() - start

    return run
