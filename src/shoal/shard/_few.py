"""One field of a few samples of each of many shards: what a shuffled batch is.

For a few samples, planning reads and checking them as columns takes longer than reading them. So each is read by
itself, and all of them become one buffer, in the order in which they were asked for.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ._arrow import as_arrow
from ._crc import crc32
from ._plan import GAP_BYTES
from ._raw import RawField
from ._shard import FEW, Shard, damaged

__all__ = ["raw_few"]

Int64 = npt.NDArray[np.int64]


def raw_few(shard_at: Callable[[int], Shard], starts: Int64, rows: Int64, field: str) -> RawField | None:
    """These samples, whose shards begin at ``starts``; None where they are many of a shard, or not read so.

    Raises ChecksumError and TruncatedError.
    """
    numbers = np.searchsorted(starts, rows, "right") - 1
    own = rows - starts[numbers]
    which, among = np.unique(numbers, return_inverse=True)
    if len(which) < 2 or len(rows) > FEW * len(which):
        return None
    found: list[bytes] = [b""] * len(rows)
    shards = [shard_at(number) for number in which.tolist()]
    for shard, places in zip(shards, _places(among, len(which)), strict=True):
        values = _values(shard, own[places], field)
        if values is None:
            return None
        for place, value in zip(places.tolist(), values, strict=True):
            found[place] = value
    sizes = np.fromiter(map(len, found), np.int64, len(found))
    urls = tuple(shard.url for shard in shards)
    keys = functools.partial(_keys, [shard.index.keys for shard in shards], among, own)
    return RawField(b"".join(found), np.cumsum(sizes) - sizes, sizes, keys, urls, among)


def _places(among: Int64, count: int) -> Iterator[Int64]:
    """Where the samples of each shard are."""
    order = np.argsort(among, kind="stable")
    edges = np.searchsorted(among[order], np.arange(count + 1)).tolist()
    return (order[start:stop] for start, stop in itertools.pairwise(edges))


def _values(shard: Shard, rows: Int64, field: str) -> list[bytes] | None:
    part = shard.index.fields.get(field)
    if part is None or not shard.is_near:
        return None
    offsets, sizes = part.offset[rows].tolist(), part.size[rows].tolist()
    stops = list(map(int.__add__, offsets, sizes))
    if not all(offsets) or _are_neighbours(offsets, stops):
        return _together(shard, rows, field)
    found = shard.read_each(offsets, stops)
    if shard.verify and part.crc is not None:
        expected = part.crc[rows].tolist()
        for at, crc in enumerate(map(crc32, found)):
            if crc != expected[at]:
                key = shard.index.keys[int(rows[at])].as_py()
                raise damaged(shard.url, key, field, offsets[at], expected[at], crc)
    return found


def _are_neighbours(offsets: list[int], stops: list[int]) -> bool:
    """Whether some lie so near each other that they are read together."""
    if len(offsets) < 2:
        return False
    begins, ends = sorted(offsets), sorted(stops)
    return any(begin - end <= GAP_BYTES for begin, end in zip(begins[1:], ends, strict=False))


def _together(shard: Shard, rows: Int64, field: str) -> list[bytes] | None:
    raw = shard.raw_rows(rows, field)
    if bool((raw.starts < 0).any()):
        return None
    view, ends = memoryview(raw.data), (raw.starts + raw.sizes).tolist()
    return [bytes(view[start:end]) for start, end in zip(raw.starts.tolist(), ends, strict=True)]


def _keys(arrays: list[pa.StringArray], among: Int64, rows: Int64) -> pa.StringArray:
    """The keys of these samples; few ask for them."""
    firsts = np.cumsum([0, *map(len, arrays[:-1])])
    return pa.concat_arrays(arrays).take(as_arrow(firsts[among] + rows))
