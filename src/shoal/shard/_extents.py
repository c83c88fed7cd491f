"""`Extents`: where the members of some samples are, as arrays of fields by rows; built from the shards' indexes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from shoal._typing import IntArray
from shoal.store._fork import ForkSafeLock

from ._arrow_arrays import as_arrow
from ._shard import Shard
from ._shard_rows import LongExtents, ShardRows

__all__ = ["ExtentTable", "Extents", "RowLabels", "Rows", "join_extents", "missing_in", "shard_extents", "take_members"]

Rows = IntArray | slice
_MISSING = -1
_WINDOW_ROWS = 8192
"""Rows whose extents are kept for slices, which mostly follow each other."""
_MAX_TABLE_BYTES = 128 << 20
_MEMBER_BYTES = 24


class RowKeys(Protocol):
    """The keys of some rows."""

    def to_list(self) -> list[str]: ...

    def get(self, row: int) -> str: ...

    def take(self, rows: IntArray) -> RowKeys: ...


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


def _row_numbers(rows: Rows) -> IntArray:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


@dataclass(frozen=True, slots=True)
class RowLabels:
    """The shards and keys of some rows. It does not keep the shards open."""

    urls: Mapping[int, str]
    """The URL of each shard, by its number."""
    shard_numbers: IntArray | None
    """For each row, the number of its shard; None if there is only one."""
    keys: RowKeys

    def url(self, row: int) -> str:
        """Return the URL of the shard of one row."""
        return next(iter(self.urls.values())) if self.shard_numbers is None else self.urls[int(self.shard_numbers[row])]

    def take(self, rows: IntArray) -> RowLabels:
        """Return some of the rows."""
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        return RowLabels(self.urls, numbers, self.keys.take(rows))


@dataclass(frozen=True, slots=True)
class Extents:
    """Where each field of some rows is: arrays with a line for each field and a column for each row."""

    shards: Mapping[int, Shard]
    """The shards that these rows are in, by number. They stay open as long as this value exists."""
    shard_numbers: IntArray | None
    """For each row, the number of its shard; None if there is only one."""
    rows: Rows
    """The numbers of the rows in their shards; a slice only for rows of one shard."""
    fields: tuple[str, ...]
    starts: IntArray
    """Offsets in the tar; negative where a row lacks the field."""
    stops: IntArray
    crcs: IntArray | None
    """crc32 of each member; negative where it is unknown. None if none is known, or reads are not verified."""
    sparse: tuple[bool, ...]
    """For each field, whether some row may lack it."""
    row_keys: RowKeys

    def __len__(self) -> int:
        return int(self.starts.shape[1])

    @property
    def first_shard(self) -> Shard:
        """One of the shards; the only one if ``shard_numbers`` is None."""
        return next(iter(self.shards.values()))

    def shard(self, row: int) -> Shard:
        """Return the shard of one row."""
        return self.first_shard if self.shard_numbers is None else self.shards[int(self.shard_numbers[row])]

    def row_numbers(self) -> IntArray:
        """Return the numbers of the rows in their shards."""
        return _row_numbers(self.rows)

    def keys(self) -> list[str]:
        """Return the keys of the rows."""
        return self.row_keys.to_list()

    def urls(self) -> list[str]:
        """Return the URL of the shard of each row."""
        if self.shard_numbers is None:
            return [self.first_shard.url] * len(self)
        urls = {number: shard.url for number, shard in self.shards.items()}
        return list(map(urls.__getitem__, self.shard_numbers.tolist()))

    @property
    def labels(self) -> RowLabels:
        """The shards and keys of the rows."""
        urls = {number: shard.url for number, shard in self.shards.items()}
        return RowLabels(urls, self.shard_numbers, self.row_keys)

    def url(self, row: int) -> str:
        """Return the URL of the shard of one row."""
        return self.shard(row).url

    def key(self, row: int) -> str:
        """Return the key of one row."""
        return self.row_keys.get(row)

    def take(self, rows: IntArray) -> Extents:
        """Return some of the rows."""
        own = self.row_numbers()[rows]
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        crcs = None if self.crcs is None else self.crcs[:, rows]
        starts, stops, keys = self.starts[:, rows], self.stops[:, rows], self.row_keys.take(rows)
        return Extents(self.shards, numbers, own, self.fields, starts, stops, crcs, self.sparse, keys)


def missing_in(starts: IntArray) -> tuple[bool, ...]:
    """Return for each field whether some row lacks it."""
    missing: list[bool] = (starts < 0).any(axis=1).tolist()  # type: ignore[assignment]
    return tuple(missing)


def shard_extents(shard: Shard, rows: Rows, fields: Sequence[str] | None = None) -> Extents:
    """Return the extents of rows of one shard: of all its fields, or of these."""
    index = shard.index
    if isinstance(index.fields, LongExtents):
        return _long_extents(shard, index.fields, rows, fields)
    names = tuple(name for name in index.fields if fields is None or name in fields)
    if isinstance(rows, slice) and len(names) == len(index.fields):
        return _from_window(shard, rows)
    return _gathered(shard, rows, names)


def _from_window(shard: Shard, rows: slice) -> Extents:
    """Return neighbours from the extents that the shard keeps, or renew those."""
    first, window = shard.window or (0, None)
    if window is None or rows.start < first or rows.stop > first + window[0].shape[1]:
        first = rows.start
        stop = max(rows.stop, min(first + _WINDOW_ROWS, len(shard)))
        found = _gathered(shard, slice(first, stop), tuple(shard.index.fields))
        window = found.starts, found.stops, found.crcs, found.sparse
        shard.window = first, window  # of two threads, each has its own
    own = slice(rows.start - first, rows.stop - first)
    starts, stops, crcs, sparse = window
    names, crcs = tuple(shard.index.fields), None if crcs is None else crcs[:, own]
    keys = _IndexKeys({0: shard.index}, None, rows)
    return Extents({0: shard}, None, rows, names, starts[:, own], stops[:, own], crcs, sparse, keys)


def _gathered(shard: Shard, rows: Rows, names: tuple[str, ...]) -> Extents:
    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    starts, stops = np.empty((len(names), count), np.int64), np.empty((len(names), count), np.int64)
    parts = [shard.index.fields[name] for name in names]
    sparse = tuple(not shard.presence[name] for name in names)
    for line, part in enumerate(parts):
        starts[line] = part.offset[rows]
        np.add(starts[line], part.size[rows].view(np.int64), out=stops[line])
        if sparse[line]:
            missing = starts[line] == 0
            starts[line][missing] = stops[line][missing] = _MISSING
    crcs = None
    if shard.verify and any(part.crc is not None for part in parts):
        crcs = np.full(starts.shape, _MISSING)
        for line, part in enumerate(parts):
            if part.crc is not None:
                crcs[line] = part.crc[rows]
    return Extents({0: shard}, None, rows, names, starts, stops, crcs, sparse, _IndexKeys({0: shard.index}, None, rows))


def _long_extents(shard: Shard, extents: LongExtents, rows: Rows, fields: Sequence[str] | None) -> Extents:
    """Return the extents of the fields that these rows have: there may be thousands of others."""
    own = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    first, last = np.searchsorted(extents.entry_rows, own), np.searchsorted(extents.entry_rows, own, "right")
    counts = last - first
    at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    columns = np.repeat(np.arange(len(own)), counts)
    if fields is not None:
        wanted = [code for code, name in enumerate(extents.names) if name in fields]
        chosen = np.isin(extents.codes[at], wanted)
        at, columns = at[chosen], columns[chosen]
    codes, lines = np.unique(extents.codes[at], return_inverse=True)
    starts, stops, crcs = (np.full((len(codes), len(own)), _MISSING) for _ in range(3))
    starts[lines, columns] = extents.offset[at]
    stops[lines, columns] = extents.offset[at] + extents.size[at]
    known = shard.verify and extents.crc is not None
    if known and extents.crc is not None:
        crcs[lines, columns] = extents.crc[at]
    names = tuple(extents.names[code] for code in codes.tolist())
    sparse, keys = (True,) * len(names), _IndexKeys({0: shard.index}, None, rows)
    return Extents({0: shard}, None, rows, names, starts, stops, crcs if known else None, sparse, keys)


def join_extents(parts: Mapping[int, Extents], places: Sequence[IntArray]) -> Extents:
    """Return the extents of rows of several shards, by number, as one; row ``i`` of a part becomes ``places[i]``."""
    names = tuple(dict.fromkeys(name for part in parts.values() for name in part.fields))
    lines = {name: line for line, name in enumerate(names)}
    count = sum(map(len, parts.values()))
    starts, stops, crcs = (np.full((len(names), count), _MISSING) for _ in range(3))
    numbers, rows = np.empty(count, np.int64), np.empty(count, np.int64)
    for (number, part), own in zip(parts.items(), places, strict=True):
        at = np.array([lines[name] for name in part.fields], np.int64)[:, None], own
        starts[at], stops[at] = part.starts, part.stops
        if part.crcs is not None:
            crcs[at] = part.crcs
        numbers[own], rows[own] = number, part.row_numbers()
    known = any(part.crcs is not None for part in parts.values())
    shards = {number: part.first_shard for number, part in parts.items()}
    sparse, keys = missing_in(starts), index_keys(shards, numbers, rows)
    return Extents(shards, numbers, rows, names, starts, stops, crcs if known else None, sparse, keys)


def index_keys(shards: Mapping[int, Shard], shard_numbers: IntArray | None, rows: Rows) -> RowKeys:
    """Return the keys of rows of open shards."""
    return _IndexKeys({number: shard.index for number, shard in shards.items()}, shard_numbers, rows)


_Members = tuple[tuple[str, ...], IntArray, IntArray, IntArray | None, tuple[bool, ...]]


def take_members(every: Extents, rows: IntArray, fields: Sequence[str] | None = None) -> _Members:
    """Return fields, starts, stops, crcs and ``sparse`` of some rows of extents that have all rows of a source."""
    lines = [line for line, name in enumerate(every.fields) if fields is None or name in fields]
    if len(lines) == len(every.fields):
        starts, stops = every.starts.take(rows, axis=1), every.stops.take(rows, axis=1)
        crcs = None if every.crcs is None else every.crcs.take(rows, axis=1)
        return every.fields, starts, stops, crcs, every.sparse
    at = np.array(lines, np.int64)[:, None], rows
    starts, stops, crcs = every.starts[at], every.stops[at], None if every.crcs is None else every.crcs[at]
    names, sparse = tuple(every.fields[line] for line in lines), tuple(every.sparse[line] for line in lines)
    return names, starts, stops, crcs, sparse


class ExtentTable:
    """The extents of all rows of a source, copied from a shard's index when the shard is first used. Thread-safe.

    Looking into many indexes for a sample or two of each takes longer than reading the samples. The table holds shards
    that have the same fields as the first, while it takes less than 128 MiB; `extents` returns None for others.
    """

    def __init__(self, starts: IntArray) -> None:
        self._starts = starts
        self._versions: dict[int, str] = {}
        """By number, the version of the object whose index was copied."""
        self._unlike: set[int] = set()
        self._lock = ForkSafeLock()
        self._all: Extents | None = None

    def extents(
        self, rows: IntArray, numbers: IntArray, shards: Mapping[int, Shard], fields: Sequence[str] | None = None
    ) -> Extents | None:
        """Return the extents of ``rows`` of the source, which are in the shards ``numbers``."""
        if not self._has(shards) or self._all is None:
            return None
        own = rows - self._starts[numbers]
        which = numbers if len(shards) > 1 else None
        members = take_members(self._all, rows, fields)
        return Extents(shards, which, own, *members, index_keys(shards, which, own))

    def _has(self, shards: Mapping[int, Shard]) -> bool:
        versions = self._versions
        if all(versions.get(number, "") == shard.version for number, shard in shards.items()):
            return True
        with self._lock:
            return all(self._fill(number, shard) for number, shard in shards.items())

    def _fill(self, number: int, shard: Shard) -> bool:
        if self._versions.get(number, "") == shard.version:
            return True
        own = slice(int(self._starts[number]), int(self._starts[number + 1]))
        if number in self._unlike or not shard.version or len(shard) != own.stop - own.start:
            return False
        names = tuple(shard.index.fields)
        is_long = isinstance(shard.index.fields, LongExtents)
        part = None if is_long else _gathered(shard, slice(0, len(shard)), names)
        whole = self._all if self._all is not None or part is None else self._new(part)
        if part is None or whole is None or part.fields != whole.fields or (part.crcs is None) != (whole.crcs is None):
            self._unlike.add(number)
            return False
        sparse = tuple(map(operator.or_, whole.sparse, part.sparse))
        self._all = whole if sparse == whole.sparse else replace(whole, sparse=sparse)
        whole.starts[:, own], whole.stops[:, own] = part.starts, part.stops
        if whole.crcs is not None and part.crcs is not None:
            whole.crcs[:, own] = part.crcs
        self._versions[number] = shard.version
        return True

    def _new(self, part: Extents) -> Extents | None:
        """Return a table with room for all rows; memory is taken as it is filled."""
        shape = len(part.fields), int(self._starts[-1])
        if shape[0] * shape[1] * _MEMBER_BYTES > _MAX_TABLE_BYTES:
            return None
        starts, stops, crcs = (np.empty(shape, np.int64) for _ in range(3))
        return replace(part, shards={}, starts=starts, stops=stops, crcs=None if part.crcs is None else crcs)
