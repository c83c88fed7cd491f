"""Typed samples by number: what a loader's threads call, one call a batch."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.shard import Resident, ShardSource

from ._buffers import BufferPool, shared_buffers
from ._direct import DirectPlan, direct_columns, direct_plan
from ._settled import settled_run
from ._typed import Learnt, PayloadRun, TypedColumns

__all__ = ["PayloadReader"]

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]
_MOST_MISSES = 3


class PayloadReader(Generic[T]):
    """Reads columns of typed samples by their numbers; threads may share it.

    Large arrays are read straight into memory of ``buffers`` where samples are stored alike, the payloads around them,
    and all others, as they lie, or taken from where they are ``resident``. ``threads`` may read one batch of large
    arrays at once: one where batches are already read on several threads.
    """

    def __init__(
        self,
        source: ShardSource,
        field: str,
        learnt: Learnt[T],
        *,
        buffers: BufferPool | None = None,
        threads: int = 1,
        resident: Resident | None = None,
    ) -> None:
        self._source = source
        self._field = field
        self._learnt = learnt
        self._buffers = buffers or shared_buffers()
        self._threads = threads
        self._resident = resident
        self._plan: DirectPlan | None = None
        self._kept: PayloadRun[T] | None = None
        self._settling = threading.Lock()
        self._misses = -1
        """How many batches in a row the plan was wrong for; negative before there was one."""

    def is_direct(self, number: int) -> bool:
        """Whether samples like this one are read straight into place, so that reading by number costs no copy."""
        if self._misses < 0:
            self._plan, self._misses = direct_plan(self._source, number, self._field, self._learnt), 0
        return self._plan is not None

    def read(self, numbers: Int64) -> TypedColumns[T]:
        """The samples with these numbers, in this order. Raises ChecksumError, TruncatedError and PositionError."""
        source, field, learnt = self._source, self._field, self._learnt
        if len(numbers) and self.is_direct(int(numbers[0])) and (plan := self._plan) is not None:
            columns = direct_columns(source, numbers, field, learnt, plan, self._buffers, self._threads)
            if columns is not None:
                self._misses = 0
                return columns
            # As these samples are, perhaps; but not for ever: each try that fails reads the batch twice.
            self._misses += 1
            again = self._misses < _MOST_MISSES
            self._plan = direct_plan(source, int(numbers[-1]), field, learnt) if again else None
        held = None if self._resident is None else self._held(self._resident, numbers)
        if held is not None:
            return held
        lying, order = np.unique(numbers, return_inverse=True)
        run = PayloadRun(source.raw_rows(lying, field), learnt)
        in_order = len(lying) == len(numbers) and bool((lying == numbers).all())
        return TypedColumns([(run, slice(0, len(lying)) if in_order else order)])

    def _held(self, resident: Resident, numbers: Int64) -> TypedColumns[T] | None:
        """From memory: in place once all samples are there and known to be alike, before that as copies of these."""
        kept = self._kept or self._settled(resident)
        if kept is not None:
            resident.check(numbers)
            return TypedColumns([(kept, numbers)])
        copied = resident.raw_rows(numbers, self._field)
        return None if copied is None else TypedColumns([(PayloadRun(copied, self._learnt), slice(0, len(numbers)))])

    def _settled(self, resident: Resident) -> PayloadRun[T] | None:
        """All samples, once they are there; found out once, by one thread, while the others go on."""
        if not resident.is_full or not self._settling.acquire(blocking=False):
            return None
        raw = resident.raw(self._field)  # the lock is not given back: what was found out stays true
        self._kept = None if raw is None else settled_run(raw, self._learnt)
        return self._kept
