"""Batches of dicts in which images of one size are decoded straight into their rows of one array."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from shoal.codec import Buffer, SizedDecoder
from shoal.errors import ShoalError
from shoal.load import Ragged, collate, shared_buffers
from shoal.shard import Decoders, Sample

__all__ = ["filled_batch"]


def filled_batch(samples: list[Sample], decoders: Decoders, ragged: Ragged) -> Any:
    """A dict of columns, of samples in which what has a `SizedDecoder` is still bytes.

    Raises:
        DecodeError: An image does not decode; it names shard, key and field.
    """
    batch = collate(samples, ragged)
    sized = [name for name in batch if name in decoders and isinstance(decoders[name], SizedDecoder)]
    for name in sized:
        batch[name] = _column(batch[name], samples, decoders[name])
    return batch


def _column(values: list[Buffer | None], samples: list[Sample], decoder: Any) -> Any:
    """One array; a list where some samples have no such field."""
    present = [place for place, value in enumerate(values) if value is not None]
    column, decode_into, place = _rows(len(present), decoder), decoder.decode_into, 0
    try:
        for row, place in zip(column, present, strict=True):
            decode_into(values[place], row)
    except ShoalError as error:
        sample = samples[place]
        raise error.at(shard=sample["__url__"], key=sample["__key__"]) from error.__cause__
    if len(present) == len(values):
        return column
    rows = dict(zip(present, column, strict=True))
    return [rows.get(place) for place in range(len(values))]


def _rows(count: int, decoder: SizedDecoder) -> npt.NDArray[Any]:
    """Memory for so many values: used again when nobody holds an earlier batch."""
    size = count * math.prod(decoder.shape) * decoder.dtype.itemsize
    return shared_buffers().empty(size).view(decoder.dtype).reshape(count, *decoder.shape)
