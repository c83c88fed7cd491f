"""Which column of an index is what."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pyarrow as pa

__all__ = ["EXTENT_ROLES", "IndexParts", "parts_of"]

EXTENT_ROLES = (b"offset", b"size", b"crc")


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
    _last[:] = [found := _looked_through(bare)]
    return found


def _looked_through(schema: pa.Schema) -> IndexParts:
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
