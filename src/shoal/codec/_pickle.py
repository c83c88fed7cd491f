"""Pickle: reading one can run any code, so it must be asked for by name."""

from __future__ import annotations

import pickle
from typing import Any

from shoal.codec._codec import Codec, Decoder, EncodeOptions, Encoder, Limits
from shoal.errors import UnsafeCodecError

__all__ = ["CODECS", "refuse_pickle"]

# Fixed, so that the bytes do not change with the Python that writes them; 4 is read by every Python since 3.4.
_PROTOCOL = 4


def refuse_pickle(what: str) -> UnsafeCodecError:
    """The error for data that only pickle can hold."""
    return UnsafeCodecError(
        f"{what} can run code when it is read", hint="pass allow_pickle=True if you trust where it comes from"
    )


def _decoder(limits: Limits) -> Decoder:
    if not limits.allow_pickle:
        raise refuse_pickle("a pickle")
    return pickle.loads


def _encoder(options: EncodeOptions) -> Encoder:
    def encode(value: Any) -> bytes:
        if not options.allow_pickle:
            raise refuse_pickle("a pickle")
        return pickle.dumps(value, protocol=_PROTOCOL)

    return encode


CODECS = (Codec("pickle", ("pkl", "pickle", "pyd"), "a pickle", _decoder, _encoder, automatic=True, unsafe=True),)
