"""The values this package is made of: what a codec is, and what it may be asked."""

from __future__ import annotations

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
]

Buffer: TypeAlias = bytes | bytearray | memoryview
Encoded: TypeAlias = bytes | memoryview
Decoder: TypeAlias = Callable[[Buffer], Any]
Encoder: TypeAlias = Callable[[Any], Encoded]
Kind: TypeAlias = Literal["data", "image", "audio", "video"]

DEFAULT_MAX_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What decoding may do: run pickles or not, and how large one decoded field may become."""

    allow_pickle: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise OptionError("max_bytes must be positive", expected="1 or more", found=self.max_bytes)


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How values become bytes.

    ``quality`` is that of lossy images (jpg, webp, avif, jpg in ``img``).

    Example:
        >>> EncodeOptions(quality=80).quality
        80
    """

    # Not webdataset's 100: libjpeg gives up part of its compression above 95. On noise with the spectrum of photographs
    # 100 took twice the bytes of 95, for pixels closer by one level at most on average. Where that matters, write png.
    quality: int = 95
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise OptionError("quality is out of range", expected="1 to 100", found=self.quality)


@dataclass(frozen=True, slots=True)
class SizedDecoder:
    """A decoder whose values are all of one shape and type, and that fills an array which is there.

    So a batch is one array from the start, and each value goes straight to its row of it.

    Example:
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
    """Fill an array of this shape and type, such as one row of a batch."""

    def __call__(self, data: Buffer) -> npt.NDArray[Any]:
        """The value as an array of its own."""
        out: npt.NDArray[Any] = np.empty(self.shape, self.dtype)
        self.decode_into(data, out)
        return out


DecoderMaker: TypeAlias = Callable[[Limits], Decoder]
EncoderMaker: TypeAlias = Callable[[EncodeOptions], Encoder]


@dataclass(frozen=True, slots=True)
class Codec:
    """One kind of payload, and how its bytes become a value and back.

    ``decoder`` and ``encoder`` are called once per field and run of samples; what they return is called per sample.

    Attributes:
        name: What error messages call it.
        extensions: The lower-case last components of field names that choose it.
        expects: What its bytes should be, in words, for error messages.
        kind: Named specs such as ``"rgb8"`` apply to all codecs of one kind.
        automatic: ``decode=True`` decodes it.
        textual: A ``str`` given to its encoder is the text itself, and is written as UTF-8.
        unsafe: Decoding may run code, so it needs ``allow_pickle=True``.
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
