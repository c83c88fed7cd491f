"""Samples from shards into another shard as the bytes they are: members are neither read apart nor laid out again.

A sample of a tar is one run of bytes, headers and padding included, from the end of the sample before it to the end of
its own last member. Neighbouring samples are one longer run. So a shard can be made of others by copying runs, and its
index by copying rows: nothing is decoded, and each byte is checked against the source's index on the way.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import HeaderError
from shoal.store import store_for

from ._assemble import MOST_WIDE_FIELDS
from ._build import BlockCutter
from ._bytes import PlainBytes
from ._columns import MOST_COLUMNS
from ._crc import crc32
from ._feed import StreamFeed
from ._header import BLOCK
from ._index import Extents, IndexFacts, LongExtents, ShardIndex
from ._keys import WEBDATASET_RULE
from ._layout import lay_out
from ._record import field_totals
from ._scan import Chunk, scan
from ._shard import Shard, damaged
from ._shard_file import WrittenShard, end_marker
from ._source import ShardSource

__all__ = ["HeldShard", "can_copy", "copy_samples", "hold_shard", "sample_spans"]

Int64 = npt.NDArray[np.int64]
_LONG_RUN = 1 << 20
"""From here on a run is read by the source's blocks; shorter ones are gathered, and several read at once."""
_GATHERED = 8 << 20
_MOST_OPEN = 64
_FAR = np.int64(1 << 62)
_NUMBERS = {"int64", "double", "null"}


def sample_spans(index: ShardIndex) -> tuple[Int64, Int64]:
    """Where each sample's bytes start and stop in the tar, headers and padding included."""
    if not len(index):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    last = np.zeros(len(index), np.int64)
    for part in index.fields.values():
        np.maximum(last, part.offset.view(np.int64) + part.size.view(np.int64), out=last)
    stops = -(-last // BLOCK) * BLOCK
    return np.concatenate(([0], stops[:-1])), stops


def can_copy(index: ShardIndex) -> bool:
    """Whether samples of the shard can be copied as bytes: each a run of neighbours, nothing else between them."""
    return (
        index.blocks is not None
        and not index.facts.skipped
        and index.facts.rule == WEBDATASET_RULE
        and not isinstance(index.fields, LongExtents)
        and len(index.fields) <= MOST_WIDE_FIELDS
    )


@dataclass(frozen=True, slots=True)
class HeldShard:
    """What copying needs of a shard that is not open: its index, and where its samples are."""

    url: str
    index: ShardIndex
    starts: Int64
    stops: Int64
    copies: bool
    """Whether samples can be copied from it as bytes."""

    @property
    def sizes(self) -> Int64:
        """The bytes of a tar that each sample takes."""
        return self.stops - self.starts


def hold_shard(source: ShardSource, number: int) -> HeldShard:
    """What copying needs of a shard of a source. To hold many costs little memory, and saves opening them again."""
    shard = source.shard(number)
    starts, stops = sample_spans(shard.index)
    return HeldShard(shard.url, shard.index, starts, stops, can_copy(shard.index) and not _is_global(shard))


class _Shards:
    """The shards that are copied from: some open, all of those that were met held."""

    def __init__(self, source: ShardSource, hold: Callable[[int], HeldShard] | None) -> None:
        self.source = source
        self._hold = hold
        self._held: dict[int, HeldShard] = {}
        self._open: OrderedDict[int, Shard] = OrderedDict()

    def held(self, number: int) -> HeldShard:
        found = self._held.get(number)
        if found is None:
            found = hold_shard(self.source, number) if self._hold is None else self._hold(number)
            self._held[number] = found
        return found

    def open(self, number: int) -> Shard:
        """An open shard: only the file is opened, since its index is held."""
        held = self.held(number)
        if held.index.facts.compression is not None:
            return self.source.shard(number)
        found = self._open.get(number)
        if found is None:
            data = PlainBytes(store_for(held.url).open(held.url))
            found = self._open[number] = Shard(held.url, held.index, data, verify=self.source.verify)
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return found

    def close(self) -> None:
        for shard in self._open.values():
            shard.close()
        self._open.clear()


@dataclass(frozen=True, slots=True)
class _Run:
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
    shards = _Shards(source, hold)
    runs = _runs(shards, np.asarray(numbers, np.int64))
    if runs is None or not len(numbers):
        return None
    index = _joined_index(shards, runs)
    if index is None:
        return None
    sink = _Sink(url, hashed)
    try:
        for part in _parts(runs):
            _copy_part(shards, part, sink)
            tell(sum(run.last - run.first for run in part), sum(run.stop - run.start for run in part))
        if extra:
            names, contents = zip(*extra, strict=True)
            sizes = np.array([len(data) for data in contents])
            sink.add(memoryview(lay_out([name.encode() for name in names], contents, sizes, 0)[0]), [], [])
        before_commit()
        return sink.commit(index, durable)
    except BaseException:
        sink.abort()
        raise
    finally:
        shards.close()


def _runs(shards: _Shards, numbers: Int64) -> list[_Run] | None:
    """The numbers as runs of neighbours; None where a shard cannot be copied from."""
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
            return None
        first = int(numbers[begin] - firsts[shard])
        last = first + end - begin
        start, stop = int(held.starts[first]), int(held.stops[last - 1])
        runs.append(_Run(shard, first, last, start, stop, at, begin))
        at += stop - start
    return runs


def _is_global(shard: Shard) -> bool:
    """Whether the archive begins with a header that speaks of all members: it has no place in the middle of another."""
    head = bytearray(BLOCK)
    if len(shard.index):
        shard.read_into(0, [memoryview(head)])
    return head[156:157] == b"g"


def _parts(runs: Sequence[_Run]) -> Iterator[list[_Run]]:
    """Long runs alone, short ones some together."""
    gathered: list[_Run] = []
    size = 0
    for run in runs:
        length = run.stop - run.start
        if gathered and (length >= _LONG_RUN or size + length > _GATHERED):
            yield gathered
            gathered, size = [], 0
        if length >= _LONG_RUN:
            yield [run]
        else:
            gathered.append(run)
            size += length
    if gathered:
        yield gathered


def _copy_part(shards: _Shards, runs: list[_Run], sink: _Sink) -> None:
    if len(runs) == 1 and runs[0].stop - runs[0].start >= _LONG_RUN:
        _copy_long(shards, runs[0], sink)
    else:
        _copy_short(shards, runs, sink)


def _copy_long(shards: _Shards, run: _Run, sink: _Sink) -> None:
    """By the source's blocks, each checked as a whole; of the first and the last only what belongs to the run."""
    starts = shards.held(run.shard).starts
    for low, high, data in shards.open(run.shard).checked_blocks(run.start, run.stop):
        view = memoryview(data)[max(run.start - low, 0) : min(run.stop, high) - low]
        base = max(run.start, low)
        rows = np.arange(np.searchsorted(starts, base), np.searchsorted(starts, min(run.stop, high)))
        rows = rows[(rows >= run.first) & (rows < run.last)]
        sink.add(view, (starts[rows] - run.start + run.at).tolist(), (rows - run.first + run.row).tolist())


def _copy_short(shards: _Shards, runs: list[_Run], sink: _Sink) -> None:
    """In the source's order, several of a shard at once, into one buffer in the new order."""
    base = runs[0].at
    buffer = memoryview(bytearray(runs[-1].at + runs[-1].stop - runs[-1].start - base))
    starts: list[int] = []
    rows: list[int] = []
    for run in sorted(runs, key=lambda run: (run.shard, run.start)):
        shard = shards.open(run.shard)
        place = buffer[run.at - base : run.at - base + run.stop - run.start]
        shard.read_into(run.start, [place])
        if shard.verify:
            _check_members(shard, run, place)
    if shards.source.verify:
        _check_headers(shards, runs, buffer)
    for run in runs:
        begins = shards.held(run.shard).starts[run.first : run.last] - run.start + run.at
        starts += begins.tolist()
        rows += range(run.row, run.row + run.last - run.first)
    sink.add(buffer, starts, rows)


def _check_members(shard: Shard, run: _Run, data: memoryview) -> None:
    for name, part in shard.index.fields.items():
        if part.crc is None:
            continue
        columns = (part.offset[run.first : run.last], part.size[run.first : run.last], part.crc[run.first : run.last])
        for row, (offset, size, crc) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            at = offset - run.start
            if offset and (found := crc32(data[at : at + size])) != crc:
                raise damaged(shard.url, shard.index.keys[run.first + row].as_py(), name, offset, crc, found)


def _check_headers(shards: _Shards, runs: list[_Run], data: memoryview) -> None:
    """No checksum of the index is over a header, but each has one of its own, and says where its member lies."""
    stream = io.BytesIO(bytes(data) + end_marker(len(data)))
    chunks = [chunk for chunk in scan(StreamFeed(stream)) if isinstance(chunk, Chunk)]
    found = np.concatenate([np.empty(0, np.int64), *(chunk.offsets for chunk in chunks)])
    expected = np.sort(np.concatenate([_offsets(shards.held(run.shard).index, run, runs[0].at) for run in runs]))
    if not np.array_equal(found, expected):
        urls = sorted({shards.held(run.shard).url for run in runs})
        raise HeaderError("headers are not those that were indexed", shard=urls[0] if len(urls) == 1 else None)


def _offsets(index: ShardIndex, run: _Run, base: int) -> Int64:
    """Where the members of a run are, in a buffer that starts at ``base`` of the new tar."""
    parts = [part.offset[run.first : run.last].astype(np.int64) for part in index.fields.values()]
    offsets = np.concatenate(parts)
    return offsets[offsets > 0] - run.start + run.at - base


class _Sink:
    """The new tar: its bytes, and the checksums of its blocks."""

    def __init__(self, url: str, hashed: bool) -> None:
        self._writer = store_for(url).create(url)
        self._hash = hashlib.sha256() if hashed else None
        self._cutter = BlockCutter()
        self._at = 0
        self._head = b""

    def add(self, data: memoryview, starts: Sequence[int], rows: Sequence[int]) -> None:
        """Write the next bytes, in which the samples ``rows`` start at ``starts``."""
        self._cutter.add(data, self._at, np.array(starts, np.int64), np.array(rows, np.int64))
        self._put(data)
        self._at += len(data)

    def _put(self, data: memoryview) -> None:
        if len(self._head) < BLOCK:
            self._head += bytes(data[: BLOCK - len(self._head)])
        if self._hash is not None:
            self._hash.update(data)
        self._writer.write(data)

    def commit(self, index: ShardIndex, durable: bool) -> WrittenShard:
        end = end_marker(self._at)
        self._put(memoryview(end))
        self._writer.commit(durable=durable)
        size = self._at + len(end)
        facts = IndexFacts(size, crc32(self._head), dropped=index.facts.dropped)
        whole = ShardIndex(facts, index.keys, index.fields, index.columns, self._cutter.finish(len(index)))
        return WrittenShard(whole, field_totals(whole), size, None if self._hash is None else self._hash.hexdigest())

    def abort(self) -> None:
        self._writer.abort()


# ------------------------------------------------------------------------------------------------------- the new index


def _joined_index(shards: _Shards, runs: Sequence[_Run]) -> ShardIndex | None:
    """The rows of all runs as one index, offsets as they are in the new tar; None when a key is there twice."""
    picks = [(shards.held(run.shard).index, run) for run in runs]
    keys = pa.concat_arrays([index.keys.slice(run.first, run.last - run.first) for index, run in picks])
    if len(keys.unique()) < len(keys):
        return None
    fields = _joined_fields(picks)
    if len(fields) > MOST_WIDE_FIELDS:
        return None
    columns, dropped = _joined_columns(picks, fields)
    return ShardIndex(IndexFacts(0, 0, dropped=dropped), keys, fields, columns, None)


_Picks = list[tuple[ShardIndex, _Run]]


def _joined_fields(picks: _Picks) -> dict[str, Extents]:
    """Fields in the order in which they first appear in the new tar; those no sample has are gone."""
    names = list(dict.fromkeys(name for index, _ in picks for name in index.fields))
    found = {name: _joined_extents(name, picks) for name in names}
    present = {name: int(part.offset[part.offset > 0][0]) for name, part in found.items() if part.offset.any()}
    return {name: found[name] for name in sorted(present, key=present.__getitem__)}


def _joined_extents(name: str, picks: _Picks) -> Extents:
    offsets: list[npt.NDArray[np.uint64]] = []
    sizes: list[npt.NDArray[np.uint64]] = []
    crcs: list[npt.NDArray[np.uint32]] = []
    complete = True
    for index, run in picks:
        part = index.fields.get(name)
        rows = slice(run.first, run.last)
        if part is None:
            offsets.append(np.zeros(run.last - run.first, np.uint64))
            sizes.append(offsets[-1])
            crcs.append(np.zeros(run.last - run.first, np.uint32))
            continue
        own = part.offset[rows].astype(np.int64)
        offsets.append(np.where(own > 0, own - run.start + run.at, 0).astype(np.uint64))
        sizes.append(part.size[rows])
        complete = complete and part.crc is not None
        crcs += [] if part.crc is None else [part.crc[rows]]
    return Extents(np.concatenate(offsets), np.concatenate(sizes), np.concatenate(crcs) if complete else None)


def _joined_columns(picks: _Picks, fields: Iterable[str]) -> tuple[dict[str, pa.Array], dict[str, str]]:
    """The columns of fields that are there still, and those that are not here and why."""
    indexes = list({id(index): index for index, _ in picks}.values())
    dropped: dict[str, str] = {}
    for index in indexes:
        dropped |= index.facts.dropped
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for index in indexes for name in index.columns):
        if _belongs(name, dropped) or not _belongs(name, fields):
            continue
        kinds = {str(index.columns[name].type) for index in indexes if name in index.columns}
        if len(columns) >= MOST_COLUMNS:
            dropped[name] = f"over {MOST_COLUMNS} columns"
        elif len(kinds - {"null"}) > 1 and not kinds <= _NUMBERS:
            dropped[name] = "mixed types"
        else:
            columns[name] = _joined_column(name, picks)
    return columns, dropped


def _belongs(column: str, fields: Iterable[str]) -> bool:
    """Whether a column is of one of these fields: called as it is, or after it."""
    return any(column == field or column.startswith(f"{field}.") for field in fields)


def _joined_column(name: str, picks: _Picks) -> pa.Array:
    kinds = [index.columns[name].type for index, _ in picks if name in index.columns]
    kind = next((one for one in kinds if str(one) == "double"), None)
    kind = kind or next((one for one in kinds if str(one) != "null"), pa.null())
    return pa.concat_arrays([_rows_of(index.columns.get(name), run, kind) for index, run in picks])


def _rows_of(column: pa.Array | None, run: _Run, kind: pa.DataType) -> pa.Array:
    if column is None:
        return pa.nulls(run.last - run.first, kind)
    part = column.slice(run.first, run.last - run.first)
    return part if part.type == kind else part.cast(kind)
