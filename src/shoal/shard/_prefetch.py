"""Samples of far shards read in order: several parts of the shards at once, rows made while their bytes come.

A part is one large request. The thread that makes it cuts it into blocks and the blocks into rows as the bytes arrive,
because bytes that were just copied are read again for almost nothing, and those of a few megabytes ago are not. Parts
end where it suits the store, so the block that lies across two of them is made by who reads, when both are there.

Clouds give each connection so much and no more, however wide the line is. Where one is found to be slow, the shards
that follow are cut into smaller parts, and more of them are fetched at once, in the same memory.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from shoal.errors import ShoalError
from shoal.shard._index import PART_BYTES, SpanPart, span_parts
from shoal.shard._one import Shard
from shoal.store import HeldReader, PulledReader

from ._ahead import AT_ONCE, Ahead, Task

__all__ = ["SpansAhead", "Want"]

R = TypeVar("R")
_Pieces = Sequence[tuple[int, bytes]]
"""Bytes that follow each other as they came, each piece with its position."""
_LONGEST_START = 0.1
"""Seconds after which no thread is waited for that should have begun: all of them may be busy."""
_SLOW = 90e6
"""Bytes a second: a connection that brings less is helped by others beside it."""
_JUDGED = 6
"""Requests in a row that a line is judged by: a busy processor makes single ones slow."""
_SMALL_PARTS, _MANY = 8 << 20, 10


class _Line:
    """What one connection brings, and so how shards are cut and how many parts are fetched at once."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=_JUDGED)
        self._is_slow = False
        self._cuts: dict[int, int] = {}

    def note(self, size: int, seconds: float) -> None:
        """A request of so many bytes took so long, and what was made of them. A line that is slow stays that."""
        self._last.append((size, seconds))
        every = list(self._last)
        taken = sum(each for _, each in every)
        self._is_slow |= len(every) == _JUDGED and sum(each for each, _ in every) < _SLOW * taken

    @property
    def at_once(self) -> int:
        return _MANY if self._is_slow else AT_ONCE

    def part_bytes(self, number: int) -> int:
        """Of the parts of a shard: the same whenever it is asked."""
        return self._cuts.setdefault(number, _SMALL_PARTS if self._is_slow else PART_BYTES)


@dataclass(frozen=True)
class Want(Generic[R]):
    """A shard to be read in order, and how its spans are."""

    number: int
    shard: Shard
    fields: Sequence[str] | None
    begin: Callable[[], Callable[[PulledReader, int, int], R]]
    """Gives what reads the spans of one part, which are asked for in order."""


class _Part(Generic[R]):
    """The spans of one shard that end in what one request brings."""

    def __init__(
        self, want: Want[R], far: HeldReader, name: int, spans: Sequence[tuple[int, int]], part: SpanPart, line: _Line
    ) -> None:
        self.name = (want.number, name)
        self.size = sum(stop - start for start, stop in part.ranges)
        self.share = self.size // max(len(spans), 1)
        """Of a span, about."""
        self._read = want.begin()
        self._far = far
        self._spans = spans
        self._part = part
        self._line = line
        self._made: dict[int, R] = {}
        self._head: _Pieces | None = None
        self._tail: _Pieces = ()
        self._changed = threading.Condition()
        self._begun = self._ended = self._dropped = False

    def begin(self) -> None:
        """Nothing."""

    def run(self) -> None:
        with self._changed:
            if self._begun:
                return
            self._begun = True
            self._changed.notify_all()
        began = time.monotonic()
        try:
            self._read_all()
            self._line.note(sum(stop - start for start, stop in self._part.ranges), time.monotonic() - began)
        except ShoalError:
            pass  # who asks for the span reads it alone, and comes upon the same
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    @property
    def _is_split(self) -> bool:
        """Whether the first span begins in the part before."""
        return bool(self._part.ranges) and self._part.head > self._part.ranges[0][0]

    def _read_all(self) -> None:
        part = self._part
        with contextlib.closing(PulledReader(self._far, part.ranges)) as reader:
            if self._is_split:
                self._keep_head(reader.pieces(part.ranges[0][0], part.head))
            for start, stop in self._spans[self._is_split :]:
                made = self._read(reader, start, stop)
                with self._changed:
                    if self._dropped:
                        return
                    self._made[start] = made
                    self._changed.notify_all()
            if part.ranges and part.tail < part.ranges[-1][1]:
                self._tail = reader.pieces(part.tail, part.ranges[-1][1])

    def _keep_head(self, head: _Pieces) -> None:
        with self._changed:
            self._head = head
            self._changed.notify_all()

    def taken(self, start: int, before: _Pieces) -> R | None:
        """What was made of the span that starts here; None where that failed.

        ``before`` is what the part before had left over: the beginning of the first span, where that began there.
        """
        if not self._begins_soon():
            self.run()
        is_first = self._is_split and start == self._spans[0][0]
        with self._changed:
            while not (self._ended or start in self._made or (is_first and self._head is not None)):
                self._changed.wait()  # for a thread that makes requests, each with a timeout
            found, head = self._made.pop(start, None), self._head
        return self._across([*before, *head]) if is_first and head else found

    def _begins_soon(self) -> bool:
        """Whether a thread reads it, or is about to: so that spans are there one by one, as they are made."""
        with self._changed:
            return self._changed.wait_for(lambda: self._begun, _LONGEST_START)

    def _across(self, pieces: _Pieces) -> R | None:
        """The first span, of what the part before had left over and what came first here."""
        held = (pieces[0][0], [piece for _, piece in pieces])
        try:
            return self._read(PulledReader(self._far, (), held), *self._spans[0])
        except ShoalError:
            return None  # as above

    def left_over(self) -> _Pieces:
        """The beginning of the span that ends in the part that follows; waits until it is there."""
        with self._changed:
            while not self._ended:
                self._changed.wait()  # as above
            return self._tail

    def drop(self) -> None:
        with self._changed:
            self._dropped = self._ended = True
            self._made.clear()
            self._head, self._tail = None, ()
            self._changed.notify_all()


class SpansAhead(Generic[R]):
    """What was made of the spans of shards before it is asked for; nothing at all where no shard is far."""

    def __init__(self, wants: Iterator[Want[R]] | None) -> None:
        self._line = _Line()
        self._ahead = None if wants is None else Ahead(_tasks(wants, self._line))
        self._part: _Part[R] | None = None
        self._before: _Pieces = ()
        """What the part before had left over."""
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
            cut = _cut(shard, fields, self._line.part_bytes(number))
            self._parts = {first: at for at, (spans, _) in enumerate(cut) for first, _ in spans}
        name = (number, self._parts[start])
        if self._part is None or self._part.name != name:
            follows = self._part is not None and self._part.name == (number, name[1] - 1)
            self._before = self._part.left_over() if self._part is not None and follows else ()
            self._ahead.at_once = self._line.at_once
            self._ahead.release(lambda held: _is_before(held, name))
            found: Any = self._ahead.take(name, lambda held: _is_before(held, name))
            self._part = found
        if self._part is None:
            return None
        made = self._part.taken(start, self._before)
        self._ahead.shrink(name, self._part.share)
        return made


def _is_before(one: object, name: tuple[int, int]) -> bool:
    return isinstance(one, tuple) and one < name


def _tasks(wants: Iterator[Want[R]], line: _Line) -> Iterator[Task]:
    for want in wants:
        far = want.shard.far
        if far is not None:
            cut = _cut(want.shard, want.fields, line.part_bytes(want.number))
            for name, (spans, part) in enumerate(cut):
                yield _Part(want, far, name, spans, part, line)


def _cut(shard: Shard, fields: Sequence[str] | None, most: int) -> Iterator[tuple[list[tuple[int, int]], SpanPart]]:
    """The parts of a shard, each with the spans that end in it."""
    spans, done = shard.spans(fields), 0
    for part in span_parts(shard.index, spans, fields, most=most):
        yield spans[done : part.span + 1], part
        done = part.span + 1
