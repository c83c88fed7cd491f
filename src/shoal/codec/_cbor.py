"""CBOR (RFC 8949), by cbor2."""

from __future__ import annotations

import io
from typing import Any

from shoal._optional import require
from shoal.codec._codec import Buffer, Codec, Decoder, Limits
from shoal.codec._plain import is_plain, to_plain
from shoal.errors import DecodeError

__all__ = ["CODECS"]


def _decoder(limits: Limits) -> Decoder:
    load = require("cbor2", extra="cbor").load

    def decode(data: Buffer) -> Any:
        stream = io.BytesIO(data)
        value = load(stream)
        if stream.tell() != len(data):
            raise DecodeError("there is more after the value", expected=f"{stream.tell()} bytes", found=len(data))
        return value

    return decode


def _encode_cbor(value: Any) -> bytes:
    # Canonical CBOR sorts sets, whose order is otherwise that of this process's hashes; it would also sort every dict.
    canonical = not is_plain(value)
    encoded: bytes = require("cbor2", extra="cbor").dumps(value, default=_encode_other, canonical=canonical)
    return encoded


def _encode_other(encoder: Any, value: Any) -> None:
    encoder.encode(to_plain(value))


CODECS = (Codec("cbor", ("cbor",), "one CBOR value", _decoder, lambda options: _encode_cbor, automatic=True),)
