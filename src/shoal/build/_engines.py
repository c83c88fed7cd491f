"""Engines that run the tasks of a build: local processes, or Ray.

Engines may return results in any order: what is written does not depend on it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from shoal.errors import MissingExtraError, OptionError, ShoalError, WorkerError
from shoal.store._options import configure_all, configured

from ._tasks import Control

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["Engine", "LocalEngine", "RayEngine"]

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[T, Control], R]
"""Called with each task, in a worker; pickled."""
Tell = Callable[[int, int], None]
_TASKS_PER_WORKER = 4
"""How many tasks per worker may be started before the oldest is done, where results are returned in order."""


class Engine(Protocol):
    """What `build_shards` asks of an engine. Implement it to run builds on a scheduler of your own."""

    @property
    def workers(self) -> int:
        """How many tasks are worked on at once."""
        ...

    def run(self, work: Work[T, R], tasks: Iterable[T], tell: Tell, *, ordered: bool = False) -> Iterator[tuple[T, R]]:
        """Each task with what ``work`` returned for it, as they come; in the order of the tasks when ``ordered``.

        Tasks are taken from the iterable as there is room, never all at once: they may hold samples. ``tell`` is called
        in this process with what workers tell of their progress, where the engine can carry that. What ``work`` raises
        is raised here. When the iterator is closed, or fails, no worker goes on.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Processes of this machine; with one worker, this process.

    ``start`` is how processes are made: ``fork`` is quick and takes any function, but is safe only where nothing else
    runs in this process, so ``auto`` takes it only there, and ``forkserver`` or ``spawn`` elsewhere.
    """

    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    start: Literal["auto", "fork", "forkserver", "spawn"] = "auto"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise OptionError("this many workers do nothing", expected="1 or more", found=self.workers)
        if self.start not in ("auto", "fork", "forkserver", "spawn"):
            expected = "'auto', 'fork', 'forkserver' or 'spawn'"
            raise OptionError("no such way to start processes", expected=expected, found=repr(self.start))

    def run(self, work: Work[T, R], tasks: Iterable[T], tell: Tell, *, ordered: bool = False) -> Iterator[tuple[T, R]]:
        """See `Engine.run`. Raises WorkerError when a process ends that should not."""
        if self.workers == 1:
            control = Control(tell)
            for task in tasks:
                yield task, work(task, control)
            return
        pool = _Pool(self.workers, self._method(), work, tell)
        try:
            yield from pool.run(tasks, _TASKS_PER_WORKER * self.workers if ordered else None)
        finally:
            pool.close()

    def _method(self) -> str:
        import multiprocessing

        if self.start != "auto":
            return self.start
        if _can_fork():
            return "fork"
        return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


_DO_NOT_FORK = ("grpc", "jax", "ray", "tensorflow", "torch")
"""Packages with threads of their own, which a forked child would miss."""


def _can_fork() -> bool:
    """Whether this process is alone: no other thread, no object store client, nothing that keeps threads of its own."""
    alone = threading.active_count() == 1 and not any(name in sys.modules for name in _DO_NOT_FORK)
    return sys.platform == "linux" and alone and "obstore" not in sys.modules


class _TaskQueue(Generic[T]):
    """Hands out tasks and takes results back. A ``window`` puts results in order and bounds the tasks in flight."""

    def __init__(self, tasks: Iterable[T], window: int | None) -> None:
        self._tasks = enumerate(tasks)
        self._window = window
        self._taken = 0
        self._wanted = 0
        self._waiting: dict[int, tuple[T, Any]] = {}

    def take(self) -> tuple[int, T] | None:
        """Return the next task with its number; None when there is none, or none may be started yet."""
        if self._window is not None and self._taken - self._wanted >= self._window:
            return None
        taken = next(self._tasks, None)
        self._taken += taken is not None
        return taken

    def give(self, number: int, task: T, result: Any) -> Iterator[tuple[T, Any]]:
        """Add a result, and yield those that are due."""
        if self._window is None:
            yield task, result
            return
        self._waiting[number] = (task, result)
        while self._wanted in self._waiting:
            yield self._waiting.pop(self._wanted)
            self._wanted += 1


class _Pool:
    """Worker processes, each with its own pipe, so that the death of one, and its task, are known at once."""

    def __init__(self, count: int, method: str, work: Any, tell: Tell) -> None:
        self._count = count
        self._method = method
        self._work = work
        self._tell = tell
        self._processes: dict[Any, Any] = {}
        self._busy: dict[Any, tuple[int, Any]] = {}

    def run(self, tasks: Iterable[Any], window: int | None) -> Iterator[tuple[Any, Any]]:
        """Yield results as they come; with a ``window``, in order, and with at most so many tasks in flight."""
        from multiprocessing.connection import wait

        queue = _TaskQueue(tasks, window)
        idle: list[Any] = []
        while True:
            self._start_tasks(queue, idle)
            if not self._busy:
                return
            done = []
            for pipe in wait(list(self._busy)):
                kind, value = self._receive(pipe)
                if kind == "told":
                    self._tell(*value)
                elif kind == "raised":
                    raise value
                else:
                    idle.append(pipe)
                    done.append((*self._busy.pop(pipe), value))
            self._start_tasks(queue, idle)  # before results are used, so that no worker waits for that
            for result in done:
                yield from queue.give(*result)

    def _start_tasks(self, queue: _TaskQueue[Any], idle: list[Any]) -> None:
        while len(self._busy) < self._count and (taken := queue.take()) is not None:
            pipe = idle.pop() if idle else self._start()
            self._busy[pipe] = taken
            with contextlib.suppress(BrokenPipeError):  # the worker has died, which the next `wait` notices
                pipe.send(taken[1])

    def _start(self) -> Any:
        import multiprocessing

        context: Any = multiprocessing.get_context(self._method)
        ours, theirs = context.Pipe()
        # A forked child has a copy of every pipe's near end; left open, no other child would see this process end.
        others = [ours, *self._processes] if self._method == "fork" else []
        process = context.Process(target=_serve, args=(theirs, self._work, others, configured()), daemon=True)
        with warnings.catch_warnings():
            if self._method == "fork":
                warnings.simplefilter("ignore", DeprecationWarning)  # threads of NumPy's, which know about forks
            _start_process(process)
        theirs.close()
        self._processes[ours] = process
        return ours

    def _receive(self, pipe: Any) -> tuple[str, Any]:
        try:
            kind, value = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[pipe]
            process.join(5)
            code = process.exitcode
            found = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            path = getattr(self._busy[pipe][1], "path", None)
            hint = (
                "was it killed, for want of memory? run the same build again: what is done is done"
                if code is None or code < 0 or self._method == "fork"
                else 'workers import the script that started them: call it under `if __name__ == "__main__":`'
            )
            raise WorkerError("a worker has ended", found=found, shard=path, hint=hint) from None
        return kind, value

    def close(self) -> None:
        """Terminate all processes."""
        for pipe in self._processes:
            pipe.close()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()
        self._processes.clear()


def _start_process(process: Any) -> None:
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise OptionError(
            "the function, or the source, cannot be given to other processes",
            found=str(error),
            hint="define the function at the top of a module, or build with workers=1",
        ) from error


def _serve(pipe: Connection[Any, Any], work: Any, others: Sequence[Any], settings: Any) -> None:
    """Run tasks in a worker process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    for other in others:
        other.close()
    configure_all(settings)
    control = Control(lambda samples, size: pipe.send(("told", (samples, size))), lambda: _check_parent(pipe))
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[str, Any] = ("done", work(task, control))
        except BrokenPipeError:
            return
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            answer = ("raised", _sendable(error))
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


def _check_parent(pipe: Any) -> None:
    """Exit where the parent process has. A busy worker receives nothing, so a readable pipe means just that."""
    if pipe.poll():
        os._exit(1)


def _sendable(error: BaseException) -> BaseException:
    """Return the error, or a WorkerError with its message where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever a user's exception does
        return WorkerError("a worker failed", found=f"{type(error).__name__}: {error}")
    return error


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Ray's workers: those of the cluster this process is connected to, or of the one at ``address``.

    Where this process is connected to none, ``ray.init(address=address)`` is called, which starts one on this machine
    where no address is known. Every node must see the source and the target under the same names, so both are on a
    shared disk or in an object store. ``options`` are those of ``ray.remote``: ``{"num_cpus": 2}``.

    A task whose worker dies is begun again by Ray three times (``max_retries``); after that the build ends with
    WorkerError, and a rerun goes on where it was.
    """

    address: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """How many tasks the cluster runs at a time."""
        ray = self._connect()
        own = float(self.options.get("num_cpus", 1)) or 1.0
        return max(1, int(ray.cluster_resources().get("CPU", 1) // own))

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError(
                "the package ray cannot be imported", found=error, hint="pip install 'shoal[ray]'"
            ) from error
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False)
        return ray

    def run(self, work: Work[T, R], tasks: Iterable[T], tell: Tell, *, ordered: bool = False) -> Iterator[tuple[T, R]]:
        """See `Engine.run`. Progress is told when a task is done: Ray carries nothing before."""
        ray = self._connect()
        count = self.workers
        remote = ray.remote(_call).options(**self.options)
        shared = ray.put((work, configured()))
        queue = _TaskQueue(tasks, _TASKS_PER_WORKER * count if ordered else None)
        running: dict[Any, tuple[int, T]] = {}
        try:
            while True:
                # One more task per worker than it runs, so that none is idle between two.
                while len(running) < 2 * count and (taken := queue.take()) is not None:
                    running[remote.remote(shared, taken[1])] = taken
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1)
                number, task = running.pop(done[0])
                result, progress = _result(ray, done[0], task)
                tell(*progress)
                yield from queue.give(number, task, result)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _call(shared: Any, task: Any) -> tuple[Any, tuple[int, int]]:
    """Run a task in a worker of Ray; return its result and the progress that it reported."""
    work, settings = shared
    configure_all(settings)
    progress = [0, 0]

    def tell(samples: int, size: int) -> None:
        progress[0] += samples
        progress[1] += size

    result = work(task, Control(tell))
    return result, (progress[0], progress[1])


def _result(ray: Any, reference: Any, task: Any) -> Any:
    """Return the result of a task, or raise its error. Ray's own errors become WorkerError."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, ShoalError) else _failed(cause or error, task)) from error
    except ray.exceptions.RayError as error:
        raise _failed(error, task) from error


def _failed(error: BaseException, task: Any) -> WorkerError:
    found = str(error).strip().split("\n")[0] or type(error).__name__
    hint = "run the same build again: what is done is done"
    return WorkerError("a worker of Ray has ended or failed", found=found, shard=getattr(task, "path", None), hint=hint)
