"""Typed samples that are all in memory: where their fields lie is worked out once for all batches, not for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from shoal.errors import DecodeError, ShoalError
from shoal.shard import RawField

from ._typed import Learnt, PayloadRun
from ._walk import Step, Walked, join_walked, steps_of, walk

__all__ = ["settled_run"]

T = TypeVar("T")
_AT_ONCE = 1 << 14
"""Payloads walked at a time: what that takes meanwhile is more than what is kept of it."""


def settled_run(raw: RawField, learnt: Learnt[T]) -> PayloadRun[T] | None:
    """All payloads with their fields found; None where they are not stored alike, or one is not as its class says."""
    walked = _walked(raw)
    run = None if walked is None else PayloadRun(raw, learnt, walked=walked)
    try:
        return run if run is not None and run.settled() else None
    except ShoalError:  # of a sample that a view may leave out: whoever reads it says so
        return None


def _walked(raw: RawField) -> Mapping[str, Walked] | None:
    steps = _first_steps(raw)
    parts: list[Mapping[str, Walked]] = []
    for start in range(0, len(raw), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        found = walk(raw.data, raw.starts[some], raw.sizes[some], steps)
        if found is None:
            return None
        parts.append(found)
    return join_walked(parts) if parts else None


def _first_steps(raw: RawField) -> tuple[Step, ...]:
    if not len(raw):
        return ()
    start, size = int(raw.starts[0]), int(raw.sizes[0])
    try:
        return steps_of(memoryview(raw.data)[start : start + size])
    except DecodeError:  # reading it says of which sample
        return ()
