"""`Extents`: where the members of some samples are, with the open shards that they are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal._typing import IntArray

from ._shard import Shard
from ._table import RowExtents, RowKeys, Rows, join_row_extents, take_members

__all__ = ["Extents", "RowLabels", "join_extents", "open_extents", "shard_extents"]


@dataclass(frozen=True, slots=True)
class RowLabels:
    """The shards and keys of some rows. It does not keep the shards open."""

    urls: Mapping[int, str]
    """The URL of each shard, by its number."""
    shard_numbers: IntArray | None
    """For each row, the number of its shard; None if there is only one."""
    keys: RowKeys

    def url(self, row: int) -> str:
        """Return the URL of the shard of one row."""
        return next(iter(self.urls.values())) if self.shard_numbers is None else self.urls[int(self.shard_numbers[row])]

    def take(self, rows: IntArray) -> RowLabels:
        """Return some of the rows."""
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        return RowLabels(self.urls, numbers, self.keys.take(rows))


@dataclass(frozen=True, slots=True)
class Extents(RowExtents):
    """Where each field of some rows is, and the open shards."""

    shards: Mapping[int, Shard]
    """The shards that these rows are in, by number. They stay open as long as this value exists."""

    @property
    def first_shard(self) -> Shard:
        """One of the shards; the only one if ``shard_numbers`` is None."""
        return next(iter(self.shards.values()))

    def shard(self, row: int) -> Shard:
        """Return the shard of one row."""
        return self.first_shard if self.shard_numbers is None else self.shards[int(self.shard_numbers[row])]

    def keys(self) -> list[str]:
        """Return the keys of the rows."""
        return self.row_keys.to_list()

    def urls(self) -> list[str]:
        """Return the URL of the shard of each row."""
        if self.shard_numbers is None:
            return [self.first_shard.url] * len(self)
        urls = {number: shard.url for number, shard in self.shards.items()}
        return list(map(urls.__getitem__, self.shard_numbers.tolist()))

    @property
    def labels(self) -> RowLabels:
        """The shards and keys of the rows."""
        urls = {number: shard.url for number, shard in self.shards.items()}
        return RowLabels(urls, self.shard_numbers, self.row_keys)

    def url(self, row: int) -> str:
        """Return the URL of the shard of one row."""
        return self.shard(row).url

    def key(self, row: int) -> str:
        """Return the key of one row."""
        return self.row_keys.get(row)

    def take(self, rows: IntArray, fields: Sequence[str] | None = None) -> Extents:
        """Return some of the rows, and of the fields."""
        names, starts, stops, crcs, sparse, is_complete = take_members(self, rows, fields)
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        own, keys = self.row_numbers()[rows], self.row_keys.take(rows)
        return Extents(self.numbers, numbers, own, names, starts, stops, crcs, sparse, keys, is_complete, self.shards)


def open_extents(found: RowExtents, shards: Mapping[int, Shard]) -> Extents:
    """Return extents with their open shards, by number."""
    verify = next(iter(shards.values())).verify if shards else False
    return Extents(
        found.numbers,
        found.shard_numbers,
        found.rows,
        found.fields,
        found.starts,
        found.stops,
        found.crcs if verify else None,
        found.sparse,
        found.row_keys,
        found.is_complete,
        shards,
    )


def shard_extents(shard: Shard, rows: Rows, fields: Sequence[str] | None = None) -> Extents:
    """Return the extents of rows of one shard: of all its fields, or of these."""
    first = shard.first_row
    if isinstance(rows, slice):
        found = shard.table.extents(slice(first + rows.start, first + rows.stop), fields)
    else:
        found = shard.table.extents(rows + first if first else rows, fields)
    return open_extents(found, {shard.number: shard})


def join_extents(parts: Mapping[int, Extents], places: Sequence[IntArray]) -> Extents:
    """Return the extents of rows of several shards, by number, as one; row ``i`` of a part becomes ``places[i]``."""
    shards = {number: part.first_shard for number, part in parts.items()}
    joined = join_row_extents([replace(part, numbers=(number,)) for number, part in parts.items()], places)
    return open_extents(joined, shards)
