"""`Table`: the index of some shards as one, by row and by key. Everything but the members' bytes is asked here.

Where the index is stored, and how, is known only to the classes that implement it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import FieldError, PositionError

from ._arrow_arrays import common_type
from ._manifest import ShardRecord
from ._member_names import WEBDATASET_RULE, KeyRule
from ._row_view import RowView
from ._shard_rows import Blocks, Member, ShardRows

__all__ = [
    "RowExtents",
    "RowKeys",
    "RowMembers",
    "Rows",
    "ShardRef",
    "Table",
    "checked_rows",
    "column_error",
    "join_columns",
    "join_row_extents",
    "key_variants",
    "missing_in",
    "refuse_unknown_column",
    "take_members",
]

Rows = IntArray | slice
_MISSING = -1


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


class RowKeys(Protocol):
    """The keys of some rows."""

    def to_list(self) -> list[str]:
        """Return all keys."""
        ...

    def get(self, row: int) -> str:
        """Return the key of one row."""
        ...

    def take(self, rows: IntArray) -> RowKeys:
        """Return the keys of some of the rows."""
        ...

    def part(self, rows: slice) -> RowKeys:
        """Return the keys of neighbours."""
        ...


class RowMembers(NamedTuple):
    """One sample: its shard, key and members."""

    shard: int
    """The number of its shard."""
    row: int
    """The number of its row in the shard."""
    key: str
    members: list[tuple[str, int, int, int | None]]
    """Field, offset, size and crc32 of each; None where the crc32 is not known."""


@dataclass(frozen=True, slots=True)
class RowExtents:
    """Where each field of some rows is: arrays with a line for each field and a column for each row."""

    numbers: tuple[int, ...]
    """The numbers of the shards that these rows are in, ascending."""
    shard_numbers: IntArray | None
    """For each row, the number of its shard; None if there is only one."""
    rows: Rows
    """The numbers of the rows in their shards; a slice only for rows of one shard."""
    fields: tuple[str, ...]
    starts: IntArray
    """Offsets in the tar; negative where a row lacks the field."""
    stops: IntArray
    crcs: IntArray | None
    """crc32 of each member; 0 where a row lacks the field, as of no bytes, and negative where it is unknown.

    None if none is known, or reads are not verified.
    """
    sparse: tuple[bool, ...]
    """For each field, whether some row may lack it."""
    row_keys: RowKeys
    is_complete: bool
    """Whether no field of these rows was left out."""

    def __len__(self) -> int:
        return int(self.starts.shape[1])

    def row_numbers(self) -> IntArray:
        """Return the numbers of the rows in their shards."""
        return np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows


@dataclass(frozen=True, slots=True)
class _JoinedKeys:
    """The keys of rows of several parts."""

    parts: Sequence[RowKeys]
    numbers: IntArray
    """The part of each row."""
    rows: IntArray
    """The number of each row in its part."""

    def to_list(self) -> list[str]:
        keys = [""] * len(self.rows)
        for number, part in enumerate(self.parts):
            at = np.flatnonzero(self.numbers == number)
            if len(at):
                for place, key in zip(at.tolist(), part.take(self.rows[at]).to_list(), strict=True):
                    keys[place] = key
        return keys

    def get(self, row: int) -> str:
        return self.parts[int(self.numbers[row])].get(int(self.rows[row]))

    def take(self, rows: IntArray) -> _JoinedKeys:
        return _JoinedKeys(self.parts, self.numbers[rows], self.rows[rows])

    def part(self, rows: slice) -> _JoinedKeys:
        return _JoinedKeys(self.parts, self.numbers[rows], self.rows[rows])


def missing_in(starts: IntArray) -> tuple[bool, ...]:
    """Return for each field whether some row lacks it."""
    missing: list[bool] = (starts < 0).any(axis=1).tolist()  # type: ignore[assignment]
    return tuple(missing)


_Members = tuple[tuple[str, ...], IntArray, IntArray, IntArray | None, tuple[bool, ...], bool]


def take_members(every: RowExtents, rows: IntArray, fields: Sequence[str] | None = None) -> _Members:
    """Return ``fields``, ``starts``, ``stops``, ``crcs``, ``sparse`` and ``is_complete`` of some of the rows."""
    lines = [line for line, name in enumerate(every.fields) if fields is None or name in fields]
    if len(lines) == len(every.fields):
        starts, stops = every.starts.take(rows, axis=1), every.stops.take(rows, axis=1)
        crcs = None if every.crcs is None else every.crcs.take(rows, axis=1)
        return every.fields, starts, stops, crcs, every.sparse, every.is_complete
    at = np.array(lines, np.int64)[:, None], rows
    starts, stops, crcs = every.starts[at], every.stops[at], None if every.crcs is None else every.crcs[at]
    names, sparse = tuple(every.fields[line] for line in lines), tuple(every.sparse[line] for line in lines)
    return names, starts, stops, crcs, sparse, False


def join_row_extents(parts: Sequence[RowExtents], places: Sequence[IntArray]) -> RowExtents:
    """Return the extents of several parts as one; row ``i`` of a part becomes ``places[part][i]``."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.fields))
    lines = {name: line for line, name in enumerate(names)}
    count = sum(map(len, parts))
    starts, stops = np.full((len(names), count), _MISSING), np.full((len(names), count), _MISSING)
    crcs = np.zeros((len(names), count), np.int64)
    numbers, rows, part_numbers, part_rows = (np.empty(count, np.int64) for _ in range(4))
    for number, (part, own) in enumerate(zip(parts, places, strict=True)):
        at = np.array([lines[name] for name in part.fields], np.int64)[:, None], own
        starts[at], stops[at] = part.starts, part.stops
        crcs[at] = _MISSING if part.crcs is None else part.crcs
        if part.shard_numbers is not None:
            numbers[own] = part.shard_numbers
        elif len(part):
            numbers[own] = part.numbers[0]
        rows[own] = part.row_numbers()
        part_numbers[own], part_rows[own] = number, np.arange(len(part))
    shards = tuple(sorted({number for part in parts for number in part.numbers}))
    keys = _JoinedKeys([part.row_keys for part in parts], part_numbers, part_rows)
    return RowExtents(
        shards,
        numbers if len(shards) > 1 else None,
        rows,
        names,
        starts,
        stops,
        crcs if any(part.crcs is not None for part in parts) else None,
        missing_in(starts),
        keys,
        all(part.is_complete for part in parts),
    )


class Table(ABC):
    """The index of some shards: their rows, keys, members and metadata columns. Thread-safe.

    Rows and shards are counted from the first one on; deleted rows count too. Where a row or shard does not exist,
    PositionError is raised.
    """

    rule: KeyRule
    """By which members are grouped into samples."""

    # --------------------------------------------------------------------------------------------------------- shards

    @property
    @abstractmethod
    def shards(self) -> Sequence[ShardRef]:
        """The shards, in order."""

    @property
    @abstractmethod
    def locations(self) -> Sequence[str]:
        """URLs that tell in which stores the shards are, without a look at each of them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def known_length(self) -> int | None:
        """How many rows there are, if that is known already: nothing is opened."""

    @property
    @abstractmethod
    def starts(self) -> IntArray:
        """The first row of each shard, and the number of all rows."""

    @abstractmethod
    def locate(self, row: int) -> tuple[int, int]:
        """Return the number of the shard that has a row, and the row's number in it."""

    @abstractmethod
    def numbers(self, rows: IntArray) -> IntArray:
        """Return the number of the shard that has each of these rows."""

    @abstractmethod
    def shard_bytes(self, number: int) -> int:
        """Return the size of one shard, as it is stored."""

    @property
    @abstractmethod
    def total_bytes(self) -> int | None:
        """The size of all shards, as they are stored, if that is known already: nothing is opened."""

    @abstractmethod
    def shard_version(self, number: int) -> str:
        """Return a text that differs when the shard is written anew."""

    @abstractmethod
    def blocks(self, number: int) -> Blocks | None:
        """Return the blocks of one shard; None if they are not known."""

    @abstractmethod
    def record(self, number: int, path: str | None = None) -> ShardRecord:
        """Return what a manifest says of one shard; ``path`` is the name it has there."""

    @abstractmethod
    def shard_rows(self, number: int) -> ShardRows:
        """Return the index of one shard as one value, for code that copies or repairs it."""

    @abstractmethod
    def check_replaced(self, number: int) -> None:
        """Raise ObjectChangedError where damage of a shard is none, since the dataset was replaced while it is open."""

    # --------------------------------------------------------------------------------------------------- keys, members

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """Every field, in the order they appear."""

    @property
    def first_fields(self) -> tuple[str, ...]:
        """The fields of the first shard that has samples; no shard after it is opened for them."""
        return next((fields for number in range(len(self.shards)) if (fields := self.fields_of(number))), ())

    def fields_of(self, number: int) -> tuple[str, ...]:
        """Return the fields that samples of one shard may have."""
        return tuple(self.presence(number))

    @abstractmethod
    def presence(self, number: int) -> dict[str, bool]:
        """For each field that samples of one shard may have, whether it is known that all have it."""

    @property
    @abstractmethod
    def known_fields(self) -> tuple[str, ...] | None:
        """Every field, if they are known already: nothing is opened."""

    @abstractmethod
    def extents(self, rows: Rows, fields: Sequence[str] | None = None) -> RowExtents:
        """Return where the members of rows are: of all fields, or of these as far as there are such.

        Of very many fields, those are left out that none of the rows has.
        """

    @abstractmethod
    def row_members(self, row: int) -> RowMembers:
        """Return shard, key and members of one row; for a single one quicker than `extents`."""

    def members(self, row: int) -> list[Member]:
        """Return the members of one row, in the order of the tar."""
        members = [Member(*extent) for extent in self.row_members(row).members]
        return sorted(members, key=lambda member: member.offset)

    @abstractmethod
    def field_totals(self, rows: IntArray | None = None) -> dict[str, tuple[int, int]]:
        """For each field, how many of these rows have it and its bytes in all; None stands for all rows."""

    @abstractmethod
    def mean_bytes(self, number: int, field: str) -> float:
        """Return the mean size of a field in one shard, over all its samples; about, where that takes no reading."""

    @abstractmethod
    def rows_per_read(self, number: int, fields: Sequence[str] | None) -> int:
        """Return how many rows of a shard are good to read at once."""

    @abstractmethod
    def key(self, row: int) -> str:
        """Return the key of one row."""

    @abstractmethod
    def keys(self, rows: IntArray) -> list[str]:
        """Return the keys of these rows."""

    @abstractmethod
    def shard_keys(self, number: int) -> pa.StringArray:
        """Return the keys of one shard."""

    @abstractmethod
    def find(self, key: str) -> int:
        """Return the first row with this key. Raises SampleKeyError, which suggests near ones."""

    # --------------------------------------------------------------------------------------------------- deleted rows

    @abstractmethod
    def deleted(self) -> RowView:
        """Return the rows that are deleted."""

    def live(self) -> RowView:
        """Return the rows that are not deleted."""
        deleted, whole = self.deleted(), RowView.whole(len(self))
        return whole.without(deleted) if len(deleted) else whole

    # -------------------------------------------------------------------------------------------------------- columns

    def column_names(self) -> tuple[str, ...]:
        """Return every metadata column."""
        return tuple(self.column_types())

    @abstractmethod
    def columns_of(self, number: int) -> tuple[str, ...]:
        """Return the metadata columns of one shard."""

    @abstractmethod
    def column_types(self, most_shards: int | None = None) -> dict[str, pa.DataType]:
        """Return the type of each metadata column. Of indexes that are opened for it, only so many are."""

    @abstractmethod
    def columns_left_out(self, most_shards: int | None = None) -> dict[str, str]:
        """Return columns that the index does not have although samples have values for them, and why."""

    @abstractmethod
    def values(self, row: int) -> dict[str, Any]:
        """Return the value of each metadata column that the index has of one row."""

    @abstractmethod
    def unanswerable(self, name: str) -> str | None:
        """Return why samples may have values under a name, or a longer one that ends so, which the index lacks."""

    @abstractmethod
    def columns(
        self, names: Sequence[str], rows: RowView | None = None, *, strict: bool = True, as_float: bool = False
    ) -> pa.Table:
        """Return metadata columns of all rows, or of those of a view; null where a sample has no such value.

        A name that is no column is one of nulls, unless samples may have values under it that are not in the index:
        then FieldError is raised, as for a column that is not of one type. Unless ``strict``, members that do not
        decode have no value. ``as_float`` rounds integers as Python does.
        """


def key_variants(key: str, width: int) -> Iterator[str]:
    """Yield what the same key may look like: a number with other zeros before it, a file's name, a path."""
    plain = key.strip().replace("\\", "/").removeprefix("./")
    folder, slash, base = plain.rpartition("/")
    stem = base.partition(".")[0]
    for other in (plain, folder + slash + stem, base, stem, stem.lower(), stem.upper()):
        yield other
        if other.isascii() and other.isdigit():
            number = other.lstrip("0") or "0"
            yield from (number.zfill(width), number)


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
