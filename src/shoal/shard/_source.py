"""`ShardSource`: many shards as one sequence of samples, by number and by key."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import FieldError, ManifestError
from shoal.store._base import ObjectReader
from shoal.store._operations import prefetch_small_object
from shoal.store._registry import cache_mode, is_remote

from ._extents import Extents, open_extents, shard_extents
from ._generation import Generation
from ._manifest import Manifest
from ._member_names import WEBDATASET_RULE, KeyRule
from ._memory_cache import ShardMemoryCache
from ._open_shards import OpenShards, open_indexed, open_shard
from ._read import (
    BytesColumn,
    Fetched,
    columns_of,
    decode_samples,
    fetch,
    read_row,
    read_samples,
    samples_of,
)
from ._read_plan import ReadCost, ReadPlan, estimate, is_run, plan_reads
from ._segment_table import SegmentTable
from ._sequential import stream_column, stream_samples
from ._shard import Decoders, Sample, Shard
from ._shard_rows import KnownIndex
from ._shard_rows_table import ShardRowsTable
from ._stream import ErrorLog
from ._table import Rows, ShardRef, Table, checked_rows, join_row_extents, refuse_unknown_column

__all__ = ["FieldSelector", "ShardSource", "Source"]

FieldSelector = Callable[[Mapping[str, bool]], Sequence[str] | None]
"""Says which fields of a shard are wanted, of those it has and whether every sample has them; None for all."""
_NO_DECODERS: Decoders = {}
_MAX_SCALAR_ROWS = 8
"""Up to this many rows, reading one by one is faster than as arrays."""
_ANYWHERE = -1
"""In place of a shard's number."""
_LEADING_ITEMS = 2  # key and URL, which come before the fields


class Source(Protocol):
    """What every format is opened as: numbered samples, read by number and field."""

    def __len__(self) -> int: ...

    @property
    def fields(self) -> tuple[str, ...]: ...

    def read(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """The samples with these numbers, in this order."""
        ...

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples in order, in runs as long as is good to read at once."""
        ...

    def find(self, key: str) -> int:
        """The number of the first sample with this key. Raises SampleKeyError."""
        ...

    def keys(self, rows: IntArray) -> list[str]: ...

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns, one row a sample."""
        ...


UrlsBySplit = Callable[[], Mapping[str, Sequence[str]]]


class ShardSource:
    """Tar shards as one sequence. Shards open when they are first needed, and the least used close again."""

    def __init__(
        self,
        shards: Sequence[ShardRef] | SegmentTable,
        *,
        rule: KeyRule = WEBDATASET_RULE,
        verify: bool = True,
        manifest: Manifest | None = None,
        cache: str | None = None,
        urls_by_split: UrlsBySplit | None = None,
    ) -> None:
        self.manifest = manifest
        self.urls_by_split = urls_by_split
        """Gives the URLs of the shards of each split; None where only their names may say it."""
        self._verify = verify
        self._cache = cache
        self.index: Table
        if isinstance(shards, SegmentTable):
            self.index = table = shards
            self._open = OpenShards(lambda number, _: table.open_shard(number, verify=verify, cache=cache))
        else:
            refs = tuple(shards)
            opened = self._open = OpenShards(functools.partial(_open_one, refs, rule, verify, cache))
            self.index = ShardRowsTable(refs, rule, lambda number: opened[number].index, opened.count)
        self._memory: ShardMemoryCache | None = None
        self._pick: FieldSelector | None = None
        self._picked: dict[int, Sequence[str] | None] = {}

    def picking(self, pick: FieldSelector) -> ShardSource:
        """The same open shards, each read for the fields that ``pick`` says, where no others are asked for."""
        picking = copy.copy(self)
        picking._pick, picking._picked = pick, {}  # noqa: SLF001 - one class
        return picking

    def wanted_fields(self, number: int, fields: Sequence[str] | None) -> Sequence[str] | None:
        """Which fields are read of a shard where these are asked for."""
        if fields is not None or self._pick is None:
            return fields
        if number not in self._picked:
            self._picked[number] = self._pick(self.shard(number).presence)
        return self._picked[number]

    def _wanted_anywhere(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        """Which fields are read of some shard where these are asked for."""
        if fields is not None or self._pick is None:
            return fields
        if _ANYWHERE not in self._picked:
            every = [self.wanted_fields(number, None) for number in range(len(self.shards))]
            names = dict.fromkeys(name for wanted in every for name in wanted or ())
            self._picked[_ANYWHERE] = None if None in every else tuple(names)
        return self._picked[_ANYWHERE]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def rule(self) -> KeyRule:
        """By which members are grouped into samples."""
        return self.index.rule

    @property
    def shards(self) -> Sequence[ShardRef]:
        """The shards, in order."""
        return self.index.shards

    @property
    def segment_table(self) -> SegmentTable | None:
        """The index, where all shards are of generations of datasets."""
        return self.index if isinstance(self.index, SegmentTable) else None

    @property
    def generation(self) -> Generation | None:
        """The committed state of the dataset that is read; None where there is no one such."""
        parts = () if self.segment_table is None else self.segment_table.parts
        generations = {id(part.opened): part.opened.generation for part in parts}
        return next(iter(generations.values())) if len(generations) == 1 else None

    @property
    def dataset_metadata(self) -> dict[str, Any]:
        """What was said of the dataset when it was written."""
        document = self.manifest or self.generation
        return {} if document is None else dict(document.metadata)

    @property
    def dataset_schema(self) -> dict[str, Any] | None:
        """The schema of the samples, as a document."""
        document = self.manifest or self.generation
        return None if document is None else document.schema

    @property
    def verify(self) -> bool:
        """Whether what is read is checked against the index."""
        return self._verify

    @property
    def starts(self) -> IntArray:
        """The number of each shard's first sample, and the total at the end."""
        return self.index.starts

    def shard(self, number: int) -> Shard:
        """An open shard. Raises ManifestError when it holds another number of samples than the manifest says."""
        return self._open[number]

    def is_foreign(self, number: int) -> bool:
        """Whether a shard is far, may have no index, and was not opened yet: one pass over it may be enough."""
        if isinstance(self.index, SegmentTable):
            return False
        ref = self.shards[number]
        unknown = ref.sidecar is None and number not in self._open and self._pick is None
        return unknown and self.rule.group != "archive" and is_remote(ref.url)

    def indexed(self, number: int) -> Shard | ObjectReader:
        """An open shard; where making its index would take a pass over a far object, the object itself."""
        if not self.is_foreign(number):
            return self.shard(number)
        ref = self.shards[number]
        found = open_indexed(ref.url, rule=self.rule, verify=self._verify, cache=self._cache)
        return self._open.keep(number, found) if isinstance(found, Shard) else found

    def shard_of(self, number: int) -> Shard:
        """The open shard of a sample."""
        return self.shard(self.index.locate(number)[0])

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field of every shard, in the order they appear."""
        return self.index.fields

    def read(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """The samples with these numbers, in this order."""
        if not len(rows):
            return []
        if len(rows) == 1 and self._memory is None:  # before anything that costs more than the one sample does
            return [self.read_one(int(rows[0]), fields, decoders)]
        if len(rows) <= _MAX_SCALAR_ROWS and self._is_few(self._checked(rows)):
            return [self.read_one(row, fields, decoders) for row in rows.tolist()]
        extents, fetched = self._fetch(rows, fields)
        samples = samples_of(extents, fetched)
        decode_samples(samples, extents.fields, decoders)
        return samples

    def _checked(self, rows: IntArray) -> Rows:
        """Rows that exist; neighbours as a slice. Raises PositionError."""
        if is_run(rows) and rows[0] >= 0 and rows[-1] < len(self):
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return checked_rows(rows, len(self))

    def _is_few(self, rows: Rows) -> bool:
        """Whether each of these rows is quicker to read by itself than as arrays."""
        if isinstance(rows, slice) or not 0 < len(rows) <= _MAX_SCALAR_ROWS or self._memory is not None:
            return False
        return all(self.shard_of(row).is_near for row in rows.tolist())

    def columns(self, rows: IntArray, fields: Sequence[str] | None = None) -> tuple[Extents, dict[str, BytesColumn]]:
        """The fields of these samples as columns, undecoded, and where they were."""
        extents, fetched = self._fetch(rows, fields)
        return extents, columns_of(extents, fetched)

    def column(self, rows: IntArray, field: str) -> BytesColumn:
        """One field of these samples, undecoded. Raises FieldError if no shard of them has it."""
        extents, columns = self.columns(rows, [field])
        if field not in columns:
            names = " or ".join(extents.first_shard.presence)
            raise FieldError("no such field", expected=names, found=field, shard=extents.first_shard.url)
        return columns[field]

    def _fetch(self, rows: IntArray, fields: Sequence[str] | None) -> tuple[Extents, Fetched]:
        if self._memory is not None:
            return self._memory.fetch(checked_rows(rows, len(self)), self._wanted_anywhere(fields))
        extents, plan = self._plan(self._checked(rows), fields)
        return extents, fetch(extents, plan)

    def _plan(self, rows: Rows, fields: Sequence[str] | None) -> tuple[Extents, ReadPlan]:
        extents = self.extents(rows, fields)
        far = extents.first_shard.far
        if self._is_few(rows) or (far is not None and far.holds_ranges):
            # A range across two that are prefetched would be requested again.
            return extents, plan_reads(extents, max_gap=-1)
        return extents, plan_reads(extents)

    def estimate(self, rows: IntArray, fields: Sequence[str] | None = None) -> ReadCost:
        """What `read` or `columns` of these samples asks of the store, in one call, if nothing is in memory.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/estimate/a-%06d.tar") as writer:
            ...     for number in range(10):
            ...         writer.write({"__key__": f"k{number}", "bin": bytes(100), "txt": "x"})
            >>> shoal.Dataset("memory://doc/estimate").source.estimate(np.array([2, 7]))
            ReadCost(requests=2, bytes=2050, wanted=202)
        """
        if not len(rows):
            return ReadCost()
        extents, plan = self._plan(self._checked(rows), fields)
        return estimate(plan, extents)

    def extents(self, rows: Rows, fields: Sequence[str] | None = None) -> Extents:
        """Where the members of these samples are."""
        if isinstance(rows, slice):
            number, own = self.index.locate(rows.start)
            shard, stop = self.shard(number), own + rows.stop - rows.start
            if stop <= len(shard):
                return shard_extents(shard, slice(own, stop), self.wanted_fields(number, fields))
        picked: IntArray = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        numbers, wanted = np.empty(0, np.int64), dict[int, Sequence[str] | None]()
        if fields is None and self._pick is not None:
            numbers = self.index.numbers(picked)
            wanted = {number: self.wanted_fields(number, None) for number in sorted(set(numbers.tolist()))}
        if len({None if names is None else tuple(names) for names in wanted.values()}) < 2:
            found = self.index.extents(picked, next(iter(wanted.values()), fields))
            return open_extents(found, {number: self.shard(number) for number in found.numbers or (0,)})
        shards = {number: self.shard(number) for number in wanted}
        places = [np.flatnonzero(numbers == number) for number in shards]
        parts = [self.index.extents(picked[own], wanted[number]) for number, own in zip(shards, places, strict=True)]
        return open_extents(join_row_extents(parts, places), shards)

    def read_one(self, row: int, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> Sample:
        """The sample with this number."""
        found = self.index.row_members(row)
        shard, wanted = self.shard(found.shard), self.wanted_fields(found.shard, fields)
        if shard.is_near or wanted is None:
            sample = read_row(shard, found, wanted)
        else:
            sample = read_samples(shard_extents(shard, np.array([found.row]), wanted))[0]
        if decoders is not _NO_DECODERS:
            decode_samples([sample], list(sample)[_LEADING_ITEMS:], decoders)
        return sample

    def with_memory(self, memory: ShardMemoryCache) -> ShardSource:
        """The same open shards, read through a memory cache of them."""
        other = copy.copy(self)
        other._memory = memory  # noqa: SLF001 - one class
        return other

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples in order, block by block. A shard too damaged to be indexed is read as far as ``log`` lets it."""
        return stream_samples(self, fields, decoders, log or ErrorLog())

    def stream_column(self, field: str) -> Iterator[BytesColumn]:
        """One field of all samples in order, block by block."""
        return stream_column(self, field)

    def find(self, key: str) -> int:
        """The number of the first sample with this key. Raises SampleKeyError, which suggests near ones."""
        return self.index.find(key)

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these samples."""
        return self.index.keys(rows)

    def column_names(self) -> tuple[str, ...]:
        """Every metadata column, over all shards."""
        return self.index.column_names()

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns, one row a sample; null where a sample has no such value.

        Raises FieldError for a column that there is not, for one of which some shard may have values that are not in
        its index, and for one that is not of one type.
        """
        refuse_unknown_column(columns, self.column_names())
        return self.index.columns(columns)

    def metadata(self, columns: Sequence[str], *, strict: bool = True, as_float: bool = False) -> pa.Table:
        """As `table`; but a name that is no column of any shard is one of nulls."""
        return self.index.columns(columns, strict=strict, as_float=as_float)

    def close(self) -> None:
        """Give all files back."""
        self._open.close()
        if isinstance(self.index, SegmentTable):
            self.index.close()


def _open_one(
    shards: Sequence[ShardRef], rule: KeyRule, verify: bool, cache: str | None, number: int, known: KnownIndex | None
) -> Shard:
    ref = shards[number]
    with _index_early(ref, cache) if known is None and is_remote(ref.url) else nullcontext():
        shard = open_shard(ref.url, rule=rule, verify=verify, sidecar=ref.sidecar, cache=cache, known=known)
    if ref.samples is not None and ref.rule == rule and len(shard) != ref.samples:
        shard.close()
        raise ManifestError(
            "a shard holds another number of samples than its dataset says",
            expected=ref.samples,
            found=len(shard),
            shard=ref.url,
            hint="was the dataset written anew? open it again",
        )
    return shard


def _index_early(ref: ShardRef, cache: str | None) -> AbstractContextManager[None]:
    """The index of a far shard comes with the beginning of the shard, not after it; unless a cache may have it."""
    if ref.sidecar is None or cache_mode(ref.url, cache) is not None:
        return nullcontext()
    return prefetch_small_object(ref.sidecar)
