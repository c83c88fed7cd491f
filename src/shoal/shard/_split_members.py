"""The members and keys of the samples of a split: ``extents.rec``, ``names.rec`` and ``rare.rec`` of all its segments.

A batch is one pass over the records of all segments: what it costs depends on its rows and pages, not on how many
segments or shards they are in.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from shoal._typing import IntArray, UInt32Array

from ._layout import EXTENTS, NAME_WORDS, NAMES, RARE, RARE_WORDS, RecordLayout, Segment
from ._records import OpenFiles, RecordFile, RecordTable
from ._split_shards import SplitShards, damaged_file, file_url
from ._table import RowExtents, RowMembers, Rows

__all__ = ["MemberRows", "RareMembers", "RecordKeys", "SplitMembers", "record_files"]

_MISSING = -1
_BLOCK_BITS = 9
"""Offsets in records count blocks of 512 bytes."""
_NAME_BYTES = 4 * NAME_WORDS
_LOW = (1 << 32) - 1
_RARE_RECORD = struct.Struct("<4I2Q2I")


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """The keys of some rows, decoded from their records when they are needed."""

    texts: _Texts
    segments: IntArray | int
    """The segment of each row, or of all."""
    slots: UInt32Array
    """The words of the key in each record."""

    def to_list(self) -> list[str]:
        """Return all keys."""
        return self.texts.keys(self.segments, self.slots)

    def get(self, row: int) -> str:
        """Return the key of one row."""
        segment = self.segments if isinstance(self.segments, int) else int(self.segments[row])
        return self.texts.key(segment, self.slots[row].tobytes())

    def take(self, rows: IntArray) -> RecordKeys:
        """Return the keys of some of the rows."""
        segments = self.segments if isinstance(self.segments, int) else self.segments[rows]
        return RecordKeys(self.texts, segments, self.slots[rows])

    def part(self, rows: slice) -> RecordKeys:
        """Return the keys of neighbours."""
        segments = self.segments if isinstance(self.segments, int) else self.segments[rows]
        return RecordKeys(self.texts, segments, self.slots[rows])


@dataclass(frozen=True, slots=True)
class RareMembers:
    """Members that are in ``rare.rec``, of some rows."""

    columns: IntArray
    """Which of the rows each is of, ascending."""
    names: list[str]
    codes: IntArray
    """The number of its field in ``names``."""
    offsets: IntArray
    sizes: IntArray
    crcs: IntArray
    """crc32 of each; -1 where it is unknown."""


@dataclass(frozen=True, slots=True)
class MemberRows:
    """The members of neighbouring rows of a segment."""

    fields: tuple[str, ...]
    """Those of the layout."""
    starts: IntArray
    """A line for each of these fields; 0 where a row lacks it, or has it in ``rare``."""
    sizes: IntArray
    crcs: IntArray
    """-1 where it is unknown, or the field is not there."""
    rare: RareMembers

    def __len__(self) -> int:
        return int(self.starts.shape[1])

    def part(self, rows: range) -> MemberRows:
        """Return the members of some of the rows."""
        if rows == range(len(self)):
            return self
        own, rare = slice(rows.start, rows.stop), self.rare
        at = slice(*np.searchsorted(rare.columns, (rows.start, rows.stop)).tolist())
        columns, codes = rare.columns[at] - rows.start, rare.codes[at]
        rare = RareMembers(columns, rare.names, codes, rare.offsets[at], rare.sizes[at], rare.crcs[at])
        return MemberRows(self.fields, self.starts[:, own], self.sizes[:, own], self.crcs[:, own], rare)


def record_files(root: str, segments: Sequence[Segment], name: str, *, per_row: bool = False) -> list[RecordFile]:
    """Return a kind of record file of all segments. Raises ShardIndexError where one should have a record for each row.

    Not with `join_url`: there may be thousands.
    """
    files = []
    for segment in segments:
        file = segment.file(name)
        url = file_url(root, segment, file)
        if per_row and file.records != segment.rows:
            raise damaged_file(f"{name} has another number of records than its segment has rows", url, file.records)
        files.append(RecordFile(url, f"{segment.id}/{name}", file.size, file.records))
    return files


class _Texts:
    """Keys, and texts in ``names.rec``."""

    def __init__(self, root: str, segments: Sequence[Segment], open_files: OpenFiles, key_bytes: int) -> None:
        self._root, self._segments, self._open_files = root, segments, open_files
        self._key_bytes = key_bytes
        self._names: dict[int, tuple[int, str]] = {}

    @functools.cached_property
    def _table(self) -> RecordTable:
        return RecordTable(record_files(self._root, self._segments, NAMES), NAME_WORDS, self._open_files)

    def keys(self, segments: IntArray | int, slots: UInt32Array) -> list[str]:
        """Return the keys that are in these words of records."""
        if not len(slots):
            return []
        far = np.flatnonzero(slots[:, 0] == 0)
        whole = np.ascontiguousarray(slots)
        if len(far):
            whole = whole.copy()
            whole[far] = 0  # NumPy removes the zeros at the end of a text only
        texts: list[bytes] = whole.view(f"S{self._key_bytes}")[:, 0].tolist()
        try:
            keys = list(map(bytes.decode, texts))
        except UnicodeDecodeError:
            self._refuse(segments if isinstance(segments, int) else int(segments[0]), EXTENTS)
        if len(far):
            own = np.full(len(far), segments) if isinstance(segments, int) else segments[far]
            places = slots[far, 1:3].astype(np.int64)
            for row, text in zip(far.tolist(), self.texts(own, places[:, 0], places[:, 1]), strict=True):
                keys[row] = text
        return keys

    def key(self, segment: int, slot: bytes) -> str:
        """Return the key that is in the words of one record."""
        if not any(slot[:4]):
            return self.text(segment, *struct.unpack_from("<2I", slot, 4))
        try:
            return slot.rstrip(b"\0").decode()
        except UnicodeDecodeError:
            self._refuse(segment, EXTENTS)

    def text(self, segment: int, first: int, size: int) -> str:
        """Return the text of so many bytes that begins in this record of ``names.rec``."""
        records = self._table.read_range(segment, first, first + -(-size // _NAME_BYTES))
        try:
            return records.tobytes()[:size].decode()
        except UnicodeDecodeError:
            self._refuse(segment, NAMES)

    def texts(self, segments: IntArray, firsts: IntArray, sizes: IntArray) -> list[str]:
        """Return several texts."""
        counts = -(-sizes // _NAME_BYTES)
        if (firsts + counts > self._table.counts[segments]).any():
            self._refuse(int(segments[0]), NAMES)
        edges = np.concatenate(([0], np.cumsum(counts)))
        records = np.repeat(firsts - edges[:-1], counts) + np.arange(int(edges[-1]))
        data = self._table.read(np.repeat(segments, counts), records).tobytes()
        starts = edges[:-1] * _NAME_BYTES
        try:
            return [
                data[start:stop].decode()
                for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
            ]
        except UnicodeDecodeError:
            self._refuse(int(segments[0]), NAMES)

    def names(self, places: IntArray, sizes: IntArray) -> list[str]:
        """Return names of fields. A place is the segment above the first record; the names are kept, as they repeat."""
        known = self._names
        wanted = list(zip(places.tolist(), sizes.tolist(), strict=True))
        missing = [at for at, (place, size) in enumerate(wanted) if known.get(place, (-1, ""))[0] != size]
        if missing:
            at = np.array(missing)
            found = self.texts(places[at] >> 32, places[at] & _LOW, sizes[at])
            known.update((wanted[i][0], (wanted[i][1], text)) for i, text in zip(missing, found, strict=True))
        return [known[place][1] for place, _ in wanted]

    def name(self, segment: int, first: int, size: int) -> str:
        """Return the name of one field."""
        known = self._names.get(segment << 32 | first)
        if known is None or known[0] != size:
            known = self._names[segment << 32 | first] = size, self.text(segment, first, size)
        return known[1]

    def _refuse(self, segment: int, name: str) -> NoReturn:
        file = self._segments[segment].file(name)
        url = file_url(self._root, self._segments[segment], file)
        raise damaged_file(f"a text in {name} is not one", url) from None


class SplitMembers:
    """The members and keys of the rows of a split. Thread-safe.

    Raises ShardIndexError where the records are damaged or point outside a shard.
    """

    def __init__(self, root: str, segments: Sequence[Segment], open_files: OpenFiles, shards: SplitShards) -> None:
        self._root, self._segments, self._open_files, self._shards = root, segments, open_files, shards
        self.layout = segments[0].layout if segments else RecordLayout((), 12)
        self._lines = {name: line for line, name in enumerate(self.layout.fields)}
        self._texts = _Texts(root, segments, open_files, self.layout.key_bytes)
        self._record = struct.Struct(f"<{self.layout.key_bytes}s{self.layout.words - self.layout.rare_word}I")
        self._key_words = self.layout.key_bytes // 4

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Every field: those of the layout, then the others as they first appear."""
        return tuple(dict.fromkeys([*self.layout.fields, *(name for each in self._segments for name in each.fields)]))

    @functools.cached_property
    def sparse(self) -> dict[str, bool]:
        """For each field, whether some row of the split may lack it."""
        counts = dict.fromkeys(self.fields, 0)
        for segment in self._segments:
            for name, (count, _) in segment.fields.items():
                counts[name] += count
        rows = self._shards.row_edge_list[-1]
        return {name: count != rows for name, count in counts.items()}

    @functools.cached_property
    def _table(self) -> RecordTable:
        files = record_files(self._root, self._segments, EXTENTS, per_row=True)
        return RecordTable(files, self.layout.words, self._open_files)

    @functools.cached_property
    def _rare_table(self) -> RecordTable:
        return RecordTable(record_files(self._root, self._segments, RARE), RARE_WORDS, self._open_files)

    # ------------------------------------------------------------------------------------------------------- one row

    def key(self, row: int) -> str:
        """Return the key of one row."""
        segment = self._shards.segment_of(row)
        return self.key_of(segment, row - self._shards.row_edge_list[segment])

    def key_of(self, segment: int, own: int) -> str:
        """Return the key of a row of a segment."""
        return self._texts.key(segment, bytes(self._table.read_one(segment, own)[: self.layout.key_bytes]))

    def key_slot(self, segment: int, own: int) -> memoryview:
        """Return the bytes in which the record of a row of a segment has the key, or where it is."""
        return self._table.read_one(segment, own)[: self.layout.key_bytes]

    def row(self, row: int) -> RowMembers:
        """Return all that the index has of one row; for a single one quicker than `extents`."""
        shards = self._shards
        segment = shards.segment_of(row)
        own = row - shards.row_edge_list[segment]
        number, first_row, limit = shards.locate(row, segment)
        slot, rare, *words = self._record.unpack(self._table.read_one(segment, own))
        members: list[tuple[str, int, int, int | None]] = []
        for name, start, size, crc in zip(self.layout.fields, words[::3], words[1::3], words[2::3], strict=True):
            if start:
                members.append((name, start << _BLOCK_BITS, size, crc if crc or not size else None))
        if rare:
            members += self._rare_of_row(segment, own, rare - 1)
        for _, start, size, _ in members:
            if start + size > limit:
                self._refuse_extent(number, start + size)
        return RowMembers(number, row - first_row, self._texts.key(segment, slot), members)

    def _rare_of_row(self, segment: int, own: int, first: int) -> list[tuple[str, int, int, int | None]]:
        head = self._rare_table.read_range(segment, first, first + 1)
        records = self._rare_table.read_range(segment, first, first + 1 + int(head[0, 1]))
        members: list[tuple[str, int, int, int | None]] = []
        for row, _, name, length, offset, size, crc, known in _RARE_RECORD.iter_unpack(records.tobytes()):
            if row != own or not offset:
                self._refuse_rare(segment)
            members.append((self._texts.name(segment, name, length), offset, size, crc if known else None))
        return members

    # ------------------------------------------------------------------------------------------------------ many rows

    def keys(self, rows: IntArray) -> list[str]:
        """Return the keys of rows."""
        segments = self._shards.segments_of(rows)
        records = self._table.read(segments, rows - self._shards.row_edges[segments])
        return self._texts.keys(segments, records[:, : self._key_words])

    def extents(self, rows: Rows, fields: Sequence[str] | None = None) -> RowExtents:
        """Return where the members of rows are: of these fields as far as the split has them, or of all.

        Of all fields, those outside the layout are left out that none of the rows has: there may be thousands.
        """
        segments, own, records = self._read(rows)
        lines, names = self._chosen(fields)
        starts, stops, crcs = self._layout_members(records, lines)
        rare = records[:, self.layout.rare_word]
        if rare.any() or len(names) > len(starts):
            own_segments = np.full(len(records), segments) if isinstance(segments, int) else segments
            members = self._rare_members(own_segments, own, rare)
            if fields is None:
                found = set(members.names)
                names += tuple(name for name in self.fields[len(names) :] if name in found)
            starts, stops, crcs = _with_rare(names, (starts, stops, crcs), members)
        sparse = tuple(map(self.sparse.__getitem__, names))
        self._mark_missing(starts, stops, sparse, segments)
        shards, numbers, own_rows = self._locate(rows, segments)
        self._check_stops(stops, shards if numbers is None else numbers)
        keys = RecordKeys(self._texts, segments, records[:, : self._key_words])
        is_complete = fields is None or len(names) == len(self.fields)
        return RowExtents(shards, numbers, own_rows, names, starts, stops, crcs, sparse, keys, is_complete)

    def read_back(self, segment: int, start: int, stop: int) -> MemberRows:
        """Return the members of rows ``[start, stop)`` of a segment, as a writer has them."""
        records = self._table.read_range(segment, start, stop)
        starts, stops, crcs = self._layout_members(records, None)
        crcs[starts == 0] = _MISSING
        segments, own = np.full(len(records), segment), np.arange(start, stop)
        rare = self._rare_members(segments, own, records[:, self.layout.rare_word])
        return MemberRows(self.layout.fields, starts, stops - starts, crcs, rare)

    def _read(self, rows: Rows) -> tuple[IntArray | int, IntArray, UInt32Array]:
        """Return the segments of rows, the numbers of the rows in them, and their records."""
        edges = self._shards.row_edge_list
        if isinstance(rows, slice) and rows.start < rows.stop:
            segment = self._shards.segment_of(rows.start)
            if rows.stop <= edges[segment + 1]:
                start, stop = rows.start - edges[segment], rows.stop - edges[segment]
                return segment, np.arange(start, stop), self._table.read_range(segment, start, stop)
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        segments = self._shards.segments_of(numbers)
        own = numbers - self._shards.row_edges[segments]
        return segments, own, self._table.read(segments, own)

    def _chosen(self, fields: Sequence[str] | None) -> tuple[Sequence[int] | None, tuple[str, ...]]:
        """Return the lines of the layout that are wanted, None for all, and the names of all fields in order."""
        if fields is None:
            return None, self.layout.fields
        wanted = set(fields)
        names = tuple(name for name in self.fields if name in wanted)
        return [self._lines[name] for name in names if name in self._lines], names

    def _layout_members(self, records: UInt32Array, lines: Sequence[int] | None) -> tuple[IntArray, IntArray, IntArray]:
        """Return starts, stops and crcs of fields of the layout; a start is 0 where a row lacks the field."""
        first, count = self.layout.extent_word(0), len(self.layout.fields)
        parts = records[:, first:].reshape(len(records), count, 3)
        if lines is not None and len(lines) < count:
            parts = parts[:, lines]
        offsets, sizes, sums = parts.transpose(2, 1, 0)
        starts = np.empty(offsets.shape, np.int64)
        np.left_shift(offsets, _BLOCK_BITS, out=starts, dtype=np.int64)
        stops, crcs = np.add(starts, sizes, order="C"), sums.astype(np.int64, order="C")
        if not crcs.all():
            crcs[(crcs == 0) & (sizes != 0)] = _MISSING
        return starts, stops, crcs

    def _rare_members(self, segments: IntArray, own: IntArray, rare: UInt32Array) -> RareMembers:
        columns = np.flatnonzero(rare)
        if not len(columns):
            none = np.empty(0, np.int64)
            return RareMembers(none, [], none, none, none, none)
        firsts, segments = rare[columns].astype(np.int64) - 1, segments[columns]
        heads = self._rare_table.read(segments, firsts)
        counts = heads[:, 1].astype(np.int64) + 1
        if (firsts + counts > self._rare_table.counts[segments]).any():
            self._refuse_rare(int(segments[0]))
        ends = np.cumsum(counts)
        places = np.repeat(firsts - ends + counts, counts) + np.arange(int(ends[-1]))
        segments, columns = np.repeat(segments, counts), np.repeat(columns, counts)
        records = self._rare_table.read(segments, places)
        numbers = np.ascontiguousarray(records[:, 4:8]).view("<i8")
        offsets, sizes = numbers[:, 0].astype(np.int64), numbers[:, 1].astype(np.int64)
        wrong = (records[:, 0] != own[columns]) | (offsets <= 0) | (sizes < 0) | (offsets + sizes < 0)
        if wrong.any():
            self._refuse_rare(int(segments[wrong][0]))
        places, at, codes = np.unique(segments << 32 | records[:, 2], return_index=True, return_inverse=True)
        names = self._texts.names(places, records[at, 3].astype(np.int64))
        if len(set(names)) < len(names):  # segments have names of their own
            numbered = {name: code for code, name in enumerate(dict.fromkeys(names))}
            codes, names = np.array([numbered[name] for name in names])[codes], list(numbered)
        crcs = np.where(records[:, 9] != 0, records[:, 8].astype(np.int64), _MISSING)
        return RareMembers(columns, names, codes, offsets, sizes, crcs)

    def _mark_missing(
        self, starts: IntArray, stops: IntArray, sparse: tuple[bool, ...], segments: IntArray | int
    ) -> None:
        if starts.all():
            return
        missing = starts == 0
        starts[missing] = stops[missing] = _MISSING
        if not all(sparse) and missing[[line for line, may_lack in enumerate(sparse) if not may_lack]].any():
            segment = segments if isinstance(segments, int) else int(segments[missing.any(axis=0)][0])
            url = file_url(self._root, self._segments[segment], self._segments[segment].file(EXTENTS))
            raise damaged_file("a member that its segment says it has is not in its records", url)

    def _locate(self, rows: Rows, segments: IntArray | int) -> tuple[tuple[int, ...], IntArray | None, Rows]:
        """Return the shards of rows, that of each row, and the numbers of the rows in them."""
        if isinstance(rows, slice) and rows.start < rows.stop and isinstance(segments, int):
            number, first, _ = self._shards.locate(rows.start, segments)
            if self._shards.locate(rows.stop - 1, segments)[0] == number:
                return (number,), None, slice(rows.start - first, rows.stop - first)
        every = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        numbers = self._shards.numbers(every, np.full(len(every), segments) if isinstance(segments, int) else segments)
        shards = tuple(sorted(set(numbers.tolist())))
        return shards, numbers if len(shards) > 1 else None, every - self._shards.first_rows(numbers)

    def _check_stops(self, stops: IntArray, numbers: IntArray | tuple[int, ...]) -> None:
        if not stops.size:
            return
        shards = np.array(numbers)
        beyond = stops > self._shards.limits(shards)
        if beyond.any():
            line, column = np.argwhere(beyond)[0].tolist()
            self._refuse_extent(int(shards[column % len(shards)]), int(stops[line, column]))

    def _refuse_extent(self, number: int, stop: int) -> NoReturn:
        info = self._shards.info(number)
        segment = self._segments[info.segment]
        url = file_url(self._root, segment, segment.file(EXTENTS))
        problem = f"a member must end in its shard {info.path!r} of {info.bytes} bytes"
        raise damaged_file(problem, url, f"byte {stop}")

    def _refuse_rare(self, segment: int) -> NoReturn:
        file = self._segments[segment].file(RARE)
        url = file_url(self._root, self._segments[segment], file)
        raise damaged_file(f"{RARE} does not have the records that {EXTENTS} refers to", url)


_Arrays = tuple[IntArray, IntArray, IntArray]


def _with_rare(names: Sequence[str], arrays: _Arrays, rare: RareMembers) -> _Arrays:
    """Return starts, stops and crcs of these fields: lines for the first ones as they are, and the rare members."""
    starts, stops, crcs = arrays
    count, total = len(starts), len(names)
    if total > count:
        empty = np.zeros((total - count, starts.shape[1]), np.int64)
        starts, stops, crcs = (np.concatenate((part, empty)) for part in arrays)
    lines = {name: line for line, name in enumerate(names)}
    places = np.array([lines.get(name, _MISSING) for name in rare.names], np.int64)[rare.codes]
    chosen = places != _MISSING
    at = places[chosen], rare.columns[chosen]
    starts[at] = rare.offsets[chosen]
    stops[at] = starts[at] + rare.sizes[chosen]
    crcs[at] = rare.crcs[chosen]
    return starts, stops, crcs
