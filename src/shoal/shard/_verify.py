"""Walk a whole shard over all damage, and gather what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.errors import CodecError, MissingExtraError, ShoalError, TarError
from shoal.shard._compress import decompressed, reader_stream, sniff
from shoal.shard._index import Blocks, MemberColumns, ShardIndex
from shoal.shard._one import CompressedBytes, Decoders
from shoal.shard._tar import (
    BLOCK,
    OF_THE_SHARD,
    WEBDATASET_RULE,
    Chunk,
    Feed,
    Gap,
    Grouped,
    Grouper,
    KeyRule,
    ReaderFeed,
    ScanOptions,
    StreamFeed,
    crc32,
    scan,
)
from shoal.store import ObjectReader

from ._compare import BlockCheck, Members, Problem, ProblemKind, has_checksums

__all__ = ["NO_MEMBERS", "Seen", "VerifyOptions", "problem_of", "walk"]

_PART = 1 << 20
_LARGE = 64 << 20
_END = 1 << 62

_NOTHING = np.empty(0, np.int64)
NO_MEMBERS = MemberColumns(_NOTHING, _NOTHING, _NOTHING, _NOTHING, np.empty(0, np.uint32))


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How thorough to be."""

    rule: KeyRule = WEBDATASET_RULE
    hashed: bool = False
    """Also compute each shard's sha256, and compare it with the manifest's where that has one."""
    decoders: Callable[[Sequence[str]], Decoders] | None = None
    """Given fields, how each is decoded: then every such member is, to see that it is what its extension says."""
    on_bytes: Callable[[int], None] | None = None
    """Told of every part that was read."""
    watch: Callable[[str], Callable[[Chunk], None]] | None = None
    """Asked, by a shard's URL, who wants its members as they are met. Asked again when a walk has to begin anew."""


_UNWATCHED = VerifyOptions()


def problem_of(kind: ProblemKind, url: str, error: ShoalError) -> Problem:
    expected, found = (None if fact is None else str(fact) for fact in (error.expected, error.found))
    return Problem(kind, error.problem, url, expected, found, error.key, error.field, error.offset)


class _BrokenStream(Exception):  # noqa: N818 - names the event
    """Compressed data that cannot be read further. Not a TarError, so that no scan tries to go on behind it."""

    def __init__(self, error: TarError) -> None:
        super().__init__(error)
        self.error = error


class _Tap:
    """A feed that shows each byte once, in order, also those that a scan jumps over."""

    def __init__(self, feed: Feed, see: Callable[[memoryview], None]) -> None:
        self.size = feed.size
        self._feed = feed
        self._see = see
        self._next = 0

    def at(self, position: int, length: int) -> bytes:
        while self._next < position and self._show(self._next, min(position - self._next, _PART)):
            pass
        return self._show(position, length)

    def _show(self, position: int, length: int) -> bytes:
        try:
            data = self._feed.at(position, length)
        except TarError as error:
            raise _BrokenStream(error) from error
        if position + len(data) > self._next:
            self._see(memoryview(data)[self._next - position :])
            self._next = position + len(data)
        return data

    def drain(self) -> None:
        """Show the rest."""
        while self._show(self._next, _PART):
            pass


class _BlockFeed:
    """One block of an archive, for a scan to take as one that starts there and has an end."""

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data + bytes(2 * BLOCK)
        self._base = base
        self.size: int | None = base + len(self._data)

    def at(self, position: int, length: int) -> bytes:
        return self._data[position - self._base : position - self._base + length]


class Seen:
    """Gathers what a walk meets."""

    def __init__(self, url: str, options: VerifyOptions) -> None:
        self.gaps: list[Gap] = []
        self.problems: list[Problem] = []
        self.stop = 0
        self._url = url
        self._options = options
        self._skipped: Counter[str] = Counter()
        self._grouper = Grouper(options.rule, self._skipped)
        self._parts: list[MemberColumns] = []
        self._decoders: dict[str, Callable[[bytes], object]] = {}
        self._asked: set[str] = set()
        self._told: dict[str, str] = {}
        self._watch = None if options.watch is None else options.watch(url)

    def scan(self, feed: Feed, start: int = 0) -> None:
        """Walk an archive, over all damage."""
        large = None if self._options.decoders is not None else _LARGE
        options = ScanOptions(large_bytes=large, encoding=self._options.rule.encoding)
        parts = scan(
            feed,
            options,
            start=start,
            skipped=self._skipped,
            on_damage=lambda error: None,
            on_no_marker=lambda text: self._told.setdefault("end", text),
        )
        for part in parts:
            self._take(part, feed)

    def _take(self, part: Chunk | Gap, feed: Feed) -> None:
        if isinstance(part, Gap):
            self.gaps.append(part)
            return
        self.stop = part.stop
        if self._watch is not None:
            self._watch(part)
        try:
            grouped = self._grouper.add(part.named)
        except TarError as error:
            self.problems.append(problem_of("name", self._url, error))
            return
        self._add(part, grouped, feed)

    def _add(self, chunk: Chunk, grouped: Grouped, feed: Feed) -> None:
        kept = slice(None) if grouped.kept is None else grouped.kept
        offsets, sizes = chunk.offsets[kept], chunk.sizes[kept]
        starts = offsets - chunk.base
        spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        if chunk.data:
            view = memoryview(chunk.data)
            crcs = [crc32(view[start:stop]) for start, stop in spans]
            self._decode(chunk, grouped, spans)
        else:
            crcs = [_crc_of(feed, int(offset), int(size)) for offset, size in zip(offsets, sizes, strict=True)]
        self._parts.append(MemberColumns(grouped.rows, grouped.fields, offsets, sizes, np.array(crcs, np.uint32)))

    def _decode(self, chunk: Chunk, grouped: Grouped, spans: list[tuple[int, int]]) -> None:
        if self._options.decoders is None:
            return
        names = list(self._grouper.fields)
        self._ask(names)
        for row, code, (start, stop) in zip(grouped.rows.tolist(), grouped.fields.tolist(), spans, strict=True):
            decode = self._decoders.get(names[code])
            if decode is not None:
                self._decode_one(decode, row, names[code], chunk.data[start:stop], chunk.base + start)

    def _ask(self, names: list[str]) -> None:
        new = [name for name in names if name not in self._asked]
        self._asked.update(new)
        if new and self._options.decoders is not None:
            self._decoders.update(self._options.decoders(new))

    def _decode_one(self, decode: Callable[[bytes], object], row: int, field: str, data: bytes, offset: int) -> None:
        try:
            decode(data)
        except MissingExtraError as error:
            del self._decoders[field]
            self._told[field] = f"{field} fields were not decoded: {error}"
        except CodecError as error:
            key = self._grouper.keys[row]
            self.problems.append(replace(problem_of("decode", self._url, error), key=key, field=field, offset=offset))

    def members(self) -> Members:
        """Every member that belongs to a sample."""
        parts = [NO_MEMBERS, *self._parts]
        rows, fields, offsets, sizes = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "fields", "offsets", "sizes")
        )
        crcs: npt.NDArray[np.uint32] = np.concatenate([part.crcs for part in parts])
        columns = MemberColumns(rows, fields, offsets, sizes, crcs)
        return Members(self._grouper.keys, list(self._grouper.fields), columns)

    def notes(self, index: ShardIndex | None) -> list[Problem]:
        """What is worth knowing."""
        told = list(self._told.values())
        told += [
            f"{count} member{'s were' if count > 1 else ' was'} passed over: {reason}"
            for reason, count in self._skipped.items()
            if count and reason != OF_THE_SHARD
        ]
        returned = len(self._grouper.keys) - len(set(self._grouper.keys))
        if returned:
            told.append(f"keys come back after other keys {returned} times: each time they make another sample")
        if index is None:
            told.append("there is no index, so the members' bytes could not be compared with anything")
        elif not has_checksums(index):
            told.append("the index has no checksums, so only names and sizes were compared")
        return [Problem("note", text, self._url) for text in told]


def _crc_of(feed: Feed, offset: int, size: int) -> int:
    """The crc32 of a member too large to hold."""
    crc, at = 0, offset
    while at < offset + size and (data := feed.at(at, min(_PART, offset + size - at))):
        crc = crc32(data, crc)
        at += len(data)
    return crc


def walk(url: str, reader: ObjectReader, index: ShardIndex | None, options: VerifyOptions) -> tuple[Seen, BlockCheck]:
    compression = sniff(reader.read(0, BLOCK))
    seen, check = Seen(url, options), BlockCheck(None if index is None else index.blocks)
    tap = _Tap(_feed(reader, compression, options), _watching(check, options if compression is None else _UNWATCHED))
    try:
        seen.scan(tap)
        tap.drain()
    except _BrokenStream as broken:
        if (
            index is not None
            and compression is not None
            and index.blocks is not None
            and index.blocks.stored is not None
        ):
            blocks = index.blocks
            again, check = _walk_blocks(url, CompressedBytes(reader, compression, blocks), blocks, options)
            if again.gaps or check.damaged:
                return again, check
            seen = again  # every block is sound, so what is broken is the stream's end, which no block holds
        seen.gaps.append(Gap(seen.stop, _END, broken.error))
    return seen, check


def _watching(check: BlockCheck, options: VerifyOptions) -> Callable[[memoryview], None]:
    def see(data: memoryview) -> None:
        check.add(data)
        if options.on_bytes is not None:
            options.on_bytes(len(data))

    return see


def _feed(reader: ObjectReader, compression: str | None, options: VerifyOptions) -> Feed:
    if compression is None:
        return ReaderFeed(reader)
    return StreamFeed(decompressed(_Counted(reader, options.on_bytes), compression))


class _Counted:
    """An object's bytes in order, told of as they are read."""

    def __init__(self, reader: ObjectReader, on_bytes: Callable[[int], None] | None) -> None:
        self._stream = reader_stream(reader)
        self._on_bytes = on_bytes

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size) or b""
        if self._on_bytes is not None:
            self._on_bytes(len(data))
        return data


def _walk_blocks(url: str, data: CompressedBytes, blocks: Blocks, options: VerifyOptions) -> tuple[Seen, BlockCheck]:
    """A compressed stream that is broken somewhere, block by block: each can be read alone."""
    seen, check = Seen(url, options), BlockCheck(blocks)
    for start, stop in zip(blocks.offsets[:-1].tolist(), blocks.offsets[1:].tolist(), strict=True):
        try:
            block = data.read(start, stop)
        except TarError as error:
            error.offset = None  # where in the compressed block says nothing to a reader of the tar
            seen.gaps.append(Gap(start, stop, error))
            check.add(memoryview(bytes(stop - start)))
            continue
        check.add(memoryview(block))
        seen.scan(_BlockFeed(block, start), start)
    return seen, check
