"""MessagePack, by msgspec."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.codec._codec import Codec
from shoal.codec._plain import is_plain, to_plain

__all__ = ["CODECS"]

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
_encode_sorted = msgspec.msgpack.Encoder(enc_hook=to_plain, order="deterministic").encode


def _encode_msgpack(value: Any) -> bytes:
    return _encode(value) if is_plain(value) else _encode_sorted(value)


CODECS = (
    Codec(
        "msgpack",
        ("msgpack", "mp", "msg"),
        "one MessagePack value",
        lambda limits: _decode,
        lambda options: _encode_msgpack,
        automatic=True,
    ),
)
