"""Damage of every kind, at random from a seed; and which samples it left whole, found by looking for their bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from shoal.shard import ShardRows, members_of

__all__ = ["damaged", "whole_keys"]

BLOCKS = (512, 512, 4096, 1024, 100, 10240)


def truncated(data: bytearray, luck: random.Random) -> None:
    """A tail is gone: anywhere, or just at a block's end."""
    stop = luck.randrange(len(data))
    del data[stop // 512 * 512 if luck.random() < 0.5 else stop :]


def flipped(data: bytearray, luck: random.Random) -> None:
    """A few bits are others."""
    for _ in range(luck.randint(1, 6)):
        data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)


def zeroed(data: bytearray, luck: random.Random) -> None:
    """A block is zeros."""
    start, size = _block(data, luck)
    data[start : start + size] = bytes(len(data[start : start + size]))


def swapped(data: bytearray, luck: random.Random) -> None:
    """Two blocks have changed places."""
    (one, size), (other, _) = _block(data, luck), _block(data, luck)
    other = other // size * size if size % 512 == 0 else other
    if abs(one - other) < size or max(one, other) + size > len(data):
        return
    data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def taken_out(data: bytearray, luck: random.Random) -> None:
    """A part is missing, and what follows has moved up."""
    start, size = _block(data, luck)
    del data[start : start + size]


KINDS = (truncated, flipped, zeroed, swapped, taken_out)


def _block(data: bytearray, luck: random.Random) -> tuple[int, int]:
    size = luck.choice(BLOCKS)
    start = luck.randrange(len(data))
    return (start // size * size if size % 512 == 0 else start), size


def damaged(data: bytes, luck: random.Random) -> bytes:
    """The bytes after one to three accidents."""
    changed = bytearray(data)
    for _ in range(luck.randint(1, 3)):
        if changed:
            luck.choice(KINDS)(changed, luck)
    return bytes(changed)


def whole_keys(before: bytes, after: bytes, index: ShardRows, entries: Mapping[str, Sequence[bytes]]) -> set[str]:
    """The samples of which every member is still there: at its place, or behind its own headers wherever they are.

    ``entries`` has, for each key, every member as it stood in the tar: its headers and its data.
    """
    whole = set()
    for row, key in enumerate(index.key_list(0, len(index))):
        pairs = zip(members_of(index, row), entries[key], strict=True)
        if all(_is_there(before, after, member.offset, member.size, entry) for member, entry in pairs):
            whole.add(key)
    return whole


def _is_there(before: bytes, after: bytes, offset: int, size: int, entry: bytes) -> bool:
    data = before[offset : offset + size]
    return (after[offset : offset + size] == data and len(after) >= offset + size) or entry in after
