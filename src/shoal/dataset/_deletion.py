"""Delete and restore samples, and tell which are deleted, in datasets whose index is in segments.

Rows are marked in the index, in one commit for each dataset that they are of; no tar is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal._typing import IntArray
from shoal.shard._changes import ChangedRows, delete_rows, restore_rows
from shoal.shard._row_view import RowView
from shoal.shard._segment_table import SegmentTable

__all__ = ["Tombstone", "delete_samples", "list_tombstones", "restore_samples"]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A sample that was deleted, and why."""

    key: str
    shard: str
    """The URL of the tar that still holds it."""
    row: int
    """Which sample of the shard it is, counted from 0."""
    reason: str | None = None


def list_tombstones(table: SegmentTable) -> tuple[Tombstone, ...]:
    """Return the deleted samples, in the order of their rows."""
    rows = table.deleted().as_array()
    numbers = table.numbers(rows)
    urls = {number: table.ref(number).url for number in np.unique(numbers).tolist()}
    own = rows - table.starts[numbers]
    return tuple(
        Tombstone(key, urls[number], row)
        for key, number, row in zip(table.keys(rows), numbers.tolist(), own.tolist(), strict=True)
    )


def delete_samples(table: SegmentTable, rows: IntArray) -> None:
    """Delete the samples with these numbers; those that are deleted stay so.

    Raises ObjectChangedError where the dataset was replaced since it was opened.
    """
    _mark(table, rows, delete_rows)


def restore_samples(table: SegmentTable, rows: IntArray) -> None:
    """Undo `delete_samples`; samples that are not deleted stay so. Raises as it does."""
    _mark(table, rows, restore_rows)


def _mark(table: SegmentTable, rows: IntArray, change: Callable[..., ChangedRows]) -> None:
    by_dataset: dict[tuple[str, str], dict[str, list[IntArray]]] = {}
    for part, own in table.rows_by_part(RowView.from_rows(np.unique(rows))):
        root, lineage, split = part.identity
        by_dataset.setdefault((root, lineage), {}).setdefault(split, []).append(own)
    for (root, lineage), splits in by_dataset.items():
        change(root, {split: np.concatenate(parts) for split, parts in splits.items()}, lineage=lineage)
