"""The segments that a change of a dataset writes: of new rows alone, merged with the last ones, or without some shards.

Row numbers stay: merged segments have the rows of the old ones in their order, and deleted rows stay deleted. Segments
are merged while the last one has fewer than twice the rows of the new one, so a thousand appends leave a few of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._column_plan import ColumnPlan, is_left_out, plan_columns
from ._generation import Generation, Split
from ._layout import MAX_FILE_BYTES, MAX_SEGMENT_ROWS, SEGMENT_FOLDER, RecordLayout, Segment
from ._records import OpenFiles
from ._rows_file import RowSource, RowsSummary
from ._segment import drop_segments, write_deleted, write_segments
from ._split_columns import group_runs, type_of_name
from ._split_table import SegmentRows, SplitTable

__all__ = [
    "NO_ROWS",
    "NewFiles",
    "NewRows",
    "OnMisfit",
    "column_types",
    "rows_by_segment",
    "shard_paths",
]

OnMisfit = Literal["error", "omit"]
NO_ROWS: IntArray = np.empty(0, np.int64)
_Segments = tuple[Segment, ...]
_Types = Mapping[str, pa.DataType]
_MAX_FILE_SHARE = 0.75
"""Segments are merged if no file is expected to take more than this share of its limit."""
_MAX_APART = 64
"""Up to so many segments are not merged if one has a column that another one leaves out."""


def shard_paths(root: str, segments: Sequence[Segment]) -> list[str]:
    """Return the paths of all shards of some segments of one split, in order."""
    paths: list[str] = SplitTable(root, segments, OpenFiles()).shards()["path"].to_pylist() if segments else []
    return paths


def column_types(generation: Generation, *, without: Collection[str] = ()) -> dict[str, pa.DataType]:
    """Return the type of each metadata column of a dataset, without those that only these splits have.

    A column has one type in all splits, which its first values set; it is null where there are none.
    """
    splits = generation.splits.items()
    return _types_of([segment for split, entry in splits if split not in without for segment in entry.segments])


def _types_of(segments: Iterable[Segment]) -> dict[str, pa.DataType]:
    names: dict[str, str] = {}
    for segment in segments:
        for name, kind in segment.columns.items():
            if names.get(name, "null") == "null":
                names[name] = kind
    return {name: type_of_name(kind, name) for name, kind in names.items()}


def _join_types(types: _Types, more: _Types) -> dict[str, pa.DataType]:
    """Return the types of both; of two for one column, the first that is not null."""
    return {**types, **{name: kind for name, kind in more.items() if pa.types.is_null(types.get(name, pa.null()))}}


# ---------------------------------------------------------------------------------------------------------------- files


class NewFiles:
    """The files of the index that a commit writes. Those that it does not list in the end are removed."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._segments: dict[str, Segment] = {}
        self._deleted: set[str] = set()

    def write(
        self, sources: Sequence[RowSource], layout: RecordLayout | None, types: _Types, deleted: IntArray = NO_ROWS
    ) -> _Segments:
        """Write rows as segments, of which these are deleted. Columns whose values do not fit are left out."""
        segments = write_segments(self._root, sources, layout, column_types=types)
        self._segments |= {segment.id: segment for segment in segments}
        return tuple(self.with_deleted(segment, own) for segment, own in rows_by_segment(segments, deleted))

    def with_deleted(self, segment: Segment, rows: IntArray) -> Segment:
        """Return a segment of which exactly these rows are deleted."""
        file = write_deleted(self._root, segment, rows) if len(rows) else None
        if file is not None:
            self._deleted.add(join_url(SEGMENT_FOLDER, segment.id, file.name))
        return replace(segment, deleted=file)

    def keep(self, generation: Generation) -> None:
        """Remove what a generation does not list."""
        ids = {segment.id for segment in generation.segments}
        paths = generation.files().keys()
        store = store_for(self._root)
        for path in self._deleted - paths:
            store.delete(join_url(self._root, path))
        drop_segments(self._root, [segment for segment in self._segments.values() if segment.id not in ids])
        self._segments = {name: segment for name, segment in self._segments.items() if name in ids}
        self._deleted &= paths


# ------------------------------------------------------------------------------------------------------------- new rows


class NewRows:
    """New rows of some splits, and the segments that were written of them alone: they are written once, if possible."""

    def __init__(
        self,
        splits: Mapping[str, Sequence[RowSource]],
        files: NewFiles,
        on_misfit: OnMisfit,
        deleted: Mapping[str, IntArray] | None = None,
    ) -> None:
        self.sources = {split: list(sources) for split, sources in splits.items()}
        self.fields = {name for own in self.sources.values() for source in own for name in source.summary.fields}
        self._files = files
        self._on_misfit: OnMisfit = on_misfit
        self._deleted = {split: np.unique(rows) for split, rows in (deleted or {}).items()}
        self._written: dict[str, tuple[RecordLayout | None, ColumnPlan, _Segments]] = {}

    def _plan_types(self, types: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the types of the columns of the dataset once it has the rows.

        ``types`` are those that it has. Raises SchemaMismatchError where values do not fit, unless that is allowed.
        """
        sources = [source for own in self.sources.values() for source in own]
        plan = plan_columns(sources, [source.summary for source in sources], types, self._on_misfit)
        return _join_types(types, plan.types)

    def _write(self, split: str, layout: RecordLayout | None, types: _Types) -> _Segments:
        """Return the segments of the rows of a split alone."""
        sources, plan = self.sources[split], self._plan(split, types)
        written = self._written.get(split)
        if written is None or written[:2] != (layout, plan):
            segments = self._files.write(sources, layout, types, self._deleted.get(split, NO_ROWS))
            written = self._written[split] = (layout, plan, segments)
        return written[2]

    def _plan(self, split: str, types: _Types) -> ColumnPlan:
        sources = self.sources[split]
        return plan_columns(sources, [source.summary for source in sources], types, "omit")

    def replace(self, parent: Generation) -> dict[str, _Segments]:
        """Return the segments of each split if they replace those that a generation has."""
        types = self._plan_types(column_types(parent, without=self.sources))
        made = {}
        for split in self.sources:
            made[split] = segments = self._write(split, None, types)
            types = _join_types(types, _types_of(segments))
        return made

    def append(self, root: str, parent: Generation, *, fold: bool) -> dict[str, _Segments]:
        """Return the segments of each split with the new rows behind those that a generation has."""
        types = self._plan_types(column_types(parent))
        made = {}
        for split in self.sources:
            before = parent.splits.get(split, Split()).segments
            if fold:
                segments = self._fold(root, split, before, types)
            else:
                segments = (*before, *self._write(split, before[0].layout if before else None, types))
            made[split] = segments
            types = _join_types(types, _types_of(segments))
        return made

    def thin(self, root: str, segments: _Segments, paths: Collection[str], types: _Types) -> list[Segment]:
        """Return the segments of a split without shards of these paths."""
        table, made = SplitTable(root, segments, OpenFiles()), list[Segment]()
        deleted, starts, listed = table.deleted().as_array(), table.shard_starts(), shard_paths(root, segments)
        for number, segment in enumerate(segments):
            shards = table.segment_shards(number)
            runs = list(group_runs([shard for shard in shards if listed[shard] not in paths], len(shards)))
            if runs == [shards]:
                made.append(segment)
                continue
            rows = np.concatenate([NO_ROWS, *[np.arange(*starts[[run.start, run.stop]]) for run in runs]])
            sources = [SegmentRows(table, number, run) for run in runs]
            made += self._files.write(sources, segment.layout, types, np.flatnonzero(np.isin(rows, deleted)))
        return made

    def _fold(self, root: str, split: str, before: _Segments, types: _Types) -> _Segments:
        """Return all segments of a split with the new rows, its last ones merged with them."""
        layout = before[0].layout if before else None
        summaries = [source.summary for source in self.sources[split]]
        start = _fold_start(before, summaries, self._plan(split, types))
        if start == len(before):
            return (*before, *self._write(split, layout, types))
        table = SplitTable(root, before[start:], OpenFiles())
        old = [SegmentRows(table, number) for number in range(len(table.segments))]
        merged = self._files.write([*old, *self.sources[split]], layout, types, table.deleted().as_array())
        return (*before[:start], *merged)


def _fold_start(segments: _Segments, summaries: Sequence[RowsSummary], plan: ColumnPlan) -> int:
    """Return the first of the last segments that are merged with new rows; their number where none is."""
    if not any(summary.shards for summary in summaries):
        return len(segments)
    rows, start = sum(summary.rows for summary in summaries), len(segments)
    columns = _KnownColumns(_named(plan.types), plan.left_out, plan.complete)
    while start:
        last = segments[start - 1]
        largest = max((file.size for file in last.files), default=0)
        own = _KnownColumns(_named(last.columns), last.left_out, last.complete)
        if (
            last.rows >= 2 * max(rows, 1)
            or last.rows + rows > MAX_SEGMENT_ROWS
            or largest * (last.rows + rows) > _MAX_FILE_SHARE * MAX_FILE_BYTES * max(last.rows, 1)
            or (start <= _MAX_APART and (columns.hides(own) or own.hides(columns)))
        ):
            break
        start, rows, columns = start - 1, rows + last.rows, columns.join(own)
    return start


@dataclass(frozen=True, slots=True)
class _KnownColumns:
    """The columns of some rows that can be queried, null or not, and those that cannot."""

    names: dict[str, bool]
    """Whether each column has values."""
    left_out: Mapping[str, str]
    complete: bool

    def hides(self, other: _KnownColumns) -> bool:
        """Whether merging these rows with others loses a column that the others have."""
        names = [name for name, has_values in other.names.items() if has_values]
        return any(is_left_out(self.left_out, name) or not (self.complete or name in self.names) for name in names)

    def join(self, other: _KnownColumns) -> _KnownColumns:
        names = {**self.names, **{name: has or self.names.get(name, False) for name, has in other.names.items()}}
        return _KnownColumns(names, {**self.left_out, **other.left_out}, self.complete and other.complete)


def _named(types: Mapping[str, object]) -> dict[str, bool]:
    return {name: str(kind) != "null" for name, kind in types.items()}


def rows_by_segment(segments: Sequence[Segment], rows: IntArray) -> Iterator[tuple[Segment, IntArray]]:
    """Yield each segment with those of ascending rows of the split that are in it, counted from its first one."""
    edges = np.cumsum([0, *[segment.rows for segment in segments]])
    places = np.searchsorted(rows, edges)
    for number, segment in enumerate(segments):
        yield segment, rows[places[number] : places[number + 1]] - edges[number]
