"""Write samples, or the rows of Parquet files, as shards and open them as a dataset."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from shoal.errors import WriteError
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._dict_sample import DictSample
from shoal.schema._json_schema import schema_to_json
from shoal.shard._writer import ShardWriter

from ._append import is_numbered, shard_pattern, stored_form
from ._dataset import Dataset
from ._description import PathLike

__all__ = ["from_parquet", "write_samples"]

T = TypeVar("T")


def write_samples(
    samples: Iterable[T],
    path: PathLike,
    *,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    split: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    resume: bool = False,
    hashed: bool = False,
    durable: bool = False,
) -> Dataset[T]:
    """Write typed samples, or dicts, and open what was written.

    ``path`` names one tar (``data.tar``), numbered ones (``data-%06d.tar``), or a folder, which gets
    ``shard-%06d.tar``, or ``val-%06d.tar`` with ``split="val"``. A single tar becomes numbered ones when
    ``max_samples`` or ``max_bytes`` is given. Samples are taken one at a time and their keys are their numbers, so the
    same samples give the same bytes. All must be of one type, which the manifest keeps. Dicts keep their ``__key__``.
    ``compression`` is ``"gzip"`` or ``"zstd"``, ``metadata`` goes into the manifest and each shard, ``split`` names the
    part of the dataset this is, ``overwrite`` replaces the split that is there, once the new one is complete,
    ``append`` adds shards after those that are there, and ``resume`` goes on after the finished shards of a run that
    was interrupted. ``hashed`` keeps each shard's sha256 in the manifest, ``durable`` waits until each shard would
    survive a power cut.

    Raises:
        WriteError: There are no samples.
        SchemaMismatchError: A sample does not fit its type, or is of another; ``key`` is its number, ``field`` the
            path. Nothing of it is written, and no manifest.
        ObjectExistsError: The folder has this split already, or tars that no manifest lists, and neither ``append`` nor
            ``overwrite`` was given.

    Examples:
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
    first, rest = _take_first(samples)
    kind = type(first)
    typed = is_record(kind)
    packed = typed or issubclass(kind, DictSample)
    pattern = shard_pattern(os.fspath(path), max_samples, max_bytes, split)
    writer = ShardWriter(
        pattern,
        max_samples=(10_000 if is_numbered(pattern) else 1 << 62) if max_samples is None else max_samples,
        max_bytes=(1 << 30 if is_numbered(pattern) else 1 << 62) if max_bytes is None else max_bytes,
        compression=compression,
        metadata=metadata,
        schema=schema_to_json(schema_of(kind)) if typed else None,
        split=split,
        overwrite=overwrite,
        append=append,
        resume=resume,
        hashed=hashed,
        durable=durable,
    )
    with writer:
        for number, sample in enumerate(itertools.chain([first], rest), writer.samples_before):
            writer.write(stored_form(number, sample, kind) if packed else sample)
    return Dataset(writer.urls, sample_type=kind if typed else None)


def _take_first(samples: Iterable[T]) -> tuple[T, Iterator[T]]:
    rest = iter(samples)
    try:
        return next(rest), rest
    except StopIteration:
        raise WriteError("there are no samples to write", expected="at least one") from None


def from_parquet(
    path: PathLike | Iterable[PathLike],
    output: PathLike | None = None,
    *,
    sample_type: type[Any] | None = None,
    key: str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    max_samples: int | None = None,
    max_bytes: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    batch_size: int = 1024,
) -> Dataset[Any]:
    """Write shards of what Parquet files hold, and open them, or only open them: `Dataset.from_parquet`, as a function.

    Examples:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile
        >>> import shoal
        >>> folder = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"name": ["a", "b"], "size": [1, 2]}), f"{folder}/table.parquet")
        >>> ds = shoal.dataset.from_parquet(f"{folder}/*.parquet", f"{folder}/shards", key="name")
        >>> ds.get("b").size, ds.where("size > 1").keys()
        (2, ['b'])
    """
    return Dataset.from_parquet(
        path,
        output,
        sample_type=sample_type,
        key=key,
        columns=columns,
        max_samples=max_samples,
        max_bytes=max_bytes,
        compression=compression,
        overwrite=overwrite,
        append=append,
        batch_size=batch_size,
    )
