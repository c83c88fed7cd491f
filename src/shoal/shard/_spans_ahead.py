"""Samples of far shards read in order: several parts of the shards at once, rows made while their bytes come.

A part is one large request. The thread that makes it cuts it into blocks and the blocks into rows as the bytes arrive,
because bytes that were just copied are read again for almost nothing, and those of a few megabytes ago are not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from shoal.errors import ShoalError
from shoal.store import PulledReader

from ._ahead import Ahead, Task
from ._ranges import span_parts
from ._shard import Shard

__all__ = ["SpansAhead", "Want"]

R = TypeVar("R")


@dataclass(frozen=True)
class Want(Generic[R]):
    """A shard to be read in order, and how its spans are."""

    number: int
    shard: Shard
    fields: Sequence[str] | None
    read: Callable[[Shard, int, int], R]


class _Part(Generic[R]):
    """Some spans of one shard, whose bytes one request brings."""

    def __init__(
        self, want: Want[R], name: int, spans: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]
    ) -> None:
        self.name = (want.number, name)
        self.size = sum(stop - start for start, stop in ranges)
        self._want = want
        self._spans = spans
        self._ranges = ranges
        self._made: dict[int, R] = {}
        self._changed = threading.Condition()
        self._begun = self._ended = self._dropped = False

    def begin(self) -> None:
        """Nothing."""

    def run(self) -> None:
        with self._changed:
            if self._begun:
                return
            self._begun = True
        try:
            self._read_all()
        except ShoalError:
            pass  # who asks for the span reads it alone, and comes upon the same
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _read_all(self) -> None:
        shard = self._want.shard
        assert shard.far is not None  # noqa: S101 - made only of far ones
        with contextlib.closing(PulledReader(shard.far, self._ranges)) as reader:
            over = shard.over(reader)
            for start, stop in self._spans:
                made = self._want.read(over, start, stop)
                with self._changed:
                    if self._dropped:
                        return
                    self._made[start] = made
                    self._changed.notify_all()

    def taken(self, start: int) -> R | None:
        """What was made of the span that starts here; None where that failed."""
        if not self._begun:
            self.run()
        with self._changed:
            while start not in self._made and not self._ended:
                self._changed.wait()  # for a thread that makes requests, each with a timeout
            return self._made.pop(start, None)

    def drop(self) -> None:
        with self._changed:
            self._dropped = self._ended = True
            self._made.clear()
            self._changed.notify_all()


class SpansAhead(Generic[R]):
    """What was made of the spans of shards before it is asked for; nothing at all where no shard is far."""

    def __init__(self, wants: Iterator[Want[R]] | None) -> None:
        self._ahead = None if wants is None else Ahead(_tasks(wants))
        self._part: _Part[R] | None = None
        self._shard = -1
        self._parts: dict[int, int] = {}
        """The part of each span of the shard that is read, by where the span starts."""

    def __enter__(self) -> Self:
        if self._ahead is not None:
            self._ahead.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def take(self, number: int, shard: Shard, fields: Sequence[str] | None, start: int) -> R | None:
        """What was made of a span; None where it is to be read now. Spans are asked for in order, each once."""
        if self._ahead is None or shard.far is None or not self._ahead.is_usable:
            return None
        if number != self._shard:
            self._shard = number
            self._parts = {first: at for at, (spans, _) in enumerate(_cut(shard, fields)) for first, _ in spans}
        name = (number, self._parts[start])
        if self._part is None or self._part.name != name:
            self._ahead.release(lambda held: _is_before(held, name))
            found: Any = self._ahead.take(name, lambda held: _is_before(held, name))
            self._part = found
        return None if self._part is None else self._part.taken(start)


def _is_before(one: object, name: tuple[int, int]) -> bool:
    return isinstance(one, tuple) and one < name


def _tasks(wants: Iterator[Want[R]]) -> Iterator[Task]:
    for want in wants:
        if want.shard.far is not None:
            for name, (spans, ranges) in enumerate(_cut(want.shard, want.fields)):
                yield _Part(want, name, spans, ranges)


def _cut(
    shard: Shard, fields: Sequence[str] | None
) -> Iterator[tuple[list[tuple[int, int]], Sequence[tuple[int, int]]]]:
    """The spans of a shard in parts, with the ranges of each."""
    spans, done = shard.spans(fields), 0
    for part in span_parts(shard.index, spans, fields):
        yield spans[done : part.span + 1], part.ranges
        done = part.span + 1
