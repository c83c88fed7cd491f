"""What a writer remembers of the members it wrote, until they become an index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._assemble import MemberColumns, assemble
from ._columns import LARGEST_SOURCE, ColumnCollector, Extractor, extractor_for
from ._crc import crc32
from ._index import Blocks, IndexFacts, ShardIndex

__all__ = ["MemberLog"]


class MemberLog:
    """Columns of members, noted sample by sample and worked out block by block.

    What can be done for many members at once (checksums, scalars) waits for ``flush``: doing it member by member took
    twice as long.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.fields: dict[str, int] = {}
        self._rows: list[int] = []
        self._codes: list[int] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._crcs: list[int] = []
        self._collector = ColumnCollector()
        self._waiting: list[tuple[int, Sequence[tuple[str, bytes]]]] = []

    def add(self, key: str, members: Sequence[tuple[str, bytes]], offsets: list[int]) -> None:
        """Note a sample whose members' bytes start at ``offsets``."""
        self._waiting.append((len(self.keys), members))
        self.keys.append(key)
        self._offsets += offsets

    def flush(self) -> None:
        """Work out what waits; its bytes are let go."""
        rows = [row for row, members in self._waiting for _ in members]
        fields = [field for _, members in self._waiting for field, _ in members]
        contents = [data for _, members in self._waiting for _, data in members]
        self._waiting.clear()
        codes = self.fields
        self._rows += rows
        self._codes += [codes[field] if field in codes else codes.setdefault(field, len(codes)) for field in fields]
        self._sizes += map(len, contents)
        self._crcs += map(crc32, contents)
        for field in dict.fromkeys(fields):
            extract = extractor_for(field)
            if extract is not None:
                at = [place for place, name in enumerate(fields) if name == field]
                self._collect(field, [rows[place] for place in at], [contents[place] for place in at], extract)

    def _collect(self, field: str, rows: list[int], contents: list[bytes], extract: Extractor) -> None:
        if max(map(len, contents)) > LARGEST_SOURCE:
            self._collector.drop(field, f"a member over {LARGEST_SOURCE} bytes")
        else:
            self._collector.add_bytes(rows, field, contents, extract)

    def field_totals(self) -> dict[str, tuple[int, int]]:
        """For each field, how many samples have it and its bytes in all."""
        codes, sizes = np.array(self._codes, np.int64), np.array(self._sizes, np.int64)
        return {
            field: (int((codes == code).sum()), int(sizes[codes == code].sum())) for field, code in self.fields.items()
        }

    def finish(self, facts: IndexFacts, blocks: Blocks) -> ShardIndex:
        """The index of all members noted."""
        self.flush()
        rows, codes, offsets, sizes = (
            np.array(column, np.int64) for column in (self._rows, self._codes, self._offsets, self._sizes)
        )
        members = MemberColumns(rows, codes, offsets, sizes, np.array(self._crcs, np.uint32))
        facts = IndexFacts(facts.size, facts.head_crc, facts.rule, facts.compression, dropped=self._collector.dropped)
        return assemble(facts, self.keys, list(self.fields), members, self._collector, blocks)
