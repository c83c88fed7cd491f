"""`Shard`: an open shard: its rows of a table, and its bytes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal._typing import IntArray
from shoal.errors import ChecksumError, FieldError, ShoalError
from shoal.store._base import ObjectReader
from shoal.store._readers import PrefetchedReader

from ._byte_reader import TarBytes, keep_freed_memory
from ._shard_rows import Blocks, KnownIndex, ShardRows, damaged
from ._table import RowMembers, Table

__all__ = ["Decoders", "Sample", "Shard"]

Sample = dict[str, Any]
"""``__key__``, ``__url__``, then the fields."""
Decoders = Mapping[str, Callable[[bytes], Any]]


class Shard:
    """An open shard: its bytes in ``data``, and in ``table`` what the index knows of it. Thread-safe.

    Rows are counted from its first one. ``verify`` says whether what is read is compared with the checksums of the
    index.
    """

    def __init__(
        self,
        url: str,
        table: Table,
        number: int,
        rows: range,
        data: TarBytes,
        *,
        compression: str | None = None,
        verify: bool = True,
        far: PrefetchedReader | None = None,
        known: KnownIndex | None = None,
    ) -> None:
        keep_freed_memory()
        self.url = url
        self.table = table
        self.number = number
        """Its number in the table."""
        self.first_row = rows.start
        """The row of the table at which it begins."""
        self.compression = compression
        self.known = known
        self.data = data
        self.verify = verify
        self._length = len(rows)
        self._far = far

    def __len__(self) -> int:
        return self._length

    @property
    def index(self) -> ShardRows:
        """All that the index has of it as one value, for code that copies or repairs."""
        return self.table.shard_rows(self.number)

    @functools.cached_property
    def blocks(self) -> Blocks | None:
        """Its blocks; None if they are not known."""
        return self.table.blocks(self.number)

    @functools.cached_property
    def presence(self) -> dict[str, bool]:
        """For each field that its samples may have, whether it is known that all have it."""
        return self.table.presence(self.number)

    def members(self, row: int) -> RowMembers:
        """Return the key and the members of one row."""
        return self.table.row_members(self.first_row + row)

    def close(self) -> None:
        """Close the file."""
        self.data.close()

    @property
    def version(self) -> str | None:
        """Of the object when it was opened; None where nobody said."""
        return None if self.known is None else self.known.info.version

    def damaged(self, key: str, field: str, offset: int, expected: int, found: int) -> ShoalError:
        """Return the error for a member whose checksum is wrong.

        Raises ObjectChangedError instead where the dataset was replaced while it is open.
        """
        self.table.check_replaced(self.number)
        return damaged(self.url, key, field, offset, expected, found)

    def damaged_block(self, number: int) -> ShoalError:
        """Return the error for a block whose checksum is wrong although those of its members are right.

        Raises ObjectChangedError instead where the dataset was replaced while it is open.
        """
        self.table.check_replaced(self.number)
        blocks = self.blocks
        assert blocks is not None  # noqa: S101 - it is one of them
        start, stop = blocks.offsets[number : number + 2].tolist()
        return ChecksumError(
            "A header or padding changed after it was written",
            expected=f"crc32 {int(blocks.crcs[number]):08x} of the {stop - start} bytes from the offset on",
            shard=self.url,
            offset=start,
            hint="Run `shoal verify` to see what is damaged, and `shoal repair` to repair it",
        )

    @property
    def far(self) -> PrefetchedReader | None:
        """What the bytes come through where the shard is far away, and worth reading ahead; None where it is near."""
        return self._far if self._far is not None and self._far.is_remote else None

    def over(self, reader: ObjectReader) -> Shard:
        """The same shard, with its bytes from another reader of the same object."""
        other = copy.copy(self)
        other.data = self.data.over(reader)
        return other

    def spans(self, fields: Sequence[str] | None = None) -> list[tuple[int, int]]:
        """The row ranges to read one after the other: the index's blocks, or runs of rows where blocks are no use."""
        if fields is None or set(fields) >= self.presence.keys():
            blocks = self.blocks
            if blocks is not None:
                edges = zip(blocks.rows[:-1].tolist(), blocks.rows[1:].tolist(), strict=True)
                return [(start, stop) for start, stop in edges if stop > start]
        step = self.table.rows_per_read(self.number, fields)
        return [(start, min(start + step, len(self))) for start in range(0, len(self), step)]

    @property
    def is_near(self) -> bool:
        """Whether small reads one after the other cost little: from a local, uncompressed file."""
        return self.far is None and self.data.scatters

    def stored_ranges(self, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
        """Return what is read of the object for ranges of the tar: of a compressed shard, the blocks they are in."""
        blocks = None if self.compression is None else self.blocks
        if blocks is None or blocks.stored is None:
            return starts, stops
        first = np.searchsorted(blocks.offsets, starts, "right") - 1
        last = np.searchsorted(blocks.offsets, np.maximum(stops - 1, starts), "right") - 1
        none = np.empty(0, np.int64)
        touched = np.unique(np.concatenate([none, *(np.arange(a, b + 1) for a, b in zip(first, last, strict=True))]))
        return blocks.stored[touched], blocks.stored[touched + 1]

    def read_part(self, row: int, field: str, start: int, stop: int) -> bytes:
        """Return some bytes of one member; they are not verified, since the checksum is of all of them."""
        members = {name: (start, size) for name, start, size, _ in self.members(row).members}
        if field not in members:
            raise FieldError("The sample has no such field", found=field, shard=self.url, key=self.key(row))
        first, size = members[field]
        return self.data.read(first + min(start, size), first + min(stop, size))

    def key(self, row: int) -> str:
        """Return the key of one row."""
        return self.table.key(self.first_row + row)
