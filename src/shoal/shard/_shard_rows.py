"""`ShardRows`: the index of one shard as a value: keys, extents, metadata columns and blocks.

A scan makes it, a writer makes it, and it is read from where it is stored.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal._typing import IntArray, UInt32Array, UInt64Array
from shoal.errors import ChecksumError, StaleIndexError
from shoal.store._base import ObjectInfo

from ._arrow_arrays import text_edges
from ._member_names import WEBDATASET_RULE, KeyRule

__all__ = [
    "REINDEX_HINT",
    "Blocks",
    "FieldExtents",
    "IndexMetadata",
    "KnownIndex",
    "LongExtents",
    "Member",
    "ShardRows",
    "damaged",
    "field_totals",
    "members_of",
    "row_extents",
    "rows_per_read",
    "spread",
]

REINDEX_HINT = "index it again with `shoal index`"


@dataclass(frozen=True, slots=True)
class FieldExtents:
    """Where one field lies in each sample. Offset 0 means the sample lacks it: no member's data starts there."""

    offset: UInt64Array
    size: UInt64Array
    crc: UInt32Array | None


@dataclass(frozen=True, slots=True)
class Blocks:
    """Runs of neighbouring samples, about two mebibytes each: the unit of sequential reading and of compression.

    They tile the archive from its start to its end marker. ``rows``, ``offsets`` and ``stored`` have one entry more
    than there are blocks, so that block ``i`` is ``[x[i], x[i + 1])``.
    """

    rows: IntArray
    offsets: IntArray
    crcs: UInt32Array
    stored: IntArray | None = None
    """Where each block starts in the compressed object; None when the object is the tar itself."""

    def __len__(self) -> int:
        return len(self.crcs)


@dataclass(frozen=True, slots=True)
class IndexMetadata:
    """What is true of the whole shard."""

    size: int
    """Of the object, compressed or not."""
    head_crc: int
    """crc32 of the object's first 512 bytes. With the size, it tells when the tar was replaced."""
    rule: KeyRule = WEBDATASET_RULE
    compression: str | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    """Metadata columns that are not here, and why; of a field, all its columns."""
    nested: Sequence[str] = ()
    """Names under which a list or a mapping is in some sample: they have no column."""
    unreadable: dict[str, list[int]] = field(default_factory=dict)
    """Rows whose member does not decode, by field; their columns are null."""
    complete: bool = True
    """Whether a name that is neither a column, nor nested or dropped, is one that no sample has."""

    def unanswerable(self, column: str) -> str | None:
        """Why a name that is not a column of the index may still have values in the samples; None if it has none."""
        if column in self.nested:
            return "it is a list or a mapping in some samples"
        parts = column.split(".")
        for end in range(len(parts), 0, -1):
            name = ".".join(parts[:end])
            if name in self.dropped:
                return f"{name} is not in the index: {self.dropped[name]}"
        return None if self.complete else "the index has only some of the columns of this shard"

    def unreadable_row(self, column: str) -> tuple[int, str] | None:
        """The first row of which the column is not known because its member does not decode, and that field."""
        found = ((rows[0], name) for name, rows in self.unreadable.items() if f"{column}.".startswith(f"{name}."))
        return next(found, None)


@dataclass(frozen=True)
class ShardRows:
    """The index of one shard: ``len(index)`` samples.

    ``fields`` maps each field to its extents, in the order in which the fields first appear.
    """

    facts: IndexMetadata
    keys: pa.StringArray
    fields: Mapping[str, FieldExtents]
    columns: dict[str, pa.Array]
    blocks: Blocks | None
    """None when samples are not runs of neighbouring members (grouping over the whole archive)."""

    def __len__(self) -> int:
        return len(self.keys)

    def key_list(self, start: int, stop: int) -> list[str]:
        """The keys of rows ``[start, stop)``."""
        keys: list[str] = self.keys.slice(start, stop - start).to_pylist()
        return keys

    def key(self, row: int) -> str:
        """The key of one row."""
        edges, texts = self._key_texts
        return str(texts[edges.item(row) : edges.item(row + 1)], "utf-8")

    @functools.cached_property
    def _key_texts(self) -> tuple[npt.NDArray[np.signedinteger[Any]], memoryview]:
        return text_edges(self.keys)

    @functools.cached_property
    def presence(self) -> dict[str, bool]:
        """Whether every row has a field, by field; False for all if there are very many fields."""
        if isinstance(self.fields, LongExtents):
            return dict.fromkeys(self.fields, False)
        return {name: bool(part.offset.all()) for name, part in self.fields.items()}

    def find(self, key: str) -> int | None:
        """The first row with this key."""
        row = int(pc.index(self.keys, pa.scalar(key, self.keys.type)).as_py())
        return None if row < 0 else row

    def check_object(self, url: str, size: int, head: bytes, crc32: int) -> None:
        """Raise StaleIndexError when the object is not the one this index was made of."""
        if size != self.facts.size:
            raise StaleIndexError(
                "the shard changed after it was indexed",
                expected=f"{self.facts.size} bytes",
                found=size,
                shard=url,
                hint=REINDEX_HINT,
            )
        if head and crc32 != self.facts.head_crc:
            raise StaleIndexError(
                "the shard changed after it was indexed",
                expected="its first header",
                found="another",
                shard=url,
                hint=REINDEX_HINT,
            )


@dataclass(frozen=True, slots=True)
class KnownIndex:
    """The index of an object in a certain state."""

    info: ObjectInfo
    index: ShardRows


class LongExtents(Mapping[str, FieldExtents]):
    """Extents of very many fields, stored as (row, field, offset, size, crc) and spread out one field at a time."""

    def __init__(
        self,
        rows: int,
        names: list[str],
        entry_rows: IntArray,
        codes: IntArray,
        offset: UInt64Array,
        size: UInt64Array,
        crc: UInt32Array | None,
    ) -> None:
        self._rows = rows
        self._codes = {name: code for code, name in enumerate(names)}
        self.names = names
        self.entry_rows = entry_rows
        self.codes = codes
        self.offset = offset
        self.size = size
        self.crc = crc

    def __getitem__(self, name: str) -> FieldExtents:
        at = np.flatnonzero(self.codes == self._codes[name])
        rows = self.entry_rows[at]
        return FieldExtents(
            spread(self._rows, rows, self.offset[at]),
            spread(self._rows, rows, self.size[at]),
            None if self.crc is None else spread(self._rows, rows, self.crc[at]),
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def span(self, start: int, stop: int) -> slice:
        """The entries of rows ``[start, stop)``: entries are kept in row order."""
        first, last = np.searchsorted(self.entry_rows, (start, stop))
        return slice(int(first), int(last))


def spread(length: int, rows: IntArray, values: npt.NDArray[Any], dtype: type | None = None) -> npt.NDArray[Any]:
    """A column of this length that has the values at these rows and 0 elsewhere."""
    column = np.zeros(length, values.dtype if dtype is None else dtype)
    column[rows] = values
    return column


def row_extents(fields: Mapping[str, FieldExtents], row: int) -> list[tuple[str, int, int, int | None]]:
    """The members of one row: field, offset, size and crc, in the order of the fields."""
    if isinstance(fields, LongExtents):
        at = fields.span(row, row + 1)
        crcs = [None] * (at.stop - at.start) if fields.crc is None else fields.crc[at].tolist()
        names = [fields.names[code] for code in fields.codes[at].tolist()]
        return list(zip(names, fields.offset[at].tolist(), fields.size[at].tolist(), crcs, strict=True))
    return [
        (name, offset, part.size.item(row), None if part.crc is None else part.crc.item(row))
        for name, part in fields.items()
        if (offset := part.offset.item(row))
    ]


@dataclass(frozen=True, slots=True)
class Member:
    """One field of one sample, and where its bytes are in the (decompressed) tar."""

    field: str
    offset: int
    size: int
    crc32: int | None = None


def members_of(index: ShardRows, row: int) -> list[Member]:
    """The members of one sample, in the archive's order."""
    members = [Member(*extent) for extent in row_extents(index.fields, row)]
    return sorted(members, key=lambda member: member.offset)


def field_totals(index: ShardRows, rows: IntArray | None = None) -> dict[str, tuple[int, int]]:
    """For each field, how many samples, or of these rows, have it and its bytes in all."""
    fields = index.fields
    if isinstance(fields, LongExtents):
        codes, entry_sizes = fields.codes, fields.size.astype(np.int64)
        if rows is not None:
            repeats = np.bincount(rows, minlength=len(index))[fields.entry_rows]
            codes, entry_sizes = np.repeat(codes, repeats), np.repeat(entry_sizes, repeats)
        counts = np.bincount(codes, minlength=len(fields.names)).tolist()
        sizes = np.zeros(len(fields.names), np.int64)
        np.add.at(sizes, codes, entry_sizes)
        return dict(zip(fields.names, zip(counts, sizes.tolist(), strict=True), strict=True))
    own = slice(None) if rows is None else rows
    return {name: (int((part.offset[own] > 0).sum()), int(part.size[own].sum())) for name, part in fields.items()}


def rows_per_read(index: ShardRows, fields: Sequence[str] | None) -> int:
    """About a mebibyte of wanted bytes, and never so many rows that the first one waits long."""
    names = [name for name in index.fields if fields is None or name in fields][:256]
    wanted = sum(int(index.fields[name].size.sum()) for name in names)
    return int(min(4096, max(1, (1 << 20) * len(index) // max(wanted, 1)))) if len(index) else 1


def damaged(url: str, key: str, field: str, offset: int, expected: int, found: int) -> ChecksumError:
    """The error for a member whose checksum is wrong."""
    return ChecksumError(
        "a member's bytes changed after they were written",
        expected=f"crc32 {expected:08x}",
        found=f"{found:08x}",
        shard=url,
        key=key,
        field=field,
        offset=offset,
        hint="restore the shard, or read on with on_error='skip'",
    )
