"""`ShardSource`: many shards as one sequence of samples, by number and by key."""

from __future__ import annotations

import bisect
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal._typing import IntArray
from shoal.errors import FieldError, ManifestError, PositionError, SampleKeyError
from shoal.store._base import ObjectReader
from shoal.store._operations import prefetch_small_object
from shoal.store._options import options_for
from shoal.store._registry import is_remote

from ._arrow_arrays import as_arrow, as_floats, common_type
from ._extents import Extents, ExtentTable, Rows, join_extents, shard_extents
from ._index import KnownIndex
from ._manifest import Manifest
from ._member_names import WEBDATASET_RULE, KeyRule, key_hint
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
from ._sequential import stream_column, stream_samples
from ._shard import Decoders, Sample, Shard
from ._stream import ErrorLog

__all__ = ["FieldSelector", "KeyFinder", "ShardRef", "ShardSource", "Source", "column_error", "join_columns"]

FieldSelector = Callable[[Mapping[str, bool]], Sequence[str] | None]
"""Says which fields of a shard are wanted, of those it has and whether every sample has them; None for all."""
_NO_DECODERS: Decoders = {}
_MAX_SCALAR_ROWS = 8
"""Up to this many rows, reading one by one is faster than as arrays."""
_LEADING_ITEMS = 2  # key and URL, which come before the fields
_HINT_NEIGHBOURS = 3
_SHARDS_SHOWN, _KEYS_SHOWN = 8, 2000


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


def checked_rows(rows: IntArray, count: int) -> IntArray:
    """The numbers of samples of a source that has ``count``. Raises PositionError for one that is not there."""
    rows = np.asarray(rows, np.int64)
    outside = rows.view(np.uint64) >= count  # as such, negative ones are very large
    if outside.any():
        raise PositionError("no sample at this position", expected=f"0 to {count - 1}", found=int(rows[outside][0]))
    return rows


@dataclass(frozen=True, slots=True)
class ShardRef:
    """A shard that belongs to a source, with what is known of it before it is opened."""

    url: str
    samples: int | None = None
    sidecar: str | None = None
    rule: KeyRule = WEBDATASET_RULE
    """By which its samples were counted and its fields named."""
    fields: tuple[str, ...] | None = None
    size: int | None = None
    """Of the object in bytes."""


class ShardSource:
    """Tar shards as one sequence. Shards open when they are first needed, and the least used close again."""

    def __init__(
        self,
        shards: Sequence[ShardRef],
        *,
        rule: KeyRule = WEBDATASET_RULE,
        verify: bool = True,
        manifest: Manifest | None = None,
        cache: str | None = None,
    ) -> None:
        self.shards = tuple(shards)
        self.manifest = manifest
        self._rule = rule
        self._verify = verify
        self._cache = cache
        self._open = OpenShards(functools.partial(_open_one, self.shards, rule, verify, cache))
        self._starts: IntArray | None = None
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

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def rule(self) -> KeyRule:
        """By which members are grouped into samples."""
        return self._rule

    @property
    def verify(self) -> bool:
        """Whether what is read is checked against the index."""
        return self._verify

    @property
    def known_length(self) -> int | None:
        """How many samples there are, where the manifest says it or it was asked before: nothing is opened."""
        if self._starts is not None:
            return int(self._starts[-1])
        counts = [count for ref in self.shards if (count := self._known(ref)) is not None]
        return sum(counts) if len(counts) == len(self.shards) else None

    @property
    def starts(self) -> IntArray:
        """The number of each shard's first sample, and the total at the end."""
        if self._starts is None:
            counts = [self._count(number, ref) for number, ref in enumerate(self.shards)]
            self._starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        return self._starts

    def _count(self, number: int, ref: ShardRef) -> int:
        known = self._known(ref)
        known = self._open.count(number) if known is None else known
        return len(self.shard(number)) if known is None else known

    def _known(self, ref: ShardRef) -> int | None:
        """How many samples the manifest says the shard has, seen by the rule in use."""
        return ref.samples if ref.rule == self._rule else None

    def shard(self, number: int) -> Shard:
        """An open shard. Raises ManifestError when it holds another number of samples than the manifest says."""
        return self._open[number]

    def is_foreign(self, number: int) -> bool:
        """Whether a shard is far, may have no index, and was not opened yet: one pass over it may be enough."""
        ref = self.shards[number]
        unknown = ref.sidecar is None and number not in self._open and self._pick is None
        return unknown and self._rule.group != "archive" and is_remote(ref.url)

    def indexed(self, number: int) -> Shard | ObjectReader:
        """An open shard; where making its index would take a pass over a far object, the object itself."""
        if not self.is_foreign(number):
            return self.shard(number)
        ref = self.shards[number]
        found = open_indexed(ref.url, rule=self._rule, verify=self._verify, cache=self._cache)
        return self._open.keep(number, found) if isinstance(found, Shard) else found

    def shard_of(self, number: int) -> Shard:
        """The open shard of a sample."""
        return self.shard(bisect.bisect_right(self._start_list, number) - 1)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field of every shard, in the order they appear."""
        return tuple(
            dict.fromkeys(name for number, ref in enumerate(self.shards) for name in self._fields_of(number, ref))
        )

    @property
    def first_fields(self) -> tuple[str, ...]:
        """The fields of the first shard, which is all that is opened for it."""
        return tuple(self._fields_of(0, self.shards[0])) if self.shards else ()

    def _fields_of(self, number: int, ref: ShardRef) -> Iterable[str]:
        return ref.fields if ref.fields is not None and ref.rule == self._rule else self.shard(number).index.fields

    def read(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """The samples with these numbers, in this order."""
        if len(rows) == 1 and self._memory is None:  # before anything that costs more than the one sample does
            return [self.read_one(int(rows[0]), fields, decoders)]
        chosen = self._checked(rows)
        if self._is_few(chosen):
            return [self.read_one(row, fields, decoders) for row in rows.tolist()]
        if not len(rows):
            return []
        extents, fetched = self._fetch(chosen, fields)
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
        extents, fetched = self._fetch(self._checked(rows), fields)
        return extents, columns_of(extents, fetched)

    def column(self, rows: IntArray, field: str) -> BytesColumn:
        """One field of these samples, undecoded. Raises FieldError if no shard of them has it."""
        extents, columns = self.columns(rows, [field])
        if field not in columns:
            names = " or ".join(extents.first_shard.index.fields)
            raise FieldError("no such field", expected=names, found=field, shard=extents.first_shard.url)
        return columns[field]

    def _fetch(self, rows: Rows, fields: Sequence[str] | None) -> tuple[Extents, Fetched]:
        if self._memory is not None:
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            extents = self._memory.extents(numbers, self.wanted_fields(0, fields))
            return extents, self._memory.fetch(numbers, extents)
        extents, plan = self._plan(rows, fields)
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
        if not isinstance(rows, slice):
            return self._scattered_extents(rows, fields)
        number = bisect.bisect_right(self._start_list, rows.start) - 1
        first = self._start_list[number]
        if rows.stop > self._start_list[number + 1]:
            return self._scattered_extents(np.arange(rows.start, rows.stop), fields)
        own = slice(rows.start - first, rows.stop - first)
        return shard_extents(self.shard(number), own, self.wanted_fields(number, fields))

    def _scattered_extents(self, rows: IntArray, fields: Sequence[str] | None) -> Extents:
        numbers = np.searchsorted(self.starts, rows, "right") - 1
        shards = {number: self.shard(number) for number in sorted(set(numbers.tolist()))}
        if shards and (fields is not None or self._pick is None):
            known = self._table.extents(rows, numbers, shards, fields)
            if known is not None:
                return known
        if len(shards) < 2:
            number = next(iter(shards), 0)
            return shard_extents(self.shard(number), rows - self.starts[number], self.wanted_fields(number, fields))
        places = [np.flatnonzero(numbers == number) for number in shards]
        parts = {
            number: shard_extents(shard, rows[own] - self.starts[number], self.wanted_fields(number, fields))
            for (number, shard), own in zip(shards.items(), places, strict=True)
        }
        return join_extents(parts, places)

    def read_one(self, row: int, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> Sample:
        """The sample with this number."""
        starts = self._start_list
        if not 0 <= row < starts[-1]:
            checked_rows(np.array([row]), len(self))  # which raises
        number = bisect.bisect_right(starts, row) - 1
        shard, wanted = self.shard(number), self.wanted_fields(number, fields)
        if shard.is_near or wanted is None:
            sample = read_row(shard, row - starts[number], wanted)
        else:
            sample = read_samples(shard_extents(shard, np.array([row - starts[number]]), wanted))[0]
        if decoders is not _NO_DECODERS:
            decode_samples([sample], list(sample)[_LEADING_ITEMS:], decoders)
        return sample

    def with_memory(self, memory: ShardMemoryCache) -> ShardSource:
        """The same open shards, read through a memory cache of them."""
        other = copy.copy(self)
        other._memory = memory  # noqa: SLF001 - one class
        return other

    @functools.cached_property
    def _table(self) -> ExtentTable:
        return ExtentTable(self.starts)

    @functools.cached_property
    def _start_list(self) -> list[int]:
        starts: list[int] = self.starts.tolist()
        return starts

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
        found = self._finder.find(key)
        if found is None:
            raise SampleKeyError("no sample has this key", found=repr(key), hint=self._finder.near(key))
        return found

    @functools.cached_property
    def _finder(self) -> KeyFinder:
        return KeyFinder(self.shard, self._start_list)

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these samples."""
        rows = checked_rows(rows, len(self))
        numbers = np.searchsorted(self.starts, rows, "right") - 1
        found = [""] * len(rows)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            keys = self.shard(number).index.keys.take(as_arrow(rows[at] - self.starts[number])).to_pylist()
            for position, key in zip(at.tolist(), keys, strict=True):
                found[position] = key
        return found

    def column_names(self) -> tuple[str, ...]:
        """Every metadata column, over all shards."""
        return tuple(
            dict.fromkeys(name for number in range(len(self.shards)) for name in self.shard(number).index.columns)
        )

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Metadata columns, one row a sample; null where a sample has no such value.

        Raises FieldError for a column that there is not, for one of which some shard may have values that are not in
        its index, and for one that is not of one type.
        """
        refuse_unknown_column(columns, self.column_names())
        return self.metadata(columns)

    def metadata(self, columns: Sequence[str], *, strict: bool = True, as_float: bool = False) -> pa.Table:
        """As `table`; a name that is no column is one of nulls, where no shard may have values under it.

        Unless ``strict``, members that do not decode have no value. ``as_float`` rounds integers as Python does.
        """
        shards = [self.shard(number) for number in range(len(self.shards))]
        return pa.table([_column_of(shards, name, strict, as_float) for name in columns], names=list(columns))

    def close(self) -> None:
        """Give all files back."""
        self._open.close()


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
    cache = options_for(ref.url).cache if cache is None else cache
    return nullcontext() if ref.sidecar is None or cache is not None else prefetch_small_object(ref.sidecar)


# Keys mostly ascend from sample to sample. In such a shard, the first and last key say whether it may hold a key, so it
# need not be open, and bisection finds the row. Other shards are searched from start to end.
@dataclass(frozen=True, slots=True)
class _KeyRange:
    """What is remembered of the keys of a shard."""

    first: str
    last: str
    rise: bool

    def may_have(self, key: str) -> bool:
        return not self.rise or self.first <= key <= self.last


class KeyFinder:
    """Finds samples of shards that begin at ``starts``. Threads may share it."""

    def __init__(self, shard_at: Callable[[int], Shard], starts: Sequence[int]) -> None:
        self._shard_at = shard_at
        self._starts = starts
        self._met: dict[int, _KeyRange] = {}

    def find(self, key: str) -> int | None:
        """The number of the first sample with this key."""
        for number, first in enumerate(self._starts[:-1]):
            keys = self._keys(number)
            row = _find_row(self._shard_at(number), keys, key) if keys.may_have(key) else None
            if row is not None:
                return first + row
        return None

    def near(self, key: str) -> str | None:
        """What to say to who asked for a key that no sample has."""
        meant = [other for other in _key_variants(key, self._width()) if self.find(other) is not None]
        if meant:
            return f"did you mean {meant[0]!r}?"
        return key_hint(key, list(dict.fromkeys([*self._beside(key), *self._some()])))

    def _keys(self, number: int) -> _KeyRange:
        found = self._met.get(number)
        if found is None:
            found = self._met[number] = _key_range(self._shard_at(number))
        return found

    def _width(self) -> int:
        return len(self._keys(0).first) if len(self._starts) > 1 else 0

    def _beside(self, key: str) -> Iterator[str]:
        """The keys between which it would stand."""
        for number in range(len(self._starts) - 1):
            keys = self._keys(number)
            if keys.rise and keys.may_have(key):
                shard = self._shard_at(number)
                at = _key_position(shard, key)
                yield from shard.index.key_list(max(at - _HINT_NEIGHBOURS, 0), min(at + _HINT_NEIGHBOURS, len(shard)))

    def _some(self) -> Iterator[str]:
        """The first keys of some shards: enough to see how keys look."""
        for number in range(min(_SHARDS_SHOWN, len(self._starts) - 1)):
            shard = self._shard_at(number)
            yield from shard.index.key_list(0, min(_KEYS_SHOWN, len(shard)))


def _key_range(shard: Shard) -> _KeyRange:
    keys = shard.index.keys
    if not len(keys):
        return _KeyRange("", "", rise=True)
    rises = pc.call_function("less_equal", [keys.slice(0, len(keys) - 1), keys.slice(1)])
    return _KeyRange(keys[0].as_py(), keys[-1].as_py(), rise=rises.true_count == len(rises))


def _find_row(shard: Shard, keys: _KeyRange, key: str) -> int | None:
    if not keys.rise:
        return shard.index.find(key)
    at = _key_position(shard, key)
    return at if at < len(shard) and shard.key(at) == key else None


def _key_position(shard: Shard, key: str) -> int:
    return bisect.bisect_left(range(len(shard)), key, key=shard.key)


def _key_variants(key: str, width: int) -> Iterator[str]:
    """What the same key may look like: a number with other zeros before it, a file's name, a path."""
    plain = key.strip().replace("\\", "/").removeprefix("./")
    folder, slash, base = plain.rpartition("/")
    stem = base.partition(".")[0]
    for other in (plain, folder + slash + stem, base, stem, stem.lower(), stem.upper()):
        yield other
        if other.isascii() and other.isdigit():
            number = other.lstrip("0") or "0"
            yield from (number.zfill(width), number)


def _column_of(shards: Sequence[Shard], name: str, strict: bool, as_float: bool) -> pa.ChunkedArray:
    if name == "__key__":
        keys = [shard.index.keys for shard in shards]
        return join_columns(name, keys, [shard.url for shard in shards], pa.string())
    for shard in shards:
        reason = None if name in shard.index.columns else shard.index.facts.unanswerable(name)
        if reason is not None:
            raise column_error(name, reason, shard.url)
        lost = shard.index.facts.unreadable_row(name) if strict else None
        if lost is not None:
            reason = f"the member {lost[1]} of a sample does not decode"
            raise column_error(name, reason, shard.url).at(key=shard.key(lost[0]), field=lost[1])
    parts = [shard.index.columns.get(name, pa.nulls(len(shard.index))) for shard in shards]
    parts = [as_floats(part) for part in parts] if as_float else parts
    return join_columns(name, parts, [shard.url for shard in shards])


def refuse_unknown_column(columns: Sequence[str], known: Sequence[str]) -> None:
    """Raise FieldError for a name that is neither a column nor that of the keys."""
    unknown = [name for name in columns if name != "__key__" and name not in known]
    if unknown:
        raise FieldError("no such column", expected=" or ".join(("__key__", *known)), found=unknown[0])


def column_error(name: str, reason: str, url: str | None = None) -> FieldError:
    """The error for a column that is not known of all samples."""
    hint = "read the samples and choose with `filter`"
    return FieldError(f"Cannot query column {name!r}: {reason}", shard=url, hint=hint)


def join_columns(
    name: str, parts: Sequence[Any], urls: Sequence[str], kind: pa.DataType | None = None
) -> pa.ChunkedArray:
    """A column's parts as one of one type. Raises FieldError where there is none that holds all values."""
    kind = kind if kind is not None and all(part.type == kind for part in parts) else common_type(parts)
    if kind is None:
        types = {str(part.type): url for part, url in zip(parts, urls, strict=True) if not pa.types.is_null(part.type)}
        shown = ", ".join(f"{each} in {url!r}" for each, url in list(types.items())[:3])
        raise column_error(name, f"its values are of different types ({shown})")
    try:
        cast = [part if part.type == kind else part.cast(kind) for part in parts]
    except pa.ArrowInvalid as error:
        raise column_error(name, f"its integers and floats are not exact in one type ({error})") from error
    chunks = [part.chunks if isinstance(part, pa.ChunkedArray) else [part] for part in cast]
    return pa.chunked_array(list(chain.from_iterable(chunks)), kind)
