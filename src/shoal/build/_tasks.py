"""Build one shard: the task, the worker that runs it, and the encoding of items as samples."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal._typing import IntArray
from shoal.codec._codec import EncodeOptions
from shoal.errors import ErrorBudgetExceeded, ShoalError, WriteError
from shoal.formats._member_values import as_member, member_key, member_name
from shoal.shard._copy import CopySource, copy_samples
from shoal.shard._manifest import ShardRecord
from shoal.shard._member_names import META_MEMBER, check_key
from shoal.shard._row_view import RowView
from shoal.shard._shard_file import EncodedSample, SampleEncoder, ShardFile, WrittenShard
from shoal.shard._source import ShardSource
from shoal.shard._stored_rows import save_rows
from shoal.shard._table import ShardRef
from shoal.store._url import join_url

from ._digests import digest_function
from ._items import Items, JoinedItems, Read, ShardItems

__all__ = [
    "BuiltShard",
    "Control",
    "Failure",
    "OpenShard",
    "SampleBuilder",
    "ShardOutput",
    "ShardTask",
    "ShardWork",
    "make_failure",
    "over_budget",
]

_READ_BYTES = 4 << 20
"""About how many bytes of items are read at a time."""
_MAX_READ_ITEMS = 256


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
class ShardOutput:
    """Where shards are written, and how they are stored."""

    folder: str
    """The dataset's root, or the staging folder of shards that will replace others."""
    compression: str | None = None
    level: int | None = None
    mtime: int = 0
    hashed: bool = False
    durable: bool = False
    meta: bytes = b""
    """The dataset's metadata, which each shard has as a member after its samples."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """The items of one shard, in order."""

    path: str
    split: str
    items: IntArray


@dataclass(frozen=True, slots=True)
class BuiltShard:
    """A shard that was written, with its index; or one without samples, which was not written."""

    split: str
    record: ShardRecord
    failures: tuple[Failure, ...] = ()
    dropped: int = 0
    """Items of which the function made nothing."""
    duplicates: int = 0
    """Items left out because an earlier one has the same content; only streams find them this late."""
    items: int = 0
    """For a stream, how many items were read for it, including those left out."""
    mark: int = 0
    """A checksum of those items."""


def _ignore_progress(samples: int, size: int) -> None:
    pass


def _no_check() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Control:
    """What a task can call of the process that started it."""

    tell: Callable[[int, int], None] = _ignore_progress
    """Called now and then with the samples and bytes written since."""
    check: Callable[[], None] = _no_check
    """Called before a shard is committed; exits the process where its parent has exited."""


def make_failure(item: int, key: object, shard: str, error: Exception) -> Failure:
    """Make the record of an item that failed with ``error``."""
    known_key = error.key if isinstance(error, ShoalError) else None
    text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    return Failure(item, key if isinstance(key, str) else known_key, shard, text)


def over_budget(failures: Sequence[Failure], budget: int, cause: Exception | None = None) -> ErrorBudgetExceeded:
    """Make the error that ends a build with too many failures."""
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
    """A shard that is being written. Refuses keys that it has already."""

    def __init__(self, output: ShardOutput, path: str) -> None:
        self._output = output
        self.path = path
        url = join_url(output.folder, path)
        self._file = ShardFile(
            url, compression=output.compression, level=output.level, mtime=output.mtime, hashed=output.hashed
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
        """Write a sample. Raises WriteError, and writes nothing, when the shard has its key already."""
        if sample[0] in self._keys:
            hint = "readers would take both for one sample; keys='number' gives each its own"
            raise WriteError("the key is in this shard already", key=sample[0], hint=hint)
        self._keys.add(sample[0])
        self._file.write(sample)

    def commit(self) -> ShardRecord:
        """Commit the shard, then its index. A shard without samples is not written."""
        if not self.samples:
            self._file.abort()
            return ShardRecord(self.path, 0, 0)
        if self._output.meta:
            self._file.write_extra(META_MEMBER, self._output.meta)
        return save_record(self._file.commit(durable=self._output.durable), self._output, self.path)

    def abort(self) -> None:
        """Discard the shard."""
        self._file.abort()


def save_record(written: WrittenShard, output: ShardOutput, path: str) -> ShardRecord:
    """Save the index of a shard that was written, and return its record for the manifest."""
    save_rows(written.index, output.folder, path)
    keys = written.index.keys
    first, last = keys[0].as_py(), keys[-1].as_py()
    compression = output.compression
    return ShardRecord(path, len(keys), written.size, first, last, compression, written.sha256, written.fields)


@dataclass(frozen=True)
class ShardWork:
    """Builds any shard of a plan. Pickled to the workers."""

    items: Items
    builder: SampleBuilder
    output: ShardOutput
    budget: int
    """How many items may fail; a shard that alone has more ends the build."""

    def __call__(self, task: ShardTask, control: Control) -> BuiltShard:
        """Build one shard. Raises ErrorBudgetExceeded, StoreError, and any error that is not of a single item."""
        if self._copied_shards is not None:
            built = self._copy(task, control, self._copied_shards)
            if built is not None:
                return built
        return _ShardBuild(self, task, control).run()

    @functools.cached_property
    def _copied_shards(self) -> _CopiedShards | None:
        """The shards whose samples are copied unchanged; None where samples have to be read and encoded."""
        return _find_copied_shards(self.items) if self.builder.copies and self.output.compression is None else None

    def _copy(self, task: ShardTask, control: Control, copied: _CopiedShards) -> BuiltShard | None:
        output = self.output
        written = copy_samples(
            join_url(output.folder, task.path),
            copied.source,
            copied.rows.rows_at(task.items),
            hold=copied.hold,
            extra=[(META_MEMBER, output.meta)] if output.meta else [],
            hashed=output.hashed,
            durable=output.durable,
            before_commit=control.check,
            tell=control.tell,
        )
        return None if written is None else BuiltShard(task.split, save_record(written, output, task.path))


@dataclass(frozen=True, slots=True)
class _CopiedShards:
    """Shards to copy from: one source of all, the row in it of each item, and what copying needs of each shard."""

    source: ShardSource
    rows: RowView
    hold: Callable[[int], CopySource]


def _find_copied_shards(items: Items) -> _CopiedShards | None:
    all_parts = items.parts if isinstance(items, JoinedItems) else (items,)
    parts = [part for part in all_parts if isinstance(part, ShardItems)]
    if len(parts) < len(all_parts) or len({part.source.rule for part in parts}) > 1:
        return None
    if len(parts) == 1:
        return _CopiedShards(parts[0].source, parts[0].rows, parts[0].copy_source)
    refs = [ref for part in parts for ref in _counted_refs(part.source)]
    first = parts[0].source
    starts = np.cumsum([0, *(len(part.source) for part in parts)]).tolist()
    rows = RowView.concat([part.rows.shifted(start) for part, start in zip(parts, starts, strict=False)])
    shards = np.cumsum([0, *(len(part.source.shards) for part in parts)]).tolist()

    def hold(number: int) -> CopySource:
        at = bisect.bisect_right(shards, number) - 1
        return parts[at].copy_source(number - shards[at])

    return _CopiedShards(ShardSource(refs, rule=first.rule, verify=first.verify), rows, hold)


def _counted_refs(source: ShardSource) -> list[ShardRef]:
    """Return the shards of a source with their numbers of samples."""
    counts = np.diff(source.starts).tolist()
    return [replace(ref, samples=count, rule=source.rule) for ref, count in zip(source.shards, counts, strict=True)]


@dataclass
class _ShardBuild:
    """One shard that is built by reading and encoding its items."""

    work: ShardWork
    task: ShardTask
    control: Control
    failures: list[Failure] = field(default_factory=list)
    dropped: int = 0

    def run(self) -> BuiltShard:
        shard = OpenShard(self.work.output, self.task.path)
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
        """Yield items in groups of a few megabytes, judged by the bytes that the last group took."""
        numbers, at, count = self.task.items, 0, 1
        while at < len(numbers):
            before, own = shard.size, numbers[at : at + count]
            yield own.tolist(), self.work.items.read(own)
            at += len(own)
            written = shard.size - before
            self.control.tell(len(own), written)
            if written < _READ_BYTES // 2:
                count = min(2 * count, _MAX_READ_ITEMS)
            elif written > _READ_BYTES:
                count = max(count // 2, 1)

    def _write_all(self, shard: OpenShard, numbers: list[int], reads: list[Read]) -> None:
        for number, read in zip(numbers, reads, strict=True):
            try:
                if isinstance(read, Exception):
                    raise read
                samples = self.work.builder.make(number, read)
            except Exception as error:  # noqa: BLE001 - only this item fails
                self._fail(number, read, error)
                continue
            self.dropped += not samples
            for sample in samples:
                self._write(shard, number, sample)

    def _write(self, shard: OpenShard, number: int, sample: EncodedSample) -> None:
        try:
            shard.write(sample)
        except WriteError as error:
            self._fail(number, {"__key__": sample[0]}, error)

    def _fail(self, number: int, read: Read, error: Exception) -> None:
        key = read.get("__key__") if isinstance(read, dict) else None
        self.failures.append(make_failure(number, key, self.task.path, error))
        if len(self.failures) > self.work.budget:
            raise over_budget(self.failures, self.work.budget, error)


class SampleBuilder:
    """Turns items into encoded samples. Pickled to the workers; the same item gives the same bytes in each."""

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
        self._make_encoder()

    def _make_encoder(self) -> None:
        self._encoder = SampleEncoder(EncodeOptions(allow_pickle=self._allow_pickle), sort_fields=self._sort_fields)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encoder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_encoder()

    @property
    def mark(self) -> list[Any]:
        """The values that decide what is made of an item."""
        return [digest_function(self.function), self._numbered, self._prefixes, self._sort_fields, self._allow_pickle]

    @property
    def copies(self) -> bool:
        """Whether samples stay as they are, including their keys."""
        return self.function is None and not self._numbered and not self._prefixes and not self._sort_fields

    def make(self, number: int, item: Any) -> list[EncodedSample]:
        """The samples of one item: one, none where the function gives None, or as many as its list has.

        Raises what the function raises, and WriteError, UnsafeNameError or EncodeError.
        """
        if self.function is None:
            return [self._encode(number, item, None)]
        item_key = item.get("__key__") if isinstance(item, Mapping) else None  # before the function may change it
        made = self.function(item)
        if made is None:
            return []
        if isinstance(made, (Mapping, tuple)) or hasattr(type(made), "as_wds"):
            return [self._encode(number, made, item_key)]
        if not isinstance(made, Iterable) or isinstance(made, (str, bytes)):
            raise _not_a_sample(made)
        return [self._encode(number, one, item_key, f"-{place}") for place, one in enumerate(made)]

    def _encode(self, number: int, sample: Any, item_key: Any, suffix: str = "") -> EncodedSample:
        own_key, fields = _key_and_fields(sample)
        key = self._key(number, item_key if own_key is None else own_key)
        if suffix and (own_key is None or self._numbered):  # several samples of one item
            key += suffix
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


def _key_and_fields(sample: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the key, or None, and the fields of a sample that a function or a source gives."""
    key, fields = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
    if not isinstance(fields, Mapping):
        fields = getattr(fields, "as_wds", None)
    if not isinstance(fields, Mapping):
        raise _not_a_sample(sample)
    return fields.get("__key__") if key is None else key, fields


def _not_a_sample(value: Any) -> WriteError:
    expected = "a mapping, a (key, mapping) pair or a packable"
    return WriteError("this is no sample", expected=expected, found=type(value).__name__)


def _as_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields under names that tell the type of their value; fields that are None are left out."""
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
