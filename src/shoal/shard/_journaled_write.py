"""`JournaledWrite`: one write of shards, each with its index beside it, a journal, and the manifest at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.errors import ObjectExistsError, OptionError
from shoal.store._pattern import number_in_name, numbered_name
from shoal.store._url import join_url

from ._dataset_schema import check_payload_fits
from ._dataset_write import SchemaDocument, shards_there, still_there
from ._destination import Destination, index_unlisted, load_destination, save_indexes
from ._journal import Journal, commit, recover, staging_url
from ._manifest import Manifest, ShardRecord, check_schema_fits, joined_schema, merge_shards
from ._shard_rows import ShardRows
from ._split_names import same_split
from ._stored_rows import remove_shards, save_rows

__all__ = ["JournaledWrite"]


class JournaledWrite:
    """As `DatasetWrite`, in the old format of datasets."""

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
        self.root = root
        self.shards: list[ShardRecord] = []
        self.samples_before = 0
        self._name = name
        self._overwrite = overwrite
        self._resume = resume
        self._append = append
        self._first_number = 0
        self._split_name = split
        self._is_one_tar = numbered_name(name, 0) == name
        self._replaced: list[str] = []
        self._listed_before = Manifest({})
        self._journal = Journal(root, name, {**options, "append": True} if append else dict(options))

    def begin(self, schema: SchemaDocument | None) -> None:
        """Look at what exists, and refuse before anything is written."""
        recover(self.root)
        finished = self._journal.read() if self._resume else []
        destination = self._destination = load_destination(self.root, self._name)
        self._split_name = same_split(self._split_name, destination.manifest.splits)
        is_left_over = self._journal.left_in_place()
        if is_left_over:  # tars with these names are ours
            unlisted = tuple(path for path in destination.unlisted if not self._has_name(path))
            destination = self._destination = replace(destination, unlisted=unlisted)
        self._check_fits(destination.manifest, schema, ())
        if self._append:
            self._plan_append(destination)
            self._replaced = [] if is_left_over else list(shards_there(self.root, self._name, self._first_number))
        elif finished and finished == [one for one in destination.manifest.shards if self._has_name(one.path)]:
            self._replaced = []  # killed after the manifest was written: nothing is left to do
        else:
            finished = still_there(finished, staging_url(self.root), self.root)
            found = destination.paths_to_replace(
                (self._split_name,), self._has_name, overwrite=self._overwrite, join=bool(finished)
            )
            there = () if is_left_over else shards_there(self.root, self._name)
            self._replaced = list(dict.fromkeys([*found, *there]))
        if self._replaced and not self._overwrite:  # tars that no manifest lists have these names
            raise ObjectExistsError(
                "Dataset already exists",
                found=join_url(self.root, self._replaced[0]),
                hint="Choose another folder or name, or pass overwrite=True to replace it",
            )
        self._folder = staging_url(self.root) if self._replaced else self.root
        self._start(finished)

    def _has_name(self, path: str) -> bool:
        return number_in_name(self._name, path) is not None

    def _plan_append(self, destination: Destination) -> None:
        """Number the new shards and samples after those that are there; index those that no manifest lists."""
        self._listed_before = before = index_unlisted(destination)
        self._split_name = same_split(self._split_name, before.splits)
        numbers = [number_in_name(self._name, record.path) for record in before.shards]
        self._first_number = 1 + max((number for number in numbers if number is not None), default=-1)
        if self._first_number and self._is_one_tar:
            raise OptionError(
                "append=True needs a number in the name of new shards", expected="such as a-%06d.tar", found=self._name
            )
        splits = before.splits.items()
        self.samples_before = sum(
            record.samples
            for split, records in splits
            for record in records
            if split == self._split_name or self._has_name(record.path)
        )

    def _check_fits(
        self,
        before: Manifest,
        schema: SchemaDocument | None,
        records: Sequence[ShardRecord],
        payload: bytes | None = None,
    ) -> None:
        """Raise SchemaMismatchError or ObjectExistsError where these shards do not fit those that stay."""
        if self._append or (schema is None and not records):
            return
        hint = "Choose another folder, or pass append=True to keep samples of both types"
        stay = self._without_replaced(before)
        check_schema_fits(stay, schema, records, hint=hint)
        if schema is None and payload is not None and len(records) == 1 and stay.shards:
            check_payload_fits(stay.schema, payload, join_url(self._folder, records[0].path), hint=hint)

    def _without_replaced(self, before: Manifest) -> Manifest:
        """The manifest with the shards that stay."""
        stay = {name: tuple(one for one in records if self._is_kept(one)) for name, records in before.splits.items()}
        return replace(before, splits=stay)

    def _start(self, finished: list[ShardRecord]) -> None:
        """Take away what an interrupted run left behind its finished shards, and begin the journal."""
        remove_shards(self._folder, list(shards_there(self._folder, self._name, self._first_number + len(finished))))
        self.shards = finished
        self._journal.start(finished, staged=bool(self._replaced))

    def next_path(self) -> str:
        """Return the path of the next shard."""
        return numbered_name(self._name, self._first_number + len(self.shards))

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
        save_rows(rows, self._folder, record.path)
        try:
            self._check_fits(self._destination.manifest, schema, [*self.shards, record], payload)
        except BaseException:
            remove_shards(self._folder, [record.path])
            raise
        self.shards.append(record)
        self._journal.add(record)

    def commit(self, schema: SchemaDocument | None, metadata: Mapping[str, Any]) -> None:
        """Make the shards part of the dataset."""

        def change(before: Manifest) -> Manifest:
            return self._manifest(before, schema, metadata)

        if self._append:
            save_indexes(self._destination, self._listed_before)
        if self._replaced:
            staged = [record.path for record in self.shards]
            commit(self.root, change, staged=staged, replaced=self._replaced)
        else:
            commit(self.root, change)
        self._journal.remove()

    def _manifest(self, before: Manifest, schema: SchemaDocument | None, metadata: Mapping[str, Any]) -> Manifest:
        """The new manifest, of the one that is there now: another writer may have ended in this folder meanwhile."""
        if self._append:
            before = self._with_unlisted(before)
        else:
            self._destination.refuse_new(before, (self._split_name,), [record.path for record in self.shards])
            self._check_fits(before, schema, self.shards)
        kept = self._without_replaced(before)
        if not kept.shards:
            before = kept = Manifest({})  # nothing of it stays
        manifest = replace(
            kept, metadata={**before.metadata, **metadata}, schema=joined_schema(kept, schema, self.shards)
        )
        split, records = self._split_name, self.shards
        if not records:
            return manifest
        if self._append:  # behind all others, whatever their names: positions stay what they were
            return replace(manifest, splits={**manifest.splits, split: (*manifest.splits.get(split, ()), *records)})
        return merge_shards(manifest, split, records)

    def _with_unlisted(self, manifest: Manifest) -> Manifest:
        """The manifest with the tars that no manifest listed before this write."""
        listed = {record.path for record in manifest.shards}
        unlisted = set(self._destination.unlisted)
        for split, records in self._listed_before.splits.items():
            new = [record for record in records if record.path in unlisted and record.path not in listed]
            manifest = merge_shards(manifest, split, new) if new else manifest
        return manifest

    def _is_kept(self, record: ShardRecord) -> bool:
        """Whether a shard that was there is none of those that are written or replaced now."""
        number = number_in_name(self._name, record.path)
        return (number is None or number < self._first_number) and record.path not in self._replaced

    def close(self) -> None:
        """Let go of a write that is not committed: it can be resumed."""

    def abort(self) -> None:
        """Let go of a write that is not committed. What was to be appended vanishes."""
        if self._append:
            remove_shards(self._folder, [record.path for record in self.shards])
            self._journal.remove()
            self.shards = []
