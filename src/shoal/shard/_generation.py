"""The values of a generation: its splits, their segments, and the files of each segment.

A generation is one committed state of a dataset. It is a JSON document; everything a reader needs to open the dataset
is in it, and each file of the index is named in it with its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ._member_names import WEBDATASET_RULE, KeyRule

__all__ = ["FileEntry", "Generation", "Layout", "Segment", "SegmentedSplit"]


@dataclass(frozen=True, slots=True)
class Layout:
    """What all segments of a split have in common. It is chosen by the split's first commit."""

    key_bytes: int
    """The size of a key in a record: a multiple of 4 from 12 to 64. Longer keys are in ``names.rec``."""
    fields: tuple[str, ...]
    """The fields that a record has extents of, in the order of their columns."""
    columns: dict[str, str] = field(default_factory=dict)
    """The Arrow type of each metadata column, as text."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a segment."""

    bytes: int
    records: int
    """Records of a ``.rec`` file, rows of a Parquet file."""
    footer: int | None = None
    """Where the footer of a Parquet file starts."""
    crc32: int | None = None
    """The crc32 of the footer of a Parquet file."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The index of some shards of one split: a folder of files that never change."""

    id: str
    rows: int
    shards: int
    bytes: int
    """Of the shards, together."""
    files: dict[str, FileEntry]
    field_totals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each field, how many samples have it and its bytes in all."""
    bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """The smallest and the largest value of each metadata column that has statistics."""
    misfits: dict[str, str] = field(default_factory=dict)
    """Columns that are left out of this segment, and why."""
    deleted: tuple[str, FileEntry] | None = None
    """The file of deleted rows that is in force, and its entry."""


@dataclass(frozen=True, slots=True)
class SegmentedSplit:
    """One split: its layout and its segments, in the order of their samples."""

    layout: Layout
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """One committed state of a dataset."""

    id: str
    parent: str | None
    lineage: str
    """The id of the generation that began the lineage: generations of one lineage share the same tar bytes."""
    splits: dict[str, SegmentedSplit]
    metadata: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    rule: KeyRule = WEBDATASET_RULE
    staged: str | None = None
    """The writer in whose folder the tars of this lineage still are, until they are moved."""
