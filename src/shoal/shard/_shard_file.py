"""One shard being written: members in, a committed object and its index out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.store import store_for

from ._build import BLOCK_BYTES
from ._compress import BlockCompressor
from ._crc import crc32
from ._header import BLOCK, PLAIN_PARTS, header_parts
from ._index import Blocks, IndexFacts, ShardIndex
from ._member_log import MemberLog

__all__ = ["ShardFile", "WrittenShard"]

_COMPRESSED_BLOCK_BYTES = 256 << 10
"""Smaller than plain ones: one sample read at random costs a whole block's decompression."""
_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]
_END_BLOCKS = 2
_RECORD = 10240  # tar pads to records of twenty blocks


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that is complete under its name."""

    index: ShardIndex
    fields: dict[str, tuple[int, int]]
    size: int
    sha256: str | None


class ShardFile:
    """Gathers members into blocks and writes each block with one call. Nothing shows before ``commit``."""

    def __init__(
        self,
        url: str,
        *,
        compression: str | None = None,
        level: int | None = None,
        mtime: int = 0,
        hashed: bool = False,
    ) -> None:
        self._sink = store_for(url).create(url)
        self._compressor = None if compression is None else BlockCompressor(compression, level)
        self._compression = compression
        self._block_bytes = BLOCK_BYTES if compression is None else _COMPRESSED_BLOCK_BYTES
        self._header = header_parts(mtime)
        self._hash = hashlib.sha256() if hashed else None
        self._log = MemberLog()
        self._parts: list[bytes] = []
        self._position = 0  # in the tar
        self._stored = 0  # in the object
        self._head = b""
        self._block_rows = [0]
        self._block_offsets = [0]
        self._block_stored = [0]
        self._block_crcs: list[int] = []

    @property
    def samples(self) -> int:
        """How many samples are in it."""
        return len(self._log.keys)

    @property
    def size(self) -> int:
        """The tar's size so far, without its end marker."""
        return self._position

    def write_extra(self, name: str, data: bytes) -> None:
        """Write a member that belongs to no sample."""
        self._append(b"", ((name, data),))

    def write(self, key: str, members: Sequence[tuple[str, bytes]]) -> None:
        """Write one sample."""
        if self._position - self._block_offsets[-1] >= self._block_bytes:
            self._flush()
        self._log.add(key, members, self._append(key.encode() + b".", members))

    def _append(self, prefix: bytes, members: Sequence[tuple[str, bytes]]) -> list[int]:
        """Gather members; returns where the bytes of each will start."""
        header, parts, position, offsets = self._header, self._parts, self._position, []
        for name, data in members:
            size = len(data)
            head = header(prefix + name.encode(), size)
            padding = _PADDING[size % BLOCK]
            position += BLOCK if len(head) == PLAIN_PARTS else len(head[0])
            offsets.append(position)
            position += size + len(padding)
            parts += head
            parts += (data, padding)
        self._position = position
        return offsets

    def _flush(self) -> None:
        """Write what was gathered as one block."""
        if self._position == self._block_offsets[-1]:
            return
        block = b"".join(self._parts)
        self._parts.clear()
        self._block_crcs.append(crc32(block))
        self._put(block if self._compressor is None else self._compressor.add(block))
        self._block_rows.append(len(self._log.keys))
        self._block_offsets.append(self._position)
        self._block_stored.append(self._stored)
        self._log.flush()

    def _put(self, data: bytes) -> None:
        if len(self._head) < BLOCK:
            self._head += data[: BLOCK - len(self._head)]
        if self._hash is not None:
            self._hash.update(data)
        self._sink.write(data)
        self._stored += len(data)

    def _end(self) -> None:
        end = bytes(_END_BLOCKS * BLOCK)
        end += bytes(-(self._position + len(end)) % _RECORD)
        self._put(end if self._compressor is None else self._compressor.add(end) + self._compressor.finish())

    def commit(self, *, durable: bool = False) -> WrittenShard:
        """Finish the tar and show it under its name."""
        self._flush()
        self._end()
        self._sink.commit(durable=durable)
        facts = IndexFacts(self._stored, crc32(self._head), compression=self._compression)
        index = self._log.finish(facts, self._blocks())
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
