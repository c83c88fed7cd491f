"""Codecs for text, integers, JSON, MessagePack, CBOR and pickle, and gzip around any field.

JSON and MessagePack are coded by msgspec. The standard library's ``json`` is the fallback for what msgspec rejects (NaN
and infinities, a byte order mark, UTF-16, lone surrogates), so that all JSON of webdataset is read and written.
"""

from __future__ import annotations

import io
import json
import operator
import pickle
from typing import Any

import msgspec

from shoal._optional import require
from shoal.errors import DecodeError, UnsafeCodecError

from ._codec import Buffer, Codec, Decoder, EncodeOptions, Encoder, Limits, has_non_finite, is_plain, to_plain

try:
    from isal import isal_zlib as _zlib
except ImportError:  # isal has no wheel for some platforms; zlib does the same, slower
    import zlib as _zlib  # type: ignore[no-redef]


__all__ = [
    "CBOR_CODECS",
    "GZIP_MAGIC",
    "JSON_CODECS",
    "MSGPACK_CODECS",
    "PICKLE_CODECS",
    "TEXT_CODECS",
    "gunzip",
    "gzip",
    "inflate",
    "unsafe_pickle_error",
]

_json_decode = msgspec.json.Decoder().decode
_json_encode = msgspec.json.Encoder(enc_hook=to_plain).encode
_json_encode_sorted = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic").encode
_msgpack_decode = msgspec.msgpack.Decoder().decode
_msgpack_encode = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
_msgpack_encode_sorted = msgspec.msgpack.Encoder(enc_hook=to_plain, order="deterministic").encode
# Fixed, so that the bytes do not depend on the Python version; every Python since 3.4 reads protocol 4.
_PICKLE_PROTOCOL = 4
GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS, _RAW_WBITS = 31, -15  # zlib's ``wbits`` for gzip data and for raw deflate
_READ_BYTES = 1 << 20


def decode_text(data: Buffer) -> str:
    """Decode UTF-8 without stripping whitespace."""
    return str(data, "utf-8")


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is not text")
    return value.encode()


def _decode_integer(data: Buffer) -> int:
    return int(bytes(data))


def _encode_integer(value: Any) -> bytes:
    if isinstance(value, str):
        int(value)  # raises ValueError for text that could not be read back
        return value.encode()
    # operator.index takes every integer type (also NumPy's and torch's) and rejects 1.5 instead of truncating it.
    return b"%d" % operator.index(value)


TEXT_CODECS = (
    Codec(
        "text",
        ("txt", "text", "caption", "transcript", "html", "htm"),
        "UTF-8 text",
        lambda limits: decode_text,
        lambda options: _encode_text,
        automatic=True,
        textual=True,
    ),
    Codec(
        "integer",
        ("cls", "cls2", "class", "count", "index", "inx", "id"),
        "an integer in decimal digits",
        lambda limits: _decode_integer,
        lambda options: _encode_integer,
        automatic=True,
    ),
)


def decode_json(data: Buffer) -> Any:
    """Decode one JSON value."""
    try:
        return _json_decode(data)
    except ValueError as error:
        return _decode_json_leniently(data, error)


def _decode_json_leniently(data: Buffer, error: ValueError) -> Any:
    try:
        return json.loads(bytes(data))
    except UnicodeDecodeError:
        raise  # its position counts from the start of the data, msgspec's from the start of the string
    except ValueError:
        raise error from None


def encode_json(value: Any) -> bytes:
    """Encode one value as compact JSON, with keys in their order; the same value gives the same bytes.

    If the value contains a set, or an object that may contain one, keys and sets are sorted.
    """
    try:
        encoded = _json_encode(value)
    except (ValueError, OverflowError, TypeError) as error:
        return _encode_json_leniently(value, error)
    if b"[" in encoded and not is_plain(value):
        encoded = _json_encode_sorted(value)
    if b"null" in encoded:
        return _encode_non_finite(value, encoded)
    return encoded


def _encode_json_leniently(value: Any, error: Exception) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), default=to_plain).encode()
    except (ValueError, TypeError):
        raise error from None


def _encode_non_finite(value: Any, encoded: bytes) -> bytes:
    # msgspec writes NaN as null, which is read as None. Python's NaN token is read here and by webdataset.
    plain = msgspec.to_builtins(
        value, enc_hook=to_plain, str_keys=True, order="deterministic" if not is_plain(value) else None
    )
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode() if has_non_finite(plain) else encoded


def _decode_lines(data: Buffer) -> list[Any]:
    values: list[Any] = []
    offset = 0
    for line in bytes(data).split(b"\n"):
        if line.strip():
            values.append(_decode_line(line, len(values), offset))
        offset += len(line) + 1
    return values


def _decode_line(line: bytes, number: int, offset: int) -> Any:
    try:
        return decode_json(line)
    except ValueError as error:
        raise DecodeError(
            f"value {number} is not valid JSON", expected="JSON text", found=error, offset=offset
        ) from error


def _encode_lines(values: Any) -> bytes:
    if not isinstance(values, list | tuple):
        raise TypeError(f"a {type(values).__name__} is not a list of values, one for each line")
    return b"".join(encode_json(value) + b"\n" for value in values)


JSON_CODECS = (
    Codec(
        "json",
        ("json", "jsn"),
        "JSON text",
        lambda limits: decode_json,
        lambda options: encode_json,
        automatic=True,
        textual=True,
    ),
    Codec(
        "jsonl",
        ("jsonl",),
        "JSON text, one value a line",
        lambda limits: _decode_lines,
        lambda options: _encode_lines,
        automatic=True,
        textual=True,
    ),
)


def _encode_msgpack(value: Any) -> bytes:
    return _msgpack_encode(value) if is_plain(value) else _msgpack_encode_sorted(value)


MSGPACK_CODECS = (
    Codec(
        "msgpack",
        ("msgpack", "mp", "msg"),
        "one MessagePack value",
        lambda limits: _msgpack_decode,
        lambda options: _encode_msgpack,
        automatic=True,
    ),
)


def _cbor_decoder(limits: Limits) -> Decoder:
    load = require("cbor2", extra="cbor").load

    def decode(data: Buffer) -> Any:
        stream = io.BytesIO(data)
        value = load(stream)
        if stream.tell() != len(data):
            raise DecodeError("there is more after the value", expected=f"{stream.tell()} bytes", found=len(data))
        return value

    return decode


def _encode_cbor(value: Any) -> bytes:
    # Canonical CBOR sorts sets, whose order otherwise depends on this process's hashes; it also sorts every dict, so it
    # is used only where there may be a set.
    canonical = not is_plain(value)
    encoded: bytes = require("cbor2", extra="cbor").dumps(value, default=_encode_cbor_other, canonical=canonical)
    return encoded


def _encode_cbor_other(encoder: Any, value: Any) -> None:
    encoder.encode(to_plain(value))


CBOR_CODECS = (Codec("cbor", ("cbor",), "one CBOR value", _cbor_decoder, lambda options: _encode_cbor, automatic=True),)


def unsafe_pickle_error(what: str) -> UnsafeCodecError:
    """Return the error for data that needs pickle."""
    return UnsafeCodecError(
        f"{what} can run code when it is read", hint="pass allow_pickle=True if you trust where it comes from"
    )


def _pickle_decoder(limits: Limits) -> Decoder:
    if not limits.allow_pickle:
        raise unsafe_pickle_error("a pickle")
    return pickle.loads


def _pickle_encoder(options: EncodeOptions) -> Encoder:
    def encode(value: Any) -> bytes:
        if not options.allow_pickle:
            raise unsafe_pickle_error("a pickle")
        return pickle.dumps(value, protocol=_PICKLE_PROTOCOL)

    return encode


PICKLE_CODECS = (
    Codec(
        "pickle", ("pkl", "pickle", "pyd"), "a pickle", _pickle_decoder, _pickle_encoder, automatic=True, unsafe=True
    ),
)


def gzip(data: Buffer) -> bytes:
    """Compress without a time or a name in the header, so that the same data gives the same bytes."""
    return bytes(_zlib.compress(data, 2, _GZIP_WBITS))


def gunzip(data: Buffer, max_bytes: int) -> bytes:
    """Decompress one or several gzip members; raise `DecodeError` beyond ``max_bytes`` or if truncated."""
    stream = _zlib.decompressobj(_GZIP_WBITS)
    plain = stream.decompress(data, max_bytes + 1)
    if len(plain) > max_bytes or (stream.eof and not stream.unused_data):
        return _check_size(plain, max_bytes)
    if not stream.eof:
        raise DecodeError("the gzip data is cut short", expected="the end of the gzip stream", offset=len(data))
    return _gunzip_members(data, max_bytes)


def _gunzip_members(data: Buffer, max_bytes: int) -> bytes:
    # Several members, or zeros after the first, are rare in a field, so the slower standard library handles them.
    from gzip import GzipFile

    plain = io.BytesIO()
    with GzipFile(fileobj=io.BytesIO(data)) as stream:
        while data_read := stream.read(_READ_BYTES):
            plain.write(data_read)
            if plain.tell() > max_bytes:
                break
    return _check_size(plain.getvalue(), max_bytes)


def _check_size(plain: bytes, max_bytes: int) -> bytes:
    if len(plain) > max_bytes:
        raise DecodeError(
            "the gzip data grows too large", expected=f"at most {max_bytes} bytes", found="more", hint="raise max_bytes"
        )
    return plain


def inflate(data: Buffer, size: int) -> bytes:
    """Decompress raw deflate data that must become exactly ``size`` bytes."""
    stream = _zlib.decompressobj(_RAW_WBITS)
    plain: bytes = stream.decompress(data, size + 1)
    if len(plain) != size:
        actual = "more" if len(plain) > size else len(plain)
        raise DecodeError("the deflated data has another size than declared", expected=f"{size} bytes", found=actual)
    return plain
