"""Torch: the only file here that imports it, and only when something asks for a tensor."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from shoal._optional import require
from shoal.codec._array import Array
from shoal.codec._codec import Buffer, Codec, Decoder, Limits
from shoal.codec._framework import Framework, width_of
from shoal.errors import UnsafeCodecError

__all__ = ["CODECS", "framework", "tensor"]


def tensor(array: Array) -> Any:
    """A torch tensor over ``array``, copied only where torch cannot share it."""
    return require("torch", extra="torch").from_numpy(np.ascontiguousarray(array))


def framework() -> Framework:
    """Torch, for values that are not fields' bytes."""
    torch = require("torch", extra="torch")

    def to_tensor(value: Any, options: dict[str, Any]) -> Any:
        # Torch has no arithmetic for these two; their values fit the next signed type.
        if getattr(value, "dtype", None) in (np.uint16, np.uint32):
            value = value.astype(np.int64)
        usual = {"integer": torch.int64, "floating": torch.float32, None: None}[width_of(value)]
        return torch.tensor(value, **{"dtype": usual, **options})

    def together(values: list[Any]) -> Any:
        first: Any = values[0] if values else None
        alike = all(
            isinstance(value, torch.Tensor) and value.shape == first.shape and value.dtype == first.dtype
            for value in values
        )
        return torch.stack(values) if values and alike else values

    return Framework("torch", torch.Tensor, to_tensor, together, channels_first=True)


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
