"""The dataset that is looked at: opened when it is first needed, and what a request may ask of it."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.dataset import Dataset, DatasetDict, load_dataset
from shoal.errors import ManifestError, ObjectChangedError, PositionError, ShoalError, StaleIndexError
from shoal.order import key_of, permute
from shoal.sample import Lens
from shoal.shard import Member, ShardSource, UnfinishedWrite, manifest_url, members_of, unfinished_writes
from shoal.store import join_url, scheme_of, stat, store_for

__all__ = ["Ask", "Looked", "Numbers", "Opened", "Record"]

Int64 = npt.NDArray[np.int64]
_MOST_VIEWS = 16
_SEEDS = 1 << 32
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What to look at, and how."""

    path: str
    split: str | None = None
    sample_type: type[Any] | None = None
    lenses: tuple[Lens[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """Which samples, in which order."""

    where: str = ""
    split: str = ""
    shuffle: int | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The samples that were asked for, by their numbers in the source."""

    count: int
    chosen: Int64 | None = None
    shuffle: int | None = None

    def at(self, start: int, stop: int) -> Int64:
        """Those at these positions, as far as there are any."""
        positions = np.arange(min(start, self.count), min(stop, self.count))
        if self.shuffle is not None and len(positions):
            positions = permute(positions, self.count, key_of(self.shuffle % _SEEDS))
        return positions if self.chosen is None else self.chosen[positions]


@dataclass(frozen=True, slots=True)
class Record:
    """Where one sample lies."""

    number: int
    key: str
    url: str | None = None
    row: int = 0
    shard: int | None = None
    members: tuple[Member, ...] = ()
    crcs: tuple[int | None, ...] = ()
    problem: ShoalError | None = None
    """Why nothing is known of it: its shard cannot be opened."""

    def crc_of(self, field: str) -> int | None:
        """The checksum that the index has of a field."""
        named = zip(self.members, self.crcs, strict=True)
        return next((crc for member, crc in named if member.field == field), None)


class Opened:
    """One dataset for all requests. Threads may share it."""

    def __init__(self, looked: Looked) -> None:
        self.looked = looked
        self._lock = threading.RLock()
        self._dataset: Dataset[Any] | None = None
        self._views: OrderedDict[Ask, Numbers] = OrderedDict()
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

    def numbers(self, ask: Ask) -> Numbers:
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

    def _found(self, dataset: Dataset[Any], ask: Ask) -> Numbers:
        view = dataset.where(ask.where) if ask.where else dataset
        chosen = None if view.is_whole else view.numbers
        if ask.split in self.splits:
            chosen = self._of_split(ask.split, view.numbers)
        return Numbers(len(view) if chosen is None else len(chosen), chosen, ask.shuffle)

    def _of_split(self, split: str, numbers: Int64) -> Int64:
        source, shards = self.shards, self.splits[split]
        if source is None:
            return numbers
        low, high = (int(source.starts[at]) for at in (shards[0], shards[-1] + 1))
        return numbers[(numbers >= low) & (numbers < high)]

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
        some = (source.shard(number).index.columns for number in range(min(shards, len(source.shards))))
        return tuple(dict.fromkeys(name for columns in some for name in columns))

    def records(self, numbers: Int64) -> list[Record]:
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
            shard = source.shard(place)
        except ShoalError as error:
            self.noticed(error)
            return Record(number, f"sample {number:,}", source.shards[place].url, row, place, problem=error)
        members = tuple(members_of(shard.index, row))
        crcs = tuple(_crc(shard.index.fields[member.field].crc, row) for member in members)
        return Record(number, shard.index.keys[row].as_py(), shard.url, row, place, members, crcs)


def _crc(crcs: npt.NDArray[np.uint32] | None, row: int) -> int | None:
    return None if crcs is None else int(crcs[row])


def _typed(looked: Looked) -> dict[str, Any]:
    return {} if looked.sample_type is None else {"sample_type": looked.sample_type}


def _named(looked: Looked) -> Dataset[Any]:
    """What the path names: a reference (``@name``, ``hf://``, ``at://``) by its resolver, all else as it is."""
    path = os.path.expanduser(looked.path)
    if not path.startswith(("@", "hf://", "at://")):
        return Dataset(path, split=looked.split, **_typed(looked))
    found = load_dataset(path, split=looked.split or "all", **_typed(looked))
    return next(iter(found.values())) if isinstance(found, DatasetDict) else found
