"""Compaction: rewrite shards without their deleted samples, so that the bytes of those are gone.

A shard keeps its path and the order of its samples; one that has no sample left is removed. Other shards are not
touched. Since rows get other numbers, a new lineage begins.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from shoal._typing import IntArray
from shoal.codec._codec import EncodeOptions
from shoal.errors import ObjectNotFoundError, WriteError

from ._changes import finish, replace_splits
from ._copy import copy_samples
from ._generation import Generation, locate
from ._manifest import record_of
from ._member_names import META_MEMBER
from ._rows_file import RowsFile, RowSource
from ._segment_table import OpenGeneration, open_generation
from ._shard_file import SampleEncoder, ShardFile, WrittenShard
from ._source import ShardSource
from ._split_names import find_split
from ._split_table import SegmentRows, SplitTable
from ._writing import WriteHead, Writing

__all__ = ["compact"]

_READ_ROWS = 256


def compact(root: str, splits: Collection[str] | None = None, *, exclusive: bool = False) -> Generation:
    """Rewrite the shards of these splits, or of all, that have deleted samples. Return the newest generation.

    Where nothing is deleted there is no new generation. Raises ObjectExistsError where others change one of the splits
    meanwhile, and what reading the samples raises; then the dataset is as it was. Of a process that dies before the
    commit nothing stays once this was called again; the moves after it are finished by whoever writes next.
    """
    finish(root, exclusive=exclusive)
    opened = open_generation(root)
    if opened is None:
        raise ObjectNotFoundError("Dataset not found", found=root)
    with contextlib.closing(opened):
        before = opened.generation
        chosen = before.splits if splits is None else {find_split(name, before.splits) for name in splits}
        names = [name for name in chosen if any(each.deleted is not None for each in before.splits[name].segments)]
        if not names:
            return before
        head = WriteHead("compact", "compact", names[0] if len(names) == 1 else None, staged=True)
        with Writing.begin(root, head, exclusive=exclusive) as writing:
            count = itertools.count()
            try:
                return replace_splits(
                    root,
                    {name: list(_without_deleted(opened, name, writing, count)) for name in names},
                    writing,
                    before=before,
                    schema=before.schema,
                    metadata=before.metadata,
                    rule=before.rule,
                    on_misfit="omit",
                    exclusive=exclusive,
                )
            except BaseException:
                with contextlib.suppress(WriteError):  # it was committed: others finish the moves
                    writing.discard()
                raise


def _without_deleted(opened: OpenGeneration, split: str, writing: Writing, count: Iterator[int]) -> Iterator[RowSource]:
    """Yield the rows of a split, with those of new tars where samples are deleted; ``count`` numbers these."""
    source = ShardSource(opened.table(split))
    table, starts, deleted = opened.split(split), source.starts, source.index.deleted()
    touched = set(deleted.shards(starts).tolist())
    for segment in range(len(table.segments)):
        shards = table.segment_shards(segment)
        first = shards.start
        for shard in [*(number for number in shards if number in touched), shards.stop]:
            if first < shard:
                yield SegmentRows(table, segment, range(first, shard))
            if shard < shards.stop:
                rows = np.arange(starts[shard], starts[shard + 1])
                rows = rows[~deleted.contains(rows)]
                if len(rows):
                    yield _rewrite(opened, source, table, shard, rows, writing, next(count))
            first = shard + 1


def _rewrite(
    opened: OpenGeneration,
    source: ShardSource,
    table: SplitTable,
    number: int,
    rows: IntArray,
    writing: Writing,
    at: int,
) -> RowSource:
    """Write some rows of a shard as a new one in the staging folder; it is shard ``at`` of the write."""
    info, metadata = table.shard(number), opened.generation.metadata
    url, is_hashed = locate(writing.staging, info.path, opened.root), source.index.record(number).sha256 is not None
    extra = {META_MEMBER: msgspec.json.encode(metadata)} if metadata else {}
    written = None
    if info.compression is None:
        written = copy_samples(url, source, rows, extra=list(extra.items()), hashed=is_hashed, durable=True)
    if written is None:
        file = ShardFile(url, compression=info.compression, hashed=is_hashed)
        written = _write_again(file, source, rows, extra)
    writing.add(replace(record_of(info.path, written.index), sha256=written.sha256), written.index, durable=True)
    return RowsFile(writing.rows_url(at))


def _write_again(file: ShardFile, source: ShardSource, rows: IntArray, extra: Mapping[str, bytes]) -> WrittenShard:
    """Write samples that cannot be copied as runs of bytes."""
    encoder = SampleEncoder(EncodeOptions())
    try:
        for first in range(0, len(rows), _READ_ROWS):
            for sample in source.read(rows[first : first + _READ_ROWS]):
                members = {name: bytes(value) for name, value in sample.items() if not name.startswith("__")}
                file.write(encoder.encode(sample["__key__"], members))
        for name, data in extra.items():
            file.write_extra(name, data)
        return file.commit(durable=True)
    except BaseException:
        file.abort()
        raise
