"""`build_shards`: any source to shards, in parallel, resumable, the same bytes whoever does the work."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np

from shoal.errors import OptionError, WriteError
from shoal.shard import WEBDATASET_RULE, KeyRule, WriteOptions

from ._dedupe import first_of_each, forget_hashes
from ._engines import Engine, LocalEngine, RayEngine
from ._items import Items
from ._journal import BuildJournal, BuildStart, BuildTarget, place_of
from ._plan import Plan, PlanOptions, plan_shards
from ._report import BuildProgress, BuildReport, Meter, metered, report_of
from ._sources import BuildSourceOptions, FolderItems, Stream, open_items, parse_fetch
from ._stream import StreamBuild
from ._tasks import BuiltShard, SampleBuilder, ShardTask, ShardWork, Target, over_budget

__all__ = ["Build", "build_shards", "engine_of", "run_build"]

PathLike = str | os.PathLike[str]
Splits = Mapping[str, float] | Sequence[tuple[str, float]]
_PROBES = 32


@dataclass(frozen=True)
class Build:
    """All that is asked of one build."""

    place: BuildTarget
    plan: PlanOptions
    write: WriteOptions
    maker: SampleBuilder
    engine: Engine
    dedupe: tuple[str, ...] | bool = False
    budget: float = 0
    retry: bool = False
    overwrite: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    """Other options that change what is written."""


def build_shards(
    source: Any,
    out: PathLike,
    function: Callable[[Any], Any] | None = None,
    *,
    format: str | None = None,  # noqa: A002 - the word users expect
    max_samples: int = 10_000,
    max_bytes: int = 1 << 30,
    split: str | None = None,
    splits: Splits | None = None,
    sample: float | None = None,
    shuffle: bool = False,
    seed: int = 0,
    dedupe: bool | Sequence[str] = False,
    fetch: str | Sequence[str] | Mapping[str, str | None] | None = None,
    base: PathLike | None = None,
    labels: bool | None = None,
    rule: KeyRule = WEBDATASET_RULE,
    keys: Literal["keep", "number"] = "keep",
    field_order: Literal["given", "sorted"] = "given",
    compression: str | None = None,
    level: int | None = None,
    hashed: bool = False,
    durable: bool = False,
    metadata: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    error_budget: float = 0,
    retry: bool = False,
    workers: int | None = None,
    engine: str | Engine = "local",
    overwrite: bool = False,
    progress: bool | Callable[[BuildProgress], object] | None = None,
) -> BuildReport:
    """Build a dataset of tar shards from a source; give a report of what is in it and what is not.

    Args:
        source: A folder of files (samples by name, or images in a folder for each class), a file, a pattern or URL of
            any format that shoal reads, a shoal `Dataset`, a Hugging Face dataset, a list of samples, any iterable or a
            function that gives one; or a list of these, one after the other.
        out: A folder or URL; or a pattern such as ``out/{split}-%06d.tar``.
        function: Called with each sample, in a worker: it gives the sample to write, None to leave it out, or a list of
            samples. Files of a folder and samples of shards come as bytes; rows of a table as values.
        format: The format of the source, where its name does not tell.
        max_samples: Of one shard.
        max_bytes: Of one shard. Shards are as few as these two allow, and as equal in bytes as whole samples let them
            be. Where a source does not tell sizes, some samples are measured, before the function.
        split: The split that all samples are of. Without ``split`` and ``splits``, that of the source, or ``train``. To
            take one split of a dataset, give `Dataset(path, split=...)`.
        splits: Shares by name, ``{"train": 0.9, "validation": 0.1}``; who goes where is drawn by ``seed``.
        sample: Only a share of the items (a float up to 1.0), or this many, drawn by ``seed``.
        shuffle: Write each split in an order drawn by ``seed``.
        seed: Of splits, sample and shuffle.
        dedupe: Leave out items whose content an earlier one has; of all fields, or of those named. Reads the source
            twice.
        fetch: Columns that hold paths or URLs: their bytes become a field called by the extension, or as a mapping
            ``{"url": "jpg"}`` says.
        base: Where relative paths in such columns begin; the table's folder by default.
        labels: Whether the first folder of a file is its class, written as ``cls``. By default where a folder holds
            nothing but images in folders.
        rule: How a file's name becomes a key and a field.
        keys: ``number`` gives every sample the number of its item for a key.
        field_order: ``sorted`` writes the fields of a sample by name.
        compression: ``gzip``, ``zstd``, ``bz2`` or ``xz``.
        level: Of the compression.
        hashed: Keep each shard's sha256.
        durable: Wait until each shard would survive a power cut.
        metadata: What to say of the whole: kept in the manifest, and in each shard.
        allow_pickle: Let fields be pickled.
        error_budget: How many items may fail before that ends the build; a float below 1 is a share of them. Failed
            items are left out and listed in the report with the reason; no other item moves for it.
        retry: Build the shards again that lack items which failed in an earlier run.
        workers: Processes on this machine; as many as it has processors by default.
        engine: ``local``; ``ray``, or the address of a Ray cluster; or an `Engine` of your own.
        overwrite: Replace a dataset that is there, all at once when the new one is whole.
        progress: Show how far it is on stderr, or tell a function; by default where stderr is a terminal.

    The same source and options give the same bytes, for any number of workers, on any engine, however often the build
    was interrupted: run the same call again, and only shards that are not done are built. A build that was finished
    returns its report. A source that cannot be asked for its n-th sample (a generator) is read by this process alone,
    only the function runs in workers; it can be neither shuffled nor found to be finished.

    Raises:
        WriteError: An interrupted build is there that was asked something else, or its source has changed.
        ObjectExistsError: Another dataset is there, and ``overwrite`` was not given.
        ErrorBudgetExceeded: More items failed than may. What is done stays; a rerun goes on.
        WorkerError: A worker died. What is done stays; a rerun goes on.

    Example:
        >>> import shoal
        >>> samples = [{"__key__": f"k{number}", "txt": "hello", "cls": number % 2} for number in range(10)]
        >>> shares = {"train": 0.8, "test": 0.2}
        >>> report = shoal.build_shards(samples, "memory://doc/built", max_samples=4, splits=shares, workers=1)
        >>> [(shard.path, shard.samples) for shard in report.shards]
        [('train-000000.tar', 4), ('train-000001.tar', 4), ('test-000000.tar', 2)]
        >>> len(shoal.Dataset("memory://doc/built", split="test"))
        2
    """
    place = place_of(os.fspath(out))
    if keys not in ("keep", "number"):
        raise OptionError("no such keys", expected="'keep' or 'number'", found=repr(keys))
    fetched = parse_fetch(fetch)
    based = None if base is None else os.fspath(base)
    opening = BuildSourceOptions(format, fetched, based, labels, rule, function is None, place.root)
    items = open_items(source, opening)
    shares = tuple(splits.items() if isinstance(splits, Mapping) else splits or ())
    options = PlanOptions(max_samples, max_bytes, shuffle, seed, sample, shares, split, place.name)
    maker = SampleBuilder(
        function, numbered=keys == "number", sort_fields=field_order == "sorted", allow_pickle=allow_pickle
    )
    build = Build(
        place,
        options,
        WriteOptions(max_samples, max_bytes, compression, level, field_order, 0, hashed, durable, allow_pickle),
        maker,
        engine_of(engine, workers),
        dedupe if isinstance(dedupe, bool) else tuple(dedupe),
        error_budget,
        retry,
        overwrite,
        {**_classes(items), **dict(metadata or {})},
        asked={"fetch": fetched, "base": opening.base},
    )
    return run_build(items, build, progress)


def engine_of(engine: str | Engine, workers: int | None) -> Engine:
    """The engine that a user names. Raises OptionError for one nobody knows."""
    if engine == "local":
        return LocalEngine() if workers is None else LocalEngine(workers)
    if workers is not None:
        raise OptionError("workers are those of this machine", expected="workers with engine='local'", found=engine)
    if not isinstance(engine, str):
        return engine
    if engine == "ray":
        return RayEngine()
    if engine.startswith("ray://") or re.fullmatch(r"\[?[\w.:-]+\]?:\d+|auto", engine):
        return RayEngine(engine)
    raise OptionError("no such engine", expected="'local', 'ray' or the address of a Ray cluster", found=repr(engine))


def _classes(items: Items | Stream) -> dict[str, Any]:
    return {"classes": list(items.classes)} if isinstance(items, FolderItems) and items.classes else {}


def run_build(
    items: Items | Stream, build: Build, progress: bool | Callable[[BuildProgress], object] | None
) -> BuildReport:
    """Do a build, or what is left of it."""
    begin = time.monotonic()
    metadata = _plain(build.metadata)
    meta = msgspec.json.encode(metadata) if metadata else b""
    with metered(progress) as meter:
        run = _run_stream if isinstance(items, Stream) else _run_planned
        builts, journal, written, duplicates = run(items, build, meta, meter)
        report = report_of(build.place.root, builts, duplicates=duplicates, written=written)
        if journal is not None:
            journal.publish(report, builts, metadata, build.schema)
        if build.dedupe:
            forget_hashes(build.place.side("build"))
        meter.finish()
    return replace(report, seconds=time.monotonic() - begin)


_Done = tuple[list[BuiltShard], BuildJournal | None, int, int]
"""The shards, the journal unless all was done before, how many shards were written now, and duplicates."""


def _run_planned(items: Any, build: Build, meta: bytes, meter: Meter) -> _Done:
    kept = _kept(items, build, meter)
    plan = _planned(items, build, meta, kept)
    if not plan.shards:
        raise WriteError("there is nothing to write", expected="at least one item", found=f"{len(items)} in the source")
    duplicates = 0 if kept is None else len(items) - len(kept)
    facts = _facts(build, {"source": items.identity, "count": len(items)}, plan)
    journal = BuildJournal(build.place, facts)
    start = journal.start(overwrite=build.overwrite, retry=build.retry)
    if not start.finished:
        journal.write_plan({"path": one.path, "split": one.split, "items": one.stop - one.start} for one in plan.shards)
    written = 0 if start.finished else _build_rest(items, build, meta, meter, plan, journal, start)
    builts = [start.done[shard.path] for shard in plan.shards]
    return builts, None if start.finished else journal, written, duplicates


def _kept(items: Items, build: Build, meter: Meter) -> Any:
    if not build.dedupe:
        return None
    meter.start("hashing", len(items))
    fields = build.dedupe if isinstance(build.dedupe, tuple) else None
    return first_of_each(items, fields, build.engine, build.place.side("build"), meter.tell)


def _planned(items: Items, build: Build, meta: bytes, kept: Any) -> Plan:
    options = build.plan
    if meta:
        options = replace(options, max_bytes=max(options.max_bytes - _member_bytes(meta), 1))
    sizes = items.sizes()
    if sizes is None:
        options = replace(options, max_samples=_most_samples(items, build.maker, options))
    return plan_shards(len(items), options, sizes=sizes, splits=items.splits(), kept=kept)


def _member_bytes(data: bytes) -> int:
    return 512 + -(-len(data) // 512) * 512


def _most_samples(items: Items, maker: SampleBuilder, options: PlanOptions) -> int:
    """How many samples fill a shard, by the mean size of some: those that fail are not counted."""
    if len(items) * 512 <= options.max_bytes // 1024:
        return options.max_samples  # too few to fill a shard, unless each is large, and then nobody has asked
    measured = SampleBuilder(None)
    sizes = []
    for number in np.unique(np.linspace(0, len(items) - 1, min(_PROBES, len(items))).astype(np.int64)):
        (read,) = items.read(np.array([number]))
        try:
            if not isinstance(read, Exception):
                sizes.append(sum(sample[3] for sample in measured.make(int(number), read)))
        except Exception:  # noqa: BLE001, S112 - it is told of when its turn comes
            continue
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    return max(1, min(options.max_samples, int(options.max_bytes / mean))) if mean else options.max_samples


def _build_rest(
    items: Items, build: Build, meta: bytes, meter: Meter, plan: Plan, journal: BuildJournal, start: BuildStart
) -> int:
    """Build the shards that are not done; give how many they were."""
    journal.sweep()
    tasks = [
        ShardTask(shard.path, shard.split, plan.items_of(shard))
        for shard in plan.shards
        if shard.path not in start.done
    ]
    left = sum(len(task.items) for task in tasks)
    failures = [failure for built in start.done.values() for failure in built.failures]
    budget = _budget(build.budget, len(plan.items))
    meter.start("building", len(plan.items), len(plan.items) - left)
    meter.shards, meter.failures = len(start.done), len(failures)
    work = ShardWork(items, build.maker, _target(build, start.folder, meta), budget)
    try:
        for _, built in build.engine.run(work, tasks, meter.tell):
            journal.add(built)
            start.done[built.record.path] = built
            failures += built.failures
            meter.shards, meter.failures = len(start.done), len(failures)
            if len(failures) > budget:
                raise over_budget(failures, budget)
    except BaseException:
        journal.sweep()
        raise
    return len(tasks)


def _budget(asked: float, count: int | None) -> int:
    if asked < 0:
        raise OptionError("an error budget counts items", expected="0 or more, or a share", found=asked)
    if type(asked) is not float or asked >= 1:
        return int(asked)
    if count is None:
        raise OptionError("a stream has no length to take a share of", expected="a number of items", found=asked)
    return int(asked * count)


def _target(build: Build, folder: str, meta: bytes) -> Target:
    write = build.write
    return Target(folder, write.compression, write.level, write.mtime, write.hashed, write.durable, meta)


def _run_stream(items: Any, build: Build, meta: bytes, meter: Meter) -> _Done:
    if build.plan.shuffle or (build.plan.sample is not None and type(build.plan.sample) is not float):
        raise OptionError(
            "a stream cannot be shuffled, nor a number of its samples be drawn",
            expected="a source with a length, or sample as a share",
            hint="build it first, then shuffle with shoal.build.reshard",
        )
    if build.retry:
        raise OptionError("a stream's samples cannot be asked for again", expected="retry=False")
    options = build.plan
    if meta:
        options = replace(options, max_bytes=max(options.max_bytes - _member_bytes(meta), 1))
    journal = BuildJournal(build.place, _facts(build, {"source": "a stream", "count": None}, None))
    start = journal.start(overwrite=build.overwrite, may_be_finished=False)
    journal.sweep()
    builts = list(start.done.values())
    meter.start("building", None)
    written = 0

    def add(built: BuiltShard) -> None:
        nonlocal written
        journal.add(built)
        builts.append(built)
        written += 1
        meter.shards += 1
        meter.failures += len(built.failures)

    target = _target(build, start.folder, meta)
    stream = StreamBuild(build.maker, target, options, build.dedupe, _budget(build.budget, None), add, meter.tell)
    stream.run(items, build.engine, start.done.values())
    if not builts:
        raise WriteError("the source gave no samples", expected="at least one")
    return _by_name(builts), journal, written, stream.duplicates


def _by_name(builts: list[BuiltShard]) -> list[BuiltShard]:
    """In the order of their splits, then as written: two runs may have finished them in another order."""
    splits = sorted({built.split for built in builts})
    return [built for split in splits for built in builts if built.split == split]


def _facts(build: Build, source: dict[str, Any], plan: Plan | None) -> dict[str, Any]:
    """All that changes what is written, as JSON gives it back."""
    options = {**asdict(build.plan), **asdict(build.write), "dedupe": build.dedupe, **build.asked}
    options = {**options, "metadata": build.metadata}
    return _plain(
        {
            **source,
            "function": build.maker.mark,
            "options": options,
            "plan": None if plan is None else plan.fingerprint,
        }
    )


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON would give it back. Raises OptionError when it cannot be JSON."""
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(value)))
    except (TypeError, ValueError) as error:
        raise OptionError("metadata must be JSON", found=str(error)) from error
    return found
