"""Text and integers: UTF-8, exactly as stored."""

from __future__ import annotations

import operator
from typing import Any

from shoal.codec._codec import Buffer, Codec

__all__ = ["CODECS", "decode_text"]


def decode_text(data: Buffer) -> str:
    """Decode UTF-8; nothing is stripped."""
    return str(data, "utf-8")


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is not text")
    return value.encode()


def _decode_integer(data: Buffer) -> int:
    return int(bytes(data))


def _encode_integer(value: Any) -> bytes:
    if isinstance(value, str):
        int(value)  # what is no number could not be read back
        return value.encode()
    # operator.index takes all that is an integer (NumPy's and torch's too) and refuses 1.5 instead of cutting it.
    return b"%d" % operator.index(value)


CODECS = (
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
