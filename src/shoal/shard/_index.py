"""The shard index: where every field of every sample lies, as columns.

One Arrow IPC file a shard, uncompressed, opened by memory map. Columns: ``key``, then per field its offset, size and
crc, then the metadata columns. A column's part is in its Arrow field metadata (``role``), not only in its name,
because a JSON may well have a key called ``offset``. What concerns the whole shard is in the schema's metadata, and so
is a crc32 of all that the index says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ShardIndexError, StaleIndexError
from shoal.shard._tar import WEBDATASET_RULE, KeyRule
from shoal.store import ObjectInfo, local_path, scheme_of, store_for

from ._arrow import as_arrow, as_numpy
from ._check import CRC, check_content, check_texts, content_crc
from ._parts import EXTENT_ROLES, IndexParts, parts_of

__all__ = [
    "Blocks",
    "Extents",
    "IndexFacts",
    "KnownIndex",
    "LongExtents",
    "ShardIndex",
    "decode_index",
    "encode_index",
    "load_index",
    "save_index",
]

UInt64 = npt.NDArray[np.uint64]
UInt32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]

VERSION = 1
_FACTS = b"shoal.facts"
_BLOCKS = b"shoal.blocks."
_MOST_READ = 8 << 20
"""Bytes that are looked through when an index is opened: half a millisecond."""
_MOST_COPIED = 64 << 10
"""Bytes of a local index that is read, not mapped: that is quicker, and thousands of such still take little memory."""


@dataclass(frozen=True, slots=True)
class Extents:
    """Where one field lies in each sample. Offset 0 means the sample lacks it: no member's data starts there."""

    offset: UInt64
    size: UInt64
    crc: UInt32 | None


@dataclass(frozen=True, slots=True)
class Blocks:
    """Runs of neighbouring samples, about two mebibytes each: the unit of sequential reading and of compression.

    They tile the archive from its start to its end marker. ``rows``, ``offsets`` and ``stored`` have one entry more
    than there are blocks, so that block ``i`` is ``[x[i], x[i + 1])``.
    """

    rows: Int64
    offsets: Int64
    crcs: UInt32
    stored: Int64 | None = None
    """Where each block starts in the compressed object; None when the object is the tar itself."""

    def __len__(self) -> int:
        return len(self.crcs)


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What is true of the whole shard."""

    size: int
    """Of the object, compressed or not."""
    head_crc: int
    """crc32 of the object's first 512 bytes. With the size, it tells when the tar was replaced."""
    rule: KeyRule = WEBDATASET_RULE
    compression: str | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    """Metadata columns that are not here, and why."""
    version: int = VERSION


@dataclass(frozen=True)
class ShardIndex:
    """The index of one shard: ``len(index)`` samples.

    ``fields`` maps each field to its extents, in the order in which the fields first appear.
    """

    facts: IndexFacts
    keys: pa.StringArray
    fields: Mapping[str, Extents]
    columns: dict[str, pa.Array]
    blocks: Blocks | None
    """None when samples are not runs of neighbouring members (grouping over the whole archive)."""

    def __len__(self) -> int:
        return len(self.keys)

    def key_list(self, start: int, stop: int) -> list[str]:
        """The keys of rows ``[start, stop)``."""
        keys: list[str] = self.keys.slice(start, stop - start).to_pylist()
        return keys

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
                hint=_REINDEX,
            )
        if head and crc32 != self.facts.head_crc:
            raise StaleIndexError(
                "the shard changed after it was indexed",
                expected="its first header",
                found="another",
                shard=url,
                hint=_REINDEX,
            )


@dataclass(frozen=True, slots=True)
class KnownIndex:
    """The index of an object in a certain state."""

    info: ObjectInfo
    index: ShardIndex


_REINDEX = "index it again with `shoal index`"


class LongExtents(Mapping[str, Extents]):
    """Extents of very many fields, stored as (row, field, offset, size, crc) and spread out one field at a time."""

    def __init__(
        self,
        rows: int,
        names: list[str],
        entry_rows: Int64,
        codes: Int64,
        offset: UInt64,
        size: UInt64,
        crc: UInt32 | None,
    ) -> None:
        self._rows = rows
        self._codes = {name: code for code, name in enumerate(names)}
        self.names = names
        self.entry_rows = entry_rows
        self.codes = codes
        self.offset = offset
        self.size = size
        self.crc = crc

    def __getitem__(self, name: str) -> Extents:
        at = np.flatnonzero(self.codes == self._codes[name])
        rows = self.entry_rows[at]
        return Extents(
            _spread(self._rows, rows, self.offset[at]),
            _spread(self._rows, rows, self.size[at]),
            None if self.crc is None else _spread(self._rows, rows, self.crc[at]),
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def span(self, start: int, stop: int) -> slice:
        """The entries of rows ``[start, stop)``: entries are kept in row order."""
        first, last = np.searchsorted(self.entry_rows, (start, stop))
        return slice(int(first), int(last))


def _spread(rows: int, at: Int64, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column = np.zeros(rows, values.dtype)
    column[at] = values
    return column


def encode_index(index: ShardIndex) -> pa.Buffer:
    """The index as an Arrow IPC file."""
    arrays, parts = _key_part(index)
    for name, extents in _wide(index):
        for role, values in (("offset", extents.offset), ("size", extents.size), ("crc", extents.crc)):
            if values is not None:
                arrays.append(as_arrow(values))
                parts.append(pa.field(f"{name}.{role}", arrays[-1].type, False, {"role": role, "field": name}))
    for name, column in index.columns.items():
        arrays.append(column)
        parts.append(pa.field(name, column.type, True, {"role": "column", "field": name}))
    return _write_file(index, arrays, parts)


def _key_part(index: ShardIndex) -> tuple[list[pa.Array], list[pa.Field]]:
    return [index.keys], [pa.field("key", index.keys.type, False, {"role": "key"})]


def _wide(index: ShardIndex) -> list[tuple[str, Extents]]:
    return [] if isinstance(index.fields, LongExtents) else list(index.fields.items())


def _write_file(index: ShardIndex, arrays: list[pa.Array], parts: list[pa.Field]) -> pa.Buffer:
    metadata = _schema_metadata(index)
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(parts, metadata=metadata))
    as_read = pa.ipc.read_record_batch(batch.serialize(), batch.schema)  # a part of an array is stored as a whole one
    batch = batch.replace_schema_metadata({**metadata, CRC: content_crc(as_read)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _schema_metadata(index: ShardIndex) -> dict[bytes, bytes]:
    metadata = {_FACTS: msgspec.json.encode({**asdict(index.facts), "fields": list(index.fields)})}
    if index.blocks is not None:
        for part in fields(Blocks):
            values = getattr(index.blocks, part.name)
            if values is not None:
                metadata[_BLOCKS + part.name.encode()] = values.tobytes()
    if isinstance(index.fields, LongExtents):
        metadata[_LONG] = _encode_long(index.fields)
    return metadata


_LONG = b"shoal.long"
_FEW = 1 << 14


def _encode_long(extents: LongExtents) -> bytes:
    """The long layout as an Arrow file of its own: it has other rows than the samples have."""
    columns: dict[str, npt.NDArray[Any]] = {"row": extents.entry_rows, "field": extents.codes}
    columns |= {"offset": extents.offset, "size": extents.size}
    if extents.crc is not None:
        columns["crc"] = extents.crc
    batch = pa.RecordBatch.from_pydict({name: as_arrow(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def decode_index(buffer: pa.Buffer, url: str, *, mapped: bool = False, whole: bool = True) -> ShardIndex:
    """Read an index. Raises ShardIndexError when it is not one, is damaged, or is of a newer version.

    Its checksum tells damage; without ``whole`` it is not looked at, since that reads all of it. What would end the
    process is found in any case. What came from elsewhere, and is not ``mapped``, has its texts looked through, too.
    """
    try:
        batch = pa.ipc.open_file(pa.BufferReader(buffer)).get_batch(0)
        batch.validate(full=whole and not (mapped and CRC in batch.schema.metadata))
        check_texts(batch)
        facts = msgspec.json.decode(batch.schema.metadata[_FACTS])
        if facts["version"] <= VERSION:
            index = _decode(batch, facts)
            if whole:
                check_content(batch)
            return index
    except (pa.ArrowException, KeyError, OSError, TypeError, ValueError) as error:
        raise ShardIndexError(
            "this is not a shard index, or a damaged one", found=str(error), shard=url, hint=_REINDEX
        ) from error
    raise ShardIndexError(
        "the index is of a newer shoal",
        expected=f"version {VERSION}",
        found=facts["version"],
        shard=url,
        hint="upgrade shoal",
    )


def _decode(batch: pa.RecordBatch, facts: dict[str, Any]) -> ShardIndex:
    metadata = batch.schema.metadata
    names = facts.pop("fields")
    facts["rule"] = KeyRule(**facts["rule"])
    parts, is_long = parts_of(batch.schema), _LONG in metadata
    extents = _decode_long(metadata[_LONG], names, batch.num_rows) if is_long else _decode_wide(batch, names, parts)
    columns = {name: batch.column(at) for name, at in parts.columns.items()}
    return ShardIndex(IndexFacts(**facts), batch.column(0), extents, columns, _decode_blocks(metadata, batch.num_rows))


def _decode_wide(batch: pa.RecordBatch, names: list[str], parts: IndexParts) -> dict[str, Extents]:
    places = (parts.extents[role] for role in EXTENT_ROLES)
    offset, size, crc = (dict(zip(at, _numbers(batch, list(at.values())), strict=True)) for at in places)
    return {name: Extents(offset[name], size[name], crc.get(name)) for name in names}


def _numbers(batch: pa.RecordBatch, at: list[int]) -> list[npt.NDArray[Any]]:
    """These columns. Of few numbers a copy is made at once: looking at columns one by one takes longer."""
    if not at or batch.num_rows * len(at) > _FEW:
        return [as_numpy(batch.column(one)) for one in at]
    return list(batch.select(at).to_tensor(row_major=False).to_numpy().T)


def _decode_long(data: bytes, names: list[str], rows: int) -> LongExtents:
    batch = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
    row, code, offset, size, *crc = (as_numpy(column) for column in batch.columns)
    return LongExtents(rows, names, row, code, offset, size, crc[0] if crc else None)


def _decode_blocks(metadata: Mapping[bytes, bytes], samples: int) -> Blocks | None:
    if _BLOCKS + b"rows" not in metadata:
        return None
    stored = metadata.get(_BLOCKS + b"stored")
    rows = np.frombuffer(metadata[_BLOCKS + b"rows"], np.int64)
    offsets = np.frombuffer(metadata[_BLOCKS + b"offsets"], np.int64)
    crcs = np.frombuffer(metadata[_BLOCKS + b"crcs"], np.uint32)
    blocks = Blocks(rows, offsets, crcs, None if stored is None else np.frombuffer(stored, np.int64))
    _check_blocks(blocks, samples)
    return blocks


def _check_blocks(blocks: Blocks, samples: int) -> None:
    """Raise ValueError for blocks that do not tile an archive of so many samples."""
    for edges in (blocks.rows, blocks.offsets, blocks.stored):
        if edges is not None and (len(edges) != len(blocks) + 1 or edges[0] < 0 or (edges[1:] < edges[:-1]).any()):
            raise ValueError("its blocks do not follow each other")
    if blocks.rows[0] or blocks.rows[-1] != samples:
        raise ValueError("its blocks hold other samples")


def load_index(url: str, *, whole: bool = False) -> ShardIndex:
    """Open a stored index: by memory map where it is a large local file. Raises ObjectNotFoundError when there is none.

    Damage is told by a checksum, but for local files of over 8 MiB (about 100,000 samples), which are opened without
    being read: ``whole`` reads those too.
    """
    if scheme_of(url) == "file" and (size := store_for(url).info(url).size) > _MOST_COPIED:
        return decode_index(_mapped(url), url, mapped=True, whole=whole or size <= _MOST_READ)
    return decode_index(pa.py_buffer(store_for(url).read_all(url)), url)


def _mapped(url: str) -> pa.Buffer:
    try:
        return pa.memory_map(local_path(url)).read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise ShardIndexError("the index cannot be opened", found=str(error), shard=url, hint=_REINDEX) from error


def save_index(index: ShardIndex, url: str) -> None:
    """Store an index, replacing the one before in one step."""
    store_for(url).write_all(url, encode_index(index).to_pybytes())
