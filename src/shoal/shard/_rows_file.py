"""Rows files: the index of one finished shard before it is part of a segment, and the values that segments are made of.

A rows file is a line with the length and the crc32 of the head; the head, which is JSON; and Arrow streams of samples,
members and blocks, whose lengths and crc32 are in the head. Nothing is parsed before its checksum was compared.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import IntArray, UInt32Array
from shoal.errors import OptionError, ShardIndexError
from shoal.store._registry import store_for

from ._arrow_arrays import as_arrow, as_numpy, text_array, text_edges
from ._layout import BLOCK_WORDS
from ._manifest import ShardRecord
from ._member_names import KeyRule
from ._shard_rows import REINDEX_HINT, Blocks, FieldExtents, IndexMetadata, LongExtents, ShardRows

__all__ = [
    "NESTED_REASON",
    "SHARD_COLUMNS",
    "RowBatch",
    "RowSource",
    "RowsFile",
    "RowsSummary",
    "batch_of",
    "block_records",
    "blocks_of_records",
    "read_record",
    "rows_of_batch",
    "shard_digest",
    "write_rows_file",
]

FORMAT_VERSION = 1
NESTED_REASON = "it is a list or a mapping in some samples"
"""Why a name is left out that is nested: unlike other reasons, it does not concern longer names (``name.*``)."""
SHARD_COLUMNS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("samples", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("blocks", pa.int64(), nullable=False),
        pa.field("compression", pa.string()),
        pa.field("head_crc32", pa.int64(), nullable=False),
        pa.field("sha256", pa.string()),
        pa.field("digest", pa.binary(16), nullable=False),
    ]
)
"""One row for each shard. ``blocks`` counts its records in ``blocks.rec``; 0 if its blocks are not known."""
_FIRST_LINE = b"shoal-rows %08x %08x\n"
_FIRST_LINE_PATTERN = re.compile(rb"shoal-rows ([0-9a-f]{8}) ([0-9a-f]{8})\n")
_FIRST_LINE_BYTES = len(_FIRST_LINE % (0, 0))
_ALIGNMENT = 64
_HEAD_READ_BYTES = 16 << 10
_MAX_JOINED_BYTES = 256 << 10
"""Smaller files are written by one call, larger ones without a copy."""
_MAX_WORD = 0xFFFFFFFF
_END_OF_STREAM = pa.py_buffer(b"\xff\xff\xff\xff\0\0\0\0")
"""Of an Arrow stream: a message without metadata."""


# ------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Neighbouring rows of the index of some shards, on their way into a segment."""

    shards: pa.Table
    """The shards that begin in this batch, as `SHARD_COLUMNS`. Their ``samples`` may reach beyond the batch."""
    keys: pa.StringArray
    fields: Mapping[str, FieldExtents]
    """A dict, or LongExtents. A crc of None is unknown."""
    columns: dict[str, pa.Array]
    """The metadata columns that this batch has."""
    unreadable: dict[str, IntArray]
    """For each field, the rows of this batch whose member does not decode."""
    blocks: UInt32Array
    """Records of the shards that begin here, as `block_records` makes them; rows count from the batch's first row."""


@dataclass(frozen=True, slots=True)
class RowsSummary:
    """What is known of rows before they are read: enough to lay out a segment."""

    rows: int
    shards: int
    bytes: int
    """Of the shards, as they are stored."""
    fields: dict[str, tuple[int, int]]
    """For each field, how many rows have it and its bytes in all."""
    columns: dict[str, pa.DataType]
    left_out: dict[str, str]
    """Columns, or fields with all their columns, that cannot be queried, and why; see `NESTED_REASON`."""
    complete: bool
    """Whether a name that is neither a column nor left out is one that no sample has."""
    longest_key: int
    """In bytes of UTF-8."""
    unreadable: dict[str, int]
    """For fields with members that do not decode, the first such row."""


class RowSource(Protocol):
    """Index rows that can be read in order, more than once."""

    @property
    def summary(self) -> RowsSummary: ...

    def batches(self) -> Iterator[RowBatch]: ...


# ------------------------------------------------------------------------------------------------------------- blocks


def block_records(blocks: Blocks | None, first_row: int = 0) -> UInt32Array:
    """Return the records of a shard's blocks: one for each, and one more for where the last ends, of size 0.

    No records stand for None. Starts in the stored object are 0 where it cannot be read block by block, or is the tar.
    A size of 4 GiB or more is stored as 2^32 - 1: the next start is what counts.
    """
    if blocks is None:
        return np.empty((0, BLOCK_WORDS), np.uint32)
    records = np.zeros((len(blocks) + 1, BLOCK_WORDS), np.uint32)
    records[:, 0] = blocks.rows + first_row
    for word, starts in ((1, blocks.offsets), (4, blocks.stored)):
        if starts is not None:
            records[:, word], records[:, word + 1] = starts & _MAX_WORD, starts >> 32
            records[:-1, word + 2] = np.minimum(np.diff(starts), _MAX_WORD)
    records[:-1, 7] = blocks.crcs
    return records


def blocks_of_records(records: UInt32Array, first_row: int = 0) -> Blocks | None:
    """Return the blocks of these records of one shard. Raises ValueError where they do not follow each other.

    Examples:
        >>> blocks = Blocks(np.array([0, 3, 4]), np.array([0, 2048, 3072]), np.array([1, 2], np.uint32))
        >>> blocks_of_records(block_records(blocks, first_row=100), 100).offsets.tolist()
        [0, 2048, 3072]
    """
    if not len(records):
        return None
    words = records.astype(np.int64)
    rows, offsets, stored = words[:, 0] - first_row, words[:, 1] | words[:, 2] << 32, words[:, 4] | words[:, 5] << 32
    if any(edges[0] < 0 or (edges[1:] < edges[:-1]).any() for edges in (rows, offsets, stored)) or rows[0]:
        raise ValueError("Blocks must follow each other")
    return Blocks(rows, offsets, records[:-1, 7].copy(), stored if stored[-1] else None)


# ------------------------------------------------------------------------------------------------ batches and digests


def batch_of(path: str, rows: ShardRows, *, sha256: str | None = None) -> RowBatch:
    """Return the index of one shard as a batch."""
    return _batch(path, rows, sha256, shard_digest(rows))


def _batch(path: str, rows: ShardRows, sha256: str | None, digest: bytes) -> RowBatch:
    facts, blocks = rows.facts, block_records(rows.blocks)
    shard = (path, len(rows), facts.size, len(blocks), facts.compression, facts.head_crc, sha256, digest)
    arrays = [_scalar(value) for value in shard]
    unreadable = {name: np.array(numbers, np.int64) for name, numbers in facts.unreadable.items()}
    shards = pa.Table.from_arrays(arrays, schema=SHARD_COLUMNS)
    return RowBatch(shards, rows.keys, rows.fields, rows.columns, unreadable, blocks)


def _scalar(value: str | int | bytes | None) -> pa.Array:
    """One value as an array, without ``pa.array``, which imports pandas."""
    if isinstance(value, int):
        return as_arrow(np.array([value], np.int64))
    if isinstance(value, bytes):
        return pa.Array.from_buffers(pa.binary(len(value)), 1, [None, pa.py_buffer(value)])
    return text_array([value or ""], pa.py_buffer(b"\0") if value is None else None)


def rows_of_batch(batch: RowBatch, rule: KeyRule, left_out: Mapping[str, str], complete: bool) -> ShardRows:
    """Return the index of the shard that a batch consists of: what `batch_of` was called with, without ``skipped``."""
    (shard,) = batch.shards.to_pylist()
    facts = IndexMetadata(
        shard["bytes"],
        shard["head_crc32"],
        rule,
        shard["compression"],
        dropped={name: reason for name, reason in left_out.items() if reason != NESTED_REASON},
        nested=[name for name, reason in left_out.items() if reason == NESTED_REASON],
        unreadable={name: numbers.tolist() for name, numbers in batch.unreadable.items()},
        complete=complete,
    )
    return ShardRows(facts, batch.keys, batch.fields, batch.columns, blocks_of_records(batch.blocks))


def _left_out(facts: IndexMetadata) -> dict[str, str]:
    # A name that is both is dropped: that concerns longer names, too.
    return dict.fromkeys(facts.nested, NESTED_REASON) | facts.dropped


def shard_digest(rows: ShardRows) -> bytes:
    """Return 16 bytes that depend on keys, field names, sizes and crc32 of all members, and on the order of rows.

    They do not depend on where members are in the tar, on the order of fields, or on how the extents are stored.
    """
    digest = hashlib.sha256()
    edges, texts = text_edges(rows.keys)
    digest.update(_bytes(np.diff(edges), "<u4"))
    digest.update(texts[int(edges[0]) : int(edges[-1])] if len(rows) else b"")
    for name, own, size, crc in _sorted_members(rows.fields):
        is_small = int(size.max()) <= _MAX_WORD
        digest.update(msgspec.msgpack.encode((name, len(own), crc is not None, is_small)))
        if len(own) < len(rows):
            digest.update(_bytes(own, "<u4"))
        digest.update(_bytes(size, "<u4" if is_small else "<u8"))
        if crc is not None:
            digest.update(_bytes(crc, "<u4"))
    return digest.digest()[:16]


def _bytes(values: npt.NDArray[Any], dtype: str) -> memoryview:
    return np.ascontiguousarray(values, dtype).data


_Members = tuple[str, IntArray, npt.NDArray[Any], npt.NDArray[Any] | None]


def _sorted_members(fields: Mapping[str, FieldExtents]) -> Iterator[_Members]:
    """Yield name, rows, sizes and crc32 of each field that some row has, sorted by name."""
    if isinstance(fields, LongExtents):
        yield from _sorted_entries(fields)
        return
    for name in sorted(fields):
        part = fields[name]
        own = np.flatnonzero(part.offset)
        if len(own) == len(part.offset) > 0:
            yield name, own, part.size, part.crc
        elif len(own):
            yield name, own, part.size[own], None if part.crc is None else part.crc[own]


def _sorted_entries(fields: LongExtents) -> Iterator[_Members]:
    order = np.lexsort((fields.entry_rows, fields.codes))
    edges = np.searchsorted(fields.codes[order], np.arange(len(fields.names) + 1)).tolist()
    for name, code in sorted((name, code) for code, name in enumerate(fields.names)):
        own = order[edges[code] : edges[code + 1]]
        if len(own):
            yield name, fields.entry_rows[own], fields.size[own], None if fields.crc is None else fields.crc[own]


# --------------------------------------------------------------------------------------------------------- rows files


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a rows file: all that is known without the streams."""

    version: int
    record: ShardRecord
    facts: IndexMetadata
    digest: str
    longest_key: int
    unknown_crcs: list[str]
    """Fields whose crc32 is not known."""
    is_long: bool
    columns: dict[str, str]
    streams: list[int]
    """Bytes of the streams of samples, members and blocks."""
    crc32: int
    """Of all three."""


_encode_head = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode


def write_rows_file(url: str, record: ShardRecord, rows: ShardRows, *, durable: bool = False) -> None:
    """Write the index of the shard that ``record`` describes, replacing the file in one step.

    ``durable`` waits until it would survive a power cut. Raises OptionError for the record of another shard.
    """
    if record.samples != len(rows) or list(record.fields) != list(rows.fields):
        raise OptionError("record must be that of the rows", found=repr(record.path))
    streams = (_encode_samples(rows), _encode_members(rows), _encode_blocks(rows))
    parts = [part for stream in streams for part in stream]
    checksum = 0
    for part in parts:
        checksum = crc32(part, checksum)
    head = _Head(
        FORMAT_VERSION,
        record,
        rows.facts,
        shard_digest(rows).hex(),
        int(np.diff(text_edges(rows.keys)[0]).max(initial=0)),
        _unknown_crcs(rows.fields),
        isinstance(rows.fields, LongExtents),
        {name: str(column.type) for name, column in rows.columns.items()},
        [sum(part.size for part in stream) for stream in streams],
        checksum,
    )
    document = _encode_head(head)
    document += b" " * (-(_FIRST_LINE_BYTES + len(document) + 1) % _ALIGNMENT) + b"\n"
    writer = store_for(url).create(url)
    try:
        parts = [pa.py_buffer(_FIRST_LINE % (len(document), crc32(document)) + document), *parts]
        for part in parts if sum(head.streams) > _MAX_JOINED_BYTES else [b"".join(parts)]:
            writer.write(memoryview(part))
        writer.commit(durable=durable)
    except BaseException:
        writer.abort()
        raise


def _unknown_crcs(fields: Mapping[str, FieldExtents]) -> list[str]:
    if isinstance(fields, LongExtents):
        return fields.names if fields.crc is None else []
    return [name for name, part in fields.items() if part.crc is None]


def _encode_samples(rows: ShardRows) -> list[pa.Buffer]:
    arrays, names = [rows.keys, *rows.columns.values()], ["key", *rows.columns]
    return _encode(pa.RecordBatch.from_arrays(arrays, names=names))


def _encode_members(rows: ShardRows) -> list[pa.Buffer]:
    """Row, field, offset, size and crc32 of each member; otherwise the last three of each row, field by field."""
    if isinstance(fields := rows.fields, LongExtents):
        crcs = np.zeros(len(fields.codes), np.uint32) if fields.crc is None else fields.crc
        named = {"row": fields.entry_rows, "field": fields.codes, "offset": fields.offset, "size": fields.size}
        return _encode_numbers({**named, "crc32": crcs})
    parts = fields.values()
    none = np.zeros(len(rows), np.uint32) if any(part.crc is None for part in parts) else None
    return _encode_numbers(
        {
            "offset": _join([part.offset for part in parts], np.uint64),
            "size": _join([part.size for part in parts], np.uint64),
            "crc32": _join([none if part.crc is None else part.crc for part in parts], np.uint32),
        }
    )


def _join(parts: Sequence[Any], dtype: type[np.unsignedinteger[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _encode_blocks(rows: ShardRows) -> list[pa.Buffer]:
    return _encode_numbers({"words": block_records(rows.blocks).reshape(-1)})


def _encode_numbers(columns: dict[str, npt.NDArray[Any]]) -> list[pa.Buffer]:
    arrays = [as_arrow(values) for values in columns.values()]
    return _encode(pa.RecordBatch.from_arrays(arrays, names=list(columns)))


def _encode(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """An Arrow stream of one batch, in parts: quicker than a writer, whose buffer grows as it writes."""
    return [batch.schema.serialize(), batch.serialize(), _END_OF_STREAM]


def read_record(url: str) -> ShardRecord:
    """Return the record of a rows file, of which only the head is read. Raises ShardIndexError."""
    return _read_head(url).record


class RowsFile:
    """A rows file, which is a `RowSource` of one batch. Nothing is read before it is needed; each call reads anew.

    Raises ObjectNotFoundError, and ShardIndexError where the file is damaged.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    @functools.cached_property
    def _head(self) -> _Head:
        return _read_head(self._url)

    @property
    def record(self) -> ShardRecord:
        """What the manifest lists of the shard."""
        return self._head.record

    @property
    def digest(self) -> bytes:
        """The digest of the shard, as `shard_digest` computes it."""
        return bytes.fromhex(self._head.digest)

    @property
    def summary(self) -> RowsSummary:
        """Of its rows, without reading them."""
        head = self._head
        facts = head.facts
        return RowsSummary(
            head.record.samples,
            1,
            facts.size,
            head.record.fields,
            {name: pa.type_for_alias(kind) for name, kind in head.columns.items()},
            _left_out(facts),
            facts.complete,
            head.longest_key,
            {name: rows[0] for name, rows in facts.unreadable.items() if rows},
        )

    def batches(self) -> Iterator[RowBatch]:
        """Yield all rows as one batch."""
        rows = self.rows()
        record = self._head.record
        yield _batch(record.path, rows, record.sha256, self.digest)

    def rows(self) -> ShardRows:
        """Return the index of the shard."""
        data = store_for(self._url).read_all(self._url)
        length, checksum = _parse_first_line(data, self._url)
        head = _parse_head(data[_FIRST_LINE_BYTES : _FIRST_LINE_BYTES + length], checksum, self._url)
        if self.__dict__.setdefault("_head", head) != head:
            raise _error("The rows file was replaced while it was read", self._url)
        start = _FIRST_LINE_BYTES + length
        if len(data) != start + sum(head.streams) or crc32(memoryview(data)[start:]) != head.crc32:
            raise _error("The rows file is damaged: its streams do not match their length and crc32", self._url)
        try:
            return _parse_rows(pa.py_buffer(data), start, head)
        except (pa.ArrowException, IndexError, KeyError, OSError, TypeError, ValueError) as error:
            raise _error("The rows file is not one that shoal wrote", self._url, str(error)) from error


def _error(problem: str, url: str, found: str | None = None) -> ShardIndexError:
    return ShardIndexError(problem, found=found, shard=url, hint=REINDEX_HINT)


def _read_head(url: str) -> _Head:
    reader = store_for(url).open(url)
    try:
        data = reader.read(0, _HEAD_READ_BYTES)
        length, checksum = _parse_first_line(data, url)
        stop = _FIRST_LINE_BYTES + length
        if len(data) == _HEAD_READ_BYTES < stop:
            data += reader.read(len(data), stop)
    finally:
        reader.close()
    return _parse_head(data[_FIRST_LINE_BYTES:stop], checksum, url)


def _parse_first_line(data: bytes, url: str) -> tuple[int, int]:
    """Return length and crc32 of the head."""
    line = _FIRST_LINE_PATTERN.match(data)
    if line is None:
        raise _error("The rows file is damaged: its first line is not that of a rows file", url)
    return int(line[1], 16), int(line[2], 16)


def _parse_head(document: bytes, checksum: int, url: str) -> _Head:
    if crc32(document) != checksum:
        raise _error("The rows file is damaged: its head does not match its crc32", url)
    try:
        head = _decode_head(document)
    except (msgspec.DecodeError, RecursionError) as error:
        _refuse_version(document, url)
        raise _error("The rows file is not one that shoal wrote", url, str(error)) from error
    if head.version != FORMAT_VERSION:
        _refuse_version(document, url)
    return head


@dataclass(frozen=True, slots=True)
class _Version:
    version: int


def _refuse_version(document: bytes, url: str) -> None:
    """Raise ShardIndexError if the head is of another version: it may have other contents, too."""
    try:
        version = msgspec.json.decode(document, type=_Version).version
    except (msgspec.DecodeError, RecursionError):
        return
    if version != FORMAT_VERSION:
        hint = "Upgrade shoal" if version > FORMAT_VERSION else REINDEX_HINT
        problem = f"Version {version} of the rows file is not version {FORMAT_VERSION}, which is supported here"
        raise ShardIndexError(problem, shard=url, hint=hint)


def _parse_rows(buffer: pa.Buffer, start: int, head: _Head) -> ShardRows:
    streams = []
    for size in head.streams:
        streams.append(pa.ipc.open_stream(pa.BufferReader(buffer.slice(start, size))).read_next_batch())
        start += size
    samples, members, blocks = streams
    samples.validate(full=True)  # Arrow trusts offsets of texts, and ends the process where they are wrong
    if samples.num_rows != head.record.samples or samples.num_columns != len(head.columns) + 1:
        raise ValueError("the samples are not those of the head")
    keys, *columns = samples.columns
    words = as_numpy(blocks.column(0)).reshape(-1, BLOCK_WORDS)
    fields = (_parse_long if head.is_long else _parse_wide)(members, samples.num_rows, head)
    named = dict(zip(head.columns, columns, strict=True))
    return ShardRows(head.facts, keys, fields, named, blocks_of_records(words))


def _parse_wide(members: pa.RecordBatch, rows: int, head: _Head) -> dict[str, FieldExtents]:
    offset, size, crc = (as_numpy(column).reshape(len(head.record.fields), rows) for column in members.columns)
    unknown = set(head.unknown_crcs)
    return {
        name: FieldExtents(offset[i], size[i], None if name in unknown else crc[i])
        for i, name in enumerate(head.record.fields)
    }


def _parse_long(members: pa.RecordBatch, rows: int, head: _Head) -> LongExtents:
    names = list(head.record.fields)
    row, code, offset, size, crc = map(as_numpy, members.columns)
    for numbers, count in ((row, rows), (code, len(names))):
        if (numbers.view(np.uint64) >= count).any():
            raise ValueError("a member is of no sample or field")
    return LongExtents(rows, names, row, code, offset, size, None if head.unknown_crcs else crc)
