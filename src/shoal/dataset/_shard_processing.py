"""`process_shards`: call a function on every shard, with a checkpoint to resume an interrupted run."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from shoal.errors import ObjectNotFoundError, OptionError
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource
from shoal.store._registry import store_for

from ._arrow_types import is_exact_json
from ._base import DatasetBase
from ._description import PathLike

__all__ = ["FailedShard", "ShardDone", "ShardProcessing", "ShardReport"]

T = TypeVar("T")
R = TypeVar("R")
_MAX_RESULT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FailedShard:
    """A shard on which the function failed."""

    shard: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShardDone:
    """What a progress function is told after each shard."""

    shard: str
    number: int
    """How many shards are through by now, those of earlier runs included."""
    total: int
    samples: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ShardReport(Generic[R]):
    """What became of each shard.

    ``results`` has what the function returned, by shard, for all shards that are done; of shards of an earlier run only
    where that was plain (text, numbers, lists and dicts of them) and small enough to be kept in the checkpoint.
    """

    done: tuple[str, ...] = ()
    failed: tuple[FailedShard, ...] = ()
    skipped: tuple[str, ...] = ()
    """Done in an earlier run."""
    results: Mapping[str, R] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed


@dataclass(frozen=True, slots=True)
class _Task:
    """One shard's samples in view. The mark changes when the shard does, or when other samples are in view."""

    shard: str
    rows: RowView
    version: str

    @property
    def mark(self) -> str:
        """Identifies the task in a checkpoint."""
        return f"{self.version}-{len(self.rows)}-{zlib.crc32(self.rows.as_array().tobytes()):08x}"


class _Checkpoint:
    """A file with one line of JSON per finished shard. A line that a crash cut short is ignored."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self.lines: dict[str, dict[str, Any]] = {}
        if url is not None:
            self._read(url)

    def _read(self, url: str) -> None:
        try:
            data = store_for(url).read_all(url)
        except ObjectNotFoundError:
            return
        if data and not data.startswith(b"{"):
            raise OptionError("this file is not a checkpoint of process_shards", found=url, hint="name another one")
        for line in data.split(b"\n"):
            try:
                found = msgspec.json.decode(line)
                self.lines[found["shard"]] = found
            except (msgspec.DecodeError, KeyError, TypeError):
                continue
        if data and not data.endswith(b"\n"):
            store_for(url).append(url, b"\n")  # the next line must not be joined to the torn one

    def done(self, task: _Task) -> dict[str, Any] | None:
        found = self.lines.get(task.shard)
        return found if found is not None and found.get("mark") == task.mark and "error" not in found else None

    def add(self, task: _Task, **facts: Any) -> None:
        if self._url is not None:
            line = {"shard": task.shard, "mark": task.mark, **facts}
            store_for(self._url).append(self._url, msgspec.json.encode(line) + b"\n")


@dataclass
class _Run:
    """One run over the shards: what is through so far."""

    checkpoint: _Checkpoint
    total: int
    progress: Callable[[ShardDone], object] | None
    done: list[str] = field(default_factory=list)
    failed: list[FailedShard] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)

    def skip(self, task: _Task, line: dict[str, Any]) -> None:
        self.skipped.append(task.shard)
        if "result" in line:
            self.results[task.shard] = line["result"]

    def succeed(self, task: _Task, result: Any) -> None:
        kept = is_exact_json(result) and len(msgspec.json.encode(result)) <= _MAX_RESULT_BYTES
        self.checkpoint.add(task, **({"result": result} if kept else {}))
        self.done.append(task.shard)
        self.results[task.shard] = result
        self._report_progress(task, None)

    def fail(self, task: _Task, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self.checkpoint.add(task, error=reason)
        self.failed.append(FailedShard(task.shard, reason))
        self._report_progress(task, reason)

    def _report_progress(self, task: _Task, reason: str | None) -> None:
        if self.progress is not None:
            number = len(self.done) + len(self.failed) + len(self.skipped)
            self.progress(ShardDone(task.shard, number, self.total, len(task.rows), reason))

    def report(self, tasks: Sequence[_Task]) -> ShardReport[Any]:
        """All of it, in the shards' order."""
        order = {task.shard: number for number, task in enumerate(tasks)}
        return ShardReport(
            tuple(sorted(self.done, key=order.__getitem__)),
            tuple(sorted(self.failed, key=lambda one: order[one.shard])),
            tuple(self.skipped),
            {shard: self.results[shard] for shard in order if shard in self.results},
        )


class ShardProcessing(DatasetBase[T]):
    """`process_shards`, as a method of `Dataset`."""

    def process_shards(
        self,
        function: Callable[[list[T]], R],
        *,
        checkpoint: PathLike | None = None,
        workers: int = 1,
        on_error: Literal["raise", "continue"] = "raise",
        shards: Iterable[str] | None = None,
        progress: Callable[[ShardDone], object] | None = None,
    ) -> ShardReport[R]:
        """Call ``function`` with the list of samples in view of each shard; say what became of each.

        With a ``checkpoint`` file each shard is noted there as it is through, so a run that was killed, or failed, goes
        on where it was: shards that are done are passed over and those that failed are tried again. A shard that has
        changed since, or of which other samples are in view, is done again. ``workers`` run in threads, each with one
        shard's samples in memory. ``on_error="raise"`` stops at the first error, which is raised as it is; with
        ``"continue"`` the report lists the failed shards. ``shards`` chooses some, by URL. ``progress`` is called after
        each.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/work/data-%06d.tar", max_samples=2) as writer:
            ...     for number in range(5):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/work")
            >>> report = ds.process_shards(
            ...     lambda samples: sum(s["cls"] for s in samples), checkpoint="memory://doc/done"
            ... )
            >>> report.ok, list(report.results.values())
            (True, [1, 5, 4])
            >>> len(ds.process_shards(len, checkpoint="memory://doc/done").skipped)
            3
        """
        tasks = self._shard_tasks(None if shards is None else set(shards))

        def work(task: _Task) -> R:
            log = self._begin_pass(task.rows)
            return function(self._finished_valid(self._read_valid(task.rows.as_array(), log), log))

        saved = None if checkpoint is None else os.fspath(checkpoint)
        return _run_shards(tasks, work, saved, workers, on_error, progress)

    def _shard_tasks(self, chosen: set[str] | None) -> list[_Task]:
        source = self.source
        if not isinstance(source, ShardSource):
            raise OptionError("this dataset has no shards of its own", found=type(source).__name__)
        unknown = (chosen or set()) - set(self.shards)
        if unknown:
            raise OptionError("no such shard", expected=f"one of {len(self.shards)}", found=min(unknown))
        tasks = []
        for number, own in self.rows.split_by(source.starts):
            url = source.shards[number].url
            if chosen is None or url in chosen:
                rows = RowView.from_rows(own + source.starts[number])
                tasks.append(_Task(url, rows, source.index.shard_version(number)))
        return tasks


def _run_shards(
    tasks: Sequence[_Task],
    work: Callable[[_Task], Any],
    checkpoint: str | None,
    workers: int,
    on_error: Literal["raise", "continue"],
    progress: Callable[[ShardDone], object] | None,
) -> ShardReport[Any]:
    """Do the work for every task that no earlier run did. See ``Dataset.process_shards``."""
    if on_error not in ("raise", "continue"):
        raise OptionError("no such way with errors", expected="'raise' or 'continue'", found=repr(on_error))
    if workers < 1:
        raise OptionError("this many workers do nothing", expected="1 or more", found=workers)
    run = _Run(_Checkpoint(checkpoint), len(tasks), progress)
    waiting = []
    for task in tasks:
        line = run.checkpoint.done(task)
        if line is None:
            waiting.append(task)
        else:
            run.skip(task, line)
    with closing(_run_tasks(waiting, work, workers)) as outcomes:
        for task, outcome in outcomes:
            try:
                result = outcome()
            except Exception as error:
                run.fail(task, error)
                if on_error == "raise":
                    error.add_note(f"in process_shards, on shard {task.shard}")
                    raise
                continue
            run.succeed(task, result)
    return run.report(tasks)


def _run_tasks(
    tasks: Sequence[_Task], work: Callable[[_Task], Any], workers: int
) -> Generator[tuple[_Task, Callable[[], Any]], None, None]:
    """Yield each task as it finishes, with a function that returns its result or raises its error."""
    if workers == 1:
        yield from ((task, partial(work, task)) for task in tasks)
        return
    with _thread_pool(workers) as pool:
        rest = iter(tasks)
        running: dict[Future[Any], _Task] = {}
        while True:
            # At most one task per worker, since each has the samples of a shard in memory.
            for task in rest:
                running[pool.submit(work, task)] = task
                if len(running) >= workers:
                    break
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result


@contextmanager
def _thread_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(workers, "shoal-shards")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
