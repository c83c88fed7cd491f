"""Where members start and stop, worked out for thousands of rows at once.

A block has a hundred rows or so of several fields: column by column, what NumPy takes to begin is more than what it
takes to do it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._index import ShardIndex

__all__ = ["Edges", "edges_from"]

Int64 = npt.NDArray[np.int64]

_ROWS = 8192
_MISSING = np.int64(-1)


@dataclass(frozen=True, slots=True)
class Edges:
    """For rows from ``first`` on, two lines for each field: where its member starts, and where it stops.

    A member that does not exist starts at a negative place.
    """

    first: int
    lines: Int64

    def hold(self, start: int, stop: int) -> bool:
        """Whether rows ``[start, stop)`` are among them."""
        return self.first <= start and stop <= self.first + self.lines.shape[1]

    def counted_from(self, base: int, start: int, stop: int) -> list[list[int]]:
        """The lines of rows ``[start, stop)``, as places counted from ``base``."""
        places: list[list[int]] = (self.lines[:, start - self.first : stop - self.first] - base).tolist()
        return places

    def span(self, start: int, stop: int) -> tuple[int, int, int]:
        """Where the first member of rows ``[start, stop)`` starts, where the last one stops, and what all take."""
        lines = self.lines[:, start - self.first : stop - self.first]
        starts, stops = lines[::2], lines[1::2]
        base, end = int(starts.min()), int(stops.max())
        if base < 0:  # some are missing, or all are
            base = int(starts[starts >= 0].min(initial=end))
        return base, end, int((stops - starts).sum())


def edges_from(index: ShardIndex, start: int, stop: int) -> Edges:
    """Of rows ``[start, stop)`` and some more that follow."""
    rows = slice(start, max(stop, min(start + _ROWS, len(index))))
    lines = np.empty((2 * len(index.fields), rows.stop - start), np.int64)
    for number, part in enumerate(index.fields.values()):
        offset = part.offset[rows].view(np.int64)
        lines[2 * number] = np.where(offset > 0, offset, _MISSING)
        np.add(offset, part.size[rows].view(np.int64), out=lines[2 * number + 1])
    return Edges(start, lines)
