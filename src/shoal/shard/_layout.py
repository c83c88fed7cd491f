"""`Segment`: what a manifest has of the index of some shards, and how its record files are laid out.

Plain data: `_segment` writes the files, `_split_index` reads them, and a commit lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.store._url import join_url

__all__ = [
    "BLOCKS",
    "EXTENTS",
    "KEYS",
    "MAX_FILE_BYTES",
    "MAX_KEY_BYTES",
    "MAX_SEGMENT_ROWS",
    "MIN_KEY_BYTES",
    "NAMES",
    "RARE",
    "SAMPLES",
    "SEGMENT_FOLDER",
    "SHARDS",
    "IndexFile",
    "RecordLayout",
    "Scalar",
    "Segment",
]

SEGMENT_FOLDER = ".shoal/index"
"""Where a dataset's segments are, relative to its root."""
SHARDS, SAMPLES = "shards.parquet", "samples.parquet"
EXTENTS, KEYS, BLOCKS, NAMES, RARE = "extents.rec", "keys.rec", "blocks.rec", "names.rec", "rare.rec"
MAX_SEGMENT_ROWS = 1 << 22
"""A segment has more rows only where one shard has."""
MAX_FILE_BYTES = 2 << 30
MIN_KEY_BYTES, MAX_KEY_BYTES = 12, 64

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a segment: all that a reader must know to verify it."""

    name: str
    size: int
    records: int
    """Records, or rows of a Parquet file."""
    footer_start: int | None = None
    footer_crc32: int | None = None
    """Only Parquet files have a footer; the records of others are verified page by page."""


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The record of a sample in ``extents.rec``: its key, then the extents of these fields. One for all of a split."""

    fields: tuple[str, ...]
    """Fields that at least half of the rows of the split's first commit have; other members are in ``rare.rec``."""
    key_bytes: int
    """A multiple of 4, from 12 to 64; longer keys are in ``names.rec``."""

    @property
    def words(self) -> int:
        """The size of a record in words of 32 bits."""
        return self.key_bytes // 4 + 3 * len(self.fields)


@dataclass(frozen=True, slots=True)
class Segment:
    """The index of some shards of one split: a folder of files that never change."""

    id: str
    rows: int
    shards: int
    bytes: int
    """Of all its shards, as they are stored."""
    layout: RecordLayout
    files: tuple[IndexFile, ...]
    """A file that would have no records is not there."""
    columns: dict[str, str] = field(default_factory=dict)
    """The Arrow type of each metadata column; ``null`` where all its values are null."""
    bounds: dict[str, tuple[Scalar, Scalar]] = field(default_factory=dict)
    """Smallest and largest value of columns for which both are known and short."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns, or fields with all their columns, that cannot be queried, and why."""
    deleted: IndexFile | None = None
    """The rows that are deleted; None where none is."""

    @property
    def live_rows(self) -> int:
        """How many rows are not deleted."""
        return self.rows - (0 if self.deleted is None else self.deleted.records)

    def file(self, name: str) -> IndexFile:
        """One of its files; one that is not there has no records."""
        return next((file for file in self.files if file.name == name), IndexFile(name, 0, 0))

    def paths(self) -> list[str]:
        """The paths of its files, relative to the dataset's root."""
        files = self.files if self.deleted is None else (*self.files, self.deleted)
        return [join_url(SEGMENT_FOLDER, self.id, file.name) for file in files]
