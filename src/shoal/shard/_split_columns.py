"""The metadata columns of a split: ``samples.parquet`` of its segments. A query reads only what may matter to it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import FieldError

from ._arrow_arrays import as_arrow
from ._layout import KEY_COLUMN, SAMPLES, UNREADABLE_COLUMN, Scalar, Segment
from ._parquet_files import ROW_GROUP_ROWS, ParquetFile
from ._records import OpenFiles
from ._row_view import RowView
from ._rows_file import NESTED_REASON
from ._split_shards import SplitShards, damaged_file, file_url

__all__ = ["Bounds", "SplitColumns", "group_runs", "type_of_name"]

Bounds = tuple[Scalar, Scalar]
_MAX_FILES = 64
"""Files whose footers are kept: those of small files are kept with all their bytes."""
_GROUPS_PER_READ = 8
"""Row groups that a scan reads at once."""


def type_of_name(name: str, url: str) -> pa.DataType:
    """Return the Arrow type of this name. Raises ShardIndexError where there is none; ``url`` names the file."""
    try:
        return pa.type_for_alias(name)
    except ValueError as error:
        raise damaged_file("a column has a type that is not known here", url, repr(name)) from error


class SplitColumns:
    """The metadata columns of the rows of a split. Thread-safe."""

    def __init__(self, root: str, segments: Sequence[Segment], open_files: OpenFiles, shards: SplitShards) -> None:
        self._root, self._segments, self._open_files, self._shards = root, segments, open_files, shards
        self._files: dict[int, ParquetFile] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The type of each column; null where no row has a value."""
        names: dict[str, str] = {}
        for segment in self._segments:
            for name, kind in segment.columns.items():
                if names.get(name, "null") == "null":
                    names[name] = kind
        return {name: type_of_name(kind, self._root) for name, kind in names.items()}

    @functools.cached_property
    def left_out(self) -> dict[str, str]:
        """Columns, or names with all columns below them, that some segment does not have, and why."""
        return {name: reason for segment in reversed(self._segments) for name, reason in segment.left_out.items()}

    def unanswerable(self, name: str) -> str | None:
        """Why some rows may have values under a name that the index does not have; None if it has all."""
        return next(filter(None, (_unanswerable(segment, name) for segment in self._segments)), None)

    def unreadable_row(self, name: str) -> tuple[int, str] | None:
        """The first row of which a column is not known because its member does not decode, and that field."""
        for first, segment in zip(self._shards.row_edge_list, self._segments, strict=False):
            rows = [(row, field) for field, row in segment.unreadable.items() if f"{name}.".startswith(f"{field}.")]
            if rows:
                row, field = min(rows)
                return first + row, field
        return None

    def unreadable_rows(self, segment: int, start: int, stop: int) -> dict[str, IntArray]:
        """For each field with members that do not decode, such rows of ``[start, stop)`` of a segment, from 0 on."""
        if not self._segments[segment].unreadable or start == stop:
            return {}
        rows: dict[str, list[int]] = {}
        column = self._file(segment).read_rows([UNREADABLE_COLUMN], start, stop)[UNREADABLE_COLUMN]
        for row, fields in enumerate(column.to_pylist()):
            for field in fields or ():
                rows.setdefault(field, []).append(row)
        return {field: np.array(numbers, np.int64) for field, numbers in rows.items()}

    def read(self, names: Sequence[str], rows: RowView | None = None, *, strict: bool = True) -> pa.Table:
        """Return columns of all rows, or of those of a view in its order; null where a row has no value.

        A name that is no column is one of nulls. Raises FieldError where rows may have values under it that are not in
        the index; unless ``strict``, members that do not decode have no value.
        """
        for name in names:
            self.check(name, strict=strict)
        count = self._shards.row_edge_list[-1]
        if rows is not None and rows.is_ascending and len(rows):
            self._shards.segment_of(rows.row_at(len(rows) - 1))  # which raises
        if rows is None or rows.is_whole(count):
            return self._join(names, [self._read(segment, names, None) for segment in range(len(self._segments))])
        if not rows.is_ascending:
            ascending, places = np.unique(rows.as_array(), return_inverse=True)
            return self.read(names, RowView.from_rows(ascending), strict=strict).take(as_arrow(places))
        parts = rows.split_by(self._shards.row_edges)
        return self._join(names, [self._take(segment, names, own) for segment, own in parts])

    def check(self, name: str, *, strict: bool = True) -> None:
        """Raise FieldError where a column is not known of all rows."""
        if name == KEY_COLUMN:
            return
        reason = self.unanswerable(name)
        lost = self.unreadable_row(name) if strict and reason is None else None
        if lost is not None:
            reason = f"the member {lost[1]} of sample {lost[0]} does not decode"
        if reason is not None:
            hint = "Read the samples and choose with `filter`"
            raise FieldError(f"Cannot query column {name!r}: {reason}", hint=hint)

    def scan(
        self,
        names: Sequence[str],
        may_match: Callable[[Mapping[str, Bounds | None]], bool],
        *,
        as_dictionary: Sequence[str] = (),
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield columns of neighbouring rows, and the first row of each part; rows that cannot match are left out.

        ``may_match`` gets the smallest and largest value of each column in some rows, and None where they are unknown.
        Whether the columns are known of all rows is for the caller to `check`.
        """
        for number, segment in enumerate(self._segments):
            if not may_match({name: segment.bounds.get(name) for name in names}):
                continue
            for groups in group_runs(self._matching_groups(number, names, may_match), _GROUPS_PER_READ):
                first = self._shards.row_edge_list[number] + groups.start * ROW_GROUP_ROWS
                yield first, self._read(number, names, groups, as_dictionary)

    def values(self, row: int) -> dict[str, Any]:
        """Return the value of each metadata column of one row."""
        segment = self._shards.segment_of(row)
        own = row - self._shards.row_edge_list[segment]
        names = list(self._segments[segment].columns)
        stored = self._stored(segment, names)
        found = self._file(segment).read_rows(stored, own, own + 1).to_pylist()[0] if stored else {}
        return {name: found.get(name) for name in names}

    def read_back(self, segment: int, groups: Sequence[int]) -> pa.Table:
        """Return keys and metadata columns of row groups of a segment, as they were written."""
        return self._read(segment, [KEY_COLUMN, *self._segments[segment].columns], groups, own_types=True)

    def _file(self, segment: int) -> ParquetFile:
        with self._lock:
            file = self._files.pop(segment, None)
            if file is None:
                entry = self._segments[segment].file(SAMPLES)
                url = file_url(self._root, self._segments[segment], entry)
                if entry.records != self._segments[segment].rows:
                    raise damaged_file("a segment has another number of rows than it says", url, entry.records)
                file = ParquetFile(url, entry, self._open_files)
                if len(self._files) >= _MAX_FILES:
                    del self._files[next(iter(self._files))]
            self._files[segment] = file
            return file

    def _stored(self, segment: int, names: Sequence[str]) -> list[str]:
        """Those columns that a segment has values of."""
        if not self._segments[segment].rows:
            return []
        types = self._segments[segment].columns
        return [name for name in names if name == KEY_COLUMN or types.get(name, "null") != "null"]

    def _matching_groups(
        self, segment: int, names: Sequence[str], may_match: Callable[[Mapping[str, Bounds | None]], bool]
    ) -> list[int]:
        count = -(-self._segments[segment].rows // ROW_GROUP_ROWS)
        stored = self._stored(segment, names)
        if not stored:
            return list(range(count))  # the whole segment may match, and all are alike
        file = self._file(segment)
        bounds = {name: file.bounds(name) if name in stored else [None] * count for name in names}
        return [group for group in range(count) if may_match({name: bounds[name][group] for name in names})]

    def _take(self, segment: int, names: Sequence[str], rows: IntArray) -> pa.Table:
        """Return columns of ascending rows of a segment; only their row groups are read."""
        groups = rows // ROW_GROUP_ROWS
        is_first = np.append(True, groups[1:] != groups[:-1])
        chosen = groups[is_first]
        table = self._read(segment, names, chosen.tolist())
        # All row groups but the last of a segment are equally long, so a group's place in the table is arithmetic.
        places = rows + (np.arange(len(chosen)) - chosen)[np.cumsum(is_first) - 1] * ROW_GROUP_ROWS
        if len(places) and places[-1] - places[0] == len(places) - 1:
            return table.slice(int(places[0]), len(places))
        return table.take(as_arrow(places))

    def _read(
        self,
        segment: int,
        names: Sequence[str],
        groups: Sequence[int] | None,
        as_dictionary: Sequence[str] = (),
        *,
        own_types: bool = False,
    ) -> pa.Table:
        """Return columns of row groups of a segment, nulls for those that it does not have."""
        stored = self._stored(segment, names)
        table = self._file(segment).read(stored, groups, as_dictionary=as_dictionary) if stored else None
        count = self._count(segment, groups) if table is None else table.num_rows
        columns = []
        for name in names:
            kind = pa.string() if name == KEY_COLUMN else self._type(segment, name, own=own_types)
            if table is None or name not in stored:
                column = pa.chunked_array([pa.nulls(count, kind)], kind)
            else:
                column = table[name]
                if column.type != kind and not pa.types.is_dictionary(column.type):
                    column = self._cast(segment, name, column, kind)
            columns.append(column)
        return pa.table(columns, names=list(names))

    def _count(self, segment: int, groups: Sequence[int] | None) -> int:
        """The rows of some row groups of a segment."""
        rows = self._segments[segment].rows
        numbers = range(-(-rows // ROW_GROUP_ROWS)) if groups is None else groups
        return sum(min(ROW_GROUP_ROWS, rows - group * ROW_GROUP_ROWS) for group in numbers)

    def _type(self, segment: int, name: str, *, own: bool) -> pa.DataType:
        if own:
            return type_of_name(self._segments[segment].columns[name], self._root)
        return self.types.get(name, pa.null())

    def _cast(self, segment: int, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            problem = f"the values of column {name!r} are not of its type {kind}"
            url = file_url(self._root, self._segments[segment], self._segments[segment].file(SAMPLES))
            raise damaged_file(problem, url, str(column.type)) from error

    def _join(self, names: Sequence[str], parts: Sequence[pa.Table]) -> pa.Table:
        kinds = [pa.string() if name == KEY_COLUMN else self.types.get(name, pa.null()) for name in names]
        columns = [
            pa.chunked_array(list(chain.from_iterable(part.column(at).chunks for part in parts)), kind)
            for at, kind in enumerate(kinds)
        ]
        return pa.table(columns, names=list(names))


def _unanswerable(segment: Segment, name: str) -> str | None:
    if name in segment.columns or name == KEY_COLUMN or not segment.rows:
        return None
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        above = ".".join(parts[:end])
        reason = segment.left_out.get(above)
        if reason == NESTED_REASON:
            if end == len(parts):
                return reason
        elif reason is not None:
            return f"{above} is not in the index: {reason}"
    return None if segment.complete else "the index has only some of the columns of its samples"


def group_runs(groups: Sequence[int], size: int) -> Iterator[range]:
    """Yield ascending numbers as runs of neighbours, at most so many in one.

    Examples:
        >>> list(group_runs([0, 1, 2, 5], 2))
        [range(0, 2), range(2, 3), range(5, 6)]
    """
    start = stop = -1
    for group in groups:
        if group != stop or stop - start == size:
            if start < stop:
                yield range(start, stop)
            start = group
        stop = group + 1
    if start < stop:
        yield range(start, stop)
