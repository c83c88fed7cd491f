"""The open dataset, and the values that pages read from it.

`ViewerSession` is the dataset, and answers which samples a request is about. A `ValuePath` names a value: a field of a
sample, or something inside it. `read_values` reads what a page shows with as few bytes as possible.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from shoal._typing import IntArray
from shoal.codec._dispatch import decode, decode_spec
from shoal.dataset._dataset import Dataset
from shoal.dataset._load import load_dataset
from shoal.dataset._splits import DatasetDict
from shoal.errors import (
    DecodeError,
    FieldError,
    LensNotFoundError,
    ManifestError,
    ObjectChangedError,
    PositionError,
    ShoalError,
    StaleIndexError,
)
from shoal.order._permutation import key_of, permute
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._dict_sample import DictSample
from shoal.sample._lens import Lens, default_network
from shoal.shard._journal import UnfinishedWrite, unfinished_writes
from shoal.shard._manifest import manifest_url
from shoal.shard._read import read_row
from shoal.shard._row_view import RowView
from shoal.shard._shard_rows import Member
from shoal.shard._source import ShardSource
from shoal.store._operations import stat
from shoal.store._registry import store_for
from shoal.store._url import join_url, scheme_of

from ._kinds import Kind, kind_of

__all__ = [
    "CARD_LIMITS",
    "PAGE_LIMITS",
    "Failure",
    "QueryResult",
    "Record",
    "SampleQuery",
    "TooLarge",
    "ValuePath",
    "Values",
    "ViewOptions",
    "ViewerSession",
    "as_mapping",
    "lens_named",
    "lenses_of",
    "read_values",
    "typed_sample",
    "value_at",
]

Values = dict[str, Any]
_MOST_VIEWS = 16
_SEEDS = 1 << 32
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What to look at, and how."""

    path: str
    split: str | None = None
    sample_type: type[Any] | None = None
    lenses: tuple[Lens[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """Which samples, in which order."""

    where: str = ""
    split: str = ""
    shuffle: int | None = None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The samples that were asked for, by their rows in the source; None for all of them."""

    count: int
    chosen: RowView | None = None
    shuffle: int | None = None

    def at(self, start: int, stop: int) -> IntArray:
        """Those at these positions, as far as there are any."""
        positions = np.arange(min(start, self.count), min(stop, self.count))
        if self.shuffle is not None and len(positions):
            positions = permute(positions, self.count, key_of(self.shuffle % _SEEDS))
        return positions if self.chosen is None else self.chosen.rows_at(positions)


@dataclass(frozen=True, slots=True)
class Record:
    """Where one sample lies."""

    number: int
    key: str
    url: str | None = None
    row: int = 0
    shard: int | None = None
    members: tuple[Member, ...] = ()
    problem: ShoalError | None = None
    """Why nothing is known of it: its shard cannot be opened."""

    def crc_of(self, field: str) -> int | None:
        """The checksum that the index has of a field."""
        return next((member.crc32 for member in self.members if member.field == field), None)


class ViewerSession:
    """One dataset for all requests. Threads may share it."""

    def __init__(self, looked: ViewOptions) -> None:
        self.looked = looked
        self._lock = threading.RLock()
        self._dataset: Dataset[Any] | None = None
        self._views: OrderedDict[SampleQuery, QueryResult] = OrderedDict()
        self._writes: tuple[UnfinishedWrite, ...] | None = None
        """What the writers had finished when the dataset was opened; None where they all had ended."""
        self._version: str | None = None
        self._columns: tuple[str, ...] | None = None
        self._seen_writing = False
        self._look_again = 0.0

    @property
    def is_local(self) -> bool:
        """Whether its bytes are on this machine."""
        return scheme_of(self.looked.path) in ("file", "memory")

    @property
    def dataset(self) -> Dataset[Any]:
        """The dataset; of one that is being written, the shards that are finished."""
        with self._lock:
            if self._dataset is None:
                self._version = self._current()
                self._dataset = self._open()
            return self._dataset

    def refresh(self) -> None:
        """Before a page is made: see whether another dataset is there now, or more of one that is being written."""
        with self._lock:
            grown = self._writes is not None and self.writes() != self._writes
            if self._dataset is not None and (grown or self._version != self._current()):
                self.forget()

    def _current(self) -> str | None:
        """What tells this manifest from the next one; None where there is none, or where asking would cost."""
        if not self.is_local:
            return None
        try:
            return stat(manifest_url(self.looked.path)).version
        except ShoalError:
            return None

    def _open(self) -> Dataset[Any]:
        looked = self.looked
        try:
            self._writes = None
            found = _named(looked)
            len(found)  # now, so that what is wrong with it is told before half a page is written
            return found
        except ManifestError:
            writes = self.writes()
            urls = [
                join_url(looked.path, record.path) for write in writes if not write.staged for record in write.shards
            ]
            if not urls:
                raise
            self._writes = writes
            return Dataset(urls, **_typed(looked))

    @property
    def is_unfinished(self) -> bool:
        """Whether it is shown while it is being written."""
        return self._writes is not None

    def writes(self) -> tuple[UnfinishedWrite, ...]:
        """The writes into this folder that have not ended."""
        try:
            path = self.looked.path
            return unfinished_writes(path) if store_for(path).is_folder(path) else ()
        except ShoalError:
            return ()

    @property
    def is_being_written(self) -> bool:
        """Whether somebody writes into this folder, as far as was known two seconds ago; not asked of a remote one."""
        if self._writes is None and self.is_local and time.monotonic() > self._look_again:
            self._seen_writing = bool(self.writes())
            self._look_again = time.monotonic() + _LOOK_SECONDS
        return self._writes is not None or self._seen_writing

    def forget(self) -> None:
        """Open it anew when it is next needed."""
        with self._lock:
            self._dataset = None
            self._columns = None
            self._views.clear()

    def noticed(self, error: Exception) -> None:
        """An error was met: where it says that another dataset is there now, open that one next time."""
        if isinstance(error, StaleIndexError | ManifestError | ObjectChangedError):
            self.forget()

    @property
    def shards(self) -> ShardSource | None:
        """Its tar shards; None where it is of another format."""
        source = self.dataset.source
        return source if isinstance(source, ShardSource) else None

    @property
    def splits(self) -> dict[str, list[int]]:
        """The shards of each split, by number, where a manifest names several splits."""
        source = self.shards
        manifest = None if source is None else source.manifest
        if manifest is None or self.looked.split is not None or len(manifest.splits) < 2:
            return {}
        counts = np.cumsum([0, *(len(records) for records in manifest.splits.values())]).tolist()
        spans = zip(manifest.splits, counts[:-1], counts[1:], strict=True)
        return {name: list(range(start, stop)) for name, start, stop in spans}

    def numbers(self, ask: SampleQuery) -> QueryResult:
        """The samples that are asked for. Raises QueryError."""
        dataset = self.dataset
        with self._lock:
            found = self._views.get(ask)
        if found is None:
            found = self._found(dataset, ask)
            with self._lock:
                self._views[ask] = found
                if len(self._views) > _MOST_VIEWS:
                    self._views.popitem(last=False)
        return found

    def _found(self, dataset: Dataset[Any], ask: SampleQuery) -> QueryResult:
        view = dataset.where(ask.where) if ask.where else dataset
        chosen = None if view.is_whole else view.rows
        if ask.split in self.splits:
            chosen = self._of_split(ask.split, view.rows)
        return QueryResult(len(view) if chosen is None else len(chosen), chosen, ask.shuffle)

    def _of_split(self, split: str, rows: RowView) -> RowView:
        source, shards = self.shards, self.splits[split]
        if source is None:
            return rows
        return rows.within(RowView.from_runs(source.starts[shards[:1]], source.starts[[shards[-1] + 1]]))

    def column_names(self) -> tuple[str, ...]:
        """The columns that a condition may name: of a remote dataset, those of its first shards."""
        if self._columns is None:
            everywhere = self.shards is None or self.is_local
            self._columns = self.dataset.column_names if everywhere else self.first_columns(4)
        return self._columns

    def first_columns(self, shards: int = 1) -> tuple[str, ...]:
        """The columns of the first shards: enough to see how they look."""
        source = self.shards
        if source is None:
            return self.dataset.column_names
        return tuple(source.index.column_types(shards))

    def records(self, numbers: IntArray) -> list[Record]:
        """Where these samples lie. Raises PositionError."""
        source = self.shards
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self.dataset.source):
            raise PositionError("no sample has this number", found=int(numbers.max()))
        if source is None:
            keys = self.dataset.source.keys(numbers)
            return [Record(number, key) for number, key in zip(numbers.tolist(), keys, strict=True)]
        places = np.searchsorted(source.starts, numbers, "right") - 1
        return [self._record(source, *pair) for pair in zip(numbers.tolist(), places.tolist(), strict=True)]

    def _record(self, source: ShardSource, number: int, place: int) -> Record:
        row = number - int(source.starts[place])
        try:
            members = tuple(source.index.members(number))
            key = source.index.keys(np.array([number]))[0]
        except ShoalError as error:
            self.noticed(error)
            return Record(number, f"sample {number:,}", source.shards[place].url, row, place, problem=error)
        return Record(number, key, source.shards[place].url, row, place, members)


def _typed(looked: ViewOptions) -> dict[str, Any]:
    return {} if looked.sample_type is None else {"sample_type": looked.sample_type}


def _named(looked: ViewOptions) -> Dataset[Any]:
    """What the path names: a reference (``@name``, ``hf://``, ``at://``) by its resolver, all else as it is."""
    path = os.path.expanduser(looked.path)
    if not path.startswith(("@", "hf://", "at://")):
        return Dataset(path, split=looked.split, **_typed(looked))
    found = load_dataset(path, split=looked.split or "all", **_typed(looked))
    return next(iter(found.values())) if isinstance(found, DatasetDict) else found


MOST_READ = 64 << 20
"""A field that is larger is not taken whole into memory; it can still be played in parts, and downloaded."""
_SPEC = decode_spec(True, max_bytes=256 << 20)
_PACKED = ("msgpack", "mp", "msg")


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands where a value would, had it been readable."""

    error: ShoalError


@dataclass(frozen=True, slots=True)
class ValuePath:
    """A value: a field of a sample, or something inside it."""

    number: int
    field: str
    at: tuple[str, ...] = ()
    lens: str | None = None
    """Through which lens the sample is seen: None as it is stored, "" as its own type."""
    version: str = ""
    """Changes when the bytes do, so that a browser may keep what it has."""

    def inside(self, name: str) -> ValuePath:
        """The value of this name inside."""
        return replace(self, at=(*self.at, name))

    def url(self, verb: str, **more: str | int) -> str:
        """Where a browser finds it, as ``picture``, ``bytes`` or ``peek``.

        Examples:
            >>> ValuePath(7, "a b.npz", ("x",), version="c0ffee").url("picture", width=320)
            '/picture/7?field=a%20b.npz&at=x&v=c0ffee&width=320'
        """
        pairs = [("field", self.field), *(("at", part) for part in self.at)]
        pairs += [("lens", self.lens)] if self.lens is not None else []
        pairs += [("v", self.version)] if self.version else []
        pairs += [(name, str(value)) for name, value in more.items()]
        return f"/{verb}/{self.number}?{urlencode(pairs, quote_via=quote, errors='replace')}"


def stored_path(record: Record, field: str) -> ValuePath:
    """A stored field of a sample."""
    crc = record.crc_of(field)
    return ValuePath(record.number, field, version="" if crc is None else f"{crc:08x}")


def decoded(field: str, data: bytes) -> Any:
    """The value of a stored field; media, text and pickles stay bytes. Raises CodecError."""
    if kind_of(field) not in ("value", "array"):
        return data
    if field.lower().rpartition(".")[2] in _PACKED:
        try:
            return DictSample.from_bytes(data)
        except DecodeError:  # any other MessagePack than a map
            return decode(field, data, _SPEC)
    return decode(field, data, _SPEC)


def value_at(opened: ViewerSession, place: ValuePath) -> Any:
    """The value at a place: bytes for media and text. Raises ShoalError."""
    if place.lens is not None:
        sample = typed_sample(opened.dataset, place.number)
        value: Any = sample if not place.lens else lens_named(opened, place.lens).get(sample)
        return _walked(value, (place.field, *place.at))
    return _walked(stored_value(opened, place.number, place.field), place.at)


def stored_value(opened: ViewerSession, number: int, field: str) -> Any:
    """One field of one sample, read whole and compared with its checksum. Raises ShoalError."""
    if opened.shards is None:
        return _walked(typed_sample(opened.dataset, number), (field,))
    record = opened.records(np.array([number]))[0]
    size = next((member.size for member in record.members if member.field == field), None)
    if size is None:
        raise FieldError("the sample has no such field", found=field, key=record.key)
    if size > MOST_READ:
        raise DecodeError(
            "the field is too large to be shown", expected=f"at most {MOST_READ} bytes", found=size, hint="download it"
        )
    data = opened.shards.read(np.array([number]), [field])[0][field]
    return decoded(field, bytes(data))


def _walked(value: Any, way: Sequence[str]) -> Any:
    for name in way:
        try:
            value = value[int(name)] if isinstance(value, list | tuple) else as_mapping(value)[name]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise FieldError("there is no such value", found=name) from error
    return value


def as_mapping(value: Any) -> Mapping[str, Any]:
    """A sample, or a value with parts, by the names of its parts.

    Examples:
        >>> as_mapping({"__key__": "k", "txt": "hi"}), as_mapping(3)
        ({'txt': 'hi'}, {'value': 3})
    """
    if isinstance(value, DictSample):
        return value
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items() if name not in ("__key__", "__url__")}
    if is_record(type(value)):
        return {name: getattr(value, name) for name in schema_of(type(value)).names}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"value": value}


def typed_sample(dataset: Dataset[Any], number: int) -> Any:
    """The sample with this number in the source, as the dataset's own type."""
    position = dataset.rows.position_of(number)
    if position is None:
        raise PositionError("no sample has this number", found=number)
    return dataset.samples_at(np.array([position]))[0]


def lenses_of(opened: ViewerSession) -> tuple[Lens[Any, Any], ...]:
    """The lenses through which the samples can be seen: those that were given, and those that are registered."""
    kind = opened.dataset.sample_type
    known = (*opened.looked.lenses, *default_network().lenses())
    fitting = (lens for lens in known if lens.source_type in kind.__mro__)
    return tuple({lens.name: lens for lens in fitting}.values())


def lens_named(opened: ViewerSession, name: str) -> Lens[Any, Any]:
    """One of them. Raises LensNotFoundError."""
    lenses = {lens.name: lens for lens in lenses_of(opened)}
    if name not in lenses:
        raise LensNotFoundError("no such lens", expected=" or ".join(lenses) or "one given by --lens", found=name)
    return lenses[name]


CARD_LIMITS: dict[Kind, int] = {"text": 4096, "svg": 0, "value": 512 << 10}
"""Of which kinds a card shows the value, and how many bytes of it are read. Others a browser asks for one by one."""
PAGE_LIMITS: dict[Kind, int] = {"text": 256 << 10, "svg": 64 << 10, "value": MOST_READ, "array": MOST_READ}
_CUT = ("text", "svg")
"""Kinds of which the beginning is worth something by itself."""


class TooLarge:
    """Stands where a value would, had it been smaller."""


TOO_LARGE = TooLarge()


def read_values(opened: ViewerSession, records: Sequence[Record], limits: dict[Kind, int]) -> list[Values]:
    """For each sample, the values of fields whose kind has a limit; bytes of text may be its beginning only.

    A value that cannot be read is a `Failure`.
    """
    source = opened.shards
    if source is None:
        return [_whole(opened, record) for record in records]
    found: list[Values] = [{} for _ in records]
    together: dict[int, list[int]] = {}
    for at, record in enumerate(records):
        wanted = _wanted(record, limits)
        if record.problem is not None:
            found[at] = {"shard": Failure(record.problem)}
        elif wanted and all(_fits(member, limits) for member in wanted):
            together.setdefault(record.shard or 0, []).append(at)
        else:
            found[at] = {member.field: _one(source, record, member, limits) for member in wanted}
    for shard, places in together.items():
        _read_together(source, shard, [records[at] for at in places], [found[at] for at in places], limits)
    return found


def _whole(opened: ViewerSession, record: Record) -> Values:
    """All of a sample of a format that is no tar."""
    try:
        return dict(as_mapping(typed_sample(opened.dataset, record.number)))
    except ShoalError as error:
        return {"sample": Failure(error)}


def _wanted(record: Record, limits: dict[Kind, int]) -> list[Member]:
    return [member for member in record.members if limits.get(kind_of(member.field), 0)]


def _fits(member: Member, limits: dict[Kind, int]) -> bool:
    return member.size <= limits.get(kind_of(member.field), 0)


def _read_together(
    source: ShardSource, shard: int, records: list[Record], found: list[Values], limits: dict[Kind, int]
) -> None:
    """Neighbours in one read. Where one of them is damaged, one by one, so that the others are shown."""
    names = list(dict.fromkeys(member.field for record in records for member in _wanted(record, limits)))
    rows = np.array([record.row for record in records])
    samples: list[dict[str, Any]] = []
    with contextlib.suppress(ShoalError):
        samples = source.read(rows + source.starts[shard], names)
    for at, record in enumerate(records):
        for member in _wanted(record, limits):
            if samples:
                found[at][member.field] = _value(member.field, samples[at][member.field])
            else:
                found[at][member.field] = _one(source, record, member, limits)


def _one(source: ShardSource, record: Record, member: Member, limits: dict[Kind, int]) -> Any:
    kind, shard = kind_of(member.field), source.shard(record.shard or 0)
    try:
        if _fits(member, limits):
            return _value(member.field, read_row(shard, shard.members(record.row), [member.field])[member.field])
        return shard.read_part(record.row, member.field, 0, limits[kind]) if kind in _CUT else TOO_LARGE
    except ShoalError as error:
        return Failure(error)


def _value(field: str, data: Any) -> Any:
    try:
        return decoded(field, bytes(data))
    except ShoalError as error:
        return Failure(error)
    except RecursionError:
        return Failure(DecodeError("the value is nested too deep to be shown", field=field))
