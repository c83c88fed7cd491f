"""How often blocks will still be read: pure counting, epoch by epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

__all__ = ["Uses"]

Int64 = npt.NDArray[np.int64]


class Uses:
    """Reads of blocks that are known to come, and which blocks are over.

    Example:
        >>> uses = Uses()
        >>> uses.expect(0, np.array([1, 2, 1]))
        set()
        >>> uses.read(np.array([1])), uses.read(np.array([1, 2]))
        (set(), {1, 2})
    """

    def __init__(self) -> None:
        self._left: dict[int, list[list[int]]] = {}
        """Of each block the epochs that are known to need it, and how often still."""
        self._early: Counter[int] = Counter()
        """Reads of blocks before they were known to come."""
        self.expected = 0
        self.done = 0

    def __contains__(self, block: int) -> bool:
        return block in self._left

    def epochs(self, block: int) -> int:
        """How many epochs are known to need it still."""
        return len(self._left.get(block, ()))

    def expect(self, epoch: int, blocks: Int64) -> set[int]:
        """These will be read in an epoch, after all that is known; gives those that were read so often already."""
        self.expected += len(blocks)
        over = set()
        for block, count in _counted(blocks):
            early = min(count, self._early.pop(block, 0))
            epochs = self._left.setdefault(block, [])
            if epochs and epochs[-1][0] == epoch:
                epochs[-1][1] += count - early
            elif count > early:
                epochs.append([epoch, count - early])
            if not epochs:
                del self._left[block]
                over.add(block)
        return over

    def read(self, blocks: Int64) -> set[int]:
        """These were read; gives the blocks that the epoch has done with."""
        self.done += len(blocks)
        over = set()
        for block, count in _counted(blocks):
            epochs = self._left.get(block)
            if epochs is None:
                self._early[block] += count
                continue
            epochs[0][1] -= count
            if epochs[0][1] <= 0:
                over.add(block)
                del epochs[0]
                if not epochs:
                    del self._left[block]
        return over


def _counted(blocks: Int64) -> list[tuple[int, int]]:
    found, counts = np.unique(blocks, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
