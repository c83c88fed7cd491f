"""How the index of a shard is stored, and the checksum over it.

An index is one Arrow IPC file per shard, uncompressed, opened by memory map. Columns: ``key``, then per field its
offset, size and crc, then the metadata columns. A column's role is in its Arrow field metadata (``role``), not only in
its name, because a JSON may have a key called ``offset``. Metadata of the shard is in the schema's metadata, and so is
a crc32 of the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._crc32 import crc32
from shoal.errors import ShardIndexError
from shoal.store._registry import store_for
from shoal.store._url import local_path, scheme_of

from ._arrow_arrays import as_arrow, as_numpy
from ._member_names import KeyRule
from ._shard_rows import REINDEX_HINT, Blocks, FieldExtents, IndexMetadata, LongExtents, ShardRows

__all__ = ["decode_index", "encode_index", "load_index", "parts_of", "save_index"]

VERSION = 2
_FACTS = b"shoal.facts"
_BLOCKS = b"shoal.blocks."
_MAX_CHECKED_BYTES = 8 << 20
"""Indexes up to this size are checked when they are opened, which takes half a millisecond."""
_MAX_COPIED_BYTES = 64 << 10
"""Local indexes up to this size are read, not mapped: that is faster, and thousands of them take little memory."""
CRC = b"shoal.crc"
"""Where the schema's metadata has the crc32 of all else."""
_OFFSET_TYPES: dict[pa.DataType, type[np.signedinteger[Any]]] = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}
EXTENT_ROLES = (b"offset", b"size", b"crc")


def encode_index(index: ShardRows) -> pa.Buffer:
    """The index as an Arrow IPC file."""
    arrays, parts = [index.keys], [pa.field("key", index.keys.type, False, {"role": "key"})]
    for name, extents in () if isinstance(index.fields, LongExtents) else index.fields.items():
        for role, values in (("offset", extents.offset), ("size", extents.size), ("crc", extents.crc)):
            if values is not None:
                arrays.append(as_arrow(values))
                parts.append(pa.field(f"{name}.{role}", arrays[-1].type, False, {"role": role, "field": name}))
    for name, column in index.columns.items():
        arrays.append(column)
        parts.append(pa.field(name, column.type, True, {"role": "column", "field": name}))
    return _write_file(index, arrays, parts)


def _write_file(index: ShardRows, arrays: list[pa.Array], parts: list[pa.Field]) -> pa.Buffer:
    metadata = _schema_metadata(index)
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(parts, metadata=metadata))
    as_read = pa.ipc.read_record_batch(batch.serialize(), batch.schema)  # a part of an array is stored as a whole one
    batch = batch.replace_schema_metadata({**metadata, CRC: content_crc(as_read)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _schema_metadata(index: ShardRows) -> dict[bytes, bytes]:
    metadata = {_FACTS: msgspec.json.encode({**asdict(index.facts), "version": VERSION, "fields": list(index.fields)})}
    if index.blocks is not None:
        for part in fields(Blocks):
            values = getattr(index.blocks, part.name)
            if values is not None:
                metadata[_BLOCKS + part.name.encode()] = values.tobytes()
    if isinstance(index.fields, LongExtents):
        metadata[_LONG] = _encode_long(index.fields)
    return metadata


_LONG = b"shoal.long"
_MAX_COPIED_VALUES = 1 << 14


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


def decode_index(buffer: pa.Buffer, url: str, *, mapped: bool = False, whole: bool = True) -> ShardRows:
    """Read an index. Raises ShardIndexError when it is not one, is damaged, or is of a newer version.

    Its checksum tells damage; without ``whole`` it is not looked at, since that reads all of it. What would end the
    process is found in any case. What came from elsewhere, and is not ``mapped``, has its texts looked through, too.
    """
    try:
        batch = pa.ipc.open_file(pa.BufferReader(buffer)).get_batch(0)
        batch.validate(full=whole and not (mapped and CRC in batch.schema.metadata))
        check_texts(batch)
        facts = msgspec.json.decode(batch.schema.metadata[_FACTS])
        is_newer = facts["version"] > VERSION
        if facts["version"] == VERSION:
            index = _decode(batch, facts)
            if whole:
                check_content(batch)
            return index
    except (pa.ArrowException, KeyError, OSError, TypeError, ValueError) as error:
        raise ShardIndexError(
            "this is not a shard index, or a damaged one", found=str(error), shard=url, hint=REINDEX_HINT
        ) from error
    raise ShardIndexError(
        f"the index is of {'a newer' if is_newer else 'an older'} shoal",
        expected=f"version {VERSION}",
        found=facts["version"],
        shard=url,
        hint="upgrade shoal" if is_newer else REINDEX_HINT,
    )


def _decode(batch: pa.RecordBatch, facts: dict[str, Any]) -> ShardRows:
    metadata = batch.schema.metadata
    names = facts.pop("fields")
    facts["rule"] = KeyRule(**facts["rule"])
    del facts["version"]
    parts, is_long = parts_of(batch.schema), _LONG in metadata
    extents = _decode_long(metadata[_LONG], names, batch.num_rows) if is_long else _decode_wide(batch, names, parts)
    columns = {name: batch.column(at) for name, at in parts.columns.items()}
    return ShardRows(
        IndexMetadata(**facts), batch.column(0), extents, columns, _decode_blocks(metadata, batch.num_rows)
    )


def _decode_wide(batch: pa.RecordBatch, names: list[str], parts: IndexParts) -> dict[str, FieldExtents]:
    places = (parts.extents[role] for role in EXTENT_ROLES)
    offset, size, crc = (dict(zip(at, _numbers(batch, list(at.values())), strict=True)) for at in places)
    return {name: FieldExtents(offset[name], size[name], crc.get(name)) for name in names}


def _numbers(batch: pa.RecordBatch, at: list[int]) -> list[npt.NDArray[Any]]:
    """These columns. Of few numbers a copy is made at once: looking at columns one by one takes longer."""
    if not at or batch.num_rows * len(at) > _MAX_COPIED_VALUES:
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


def load_index(url: str, *, whole: bool = False) -> ShardRows:
    """Open a stored index: by memory map where it is a large local file. Raises ObjectNotFoundError when there is none.

    Damage is told by a checksum, but for local files of over 8 MiB (about 100,000 samples), which are opened without
    being read: ``whole`` reads those too.
    """
    if scheme_of(url) == "file" and (size := store_for(url).info(url).size) > _MAX_COPIED_BYTES:
        return decode_index(_mapped(url), url, mapped=True, whole=whole or size <= _MAX_CHECKED_BYTES)
    return decode_index(pa.py_buffer(store_for(url).read_all(url)), url)


def _mapped(url: str) -> pa.Buffer:
    try:
        return pa.memory_map(local_path(url)).read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise ShardIndexError("the index cannot be opened", found=str(error), shard=url, hint=REINDEX_HINT) from error


def save_index(index: ShardRows, url: str) -> None:
    """Store an index, replacing the one before in one step."""
    store_for(url).write_all(url, encode_index(index).to_pybytes())


def content_crc(batch: pa.RecordBatch) -> bytes:
    """The crc32 of what an index says: its names, types and metadata, and the bytes of every column.

    Not of the file's bytes, since it stands in the file.
    """
    described = msgspec.Raw(parts_of(batch.schema).described)
    rest = sorted(item for item in (batch.schema.metadata or {}).items() if item[0] != CRC)
    crc = crc32(msgspec.msgpack.encode((described, rest)))
    for column in batch.columns:
        for buffer in column.buffers():
            crc = crc if buffer is None else crc32(buffer, crc)
    return f"{crc:08x}".encode()


def check_content(batch: pa.RecordBatch) -> None:
    """Raise ValueError when something changed after the index was written. One of an older shoal has no checksum."""
    expected = batch.schema.metadata.get(CRC)
    if expected is not None and expected != content_crc(batch):
        raise ValueError("its checksum is another")


def check_texts(batch: pa.RecordBatch) -> None:
    """Raise ValueError where a text would lie outside its column: Arrow believes it, and ends the process.

    It looks at where texts begin and not at their letters: of a million samples that takes half a millisecond.
    """
    for at in parts_of(batch.schema).unlike:
        column = batch.column(at)
        if (width := _OFFSET_TYPES.get(column.type)) is not None:
            _check_starts(column, width)
        else:
            column.validate(full=True)  # none of ours is


def _check_starts(column: pa.Array, width: type[np.signedinteger[Any]]) -> None:
    _, starts, letters = column.buffers()
    if not len(column):
        return
    found = np.frombuffer(starts or b"", width)[column.offset :][: len(column) + 1]
    size = 0 if letters is None else letters.size
    if len(found) <= len(column) or found[0] < 0 or found[-1] > size or not (found[1:] >= found[:-1]).all():
        raise ValueError("a text lies outside its column")


class IndexParts(NamedTuple):
    """What the columns of an index are, by their positions."""

    schema: pa.Schema
    """Without what is said of the whole shard."""
    extents: dict[bytes, dict[str, int]]
    """By role, the column of each field."""
    columns: dict[str, int]
    """The metadata columns."""
    unlike: tuple[int, ...]
    """Columns whose values are not all of one size, as texts are."""
    described: bytes
    """Names, types and what is said of each, for a checksum."""


_last: list[IndexParts] = []


def parts_of(schema: pa.Schema) -> IndexParts:
    """What the columns are. Raises KeyError where one has no name.

    Shards of one dataset have the same ones, and to look at some dozens takes longer than all else that opens an index.
    So those of the last index are remembered.
    """
    bare = schema.remove_metadata()
    for known in _last:
        if bare.equals(known.schema, check_metadata=True):
            return known
    _last[:] = [found := _parse_schema(bare)]
    return found


def _parse_schema(schema: pa.Schema) -> IndexParts:
    # Each look at a field's metadata makes a new dict of it, so it is looked at once.
    parts = [(part.name, part.type, part.metadata or {}) for part in schema]
    extents: dict[bytes, dict[str, int]] = {role: {} for role in EXTENT_ROLES}
    for at, (_, _, said) in enumerate(parts):
        if (role := said.get(b"role", b"")) in extents:
            extents[role][said[b"field"].decode()] = at
    columns = {name: at for at, (name, _, said) in enumerate(parts) if said.get(b"role") == b"column"}
    unlike = tuple(at for at, (_, kind, _) in enumerate(parts) if not pa.types.is_primitive(kind))
    described = msgspec.msgpack.encode([(name, str(kind), sorted(said.items())) for name, kind, said in parts])
    return IndexParts(schema, extents, columns, unlike, described)
