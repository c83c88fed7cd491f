"""`build_shards`: write shards from any source, in parallel and resumable."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np

from shoal._typing import IntArray
from shoal.errors import OptionError, WriteError
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._stream import error_limit
from shoal.shard._writer import WriteOptions

from ._dedupe import delete_hashes, find_unique_items
from ._engines import Engine, LocalEngine, RayEngine
from ._fetch import parse_fetch
from ._folders import FolderItems
from ._items import Items
from ._journal import BuildJournal, BuildStart, BuildTarget, parse_build_target
from ._plan import Plan, PlanOptions, plan_shards
from ._report import BuildProgress, BuildReport, ProgressMeter, make_report, progress_meter
from ._sources import BuildSourceOptions, Stream, open_items
from ._stream import StreamBuild
from ._tasks import BuiltShard, SampleBuilder, ShardOutput, ShardTask, ShardWork, over_budget

__all__ = ["Build", "build_shards", "make_engine", "run_build"]

PathLike = str | os.PathLike[str]
Splits = Mapping[str, float] | Sequence[tuple[str, float]]
_PROBES = 32


@dataclass(frozen=True)
class Build:
    """The options of one build."""

    target: BuildTarget
    plan: PlanOptions
    write: WriteOptions
    builder: SampleBuilder
    engine: Engine
    dedupe: tuple[str, ...] | bool = False
    budget: float = 0
    retry: bool = False
    overwrite: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    other_options: dict[str, Any] = field(default_factory=dict)
    """Other options that change what is written: part of the build's identity."""


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

    Examples:
        >>> import shoal
        >>> samples = [{"__key__": f"k{number}", "txt": "hello", "cls": number % 2} for number in range(10)]
        >>> shares = {"train": 0.8, "test": 0.2}
        >>> report = shoal.build_shards(samples, "memory://doc/built", max_samples=4, splits=shares, workers=1)
        >>> [(shard.path, shard.samples) for shard in report.shards]
        [('train-000000.tar', 4), ('train-000001.tar', 4), ('test-000000.tar', 2)]
        >>> len(shoal.Dataset("memory://doc/built", split="test"))
        2
    """
    target = parse_build_target(os.fspath(out))
    if keys not in ("keep", "number"):
        raise OptionError("no such keys", expected="'keep' or 'number'", found=repr(keys))
    columns = parse_fetch(fetch)
    base = None if base is None else os.fspath(base)
    opening = BuildSourceOptions(format, columns, base, labels, rule, function is None, target.root)
    items = open_items(source, opening)
    classes = {"classes": list(items.classes)} if isinstance(items, FolderItems) and items.classes else {}
    shares = tuple(splits.items() if isinstance(splits, Mapping) else splits or ())
    options = PlanOptions(max_samples, max_bytes, shuffle, seed, sample, shares, split, target.name)
    builder = SampleBuilder(
        function, numbered=keys == "number", sort_fields=field_order == "sorted", allow_pickle=allow_pickle
    )
    build = Build(
        target,
        options,
        WriteOptions(max_samples, max_bytes, compression, level, field_order, 0, hashed, durable, allow_pickle),
        builder,
        make_engine(engine, workers),
        dedupe if isinstance(dedupe, bool) else tuple(dedupe),
        error_budget,
        retry,
        overwrite,
        {**classes, **dict(metadata or {})},
        other_options={"fetch": columns, "base": base},
    )
    return run_build(items, build, progress)


def make_engine(engine: str | Engine, workers: int | None) -> Engine:
    """Return the engine that a user names. Raises OptionError for an unknown name."""
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


def run_build(
    items: Items | Stream, build: Build, progress: bool | Callable[[BuildProgress], object] | None
) -> BuildReport:
    """Run a build, or the part of it that earlier runs did not finish."""
    begin = time.monotonic()
    metadata = _to_plain(build.metadata)
    meta = msgspec.json.encode(metadata) if metadata else b""
    with progress_meter(progress) as meter:
        run = _run_stream if isinstance(items, Stream) else _run_planned
        builts, journal, written, duplicates = run(items, build, meta, meter)
        report = make_report(build.target.root, builts, duplicates=duplicates, written=written)
        if journal is not None:
            journal.publish(report, builts, metadata, build.schema)
        if build.dedupe:
            delete_hashes(build.target.side("build"))
        meter.finish()
    return replace(report, seconds=time.monotonic() - begin)


_Outcome = tuple[list[BuiltShard], BuildJournal | None, int, int]
"""The shards, the journal (None if the build was finished before), the number of shards written, and of duplicates."""


def _run_planned(items: Any, build: Build, meta: bytes, meter: ProgressMeter) -> _Outcome:
    kept = _unique_items(items, build, meter)
    plan = _make_plan(items, build, meta, kept)
    if not plan.shards:
        raise WriteError("there is nothing to write", expected="at least one item", found=f"{len(items)} in the source")
    duplicates = 0 if kept is None else len(items) - len(kept)
    facts = _facts(build, {"source": items.identity, "count": len(items)}, plan)
    journal = BuildJournal(build.target, facts, {shard.split for shard in plan.shards}, build.schema)
    start = journal.start(overwrite=build.overwrite, retry=build.retry)
    if not start.finished:
        journal.write_plan({"path": one.path, "split": one.split, "items": one.stop - one.start} for one in plan.shards)
    written = 0 if start.finished else _build_missing(items, build, meta, meter, plan, journal, start)
    builts = [start.done[shard.path] for shard in plan.shards]
    return builts, None if start.finished else journal, written, duplicates


def _unique_items(items: Items, build: Build, meter: ProgressMeter) -> IntArray | None:
    if not build.dedupe:
        return None
    meter.start("hashing", len(items))
    fields = build.dedupe if isinstance(build.dedupe, tuple) else None
    return find_unique_items(items, fields, build.engine, build.target.side("build"), meter.tell)


def _make_plan(items: Items, build: Build, meta: bytes, kept: IntArray | None) -> Plan:
    options = _leave_room(build.plan, meta)
    sizes = items.sizes()
    if sizes is None:
        options = replace(options, max_samples=_estimate_max_samples(items, options))
    return plan_shards(len(items), options, sizes=sizes, splits=items.splits(), kept=kept)


def _leave_room(options: PlanOptions, meta: bytes) -> PlanOptions:
    """Return the options with ``max_bytes`` reduced by the member that holds the metadata."""
    member_bytes = 512 + -(-len(meta) // 512) * 512 if meta else 0
    return replace(options, max_bytes=max(options.max_bytes - member_bytes, 1))


def _estimate_max_samples(items: Items, options: PlanOptions) -> int:
    """Return how many samples fill a shard, by the mean size of some of them; those that fail are not counted."""
    if len(items) * 512 <= options.max_bytes // 1024:
        return options.max_samples  # too few to fill a shard, unless they are very large
    builder = SampleBuilder(None)
    sizes = []
    for number in np.unique(np.linspace(0, len(items) - 1, min(_PROBES, len(items))).astype(np.int64)):
        (read,) = items.read(np.array([number]))
        try:
            if not isinstance(read, Exception):
                sizes.append(sum(sample[3] for sample in builder.make(int(number), read)))
        except Exception:  # noqa: BLE001, S112 - it fails again when it is built
            continue
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    return max(1, min(options.max_samples, int(options.max_bytes / mean))) if mean else options.max_samples


def _build_missing(
    items: Items, build: Build, meta: bytes, meter: ProgressMeter, plan: Plan, journal: BuildJournal, start: BuildStart
) -> int:
    """Build the shards that are not done, and return their number."""
    journal.sweep()
    tasks = [
        ShardTask(shard.path, shard.split, plan.items_of(shard))
        for shard in plan.shards
        if shard.path not in start.done
    ]
    left = sum(len(task.items) for task in tasks)
    failures = [failure for built in start.done.values() for failure in built.failures]
    budget = int(error_limit(build.budget, len(plan.items)))
    meter.start("building", len(plan.items), len(plan.items) - left)
    meter.shards, meter.failures = len(start.done), len(failures)
    work = ShardWork(items, build.builder, _output(build, start.folder, meta), budget)
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


def _output(build: Build, folder: str, meta: bytes) -> ShardOutput:
    write = build.write
    return ShardOutput(folder, write.compression, write.level, write.mtime, write.hashed, write.durable, meta)


def _run_stream(items: Any, build: Build, meta: bytes, meter: ProgressMeter) -> _Outcome:
    if build.plan.shuffle or (build.plan.sample is not None and type(build.plan.sample) is not float):
        raise OptionError(
            "a stream cannot be shuffled, nor a number of its samples be drawn",
            expected="a source with a length, or sample as a share",
            hint="build it first, then shuffle with shoal.build.reshard",
        )
    if build.retry:
        raise OptionError("a stream's samples cannot be asked for again", expected="retry=False")
    options = _leave_room(build.plan, meta)
    splits = [name for name, _ in build.plan.splits] or [build.plan.split or "train"]
    facts = _facts(build, {"source": "a stream", "count": None}, None)
    journal = BuildJournal(build.target, facts, splits, build.schema)
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

    output = _output(build, start.folder, meta)
    stream = StreamBuild(
        build.builder, output, options, build.dedupe, int(error_limit(build.budget, None)), add, meter.tell
    )
    stream.run(items, build.engine, start.done.values())
    if not builts:
        raise WriteError("the source gave no samples", expected="at least one")
    return _by_split(builts), journal, written, stream.duplicates


def _by_split(builts: list[BuiltShard]) -> list[BuiltShard]:
    """Sort by split, then as written: two runs may have finished them in another order."""
    splits = sorted({built.split for built in builts})
    return [built for split in splits for built in builts if built.split == split]


def _facts(build: Build, source: dict[str, Any], plan: Plan | None) -> dict[str, Any]:
    """Return all that changes what is written, as plain JSON values."""
    options = {**asdict(build.plan), **asdict(build.write), "dedupe": build.dedupe, **build.other_options}
    options["metadata"] = build.metadata
    return _to_plain(
        {
            **source,
            "function": build.builder.mark,
            "options": options,
            "plan": None if plan is None else plan.fingerprint,
        }
    )


def _to_plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as JSON gives it back. Raises OptionError when it cannot be JSON."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(value)))
    except (TypeError, ValueError) as error:
        raise OptionError("metadata must be JSON", found=str(error)) from error
    return plain
