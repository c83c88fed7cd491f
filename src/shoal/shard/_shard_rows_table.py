"""`ShardRowsTable`: the table over indexes that each belong to one shard."""

from __future__ import annotations

import bisect
import functools
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal._typing import IntArray
from shoal.errors import SampleKeyError
from shoal.store._url import base_name

from ._arrow_arrays import as_arrow, as_floats
from ._manifest import ShardRecord, record_of
from ._member_names import KeyRule, key_hint
from ._row_view import RowView
from ._shard_rows import Blocks, LongExtents, ShardRows, field_totals, row_extents, rows_per_read
from ._table import (
    RowExtents,
    RowMembers,
    Rows,
    ShardRef,
    Table,
    checked_rows,
    column_error,
    join_columns,
    join_row_extents,
    key_variants,
    take_members,
)

__all__ = ["KeyFinder", "ShardRowsTable"]

_HINT_NEIGHBOURS = 3
_SHARDS_SHOWN, _KEYS_SHOWN = 8, 2000
_MISSING = -1
_WINDOW_ROWS = 8192
"""Rows whose extents are kept for slices, which mostly follow each other."""
_MAX_TABLE_BYTES = 128 << 20
_MEMBER_BYTES = 24


class ShardRowsTable(Table):
    """The indexes of some shards. ``load`` gives that of one; while it is in use, it gives the same one again.

    ``count`` is how many rows a shard has where that is known without loading them.
    """

    def __init__(
        self,
        shards: tuple[ShardRef, ...],
        rule: KeyRule,
        load: Callable[[int], ShardRows],
        count: Callable[[int], int | None],
    ) -> None:
        self._shards = shards
        self.rule = rule
        self._load = load
        self._known_count = count
        self._starts: IntArray | None = None
        self._window: tuple[int, int, RowExtents] | None = None

    @classmethod
    def of_shard(cls, url: str, index: ShardRows) -> ShardRowsTable:
        """Return the table of one shard."""
        ref = ShardRef(url, len(index), rule=index.facts.rule, size=index.facts.size)
        return cls((ref,), index.facts.rule, lambda _: index, lambda _: len(index))

    @property
    def shards(self) -> tuple[ShardRef, ...]:
        return self._shards

    @property
    def locations(self) -> list[str]:
        return [ref.url for ref in self._shards]

    def __len__(self) -> int:
        return self._start_list[-1]

    @property
    def known_length(self) -> int | None:
        if self._starts is not None:
            return int(self._starts[-1])
        counts = [count for ref in self.shards if (count := self._listed_count(ref)) is not None]
        return sum(counts) if len(counts) == len(self.shards) else None

    @property
    def starts(self) -> IntArray:
        if self._starts is None:
            counts = [self._count(number, ref) for number, ref in enumerate(self.shards)]
            self._starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        return self._starts

    def _count(self, number: int, ref: ShardRef) -> int:
        known = self._listed_count(ref)
        known = self._known_count(number) if known is None else known
        return len(self._load(number)) if known is None else known

    def _listed_count(self, ref: ShardRef) -> int | None:
        """How many rows the manifest says the shard has, if it was grouped by the rule in use."""
        return ref.samples if ref.rule == self.rule else None

    @functools.cached_property
    def _start_list(self) -> list[int]:
        starts: list[int] = self.starts.tolist()
        return starts

    def locate(self, row: int) -> tuple[int, int]:
        starts = self._start_list
        if not 0 <= row < starts[-1]:
            checked_rows(np.array([row]), len(self))  # which raises
        number = bisect.bisect_right(starts, row) - 1
        return number, row - starts[number]

    def numbers(self, rows: IntArray) -> IntArray:
        return np.searchsorted(self.starts, checked_rows(rows, len(self)), "right") - 1

    def presence(self, number: int) -> dict[str, bool]:
        return self._load(number).presence

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for number in range(len(self.shards)) for name in self.fields_of(number)))

    @property
    def known_fields(self) -> tuple[str, ...] | None:
        listed = [ref.fields for ref in self.shards if ref.fields is not None and ref.rule == self.rule]
        return tuple(dict.fromkeys(chain.from_iterable(listed))) if len(listed) == len(self.shards) else None

    def fields_of(self, number: int) -> tuple[str, ...]:
        ref = self.shards[number]
        return ref.fields if ref.fields is not None and ref.rule == self.rule else tuple(self._load(number).fields)

    def extents(self, rows: Rows, fields: Sequence[str] | None = None) -> RowExtents:
        if isinstance(rows, slice):
            number, own = self.locate(rows.start) if rows.start < rows.stop else (0, rows.start)
            stop = own + rows.stop - rows.start
            if stop <= self._start_list[number + 1] - self._start_list[number]:
                return self._slice_extents(number, slice(own, stop), fields)
        picked: IntArray = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        numbers = self.numbers(picked)
        indexes = {number: self._load(number) for number in sorted(set(numbers.tolist()))}
        known = self._extent_table.extents(picked, numbers, indexes, fields)
        if known is not None:
            return known
        if len(indexes) < 2:
            number = next(iter(indexes), 0)
            return index_extents(number, self._load(number), picked - self.starts[number], fields)
        places = [np.flatnonzero(numbers == number) for number in indexes]
        parts = [
            index_extents(number, index, picked[own] - self.starts[number], fields)
            for (number, index), own in zip(indexes.items(), places, strict=True)
        ]
        return join_row_extents(parts, places)

    def _slice_extents(self, number: int, rows: slice, fields: Sequence[str] | None) -> RowExtents:
        """Return neighbours of one shard, from extents that are kept where all fields are asked for."""
        index = self._load(number)
        if isinstance(index.fields, LongExtents) or not (fields is None or set(fields) >= set(index.fields)):
            return index_extents(number, index, rows, fields)
        known, first, window = self._window or (-1, 0, None)
        if window is None or known != number or rows.start < first or rows.stop > first + len(window):
            first = rows.start
            window = index_extents(number, index, slice(first, max(rows.stop, min(first + _WINDOW_ROWS, len(index)))))
            self._window = number, first, window  # of two threads, each has its own
        own = slice(rows.start - first, rows.stop - first)
        crcs = None if window.crcs is None else window.crcs[:, own]
        starts, stops, keys = window.starts[:, own], window.stops[:, own], window.row_keys.part(own)
        names, sparse = window.fields, window.sparse
        return RowExtents(window.numbers, None, rows, names, starts, stops, crcs, sparse, keys, window.is_complete)

    @functools.cached_property
    def _extent_table(self) -> ExtentTable:
        return ExtentTable(self.starts)

    def row_members(self, row: int) -> RowMembers:
        number, own = self.locate(row)
        index = self._load(number)
        return RowMembers(number, own, index.key(own), row_extents(index.fields, own))

    def field_totals(self, rows: IntArray | None = None) -> dict[str, tuple[int, int]]:
        totals: dict[str, tuple[int, int]] = {}
        numbers = None if rows is None else np.searchsorted(self.starts, rows, "right") - 1
        for number in range(len(self.shards)) if numbers is None else np.unique(numbers).tolist():
            own = None if rows is None else rows[numbers == number] - self.starts[number]
            for name, (count, size) in field_totals(self._load(number), own).items():
                known = totals.get(name, (0, 0))
                totals[name] = known[0] + count, known[1] + size
        return totals

    def shard_bytes(self, number: int) -> int:
        ref = self.shards[number]
        return self._load(number).facts.size if ref.size is None else ref.size

    @property
    def total_bytes(self) -> int | None:
        sizes = [ref.size for ref in self.shards if ref.size is not None]
        return sum(sizes) if len(sizes) == len(self.shards) else None

    def shard_version(self, number: int) -> str:
        facts = self._load(number).facts
        return f"{facts.size}-{facts.head_crc:08x}"

    def blocks(self, number: int) -> Blocks | None:
        return self._load(number).blocks

    def record(self, number: int, path: str | None = None) -> ShardRecord:
        return record_of(base_name(self.shards[number].url) if path is None else path, self._load(number))

    def shard_rows(self, number: int) -> ShardRows:
        return self._load(number)

    def check_replaced(self, number: int) -> None:
        """Nothing tells."""

    def find(self, key: str) -> int:
        found = self._finder.find(key)
        if found is None:
            raise SampleKeyError("no sample has this key", found=repr(key), hint=self._finder.near(key))
        return found

    @functools.cached_property
    def _finder(self) -> KeyFinder:
        return KeyFinder(self._load, self._start_list)

    def key(self, row: int) -> str:
        number, own = self.locate(row)
        return self._load(number).key(own)

    def keys(self, rows: IntArray) -> list[str]:
        rows = checked_rows(rows, len(self))
        numbers = np.searchsorted(self.starts, rows, "right") - 1
        found = [""] * len(rows)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            keys = self._load(number).keys.take(as_arrow(rows[at] - self.starts[number])).to_pylist()
            for position, key in zip(at.tolist(), keys, strict=True):
                found[position] = key
        return found

    def shard_keys(self, number: int) -> pa.StringArray:
        return self._load(number).keys

    def mean_bytes(self, number: int, field: str) -> float:
        part = self._load(number).fields.get(field)
        return float(part.size.mean()) if part is not None and len(part.size) else 0.0

    def rows_per_read(self, number: int, fields: Sequence[str] | None) -> int:
        return rows_per_read(self._load(number), fields)

    def deleted(self) -> RowView:
        """Tombstones, which the dataset has beside its shards, are not known here."""
        return RowView.from_rows(np.empty(0, np.int64))

    def columns_of(self, number: int) -> tuple[str, ...]:
        return tuple(self._load(number).columns)

    def column_types(self, most_shards: int | None = None) -> dict[str, pa.DataType]:
        types: dict[str, pa.DataType] = {}
        for number in range(len(self.shards[:most_shards])):
            for name, column in self._load(number).columns.items():
                types.setdefault(name, column.type)
        return types

    def columns_left_out(self, most_shards: int | None = None) -> dict[str, str]:
        found: dict[str, str] = {}
        for number in range(len(self.shards[:most_shards])):
            found |= self._load(number).facts.dropped
        return found

    def values(self, row: int) -> dict[str, Any]:
        number, own = self.locate(row)
        return {name: column[own].as_py() for name, column in self._load(number).columns.items()}

    def unanswerable(self, name: str) -> str | None:
        for number in range(len(self.shards)):
            facts = self._load(number).facts
            meant = [known for known in (*facts.dropped, *facts.nested) if known.endswith(f".{name}")]
            reason = next(filter(None, map(facts.unanswerable, (name, *meant))), None)
            if reason is not None:
                return reason
        return None

    def columns(
        self, names: Sequence[str], rows: RowView | None = None, *, strict: bool = True, as_float: bool = False
    ) -> pa.Table:
        parts = [(ref.url, self._load(number)) for number, ref in enumerate(self.shards)]
        columns = [_column_of(parts, name, strict, as_float) for name in names]
        return pa.table(columns if rows is None else [rows.pick(column) for column in columns], names=list(names))


# ------------------------------------------------------------------------------------------------------------- extents


@dataclass(frozen=True, slots=True)
class _IndexKeys:
    """Keys that are looked up in the indexes of shards when they are needed."""

    indexes: Mapping[int, ShardRows]
    shard_numbers: IntArray | None
    """For each row, the number of its shard; None if there is only one."""
    rows: Rows
    """The numbers of the rows in their shards."""

    def to_list(self) -> list[str]:
        if self.shard_numbers is not None:
            indexes = map(self.indexes.__getitem__, self.shard_numbers.tolist())
            return [index.key(row) for index, row in zip(indexes, _row_numbers(self.rows).tolist(), strict=True)]
        index = next(iter(self.indexes.values()))
        if isinstance(self.rows, slice):
            return index.key_list(self.rows.start, self.rows.stop)
        keys: list[str] = index.keys.take(as_arrow(self.rows)).to_pylist()
        return keys

    def get(self, row: int) -> str:
        number = self.rows.start + row if isinstance(self.rows, slice) else int(self.rows[row])
        first = next(iter(self.indexes))
        return self.indexes[first if self.shard_numbers is None else int(self.shard_numbers[row])].key(number)

    def take(self, rows: IntArray) -> _IndexKeys:
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        return _IndexKeys(self.indexes, numbers, _row_numbers(self.rows)[rows])

    def part(self, rows: slice) -> _IndexKeys:
        own = self.rows
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        rows = slice(own.start + rows.start, own.start + rows.stop) if isinstance(own, slice) else rows
        return _IndexKeys(self.indexes, numbers, rows if isinstance(own, slice) else own[rows])


def _row_numbers(rows: Rows) -> IntArray:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def index_extents(number: int, index: ShardRows, rows: Rows, fields: Sequence[str] | None = None) -> RowExtents:
    """Return the extents of rows of one shard, which has this number: of all its fields, or of these."""
    if isinstance(index.fields, LongExtents):
        return _long_extents(number, index, index.fields, rows, fields)
    names = tuple(name for name in index.fields if fields is None or name in fields)
    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    starts, stops = np.empty((len(names), count), np.int64), np.empty((len(names), count), np.int64)
    parts = [index.fields[name] for name in names]
    sparse = tuple(not index.presence[name] for name in names)
    for line, part in enumerate(parts):
        starts[line] = part.offset[rows]
        np.add(starts[line], part.size[rows].view(np.int64), out=stops[line])
        if sparse[line]:
            missing = starts[line] == 0
            starts[line][missing] = stops[line][missing] = _MISSING
    crcs = None
    if any(part.crc is not None for part in parts):
        crcs = np.full(starts.shape, _MISSING)
        for line, part in enumerate(parts):
            if part.crc is not None:
                crcs[line] = part.crc[rows]
    keys = _IndexKeys({number: index}, None, rows)
    is_complete = len(names) == len(index.fields)
    return RowExtents((number,), None, rows, names, starts, stops, crcs, sparse, keys, is_complete)


def _long_extents(
    number: int, index: ShardRows, extents: LongExtents, rows: Rows, fields: Sequence[str] | None
) -> RowExtents:
    """Return the extents of the fields that these rows have: there may be thousands of others."""
    own = _row_numbers(rows)
    first, last = np.searchsorted(extents.entry_rows, own), np.searchsorted(extents.entry_rows, own, "right")
    counts = last - first
    at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    columns = np.repeat(np.arange(len(own)), counts)
    if fields is not None:
        wanted = [code for code, name in enumerate(extents.names) if name in fields]
        chosen = np.isin(extents.codes[at], wanted)
        at, columns = at[chosen], columns[chosen]
    codes, lines = np.unique(extents.codes[at], return_inverse=True)
    starts, stops = np.full((len(codes), len(own)), _MISSING), np.full((len(codes), len(own)), _MISSING)
    crcs = np.zeros(starts.shape, np.int64)
    starts[lines, columns] = extents.offset[at]
    stops[lines, columns] = extents.offset[at] + extents.size[at]
    if extents.crc is not None:
        crcs[lines, columns] = extents.crc[at]
    names = tuple(extents.names[code] for code in codes.tolist())
    sparse, keys = (True,) * len(names), _IndexKeys({number: index}, None, rows)
    known = None if extents.crc is None else crcs
    return RowExtents((number,), None, rows, names, starts, stops, known, sparse, keys, fields is None)


class ExtentTable:
    """The extents of all rows of a source, copied from a shard's index when the shard is first used. Thread-safe.

    Looking into many indexes for a sample or two of each takes longer than reading the samples. The table holds shards
    that have the same fields as the first, while it takes less than 128 MiB; `extents` returns None for others.
    """

    def __init__(self, starts: IntArray) -> None:
        self._starts = starts
        self._copied: dict[int, weakref.ref[ShardRows]] = {}
        """By number, the index that was copied."""
        self._unlike: set[int] = set()
        self._lock = threading.Lock()
        self._all: RowExtents | None = None

    def extents(
        self, rows: IntArray, numbers: IntArray, indexes: Mapping[int, ShardRows], fields: Sequence[str] | None = None
    ) -> RowExtents | None:
        """Return the extents of ``rows`` of the source, which are in the shards ``numbers``."""
        if not indexes or not self._has(indexes) or self._all is None:
            return None
        own = rows - self._starts[numbers]
        which = numbers if len(indexes) > 1 else None
        names, starts, stops, crcs, sparse, is_complete = take_members(self._all, rows, fields)
        keys = _IndexKeys(indexes, which, own)
        return RowExtents(tuple(indexes), which, own, names, starts, stops, crcs, sparse, keys, is_complete)

    def _has(self, indexes: Mapping[int, ShardRows]) -> bool:
        copied = self._copied
        if all((known := copied.get(number)) is not None and known() is index for number, index in indexes.items()):
            return True
        with self._lock:
            return all(self._fill(number, index) for number, index in indexes.items())

    def _fill(self, number: int, index: ShardRows) -> bool:
        known = self._copied.get(number)
        if known is not None and known() is index:
            return True
        own = slice(int(self._starts[number]), int(self._starts[number + 1]))
        if number in self._unlike or len(index) != own.stop - own.start:
            return False
        is_long = isinstance(index.fields, LongExtents)
        part = None if is_long else index_extents(number, index, slice(0, len(index)))
        whole = self._all if self._all is not None or part is None else self._new(part)
        if part is None or whole is None or part.fields != whole.fields or (part.crcs is None) != (whole.crcs is None):
            self._unlike.add(number)
            return False
        sparse = tuple(map(operator.or_, whole.sparse, part.sparse))
        self._all = whole if sparse == whole.sparse else replace(whole, sparse=sparse)
        whole.starts[:, own], whole.stops[:, own] = part.starts, part.stops
        if whole.crcs is not None and part.crcs is not None:
            whole.crcs[:, own] = part.crcs
        self._copied[number] = weakref.ref(index)
        return True

    def _new(self, part: RowExtents) -> RowExtents | None:
        """Return a table with room for all rows; memory is taken as it is filled."""
        shape = len(part.fields), int(self._starts[-1])
        if shape[0] * shape[1] * _MEMBER_BYTES > _MAX_TABLE_BYTES:
            return None
        starts, stops, crcs = (np.empty(shape, np.int64) for _ in range(3))
        keys = _IndexKeys({}, None, part.rows)
        return replace(part, starts=starts, stops=stops, crcs=None if part.crcs is None else crcs, row_keys=keys)


# ---------------------------------------------------------------------------------------------------------------- keys


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

    def __init__(self, rows_of: Callable[[int], ShardRows], starts: Sequence[int]) -> None:
        self._rows_of = rows_of
        self._starts = starts
        self._ranges: dict[int, _KeyRange] = {}

    def find(self, key: str) -> int | None:
        """The number of the first sample with this key."""
        for number, first in enumerate(self._starts[:-1]):
            keys = self._keys(number)
            row = _find_row(self._rows_of(number), keys, key) if keys.may_have(key) else None
            if row is not None:
                return first + row
        return None

    def near(self, key: str) -> str | None:
        """What to say to who asked for a key that no sample has."""
        meant = [other for other in key_variants(key, self._width()) if self.find(other) is not None]
        if meant:
            return f"did you mean {meant[0]!r}?"
        return key_hint(key, list(dict.fromkeys([*self._beside(key), *self._some()])))

    def _keys(self, number: int) -> _KeyRange:
        found = self._ranges.get(number)
        if found is None:
            found = self._ranges[number] = _key_range(self._rows_of(number))
        return found

    def _width(self) -> int:
        return len(self._keys(0).first) if len(self._starts) > 1 else 0

    def _beside(self, key: str) -> Iterator[str]:
        """The keys between which it would stand."""
        for number in range(len(self._starts) - 1):
            keys = self._keys(number)
            if keys.rise and keys.may_have(key):
                shard = self._rows_of(number)
                at = _key_position(shard, key)
                yield from shard.key_list(max(at - _HINT_NEIGHBOURS, 0), min(at + _HINT_NEIGHBOURS, len(shard)))

    def _some(self) -> Iterator[str]:
        """The first keys of some shards: enough to see how keys look."""
        for number in range(min(_SHARDS_SHOWN, len(self._starts) - 1)):
            shard = self._rows_of(number)
            yield from shard.key_list(0, min(_KEYS_SHOWN, len(shard)))


def _key_range(shard: ShardRows) -> _KeyRange:
    keys = shard.keys
    if not len(keys):
        return _KeyRange("", "", rise=True)
    rises = pc.call_function("less_equal", [keys.slice(0, len(keys) - 1), keys.slice(1)])
    return _KeyRange(keys[0].as_py(), keys[-1].as_py(), rise=rises.true_count == len(rises))


def _find_row(shard: ShardRows, keys: _KeyRange, key: str) -> int | None:
    if not keys.rise:
        return shard.find(key)
    at = _key_position(shard, key)
    return at if at < len(shard) and shard.key(at) == key else None


def _key_position(shard: ShardRows, key: str) -> int:
    return bisect.bisect_left(range(len(shard)), key, key=shard.key)


def _column_of(shards: Sequence[tuple[str, ShardRows]], name: str, strict: bool, as_float: bool) -> pa.ChunkedArray:
    urls = [url for url, _ in shards]
    if name == "__key__":
        return join_columns(name, [rows.keys for _, rows in shards], urls, pa.string())
    for url, rows in shards:
        reason = None if name in rows.columns else rows.facts.unanswerable(name)
        if reason is not None:
            raise column_error(name, reason, url)
        lost = rows.facts.unreadable_row(name) if strict else None
        if lost is not None:
            reason = f"the member {lost[1]} of a sample does not decode"
            raise column_error(name, reason, url).at(key=rows.key(lost[0]), field=lost[1])
    parts = [rows.columns.get(name, pa.nulls(len(rows))) for _, rows in shards]
    parts = [as_floats(part) for part in parts] if as_float else parts
    return join_columns(name, parts, urls)
