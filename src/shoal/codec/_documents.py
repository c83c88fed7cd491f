"""JSON, and JSON lines.

msgspec does the work. The standard library's ``json`` steps in for what it alone takes (NaN and infinities, a byte
order mark, UTF-16, lone surrogates), so that everything webdataset reads and writes is read and written here.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from shoal.codec._codec import Buffer, Codec
from shoal.codec._plain import has_non_finite, is_plain, to_plain
from shoal.errors import DecodeError

__all__ = ["CODECS", "decode_json", "encode_json"]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(enc_hook=to_plain).encode
_encode_sorted = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic").encode


def decode_json(data: Buffer) -> Any:
    """Decode one JSON value."""
    try:
        return _decode(data)
    except ValueError as error:
        return _decode_leniently(data, error)


def _decode_leniently(data: Buffer, error: ValueError) -> Any:
    try:
        return json.loads(bytes(data))
    except UnicodeDecodeError:
        raise  # its position counts from the start of the data, msgspec's from the start of the string
    except ValueError:
        raise error from None


def encode_json(value: Any) -> bytes:
    """Encode one value as JSON: compact, keys in the order they have, the same bytes for the same value.

    Where a set (or an object that may hold one) is involved, keys and sets are sorted.
    """
    try:
        encoded = _encode(value)
    except (ValueError, OverflowError, TypeError) as error:
        return _encode_leniently(value, error)
    if b"[" in encoded and not is_plain(value):
        encoded = _encode_sorted(value)
    if b"null" in encoded:
        return _encode_non_finite(value, encoded)
    return encoded


def _encode_leniently(value: Any, error: Exception) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), default=to_plain).encode()
    except (ValueError, TypeError):
        raise error from None


def _encode_non_finite(value: Any, encoded: bytes) -> bytes:
    # msgspec writes NaN as null, which would come back as None. Python's own NaN token is read here and by webdataset.
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


CODECS = (
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
