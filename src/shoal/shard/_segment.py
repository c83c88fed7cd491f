"""Write segments: the index of some shards as immutable files, made from rows in one pass.

Rows come in batches and go out in batches: only the hashes of the keys are kept until a segment is complete.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._typing import IntArray, UInt8Array, UInt32Array, UInt64Array
from shoal.errors import WriteError
from shoal.store._registry import store_for
from shoal.store._url import join_url, local_path, scheme_of

from ._arrow_arrays import as_arrow, as_numpy, text_array, text_edges
from ._column_plan import ColumnPlan, plan_columns
from ._generation import new_id
from ._key_table import KEY_WORDS, hash_keys, key_records
from ._layout import (
    BLOCK_WORDS,
    BLOCKS,
    EXTENTS,
    KEYS,
    MAX_FILE_BYTES,
    MAX_KEY_BYTES,
    MAX_SEGMENT_ROWS,
    MIN_KEY_BYTES,
    NAME_WORDS,
    NAMES,
    RARE,
    RARE_WORDS,
    SAMPLES,
    SEGMENT_FOLDER,
    SHARDS,
    IndexFile,
    RecordLayout,
    Segment,
    digest_shards,
)
from ._parquet_files import ROW_GROUP_ROWS, ParquetFileWriter
from ._records import RecordWriter, page_size
from ._rows_file import SHARD_COLUMNS, RowBatch, RowSource, RowsSummary
from ._shard_rows import FieldExtents, LongExtents

__all__ = ["choose_layout", "drop_segments", "write_deleted", "write_segments"]

_FLUSH_BYTES = 8 << 20
"""Rows are written once their records take so many bytes."""
_MAX_MEMBERS = 1 << 18
"""About so many members are written at once where there are very many fields."""
_FULL_SHARE = 0.75
"""A segment ends with the shard in which a file whose size is not known before takes this share of its limit."""
_MAX_OFFSET, _MAX_SIZE = 1 << 41, 1 << 32
_UNKNOWN_CRC = -1
_TEXT_BYTES = 4 * NAME_WORDS


def choose_layout(summaries: Sequence[RowsSummary]) -> RecordLayout:
    """Return the layout for a split that begins with these rows: room for their keys and for fields of half of them."""
    rows = sum(summary.rows for summary in summaries)
    counts: dict[str, int] = {}
    for summary in summaries:
        for name, (count, _) in summary.fields.items():
            counts[name] = counts.get(name, 0) + count
    fields = tuple(name for name, count in counts.items() if name and count and 2 * count >= rows)
    longest = max((summary.longest_key for summary in summaries), default=0)
    return RecordLayout(fields, min(max(-(-longest // 4) * 4, MIN_KEY_BYTES), MAX_KEY_BYTES))


def write_segments(
    root: str,
    sources: Sequence[RowSource],
    layout: RecordLayout | None = None,
    *,
    column_types: Mapping[str, pa.DataType] | None = None,
    on_misfit: Literal["error", "omit"] = "omit",
) -> tuple[Segment, ...]:
    """Write the rows of ``sources``, in order, as segments of the dataset at ``root``. Nothing lists them yet.

    ``column_types`` are the columns that the dataset has. A column whose values do not fit is left out of all these
    segments; with ``on_misfit="error"``, it raises SchemaMismatchError if the dataset has that column.
    """
    summaries = [source.summary for source in sources]
    layout = choose_layout(summaries) if layout is None else layout
    columns = plan_columns(sources, summaries, column_types or {}, on_misfit)
    segments: list[Segment] = []
    writer = _SegmentWriter(root, layout, columns)
    try:
        for batch in itertools.chain.from_iterable(source.batches() for source in sources):
            part = writer.add_fitting(_part_of(batch))
            while part is not None:
                segments.append(writer.close())
                writer = _SegmentWriter(root, layout, columns)
                part = writer.add_fitting(part)
        if writer.shards:
            segments.append(writer.close())
        else:
            writer.abort()
    except BaseException:
        writer.abort()
        drop_segments(root, segments)
        raise
    return tuple(segments)


def drop_segments(root: str, segments: Sequence[Segment]) -> None:
    """Remove the files of segments that no generation names."""
    for segment in segments:
        for path in segment.paths():
            url = join_url(root, path)
            store_for(url).delete(url)
        _remove_folder(join_url(root, SEGMENT_FOLDER, segment.id))


def write_deleted(root: str, segment: Segment, rows: IntArray) -> IndexFile | None:
    """Write which rows of a segment are deleted, in any order, to a new file; None, and no file, if there are none."""
    folder = join_url(root, SEGMENT_FOLDER, segment.id)
    writer = RecordWriter(folder, segment.id, f"deleted-{new_id()}.rec", 1)
    try:
        writer.write(np.unique(rows).astype("<u4").reshape(-1, 1))
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _remove_folder(url: str) -> None:
    if scheme_of(url) == "file":
        with contextlib.suppress(OSError):  # something else is in it, or it is not there
            os.rmdir(local_path(url))


def _sync_folders(root: str) -> None:
    """Make new folders survive a power cut; the files in them did that for their own."""
    if scheme_of(root) != "file" or os.name != "posix":
        return
    path = os.path.join(local_path(root), SEGMENT_FOLDER)
    for folder in (path, os.path.dirname(path), local_path(root)):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows ``[start, stop)`` of a batch, with the shards that begin there."""

    batch: RowBatch
    start: int
    stop: int
    shards: pa.Table
    samples: IntArray
    blocks: UInt32Array
    """First rows count from ``start``."""

    def __len__(self) -> int:
        return self.stop - self.start

    def split(self, stop: int, shards: int) -> tuple[_Part, _Part]:
        """Return the rows before row ``stop`` of the batch, with so many shards, and all others."""
        edge = int(_integers(self.shards, "blocks")[:shards].sum())
        blocks = self.blocks[edge:].copy()
        blocks[:, 0] -= np.uint32(stop - self.start)
        first = _Part(
            self.batch, self.start, stop, self.shards.slice(0, shards), self.samples[:shards], self.blocks[:edge]
        )
        return first, _Part(self.batch, stop, self.stop, self.shards.slice(shards), self.samples[shards:], blocks)


def _part_of(batch: RowBatch) -> _Part:
    return _Part(batch, 0, len(batch.keys), batch.shards, _integers(batch.shards, "samples"), batch.blocks)


def _integers(table: pa.Table, column: str) -> IntArray:
    values: IntArray = as_numpy(table.column(column).combine_chunks())
    return values


class _Members(NamedTuple):
    """Members that go to ``rare.rec``: row in the segment's pending rows, field's number, and extent."""

    rows: IntArray
    codes: IntArray
    offset: UInt64Array
    size: UInt64Array
    crc: IntArray


@dataclass(slots=True)
class _Totals:
    """For each field, how many rows have it and its bytes in all. A field's number is its place."""

    codes: dict[str, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def code(self, name: str) -> int:
        code = self.codes.setdefault(name, len(self.counts))
        if code == len(self.counts):
            self.counts.append(0)
            self.sizes.append(0)
        return code

    def add(self, code: int, count: int, size: int) -> None:
        self.counts[code] += count
        self.sizes[code] += size

    def to_dict(self) -> dict[str, tuple[int, int]]:
        return {name: (self.counts[code], self.sizes[code]) for name, code in self.codes.items() if self.counts[code]}


class _SegmentWriter:
    """Writes one segment."""

    def __init__(self, root: str, layout: RecordLayout, columns: ColumnPlan) -> None:
        self.shards = self.open_rows = 0
        """Shards so far, and rows of the last one that are still to come."""
        self._root, self._layout, self._columns = root, layout, columns
        self._id = new_id()
        self._folder = folder = join_url(root, SEGMENT_FOLDER, self._id)
        words = {EXTENTS: layout.words, KEYS: KEY_WORDS, BLOCKS: BLOCK_WORDS, NAMES: NAME_WORDS, RARE: RARE_WORDS}
        records = (RecordWriter(folder, self._id, name, count) for name, count in words.items())
        self._extents, self._keys, self._blocks, self._names, self._rare = records
        self._shard_file = ParquetFileWriter(folder, SHARDS, SHARD_COLUMNS)
        self._sample_file = ParquetFileWriter(folder, SAMPLES, columns.schema)
        page_bytes = page_size(layout.words)
        page_records = (page_bytes - 4) // (4 * layout.words)
        self._max_segment_rows = min(MAX_SEGMENT_ROWS, MAX_FILE_BYTES // page_bytes * page_records)
        self._batch_rows = min(max(_FLUSH_BYTES // (4 * layout.words), 1), ROW_GROUP_ROWS)
        self._rows = self._bytes = self._digest = 0
        self._pending: list[_Part] = []
        self._pending_rows = self._pending_open_rows = 0
        self._hashes: list[UInt64Array] = []
        self._totals = _Totals()
        self._name_places: dict[int, tuple[int, int]] = {}
        self._unreadable: dict[str, int] = {}

    @property
    def _files(self) -> tuple[RecordWriter | ParquetFileWriter, ...]:
        records = (self._extents, self._keys, self._blocks, self._names, self._rare)
        return (self._shard_file, self._sample_file, *records)

    def add_fitting(self, part: _Part) -> _Part | None:
        """Add the rows of all shards that fit, but of one at least. Return the rows of other shards."""
        stops = self.open_rows + np.cumsum(part.samples)
        count = int(np.searchsorted(stops, self._max_rows() - self._rows, "right"))
        count = count if self.shards else max(count, 1)
        rest = None
        if count < len(part.samples):
            part, rest = part.split(part.start + (int(stops[count - 1]) if count else self.open_rows), count)
        self._rows += len(part)
        self.shards += len(part.samples)
        self.open_rows += int(part.samples.sum()) - len(part)
        if self.open_rows < 0:
            raise WriteError(f"Rows must belong to a shard, got {-self.open_rows} after the last row of a shard")
        limit = self._batch_rows
        if isinstance(fields := part.batch.fields, LongExtents):
            limit = min(limit, _MAX_MEMBERS * len(part.batch.keys) // max(len(fields.codes), 1) + 1)
        while len(part) > limit:
            few, part = part.split(part.start + limit, len(part.samples))
            self._add(few)
        self._add(part)
        return rest

    def _add(self, part: _Part) -> None:
        """Keep a few rows until there are enough to write."""
        is_long = isinstance(part.batch.fields, LongExtents)
        if self._pending and (is_long or self._pending_rows + len(part) > self._batch_rows):
            self._flush()
        self._pending.append(part)
        self._pending_rows += len(part)
        if is_long or self._pending_rows == self._batch_rows:
            self._flush()

    def _max_rows(self) -> int:
        """How many rows the segment may have; none, once a file is nearly as large as it may be."""
        largest = max(self._names.size, self._rare.size, self._sample_file.size)
        return 0 if largest > _FULL_SHARE * MAX_FILE_BYTES else self._max_segment_rows

    def close(self) -> Segment:
        """Finish all files."""
        self._flush()
        if self.open_rows:
            raise WriteError(f"The last shard must have all its rows, got {self.open_rows} too few")
        self._keys.write(key_records(self._hashes))
        files = [file for writer in self._files if (file := writer.close()) is not None]
        _sync_folders(self._root)
        columns = self._columns
        return Segment(
            self._id,
            self._rows,
            self.shards,
            self._bytes,
            self._layout,
            tuple(files),
            {name: str(kind) for name, kind in columns.types.items()},
            {name: pair for name, pair in self._sample_file.bounds.items() if name in columns.types},
            self._totals.to_dict(),
            dict(columns.left_out),
            self._unreadable,
            columns.complete,
            digest=f"{self._digest:032x}",
        )

    def abort(self) -> None:
        """Remove what was written."""
        for writer in self._files:
            writer.abort()
            url = join_url(self._folder, writer.name)
            store_for(url).delete(url)
        _remove_folder(self._folder)

    def _flush(self) -> None:
        parts, count = self._pending, self._pending_rows
        self._pending, self._pending_rows = [], 0
        if not parts:
            return
        shards = pa.concat_tables([part.shards for part in parts])
        numbers = self._shard_numbers(_integers(shards, "samples"), count)
        self._bytes += int(_integers(shards, "bytes").sum())
        self._shard_file.write(shards)
        self._digest = digest_shards(shards["digest"].to_pylist(), self._digest)
        starts = np.cumsum([self._extents.count, *map(len, parts[:-1])]).astype(np.uint32)
        blocks = np.concatenate([part.blocks for part in parts])
        blocks[:, 0] += np.repeat(starts, [len(part.blocks) for part in parts])
        self._blocks.write(blocks)
        if not count:
            return
        keys = _concat([part.batch.keys.slice(part.start, len(part)) for part in parts], pa.string())
        self._hashes.append(hash_keys(keys))
        self._write_samples(parts, keys, numbers)
        records = np.zeros((count, self._layout.words), "<u4")
        self._put_keys(records, keys)
        long = parts[0].batch.fields
        found = (
            self._put_long(records, parts[0], long) if isinstance(long, LongExtents) else self._put_wide(records, parts)
        )
        if found:
            self._write_rare(records, found)
        self._extents.write(records)

    def _shard_numbers(self, samples: IntArray, count: int) -> IntArray:
        """The shard of each pending row; ``samples`` are those of the shards that begin in them."""
        first = self._shard_file.count - 1
        stops = np.cumsum(np.append(self._pending_open_rows, samples))
        self._pending_open_rows = int(stops[-1]) - count
        return np.repeat(np.arange(first, first + len(stops)), np.diff(np.minimum(stops, count), prepend=0))

    def _write_samples(self, parts: Sequence[_Part], keys: pa.Array, shard_numbers: IntArray) -> None:
        arrays = [keys, as_arrow(shard_numbers)]
        if self._columns.has_unreadable:
            arrays.append(self._unreadable_column(parts, len(keys)))
        for name, kind in self._columns.types.items():
            arrays.append(_concat([_column(part, name, kind) for part in parts], kind))
        self._sample_file.write(pa.Table.from_arrays(arrays, schema=self._columns.schema))

    def _unreadable_column(self, parts: Sequence[_Part], count: int) -> pa.Array:
        fields: dict[int, list[str]] = {}
        base = 0
        for part in parts:
            for name, rows in part.batch.unreadable.items():
                for row in rows[(rows >= part.start) & (rows < part.stop)].tolist():
                    fields.setdefault(base + row - part.start, []).append(name)
                    first = self._extents.count + base + row - part.start
                    self._unreadable[name] = min(first, self._unreadable.get(name, first))
            base += len(part)
        kind = pa.list_(pa.string())
        if not fields:
            return pa.nulls(count, kind)
        is_valid, sizes = np.zeros(count, bool), np.zeros(count + 1, np.int32)
        for row, names in fields.items():
            is_valid[row], sizes[row + 1] = True, len(names)
        edges = np.cumsum(sizes, dtype=np.int32)
        texts = text_array([name for row in sorted(fields) for name in fields[row]])
        valid = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(edges)], children=[texts])

    # ------------------------------------------------------------------------------------------------------- records

    def _put_keys(self, records: UInt32Array, keys: pa.Array) -> None:
        edges, text = text_edges(keys)
        data, width = np.frombuffer(text, np.uint8)[int(edges[0]) : int(edges[-1])], self._layout.key_bytes
        edges = (edges - edges[0]).astype(np.int64)
        sizes = np.diff(edges)
        shortest, longest = int(sizes.min()), int(sizes.max())
        slots = np.zeros((len(sizes), width), np.uint8)
        if shortest == longest <= width:
            slots[:, :longest] = data.reshape(-1, longest) if longest else 0
        else:
            columns = np.arange(width)
            at = np.minimum(edges[:-1, None] + columns, len(data) - 1)
            np.copyto(slots, data[at], where=columns < sizes[:, None])
        zeros = np.flatnonzero(data == 0)
        if longest > width or not shortest or len(zeros):
            is_named = (sizes > width) | (sizes == 0)
            is_named[np.searchsorted(edges, zeros, "right") - 1] = True
            rows = np.flatnonzero(is_named)
            slots[rows] = 0
            slots[rows, 4:12] = self._write_texts(data, edges[rows], sizes[rows]).view(np.uint8)
        records[:, : self._layout.rare_word] = slots.view("<u4")

    def _write_texts(self, data: UInt8Array, starts: IntArray, sizes: IntArray) -> UInt32Array:
        """Write texts to ``names.rec``. Return their first records and sizes, one in each line."""
        counts = -(-sizes // _TEXT_BYTES)
        firsts = np.cumsum(counts) - counts
        padded = np.zeros(int(counts.sum()) * _TEXT_BYTES, np.uint8)
        place = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        padded[np.repeat(firsts * _TEXT_BYTES, sizes) + place] = data[np.repeat(starts, sizes) + place]
        writer = self._names
        places = np.stack([firsts + writer.count, sizes], 1).astype("<u4")
        writer.write(padded.view("<u4").reshape(-1, NAME_WORDS))
        return places

    def _put_wide(self, records: UInt32Array, parts: Sequence[_Part]) -> list[_Members]:
        """Put the extents of the layout's fields into the records. Return all members that do not go there."""
        found: list[_Members] = []
        base = 0
        for part in parts:
            for name, extents in part.batch.fields.items():
                code = self._totals.code(name)
                if name not in self._layout.fields:
                    at = part.start + np.flatnonzero(extents.offset[part.start : part.stop])
                    found.append(_members(extents, at, at - part.start + base, code))
                    self._totals.add(code, len(at), int(found[-1].size.sum()))
            base += len(part)
        for line, name in enumerate(self._layout.fields):
            if not any(name in part.batch.fields for part in parts):
                continue
            offset, size, crc = _join_extents(parts, name)
            code = self._totals.code(name)
            self._totals.add(code, int(np.count_nonzero(offset)), int(size.sum()))
            fits = _fits(offset, size, crc)
            word = self._layout.extent_word(line)
            if not fits.all():
                at = np.flatnonzero(~fits & (offset > 0))
                found.append(_Members(at, np.full(len(at), code), offset[at], size[at], crc[at].astype(np.int64)))
                offset, size, crc = offset * fits, size * fits, crc * fits
            records[:, word], records[:, word + 1] = offset >> np.uint64(9), size
            records[:, word + 2] = np.maximum(crc, 0)
        return found

    def _put_long(self, records: UInt32Array, part: _Part, extents: LongExtents) -> list[_Members]:
        """The same for very many fields: no field is looked at in turn."""
        own = extents.span(part.start, part.stop)
        rows, used = extents.entry_rows[own] - part.start, extents.codes[own]
        names = extents.names
        offset, size = extents.offset[own], extents.size[own]
        crc = np.full(len(rows), _UNKNOWN_CRC) if extents.crc is None else extents.crc[own].astype(np.int64)
        counts = np.bincount(used, minlength=len(names))
        sizes = np.zeros(len(names), np.int64)
        np.add.at(sizes, used, size.astype(np.int64))
        codes, words = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        lines = {name: self._layout.extent_word(line) for line, name in enumerate(self._layout.fields)}
        for number in np.flatnonzero(counts).tolist():
            codes[number] = code = self._totals.code(names[number])
            words[number] = lines.get(names[number], 0)
            self._totals.add(code, int(counts[number]), int(sizes[number]))
        word = words[used]
        fits = _fits(offset, size, crc) & (word > 0)
        row, word = rows[fits], word[fits]
        records[row, word], records[row, word + 1] = offset[fits] >> np.uint64(9), size[fits]
        records[row, word + 2] = np.maximum(crc[fits], 0)
        return [_Members(rows[~fits], codes[used[~fits]], offset[~fits], size[~fits], crc[~fits])]

    def _write_rare(self, records: UInt32Array, found: Sequence[_Members]) -> None:
        rows, codes, offset, size, crc = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        if not len(rows):
            return
        order = np.argsort(rows, kind="stable")
        rows, codes, offset, size, crc = (values[order] for values in (rows, codes, offset, size, crc))
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        counts = np.diff(firsts, append=len(rows))
        words = np.zeros((len(rows), RARE_WORDS), "<u4")
        words[:, 0] = rows + self._extents.count
        words[:, 1] = np.repeat(firsts + counts, counts) - np.arange(len(rows)) - 1
        words[:, 2:4] = self._name_words(codes)
        for word, values in ((4, offset), (6, size)):
            words[:, word], words[:, word + 1] = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
        words[:, 8], words[:, 9] = np.maximum(crc, 0), (crc != _UNKNOWN_CRC) | (size == 0)
        records[rows[firsts], self._layout.rare_word] = self._rare.count + firsts + 1
        self._rare.write(words)

    def _name_words(self, codes: IntArray) -> UInt32Array:
        """Where the names of these fields are in ``names.rec``: first record and size. Each is written once."""
        used, inverse = np.unique(codes, return_inverse=True)
        new = [code for code in used.tolist() if code not in self._name_places]
        if new:
            names = list(self._totals.codes)
            edges, text = text_edges(text_array([names[code] for code in new]))
            edges = edges.astype(np.int64)
            places = self._write_texts(np.frombuffer(text, np.uint8), edges[:-1], np.diff(edges))
            self._name_places.update(zip(new, map(tuple, places.tolist()), strict=True))
        words: UInt32Array = np.array([self._name_places[code] for code in used.tolist()], "<u4")[inverse]
        return words


def _concat(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    arrays = [array if array.type == kind else array.cast(kind) for array in arrays]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _column(part: _Part, name: str, kind: pa.DataType) -> pa.Array:
    array, count = part.batch.columns.get(name), len(part)
    return pa.nulls(count, kind) if array is None else array.slice(part.start, count)


def _members(extents: FieldExtents, at: IntArray, rows: IntArray, code: int) -> _Members:
    """Return the members of one field that are at these places of its columns."""
    crc = np.full(len(at), _UNKNOWN_CRC) if extents.crc is None else extents.crc[at].astype(np.int64)
    return _Members(rows, np.full(len(at), code), extents.offset[at], extents.size[at], crc)


def _join_extents(parts: Sequence[_Part], name: str) -> tuple[UInt64Array, UInt64Array, npt.NDArray[np.integer[Any]]]:
    """Return offset, size and crc32 of one field in all parts: 0 where it is missing."""
    offsets, sizes, crcs = [], [], []
    for part in parts:
        extents, count = part.batch.fields.get(name), len(part)
        if extents is None:
            zeros = np.zeros(count, np.uint64)
            extents = FieldExtents(zeros, zeros, zeros.astype(np.uint32))
            own = slice(None)
        else:
            own = slice(part.start, part.stop)
        offsets.append(extents.offset[own])
        sizes.append(extents.size[own])
        crcs.append(np.full(count, _UNKNOWN_CRC) if extents.crc is None else extents.crc[own])
    return _join(offsets), _join(sizes), _join(crcs)


def _join(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _fits(offset: UInt64Array, size: UInt64Array, crc: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
    """Whether ``extents.rec`` can have a member: a crc32 that is known to be 0 would be one that is not known."""
    is_aligned = (offset % np.uint64(512) == 0) & (offset < _MAX_OFFSET) & (size < _MAX_SIZE)
    fits: npt.NDArray[np.bool_] = is_aligned & ((crc != 0) | (size == 0))
    return fits
