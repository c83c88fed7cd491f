"""Sources that give samples one after the other, and only so: one process reads, workers make, one process writes.

Batches of samples go to the workers and come back encoded; they are written in the order in which they were read, so
the bytes are those of a build by one process. Shards are cut as they fill. A rerun reads the source again and passes
over what is in finished shards, comparing a checksum of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import WriteError
from shoal.shard import EncodedSample

from ._dedupe import content_hash
from ._digests import crc_of
from ._engines import Engine
from ._plan import PlanOptions, is_sampled, shard_path, split_by_hash
from ._tasks import BuiltShard, Control, Failure, OpenShard, SampleBuilder, Target, failure_of, over_budget

__all__ = ["StreamBuild"]

_BATCH = 64
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Item:
    """An item on its way: where it goes, and its checksum."""

    number: int
    split: str
    crc: int
    sample: Any


_Batch = tuple[_Item, ...]


Made = list[EncodedSample] | Failure


@dataclass(frozen=True, slots=True)
class _Making:
    """The work of making samples: what a worker needs."""

    maker: SampleBuilder

    def __call__(self, batch: _Batch, control: Control) -> list[Made]:
        return [self._made(item) for item in batch]

    def _made(self, item: _Item) -> Made:
        try:
            return self.maker.make(item.number, item.sample)
        except Exception as error:  # noqa: BLE001 - one item's trouble is not another's
            key = item.sample.get("__key__") if isinstance(item.sample, dict) else None
            return failure_of(item.number, key, "", error)


@dataclass
class _Filling:
    """The shard of one split that is being filled."""

    shard: OpenShard
    failures: list[Failure] = field(default_factory=list)
    dropped: int = 0
    items: int = 0
    mark: int = 0


@dataclass
class StreamBuild:
    """One run over a stream."""

    maker: SampleBuilder
    target: Target
    options: PlanOptions
    dedupe: tuple[str, ...] | bool
    budget: int
    add: Callable[[BuiltShard], None]
    """Called with each shard when it is there."""
    tell: Callable[[int, int], None]
    failed: int = 0
    """Items that failed in earlier runs."""
    duplicates: int = 0
    _open: dict[str, _Filling] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def run(self, samples: Iterable[Any], engine: Engine, done: Iterable[BuiltShard]) -> None:
        """Build all shards that are not done. Raises what reading the source raises."""
        finished = list(done)
        self.failed = sum(len(built.failures) for built in finished)
        for built in finished:
            self._numbers[built.split] = self._numbers.get(built.split, 0) + 1
        try:
            batches = self._batches(samples, finished)
            for batch, made in engine.run(_Making(self.maker), batches, self.tell, ordered=True):
                for item, outcome in zip(batch, made, strict=True):
                    self._take(item, outcome)
            for split in list(self._open):
                self._finish(split)
        except BaseException:
            for filling in self._open.values():
                filling.shard.abort()
            raise

    # -------------------------------------------------------------------------------------------------------- reading

    def _batches(self, samples: Iterable[Any], finished: list[BuiltShard]) -> Iterator[_Batch]:
        gathered: list[_Item] = []
        size = 0
        for item in _passed_over(self._items(samples), finished):
            gathered.append(item)
            size += _weight(item.sample)
            if len(gathered) >= _BATCH or size >= _BATCH_BYTES:
                yield tuple(gathered)
                gathered, size = [], 0
        if gathered:
            yield tuple(gathered)

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
            yield _Item(number, split_by_hash(number, self.options), crc_of(sample), sample)

    # -------------------------------------------------------------------------------------------------------- writing

    def _take(self, item: _Item, outcome: Made) -> None:
        size = 0 if isinstance(outcome, Failure) else sum(sample[3] for sample in outcome)
        filling = self._room(item.split, size)
        filling.items += 1
        filling.mark = crc_of(item.crc, filling.mark)
        if isinstance(outcome, Failure):
            self._fail(filling, outcome)
            return
        filling.dropped += not outcome
        for sample in outcome:
            try:
                filling.shard.write(sample)
            except WriteError as error:
                self._fail(filling, failure_of(item.number, sample[0], "", error))
        self.tell(1, size)

    def _room(self, split: str, size: int) -> _Filling:
        """The open shard of a split, or a new one when the samples would overfill it."""
        filling = self._open.get(split)
        full = filling is not None and (
            filling.items >= self.options.max_samples
            or (filling.shard.samples and filling.shard.size + size > self.options.max_bytes)
        )
        if full:
            self._finish(split)
            filling = None
        if filling is None:
            path = shard_path(self.options.name, split, self._numbers.get(split, 0))
            filling = self._open[split] = _Filling(OpenShard(self.target, path))
        return filling

    def _fail(self, filling: _Filling, failure: Failure) -> None:
        told = Failure(failure.item, failure.key, filling.shard.path, failure.reason)
        filling.failures.append(told)
        self.failed += 1
        if self.failed > self.budget:
            raise over_budget([told], self.budget)

    def _finish(self, split: str) -> None:
        filling = self._open.pop(split)
        try:
            record = filling.shard.commit()
        except BaseException:
            filling.shard.abort()
            raise
        self._numbers[split] = self._numbers.get(split, 0) + 1
        facts = (tuple(filling.failures), filling.dropped, 0, filling.items, filling.mark)
        self.add(BuiltShard(split, record, *facts))


def _passed_over(items: Iterator[_Item], finished: list[BuiltShard]) -> Iterator[_Item]:
    """The items that are in no finished shard. Raises WriteError when those that are, are not those of before."""
    left: dict[str, list[BuiltShard]] = {}
    for built in finished:
        left.setdefault(built.split, []).append(built)
    seen: dict[str, tuple[int, int]] = {}
    for item in items:
        waiting = left.get(item.split)
        if not waiting:
            yield item
            continue
        count, mark = seen.get(item.split, (0, 0))
        count, mark = count + 1, crc_of(item.crc, mark)
        if count == waiting[0].items:
            if mark != waiting[0].mark:
                raise _other_samples(waiting[0])
            waiting.pop(0)
            count = mark = 0
        seen[item.split] = (count, mark)
    rest = next((builts[0] for builts in left.values() if builts), None)
    if rest is not None:
        raise _other_samples(rest)


def _other_samples(built: BuiltShard) -> WriteError:
    return WriteError(
        "the samples are not those of the interrupted build",
        shard=built.record.path,
        hint="give it the same samples in the same order, or remove what is there to start over",
    )


def _weight(sample: Any) -> int:
    """About how many bytes a sample holds."""
    values = sample.values() if isinstance(sample, dict) else ()
    sizes = (len(value) if isinstance(value, (bytes, str)) else getattr(value, "nbytes", 0) for value in values)
    return 256 + sum(sizes)
