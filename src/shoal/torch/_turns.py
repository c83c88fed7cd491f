"""How the workers of PyTorch's loader agree on which iteration it is."""

from __future__ import annotations

import zlib
from typing import Any

__all__ = ["TURNS", "Turn"]

TURNS, _TAG, _NUMBER = 8, 20, 23


class Turn:
    """Which iteration of PyTorch's loader this is: all its workers must come to the same number, without a word.

    They know a seed that is new in each iteration, and share a few numbers in memory. The first worker with a new seed
    writes it down beside the next number; one that does so at the same time writes the same. An entry is one word of
    64 bits, so it is never seen half: the place where the parent's loader stood, the seed, the number plus one.
    """

    def __init__(self, shared: Any, begun: str, seed: str) -> None:
        self._shared = shared
        self._begun = zlib.crc32(begun.encode()) >> (32 - _TAG)
        self._seed = zlib.crc32(seed.encode()) >> (32 - _TAG)

    def number(self) -> int:
        """The number of this iteration, counted from where the parent's loader stood."""
        entries = [self._parts(entry) for entry in self._shared.tolist()]
        mine = {seed: number for begun, seed, number in entries if begun == self._begun and number >= 0}
        if self._seed not in mine:
            return self.claim(max(mine.values(), default=-1) + 1)
        return mine[self._seed]

    def claim(self, number: int) -> int:
        """Say that this iteration has this number."""
        self._shared[number % TURNS] = (self._begun << (_TAG + _NUMBER)) | (self._seed << _NUMBER) | (number + 1)
        return number

    @staticmethod
    def _parts(entry: int) -> tuple[int, int, int]:
        tag = (1 << _TAG) - 1
        return entry >> (_TAG + _NUMBER), (entry >> _NUMBER) & tag, (entry & ((1 << _NUMBER) - 1)) - 1
