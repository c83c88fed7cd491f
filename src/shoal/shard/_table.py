"""`Table`: the index of some shards as one, by row and by key. Everything but the members' bytes is asked here."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal._typing import IntArray
from shoal.errors import FieldError, PositionError, SampleKeyError
from shoal.store._url import base_name

from ._arrow_arrays import as_arrow, as_floats, common_type
from ._manifest import ShardRecord, record_of
from ._member_names import WEBDATASET_RULE, KeyRule, key_hint
from ._shard_rows import Member, ShardRows, field_totals, members_of, rows_per_read

__all__ = [
    "KeyFinder",
    "ShardRef",
    "Table",
    "checked_rows",
    "column_error",
    "join_columns",
    "refuse_unknown_column",
]

_HINT_NEIGHBOURS = 3
_SHARDS_SHOWN, _KEYS_SHOWN = 8, 2000


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


class Table:
    """The index of some shards: their rows, keys and metadata columns. Thread-safe.

    ``load`` gives the rows of one shard, and ``count`` how many there are where that is known without loading them.
    """

    def __init__(
        self,
        shards: tuple[ShardRef, ...],
        rule: KeyRule,
        load: Callable[[int], ShardRows],
        count: Callable[[int], int | None],
    ) -> None:
        self.shards = shards
        self.rule = rule
        self.rows_of = load
        """The rows of one shard."""
        self._known_count = count
        self._starts: IntArray | None = None

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def known_length(self) -> int | None:
        """How many rows there are, if the manifest says so or it was asked before: nothing is opened."""
        if self._starts is not None:
            return int(self._starts[-1])
        counts = [count for ref in self.shards if (count := self._listed_count(ref)) is not None]
        return sum(counts) if len(counts) == len(self.shards) else None

    @property
    def starts(self) -> IntArray:
        """The number of each shard's first row, and the total at the end."""
        if self._starts is None:
            counts = [self._count(number, ref) for number, ref in enumerate(self.shards)]
            self._starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        return self._starts

    def _count(self, number: int, ref: ShardRef) -> int:
        known = self._listed_count(ref)
        known = self._known_count(number) if known is None else known
        return len(self.rows_of(number)) if known is None else known

    def _listed_count(self, ref: ShardRef) -> int | None:
        """How many rows the manifest says the shard has, if it was grouped by the rule in use."""
        return ref.samples if ref.rule == self.rule else None

    @functools.cached_property
    def start_list(self) -> list[int]:
        """``starts`` as Python integers."""
        starts: list[int] = self.starts.tolist()
        return starts

    def locate(self, row: int) -> tuple[int, int]:
        """Return the number of the shard that has a row, and the row's number in it. Raises PositionError."""
        starts = self.start_list
        if not 0 <= row < starts[-1]:
            checked_rows(np.array([row]), len(self))  # which raises
        number = bisect.bisect_right(starts, row) - 1
        return number, row - starts[number]

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field of every shard, in the order they appear."""
        return tuple(dict.fromkeys(name for number in range(len(self.shards)) for name in self.fields_of(number)))

    @property
    def first_fields(self) -> tuple[str, ...]:
        """The fields of the first shard, which is all that is opened for it."""
        return self.fields_of(0) if self.shards else ()

    def fields_of(self, number: int) -> tuple[str, ...]:
        """The fields of one shard."""
        ref = self.shards[number]
        return ref.fields if ref.fields is not None and ref.rule == self.rule else tuple(self.rows_of(number).fields)

    def members(self, row: int) -> list[Member]:
        """The members of one row, in the order of the tar."""
        number, own = self.locate(row)
        return members_of(self.rows_of(number), own)

    def field_totals(self, rows: IntArray | None = None) -> dict[str, tuple[int, int]]:
        """For each field, how many of these rows have it and its bytes in all; None stands for all rows."""
        totals: dict[str, tuple[int, int]] = {}
        numbers = None if rows is None else np.searchsorted(self.starts, rows, "right") - 1
        for number in range(len(self.shards)) if numbers is None else np.unique(numbers).tolist():
            own = None if rows is None else rows[numbers == number] - self.starts[number]
            for name, (count, size) in field_totals(self.rows_of(number), own).items():
                known = totals.get(name, (0, 0))
                totals[name] = known[0] + count, known[1] + size
        return totals

    def shard_bytes(self, number: int) -> int:
        """The size of one shard, as it is stored."""
        ref = self.shards[number]
        return self.rows_of(number).facts.size if ref.size is None else ref.size

    def shard_version(self, number: int) -> str:
        """A text that differs when the shard is written anew."""
        facts = self.rows_of(number).facts
        return f"{facts.size}-{facts.head_crc:08x}"

    def record(self, number: int, path: str | None = None) -> ShardRecord:
        """What a manifest says of one shard; ``path`` is the name it has there."""
        return record_of(base_name(self.shards[number].url) if path is None else path, self.rows_of(number))

    def find(self, key: str) -> int:
        """The number of the first row with this key. Raises SampleKeyError, which suggests near ones."""
        found = self._finder.find(key)
        if found is None:
            raise SampleKeyError("no sample has this key", found=repr(key), hint=self._finder.near(key))
        return found

    @functools.cached_property
    def _finder(self) -> KeyFinder:
        return KeyFinder(self.rows_of, self.start_list)

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these rows."""
        rows = checked_rows(rows, len(self))
        numbers = np.searchsorted(self.starts, rows, "right") - 1
        found = [""] * len(rows)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            keys = self.rows_of(number).keys.take(as_arrow(rows[at] - self.starts[number])).to_pylist()
            for position, key in zip(at.tolist(), keys, strict=True):
                found[position] = key
        return found

    def mean_bytes(self, number: int, field: str) -> float:
        """The mean size of a field in one shard, over all its samples."""
        part = self.rows_of(number).fields.get(field)
        return float(part.size.mean()) if part is not None and len(part.size) else 0.0

    def rows_per_read(self, number: int, fields: Sequence[str] | None) -> int:
        """How many rows of a shard are good to read at once."""
        return rows_per_read(self.rows_of(number), fields)

    def columns_of(self, number: int) -> tuple[str, ...]:
        """The metadata columns of one shard."""
        return tuple(self.rows_of(number).columns)

    def shard_keys(self, number: int) -> pa.StringArray:
        """The keys of one shard."""
        return self.rows_of(number).keys

    def column_names(self) -> tuple[str, ...]:
        """Every metadata column, over all shards."""
        return tuple(self.column_types())

    def column_types(self, most_shards: int | None = None) -> dict[str, pa.DataType]:
        """The type of each metadata column, over the first shards or all, as the first that has it stores it."""
        types: dict[str, pa.DataType] = {}
        for number in range(len(self.shards[:most_shards])):
            for name, column in self.rows_of(number).columns.items():
                types.setdefault(name, column.type)
        return types

    def columns_left_out(self, most_shards: int | None = None) -> dict[str, str]:
        """Columns that the index of some shard does not have although samples have values for them, and why."""
        found: dict[str, str] = {}
        for number in range(len(self.shards[:most_shards])):
            found |= self.rows_of(number).facts.dropped
        return found

    def values(self, row: int) -> dict[str, Any]:
        """The value of each metadata column that the index has of one row."""
        number, own = self.locate(row)
        return {name: column[own].as_py() for name, column in self.rows_of(number).columns.items()}

    def unanswerable(self, name: str) -> str | None:
        """Why samples may have values under a name, or a longer one that ends so, which the index does not have."""
        for number in range(len(self.shards)):
            facts = self.rows_of(number).facts
            meant = [known for known in (*facts.dropped, *facts.nested) if known.endswith(f".{name}")]
            reason = next(filter(None, map(facts.unanswerable, (name, *meant))), None)
            if reason is not None:
                return reason
        return None

    def columns(self, names: Sequence[str], *, strict: bool = True, as_float: bool = False) -> pa.Table:
        """Metadata columns, one row a sample; null where a sample has no such value.

        A name that is no column is one of nulls, unless some shard may have values under it that are not in its index:
        then FieldError is raised, as for a column that is not of one type. Unless ``strict``, members that do not
        decode have no value. ``as_float`` rounds integers as Python does.
        """
        parts = [(ref.url, self.rows_of(number)) for number, ref in enumerate(self.shards)]
        return pa.table([_column_of(parts, name, strict, as_float) for name in names], names=list(names))


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
        self._met: dict[int, _KeyRange] = {}

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
        meant = [other for other in _key_variants(key, self._width()) if self.find(other) is not None]
        if meant:
            return f"did you mean {meant[0]!r}?"
        return key_hint(key, list(dict.fromkeys([*self._beside(key), *self._some()])))

    def _keys(self, number: int) -> _KeyRange:
        found = self._met.get(number)
        if found is None:
            found = self._met[number] = _key_range(self._rows_of(number))
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
