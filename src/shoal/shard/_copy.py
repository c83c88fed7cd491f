"""Copy samples from shards into a new shard without decoding them.

A sample of a tar is one run of bytes, headers and padding included, from the end of the sample before it to the end of
its own last member. Neighbouring samples are one longer run. So a shard can be made of others by copying runs, and its
index by copying rows: nothing is decoded, and each byte is checked against the source's index on the way.

The bytes pass through this process once: the next piece is read and checked while the last one is written.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import HeaderError
from shoal.store._registry import store_for

from ._arrow_arrays import common_type
from ._background_thread import WriteBehindBuffer
from ._byte_reader import PlainBytes
from ._extents import shard_extents
from ._index_build import MOST_WIDE_FIELDS, BlockCutter
from ._member_names import WEBDATASET_RULE
from ._metadata_columns import MOST_COLUMNS
from ._open_shards import shard_of_rows
from ._read import Fetched, columns_of
from ._read_plan import ONE_RANGE
from ._shard import Shard
from ._shard_file import WrittenShard, end_marker
from ._shard_rows import FieldExtents, IndexMetadata, LongExtents, ShardRows, damaged, field_totals
from ._source import ShardSource
from ._tar_header import BLOCK, lay_out, padded
from ._tar_scan import Chunk, StreamFeed, scan

__all__ = ["CopySource", "can_copy", "copy_samples", "open_copy_source", "sample_spans"]

_Piece = tuple[memoryview, IntArray, IntArray]
"""The next bytes of the new tar, where samples start in it, and the numbers of those samples."""
_NONE = np.empty(0, np.int64)
_LONG_RUN_BYTES = 1 << 20
"""From here on a run is read by the source's blocks; shorter ones are gathered, and several read at once."""
_MAX_GATHERED_BYTES = 8 << 20
_MAX_OPEN_SHARDS = 64


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Neighbouring samples ``[first, last)`` of one shard, which go to ``at`` in the new tar."""

    shard: int
    first: int
    last: int
    start: int
    stop: int
    at: int
    row: int
    """The number of its first sample in the new shard."""


def copy_samples(
    url: str,
    source: ShardSource,
    numbers: IntArray,
    *,
    hold: Callable[[int], CopySource] | None = None,
    extra: Sequence[tuple[str, bytes]] = (),
    hashed: bool = False,
    durable: bool = False,
    before_commit: Callable[[], None] = lambda: None,
    tell: Callable[[int, int], None] = lambda samples, size: None,
) -> WrittenShard | None:
    """Write the samples with these numbers as a shard at ``url``, in this order, byte by byte as they are.

    ``hold`` gives what `open_copy_source` gives of a shard, for callers who keep that. ``extra`` are members behind the
    samples that belong to none. None, and nothing written, where samples cannot be copied so: a source is of another
    kind (see `can_copy`), or a key would be there twice. Raises ChecksumError or HeaderError when a sample
    is damaged. ``tell`` is called with the samples and bytes of each part that is through.

    Examples:
        >>> import shoal
        >>> from shoal.shard import ShardSource, copy_samples, locate_shards
        >>> with shoal.ShardWriter("memory://doc/copied/a-%06d.tar", max_samples=2) as writer:
        ...     for number in range(5):
        ...         writer.write({"__key__": f"k{number}", "txt": "hello"})
        >>> source = ShardSource(locate_shards("memory://doc/copied").shards)
        >>> copy_samples("memory://doc/copied/all.tar", source, np.array([4, 0, 1])).index.keys.to_pylist()
        ['k4', 'k0', 'k1']
    """
    shards = _SourceShards(source, hold)
    runs = _runs(shards, np.asarray(numbers, np.int64))
    index = join_indexes([(shards.copy_source(run.shard).index, run) for run in runs]) if runs else None
    if index is None:
        return None
    cutter = BlockCutter()
    sink = _TarWriter(url, hashed)
    try:
        pieces = itertools.chain(_pieces(shards, runs), _extra_piece(extra))
        for data, samples in _cut_blocks(pieces, cutter):
            sink.write(data)
            tell(samples, len(data))
        before_commit()
        return sink.commit(replace(index, blocks=cutter.finish(len(index))), durable)
    except BaseException:
        sink.abort()
        raise
    finally:
        shards.close()


def _runs(shards: _SourceShards, numbers: IntArray) -> list[CopyRun]:
    """The numbers as runs of neighbours; none where a shard cannot be copied from."""
    if not len(numbers):
        return []
    firsts = shards.source.starts
    owners = np.searchsorted(firsts, numbers, "right") - 1
    breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(owners) != 0)) + 1
    edges = [0, *breaks.tolist(), len(numbers)]
    runs, at = [], 0
    for begin, end in itertools.pairwise(edges):
        shard = int(owners[begin])
        held = shards.copy_source(shard)
        if not held.copies:
            return []
        first = int(numbers[begin] - firsts[shard])
        last = first + end - begin
        start, stop = int(held.starts[first]), int(held.stops[last - 1])
        runs.append(CopyRun(shard, first, last, start, stop, at, begin))
        at += stop - start
    return runs


def _cut_blocks(pieces: Iterable[_Piece], cutter: BlockCutter) -> Iterator[tuple[memoryview, int]]:
    """The bytes of each piece and how many samples start in it, cut into the new tar's blocks on the way."""
    at = 0
    for data, starts, rows in pieces:
        cutter.add(data, at, starts, rows)
        at += len(data)
        yield data, len(rows)


def _pieces(shards: _SourceShards, runs: Sequence[CopyRun]) -> Iterator[_Piece]:
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


def _is_long(run: CopyRun) -> bool:
    return run.stop - run.start >= _LONG_RUN_BYTES


def _parts(runs: Sequence[CopyRun]) -> Iterator[list[CopyRun]]:
    """Long runs alone, short ones some together."""
    gathered: list[CopyRun] = []
    size = 0
    for run in runs:
        length = run.stop - run.start
        if gathered and (_is_long(run) or size + length > _MAX_GATHERED_BYTES):
            yield gathered
            gathered, size = [], 0
        if _is_long(run):
            yield [run]
        else:
            gathered.append(run)
            size += length
    if gathered:
        yield gathered


def _long_pieces(shards: _SourceShards, run: CopyRun) -> Iterator[_Piece]:
    """By the source's blocks, each checked as a whole; of the first and the last only what belongs to the run."""
    starts = shards.copy_source(run.shard).starts
    for low, high, data in _checked_blocks(shards.open(run.shard), run.start, run.stop):
        base, end = max(run.start, low), min(run.stop, high)
        first, last = np.clip(np.searchsorted(starts, (base, end)), run.first, run.last).tolist()
        rows = np.arange(first, last) + (run.row - run.first)
        yield memoryview(data)[base - low : end - low], starts[first:last] + (run.at - run.start), rows


def _checked_blocks(shard: Shard, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
    """The blocks that hold the tar's bytes ``[start, stop)``, with where each starts and stops, verified."""
    blocks = shard.blocks
    assert blocks is not None  # noqa: S101 - long runs are of shards that have some
    for number in range(int(np.searchsorted(blocks.offsets, start, "right")) - 1, len(blocks)):
        base, end = blocks.offsets[number : number + 2].tolist()
        if base >= stop:
            return
        data = shard.data.read(base, end)
        if shard.verify and crc32(data) != blocks.crcs[number]:
            extents = shard_extents(shard, slice(*blocks.rows[number : number + 2].tolist()))
            columns_of(extents, Fetched([data], ONE_RANGE, np.array([base]), damaged_block=number))  # raises
        yield base, end, data


def _short_piece(shards: _SourceShards, runs: list[CopyRun]) -> _Piece:
    """In the source's order, several of a shard at once, into one buffer in the new order."""
    base = runs[0].at
    buffer = memoryview(bytearray(runs[-1].at + runs[-1].stop - runs[-1].start - base))
    for run in sorted(runs, key=lambda run: (run.shard, run.start)):
        shard = shards.open(run.shard)
        place = buffer[run.at - base : run.at - base + run.stop - run.start]
        shard.data.read_into(run.start, [place])
        if shard.verify:
            _check_members(shard, run, place)
    if shards.source.verify:
        _check_headers(shards, runs, buffer)
    starts = [shards.copy_source(run.shard).starts[run.first : run.last] + (run.at - run.start) for run in runs]
    rows = np.arange(runs[0].row, runs[-1].row + runs[-1].last - runs[-1].first)
    return buffer, np.concatenate(starts), rows


def _check_members(shard: Shard, run: CopyRun, data: memoryview) -> None:
    for name, part in shard.index.fields.items():
        if part.crc is None:
            continue
        columns = (part.offset[run.first : run.last], part.size[run.first : run.last], part.crc[run.first : run.last])
        for row, (offset, size, crc) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            at = offset - run.start
            if offset and (found := crc32(data[at : at + size])) != crc:
                raise damaged(shard.url, shard.index.keys[run.first + row].as_py(), name, offset, crc, found)


def _check_headers(shards: _SourceShards, runs: list[CopyRun], data: memoryview) -> None:
    """No checksum of the index is over a header, but each has one of its own, and says where its member lies."""
    stream = io.BytesIO(bytes(data) + end_marker(len(data)))
    chunks = [chunk for chunk in scan(StreamFeed(stream)) if isinstance(chunk, Chunk)]
    found = np.concatenate([np.empty(0, np.int64), *(chunk.offsets for chunk in chunks)])
    expected = np.sort(np.concatenate([_offsets(shards.copy_source(run.shard).index, run, runs[0].at) for run in runs]))
    if not np.array_equal(found, expected):
        urls = sorted({shards.copy_source(run.shard).url for run in runs})
        raise HeaderError("headers are not those that were indexed", shard=urls[0] if len(urls) == 1 else None)


def _offsets(index: ShardRows, run: CopyRun, base: int) -> IntArray:
    """Where the members of a run are, in a buffer that starts at ``base`` of the new tar."""
    parts = [part.offset[run.first : run.last].astype(np.int64) for part in index.fields.values()]
    offsets = np.concatenate(parts)
    return offsets[offsets > 0] - run.start + run.at - base


class _TarWriter:
    """The new tar being written, with its size, first header and hash."""

    def __init__(self, url: str, hashed: bool) -> None:
        self._writer = WriteBehindBuffer(store_for(url).create(url))
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

    def commit(self, index: ShardRows, durable: bool) -> WrittenShard:
        """End the tar, show it under its name, and tell its index what it is."""
        self.write(memoryview(end_marker(self._size)))
        self._writer.commit(durable=durable)
        whole = replace(index, facts=replace(index.facts, size=self._size, head_crc=crc32(self._head)))
        digest = None if self._hash is None else self._hash.hexdigest()
        return WrittenShard(whole, field_totals(whole), self._size, digest)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._writer.abort()


_Picks = Sequence[tuple[ShardRows, CopyRun]]


def join_indexes(picks: _Picks) -> ShardRows | None:
    """The rows of all runs as one index, offsets as they are in the new tar.

    None where they cannot be one: a key is there twice, or there are too many fields. What concerns the new tar as a
    whole is still to be filled in: its size, its first header, its blocks.
    """
    keys = pa.concat_arrays([index.keys.slice(run.first, run.last - run.first) for index, run in picks])
    if len(keys.unique()) < len(keys):
        return None
    fields = _join_fields(picks)
    if len(fields) > MOST_WIDE_FIELDS:
        return None
    columns, facts = _join_columns(picks, fields)
    return ShardRows(facts, keys, fields, columns, None)


def _join_fields(picks: _Picks) -> dict[str, FieldExtents]:
    """Fields in the order in which they first appear in the new tar; those no sample has are gone."""
    counts = [run.last - run.first for _, run in picks]
    shifts = np.repeat(np.array([run.at - run.start for _, run in picks], np.int64), counts)
    names = dict.fromkeys(name for index, _ in picks for name in index.fields)
    found = {name: _join_extents(name, picks, shifts) for name in names}
    present = {name: int(part.offset[part.offset > 0][0]) for name, part in found.items() if part.offset.any()}
    return {name: found[name] for name in sorted(present, key=present.__getitem__)}


def _join_extents(name: str, picks: _Picks, shifts: npt.NDArray[np.int64]) -> FieldExtents:
    parts = [_slice(index.fields.get(name), run) for index, run in picks]
    offsets = np.concatenate([part.offset for part in parts]).view(np.int64)
    moved = np.where(offsets > 0, offsets + shifts, 0).view(np.uint64)
    crcs = [part.crc for part in parts if part.crc is not None]
    complete = len(crcs) == len(parts)
    return FieldExtents(
        moved, np.concatenate([part.size for part in parts]), np.concatenate(crcs) if complete else None
    )


def _slice(part: FieldExtents | None, run: CopyRun) -> FieldExtents:
    """A run's rows of a field; one that the shard does not have is lacking in each sample."""
    if part is None:
        none = np.zeros(run.last - run.first, np.uint64)
        return FieldExtents(none, none, none.astype(np.uint32))
    rows = slice(run.first, run.last)
    return FieldExtents(part.offset[rows], part.size[rows], None if part.crc is None else part.crc[rows])


def _join_columns(picks: _Picks, fields: Iterable[str]) -> tuple[dict[str, pa.Array], IndexMetadata]:
    """The columns of fields that are there still, and what is known of those that are not here."""
    indexes = list({id(index): index for index, _ in picks}.values())
    dropped: dict[str, str] = {}
    for index in indexes:
        dropped |= index.facts.dropped
    nested = {name for index in indexes for name in index.facts.nested}
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for index in indexes for name in index.columns):
        if _belongs_to(name, dropped) or not _belongs_to(name, fields):
            continue
        unknown = [why for index in indexes if name not in index.columns and (why := index.facts.unanswerable(name))]
        column = None if unknown or len(columns) >= MOST_COLUMNS else _join_column(name, picks)
        if column is not None:
            columns[name] = column
        else:
            dropped[name] = f"over {MOST_COLUMNS} columns" if len(columns) >= MOST_COLUMNS else "mixed types"
    complete = all(index.facts.complete for index in indexes)
    return columns, IndexMetadata(
        0, 0, dropped=dropped, nested=sorted(nested), unreadable=_join_unreadable(picks), complete=complete
    )


def _join_column(name: str, picks: _Picks) -> pa.Array | None:
    """One column of all runs; None where its types differ."""
    parts = [
        pa.nulls(run.last - run.first) if column is None else column.slice(run.first, run.last - run.first)
        for column, run in ((index.columns.get(name), run) for index, run in picks)
    ]
    kind = common_type(parts)
    try:
        return None if kind is None else pa.concat_arrays([part.cast(kind) for part in parts])
    except pa.ArrowInvalid:  # an integer that no float is equal to
        return None


def _join_unreadable(picks: _Picks) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    start = 0
    for index, run in picks:
        for field, rows in index.facts.unreadable.items():
            moved = [start + row - run.first for row in rows if run.first <= row < run.last]
            found.setdefault(field, []).extend(moved)
        start += run.last - run.first
    return {field: rows for field, rows in found.items() if rows}


def _belongs_to(column: str, fields: Iterable[str]) -> bool:
    """Whether a column is of one of these fields: called as it is, or after it."""
    return any(column == field or column.startswith(f"{field}.") for field in fields)


def sample_spans(index: ShardRows) -> tuple[IntArray, IntArray]:
    """Where each sample's bytes start and stop in the tar, headers and padding included."""
    if not len(index):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    last = np.zeros(len(index), np.int64)
    for part in index.fields.values():
        np.maximum(last, part.offset.view(np.int64) + part.size.view(np.int64), out=last)
    stops = padded(last)
    return np.concatenate(([0], stops[:-1])), stops


def can_copy(index: ShardRows) -> bool:
    """Whether samples of the shard can be copied as bytes: each a run of neighbours, nothing else between them."""
    return (
        index.blocks is not None
        and not index.facts.skipped
        and index.facts.rule == WEBDATASET_RULE
        and not isinstance(index.fields, LongExtents)
        and len(index.fields) <= MOST_WIDE_FIELDS
    )


@dataclass(frozen=True, slots=True)
class CopySource:
    """What copying needs of a shard that is not open: its index, and where its samples are."""

    url: str
    index: ShardRows
    starts: IntArray
    stops: IntArray
    copies: bool
    """Whether samples can be copied from it as bytes."""

    @property
    def sizes(self) -> IntArray:
        """The bytes of a tar that each sample takes."""
        return self.stops - self.starts


def open_copy_source(source: ShardSource, number: int) -> CopySource:
    """What copying needs of a shard of a source. To hold many costs little memory, and saves opening them again."""
    shard = source.shard(number)
    starts, stops = sample_spans(shard.index)
    return CopySource(
        shard.url, shard.index, starts, stops, can_copy(shard.index) and not _starts_with_global_header(shard)
    )


def _starts_with_global_header(shard: Shard) -> bool:
    """Whether the archive begins with a header that speaks of all members: it has no place in the middle of another."""
    head = bytearray(BLOCK)
    if len(shard.index):
        shard.data.read_into(0, [memoryview(head)])
    return head[156:157] == b"g"


class _SourceShards:
    """The shards that are copied from: their indexes stay in memory, the most recently used ones are open."""

    def __init__(self, source: ShardSource, hold: Callable[[int], CopySource] | None = None) -> None:
        self.source = source
        self._hold = hold
        self._held: dict[int, CopySource] = {}
        self._open: OrderedDict[int, Shard] = OrderedDict()

    def copy_source(self, number: int) -> CopySource:
        """The index and sample positions of a shard."""
        found = self._held.get(number)
        if found is None:
            found = open_copy_source(self.source, number) if self._hold is None else self._hold(number)
            self._held[number] = found
        return found

    def open(self, number: int) -> Shard:
        """An open shard: only the file is opened, since its index is held."""
        held = self.copy_source(number)
        if held.index.facts.compression is not None:
            return self.source.shard(number)
        found = self._open.get(number)
        if found is None:
            data = PlainBytes(store_for(held.url).open(held.url))
            found = self._open[number] = shard_of_rows(held.url, held.index, data, verify=self.source.verify)
            if len(self._open) > _MAX_OPEN_SHARDS:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return found

    def close(self) -> None:
        """Give all files back."""
        for shard in self._open.values():
            shard.close()
        self._open.clear()
