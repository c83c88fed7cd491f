"""Builds on Ray: each shard a task, on whichever node has room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shoal.errors import MissingExtraError, ShoalError, WorkerError
from shoal.store import configure_all, configured

from ._engine import AHEAD, Queue, Tell, Work
from ._work import Control

__all__ = ["RayEngine"]

T = TypeVar("T")
R = TypeVar("R")


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "the package ray cannot be imported", found=error, hint="pip install 'shoal[ray]'"
        ) from error
    return ray


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
        """How many tasks the cluster has room for."""
        ray = self._connected()
        own = float(self.options.get("num_cpus", 1)) or 1.0
        return max(1, int(ray.cluster_resources().get("CPU", 1) // own))

    def _connected(self) -> Any:
        ray = _ray()
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False)
        return ray

    def run(self, work: Work[T, R], tasks: Iterable[T], tell: Tell, *, ordered: bool = False) -> Iterator[tuple[T, R]]:
        """See `Engine.run`. Progress is told when a task is done: Ray carries nothing before."""
        ray = self._connected()
        count = self.workers
        remote = ray.remote(_call).options(**self.options)
        held = ray.put((work, configured()))
        queue = Queue(tasks, AHEAD * count if ordered else None)
        running: dict[Any, tuple[int, T]] = {}
        try:
            while True:
                # One more than there is room for waits at each worker, so that none is idle between two.
                while len(running) < 2 * count and (taken := queue.take()) is not None:
                    running[remote.remote(held, taken[1])] = taken
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1)
                number, task = running.pop(done[0])
                result, told = _result(ray, done[0], task)
                tell(*told)
                yield from queue.give(number, task, result)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _call(held: Any, task: Any) -> tuple[Any, tuple[int, int]]:
    """In a worker of Ray's: do the work; give what it told, too."""
    work, settings = held
    configure_all(settings)
    told = [0, 0]

    def tell(samples: int, size: int) -> None:
        told[0] += samples
        told[1] += size

    result = work(task, Control(tell))
    return result, (told[0], told[1])


def _result(ray: Any, reference: Any, task: Any) -> Any:
    """What a task returned. The one place where Ray's errors become ours."""
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
