"""Changes of a dataset, each one commit: append, delete and restore rows, replace splits, change what is said of them.

A change is applied to the newest generation, and applied again where somebody else was faster. Rows are numbered within
their split; appending never changes a number, so deleting and restoring know rows by their numbers.

An append **folds**: its commit merges the last segments of the split into the new one while the last one is less than
twice as large, so that a thousand appends leave a few segments. It does so only in its first attempt. Rows that were
merged after a lost race could be in the new parent twice.

Files of the index that a lost attempt wrote are removed, unless the next attempt lists them. Those of a process that
dies are garbage, which a later commit collects.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import (
    FieldError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    PositionError,
)
from shoal.store._concurrency import run_all
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._column_plan import ColumnPlan, is_left_out, plan_columns
from ._commit import commit, is_committed, load_generation
from ._dataset_schema import check_schema_fits, join_schemas
from ._generation import NO_GENERATION, Generation, Split, encode_document, locate, with_split
from ._layout import MAX_FILE_BYTES, MAX_SEGMENT_ROWS, SEGMENT_FOLDER, RecordLayout, Segment
from ._member_names import KeyRule
from ._records import OpenFiles
from ._rows_file import RowSource, RowsSummary
from ._segment import drop_segments, write_deleted, write_segments
from ._split_columns import group_runs, type_of_name
from ._split_table import SegmentRows, SplitTable
from ._writing import Writing, finish_moves, stage_moves

__all__ = [
    "ChangedRows",
    "add_tars",
    "append_rows",
    "change_metadata",
    "column_types",
    "delete_rows",
    "finish",
    "replace_splits",
    "restore_rows",
    "shard_paths",
]

OnMisfit = Literal["error", "omit"]
_Segments = tuple[Segment, ...]
_Types = Mapping[str, pa.DataType]
_NO_ROWS: IntArray = np.empty(0, np.int64)
_MAX_FILE_SHARE = 0.75
"""Segments are merged if no file is expected to take more than this share of its limit."""
_MAX_APART = 64
"""Up to so many segments are not merged if one has a column that another one leaves out."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """What deleting or restoring rows has done."""

    generation: Generation
    rows: dict[str, IntArray]
    """The rows that were changed, ascending, by split; without those that were deleted, or were not, before."""


@dataclass(frozen=True, slots=True)
class _Description:
    """What a write says of the dataset."""

    schema: dict[str, Any] | None
    metadata: Mapping[str, Any]
    rule: KeyRule | None


# ---------------------------------------------------------------------------------------------------------- read access


def shard_paths(root: str, segments: Sequence[Segment]) -> list[str]:
    """Return the paths of all shards of some segments of one split, in order."""
    paths: list[str] = SplitTable(root, segments, OpenFiles()).shards()["path"].to_pylist() if segments else []
    return paths


def column_types(generation: Generation, *, without: Collection[str] = ()) -> dict[str, pa.DataType]:
    """Return the type of each metadata column of a dataset, without those that only these splits have.

    A column has one type in all splits, which its first values set; it is null where there are none.

    Examples:
        >>> column_types(NO_GENERATION)
        {}
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


# --------------------------------------------------------------------------------------------------------------- commit


class _NewFiles:
    """The files of the index that a commit writes. Those that it does not list in the end are removed."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._segments: dict[str, Segment] = {}
        self._deleted: set[str] = set()

    def write(
        self, sources: Sequence[RowSource], layout: RecordLayout | None, types: _Types, deleted: IntArray = _NO_ROWS
    ) -> _Segments:
        """Write rows as segments, of which these are deleted. Columns whose values do not fit are left out."""
        segments = write_segments(self._root, sources, layout, column_types=types)
        self._segments |= {segment.id: segment for segment in segments}
        return tuple(self.with_deleted(segment, own) for segment, own in _by_segment(segments, deleted))

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


def _commit(root: str, change: Callable[[Generation, int], Generation], files: _NewFiles, **options: Any) -> Generation:
    """As `commit`, with files that ``change`` writes."""

    def attempt(parent: Generation, number: int) -> Generation:
        try:
            generation = change(parent, number)
        except BaseException:
            files.keep(NO_GENERATION)  # earlier attempts have lost, and nothing lists the files of this one
            raise
        files.keep(generation)
        return generation

    generation = commit(root, attempt, **options)
    files.keep(generation)
    return generation


def finish(root: str, *, exclusive: bool = False) -> Generation:
    """Finish what writers that died had committed: move their tars. Return the newest generation.

    Every change of a dataset begins with it. Moves of a writer that is alive are left to it. Raises ManifestError
    where a list of moves is damaged, and ObjectNotFoundError where a new tar is lost.

    Examples:
        >>> finish("memory://doc/finish") == NO_GENERATION
        True
    """
    generation = load_generation(root) or NO_GENERATION
    return finish_moves(root, generation, exclusive=exclusive) if generation.pending else generation


def _description(
    schema: dict[str, Any] | None, metadata: Mapping[str, Any] | None, rule: KeyRule | None
) -> _Description:
    """Raise WriteError for what is not JSON, before anything is written."""
    encode_document({"schema": schema, "metadata": metadata})
    return _Description(schema, metadata or {}, rule)


def _describe(parent: Generation, made: Generation, fields: Collection[str], new: _Description) -> Generation:
    """Return a generation with the schema, metadata and key rule that it has after a write.

    ``parent`` has the splits that stay. Raises OptionError for another key rule than theirs.
    """
    if not parent.splits:
        rule = made.rule if new.rule is None else new.rule
        return replace(made, schema=new.schema, metadata=dict(new.metadata), rule=rule)
    if new.rule is not None and new.rule != parent.rule:
        raise OptionError("rule must be the key rule of the dataset", expected=parent.rule, found=new.rule)
    schema = join_schemas(parent.schema, new.schema, fields)
    metadata = {**parent.metadata, **new.metadata}
    if (schema, metadata) == (made.schema, made.metadata):
        return made
    return replace(made, schema=schema, metadata=metadata)


# --------------------------------------------------------------------------------------------------------- new segments


class _NewRows:
    """New rows of some splits, and the segments that were written of them alone: they are written once, if possible."""

    def __init__(
        self,
        splits: Mapping[str, Sequence[RowSource]],
        files: _NewFiles,
        on_misfit: OnMisfit,
        deleted: Mapping[str, IntArray] | None = None,
    ) -> None:
        self.sources = {split: list(sources) for split, sources in splits.items()}
        self.fields = {name for own in self.sources.values() for source in own for name in source.summary.fields}
        self._files = files
        self._on_misfit = on_misfit
        self._deleted = {split: np.unique(rows) for split, rows in (deleted or {}).items()}
        self._written: dict[str, tuple[RecordLayout | None, ColumnPlan, _Segments]] = {}

    def plan_types(self, types: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the types of the columns of the dataset once it has the rows.

        ``types`` are those that it has. Raises SchemaMismatchError where values do not fit, unless that is allowed.
        """
        sources = [source for own in self.sources.values() for source in own]
        plan = plan_columns(sources, [source.summary for source in sources], types, self._on_misfit)
        return _join_types(types, plan.types)

    def segments(self, split: str, layout: RecordLayout | None, types: _Types) -> _Segments:
        """Return the segments of the rows of a split alone."""
        sources, plan = self.sources[split], self._plan(split, types)
        written = self._written.get(split)
        if written is None or written[:2] != (layout, plan):
            segments = self._files.write(sources, layout, types, self._deleted.get(split, _NO_ROWS))
            written = self._written[split] = (layout, plan, segments)
        return written[2]

    def _plan(self, split: str, types: _Types) -> ColumnPlan:
        sources = self.sources[split]
        return plan_columns(sources, [source.summary for source in sources], types, "omit")

    def all_segments(self, parent: Generation) -> dict[str, _Segments]:
        """Return the segments of all splits where they replace those that a generation has."""
        types = self.plan_types(column_types(parent, without=self.sources))
        made = {}
        for split in self.sources:
            made[split] = segments = self.segments(split, None, types)
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
            rows = np.concatenate([_NO_ROWS, *[np.arange(*starts[[run.start, run.stop]]) for run in runs]])
            sources = [SegmentRows(table, number, run) for run in runs]
            made += self._files.write(sources, segment.layout, types, np.flatnonzero(np.isin(rows, deleted)))
        return made

    def fold(self, root: str, split: str, before: _Segments, types: _Types) -> _Segments:
        """Return all segments of a split with the new rows, its last ones merged with them."""
        layout = before[0].layout if before else None
        summaries = [source.summary for source in self.sources[split]]
        start = _fold_start(before, summaries, self._plan(split, types))
        if start == len(before):
            return (*before, *self.segments(split, layout, types))
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


def _by_segment(segments: Sequence[Segment], rows: IntArray) -> Iterator[tuple[Segment, IntArray]]:
    """Yield each segment with those of ascending rows of the split that are in it, counted from its first one."""
    edges = np.cumsum([0, *[segment.rows for segment in segments]])
    places = np.searchsorted(rows, edges)
    for number, segment in enumerate(segments):
        yield segment, rows[places[number] : places[number + 1]] - edges[number]


# --------------------------------------------------------------------------------------------------------------- append


def append_rows(
    root: str,
    splits: Mapping[str, Sequence[RowSource]],
    *,
    schema: dict[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    rule: KeyRule | None = None,
    writer: str | None = None,
    on_misfit: OnMisfit = "error",
    exclusive: bool = False,
    check: Callable[[Generation], None] | None = None,
) -> Generation:
    """Add rows behind those of each split, in one commit. A split that is new comes last. Return the new generation.

    ``metadata`` is joined with that of the dataset, and ``schema`` as `join_schemas` does it; ``rule`` must be the key
    rule of the dataset, if that has one. A ``writer`` whose write was committed before is not committed again. Raises
    SchemaMismatchError, and changes nothing, where values do not fit the type of their column;
    ``on_misfit="omit"`` leaves such columns out, which then cannot be queried. ``check`` gets the generation that the
    rows are added to, and may raise. Raises what `finish` and `commit` raise.
    """

    def check_parent(parent: Generation, _: Collection[str]) -> None:
        if check is not None:
            check(parent)

    description = _description(schema, metadata, rule)
    return _append(root, splits, description, check_parent, writer, on_misfit, exclusive=exclusive)


def add_tars(
    root: str,
    splits: Mapping[str, Sequence[RowSource]],
    writing: Writing,
    *,
    schema: dict[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    rule: KeyRule | None = None,
    on_misfit: OnMisfit = "error",
    exclusive: bool = False,
) -> Generation:
    """Add the rows of tars that a writer has finished under their final names, and remove the folder of the writer.

    It may be called again, after a crash too: the write is committed once. As `append_rows`, but unless the writer only
    appends, its splits must be new and the schema must fit: raises ObjectExistsError where another writer was faster.
    """

    def check(parent: Generation, fields: Collection[str]) -> None:
        for split in splits if parent.splits and writing.head.kind != "append" else ():
            if split in parent.splits:
                raise _changed_split(root, split)
            check_schema_fits(parent.schema, schema, fields, hint="Choose another folder")

    description = _description(schema, metadata, rule)
    generation = _append(root, splits, description, check, writing.id, on_misfit, exclusive=exclusive)
    writing.discard()
    return generation


def _append(
    root: str,
    splits: Mapping[str, Sequence[RowSource]],
    description: _Description,
    check: Callable[[Generation, Collection[str]], None] | None,
    writer: str | None,
    on_misfit: OnMisfit,
    *,
    exclusive: bool,
) -> Generation:
    finish(root, exclusive=exclusive)
    files = _NewFiles(root)
    new = _NewRows(splits, files, on_misfit)

    def change(parent: Generation, attempt: int) -> Generation:
        if check is not None:
            check(parent, new.fields)
        made, types = parent, new.plan_types(column_types(parent))
        for split in new.sources:
            before = parent.splits.get(split, Split()).segments
            if attempt:
                layout = before[0].layout if before else None
                segments = (*before, *new.segments(split, layout, types))
            else:
                segments = new.fold(root, split, before, types)
            made = _with_segments(made, split, segments)
            types = _join_types(types, _types_of(segments))
        return _describe(parent, made, new.fields, description)

    return _commit(root, change, files, writer=writer, exclusive=exclusive)


def _with_segments(generation: Generation, split: str, segments: Sequence[Segment]) -> Generation:
    """As `with_split`; a split without shards is not listed, and one that does not change is not changed."""
    if tuple(segments) == generation.splits.get(split, Split()).segments:
        return generation
    if segments:
        return with_split(generation, split, segments)
    return replace(generation, splits={name: entry for name, entry in generation.splits.items() if name != split})


def _changed_split(root: str, split: str) -> ObjectExistsError:
    return ObjectExistsError(
        f"Split {split!r} was written by another writer in the meantime",
        shard=root,
        hint="Run this write again, or write to another folder",
    )


# ----------------------------------------------------------------------------------------------------- delete, restore


def delete_rows(root: str, rows: Mapping[str, IntArray], *, lineage: str, exclusive: bool = False) -> ChangedRows:
    """Delete rows, given by split, in any order. Return what changed: a row that is deleted stays so.

    Without a change there is no new generation. Raises ObjectChangedError where the dataset is not of this lineage any
    more, so that the rows would be others; FieldError and PositionError where there is no such split or row.
    """
    return _mark(root, rows, lineage, np.union1d, exclusive=exclusive)


def restore_rows(root: str, rows: Mapping[str, IntArray], *, lineage: str, exclusive: bool = False) -> ChangedRows:
    """Undo `delete_rows` for these rows. Return what changed: a row that is not deleted stays so. Raises as it does."""
    return _mark(root, rows, lineage, np.setdiff1d, exclusive=exclusive)


def _mark(
    root: str,
    rows: Mapping[str, IntArray],
    lineage: str,
    combine: Callable[[IntArray, IntArray], IntArray],
    *,
    exclusive: bool,
) -> ChangedRows:
    finish(root, exclusive=exclusive)
    files = _NewFiles(root)
    sorted_rows = {split: np.unique(np.asarray(own, np.int64)) for split, own in rows.items()}
    changed: dict[str, IntArray] = {}

    def change(parent: Generation, _: int) -> Generation:
        changed.clear()
        if parent.lineage != lineage:
            raise ObjectChangedError("The dataset was replaced", shard=root, hint="Call refresh()")
        made = parent
        for split, own in sorted_rows.items():
            segments, found = _mark_split(root, _find_split(parent, split), own, combine, files)
            made = _with_segments(made, split, segments)
            if len(found):
                changed[split] = found
        return made

    return ChangedRows(_commit(root, change, files, exclusive=exclusive), changed)


def _mark_split(
    root: str,
    split: Split,
    rows: IntArray,
    combine: Callable[[IntArray, IntArray], IntArray],
    files: _NewFiles,
) -> tuple[list[Segment], IntArray]:
    """Return the segments of a split with other deleted rows, and which rows of the split changed."""
    if len(rows) and not 0 <= rows[0] <= rows[-1] < split.rows:
        row = int(rows[-1] if rows[0] >= 0 else rows[0])
        raise PositionError(f"Index {row} is out of range for a split of {split.rows} samples", shard=root)
    segments, changed, first = [], [_NO_ROWS], 0
    for segment, own in _by_segment(split.segments, rows):
        if len(own):
            before = SplitTable(root, [segment], OpenFiles()).deleted().as_array()
            after = combine(before, own)
            difference = np.setxor1d(before, after, assume_unique=True)
            if len(difference):
                segment = files.with_deleted(segment, after)  # noqa: PLW2901
                changed.append(difference + first)
        segments.append(segment)
        first += segment.rows
    return segments, np.concatenate(changed)


def _find_split(generation: Generation, split: str) -> Split:
    entry = generation.splits.get(split)
    if entry is None:
        available = ", ".join(map(repr, generation.splits)) or "none"
        raise FieldError(f"Split {split!r} not found; available: {available}")
    return entry


# -------------------------------------------------------------------------------------------------------------- replace


def replace_splits(
    root: str,
    splits: Mapping[str, Sequence[RowSource]],
    writing: Writing,
    *,
    before: Generation,
    removed: Iterable[str] = (),
    deleted: Mapping[str, IntArray] | None = None,
    schema: dict[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    rule: KeyRule | None = None,
    on_misfit: OnMisfit = "error",
    exclusive: bool = False,
) -> Generation:
    """Replace splits by new rows, move the staged tars of the writer to their places, and remove its folder.

    This begins a new lineage. A split without rows vanishes; a new one comes last; others stay, without shards whose
    tars are replaced. Tars that no split names any more are removed, and so are the tars ``removed``. Of the new rows
    of a split, ``deleted`` are deleted. What is said of the dataset is joined as by `append_rows` if a split stays.

    It may be called again, after a crash too: the write is committed once. Whoever writes next finishes the moves of a
    process that died. Raises ObjectExistsError where others changed these splits since the generation ``before`` was
    read, and otherwise as `append_rows`.
    """
    description = _description(schema, metadata, rule)
    newest = finish(root, exclusive=exclusive)
    if not is_committed(root, newest, writing.id):
        files = _NewFiles(root)
        new = _NewRows(splits, files, on_misfit, deleted or {})
        _check_unchanged(root, newest, before, splits, ())
        try:
            moved, thinned = _plan_moves(root, new, writing, before)
            pending = stage_moves(writing, moved, [*_unnamed_paths(root, new, before), *removed])
        except BaseException:
            files.keep(NO_GENERATION)
            raise

        def change(parent: Generation, _: int) -> Generation:
            _check_unchanged(root, parent, before, {*splits, *thinned}, moved)
            made = parent
            for split, segments in {**new.all_segments(parent), **thinned}.items():
                made = _with_segments(made, split, segments)
            return _describe(_without_splits(parent, splits), made, new.fields, description)

        newest = _commit(root, change, files, new_lineage=True, writer=writing.id, pending=pending, exclusive=exclusive)
    newest = finish_moves(root, newest, writing=writing, exclusive=exclusive)
    writing.discard()
    return newest


def _plan_moves(
    root: str, new: _NewRows, writing: Writing, before: Generation
) -> tuple[list[str], dict[str, list[Segment]]]:
    """Return the paths of staged tars, and the segments of splits that stay but have shards of such paths."""
    paths = [path for own in new.all_segments(before).values() for path in shard_paths(root, own)]
    is_staged = run_all([partial(_exists, locate(writing.staging, path, root)) for path in paths])
    moved = list(itertools.compress(paths, is_staged))
    thinned = {}
    for split, entry in _without_splits(before, new.sources).splits.items():
        if not set(moved).isdisjoint(shard_paths(root, entry.segments)):
            thinned[split] = new.thin(root, entry.segments, set(moved), column_types(before))
    return moved, thinned


def _exists(url: str) -> bool:
    try:
        store_for(url).info(url)
    except ObjectNotFoundError:
        return False
    return True


def _unnamed_paths(root: str, new: _NewRows, before: Generation) -> list[str]:
    """Return the paths of tars that no split has once these are replaced."""
    stay = _without_splits(before, new.sources)
    lists = [*(entry.segments for entry in stay.splits.values()), *new.all_segments(before).values()]
    named = {path for segments in lists for path in shard_paths(root, segments)}
    old = [entry.segments for split, entry in before.splits.items() if split in new.sources]
    return [path for segments in old for path in shard_paths(root, segments) if path not in named]


def _without_splits(generation: Generation, splits: Collection[str]) -> Generation:
    return replace(generation, splits={name: own for name, own in generation.splits.items() if name not in splits})


def _check_unchanged(
    root: str, parent: Generation, before: Generation, splits: Collection[str], moved: Collection[str]
) -> None:
    """Raise ObjectExistsError if others changed one of these splits, or added a tar where one will be moved to."""
    known = {segment.id for segment in before.segments}
    for split in {**before.splits, **parent.splits}:
        now = parent.splits.get(split, Split()).segments
        if split in splits:
            is_changed = now != before.splits.get(split, Split()).segments
        else:
            added = [segment for segment in now if segment.id not in known]
            is_changed = not set(moved).isdisjoint(shard_paths(root, added))
        if is_changed:
            raise _changed_split(root, split)


# ------------------------------------------------------------------------------------------------------------- metadata


def change_metadata(
    root: str,
    metadata: Mapping[str, Any] | None = None,
    *,
    schema: dict[str, Any] | EllipsisType | None = ...,
    exclusive: bool = False,
) -> Generation:
    """Change the metadata of a dataset, and its schema if one is given. Return the newest generation.

    Keys whose value is None are removed, other keys stay as they are. Whether the schema reads the samples is for the
    caller to check. Raises ObjectNotFoundError where there is no dataset.

    Examples:
        >>> first = append_rows("memory://doc/metadata", {}, metadata={"by": "me", "draft": True})
        >>> change_metadata("memory://doc/metadata", {"draft": None, "version": 2}).metadata
        {'by': 'me', 'version': 2}
    """
    finish(root, exclusive=exclusive)

    def change(parent: Generation, _: int) -> Generation:
        if not parent.id:
            raise ObjectNotFoundError("Dataset not found", found=root)
        joined = {name: value for name, value in {**parent.metadata, **(metadata or {})}.items() if value is not None}
        made = replace(parent, metadata=joined, schema=parent.schema if schema is ... else schema)
        return parent if made == parent else made

    return commit(root, change, exclusive=exclusive)
