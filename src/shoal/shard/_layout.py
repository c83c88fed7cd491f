"""`Segment`: what a manifest has of the index of some shards, and how its record files are laid out.

Plain data: `_segment` writes the files, `_split_index` reads them, and a commit lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.store._url import join_url

__all__ = [
    "BLOCKS",
    "BLOCK_WORDS",
    "EXTENTS",
    "KEYS",
    "KEY_COLUMN",
    "MAX_FILE_BYTES",
    "MAX_KEY_BYTES",
    "MAX_SEGMENT_ROWS",
    "MIN_KEY_BYTES",
    "NAMES",
    "NAME_WORDS",
    "RARE",
    "RARE_WORDS",
    "SAMPLES",
    "SEGMENT_FOLDER",
    "SHARDS",
    "SHARD_COLUMN",
    "UNREADABLE_COLUMN",
    "IndexFile",
    "RecordLayout",
    "Scalar",
    "Segment",
    "digest_of_segments",
    "digest_shards",
]

SEGMENT_FOLDER = ".shoal/index"
"""Where a dataset's segments are, relative to its root."""
SHARDS, SAMPLES = "shards.parquet", "samples.parquet"
KEY_COLUMN, SHARD_COLUMN, UNREADABLE_COLUMN = "__key__", "__shard__", "__unreadable__"
"""Columns of ``samples.parquet`` that are not metadata columns: key, number of the shard in the segment, and fields of
the row that do not decode (a list, or null). The last one is only there if a segment of the same write has such rows.
"""
EXTENTS, KEYS, BLOCKS, NAMES, RARE = "extents.rec", "keys.rec", "blocks.rec", "names.rec", "rare.rec"
NAME_WORDS = 16
"""A text in ``names.rec`` takes as many records as it needs: UTF-8, padded with zeros."""
BLOCK_WORDS = 8
"""First row; start (2 words) and size in the tar; start (2) and size in the stored object; crc32. Each shard that has
blocks has one record more than blocks, for their end."""
RARE_WORDS = 10
"""Row; how many more records the row has; the first record of the field's name in ``names.rec`` and its size in bytes;
offset (2 words, the lower one first); size (2); crc32; 1 if the crc32 is known, else 0. They are in the order of rows.
"""
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
    """The record of a sample in ``extents.rec``: key, first record in ``rare.rec``, extents. One for all of a split.

    The key is padded with zeros. One that does not fit, is empty or has a zero byte, is in ``names.rec``: then its
    first word is 0, and its first record and size in bytes follow. The number in ``rare.rec`` counts from 1; 0 if the
    sample has no record there. The extent of a field is offset / 512, size and crc32; offset 0 if it is not there,
    which is also so if it is in ``rare.rec``. A crc32 of 0 is not known, unless the size is 0: other members whose
    crc32 is 0 are in ``rare.rec``.
    """

    fields: tuple[str, ...]
    """Fields that at least half of the rows of the split's first commit have; other members are in ``rare.rec``."""
    key_bytes: int
    """A multiple of 4, from 12 to 64; longer keys are in ``names.rec``."""

    @property
    def words(self) -> int:
        """The size of a record in words of 32 bits."""
        return self.extent_word(len(self.fields))

    @property
    def rare_word(self) -> int:
        """The place of the number in ``rare.rec``."""
        return self.key_bytes // 4

    def extent_word(self, field: int) -> int:
        """The place of the extent of a field, given by its number."""
        return self.rare_word + 1 + 3 * field


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
    fields: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each field that some row has, how many have it and its bytes in all; in the order of first appearance."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns, or names with all columns below them, that cannot be queried, and why.

    A name in ``columns`` can be queried even if one above it is here.
    """
    unreadable: dict[str, int] = field(default_factory=dict)
    """For fields with members that do not decode, the first such row. Their columns are null there."""
    complete: bool = True
    """Whether a name that is neither a column nor left out is one that no sample has."""
    deleted: IndexFile | None = None
    """The rows that are deleted; None where none is."""
    digest: str = f"{0:032x}"
    """Made by `digest_shards` of what its shards contain, wherever they are and whatever they are called."""

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


# ------------------------------------------------------------------------------------------------------------- digests

_DIGEST_MODULUS = (1 << 127) - 1
_DIGEST_BASE = 0x5DEECE66D2B7E151628AED2A6ABF7158


def digest_shards(digests: Iterable[bytes], before: int = 0) -> int:
    """Return the digest of a sequence of shards, given those of each; ``before`` is the digest of shards before them.

    It is a polynomial in the digests, so that it does not depend on how the sequence is divided into segments.
    """
    for digest in digests:
        before = (before * _DIGEST_BASE + int.from_bytes(digest, "little") + 1) % _DIGEST_MODULUS
    return before


def digest_of_segments(segments: Iterable[Segment]) -> str:
    """Return the digest of the shards of all these segments, as if they were in one.

    Examples:
        >>> def segment(*shards):
        ...     digest = f"{digest_shards(shards):032x}"
        ...     return Segment("", 0, len(shards), 0, RecordLayout((), 12), (), digest=digest)
        >>> digest_of_segments([segment(b"a", b"b"), segment(b"c")]) == segment(b"a", b"b", b"c").digest
        True
    """
    total = 0
    for segment in segments:
        total = (total * pow(_DIGEST_BASE, segment.shards, _DIGEST_MODULUS) + int(segment.digest, 16)) % _DIGEST_MODULUS
    return f"{total:032x}"
