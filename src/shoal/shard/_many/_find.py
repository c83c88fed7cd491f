"""Samples by key, over many shards.

Keys mostly rise from sample to sample. Of a shard where they do, its first and last key tell whether it may hold
another, so that it need not be open, and halving finds the row. Other shards are looked through.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from shoal.shard._one import Shard
from shoal.shard._tar import key_hint

__all__ = ["KeyFinder"]

_BESIDE = 3
_SHARDS_SHOWN, _KEYS_SHOWN = 8, 2000


@dataclass(frozen=True, slots=True)
class _Keys:
    """What is remembered of the keys of a shard."""

    first: str
    last: str
    rise: bool

    def may_have(self, key: str) -> bool:
        return not self.rise or self.first <= key <= self.last


class KeyFinder:
    """Finds samples of shards that begin at ``starts``. Threads may share it."""

    def __init__(self, shard_at: Callable[[int], Shard], starts: Sequence[int]) -> None:
        self._shard_at = shard_at
        self._starts = starts
        self._met: dict[int, _Keys] = {}

    def find(self, key: str) -> int | None:
        """The number of the first sample with this key."""
        for number, first in enumerate(self._starts[:-1]):
            keys = self._keys(number)
            row = _row_of(self._shard_at(number), keys, key) if keys.may_have(key) else None
            if row is not None:
                return first + row
        return None

    def near(self, key: str) -> str | None:
        """What to say to who asked for a key that no sample has."""
        meant = [other for other in _variants(key, self._width()) if self.find(other) is not None]
        if meant:
            return f"did you mean {meant[0]!r}?"
        return key_hint(key, list(dict.fromkeys([*self._beside(key), *self._some()])))

    def _keys(self, number: int) -> _Keys:
        found = self._met.get(number)
        if found is None:
            found = self._met[number] = _keys_of(self._shard_at(number))
        return found

    def _width(self) -> int:
        return len(self._keys(0).first) if len(self._starts) > 1 else 0

    def _beside(self, key: str) -> Iterator[str]:
        """The keys between which it would stand."""
        for number in range(len(self._starts) - 1):
            keys = self._keys(number)
            if keys.rise and keys.may_have(key):
                shard = self._shard_at(number)
                at = _place(shard, key)
                yield from shard.index.key_list(max(at - _BESIDE, 0), min(at + _BESIDE, len(shard)))

    def _some(self) -> Iterator[str]:
        """The first keys of some shards: enough to see how keys look."""
        for number in range(min(_SHARDS_SHOWN, len(self._starts) - 1)):
            shard = self._shard_at(number)
            yield from shard.index.key_list(0, min(_KEYS_SHOWN, len(shard)))


def _keys_of(shard: Shard) -> _Keys:
    keys = shard.index.keys
    if not len(keys):
        return _Keys("", "", rise=True)
    rises = pc.call_function("less_equal", [keys.slice(0, len(keys) - 1), keys.slice(1)])
    return _Keys(keys[0].as_py(), keys[-1].as_py(), rise=rises.true_count == len(rises))


def _row_of(shard: Shard, keys: _Keys, key: str) -> int | None:
    if not keys.rise:
        return shard.index.find(key)
    at = _place(shard, key)
    return at if at < len(shard) and shard.key(at) == key else None


def _place(shard: Shard, key: str) -> int:
    return bisect.bisect_left(range(len(shard)), key, key=shard.key)


def _variants(key: str, width: int) -> Iterator[str]:
    """What the same key may look like: a number with other zeros before it, a file's name, a path."""
    plain = key.strip().replace("\\", "/").removeprefix("./")
    folder, slash, base = plain.rpartition("/")
    stem = base.partition(".")[0]
    for other in (plain, folder + slash + stem, base, stem, stem.lower(), stem.upper()):
        yield other
        if other.isascii() and other.isdigit():
            number = other.lstrip("0") or "0"
            yield from (number.zfill(width), number)
