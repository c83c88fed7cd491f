"""What an index says of a sample's members, and of how many samples are read at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.errors import ChecksumError
from shoal.shard._index import Extents, LongExtents, ShardIndex

__all__ = ["damaged", "members_of", "rows_per_read"]


def members_of(fields: Mapping[str, Extents], row: int) -> list[tuple[str, int, int, int | None]]:
    """The members of one row: field, offset, size and crc."""
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


def rows_per_read(index: ShardIndex, fields: Sequence[str] | None) -> int:
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
