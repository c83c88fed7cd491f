"""How many requests may be in flight at once, over all threads of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

__all__ = ["Gate", "hold_all"]


class Gate:
    """A bound on what goes on at once; who waits longest goes first, so large takers are not starved by small ones."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._taken = 0
        self._shared = 0
        self.limit = limit

    @contextmanager
    def hold(self, count: int = 1) -> Iterator[None]:
        """Wait for ``count`` places and keep them; more than there are is all of them."""
        count = min(count, self.limit)
        self._take(count)
        try:
            yield
        finally:
            self._give_back(count)

    def take_share(self, most: int) -> int:
        """Take up to ``most`` places for long, and return how many: all shares together are at most half of the places.

        So there are always places for short requests, and a share waits only for such: nobody waits in a circle. When
        half of them are taken there is none to be had.
        """
        with self._lock:
            count = min(most, self.limit // 2 - self._shared)
            if count <= 0:
                return 0
            self._shared += count
        self._take(count)
        return count

    def give_back_share(self, count: int) -> None:
        """Return the places that `take_share` gave."""
        with self._lock:
            self._shared -= count
        self._give_back(count)

    def _take(self, count: int) -> None:
        with self._lock:
            if not self._waiting and self._taken + count <= self.limit:
                self._taken += count
                return
            turn = threading.Event()
            self._waiting.append((count, turn))
        try:
            turn.wait()  # every holder is a request with a timeout
        except BaseException:
            self._withdraw(count, turn)
            raise

    def _withdraw(self, count: int, turn: threading.Event) -> None:
        """Ctrl-C while waiting: the place in the queue, or the places just given, must not be lost."""
        with self._lock:
            if not turn.is_set():
                self._waiting.remove((count, turn))
                return
        self._give_back(count)

    def _give_back(self, count: int) -> None:
        with self._lock:
            self._taken -= count
            while self._waiting and self._taken + self._waiting[0][0] <= self.limit:
                wanted, turn = self._waiting.popleft()
                self._taken += wanted
                turn.set()


@contextmanager
def hold_all(gates: Sequence[Gate], count: int = 1) -> Iterator[None]:
    """Hold places at each gate, taken in the order given: it must be the same order for everybody."""
    with ExitStack() as stack:
        for gate in gates:
            stack.enter_context(gate.hold(count))
        yield
