"""Typed samples by number: what a loader's threads call, one call a batch."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.shard import Resident, ShardSource

from ._buffers import BufferPool, shared_buffers
from ._direct import DirectPlan, direct_columns, direct_plan
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
        kept = None if self._resident is None else self._resident.raw_rows(numbers, field)
        if kept is not None:
            return TypedColumns([(PayloadRun(kept, learnt), slice(0, len(numbers)))])
        lying, order = np.unique(numbers, return_inverse=True)
        run = PayloadRun(source.raw_rows(lying, field), learnt)
        in_order = len(lying) == len(numbers) and bool((lying == numbers).all())
        return TypedColumns([(run, slice(0, len(lying)) if in_order else order)])
