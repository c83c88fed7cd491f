"""Changes of a dataset, each one commit: append, delete and restore rows, replace splits, change what is said of them.

A change is applied to the newest generation, and applied again where somebody else was faster. Rows are numbered within
their split; appending never changes a number, so deleting and restoring know rows by their numbers.

An append **folds**: its commit merges the last segments of the split into the new one, but only in its first attempt.
Rows that were merged after a lost race could be in the new parent twice.

Files of the index that a lost attempt wrote are removed, unless the next attempt lists them. Those of a process that
dies are garbage, which a later commit collects.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np

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

from ._commit import commit, is_committed, load_generation
from ._dataset_schema import check_schema_fits, join_schemas
from ._generation import NO_GENERATION, Generation, Split, encode_document, locate, with_split
from ._layout import Segment
from ._member_names import KeyRule
from ._new_segments import NO_ROWS, NewFiles, NewRows, OnMisfit, column_types, rows_by_segment, shard_paths
from ._records import OpenFiles
from ._rows_file import RowSource
from ._split_table import SplitTable
from ._writing import Writing, finish_moves, stage_moves

__all__ = [
    "ChangedRows",
    "add_tars",
    "append_rows",
    "change_metadata",
    "delete_rows",
    "finish",
    "replace_splits",
    "restore_rows",
]


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


# --------------------------------------------------------------------------------------------------------------- commit


def _commit(root: str, change: Callable[[Generation, int], Generation], files: NewFiles, **options: Any) -> Generation:
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
    before: Generation = NO_GENERATION,
    schema: dict[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    rule: KeyRule | None = None,
    on_misfit: OnMisfit = "error",
    exclusive: bool = False,
    check: Callable[[Generation], None] | None = None,
) -> Generation:
    """Add the rows of tars that a writer has finished under their final names, and remove the folder of the writer.

    It may be called again, after a crash too: the write is committed once. As `append_rows`, but unless the writer only
    appends, its splits must be as the generation ``before`` has them and the schema must fit: raises ObjectExistsError
    where another writer was faster.
    """

    def check_parent(parent: Generation, fields: Collection[str]) -> None:
        if check is not None:
            check(parent)
        for split in splits if parent.splits and writing.head.kind != "append" else ():
            if _segment_ids(parent, split) != _segment_ids(before, split):
                raise _changed_split(root, split)
            check_schema_fits(parent.schema, schema, fields, hint="Choose another folder")

    description = _description(schema, metadata, rule)
    generation = _append(root, splits, description, check_parent, writing.id, on_misfit, exclusive=exclusive)
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
    files = NewFiles(root)
    new = NewRows(splits, files, on_misfit)

    def change(parent: Generation, attempt: int) -> Generation:
        if check is not None:
            check(parent, new.fields)
        made = parent
        for split, segments in new.append(root, parent, fold=not attempt).items():
            made = _with_segments(made, split, segments)
        return _describe(parent, made, new.fields, description)

    return _commit(root, change, files, writer=writer, exclusive=exclusive)


def _with_segments(generation: Generation, split: str, segments: Sequence[Segment]) -> Generation:
    """As `with_split`; a split without shards is not listed, and one that does not change is not changed."""
    if tuple(segments) == generation.splits.get(split, Split()).segments:
        return generation
    if segments:
        return with_split(generation, split, segments)
    return replace(generation, splits={name: entry for name, entry in generation.splits.items() if name != split})


def _segment_ids(generation: Generation, split: str) -> list[str]:
    return [segment.id for segment in generation.splits.get(split, Split()).segments]


def _changed_split(root: str, split: str) -> ObjectExistsError:
    return ObjectExistsError(
        f"Split {split!r} was written by another writer in the meantime",
        shard=root,
        hint="Run this write again with resume=True, or write to another folder",
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
    files = NewFiles(root)
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
    files: NewFiles,
) -> tuple[list[Segment], IntArray]:
    """Return the segments of a split with other deleted rows, and which rows of the split changed."""
    if len(rows) and not 0 <= rows[0] <= rows[-1] < split.rows:
        row = int(rows[-1] if rows[0] >= 0 else rows[0])
        raise PositionError(f"Index {row} is out of range for a split of {split.rows} samples", shard=root)
    segments, changed, first = [], [NO_ROWS], 0
    for segment, own in rows_by_segment(split.segments, rows):
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
        files = NewFiles(root)
        new = NewRows(splits, files, on_misfit, deleted or {})
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
            for split, segments in {**new.replace(parent), **thinned}.items():
                made = _with_segments(made, split, segments)
            return _describe(_without_splits(parent, splits), made, new.fields, description)

        newest = _commit(root, change, files, new_lineage=True, writer=writing.id, pending=pending, exclusive=exclusive)
    newest = finish_moves(root, newest, writing=writing, exclusive=exclusive)
    writing.discard()
    return newest


def _plan_moves(
    root: str, new: NewRows, writing: Writing, before: Generation
) -> tuple[list[str], dict[str, list[Segment]]]:
    """Return the paths of staged tars, and the segments of splits that stay but have shards of such paths."""
    paths = [path for own in new.replace(before).values() for path in shard_paths(root, own)]
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


def _unnamed_paths(root: str, new: NewRows, before: Generation) -> list[str]:
    """Return the paths of tars that no split has once these are replaced."""
    stay = _without_splits(before, new.sources)
    lists = [*(entry.segments for entry in stay.splits.values()), *new.replace(before).values()]
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
