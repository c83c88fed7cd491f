"""The work for one shard, as any process does it."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.codec import EncodeOptions
from shoal.errors import ErrorBudgetExceeded, ShoalError, WriteError
from shoal.formats import as_member, member_key, member_name
from shoal.shard import (
    META_MEMBER,
    CopySource,
    EncodedSample,
    SampleEncoder,
    ShardFile,
    ShardRecord,
    ShardRef,
    ShardSource,
    WrittenShard,
    check_key,
    copy_samples,
    index_url,
    save_index,
)
from shoal.store import join_url

from ._digests import function_mark
from ._items import Items, JoinedItems, Read, ShardItems

__all__ = [
    "BuiltShard",
    "Control",
    "Failure",
    "OpenShard",
    "SampleBuilder",
    "ShardTask",
    "ShardWork",
    "Target",
    "failure_of",
    "over_budget",
]

Int64 = npt.NDArray[np.int64]


# --------------------------------------------------------------- one shard's work, as any engine runs it in any process


_GOOD_BYTES = 4 << 20
_MOST_ITEMS = 256


@dataclass(frozen=True, slots=True)
class Failure:
    """An item that is not in the dataset, and why."""

    item: int
    """Its number in the source."""
    key: str | None
    shard: str
    """The shard it would have been in."""
    reason: str


@dataclass(frozen=True, slots=True)
class Target:
    """Where shards go, and how they are stored."""

    folder: str
    """The dataset's root, or where shards wait that will replace others."""
    compression: str | None = None
    level: int | None = None
    mtime: int = 0
    hashed: bool = False
    durable: bool = False
    meta: bytes = b""
    """What each shard says of the whole, behind its samples."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """The items of one shard, in order."""

    path: str
    split: str
    items: Int64


@dataclass(frozen=True, slots=True)
class BuiltShard:
    """A shard that is there, with its index. A shard of which nothing was left has no samples, and is not there."""

    split: str
    record: ShardRecord
    failures: tuple[Failure, ...] = ()
    dropped: int = 0
    """Items of which the function made nothing."""
    duplicates: int = 0
    """Items left out because an earlier one has the same content; only streams find them this late."""
    items: int = 0
    """How many items were taken from a stream for it, left out ones included."""
    mark: int = 0
    """A checksum of those."""


def _ignore(samples: int, size: int) -> None:
    """Nobody wants to know."""


def _no_check() -> None:
    """Nobody to ask."""


@dataclass(frozen=True, slots=True)
class Control:
    """What work has of the process that gave it out."""

    tell: Callable[[int, int], None] = _ignore
    """Called now and then with the samples and bytes written since."""
    check: Callable[[], None] = _no_check
    """Called before a shard is shown under its name; ends the process where nobody waits for the shard any more."""


def failure_of(item: int, key: object, shard: str, error: Exception) -> Failure:
    """What became of an item, in words."""
    told = error.key if isinstance(error, ShoalError) else None
    text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    known = key if isinstance(key, str) else told
    return Failure(item, known, shard, text)


def over_budget(failures: Sequence[Failure], budget: int, cause: Exception | None = None) -> ErrorBudgetExceeded:
    """The error that ends a build with too many failures."""
    last = failures[-1]
    error = ErrorBudgetExceeded(
        "too many items failed",
        expected=f"at most {budget}",
        found=len(failures),
        shard=last.shard,
        key=last.key,
        hint=f"last: {last.reason}; raise error_budget to go on without such items",
    )
    error.__cause__ = cause
    return error


class OpenShard:
    """One shard being written, with its keys."""

    def __init__(self, target: Target, path: str) -> None:
        self._target = target
        self.path = path
        url = join_url(target.folder, path)
        self._file = ShardFile(
            url, compression=target.compression, level=target.level, mtime=target.mtime, hashed=target.hashed
        )
        self._keys: set[str] = set()

    @property
    def samples(self) -> int:
        """How many samples are in it."""
        return self._file.samples

    @property
    def size(self) -> int:
        """Its bytes so far."""
        return self._file.size

    def write(self, sample: EncodedSample) -> None:
        """Write a sample. Raises WriteError when its key is there already, and then nothing of it is written."""
        if sample[0] in self._keys:
            hint = "readers would take both for one sample; keys='number' gives each its own"
            raise WriteError("the key is in this shard already", key=sample[0], hint=hint)
        self._keys.add(sample[0])
        self._file.write(sample)

    def commit(self) -> ShardRecord:
        """Show the shard under its name, and then its index; an empty one is not shown."""
        if not self.samples:
            self._file.abort()
            return ShardRecord(self.path, 0, 0)
        if self._target.meta:
            self._file.write_extra(META_MEMBER, self._target.meta)
        return record_written(self._file.commit(durable=self._target.durable), self._target, self.path)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._file.abort()


def record_written(written: WrittenShard, target: Target, path: str) -> ShardRecord:
    """Keep the index of a shard that was written, and say what a manifest says of it."""
    save_index(written.index, index_url(target.folder, path))
    keys = written.index.keys
    first, last = keys[0].as_py(), keys[-1].as_py()
    compression = target.compression
    return ShardRecord(path, len(keys), written.size, first, last, compression, written.sha256, written.fields)


@dataclass(frozen=True)
class ShardWork:
    """What a worker needs to build any shard of a plan."""

    items: Items
    maker: SampleBuilder
    target: Target
    budget: int
    """One shard may not have more failures than all may have."""

    def __call__(self, task: ShardTask, control: Control) -> BuiltShard:
        """Build one shard. Raises ErrorBudgetExceeded, StoreError, and whatever else no single item is to blame for."""
        if self._copied_from is not None:
            copied = self._copy(task, control, self._copied_from)
            if copied is not None:
                return copied
        return _Building(self, task, control).run()

    @functools.cached_property
    def _copied_from(self) -> _Copied | None:
        """Whose samples are to be taken as they are, by number; None where there is something to make of them."""
        return _shards_of(self.items) if self.maker.copies and self.target.compression is None else None

    def _copy(self, task: ShardTask, control: Control, copied: _Copied) -> BuiltShard | None:
        target = self.target
        written = copy_samples(
            join_url(target.folder, task.path),
            copied.source,
            copied.rows[task.items],
            hold=copied.hold,
            extra=[(META_MEMBER, target.meta)] if target.meta else [],
            hashed=target.hashed,
            durable=target.durable,
            before_commit=control.check,
            tell=control.tell,
        )
        return None if written is None else BuiltShard(task.split, record_written(written, target, task.path))


@dataclass(frozen=True, slots=True)
class _Copied:
    """Shards to copy from: all as one source, the number in it of each item, and what is kept of each shard."""

    source: ShardSource
    rows: Int64
    hold: Callable[[int], CopySource]


def _shards_of(items: Items) -> _Copied | None:
    parts = [part for part in _parts_of(items) if isinstance(part, ShardItems)]
    if len(parts) < len(_parts_of(items)) or len({part.source.rule for part in parts}) > 1:
        return None
    if len(parts) == 1:
        return _Copied(parts[0].source, parts[0].rows, parts[0].held)
    refs = [ref for part in parts for ref in _counted(part.source)]
    first = parts[0].source
    starts = np.cumsum([0, *(len(part.source) for part in parts)]).tolist()
    rows = np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=False)])
    shards = np.cumsum([0, *(len(part.source.shards) for part in parts)]).tolist()

    def hold(number: int) -> CopySource:
        at = bisect.bisect_right(shards, number) - 1
        return parts[at].held(number - shards[at])

    return _Copied(ShardSource(refs, rule=first.rule, verify=first.verify), rows, hold)


def _counted(source: ShardSource) -> list[ShardRef]:
    """The shards of a source, which are not to be counted again."""
    counts = np.diff(source.starts).tolist()
    return [replace(ref, samples=count, rule=source.rule) for ref, count in zip(source.shards, counts, strict=True)]


def _parts_of(items: Items) -> Sequence[Items]:
    return items.parts if isinstance(items, JoinedItems) else (items,)


@dataclass
class _Building:
    """The state of one shard's work."""

    work: ShardWork
    task: ShardTask
    control: Control
    failures: list[Failure] = field(default_factory=list)
    dropped: int = 0

    def run(self) -> BuiltShard:
        shard = OpenShard(self.work.target, self.task.path)
        try:
            for numbers, reads in self._reads(shard):
                self._write_all(shard, numbers, reads)
            self.control.check()
            record = shard.commit()
        except BaseException:
            shard.abort()
            raise
        return BuiltShard(self.task.split, record, tuple(self.failures), self.dropped)

    def _reads(self, shard: OpenShard) -> Iterator[tuple[list[int], list[Read]]]:
        """Items some at a time: as many as are a few megabytes, by what the last ones took."""
        numbers, at, count = self.task.items, 0, 1
        while at < len(numbers):
            before, own = shard.size, numbers[at : at + count]
            yield own.tolist(), self.work.items.read(own)
            at += len(own)
            written = shard.size - before
            self.control.tell(len(own), written)
            if written < _GOOD_BYTES // 2:
                count = min(2 * count, _MOST_ITEMS)
            elif written > _GOOD_BYTES:
                count = max(count // 2, 1)

    def _write_all(self, shard: OpenShard, numbers: list[int], reads: list[Read]) -> None:
        for number, read in zip(numbers, reads, strict=True):
            try:
                if isinstance(read, Exception):
                    raise read
                made = self.work.maker.make(number, read)
            except Exception as error:  # noqa: BLE001 - one item's trouble is not another's
                self._fail(number, read, error)
                continue
            self.dropped += not made
            for sample in made:
                self._write(shard, number, sample)

    def _write(self, shard: OpenShard, number: int, sample: EncodedSample) -> None:
        try:
            shard.write(sample)
        except WriteError as error:
            self._fail(number, {"__key__": sample[0]}, error)

    def _fail(self, number: int, read: Read, error: Exception) -> None:
        key = read.get("__key__") if isinstance(read, dict) else None
        self.failures.append(failure_of(number, key, self.task.path, error))
        if len(self.failures) > self.work.budget:
            raise over_budget(self.failures, self.work.budget, error)


# -------------------------------------------------------------------------------- from an item to what is written of it


class SampleBuilder:
    """Turns items into encoded samples. Pickled to workers; the same item gives the same bytes in each."""

    def __init__(
        self,
        function: Callable[[Any], Any] | None = None,
        *,
        numbered: bool = False,
        prefixes: tuple[tuple[int, str], ...] = (),
        sort_fields: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.function = function
        self._numbered = numbered
        self._prefixes = prefixes
        self._sort_fields = sort_fields
        self._allow_pickle = allow_pickle
        self._begin()

    def _begin(self) -> None:
        self._encoder = SampleEncoder(EncodeOptions(allow_pickle=self._allow_pickle), sort_fields=self._sort_fields)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encoder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def mark(self) -> list[Any]:
        """What changes when it would make something else."""
        return [function_mark(self.function), self._numbered, self._prefixes, self._sort_fields, self._allow_pickle]

    @property
    def copies(self) -> bool:
        """Whether samples stay as they are, keys and all."""
        return self.function is None and not self._numbered and not self._prefixes and not self._sort_fields

    def make(self, number: int, item: Any) -> list[EncodedSample]:
        """The samples of one item: one, none where the function gives None, or as many as its list has.

        Raises what the function raises, and WriteError, UnsafeNameError or EncodeError.
        """
        if self.function is None:
            return [self._encoded(number, item, None)]
        own = _key_in(item)  # asked before the function may change it
        made = self.function(item)
        if made is None:
            return []
        if isinstance(made, (Mapping, tuple)) or hasattr(type(made), "as_wds"):
            return [self._encoded(number, made, own)]
        if not isinstance(made, Iterable) or isinstance(made, (str, bytes)):
            raise _no_sample(made)
        return [self._encoded(number, one, own, f"-{place}") for place, one in enumerate(made)]

    def _encoded(self, number: int, sample: Any, own: Any, place: str = "") -> EncodedSample:
        given, fields = _taken(sample)
        key = self._key(number, own if given is None else given)
        if place and (given is None or self._numbered):  # several samples of one item
            key += place
        for name, value in fields.items():
            if type(value) is not bytes and not name.startswith("__"):
                fields = _as_members(fields)
                break
        if "." in key:
            key = member_key(key, fields)
        check_key(key)
        return self._encoder.encode(key, fields)

    def _key(self, number: int, key: Any) -> str:
        if key is None or self._numbered:
            return f"{number:09d}"
        text = key if isinstance(key, str) else str(key)
        for start, prefix in reversed(self._prefixes):
            if number >= start:
                return f"{prefix}/{text}"
        return text


def _key_in(item: Any) -> Any:
    return item.get("__key__") if isinstance(item, Mapping) else None


def _taken(sample: Any) -> tuple[Any, Mapping[str, Any]]:
    """The key, if it has one, and the fields of whatever a function or a source gives."""
    key, fields = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
    if not isinstance(fields, Mapping):
        fields = getattr(fields, "as_wds", None)
    if not isinstance(fields, Mapping):
        raise _no_sample(sample)
    return fields.get("__key__") if key is None else key, fields


def _no_sample(value: Any) -> WriteError:
    expected = "a mapping, a (key, mapping) pair or a packable"
    return WriteError("this is no sample", expected=expected, found=type(value).__name__)


def _as_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values under names that say their type; a field that is None is left out."""
    members: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith("__") or value is None:
            continue
        if type(value) is bytes:
            members[name] = value
            continue
        field, data = as_member(member_name(name), value)
        members[field] = data
    return members
