"""Lines of text files, plain or compressed: in order from a stream, or by number.

A plain file is read by the offsets of its lines. A compressed one cannot be entered in the middle: its lines are
counted in a stream, and the first access by number unpacks it into the disk cache. Reading in order unpacks nothing.
"""

from __future__ import annotations

import bz2
import functools
import lzma
import threading
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from shoal._optional import require
from shoal._typing import BoolArray, IntArray
from shoal.errors import DecodeError, TarError, TruncatedError
from shoal.shard._compression import decompressed, open_unpacked, reader_stream, sniff
from shoal.store._base import ObjectReader

from ._sources import cached_offsets, nearby_runs

__all__ = ["Compressor", "LineFile", "compressed_endings", "compression_of", "is_tab_separated", "open_compressor"]

_COMPRESSED_ENDINGS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
_CHUNK_BYTES = 8 << 20
_NEWLINE, _RETURN = 10, 13


def compressed_endings(*endings: str) -> tuple[str, ...]:
    """Return these endings, each also with what compressed files add to it.

    Examples:
        >>> compressed_endings(".csv")
        ('.csv', '.csv.gz', '.csv.zst', '.csv.bz2', '.csv.xz')
    """
    return tuple(ending + added for ending in endings for added in ("", *_COMPRESSED_ENDINGS))


def is_tab_separated(name: str) -> bool:
    """Whether a name, without the ending of a compressed file, ends in ``.tsv``.

    Examples:
        >>> is_tab_separated("a.TSV.gz"), is_tab_separated("a.csv")
        (True, False)
    """
    return name.lower().endswith(compressed_endings(".tsv"))


def compression_of(name: str) -> str | None:
    """Return how a file of this name is compressed; None where its ending is of a plain one.

    Examples:
        >>> compression_of("a.csv.gz"), compression_of("a.csv")
        ('gzip', None)
    """
    return next((kind for ending, kind in _COMPRESSED_ENDINGS.items() if name.lower().endswith(ending)), None)


class Compressor(Protocol):
    """Compresses a stream, as the standard library's compressors do."""

    def compress(self, data: Any, /) -> bytes: ...

    def flush(self) -> bytes: ...


def open_compressor(compression: str) -> Compressor:
    """Return a compressor; equal input gives equal bytes. Raises MissingExtraError for zstd without its package."""
    if compression == "gzip":
        return zlib.compressobj(wbits=31)  # no name and no time in the header
    if compression == "zstd":
        compressor: Compressor = require("zstandard", extra="zstd").ZstdCompressor().compressobj()
        return compressor
    return bz2.BZ2Compressor() if compression == "bz2" else lzma.LZMACompressor()


class LineFile:
    """One open file of lines. ``quote`` is the byte between which line ends belong to the text."""

    def __init__(self, reader: ObjectReader, quote: bytes | None = None) -> None:
        self._reader = reader
        self._quote = quote
        self._lock = threading.Lock()
        if reader.info.size == 0 and compression_of(reader.info.url) is not None:
            raise TruncatedError(
                "The compressed file is empty (0 bytes)",
                hint="Download or write it again; compressed, no lines are some bytes, too",
                offset=0,
            )
        self._compression = sniff(reader.read(0, 16))

    @functools.cached_property
    def _marks(self) -> IntArray:
        """Where each line starts in the plain text, inverted (``~``) for blank lines, and where the last one ends."""
        kind = f"lines {self._quote!r} {self._compression}"
        return cached_offsets(self._reader, kind, lambda _: self._scan())

    def _scan(self) -> IntArray:
        parts, stop = [], 0
        for start, block, ends in self._blocks():
            starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
            parts.append(np.where(_are_blank(block, starts, ends), ~(starts + start), starts + start))
            stop = start + len(block)
        return np.concatenate([*parts, np.array([stop], np.int64)])

    @functools.cached_property
    def numbers(self) -> IntArray:
        """The numbers of the lines that are not blank."""
        return np.flatnonzero(self._marks[:-1] >= 0)

    def offsets(self, numbers: IntArray) -> IntArray:
        """Where these lines start in the plain text."""
        marks = self._marks[numbers]
        return np.where(marks < 0, ~marks, marks)

    def lines(self, numbers: IntArray) -> list[bytes]:
        """Return these lines; those near each other are read at once."""
        order = np.argsort(numbers, kind="stable")
        starts, stops = self.offsets(numbers[order]), self.offsets(numbers[order] + 1)
        lines = [b""] * len(numbers)
        for run in nearby_runs(starts, stops):
            base = int(starts[run[0]])
            data = self._plain.read(base, int(stops[run].max()))
            for place, at in zip(order[run].tolist(), run.tolist(), strict=True):
                lines[place] = data[int(starts[at]) - base : int(stops[at]) - base]
        return lines

    @functools.cached_property
    def _plain(self) -> ObjectReader:
        """The text by ranges; that of a compressed file is unpacked into the cache."""
        if self._compression is None:
            return self._reader
        with self._lock:
            try:
                return open_unpacked(self._reader, self._compression)
            except TarError as error:
                raise _damaged(error) from error

    def stream(self) -> Iterator[tuple[int, IntArray, list[bytes]]]:
        """Yield all lines in order, in groups: the number of the first, the offset of each, and the lines."""
        number = 0
        for start, block, ends in self._blocks():
            starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
            if self._quote is None:
                lines = block.removesuffix(b"\n").split(b"\n")
            else:
                lines = [block[first:last] for first, last in zip(starts.tolist(), ends.tolist(), strict=True)]
            yield number, starts + start, lines
            number += len(lines)

    def head(self, count: int) -> list[tuple[int, int, bytes]]:
        """Return the number, offset and text of the first lines that are not blank."""
        found: list[tuple[int, int, bytes]] = []
        for first, offsets, lines in self.stream():
            rows = zip(range(first, first + len(lines)), offsets.tolist(), lines, strict=True)
            found += [row for row in rows if row[2].strip(b"\r\n")]
            if len(found) >= count:
                break
        return found[:count]

    def _blocks(self) -> Iterator[tuple[int, bytes, IntArray]]:
        """Yield groups of complete lines: where the group starts, its bytes, and where each line in it ends."""
        pending: list[bytes] = []
        start, size, inside = 0, 0, False
        for data in self._chunks():
            raw = np.frombuffer(data, np.uint8)
            breaks = raw == _NEWLINE
            if self._quote is not None:
                quoted = np.logical_xor.accumulate(raw == self._quote[0]) ^ inside
                inside = bool(quoted[-1])
                breaks &= ~quoted
            ends = np.flatnonzero(breaks) + 1
            if not len(ends):
                pending.append(data)
                size += len(data)
                continue
            cut = int(ends[-1])
            block = b"".join((*pending, data[:cut]))
            yield start, block, ends + size
            pending, start, size = [data[cut:]], start + len(block), len(data) - cut
        if size:
            yield start, b"".join(pending), np.array([size])

    def _chunks(self) -> Iterator[bytes]:
        stream = reader_stream(self._reader)
        if self._compression is not None:
            stream = decompressed(stream, self._compression)
        try:
            while data := stream.read(_CHUNK_BYTES):
                yield data
        except TarError as error:
            raise _damaged(error) from error


def _damaged(error: TarError) -> Exception:
    """The error of damaged text: what is cut short stays a TruncatedError."""
    if isinstance(error, TruncatedError):
        return error
    return DecodeError(error.problem, expected=error.expected, found=error.found, offset=error.offset, hint=error.hint)


def _are_blank(block: bytes, starts: IntArray, ends: IntArray) -> BoolArray:
    """Whether lines have nothing but their line end."""
    raw, spans = np.frombuffer(block, np.uint8), ends - starts
    is_end = np.isin(raw[starts], (_NEWLINE, _RETURN))
    blank: BoolArray = is_end & ((spans == 1) | ((spans == 2) & (raw[ends - 1] == _NEWLINE)))
    return blank
