"""Build shards from a stream of samples: this process reads and writes, workers encode.

Batches of samples go to the workers and come back encoded. They are written in the order in which they were read, so
the bytes do not depend on the number of workers. Shards are cut as they fill. A rerun reads the source again, skips the
items of finished shards, and compares a checksum of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import WriteError
from shoal.shard._shard_file import EncodedSample

from ._dedupe import content_hash
from ._digests import checksum_sample
from ._engines import Engine
from ._plan import PlanOptions, is_sampled, shard_path, split_by_hash
from ._tasks import BuiltShard, Control, Failure, OpenShard, SampleBuilder, ShardOutput, make_failure, over_budget

__all__ = ["StreamBuild"]

_MAX_BATCH_ITEMS = 64
_MAX_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of the stream, with its split and its checksum."""

    number: int
    split: str
    crc: int
    sample: Any


_Batch = tuple[_Item, ...]
_Outcome = list[EncodedSample] | Failure


@dataclass(frozen=True, slots=True)
class _EncodeWork:
    """Encodes batches of items. Pickled to the workers."""

    builder: SampleBuilder

    def __call__(self, batch: _Batch, control: Control) -> list[_Outcome]:
        return [self._encode(item) for item in batch]

    def _encode(self, item: _Item) -> _Outcome:
        try:
            return self.builder.make(item.number, item.sample)
        except Exception as error:  # noqa: BLE001 - only this item fails
            key = item.sample.get("__key__") if isinstance(item.sample, dict) else None
            return make_failure(item.number, key, "", error)


@dataclass
class _OpenSplit:
    """The shard of one split that is being written, and what became of its items."""

    shard: OpenShard
    failures: list[Failure] = field(default_factory=list)
    dropped: int = 0
    items: int = 0
    checksum: int = 0


@dataclass
class StreamBuild:
    """One run over a stream."""

    builder: SampleBuilder
    output: ShardOutput
    options: PlanOptions
    dedupe: tuple[str, ...] | bool
    budget: int
    add: Callable[[BuiltShard], None]
    """Called with each shard when it is written."""
    tell: Callable[[int, int], None]
    failed: int = 0
    """Items that failed, in this run and in earlier ones."""
    duplicates: int = 0
    _open: dict[str, _OpenSplit] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def run(self, samples: Iterable[Any], engine: Engine, done: Iterable[BuiltShard]) -> None:
        """Build all shards but those in ``done``. Raises what reading the source raises."""
        finished = list(done)
        self.failed = sum(len(built.failures) for built in finished)
        for built in finished:
            self._numbers[built.split] = self._numbers.get(built.split, 0) + 1
        try:
            batches = self._batches(samples, finished)
            for batch, outcomes in engine.run(_EncodeWork(self.builder), batches, self.tell, ordered=True):
                for item, outcome in zip(batch, outcomes, strict=True):
                    self._add(item, outcome)
            for split in list(self._open):
                self._finish(split)
        except BaseException:
            for open_split in self._open.values():
                open_split.shard.abort()
            raise

    def _batches(self, samples: Iterable[Any], finished: list[BuiltShard]) -> Iterator[_Batch]:
        batch: list[_Item] = []
        size = 0
        for item in _skip_finished(self._items(samples), finished):
            batch.append(item)
            size += _estimate_bytes(item.sample)
            if len(batch) >= _MAX_BATCH_ITEMS or size >= _MAX_BATCH_BYTES:
                yield tuple(batch)
                batch, size = [], 0
        if batch:
            yield tuple(batch)

    def _items(self, samples: Iterable[Any]) -> Iterator[_Item]:
        """The items that belong to the dataset, each with its split."""
        seen: set[bytes] = set()
        fields = self.dedupe if isinstance(self.dedupe, tuple) else None
        for number, sample in enumerate(samples):
            if not is_sampled(number, self.options):
                continue
            if self.dedupe:
                content = content_hash(sample, fields)
                if content in seen:
                    self.duplicates += 1
                    continue
                seen.add(content)
            yield _Item(number, split_by_hash(number, self.options), checksum_sample(sample), sample)

    def _add(self, item: _Item, outcome: _Outcome) -> None:
        size = 0 if isinstance(outcome, Failure) else sum(sample[3] for sample in outcome)
        open_split = self._shard_for(item.split, size)
        open_split.items += 1
        open_split.checksum = checksum_sample(item.crc, open_split.checksum)
        if isinstance(outcome, Failure):
            self._fail(open_split, outcome)
            return
        open_split.dropped += not outcome
        for sample in outcome:
            try:
                open_split.shard.write(sample)
            except WriteError as error:
                self._fail(open_split, make_failure(item.number, sample[0], "", error))
        self.tell(1, size)

    def _shard_for(self, split: str, size: int) -> _OpenSplit:
        """Return the open shard of a split, or a new one where ``size`` more bytes are too many for it."""
        open_split = self._open.get(split)
        full = open_split is not None and (
            open_split.items >= self.options.max_samples
            or (open_split.shard.samples and open_split.shard.size + size > self.options.max_bytes)
        )
        if full:
            self._finish(split)
            open_split = None
        if open_split is None:
            path = shard_path(self.options.name, split, self._numbers.get(split, 0))
            open_split = self._open[split] = _OpenSplit(OpenShard(self.output, path))
        return open_split

    def _fail(self, open_split: _OpenSplit, failure: Failure) -> None:
        failure = Failure(failure.item, failure.key, open_split.shard.path, failure.reason)
        open_split.failures.append(failure)
        self.failed += 1
        if self.failed > self.budget:
            raise over_budget([failure], self.budget)

    def _finish(self, split: str) -> None:
        open_split = self._open.pop(split)
        try:
            record = open_split.shard.commit()
        except BaseException:
            open_split.shard.abort()
            raise
        self._numbers[split] = self._numbers.get(split, 0) + 1
        facts = (tuple(open_split.failures), open_split.dropped, 0, open_split.items, open_split.checksum)
        self.add(BuiltShard(split, record, *facts))


def _skip_finished(items: Iterator[_Item], finished: list[BuiltShard]) -> Iterator[_Item]:
    """Yield the items that are in no finished shard. Raises WriteError where those in one have changed."""
    left: dict[str, list[BuiltShard]] = {}
    for built in finished:
        left.setdefault(built.split, []).append(built)
    seen: dict[str, tuple[int, int]] = {}
    for item in items:
        waiting = left.get(item.split)
        if not waiting:
            yield item
            continue
        count, checksum = seen.get(item.split, (0, 0))
        count, checksum = count + 1, checksum_sample(item.crc, checksum)
        if count == waiting[0].items:
            if checksum != waiting[0].mark:
                raise _changed_samples_error(waiting[0])
            waiting.pop(0)
            count = checksum = 0
        seen[item.split] = (count, checksum)
    rest = next((builts[0] for builts in left.values() if builts), None)
    if rest is not None:
        raise _changed_samples_error(rest)


def _changed_samples_error(built: BuiltShard) -> WriteError:
    return WriteError(
        "the samples are not those of the interrupted build",
        shard=built.record.path,
        hint="give it the same samples in the same order, or remove what is there to start over",
    )


def _estimate_bytes(sample: Any) -> int:
    """About how many bytes a sample holds."""
    values = sample.values() if isinstance(sample, dict) else ()
    sizes = (len(value) if isinstance(value, (bytes, str)) else getattr(value, "nbytes", 0) for value in values)
    return 256 + sum(sizes)
