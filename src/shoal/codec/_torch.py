"""Torch: the only file here that imports it, and only when something asks for a tensor."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from shoal.codec._array import Array
from shoal.codec._codec import Buffer, Codec, Decoder, Limits
from shoal.codec._extra import require
from shoal.errors import UnsafeCodecError

__all__ = ["CODECS", "tensor"]


def tensor(array: Array) -> Any:
    """A torch tensor over ``array``, copied only where torch cannot share it."""
    return require("torch", extra="torch").from_numpy(np.ascontiguousarray(array))


def _decoder(limits: Limits) -> Decoder:
    load = require("torch", extra="torch").load

    def decode(data: Buffer) -> Any:
        try:
            return load(io.BytesIO(data), weights_only=True, map_location="cpu")
        except pickle.UnpicklingError as error:
            raise UnsafeCodecError(
                "the pth holds more than weights",
                found=str(error).splitlines()[0],
                hint="only tensors and plain values are read",
            ) from error

    return decode


def _encode_pth(value: Any) -> bytes:
    stream = io.BytesIO()
    require("torch", extra="torch").save(value, stream)
    return stream.getvalue()


CODECS = (
    # Not automatic: decode=True must not start a framework.
    Codec("pth", ("pth",), "a torch file of weights", _decoder, lambda options: _encode_pth),
)
