"""Record files: words of 32 bits in pages that each have a checksum, looked up by row.

A page is whole records, zeros, and a crc32 in its last word. The crc32 starts from that of ``<segment>/<file>`` plus
the number of the page, so a page that belongs to another place is as wrong as a damaged one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal._crc32 import crc32
from shoal._typing import IntArray, UInt32Array
from shoal.errors import ShardIndexError
from shoal.store._base import ObjectReader
from shoal.store._concurrency import run_all
from shoal.store._operations import open_sized
from shoal.store._registry import is_remote, store_for

from ._layout import IndexFile
from ._shard_rows import REINDEX_HINT

__all__ = ["OpenFiles", "RecordFile", "RecordTable", "RecordWriter", "page_size"]

_MIN_PAGE_BYTES = 4096
_RESIDUE = 0x2144DF1C
"""crc32(data + crc32(data, seed), seed) is this number for all data and seeds, so one call verifies a page."""
_MAX_LOADED_BYTES = 64 << 20
_MIN_READ_SHARE = 16
"""The files are loaded once one page of so many was read."""
_MAX_OPEN_FILES = 256


def page_size(words: int) -> int:
    """Return the size of the pages of records of so many words: 4 KiB, or the power of two that one record needs.

    Examples:
        >>> page_size(12), page_size(2000)
        (4096, 8192)
    """
    return max(_MIN_PAGE_BYTES, 1 << (4 * words + 3).bit_length())


def _page_records(words: int) -> int:
    return (page_size(words) - 4) // (4 * words)


class RecordWriter:
    """Writes the file ``name`` of a segment. Without records there is no file."""

    def __init__(self, folder: str, segment: str, name: str, words: int) -> None:
        self.name = name
        self.count = 0
        self._seed = crc32(f"{segment}/{name}".encode())
        self._words, self._page_bytes, self._per_page = words, page_size(words), _page_records(words)
        self._pages = 0
        self._pending = np.empty((0, words), "<u4")
        url = f"{folder}/{name}"
        self._writer = store_for(url).create(url)

    @property
    def size(self) -> int:
        """How large the file will be."""
        return -(-self.count // self._per_page) * self._page_bytes

    def write(self, records: UInt32Array) -> None:
        """Add records, one in each line."""
        self.count += len(records)
        records = np.concatenate([self._pending, records]) if len(self._pending) else records
        stop = len(records) - len(records) % self._per_page
        self._pending = records[stop:].astype("<u4")
        if stop:
            self._write_pages(records[:stop])

    def _write_pages(self, records: UInt32Array) -> None:
        count = len(records) // self._per_page
        pages = np.zeros((count, self._page_bytes // 4), "<u4")
        pages[:, : self._per_page * self._words] = records.reshape(count, -1)
        for number, page in enumerate(pages, self._pages):
            page[-1] = crc32(page[:-1], (self._seed + number) & 0xFFFFFFFF)
        self._pages += count
        self._writer.write(pages.reshape(-1).view(np.uint8).data)

    def close(self) -> IndexFile | None:
        """Finish the file; None if there is none."""
        if not self.count:
            self._writer.abort()
            return None
        if len(self._pending):
            padding = np.zeros((self._per_page - len(self._pending), self._words), "<u4")
            self._write_pages(np.concatenate([self._pending, padding]))
        self._writer.commit(durable=True)
        return IndexFile(self.name, self.size, self.count)

    def abort(self) -> None:
        """Remove what was written."""
        self._writer.abort()


class OpenFiles:
    """Open files of an index, at most so many at once. Thread-safe.

    A file that is closed to make room stays open for threads that read it: the last reference closes it.
    """

    def __init__(self, max_files: int = _MAX_OPEN_FILES) -> None:
        self._readers: dict[str, ObjectReader] = {}
        self._lock = threading.Lock()
        self._max_files = max_files

    def get(self, url: str, size: int) -> ObjectReader:
        """Return the open file. Raises ObjectChangedError where it has another size."""
        reader = self._readers.get(url)
        if reader is None:
            reader = open_sized(url, size)
            with self._lock:
                if len(self._readers) >= self._max_files:
                    del self._readers[next(iter(self._readers))]
                self._readers[url] = reader
        return reader


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A record file of a segment, and where it is."""

    url: str
    name: str
    """``<segment>/<file>``, which its checksums depend on."""
    size: int
    records: int


class RecordTable:
    """The records of one kind of file over all segments of a split. Thread-safe.

    Every page is verified when it is read. Once a good part of the pages was read, all are kept in memory if they take
    at most 64 MiB. Raises ShardIndexError, with file and page, where a page is damaged.
    """

    def __init__(self, files: Sequence[RecordFile], words: int, open_files: OpenFiles) -> None:
        self._files = files
        self._open_files = open_files
        self._words, self._page_bytes, self.per_page = words, page_size(words), _page_records(words)
        self.counts: IntArray = np.array([file.records for file in files], np.int64)
        """Records of each file."""
        pages = -(-self.counts // self.per_page)
        for file, count in zip(files, pages.tolist(), strict=True):
            if file.size != count * self._page_bytes:
                raise _size_error(file, count * self._page_bytes)
        self._first_page: IntArray = np.append(0, np.cumsum(pages))
        self._seeds = [crc32(file.name.encode()) for file in files]
        self._memory: bytes | None = None
        self.pages_read = 0

    def read(self, segments: IntArray, rows: IntArray) -> UInt32Array:
        """Return the records of these rows of these segments, one in each line, in any order."""
        outside = rows.view(np.uint64) >= self.counts[segments].view(np.uint64)
        if outside.any():
            self._refuse_row(int(segments[outside][0]), int(rows[outside][0]))
        pages, slots = np.divmod(rows, self.per_page)
        buffer, numbers = self._fetch(self._first_page[segments] + pages)
        records: UInt32Array = self._view(buffer)[numbers, slots]
        return records

    def read_range(self, segment: int, start: int, stop: int) -> UInt32Array:
        """Return the records ``[start, stop)`` of one segment."""
        if not 0 <= start <= stop <= self.counts[segment]:
            self._refuse_row(segment, stop - 1)
        if start == stop:
            return np.empty((0, self._words), np.uint32)
        first, last = start // self.per_page, (stop - 1) // self.per_page
        base = int(self._first_page[segment])
        buffer, numbers = self._fetch(np.arange(base + first, base + last + 1))
        pages = self._view(buffer)[int(numbers[0]) : int(numbers[-1]) + 1]
        records: UInt32Array = pages.reshape(-1, self._words)[
            start - first * self.per_page : stop - first * self.per_page
        ]
        return records

    def read_one(self, segment: int, row: int) -> memoryview:
        """Return the bytes of one record: quicker than `read` for a single one."""
        if not 0 <= row < self.counts[segment]:
            self._refuse_row(segment, row)
        page, slot = divmod(row, self.per_page)
        return self.read_page(segment, page)[4 * slot * self._words : 4 * (slot + 1) * self._words]

    def read_page(self, segment: int, page: int) -> memoryview:
        """Return the bytes of one page."""
        memory = self._memory
        if memory is None:
            self.pages_read += 1
            memory = self._load() if self._is_worth_loading() else None
        if memory is not None:
            start = (int(self._first_page[segment]) + page) * self._page_bytes
            return memoryview(memory)[start : start + self._page_bytes]
        file, start = self._files[segment], page * self._page_bytes
        data = self._reader(segment).read(start, start + self._page_bytes)
        if len(data) != self._page_bytes or crc32(data, (self._seeds[segment] + page) & 0xFFFFFFFF) != _RESIDUE:
            raise _page_error(file, page, self._page_bytes)
        return memoryview(data)

    def _view(self, buffer: bytes) -> UInt32Array:
        """The records of pages, by page and slot."""
        shape = len(buffer) // self._page_bytes, self.per_page, self._words
        return np.ndarray(shape, "<u4", buffer, strides=(self._page_bytes, 4 * self._words, 4))

    def _fetch(self, pages: IntArray) -> tuple[bytes, IntArray]:
        """Return a buffer of pages, and the number in it of each of these pages, which are counted over all files."""
        memory = self._memory
        if memory is not None:
            return memory, pages
        distinct, numbers = np.unique(pages, return_inverse=True)
        self.pages_read += len(distinct)
        if self._is_worth_loading():
            return self._load(), pages
        return self._read_pages(distinct), numbers

    def _is_worth_loading(self) -> bool:
        count = int(self._first_page[-1])
        return self.pages_read * _MIN_READ_SHARE >= count and count * self._page_bytes <= _MAX_LOADED_BYTES

    def _load(self) -> bytes:
        """Read all pages, and keep them."""
        self._memory = memory = self._read_pages(np.arange(int(self._first_page[-1])))
        return memory

    def _read_pages(self, pages: IntArray) -> bytes:
        """Return sorted pages in one buffer; neighbours are read together."""
        segments = np.searchsorted(self._first_page, pages, "right") - 1
        local = pages - self._first_page[segments]
        is_first = np.ones(len(pages), bool)
        is_first[1:] = (np.diff(pages) != 1) | (np.diff(segments) != 0)
        firsts = np.flatnonzero(is_first)
        starts = local[firsts] * self._page_bytes
        stops = starts + np.diff(firsts, append=len(pages)) * self._page_bytes
        edges = np.flatnonzero(np.diff(segments[firsts], prepend=-1, append=-1)).tolist() if len(pages) else []
        reads = [
            partial(self._read_runs, int(segments[firsts[low]]), starts[low:high].tolist(), stops[low:high].tolist())
            for low, high in itertools.pairwise(edges)
        ]
        is_parallel = len(reads) > 1 and is_remote(self._files[0].url)
        runs = run_all(reads) if is_parallel else [read() for read in reads]
        data = b"".join([part for parts in runs for part in parts])
        self._verify(data, segments.tolist(), local.tolist())
        return data

    def _read_runs(self, segment: int, starts: list[int], stops: list[int]) -> list[bytes]:
        parts = self._reader(segment).read_many(starts, stops)
        if sum(map(len, parts)) != sum(stops) - sum(starts):
            short = next(at for at, part in enumerate(parts) if len(part) != stops[at] - starts[at])
            page = (starts[short] + len(parts[short])) // self._page_bytes
            raise _page_error(self._files[segment], page, self._page_bytes)
        return parts

    def _verify(self, data: bytes, segments: list[int], pages: list[int]) -> None:
        view, size, seeds = memoryview(data), self._page_bytes, self._seeds
        parts = [view[start : start + size] for start in range(0, len(view), size)]
        sums = map(
            crc32, parts, [(seeds[segment] + page) & 0xFFFFFFFF for segment, page in zip(segments, pages, strict=True)]
        )
        for at, residue in enumerate(sums):
            if residue != _RESIDUE:
                raise _page_error(self._files[segments[at]], pages[at], size)

    def _reader(self, segment: int) -> ObjectReader:
        file = self._files[segment]
        return self._open_files.get(file.url, file.size)

    def _refuse_row(self, segment: int, row: int) -> None:
        file = self._files[segment]
        problem = "The index is damaged: a file does not have a record that another one refers to"
        expected, found = f"{file.records} records in {file.name}", f"record {row}"
        raise ShardIndexError(problem, expected=expected, found=found, shard=file.url, hint=REINDEX_HINT)


def _size_error(file: RecordFile, size: int) -> ShardIndexError:
    problem = "The index is damaged: a file is not as large as its records"
    expected, found = f"{size} bytes in {file.name}", f"{file.size}"
    return ShardIndexError(problem, expected=expected, found=found, shard=file.url, hint=REINDEX_HINT)


def _page_error(file: RecordFile, page: int, page_bytes: int) -> ShardIndexError:
    problem = "The index is damaged: a page does not match its checksum"
    found, offset = f"page {page} of {file.name}", page * page_bytes
    return ShardIndexError(problem, found=found, shard=file.url, offset=offset, hint=REINDEX_HINT)
