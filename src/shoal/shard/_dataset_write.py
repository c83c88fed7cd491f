"""`DatasetWrite`: one write of shards into a dataset, from the first look at its folder until its commit.

A fresh write and an append put each finished shard under its final name; nobody sees them before the commit. A write
over a dataset stages its shards, and the commit replaces the split by them, all at once. What is finished is in the
folder of the writer (`Writing`), so that a write that was interrupted can be resumed; only an append begins anew, since
others may have added to the dataset.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

from shoal.errors import ObjectExistsError, ObjectNotFoundError, OptionError, WriteError
from shoal.store._base import ObjectInfo
from shoal.store._pattern import number_in_name, numbered_name
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._changes import add_tars, finish, replace_splits
from ._commit import is_committed, load_generation
from ._dataset_schema import check_payload_fits, check_schema_fits
from ._folder_index import PathRows, index_paths, paths_by_split
from ._foreign_tars import IndexOptions
from ._generation import NO_GENERATION, Generation, locate
from ._manifest import ShardRecord
from ._member_names import WEBDATASET_RULE
from ._new_segments import shard_paths
from ._records import OpenFiles
from ._rows_file import RowsFile
from ._shard_rows import ShardRows
from ._split_names import same_split
from ._split_table import SplitTable
from ._write_target import WriteTarget, load_target, paths_to_replace
from ._writing import UnfinishedWrite, WriteHead, Writing

__all__ = ["DatasetWrite", "SchemaDocument", "ShardCommits", "shards_there", "still_there"]

SchemaDocument = dict[str, Any]
_SCHEMA_HINT = "Choose another folder, or pass append=True to keep samples of both types"


class ShardCommits(Protocol):
    """What `ShardWriter` asks of a write, in this order. Constructors do no I/O."""

    shards: list[ShardRecord]
    """The finished shards, with those that a resumed write found."""
    samples_before: int
    """How many samples the split has before these; 0 unless the write appends."""

    def begin(self, schema: SchemaDocument | None) -> None:
        """Look at what exists, and refuse before anything is written."""
        ...

    def next_path(self) -> str:
        """Return the path of the next shard, which nobody else writes."""
        ...

    def url(self, path: str) -> str:
        """Return where a shard is written."""
        ...

    def add(
        self,
        record: ShardRecord,
        rows: ShardRows,
        schema: SchemaDocument | None,
        payload: bytes | None,
        *,
        durable: bool = False,
    ) -> None:
        """Note that the shard of `next_path` is finished. ``payload`` is that of the first sample of all.

        Raises SchemaMismatchError, and removes the shard, where it does not fit the dataset.
        """
        ...

    def commit(self, schema: SchemaDocument | None, metadata: Mapping[str, Any]) -> None:
        """Make the shards part of the dataset."""
        ...

    def close(self) -> None:
        """Let go of a write that is not committed: it can be resumed."""
        ...

    def abort(self) -> None:
        """Let go of a write that is not committed. What was to be appended vanishes."""
        ...


class DatasetWrite:
    """One write of shards, named by a pattern, into one split of the dataset at ``root``; see `ShardCommits`.

    ``options`` are those of a run that must be the same when it is resumed. Raises ObjectExistsError where the folder
    has something that the write may not touch, SchemaMismatchError where samples do not fit those that stay, WriteError
    where there is nothing to go on with, and what `Writing` raises.
    """

    def __init__(
        self,
        root: str,
        name: str,
        split: str,
        options: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        append: bool = False,
    ) -> None:
        self.shards: list[ShardRecord] = []
        self.samples_before = 0
        self._root, self._name, self._split = root, name, split
        self._options = dict(options)
        self._overwrite, self._resume, self._append = overwrite, resume, append
        self._before = NO_GENERATION
        self._replaced: list[str] = []
        self._foreign: list[str] = []
        """The URLs of tars that nobody lists, and that the append makes part of the dataset."""
        self._number = 0
        self._writing: Writing | None = None
        self._is_committed = False

    def begin(self, schema: SchemaDocument | None) -> None:
        """Look at what exists, and refuse before anything is written."""
        finish(self._root)
        target = load_target(self._root, self._name)
        self._before = target.generation
        self._split = same_split(self._split, target.generation.splits)
        left = [write for write in target.own if not write.head.staged]
        if left:  # tars with these names are ours
            unlisted = tuple(path for path in target.unlisted if not self._has_name(path))
            target = replace(target, unlisted=unlisted)
        if self._append:
            self._plan_append(target)
            self._begin("append", left)
            return
        dead = self._resumable_write(target) if self._resume else None
        if dead is not None and is_committed(self._root, target.generation, dead.id):
            self._is_committed = True  # killed after the commit: nothing is left to do
            self._begin("write", (), dead, staged=dead.head.staged)
            return
        self._replaced = self._plan_replacement(target, dead, has_left=bool(left))
        self._check_schema(schema, ())
        self._begin("write", left, dead, staged=bool(self._replaced) or (dead is not None and dead.head.staged))

    def _has_name(self, path: str) -> bool:
        return number_in_name(self._name, path) is not None

    def _resumable_write(self, target: WriteTarget) -> UnfinishedWrite | None:
        """Return the write that died, rather one that is not committed, as `Writing.resume` chooses it."""
        writes = [write for write in target.own if write.is_alive is not True]
        return min(writes, key=lambda write: is_committed(self._root, target.generation, write.id), default=None)

    def _plan_replacement(self, target: WriteTarget, dead: UnfinishedWrite | None, *, has_left: bool) -> list[str]:
        """Return the tars that the write replaces. Raises ObjectExistsError where it must not."""
        join = dead is not None and bool(dead.shards)
        listed = paths_to_replace(target, (self._split,), self._has_name, overwrite=self._overwrite, join=join)
        there = () if has_left else shards_there(self._root, self._name)
        replaced = list(dict.fromkeys([*listed, *there]))
        if replaced and not self._overwrite:  # tars that no manifest lists have these names
            raise _exists(self._root, replaced[0])
        return replaced

    def _plan_append(self, target: WriteTarget) -> None:
        """Number the new shards and samples after those that are there; index those that no manifest lists."""
        splits = [(split, *_shards_of(self._root, target.generation, split)) for split in target.generation.splits]
        self._foreign = [join_url(self._root, path) for path in target.unlisted]
        with self._foreign_rows() as foreign:
            for split, rows in foreign.items():
                splits.append((split, list(rows), [each.rows.record.samples for each in rows.values()]))
        self._split = same_split(self._split, dict.fromkeys(split for split, *_ in splits))
        for split, paths, samples in splits:
            for path, count in zip(paths, samples, strict=True):
                number = number_in_name(self._name, path)
                self._number = self._number if number is None else max(self._number, number + 1)
                self.samples_before += count if split == self._split or number is not None else 0
        if self._number and self._is_one_tar:
            raise OptionError(
                "append=True needs a number in the name of new shards", expected="such as a-%06d.tar", found=self._name
            )

    @property
    def _is_one_tar(self) -> bool:
        return numbered_name(self._name, 0) == self._name

    @contextlib.contextmanager
    def _foreign_rows(self) -> Iterator[dict[str, dict[str, PathRows]]]:
        """Give the rows of the tars that nobody lists by split and path; they are indexed at most once."""
        splits: dict[str, dict[str, ObjectInfo]] = {}
        if self._foreign:
            splits = paths_by_split(self._root, self._foreign)
        infos = {path: info for own in splits.values() for path, info in own.items()}
        with index_paths(infos, IndexOptions(root=self._root)) as rows:
            yield {split: {path: rows[path] for path in own} for split, own in splits.items()}

    def _begin(
        self,
        kind: str,
        left: Sequence[UnfinishedWrite],
        dead: UnfinishedWrite | None = None,
        *,
        staged: bool = False,
    ) -> None:
        """Begin the write, or go on with one that died; remove what earlier ones left behind their finished shards."""
        head = WriteHead(kind, self._name, self._split, self._options, staged)
        is_named = _named_paths(self._root)
        if dead is not None and dead.head.staged == staged:
            self._writing = Writing.resume(self._root, head)
            finished = self._writing.finished()
            self.shards = finished if self._is_committed else still_there(finished, self._folder)
        else:
            self._writing = Writing.begin(self._root, head, is_named=is_named)
            finished = []
        self._writing.keep(len(self.shards))
        if not left or kind == "append":
            return
        count = max(len(finished), *(len(write.shards) for write in left))
        lost = [record.path for record in finished[len(self.shards) :]]
        for path in [*lost, *shards_there(self._root, self._name, count)]:
            if not is_named(path):
                store_for(self._root).delete(locate(self._root, path))

    @property
    def _writer(self) -> Writing:
        if self._writing is None:
            raise WriteError("The write has not begun", shard=self._root)
        return self._writing

    @property
    def _folder(self) -> str:
        return self._writer.staging if self._writer.head.staged else self._root

    def next_path(self) -> str:
        """Return the path of the next shard, which nobody else writes."""
        if self._is_committed:
            raise WriteError(
                "The samples are more than those of the interrupted run, which was finished",
                expected=f"{sum(record.samples for record in self.shards)} samples",
                shard=self._root,
                hint="Pass append=True to add the others",
            )
        if not self._append:
            return numbered_name(self._name, len(self.shards))
        while True:
            path = numbered_name(self._name, self._number)
            if self._writer.reserve(path):
                return path
            if self._is_one_tar:
                raise _exists(self._root, path)
            self._number += 1

    def url(self, path: str) -> str:
        """Return where a shard is written."""
        return join_url(self._folder, path)

    def add(
        self,
        record: ShardRecord,
        rows: ShardRows,
        schema: SchemaDocument | None,
        payload: bytes | None,
        *,
        durable: bool = False,
    ) -> None:
        """Note that the shard of `next_path` is finished."""
        try:
            self._check_schema(schema, [*self.shards, record], payload)
        except BaseException:
            store_for(self._root).delete(self.url(record.path))
            raise
        self._writer.add(record, rows, durable=durable)
        self.shards.append(record)
        self._number += 1

    def _check_schema(
        self, schema: SchemaDocument | None, records: Sequence[ShardRecord], payload: bytes | None = None
    ) -> None:
        """Raise SchemaMismatchError where these shards do not fit those that stay."""
        if self._append or not self._stay.splits or (schema is None and not records):
            return
        fields = {name for record in records for name in record.fields}
        check_schema_fits(self._stay.schema, schema, fields, hint=_SCHEMA_HINT)
        if schema is None and payload is not None and len(records) == 1:
            check_payload_fits(self._stay.schema, payload, self.url(records[0].path), hint=_SCHEMA_HINT)

    @property
    def _stay(self) -> Generation:
        """What was there, without what is replaced."""
        splits = self._before.splits.items()
        replaced = {self._split} if self._replaced else set()
        return replace(self._before, splits={name: own for name, own in splits if name not in replaced})

    def commit(self, schema: SchemaDocument | None, metadata: Mapping[str, Any]) -> None:
        """Make the shards part of the dataset."""
        writing = self._writer
        rows = [RowsFile(writing.rows_url(number)) for number in range(len(self.shards))]
        if writing.head.staged:
            replace_splits(
                self._root,
                {self._split: rows},
                writing,
                before=self._before,
                removed=self._replaced,
                schema=schema,
                metadata=metadata,
                rule=None if self._stay.splits else WEBDATASET_RULE,
                on_misfit="omit",
            )
        elif self._append:
            self._commit_append(writing, rows, schema, metadata)
        else:
            add_tars(
                self._root,
                {self._split: rows},
                writing,
                before=self._before,
                schema=schema,
                metadata=metadata,
                on_misfit="omit",
            )

    def _commit_append(
        self, writing: Writing, rows: Sequence[RowsFile], schema: SchemaDocument | None, metadata: Mapping[str, Any]
    ) -> None:
        def check(parent: Generation) -> None:
            if self._foreign and parent.splits:  # somebody else may have listed the same tars
                raise _ListedError

        try:
            with self._foreign_rows() as foreign:
                sources = {split: [*own.values()] for split, own in foreign.items()}
                add_tars(
                    self._root,
                    {**sources, self._split: [*sources.get(self._split, ()), *rows]},
                    writing,
                    schema=None if foreign else schema,
                    metadata=metadata,
                    check=check,
                )
        except _ListedError:
            newest = load_generation(self._root) or NO_GENERATION
            self._split = same_split(self._split, newest.splits)
            self._foreign = []
            self._commit_append(writing, rows, schema, metadata)

    def close(self) -> None:
        """Let go of a write that is not committed: it can be resumed."""
        if self._writing is not None:
            self._writing.close()

    def abort(self) -> None:
        """Let go of a write that is not committed. What was to be appended vanishes."""
        writing = self._writing
        if writing is None:
            return
        newest = load_generation(self._root) or NO_GENERATION
        if self._append and not is_committed(self._root, newest, writing.id):
            for record in self.shards:
                store_for(self._root).delete(locate(self._root, record.path))
            self.shards = []
            writing.discard()
        writing.close()


class _ListedError(Exception):
    pass


def _exists(root: str, path: str) -> ObjectExistsError:
    return ObjectExistsError(
        "Dataset already exists",
        found=join_url(root, path),
        hint="Choose another folder or name, or pass overwrite=True to replace it",
    )


def _named_paths(root: str) -> Callable[[str], bool]:
    """Return a function that says whether the newest generation names a path; it is loaded when it is first needed."""

    @cache
    def paths() -> set[str]:
        generation = load_generation(root) or NO_GENERATION
        return {path for entry in generation.splits.values() for path in shard_paths(root, entry.segments)}

    return lambda path: path in paths()


def _shards_of(root: str, generation: Generation, split: str) -> tuple[list[str], list[int]]:
    """Return the paths of the shards of a split, and how many samples each has."""
    shards = SplitTable(root, generation.splits[split].segments, OpenFiles()).shards()
    return shards["path"].to_pylist(), shards["samples"].to_pylist()


def shards_there(folder: str, pattern: str, start: int = 0) -> Iterator[str]:
    """The shards in ``folder`` that ``pattern`` names, from number ``start`` on, up to the first that is missing."""
    numbers = itertools.count(start) if numbered_name(pattern, 0) != pattern else range(start, 1)
    paths = (numbered_name(pattern, number) for number in numbers)
    return itertools.takewhile(lambda path: _size(join_url(folder, path)) is not None, paths)


def still_there(finished: Sequence[ShardRecord], *folders: str) -> list[ShardRecord]:
    """The finished shards up to the first that somebody removed or changed meanwhile."""

    def is_there(record: ShardRecord) -> bool:
        return any(_size(join_url(folder, record.path)) == record.bytes for folder in folders)

    return list(itertools.takewhile(is_there, finished))


def _size(url: str) -> int | None:
    try:
        return store_for(url).info(url).size
    except ObjectNotFoundError:
        return None
