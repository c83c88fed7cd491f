"""`ShardFile`: one shard being written; `SampleEncoder`: samples as the bytes of its members."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal._crc32 import crc32
from shoal.codec._codec import EncodeOptions, Encoder
from shoal.codec._dispatch import encoders
from shoal.errors import CodecError, WriteError
from shoal.store._registry import store_for

from ._background_thread import WriteBehindBuffer
from ._byte_reader import keep_freed_memory
from ._compression import BlockCompressor
from ._index_build import BLOCK_BYTES, MemberLog
from ._member_names import check_field
from ._shard_rows import Blocks, IndexMetadata, ShardRows
from ._tar_header import BLOCK, MOST_PLAIN_NAME, MOST_PLAIN_SIZE, lay_out, member_bytes

__all__ = ["EncodedSample", "SampleEncoder", "ShardFile", "WrittenShard", "end_marker"]

Buffer = bytes | bytearray | memoryview
EncodedSample = tuple[str, tuple[str, ...], list[bytes], int]
"""A key, the fields, the bytes of each, and how many bytes of a tar they take. A plain tuple: one is made a sample."""
_COMPRESSED_BLOCK_BYTES = 256 << 10
"""Smaller than plain ones: one sample read at random costs a whole block's decompression."""
_GATHERED_BYTES = 2 << 20
"""Laid out at once: for many members it costs each of them less."""
_END_BLOCKS = 2
_RECORD_BYTES = 10240  # tar pads to records of twenty blocks
_MAX_FIELD_SETS = 1024  # remembered: samples that each have other fields must not fill the memory


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that is complete under its name."""

    index: ShardRows
    fields: dict[str, tuple[int, int]]
    size: int
    sha256: str | None


class ShardFile:
    """Gathers samples into blocks and writes each block with one call. Nothing shows before ``commit``."""

    def __init__(
        self,
        url: str,
        *,
        compression: str | None = None,
        level: int | None = None,
        mtime: int = 0,
        hashed: bool = False,
    ) -> None:
        keep_freed_memory()
        self._sink = WriteBehindBuffer(store_for(url).create(url))
        self._compressor = None if compression is None else BlockCompressor(compression, level)
        self._compression = compression
        self._block_bytes = BLOCK_BYTES if compression is None else _COMPRESSED_BLOCK_BYTES
        self._mtime = mtime
        self._hash = hashlib.sha256() if hashed else None
        self._log = MemberLog()
        self._waiting: list[EncodedSample] = []
        self._extra: list[tuple[str, bytes]] = []
        self.samples = 0
        """How many samples are in it."""
        self.size = 0
        """The tar's size so far, without its end marker."""
        self._stored = 0  # in the object
        self._head = b""
        self._block_rows = [0]
        self._block_offsets = [0]
        self._block_stored = [0]
        self._block_crcs: list[int] = []

    def write_extra(self, name: str, data: bytes) -> None:
        """Write a member that belongs to no sample, behind all samples."""
        self._extra.append((name, data))
        self.size += member_bytes(name.encode(), len(data))

    def write(self, sample: EncodedSample) -> None:
        """Write one sample."""
        if self.size - self._block_offsets[-1] >= self._block_bytes:
            self._cut()
        self._waiting.append(sample)
        self.samples += 1
        self.size += sample[3]

    def _cut(self) -> None:
        """End a block, and write what was gathered once it is enough."""
        self._block_rows.append(self.samples)
        self._block_offsets.append(self.size)
        if self.size - self._block_offsets[len(self._block_crcs)] >= _GATHERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write the blocks that were gathered, and note what is in them."""
        edges = self._block_offsets[len(self._block_crcs) :]
        samples, extra, self._waiting, self._extra = self._waiting, self._extra, [], []
        keys, fields, grouped, _ = zip(*samples, strict=True) if samples else ((), (), (), ())
        names = [*_member_names(keys, fields), *(name.encode() for name, _ in extra)]
        contents = [*itertools.chain.from_iterable(grouped), *(data for _, data in extra)]
        sizes = np.fromiter(map(len, contents), np.int64, len(contents))
        data, offsets = lay_out(names, contents, sizes, self._mtime)
        offsets += edges[0]
        view = memoryview(data)
        blocks = [view[start - edges[0] : stop - edges[0]] for start, stop in itertools.pairwise(edges)]
        self._write(data, blocks)
        # Each checksum of a large member lets go of the interpreter for a moment, and that takes ten times as long when
        # a thread waits for it. The one that writes does not yet.
        count = len(names) - len(extra)
        self._log.add(keys, fields, contents[:count], offsets[:count], sizes[:count])
        self._block_crcs += map(crc32, blocks)

    def _write(self, data: Buffer, blocks: list[memoryview]) -> None:
        """Write blocks, which are all of ``data``, as they are stored."""
        stored: Sequence[Buffer] = blocks
        if self._compressor is not None:
            stored = list(map(self._compressor.add, blocks))
            data = b"".join(stored)
        self._block_stored += itertools.accumulate(map(len, stored[1:]), initial=self._stored + len(stored[0]))
        self._sink.write(data)
        self._note(data)

    def _note(self, data: Buffer) -> None:
        if len(self._head) < BLOCK:
            self._head += data[: BLOCK - len(self._head)]
        if self._hash is not None:
            self._hash.update(data)
        self._stored += len(data)

    def _end(self) -> Buffer:
        end = end_marker(self.size)
        return end if self._compressor is None else self._compressor.add(end) + self._compressor.finish()

    def commit(self, *, durable: bool = False) -> WrittenShard:
        """Finish the tar and show it under its name."""
        if self.size > self._block_offsets[-1]:
            self._cut()
        if len(self._block_crcs) < len(self._block_offsets) - 1:
            self._flush()
        end = self._end()
        self._note(end)
        facts = IndexMetadata(self._stored, crc32(self._head), compression=self._compression)
        index = self._log.finish(facts, self._blocks())
        self._sink.write(end)
        self._sink.commit(durable=durable)
        return WrittenShard(
            index, self._log.field_totals(), self._stored, None if self._hash is None else self._hash.hexdigest()
        )

    def _blocks(self) -> Blocks:
        rows, offsets, stored = (
            np.array(column, np.int64) for column in (self._block_rows, self._block_offsets, self._block_stored)
        )
        seekable = self._compressor is not None and self._compressor.seekable
        return Blocks(rows, offsets, np.array(self._block_crcs, np.uint32), stored if seekable else None)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._sink.abort()


def end_marker(size: int) -> bytes:
    """What ends a tar of ``size`` bytes: two empty blocks, and more up to a whole record."""
    end = _END_BLOCKS * BLOCK
    return bytes(end + -(size + end) % _RECORD_BYTES)


def _member_names(keys: Sequence[str], fields: Sequence[tuple[str, ...]]) -> list[bytes]:
    starts = [key.encode() for key in keys]
    return [start + ending for start, own in zip(starts, fields, strict=True) for ending in _endings(own)]


@functools.lru_cache(maxsize=256)
def _endings(fields: tuple[str, ...]) -> tuple[bytes, ...]:
    """What the names of the members of these fields end in."""
    return tuple(f".{field}".encode() for field in fields)


class SampleEncoder:
    """Turns samples into bytes. What must be known of field names is found out once for each set of them."""

    def __init__(self, options: EncodeOptions, *, sort_fields: bool = False) -> None:
        self._options = options
        self._sort_fields = sort_fields
        self._field_sets: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._encoders: dict[str, Encoder] = {}
        self._longest = 0

    def encode(self, key: str, sample: Mapping[str, Any]) -> EncodedSample:
        """Encode one sample. Raises UnsafeNameError, EncodeError, or WriteError when it has no fields.

        Names that start with two underscores speak of the sample and are no fields.
        """
        names = tuple(sample)
        fields = self._field_sets.get(names) or self._check_fields(key, names)
        contents, size, field = [], 0, ""
        try:
            for field in fields:
                value = sample[field]
                if type(value) is not bytes:
                    value = (self._encoders.get(field) or self._encoder(field))(value)
                    value = value if type(value) is bytes else bytes(value)
                contents.append(value)
                size += (len(value) + 2 * BLOCK - 1) & -BLOCK  # a header, the data and its padding
        except CodecError as error:
            raise error.at(key=key, field=field) from error.__cause__
        if 4 * (len(key) + 1 + self._longest) > MOST_PLAIN_NAME or size > MOST_PLAIN_SIZE:  # four bytes a letter
            size = _exact_bytes(key, fields, contents)
        return key, fields, contents, size

    def _encoder(self, field: str) -> Encoder:
        encode = self._encoders[field] = encoders(self._options, [field])[field]
        return encode

    def _check_fields(self, key: str, names: tuple[object, ...]) -> tuple[str, ...]:
        """The fields among ``names``, in the order in which they are written."""
        fields = [name for name in names if not (isinstance(name, str) and name.startswith("__"))]
        for field in fields:
            check_field(key, field)
        if not fields:
            raise WriteError("a sample needs at least one field", key=key)
        texts = [str(field) for field in fields]
        if len(self._field_sets) >= _MAX_FIELD_SETS:
            self._field_sets.clear()
        found = self._field_sets[names] = tuple(sorted(texts) if self._sort_fields else texts)
        self._longest = max(self._longest, *map(len, found))
        return found


def _exact_bytes(key: str, fields: tuple[str, ...], contents: list[bytes]) -> int:
    """Where a member may need more than one header."""
    names = (f"{key}.{field}".encode() for field in fields)
    return sum(member_bytes(name, len(data)) for name, data in zip(names, contents, strict=True))
