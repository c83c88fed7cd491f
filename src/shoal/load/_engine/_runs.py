"""The runs of one loader: begun, kept for the epoch that follows, and ended with the loader at the latest."""

from __future__ import annotations

import os
import weakref
from typing import Any

from ._autotune import Tuner
from ._build import Built
from ._place import Place
from ._run import Run, close, start_run
from ._stats import Meter

__all__ = ["Runs"]

_PATIENCE = 5.0
"""Seconds that a function which was begun has to end when the caller stops; after that it is left to itself."""
_PATIENCE_AT_EXIT = 2.0


class Runs:
    """Work that is under way for ``owner``; all of it ends when the owner, or the interpreter, does."""

    def __init__(self, owner: object, meter: Meter, tuner: Tuner) -> None:
        self._owner = weakref.ref(owner)
        self._meter = meter
        self._tuner = tuner
        self._live: dict[Run, weakref.finalize[..., Any]] = {}
        self._idle: tuple[Run, Place] | None = None
        """Work that stands at the beginning of an epoch which nobody has begun yet."""
        self._process = os.getpid()

    @property
    def ready(self) -> int:
        """Units of work that are done and not yet asked for."""
        return sum(run.ready for run in self._live)

    def at(self, built: Built, place: Place) -> Run:
        """Work that stands at this place: the one that goes on from the last epoch, or a new one."""
        idle, self._idle = self._idle, None
        if idle is not None:
            run, stands = idle
            if run.is_usable and run.built is built and stands.is_at(place):
                return run
            self.end(run)
        return self.start(built, place)

    def start(self, built: Built, place: Place) -> Run:
        """New work from a place on."""
        self.check_process()
        run = start_run(built, place, self._meter, self._tuner)
        owner = self._owner()
        # Not the run: it knows the functions of the pipeline, and one of them may know the owner.
        self._live[run] = weakref.finalize(owner, close, run.workers, run.processes, _PATIENCE_AT_EXIT, run.foreseen)
        return run

    def keep(self, run: Run, place: Place) -> None:
        """Keep work that stands where an epoch begins, if it does; else end it."""
        if self._idle is None and run.is_at_end and run.is_usable:
            self._idle = run, place
        else:
            self.end(run)

    def end(self, run: Run, patience: float = _PATIENCE) -> None:
        """End work, and what it began."""
        finalizer = self._live.pop(run, None)
        if finalizer is not None:
            finalizer.detach()
        run.close(patience)

    def close(self) -> None:
        """End all."""
        self.check_process()
        self._idle = None
        for run in list(self._live):
            self.end(run)

    def check_process(self) -> None:
        """After a fork nothing of the parent's is of use here: not its threads, nor what they held."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._meter.after_fork()
        for finalizer in self._live.values():
            finalizer.detach()
        self._live.clear()
        self._idle = None
