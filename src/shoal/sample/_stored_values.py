"""Arrays, images and audio as stored in a payload, and the error of a value that does not fit, with the path to it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from shoal._typing import AnyArray
from shoal.codec._arrays import array_view, decode_npy
from shoal.codec._codec import Buffer, Decoder
from shoal.codec._dispatch import decode_spec, decoders, encode
from shoal.codec._registry import codec_for
from shoal.errors import CodecError, DecodeError, EncodeError, SchemaError, SchemaMismatchError, ShoalError
from shoal.schema._types import Audio, Image

__all__ = [
    "NPY_MAGIC",
    "Encoded",
    "MediaField",
    "ValueMismatch",
    "array_or_bytes",
    "array_reader",
    "array_writer",
    "convert_at",
    "convert_entries",
    "convert_items",
    "decode_array",
    "describe_type",
    "media_decoder",
    "media_encoder",
    "mismatch_error",
    "read_compact",
    "strip_path",
]


BYTES_TYPES = (bytes, bytearray, memoryview)
NPY_MAGIC = b"\x93NUMPY"
_MAX_DIMENSIONS = 64
_MAX_DTYPE_BYTES = 32  # maximum length of a dtype's name in bytes that may or may not be an array
_MAX_CACHED_HEADER_BYTES = 4096
_BUFFER_KINDS = "biufc"  # the kinds of dtypes that support the buffer protocol
_DTYPE_PATTERN = re.compile(rb"[<>|=][biufcmMSUV?]\d*(?:\[[\w/]+\])?")


class ValueMismatch(Exception):  # noqa: N818 - never leaves the package; `mismatch_error` makes an error of it
    """A value that does not fit its type. ``steps`` is the path to it, innermost first."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
        self.steps: list[str] = []


def describe_type(value: Any) -> str:
    """Return a value's type for messages; for an array with dtype and shape."""
    if isinstance(value, np.ndarray):
        return f"array[{value.dtype}, {value.shape}]"
    return "None" if value is None else type(value).__qualname__


def convert_items(convert: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """Convert every value; the path of one that does not fit contains its index."""
    try:
        return [convert(value) for value in values]
    except (ValueMismatch, CodecError):
        for number, value in enumerate(values):  # again and slower, to find the index
            convert_at(convert, value, f"[{number}]")
        raise


def convert_entries(
    key: Callable[[Any], Any], convert: Callable[[Any], Any], values: Mapping[Any, Any]
) -> dict[Any, Any]:
    """Convert every key and value of a map; the path of one that does not fit contains its key."""
    try:
        return {key(name): convert(value) for name, value in values.items()}
    except (ValueMismatch, CodecError):
        for name, value in values.items():
            convert_at(key, name, f"[{name!r}]")
            convert_at(convert, value, f"[{name!r}]")
        raise


def convert_at(convert: Callable[[Any], Any], value: Any, step: str) -> Any:
    """Convert a value; if it does not fit, add ``step`` to the path in the error."""
    try:
        return convert(value)
    except ValueMismatch as mismatch:
        mismatch.steps.append(step)
        raise
    except CodecError as error:
        error.field = f"{step}{error.field or ''}"
        raise


def strip_path(error: CodecError) -> CodecError:
    """Remove the leading dot from a path that `convert_at` collected."""
    error.field = (error.field or "").lstrip(".") or None
    return error


def mismatch_error(mismatch: ValueMismatch, problem: str) -> ShoalError:
    """Return the public error for a mismatch."""
    path = "".join(reversed(mismatch.steps)).lstrip(".")
    return SchemaMismatchError(problem, expected=mismatch.expected, found=mismatch.found, field=path or None)


class ArrayBytes(NamedTuple):
    """The header of an array in compact form; ``offset`` is where its numbers start."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def decode_array(data: Buffer) -> np.ndarray[Any, Any]:
    """Return the array in a field's bytes, ``.npy`` or compact, as a read-only view of them.

    Raises:
        DecodeError: The bytes are neither.

    Examples:
        >>> decode_array(bytes.fromhex("033c693201020000000000000000000100"))
        array([0, 1], dtype=int16)
    """
    if data[:6] == NPY_MAGIC:
        return decode_npy(data)
    header = read_compact(data)
    return array_view(data, header.dtype, header.shape, header.offset)


def array_reader(decode: Callable[[memoryview], AnyArray]) -> Callable[[memoryview], AnyArray]:
    """Wrap ``decode`` so that it is fast for an array with the same header and size as the previous one.

    Only headers of arrays that ``decode`` accepted are cached, so the same arrays are rejected as without the cache.
    """
    last: tuple[bytes, int, tuple[int, ...], Any, Any] = (b"", -1, (), None, None)

    def read(data: memoryview) -> AnyArray:
        nonlocal last  # replaced by one assignment, so that threads see either the old or the new tuple
        header, size, shape, dtype, order = last
        if len(data) == size and bytes(data[: len(header)]) == header:
            return np.ndarray(shape, dtype, data if data.readonly else data.toreadonly(), len(header), None, order)
        array = decode(data)
        start = len(data) - array.nbytes
        if start <= _MAX_CACHED_HEADER_BYTES:
            order = "C" if array.flags.c_contiguous else "F"
            last = (bytes(data[:start]), len(data), array.shape, array.dtype, order)
        return array

    return read


def array_writer(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Wrap ``encode`` so that it is fast for an array of the same dtype and shape as the previous one, in C order."""
    last: tuple[Any, tuple[int, ...], bytes] = (None, (), b"")

    def write(value: Any) -> bytes:
        nonlocal last
        dtype, shape, header = last
        if value.__class__ is np.ndarray and value.dtype is dtype and value.shape == shape and value.flags.c_contiguous:
            return b"".join((header, value))  # type: ignore[arg-type] # arrays support the buffer protocol
        data = encode(value)
        if (
            value.__class__ is np.ndarray
            and value.dtype.kind in _BUFFER_KINDS
            and value.flags.c_contiguous
            and value.nbytes
        ):
            last = (value.dtype, value.shape, data[: len(data) - value.nbytes])
        return data

    return write


def read_compact(data: Buffer) -> ArrayBytes:
    """Read the header of atdata's compact form: ``u8 n | dtype.str | u8 ndim | ndim x int64 | numbers in C order``."""
    end = 1 + (data[0] if len(data) else 0)
    name = bytes(data[1:end])
    dimensions = data[end] if end < len(data) else -1
    offset = end + 1 + 8 * dimensions
    if not _DTYPE_PATTERN.fullmatch(name) or not 0 <= dimensions <= _MAX_DIMENSIONS or offset > len(data):
        raise DecodeError(
            "these bytes are not an array", expected=".npy or atdata's compact form", found=_describe_start(data)
        )
    dtype = _parse_dtype(name)
    shape = tuple(int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(end + 1, offset, 8))
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != len(data) - offset:
        raise DecodeError("the array has another size than its header says", expected=size, found=len(data) - offset)
    return ArrayBytes(dtype, shape, offset)


def _parse_dtype(name: bytes) -> np.dtype[Any]:
    try:
        return np.dtype(name.decode("ascii"))
    except (TypeError, ValueError) as error:
        raise DecodeError("these bytes are not an array", expected="a NumPy dtype", found=name) from error


def _describe_start(data: Buffer) -> str:
    return f"{len(data)} bytes from {bytes(data[:8])!r}" if len(data) else "no bytes"


def array_or_bytes(data: Buffer) -> AnyArray | bytes:
    """Decode untyped bytes to an array if they are exactly one, ``.npy`` or compact; otherwise return bytes."""
    if data[:6] == NPY_MAGIC or (len(data) > 3 and 2 <= data[0] <= _MAX_DTYPE_BYTES and data[1] in b"<>|="):
        try:
            return decode_array(data)
        except CodecError:
            return bytes(data)
    return bytes(data)


class Encoded:
    """A file's bytes, and the value they decode to, once it has been read.

    ``writable``: the decoded value replaces the bytes, so that changes to it are written.
    """

    __slots__ = ("data", "value", "writable")

    def __init__(self, data: Buffer, writable: bool = False) -> None:
        self.data = data
        self.writable = writable
        self.value: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoded, (bytes(self.data), self.writable)  # a view into a block cannot be pickled

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoded) and self.data == other.data

    def __hash__(self) -> int:
        return hash(bytes(self.data))


def media_decoder(media_type: Image | Audio) -> Callable[[Buffer], Any]:
    """Return the function that decodes files of a field. Their format is detected; it may differ from that declared."""
    media_kind = "image" if isinstance(media_type, Image) else "audio"
    codec = codec_for(media_type.format)
    if codec is None or codec.kind != media_kind:
        raise SchemaError(f"this is not a format for {media_kind}", found=media_type.format, hint="see shoal.codec")
    form = "numpy" if media_kind == "image" else "audio"

    def run(data: Buffer) -> Any:
        # Not looked up earlier: a missing extra must not matter unless the field is read.
        try:
            return _format_decoder(media_type.format, form)(data)
        except CodecError as error:
            error.field = None  # the name of the format here; callers fill in the field of the sample
            raise

    return run


@lru_cache(maxsize=64)
def _format_decoder(name: str, form: str) -> Decoder:
    return decoders(decode_spec(form), (name,))[name]


def media_encoder(media_type: Image | Audio) -> Callable[[Any], Buffer]:
    """Return the function from a value to the bytes to store: files are kept, pixels and audio are encoded."""

    def run(value: Any) -> Buffer:
        if isinstance(value, Encoded):
            return value.data
        if isinstance(value, BYTES_TYPES):
            return value
        try:
            return encode(media_type.format, value)
        except EncodeError as error:
            raise ValueMismatch(
                f"{media_type}: {error.expected}", f"{describe_type(value)}: {error.found or error.problem}"
            ) from error

    return run


class MediaField:
    """Descriptor of an image or audio field: keeps a file's bytes, and decodes them when the attribute is read."""

    def __init__(self, name: str, media_type: Image | Audio, default: Any) -> None:
        self.name = name
        self.decode = media_decoder(media_type)
        self.default = default

    def __get__(self, sample: Any, owner: type | None = None) -> Any:
        if sample is None:
            if self.default is not MISSING:
                return self.default
            raise AttributeError(self.name)
        try:
            stored = sample.__dict__[self.name]
        except KeyError:
            raise AttributeError(self.name) from None
        if type(stored) is not Encoded:
            if not isinstance(stored, BYTES_TYPES):
                return stored
            stored = sample.__dict__[self.name] = Encoded(stored)
        if stored.value is None:
            self._decode(sample, stored)
        return stored.value

    def _decode(self, sample: Any, stored: Encoded) -> None:
        try:
            stored.value = self.decode(stored.data)
        except CodecError as error:
            raise error.at(field=self.name) from None
        if stored.writable:
            sample.__dict__[self.name] = stored.value
        else:
            _read_only(stored.value)

    def __set__(self, sample: Any, value: Any) -> None:
        sample.__dict__[self.name] = Encoded(value) if isinstance(value, BYTES_TYPES) else value


def _read_only(value: Any) -> None:
    # The bytes are written again, so changes to the decoded value would be lost silently.
    for array in value if isinstance(value, tuple) else (value,):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
