"""`SegmentTable`: the table over the segments of splits, and `OpenGeneration`, the dataset that they are of.

Opening reads the manifest and nothing else. A generation is pinned as long as a table uses it.
"""

from __future__ import annotations

import functools
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, TypeVar, overload

import numpy as np
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import ObjectChangedError, ObjectNotFoundError, PositionError, SampleKeyError, StaleIndexError
from shoal.store._base import ObjectInfo, ObjectReader, RemoteObjectReader, RemoteReader
from shoal.store._cache import cached_reader
from shoal.store._operations import open_sized
from shoal.store._readers import PrefetchedReader
from shoal.store._registry import cache_mode, store_for
from shoal.store._url import base_name, join_url, local_path, scheme_of

from ._arrow_arrays import as_floats
from ._byte_reader import PlainBytes
from ._commit import (
    MANIFEST,
    Pin,
    load_and_pin,
    load_generation,
    load_kept_generation,
    pin,
    read_optional,
)
from ._generation import Generation, decode_generation, is_generation, locate
from ._layout import KEY_COLUMN, SAMPLES, SEGMENT_FOLDER, digest_of_segments
from ._manifest import ShardRecord
from ._member_names import WEBDATASET_RULE, key_hint
from ._open_shards import tar_bytes
from ._records import OpenFiles
from ._row_view import RowView
from ._rows_file import NESTED_REASON
from ._shard import Shard
from ._shard_rows import REINDEX_HINT, Blocks, ShardRows
from ._split_columns import Bounds
from ._split_names import find_split
from ._split_shards import ShardInfo
from ._split_table import SplitTable
from ._table import RowExtents, RowMembers, Rows, ShardRef, Table, join_columns, join_row_extents, key_variants
from ._tar_header import BLOCK
from ._writing import staged_url

__all__ = ["OpenGeneration", "SegmentTable", "SplitPart", "open_generation"]

_WINDOW_ROWS = 8192
"""Rows whose extents are kept for slices, once two of them followed each other."""
_WINDOW_MEMBERS = 1 << 18
"""With very many fields a window has fewer rows."""
_MAX_WINDOWS = 16
_READ_BYTES, _MAX_READ_ROWS = 1 << 20, 4096
_HINT_NEIGHBOURS, _HINT_KEYS = 3, 2000
_R = TypeVar("_R")


def open_generation(root: str, generation_id: str | None = None) -> OpenGeneration | None:
    """Open a generation of the dataset at ``root``, by default the newest; None where there is none.

    Reads only the manifest, or the document of the generation. Raises ManifestError where it is damaged, or of a newer
    version; ObjectNotFoundError where the generation is not kept, and ObjectChangedError where it is of another lineage
    than the newest one.
    """
    url = join_url(root, MANIFEST)
    signature = _signature(url)
    data = read_optional(url)
    if data is None or not is_generation(data):
        return None
    generation = decode_generation(data, url)
    if generation_id is not None and generation_id != generation.id:
        lineage, generation = generation.lineage, load_kept_generation(root, generation_id)
        if generation.lineage != lineage:
            raise _replaced(root, generation.lineage, lineage)
        return OpenGeneration(root, generation, pin(root, generation.id), signature)
    try:
        pinned = pin(root, generation.id)
    except ObjectNotFoundError:  # a newer one was committed meanwhile, or its document is missing
        found = load_and_pin(root)
        if found is None:
            return None
        generation, pinned = found
    return OpenGeneration(root, generation, pinned, signature)


def _replaced(root: str, expected: str, found: str | None) -> ObjectChangedError:
    return ObjectChangedError(
        "The dataset was replaced after it was opened",
        expected=f"lineage {expected}",
        found=found,
        shard=root,
        hint="Call refresh(), or open it again",
    )


def _signature(url: str) -> tuple[int, ...] | None:
    """What changes when a local file is replaced; None where nothing is known without a request."""
    if scheme_of(url) != "file":
        return None
    try:
        found = os.stat(local_path(url))
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


class OpenGeneration:
    """A generation of a dataset, kept while it is in use. Thread-safe."""

    def __init__(self, root: str, generation: Generation, pinned: Pin, signature: tuple[int, ...] | None) -> None:
        self.root = root
        self.generation = generation
        self.open_files = OpenFiles()
        self._pin = pinned
        self._signature = signature

    def close(self) -> None:
        """Let go of the generation."""
        self._pin.close()

    def split(self, name: str) -> SplitTable:
        """Return the table of one split, which must exist."""
        return SplitTable(self.root, self.generation.splits[name].segments, self.open_files)

    def table(self, split: str | None = None) -> SegmentTable:
        """Return the table of one split, or of all, one after the other. Raises FieldError."""
        splits = self.generation.splits
        names = list(splits) if split is None else [find_split(split, splits)]
        return SegmentTable([SplitPart(self, name, self.split(name)) for name in names])

    def url(self, path: str) -> str:
        """Return the URL of one of its tars. Raises ManifestError for a path that leads out of the dataset."""
        return locate(self.root, path)

    def open_tar(self, info: ShardInfo, cache: str | None) -> ObjectReader:
        """Open a tar. Raises StaleIndexError where it is not the one of the index.

        If that is because the dataset was replaced, ObjectChangedError is raised.
        """
        url = self.url(info.path)
        staged = staged_url(self.root, self.generation, info.path) if self.generation.pending else None
        if staged is not None:
            try:
                return self._open(staged, url, info, cache)
            except ObjectNotFoundError:  # it was moved to its place meanwhile
                pass
        try:
            return self._open(url, url, info, cache)
        except ObjectNotFoundError:
            self.check_lineage()
            raise

    def _open(self, url: str, final: str, info: ShardInfo, cache: str | None) -> ObjectReader:
        cache = cache_mode(url, cache)
        if self._signature is None and cache is None:  # then reading compares the size, with the first response
            reader = open_sized(url, info.bytes)
        else:
            reader = cached_reader(store_for(url).open(url), cache)
        try:
            if reader.info.size != info.bytes:
                self.refuse_tar(final, f"{info.bytes} bytes", reader.info.size)
            if isinstance(reader, RemoteReader):
                return _RemoteTar(reader, self, final, info.bytes)
            if crc32(reader.read(0, BLOCK)) != info.head_crc32:
                self.refuse_tar(final, "its first header", "another")
            self.check_lineage()
        except BaseException:
            reader.close()
            raise
        return reader

    def refuse_tar(self, url: str, expected: object, found: object) -> NoReturn:
        """Raise the error for a tar that is not the one of the index."""
        self.check_lineage()
        problem = "The tar changed after it was indexed"
        raise StaleIndexError(problem, expected=expected, found=found, shard=url, hint=REINDEX_HINT)

    def check_lineage(self) -> None:
        """Raise ObjectChangedError where tars were replaced since the dataset was opened.

        On a local disk the manifest is read again only if it is another file. Tars of a new lineage are moved to their
        places after its commit, so a tar is of this one if it was opened before this was asked.
        """
        url = locate(self.root, MANIFEST)
        signature = _signature(url)
        if signature is not None and signature == self._signature:
            return
        newest = load_generation(self.root)
        lineage = None if newest is None else newest.lineage
        if lineage != self.generation.lineage:
            raise _replaced(self.root, self.generation.lineage, lineage)
        self._signature = signature


class _RemoteTar:
    """A remote tar: where it is not the one that was indexed, it is looked up whether the dataset was replaced."""

    def __init__(self, reader: RemoteObjectReader, opened: OpenGeneration, url: str, size: int) -> None:
        self._reader, self._opened, self._url, self._size = reader, opened, url, size

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    @property
    def is_far(self) -> bool:
        """Whether reading still needs requests."""
        return bool(getattr(self._reader, "is_far", True))

    def read(self, start: int, stop: int) -> bytes:
        return self._checked(lambda: self._reader.read(start, stop))

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        return self._checked(lambda: self._reader.read_many(starts, stops))

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        pieces = self._reader.stream(start, stop)
        try:
            while (piece := self._checked(lambda: next(pieces, None))) is not None:
                yield piece
        finally:
            pieces.close()

    def _checked(self, read: Callable[[], _R]) -> _R:
        try:
            return read()
        except ObjectChangedError as error:
            self._opened.check_lineage()
            problem, expected = "The tar changed after it was indexed", f"{self._size} bytes, as they were"
            raise StaleIndexError(problem, expected=expected, shard=self._url, hint=REINDEX_HINT) from error
        except ObjectNotFoundError:
            self._opened.check_lineage()
            raise

    def close(self) -> None:
        self._reader.close()


class _ShardRefs(Sequence[ShardRef]):
    """The shards of a table, looked up when they are needed: there may be very many."""

    def __init__(self, table: SegmentTable) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.shard_count

    @overload
    def __getitem__(self, number: int) -> ShardRef: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[ShardRef, ...]: ...
    def __getitem__(self, number: int | slice) -> ShardRef | tuple[ShardRef, ...]:
        if isinstance(number, slice):
            return tuple(map(self._table.ref, range(len(self))[number]))
        return self._table.ref(range(len(self))[number])

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


class SplitPart(NamedTuple):
    """A split in a table of several."""

    opened: OpenGeneration
    name: str
    table: SplitTable

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal where rows have the same numbers: in all generations of a lineage."""
        return self.opened.root, self.opened.generation.lineage, self.name

    def files(self, name: str) -> list[str]:
        """Return the URLs of the files of this name, of segments that have one."""
        return [
            join_url(self.opened.root, SEGMENT_FOLDER, segment.id, name)
            for segment in self.table.segments
            if segment.file(name).records
        ]

    def deleted_rows(self) -> Iterator[tuple[str, IntArray]]:
        """Yield the URL of each file of samples that has deleted rows, and the numbers of those in the file."""
        for number, own in self.table.deleted().split_by(self.table.starts):
            yield join_url(self.opened.root, SEGMENT_FOLDER, self.table.segments[number].id, SAMPLES), own


class SegmentTable(Table):
    """The rows of one split, or of several, one after the other; they may be of several datasets."""

    def __init__(self, parts: Sequence[SplitPart]) -> None:
        self.parts = tuple(parts)
        self._tables = [part.table for part in self.parts]
        self._row_edges: list[int] = np.cumsum([0, *map(len, self._tables)]).tolist()
        self._shard_edges: list[int] = np.cumsum([0, *(table.shard_count for table in self._tables)]).tolist()
        self.rule = self.parts[0].opened.generation.rule if self.parts else WEBDATASET_RULE
        self._only = self._tables[0] if len(self._tables) == 1 else None
        self._presence: dict[int, dict[str, bool]] = {}
        self._windows: dict[int, tuple[int, RowExtents]] = {}
        """For some shards extents of neighbours, and the first of their rows in the shard."""
        self._lock = threading.Lock()

    @classmethod
    def concatenate(cls, tables: Sequence[SegmentTable]) -> SegmentTable:
        """Return several tables as one."""
        return cls([part for table in tables for part in table.parts])

    def close(self) -> None:
        """Let go of the generations."""
        for part in self.parts:
            part.opened.close()

    @property
    def digest(self) -> str:
        """Equal where the shards contain the same samples, in the same order. Nothing is read for it."""
        return digest_of_segments(segment for table in self._tables for segment in table.segments)

    def _part_of_row(self, row: int) -> int:
        edges = self._row_edges
        if not 0 <= row < edges[-1]:
            raise PositionError("No sample at this position", expected=f"0 to {edges[-1] - 1}", found=row)
        return bisect_right(edges, row) - 1

    def _part_of_shard(self, number: int) -> tuple[SplitTable, int]:
        """Return the split that has a shard, and the shard's number in it."""
        if not 0 <= number < self._shard_edges[-1]:
            raise PositionError("No shard has this number", expected=f"0 to {self._shard_edges[-1] - 1}", found=number)
        part = bisect_right(self._shard_edges, number) - 1
        return self._tables[part], number - self._shard_edges[part]

    def _parts(self, rows: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Yield the splits that have some of these rows, and where those are."""
        outside = rows.view(np.uint64) >= self._row_edges[-1]  # as such, negative ones are very large
        if outside.any():
            self._part_of_row(int(rows[outside][0]))  # which raises
        numbers = np.searchsorted(np.array(self._row_edges), rows, "right") - 1
        for part in np.unique(numbers).tolist():
            yield part, np.flatnonzero(numbers == part)

    # --------------------------------------------------------------------------------------------------------- shards

    @property
    def shards(self) -> Sequence[ShardRef]:
        return _ShardRefs(self)

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return self._shard_edges[-1]

    def ref(self, number: int) -> ShardRef:
        """Return one of the shards."""
        table, own = self._part_of_shard(number)
        info = table.shard(own)
        opened = self.parts[bisect_right(self._shard_edges, number) - 1].opened
        return ShardRef(opened.url(info.path), info.samples, rule=self.rule, size=info.bytes)

    @property
    def locations(self) -> list[str]:
        return [part.opened.root for part in self.parts]

    def __len__(self) -> int:
        return self._row_edges[-1]

    @property
    def known_length(self) -> int | None:
        return self._row_edges[-1]

    @property
    def starts(self) -> IntArray:
        return self._starts

    @functools.cached_property
    def _starts(self) -> IntArray:
        parts = zip(self._tables, self._row_edges, strict=False)
        return np.concatenate([*(table.shard_starts()[:-1] + first for table, first in parts), self._row_edges[-1:]])

    def urls_by_split(self) -> dict[str, list[str]]:
        """Return the URLs of the shards of each split."""
        splits: dict[str, list[str]] = {}
        for opened in {id(part.opened): part.opened for part in self.parts}.values():
            for name in opened.generation.splits:
                splits.setdefault(name, []).extend(ref.url for ref in opened.table(name).shards)
        return splits

    def rows_by_part(self, rows: RowView) -> Iterator[tuple[SplitPart, IntArray]]:
        """Yield the splits that have some of these rows, with the numbers of the rows in the split."""
        for number, own in rows.split_by(np.array(self._row_edges, np.int64)):
            yield self.parts[number], own

    def follow(self, rows: RowView, other: SegmentTable) -> RowView | None:
        """Return the numbers that rows have in a table of the same lineages; None if it lacks the split of some.

        Nothing is read. A later generation has rows that an earlier one lacks.
        """
        firsts = {part.identity: number for number, part in reversed(list(enumerate(other.parts)))}
        edges, offsets = np.array(self._row_edges, np.int64), np.zeros(len(self.parts), np.int64)
        for number in rows.shards(edges).tolist():
            place = firsts.get(self.parts[number].identity)
            if place is None:
                return None
            count, first = len(other.parts[place].table), self._row_edges[number]
            if count < len(self.parts[number].table) and _has_rows(rows, first + count, self._row_edges[number + 1]):
                return None
            offsets[number] = other._row_edges[place] - first
        return rows.moved(edges, offsets)

    def locate(self, row: int) -> tuple[int, int]:
        if self._only is not None:
            return self._only.locate(row)
        part = self._part_of_row(row)
        number, own = self._tables[part].locate(row - self._row_edges[part])
        return number + self._shard_edges[part], own

    def numbers(self, rows: IntArray) -> IntArray:
        if self._only is not None:
            return self._only.shard_numbers(rows)
        numbers = np.empty(len(rows), np.int64)
        for part, places in self._parts(rows):
            own = self._tables[part].shard_numbers(rows[places] - self._row_edges[part])
            numbers[places] = own + self._shard_edges[part]
        return numbers

    def shard_bytes(self, number: int) -> int:
        table, own = self._part_of_shard(number)
        return table.shard(own).bytes

    @property
    def total_bytes(self) -> int | None:
        return sum(segment.bytes for table in self._tables for segment in table.segments)

    def shard_version(self, number: int) -> str:
        table, own = self._part_of_shard(number)
        info = table.shard(own)
        return f"{info.bytes}-{info.head_crc32:08x}"

    def blocks(self, number: int) -> Blocks | None:
        table, own = self._part_of_shard(number)
        return table.blocks(own)

    def record(self, number: int, path: str | None = None) -> ShardRecord:
        table, own = self._part_of_shard(number)
        info, stop = table.shard(own), table.shard(own).first_row + table.shard(own).samples
        first_key = table.key(info.first_row) if info.samples else None
        last_key = table.key(stop - 1) if info.samples else None
        totals = table.field_totals(np.arange(info.first_row, stop))
        fields = {name: total for name, total in totals.items() if total[0]}
        path = base_name(info.path) if path is None else path
        sha256 = self._hashes[self._tables.index(table)][own].as_py()
        return ShardRecord(path, info.samples, info.bytes, first_key, last_key, info.compression, sha256, fields)

    @functools.cached_property
    def _hashes(self) -> list[pa.ChunkedArray]:
        return [table.shards()["sha256"] for table in self._tables]

    def shard_rows(self, number: int) -> ShardRows:
        table, own = self._part_of_shard(number)
        return table.shard_rows(own, self.rule)

    def open_shard(self, number: int, *, verify: bool = True, cache: str | None = None) -> Shard:
        """Open one shard. Raises what `OpenGeneration.open_tar` raises."""
        part = bisect_right(self._shard_edges, number) - 1
        (opened, _, table), own = self.parts[part], number - self._shard_edges[part]
        info = table.shard(own)
        reader = opened.open_tar(info, cache)
        far = PrefetchedReader(reader) if isinstance(reader, RemoteReader) else None
        data = tar_bytes(reader if far is None else far, info.compression, lambda: table.blocks(own))
        if info.compression is not None and isinstance(data, PlainBytes):  # read from where it was unpacked
            far = None
        first = info.first_row + self._row_edges[part]
        rows, url = range(first, first + info.samples), opened.url(info.path)
        return Shard(url, self, number, rows, data, compression=info.compression, verify=verify, far=far)

    def check_replaced(self, number: int) -> None:
        self.parts[bisect_right(self._shard_edges, number) - 1].opened.check_lineage()

    # --------------------------------------------------------------------------------------------------- keys, members

    @property
    def fields(self) -> tuple[str, ...]:
        return self._fields

    @functools.cached_property
    def _fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for table in self._tables for name in table.fields))

    @property
    def known_fields(self) -> tuple[str, ...]:
        return self.fields

    def presence(self, number: int) -> dict[str, bool]:
        part = bisect_right(self._shard_edges, number) - 1
        if part not in self._presence:
            sparse = self._tables[part].sparse
            self._presence[part] = {name: not sparse[name] for name in self._tables[part].fields}
        return self._presence[part]

    def extents(self, rows: Rows, fields: Sequence[str] | None = None) -> RowExtents:
        if isinstance(rows, slice):
            part = self._part_of_row(rows.start) if rows.start < rows.stop else 0
            if rows.stop <= self._row_edges[part + 1]:
                first = self._row_edges[part]
                own = slice(rows.start - first, rows.stop - first)
                return self._numbered(part, self._slice_extents(part, own, fields))
        picked: IntArray = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        if self._only is not None:
            return self._only.extents(picked, fields)
        places, found = [], []
        for part, own_places in self._parts(picked):
            extents = self._tables[part].extents(picked[own_places] - self._row_edges[part], fields)
            found.append(self._numbered(part, extents))
            places.append(own_places)
        return found[0] if len(found) == 1 else join_row_extents(found, places)

    def _numbered(self, part: int, found: RowExtents) -> RowExtents:
        """Return extents of a split with the numbers that its shards have here."""
        first = self._shard_edges[part]
        if not first:
            return found
        numbers = None if found.shard_numbers is None else found.shard_numbers + first
        return replace(found, numbers=tuple(number + first for number in found.numbers), shard_numbers=numbers)

    def _slice_extents(self, part: int, rows: slice, fields: Sequence[str] | None) -> RowExtents:
        """Return neighbours; slices of all fields that follow each other are cut out of a longer one."""
        table = self._tables[part]
        if rows.start == rows.stop or not (fields is None or set(fields) >= set(table.fields)):
            return table.extents(rows, fields)
        number, row = table.locate(rows.start)
        own, name = slice(row, row + rows.stop - rows.start), number + self._shard_edges[part]
        first, window = self._windows.get(name, (0, None))
        if window is not None and first <= row and own.stop <= first + len(window):
            return _cut_window(window, first, own, len(table.layout_fields))
        left = table.shard(number).samples - row
        if own.stop - row > left:  # of several shards
            return table.extents(rows)
        if window is None or not first <= row <= first + len(window):  # it may be the only one
            window = table.extents(rows)
        else:
            count = min(_WINDOW_ROWS, max(_WINDOW_MEMBERS // max(len(table.fields), 1), 1), left)
            window = table.extents(slice(rows.start, max(rows.stop, rows.start + count)))
        with self._lock:
            self._windows.pop(name, None)
            if len(self._windows) >= _MAX_WINDOWS:
                del self._windows[next(iter(self._windows))]
            self._windows[name] = row, window
        return _cut_window(window, row, own, len(table.layout_fields))

    def row_members(self, row: int) -> RowMembers:
        if self._only is not None:
            return self._only.row_members(row)
        part = self._part_of_row(row)
        found = self._tables[part].row_members(row - self._row_edges[part])
        return found._replace(shard=found.shard + self._shard_edges[part])

    def field_totals(self, rows: IntArray | None = None) -> dict[str, tuple[int, int]]:
        if self._only is not None:
            return self._only.field_totals(rows)
        totals: dict[str, tuple[int, int]] = {}
        if rows is None:
            found = [table.field_totals() for table in self._tables]
        else:
            found = [
                self._tables[part].field_totals(rows[at] - self._row_edges[part]) for part, at in self._parts(rows)
            ]
        for name, (count, size) in (item for each in found for item in each.items()):
            known = totals.get(name, (0, 0))
            totals[name] = known[0] + count, known[1] + size
        return totals

    def mean_bytes(self, number: int, field: str) -> float:
        table, own = self._part_of_shard(number)
        segment = table.segments[table.shard(own).segment]
        return segment.fields.get(field, (0, 0))[1] / max(segment.rows, 1)

    def rows_per_read(self, number: int, fields: Sequence[str] | None) -> int:
        table, own = self._part_of_shard(number)
        segment = table.segments[table.shard(own).segment]
        wanted = sum(size for name, (_, size) in segment.fields.items() if fields is None or name in fields)
        return int(min(_MAX_READ_ROWS, max(1, _READ_BYTES * segment.rows // max(wanted, 1))))

    def key(self, row: int) -> str:
        part = self._part_of_row(row)
        return self._tables[part].key(row - self._row_edges[part])

    def keys(self, rows: IntArray) -> list[str]:
        rows = np.asarray(rows, np.int64)
        if self._only is not None:
            return self._only.keys(rows)
        keys = [""] * len(rows)
        for part, places in self._parts(rows):
            found = self._tables[part].keys(rows[places] - self._row_edges[part])
            for place, key in zip(places.tolist(), found, strict=True):
                keys[place] = key
        return keys

    def shard_keys(self, number: int) -> pa.StringArray:
        table, own = self._part_of_shard(number)
        info = table.shard(own)
        rows = RowView.from_runs(np.array([info.first_row]), np.array([info.first_row + info.samples]))
        return table.columns([KEY_COLUMN], rows)[KEY_COLUMN].combine_chunks()

    def find(self, key: str) -> int:
        for table, first in zip(self._tables, self._row_edges, strict=False):
            row = table.first(key)
            if row is not None:
                return first + row
        raise SampleKeyError("no sample has this key", found=repr(key), hint=self._near(key))

    def _near(self, key: str) -> str | None:
        """What to say to who asked for a key that no sample has."""
        count = len(self)
        width = len(self.key(0)) if count else 0
        for other in key_variants(key, width):
            if any(table.first(other) is not None for table in self._tables):
                return f"did you mean {other!r}?"
        at = bisect_left(range(count), key, key=self.key)  # where it would be if keys ascended, as they mostly do
        near = range(max(at - _HINT_NEIGHBOURS, 0), min(at + _HINT_NEIGHBOURS, count))
        some = self.keys(np.array([*near, *range(min(_HINT_KEYS, count))], np.int64))
        return key_hint(key, list(dict.fromkeys(some)))

    # --------------------------------------------------------------------------------------------------- deleted rows

    def deleted(self) -> RowView:
        parts = zip(self._tables, self._row_edges, strict=False)
        return RowView.concat([table.deleted().shifted(first) for table, first in parts])

    def live(self) -> RowView:
        return super().live() if self._only is None else self._only.live()

    # -------------------------------------------------------------------------------------------------------- columns

    def columns_of(self, number: int) -> tuple[str, ...]:
        table, own = self._part_of_shard(number)
        return tuple(table.segments[table.shard(own).segment].columns)

    def column_types(self, most_shards: int | None = None) -> dict[str, pa.DataType]:
        types: dict[str, pa.DataType] = {}
        for name, kind in (item for table in self._tables for item in table.column_types().items()):
            if name not in types or pa.types.is_null(types[name]):
                types[name] = kind
        return types

    def common_types(self, names: Sequence[str]) -> list[pa.DataType] | None:
        """Return the types of columns, null for a name that is none; None where splits store one in several."""
        kinds = [{str(table.column_types().get(name, pa.null())) for table in self._tables} for name in names]
        if any(len(kind) != 1 for kind in kinds):
            return None
        types = self.column_types()
        return [pa.string() if name == KEY_COLUMN else types.get(name, pa.null()) for name in names]

    def columns_left_out(self, most_shards: int | None = None) -> dict[str, str]:
        found = (item for table in reversed(self._tables) for item in table.left_out().items())
        return {name: reason for name, reason in found if reason != NESTED_REASON}

    def values(self, row: int) -> dict[str, Any]:
        part = self._part_of_row(row)
        return self._tables[part].values(row - self._row_edges[part])

    def unanswerable(self, name: str) -> str | None:
        for table in self._tables:
            meant = [known for known in table.left_out() if known.endswith(f".{name}")]
            reason = next(filter(None, map(table.unanswerable, (name, *meant))), None)
            if reason is not None:
                return reason
        return None

    def columns(
        self, names: Sequence[str], rows: RowView | None = None, *, strict: bool = True, as_float: bool = False
    ) -> pa.Table:
        if self._only is not None:
            found = self._only.columns(names, rows, strict=strict)
            columns = found.columns
        else:
            parts = [table.columns(names, strict=strict) for table in self._tables]
            columns = [self._join(name, [part.column(at) for part in parts]) for at, name in enumerate(names)]
            columns = columns if rows is None else [rows.pick(column) for column in columns]
        return pa.table([as_floats(column) for column in columns] if as_float else columns, names=list(names))

    def scan(
        self, names: Sequence[str], may_match: Callable[[Mapping[str, Bounds | None]], bool], *, strict: bool = True
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield columns of neighbouring rows, and the first row of each part; rows that cannot match are left out.

        ``may_match`` gets the smallest and largest value of each column in some rows, NaN not among them, and None
        where they are unknown. Raises FieldError as `columns` does.
        """
        for table, first in zip(self._tables, self._row_edges, strict=False):
            for name in names:
                table.check_column(name, strict=strict)
            for row, part in table.scan(names, may_match):
                yield first + row, part

    def _join(self, name: str, parts: list[pa.ChunkedArray]) -> pa.ChunkedArray:
        if not parts:
            return pa.chunked_array([], pa.string() if name == KEY_COLUMN else pa.null())
        return join_columns(name, parts, self.locations)


def _has_rows(rows: RowView, start: int, stop: int) -> bool:
    return any(((part >= start) & (part < stop)).any() for part in rows.chunks())


def _cut_window(window: RowExtents, first: int, rows: slice, layout_fields: int) -> RowExtents:
    """Return some rows of a window that begins at row ``first`` of a shard.

    Fields outside the layout that none of the rows has are left out.
    """
    own = slice(rows.start - first, rows.stop - first)
    starts, stops = window.starts[:, own], window.stops[:, own]
    crcs = None if window.crcs is None else window.crcs[:, own]
    names, sparse = window.fields, window.sparse
    if len(names) > layout_fields:
        has = (starts[layout_fields:] >= 0).any(axis=1)
        lines = [*range(layout_fields), *(layout_fields + np.flatnonzero(has)).tolist()]
        starts, stops, crcs = starts[lines], stops[lines], None if crcs is None else crcs[lines]
        names, sparse = tuple(names[line] for line in lines), tuple(sparse[line] for line in lines)
    keys = window.row_keys.part(own)
    return RowExtents(window.numbers, None, rows, names, starts, stops, crcs, sparse, keys, window.is_complete)
