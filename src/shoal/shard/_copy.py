"""Samples from shards into another shard as the bytes they are: members are neither read apart nor laid out again.

A sample of a tar is one run of bytes, headers and padding included, from the end of the sample before it to the end of
its own last member. Neighbouring samples are one longer run. So a shard can be made of others by copying runs, and its
index by copying rows: nothing is decoded, and each byte is checked against the source's index on the way.

The bytes pass through this process once, in pieces: the next is read and checked while the last is written.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shoal.errors import HeaderError
from shoal.shard._folder import field_totals
from shoal.shard._index import BlockCutter, ShardIndex
from shoal.shard._many import ShardSource
from shoal.shard._one import Shard, damaged
from shoal.shard._tar import BLOCK, Chunk, StreamFeed, WriteBehind, crc32, lay_out, scan
from shoal.store import store_for

from ._copy_index import Run, join_indexes
from ._held import HeldShard, HeldShards
from ._shard_file import WrittenShard, end_marker

__all__ = ["copy_samples"]

Int64 = npt.NDArray[np.int64]
_Piece = tuple[memoryview, Int64, Int64]
"""The next bytes of the new tar, where samples start in it, and the numbers of those samples."""
_NONE = np.empty(0, np.int64)
_LONG_RUN = 1 << 20
"""From here on a run is read by the source's blocks; shorter ones are gathered, and several read at once."""
_GATHERED = 8 << 20


def copy_samples(
    url: str,
    source: ShardSource,
    numbers: Int64,
    *,
    hold: Callable[[int], HeldShard] | None = None,
    extra: Sequence[tuple[str, bytes]] = (),
    hashed: bool = False,
    durable: bool = False,
    before_commit: Callable[[], None] = lambda: None,
    tell: Callable[[int, int], None] = lambda samples, size: None,
) -> WrittenShard | None:
    """Write the samples with these numbers as a shard at ``url``, in this order, byte by byte as they are.

    ``hold`` gives what `hold_shard` gives of a shard, for callers who keep that. ``extra`` are members behind the
    samples that belong to none. None, and nothing written, where samples cannot be copied so: a source is of another
    kind (see `can_copy`), or a key would be there twice. Raises ChecksumError or HeaderError when a sample
    is damaged. ``tell`` is called with the samples and bytes of each part that is through.

    Example:
        >>> import shoal
        >>> from shoal.shard import ShardSource, copy_samples, locate_shards
        >>> with shoal.ShardWriter("memory://doc/copied/a-%06d.tar", max_samples=2) as writer:
        ...     for number in range(5):
        ...         writer.write({"__key__": f"k{number}", "txt": "hello"})
        >>> source = ShardSource(locate_shards("memory://doc/copied").shards)
        >>> copy_samples("memory://doc/copied/all.tar", source, np.array([4, 0, 1])).index.keys.to_pylist()
        ['k4', 'k0', 'k1']
    """
    shards = HeldShards(source, hold)
    runs = _runs(shards, np.asarray(numbers, np.int64))
    index = join_indexes([(shards.held(run.shard).index, run) for run in runs]) if runs else None
    if index is None:
        return None
    cutter = BlockCutter()
    sink = _Sink(url, hashed)
    try:
        pieces = itertools.chain(_pieces(shards, runs), _extra_piece(extra))
        for data, samples in _cut(pieces, cutter):
            sink.write(data)
            tell(samples, len(data))
        before_commit()
        return sink.commit(replace(index, blocks=cutter.finish(len(index))), durable)
    except BaseException:
        sink.abort()
        raise
    finally:
        shards.close()


def _runs(shards: HeldShards, numbers: Int64) -> list[Run]:
    """The numbers as runs of neighbours; none where a shard cannot be copied from."""
    if not len(numbers):
        return []
    firsts = shards.source.starts
    of = np.searchsorted(firsts, numbers, "right") - 1
    breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(of) != 0)) + 1
    edges = [0, *breaks.tolist(), len(numbers)]
    runs, at = [], 0
    for begin, end in itertools.pairwise(edges):
        shard = int(of[begin])
        held = shards.held(shard)
        if not held.copies:
            return []
        first = int(numbers[begin] - firsts[shard])
        last = first + end - begin
        start, stop = int(held.starts[first]), int(held.stops[last - 1])
        runs.append(Run(shard, first, last, start, stop, at, begin))
        at += stop - start
    return runs


# ------------------------------------------------------------------------------------------------------------- reading


def _cut(pieces: Iterable[_Piece], cutter: BlockCutter) -> Iterator[tuple[memoryview, int]]:
    """The bytes of each piece and how many samples start in it, cut into the new tar's blocks on the way."""
    at = 0
    for data, starts, rows in pieces:
        cutter.add(data, at, starts, rows)
        at += len(data)
        yield data, len(rows)


def _pieces(shards: HeldShards, runs: Sequence[Run]) -> Iterator[_Piece]:
    for part in _parts(runs):
        if _is_long(part[0]):
            yield from _long_pieces(shards, part[0])
        else:
            yield _short_piece(shards, part)


def _extra_piece(extra: Sequence[tuple[str, bytes]]) -> Iterator[_Piece]:
    if extra:
        names, contents = zip(*extra, strict=True)
        sizes = np.array([len(data) for data in contents])
        yield memoryview(lay_out([name.encode() for name in names], contents, sizes, 0)[0]), _NONE, _NONE


def _is_long(run: Run) -> bool:
    return run.stop - run.start >= _LONG_RUN


def _parts(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Long runs alone, short ones some together."""
    gathered: list[Run] = []
    size = 0
    for run in runs:
        length = run.stop - run.start
        if gathered and (_is_long(run) or size + length > _GATHERED):
            yield gathered
            gathered, size = [], 0
        if _is_long(run):
            yield [run]
        else:
            gathered.append(run)
            size += length
    if gathered:
        yield gathered


def _long_pieces(shards: HeldShards, run: Run) -> Iterator[_Piece]:
    """By the source's blocks, each checked as a whole; of the first and the last only what belongs to the run."""
    starts = shards.held(run.shard).starts
    for low, high, data in shards.open(run.shard).checked_blocks(run.start, run.stop):
        base, end = max(run.start, low), min(run.stop, high)
        first, last = np.clip(np.searchsorted(starts, (base, end)), run.first, run.last).tolist()
        rows = np.arange(first, last) + (run.row - run.first)
        yield memoryview(data)[base - low : end - low], starts[first:last] + (run.at - run.start), rows


def _short_piece(shards: HeldShards, runs: list[Run]) -> _Piece:
    """In the source's order, several of a shard at once, into one buffer in the new order."""
    base = runs[0].at
    buffer = memoryview(bytearray(runs[-1].at + runs[-1].stop - runs[-1].start - base))
    for run in sorted(runs, key=lambda run: (run.shard, run.start)):
        shard = shards.open(run.shard)
        place = buffer[run.at - base : run.at - base + run.stop - run.start]
        shard.read_into(run.start, [place])
        if shard.verify:
            _check_members(shard, run, place)
    if shards.source.verify:
        _check_headers(shards, runs, buffer)
    starts = [shards.held(run.shard).starts[run.first : run.last] + (run.at - run.start) for run in runs]
    rows = np.arange(runs[0].row, runs[-1].row + runs[-1].last - runs[-1].first)
    return buffer, np.concatenate(starts), rows


def _check_members(shard: Shard, run: Run, data: memoryview) -> None:
    for name, part in shard.index.fields.items():
        if part.crc is None:
            continue
        columns = (part.offset[run.first : run.last], part.size[run.first : run.last], part.crc[run.first : run.last])
        for row, (offset, size, crc) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            at = offset - run.start
            if offset and (found := crc32(data[at : at + size])) != crc:
                raise damaged(shard.url, shard.index.keys[run.first + row].as_py(), name, offset, crc, found)


def _check_headers(shards: HeldShards, runs: list[Run], data: memoryview) -> None:
    """No checksum of the index is over a header, but each has one of its own, and says where its member lies."""
    stream = io.BytesIO(bytes(data) + end_marker(len(data)))
    chunks = [chunk for chunk in scan(StreamFeed(stream)) if isinstance(chunk, Chunk)]
    found = np.concatenate([np.empty(0, np.int64), *(chunk.offsets for chunk in chunks)])
    expected = np.sort(np.concatenate([_offsets(shards.held(run.shard).index, run, runs[0].at) for run in runs]))
    if not np.array_equal(found, expected):
        urls = sorted({shards.held(run.shard).url for run in runs})
        raise HeaderError("headers are not those that were indexed", shard=urls[0] if len(urls) == 1 else None)


def _offsets(index: ShardIndex, run: Run, base: int) -> Int64:
    """Where the members of a run are, in a buffer that starts at ``base`` of the new tar."""
    parts = [part.offset[run.first : run.last].astype(np.int64) for part in index.fields.values()]
    offsets = np.concatenate(parts)
    return offsets[offsets > 0] - run.start + run.at - base


# ------------------------------------------------------------------------------------------------------------- writing


class _Sink:
    """The new tar, and what is found out of it on the way."""

    def __init__(self, url: str, hashed: bool) -> None:
        self._writer = WriteBehind(store_for(url).create(url))
        self._hash = hashlib.sha256() if hashed else None
        self._size = 0
        self._head = b""

    def write(self, data: memoryview) -> None:
        """Write the next bytes."""
        if len(self._head) < BLOCK:
            self._head += bytes(data[: BLOCK - len(self._head)])
        if self._hash is not None:
            self._hash.update(data)
        self._writer.write(data)
        self._size += len(data)

    def commit(self, index: ShardIndex, durable: bool) -> WrittenShard:
        """End the tar, show it under its name, and tell its index what it is."""
        self.write(memoryview(end_marker(self._size)))
        self._writer.commit(durable=durable)
        whole = replace(index, facts=replace(index.facts, size=self._size, head_crc=crc32(self._head)))
        digest = None if self._hash is None else self._hash.hexdigest()
        return WrittenShard(whole, field_totals(whole), self._size, digest)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._writer.abort()
