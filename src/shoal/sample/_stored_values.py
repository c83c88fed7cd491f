"""Arrays, images and audio as they are stored in a payload."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.codec import (
    Buffer,
    Decoder,
    array_view,
    codec_for,
    decode_npy,
    decode_spec,
    decoders,
    encode,
)
from shoal.errors import CodecError, DecodeError, EncodeError, SchemaError, SchemaMismatchError, ShoalError
from shoal.schema import Audio, Image

__all__ = [
    "NPY_MAGIC",
    "Encoded",
    "MediaField",
    "ValueMismatch",
    "array_or_bytes",
    "array_reader",
    "array_writer",
    "decode_array",
    "decode_media",
    "each",
    "found_type",
    "keyed",
    "media_to_wire",
    "mismatch",
    "placed",
    "read_compact",
    "rooted",
]

Array = npt.NDArray[Any]


# --------------------------------------------------------------------------------------------------- arrays on the wire


NPY_MAGIC = b"\x93NUMPY"
_MAX_DIMENSIONS = 64
_MAX_DTYPE = 32  # the longest name of a dtype that is looked for in bytes of unknown meaning
_MAX_HEADER = 4096  # longer ones are not remembered
_BUFFERED = "biufc"  # the kinds that offer their bytes as they are
_DTYPE = re.compile(rb"[<>|=][biufcmMSUV?]\d*(?:\[[\w/]+\])?")


class ArrayBytes(NamedTuple):
    """Where an array's numbers lie within its bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def decode_array(data: Buffer) -> np.ndarray[Any, Any]:
    """The array in a field's bytes, ``.npy`` or compact, as a read-only view of them.

    Raises:
        DecodeError: The bytes are neither.

    Example:
        >>> decode_array(bytes.fromhex("033c693201020000000000000000000100"))
        array([0, 1], dtype=int16)
    """
    if data[:6] == NPY_MAGIC:
        return decode_npy(data)
    found = read_compact(data)
    return array_view(data, found.dtype, found.shape, found.offset)


def array_reader(decode: Callable[[memoryview], Array]) -> Callable[[memoryview], Array]:
    """``decode``, made quick for arrays that look like the one before: same header, same size.

    Whatever ``decode`` refuses stays refused, because only what it took is remembered.
    """
    last: tuple[bytes, int, tuple[int, ...], Any, Any] = (b"", -1, (), None, None)

    def read(data: memoryview) -> Array:
        nonlocal last  # one tuple, replaced as a whole, so threads see the old one or the new one
        header, size, shape, dtype, order = last
        if len(data) == size and bytes(data[: len(header)]) == header:
            return np.ndarray(shape, dtype, data if data.readonly else data.toreadonly(), len(header), None, order)
        array = decode(data)
        start = len(data) - array.nbytes
        if start <= _MAX_HEADER:
            order = "C" if array.flags.c_contiguous else "F"
            last = (bytes(data[:start]), len(data), array.shape, array.dtype, order)
        return array

    return read


def array_writer(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """``encode``, made quick for arrays that look like the one before: same dtype, same shape, in C order."""
    last: tuple[Any, tuple[int, ...], bytes] = (None, (), b"")

    def write(value: Any) -> bytes:
        nonlocal last
        dtype, shape, header = last
        if value.__class__ is np.ndarray and value.dtype is dtype and value.shape == shape and value.flags.c_contiguous:
            return b"".join((header, value))  # type: ignore[arg-type] # it offers its bytes
        data = encode(value)
        if (
            value.__class__ is np.ndarray
            and value.dtype.kind in _BUFFERED
            and value.flags.c_contiguous
            and value.nbytes
        ):
            last = (value.dtype, value.shape, data[: len(data) - value.nbytes])
        return data

    return write


def read_compact(data: Buffer) -> ArrayBytes:
    """The header of atdata's compact form: ``u8 n | dtype.str | u8 ndim | ndim x int64 | the numbers, in C order``."""
    end = 1 + (data[0] if len(data) else 0)
    name = bytes(data[1:end])
    dimensions = data[end] if end < len(data) else -1
    offset = end + 1 + 8 * dimensions
    if not _DTYPE.fullmatch(name) or not 0 <= dimensions <= _MAX_DIMENSIONS or offset > len(data):
        raise DecodeError("these bytes are not an array", expected=".npy or atdata's compact form", found=_start(data))
    dtype = _dtype(name)
    shape = tuple(int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(end + 1, offset, 8))
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != len(data) - offset:
        raise DecodeError("the array has another size than its header says", expected=size, found=len(data) - offset)
    return ArrayBytes(dtype, shape, offset)


def _dtype(name: bytes) -> np.dtype[Any]:
    try:
        return np.dtype(name.decode("ascii"))
    except (TypeError, ValueError) as error:
        raise DecodeError("these bytes are not an array", expected="a NumPy dtype", found=name) from error


def _start(data: Buffer) -> str:
    return f"{len(data)} bytes from {bytes(data[:8])!r}" if len(data) else "no bytes"


def array_or_bytes(data: Buffer) -> Array | bytes:
    """Bytes of unknown meaning: an array where they are exactly one, ``.npy`` or compact; else as they are."""
    if data[:6] == NPY_MAGIC or (len(data) > 3 and 2 <= data[0] <= _MAX_DTYPE and data[1] in b"<>|="):
        try:
            return decode_array(data)
        except CodecError:
            return bytes(data)
    return bytes(data)


# ----------------------------------------------------------------------------------------- images and sounds in samples


_BYTES = (bytes, bytearray, memoryview)


class Encoded:
    """A file's bytes, and the value they decode to once it was asked for.

    ``writable``: the decoded value takes the place of the bytes, so that changes to it are written.
    """

    __slots__ = ("data", "value", "writable")

    def __init__(self, data: Buffer, writable: bool = False) -> None:
        self.data = data
        self.writable = writable
        self.value: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoded, (bytes(self.data), self.writable)  # a view into a block does not travel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoded) and self.data == other.data

    def __hash__(self) -> int:
        return hash(bytes(self.data))


def decode_media(of: Image | Audio) -> Callable[[Buffer], Any]:
    """The function that decodes files of this field. The content decides how, the declared format does not."""
    kind = "image" if isinstance(of, Image) else "audio"
    found = codec_for(of.format)
    if found is None or found.kind != kind:
        raise SchemaError(f"this is not a format for {kind}", found=of.format, hint="see shoal.codec")
    form = "numpy" if kind == "image" else "audio"

    def run(data: Buffer) -> Any:
        # Looked up here and not before: a missing extra matters only to those who look at the field.
        try:
            return _decoder(of.format, form)(data)
        except CodecError as error:
            error.field = None  # it says the format; the field of the sample is known further up
            raise

    return run


@lru_cache(maxsize=64)
def _decoder(name: str, form: str) -> Decoder:
    return decoders(decode_spec(form), (name,))[name]


def media_to_wire(of: Image | Audio) -> Callable[[Any], Buffer]:
    """The function that gives the bytes to store: those of a file as they are, pixels and sounds encoded."""

    def run(value: Any) -> Buffer:
        if isinstance(value, Encoded):
            return value.data
        if isinstance(value, _BYTES):
            return value
        try:
            return encode(of.format, value)
        except EncodeError as error:
            raise ValueMismatch(
                f"{of}: {error.expected}", f"{found_type(value)}: {error.found or error.problem}"
            ) from error

    return run


class MediaField:
    """The attribute of an image or a sound: bytes are kept as they came, and decoded when the attribute is read."""

    def __init__(self, name: str, of: Image | Audio, default: Any) -> None:
        self.name = name
        self.decode = decode_media(of)
        self.default = default

    def __get__(self, sample: Any, owner: type | None = None) -> Any:
        if sample is None:
            if self.default is not MISSING:
                return self.default
            raise AttributeError(self.name)
        try:
            held = sample.__dict__[self.name]
        except KeyError:
            raise AttributeError(self.name) from None
        if type(held) is not Encoded:
            if not isinstance(held, _BYTES):
                return held
            held = sample.__dict__[self.name] = Encoded(held)
        if held.value is None:
            self._decode(sample, held)
        return held.value

    def _decode(self, sample: Any, held: Encoded) -> None:
        try:
            held.value = self.decode(held.data)
        except CodecError as error:
            raise error.at(field=self.name) from None
        if held.writable:
            sample.__dict__[self.name] = held.value
        else:
            _read_only(held.value)

    def __set__(self, sample: Any, value: Any) -> None:
        sample.__dict__[self.name] = Encoded(value) if isinstance(value, _BYTES) else value


def _read_only(value: Any) -> None:
    # The bytes are what is written again, so a change to the decoded value would be lost without a word.
    for array in value if isinstance(value, tuple) else (value,):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False


# ------------------------------------------------------- misfit: a value that does not fit its type, and the path to it


class ValueMismatch(Exception):  # noqa: N818 - never leaves the package; `mismatch` makes an error of it
    """What was expected and what was found, with the steps that lead there, innermost first."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
        self.steps: list[str] = []


def found_type(value: Any) -> str:
    """A value's type, and for an array its dtype and shape, as messages show it."""
    if isinstance(value, np.ndarray):
        return f"array[{value.dtype}, {value.shape}]"
    return "None" if value is None else type(value).__qualname__


def each(convert: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """Every value converted; where one does not fit, its number is the step to it."""
    try:
        return [convert(value) for value in values]
    except (ValueMismatch, CodecError):
        for number, value in enumerate(values):  # again, and slower, to learn which
            placed(convert, value, f"[{number}]")
        raise


def keyed(key: Callable[[Any], Any], convert: Callable[[Any], Any], values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Every key and value of a map converted; where one does not fit, its key is the step to it."""
    try:
        return {key(name): convert(value) for name, value in values.items()}
    except (ValueMismatch, CodecError):
        for name, value in values.items():
            placed(key, name, f"[{name!r}]")
            placed(convert, value, f"[{name!r}]")
        raise


def placed(convert: Callable[[Any], Any], value: Any, step: str) -> Any:
    """Convert, and note the step on what does not fit."""
    try:
        return convert(value)
    except ValueMismatch as misfit:
        misfit.steps.append(step)
        raise
    except CodecError as error:
        error.field = f"{step}{error.field or ''}"
        raise


def rooted(error: CodecError) -> CodecError:
    """An error whose path was collected by `placed`, as a path from the sample."""
    error.field = (error.field or "").lstrip(".") or None
    return error


def mismatch(misfit: ValueMismatch, problem: str) -> ShoalError:
    """The error that users see."""
    path = "".join(reversed(misfit.steps)).lstrip(".")
    return SchemaMismatchError(problem, expected=misfit.expected, found=misfit.found, field=path or None)
