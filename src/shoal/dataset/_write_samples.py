"""Samples in, a dataset out, in one call."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from shoal.errors import SchemaMismatchError, ShoalError, WriteError
from shoal.sample import DictSample, is_record, pack, schema_of
from shoal.schema import schema_to_json
from shoal.shard import ShardWriter

from ._dataset import Dataset

__all__ = ["write_samples"]

T = TypeVar("T")


def write_samples(
    samples: Iterable[T],
    path: str | os.PathLike[str],
    *,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    split: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> Dataset[T]:
    """Write typed samples, or dicts, and open what was written.

    ``path`` names one tar (``data.tar``), numbered ones (``data-%06d.tar``), or a folder, which gets
    ``shard-%06d.tar``. A single tar becomes numbered ones when ``max_samples`` or ``max_bytes`` is given. Samples are
    taken one at a time and their keys are their numbers, so the same samples give the same bytes. All must be of one
    type, which the manifest keeps. Raises WriteError when there are none, SchemaMismatchError, with the number and
    the field, when one does not fit.

    Example:
        >>> import numpy as np, shoal
        >>> from numpy.typing import NDArray
        >>> @shoal.packable
        ... class Point:
        ...     at: NDArray[np.float32]
        ...     name: str
        >>> points = [Point(np.zeros(2, np.float32), "origin"), Point(np.ones(2, np.float32), "corner")]
        >>> ds = shoal.write_samples(points, "memory://doc/points")
        >>> len(ds), ds[1].name
        (2, 'corner')
    """
    first, rest = _peeked(samples)
    kind = type(first)
    typed = is_record(kind)
    pattern = _pattern(os.fspath(path), max_samples, max_bytes)
    writer = ShardWriter(
        pattern,
        max_samples=max_samples or (1 << 62 if "%" not in pattern and "{" not in pattern else 10_000),
        max_bytes=max_bytes or (1 << 62 if "%" not in pattern and "{" not in pattern else 1 << 30),
        compression=compression,
        metadata=metadata,
        schema=schema_to_json(schema_of(kind)) if typed else None,
        split=split,
        overwrite=overwrite,
        resume=resume,
    )
    with writer:
        for number, sample in enumerate(itertools.chain([first], rest)):
            writer.write(_stored(number, sample, kind, typed))
    return Dataset(writer.urls, sample_type=kind if typed else None)


def _peeked(samples: Iterable[T]) -> tuple[T, Iterator[T]]:
    rest = iter(samples)
    try:
        return next(rest), rest
    except StopIteration:
        raise WriteError("there are no samples to write", expected="at least one") from None


def _pattern(path: str, max_samples: int | None, max_bytes: int | None) -> str:
    if not path.endswith(".tar"):
        return f"{path.rstrip('/')}/shard-%06d.tar"
    numbered = "%" in path or "{:" in path
    if numbered or (max_samples is None and max_bytes is None):
        return path
    return path.removesuffix(".tar") + "-%06d.tar"


def _stored(number: int, sample: Any, kind: type[Any], typed: bool) -> Any:
    """The sample as the writer takes it: a payload under its number, or a dict as it is."""
    if not typed and not isinstance(sample, DictSample):
        return sample
    if type(sample) is not kind:
        found = type(sample).__name__
        raise SchemaMismatchError(f"sample {number} is of another type", expected=kind.__name__, found=found)
    try:
        return f"{number:09d}", {"msgpack": pack(sample) if typed else sample.packed}
    except ShoalError as error:
        raise error.at(key=f"{number:09d}") from error.__cause__
