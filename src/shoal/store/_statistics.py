"""Statistics of requests to object stores, and an optional log of every request."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Self, TextIO

from ._fork import register_after_fork
from ._options import shown

__all__ = ["OpLog", "Request", "Statistics", "next_endpoint", "op_log", "request", "statistics"]

COLUMNS = (
    "idx",
    "thread",
    "op",
    "client_id",
    "n_objects",
    "bytes",
    "endpoint",
    "file",
    "error",
    "start",
    "first_byte",
    "end",
    "duration_ns",
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Requests to object stores by this process so far; a difference of two is what happened between them.

    Examples:
        >>> before = statistics()
        >>> (statistics() - before).bytes_read
        0
    """

    requests: Mapping[str, int]
    """How many of each kind: GET, HEAD, LIST, PUT, COPY, DELETE."""
    bytes_read: int
    bytes_written: int
    retries: int
    """Requests that repeated one that failed."""
    errors: int
    """Requests that failed, whether they were repeated or not."""
    seconds: float
    """How long requests took, all added up."""
    in_flight: int
    """Requests at this moment."""
    most_in_flight: int
    """The most there ever were at once."""

    def __sub__(self, before: Statistics) -> Statistics:
        kinds = Counter(self.requests)
        kinds.subtract(before.requests)
        return Statistics(
            MappingProxyType({kind: count for kind, count in kinds.items() if count}),
            self.bytes_read - before.bytes_read,
            self.bytes_written - before.bytes_written,
            self.retries - before.retries,
            self.errors - before.errors,
            self.seconds - before.seconds,
            self.in_flight,
            self.most_in_flight,
        )


@dataclass(slots=True)
class Request:
    """One request in progress; the caller adds bytes as they arrive."""

    op: str
    url: str
    endpoint: str
    bytes: int = 0
    objects: int = 1
    is_retry: bool = False
    start: int = field(default_factory=time.time_ns)
    first_byte: int | None = None

    def came(self, count: int) -> None:
        """Count bytes of the response."""
        if self.first_byte is None:
            self.first_byte = time.time_ns()
        self.bytes += count


class _Totals:
    """The counters of the process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.bytes_read = self.bytes_written = self.retries = self.errors = 0
        self.in_flight = self.most_in_flight = 0
        self.by_endpoint: Counter[str] = Counter()
        """Requests in flight, by endpoint."""
        self.turns: Counter[tuple[str, ...]] = Counter()
        self.seconds = 0.0

    def begin(self, made: Request) -> None:
        with self.lock:
            self.requests[made.op] += 1
            self.retries += made.is_retry
            self.in_flight += 1
            self.by_endpoint[made.endpoint] += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def end(self, made: Request, failed: bool, end: int) -> None:
        with self.lock:
            self.in_flight -= 1
            self.by_endpoint[made.endpoint] -= 1
            self.errors += failed
            self.seconds += (end - made.start) / 1e9
            if made.op == "PUT":
                self.bytes_written += made.bytes
            else:
                self.bytes_read += made.bytes


_totals = _Totals()
_log: OpLog | None = None


def statistics() -> Statistics:
    """What this process asked of object stores since it began; files and memory are not counted.

    Examples:
        >>> before = statistics()
        >>> (statistics() - before).errors
        0
    """
    totals = _totals
    with totals.lock:
        return Statistics(
            MappingProxyType(dict(totals.requests)),
            totals.bytes_read,
            totals.bytes_written,
            totals.retries,
            totals.errors,
            totals.seconds,
            totals.in_flight,
            totals.most_in_flight,
        )


def next_endpoint(endpoints: tuple[str, ...], balance: str) -> str:
    """Which of several endpoints is asked next: in turn, or the one with the fewest requests under way.

    Examples:
        >>> [next_endpoint(("http://a", "http://b"), "round-robin") for _ in range(3)]
        ['http://a', 'http://b', 'http://a']
    """
    totals = _totals
    with totals.lock:
        turn = totals.turns[endpoints]
        totals.turns[endpoints] += 1
        order = [endpoints[(turn + step) % len(endpoints)] for step in range(len(endpoints))]
        return order[0] if balance == "round-robin" else min(order, key=lambda name: totals.by_endpoint[name])


class OpLog:
    """An open log of requests; closing it ends the log. Made by `op_log`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._lock = threading.Lock()
        self._rows = 0
        # By lines, so that a forked child inherits nothing half written.
        self._file: TextIO | None = open(self.path, "w", 1, encoding="utf-8", newline="")  # noqa: SIM115 - see close
        self._file.write("\t".join(COLUMNS) + "\n")

    def add(self, made: Request, error: str, end: int) -> None:
        """Write one row; nothing where the log is closed."""
        first = made.first_byte if made.first_byte is not None else end
        thread = threading.get_ident()
        facts = [thread, made.op, os.getpid(), made.objects, made.bytes, made.endpoint, shown(made.url), error]
        times = [_stamp(made.start), _stamp(first), _stamp(end), end - made.start]
        with self._lock:
            if self._file is not None:
                self._file.write("\t".join(_escape(each) for each in (self._rows, *facts, *times)) + "\n")
                self._rows += 1

    def close(self) -> None:
        """End the log. Closing twice is no error."""
        global _log  # noqa: PLW0603 - the process has one
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
        if _log is self:
            _log = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def op_log(path: str | os.PathLike[str]) -> OpLog:
    """Write every request to an object store from now on to ``path``, one row of tab-separated text each.

    The columns are those of s3dlio and warp, which can replay them: idx, thread, op, client_id (the process),
    n_objects, bytes, endpoint, file, error, start, first_byte, end, duration_ns. An upload in parts has a row for each
    part, with the time it took to hand it over. A second log ends the first. It ends with ``close()``, or with the
    ``with`` block.

    Examples:
        >>> with op_log("requests.tsv") as log:
        ...     pass
        >>> from pathlib import Path
        >>> Path("requests.tsv").read_text().split()[:3]
        ['idx', 'thread', 'op']
    """
    global _log  # noqa: PLW0603 - the process has one
    if _log is not None:
        _log.close()
    _log = OpLog(path)
    return _log


@contextmanager
def request(op: str, url: str, endpoint: str, *, objects: int = 1, retry: bool = False) -> Iterator[Request]:
    """Count a request, and log it when it ends."""
    made = Request(op, url, endpoint, objects=objects, is_retry=retry)
    totals, error = _totals, ""
    totals.begin(made)
    try:
        yield made
    except GeneratorExit:  # the reader stopped early: nothing failed
        raise
    except BaseException as problem:
        error = getattr(problem, "summary", type(problem).__name__)
        raise
    finally:
        end = time.time_ns()
        totals.end(made, bool(error), end)
        if _log is not None:
            _log.add(made, error, end)


def _stamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _escape(value: object) -> str:
    return str(value).replace("\t", "%09").replace("\n", "%0A").replace("\r", "%0D")


def _reset_after_fork() -> None:
    """Start new counters; the log belongs to the parent."""
    global _totals, _log
    _totals, _log = _Totals(), None


register_after_fork(_reset_after_fork)
