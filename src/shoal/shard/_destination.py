"""What is in the folder that a writer writes into, and whether the writer may join it.

A writer joins a folder without shards, or a dataset that does not have the split yet and whose schema fits; a write of
one tar, named by the user, also joins a split whose shards have the same fields. Everything else needs ``append=True``,
which adds to what is there, or ``overwrite=True``, which replaces the split. Tars that no manifest lists would be
hidden by the one that the writer makes, so they are an error too, unless ``append=True`` makes them part of the
dataset. Every writer asks here, before it writes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from shoal.errors import ObjectExistsError
from shoal.store._url import join_url, relative_url

from . import _dataset_schema
from ._discovery import SHARD_ENDINGS, files_below, splits_without_manifest
from ._journal import UnfinishedWrite, unfinished_writes
from ._manifest import Manifest, ShardRecord, load_manifest, merge_shards, record_of
from ._open_shards import open_shard
from ._read import read_row
from ._split_names import same_split
from ._stored_rows import save_rows
from ._write_target import OTHER_ENDINGS, enumerate_names, fits_pattern

__all__ = ["Destination", "check_payload_fits", "index_unlisted", "load_destination", "save_indexes"]


@dataclass(frozen=True, slots=True)
class Destination:
    """The folder of a write, as it is before the write."""

    root: str
    manifest: Manifest
    """An empty one where there is none."""
    unlisted: tuple[str, ...]
    """Tars that are a dataset without a manifest. Where there is a manifest they are seen by nobody, and not listed."""
    unfinished: tuple[UnfinishedWrite, ...]
    """Other writes into the folder, which have finished shards that are not part of the dataset yet."""
    others: tuple[str, ...] = ()
    """Files of other formats that are a dataset now, where the folder has no shard."""

    def paths_to_replace(
        self,
        splits: Collection[str],
        is_written: Callable[[str], bool],
        *,
        overwrite: bool = False,
        join: bool = False,
        can_append: bool = True,
    ) -> list[str]:
        """The shards that a write of ``splits``, whose names ``is_written`` tells, replaces.

        With ``join`` the splits may exist: the write was allowed when it began. Shards of other splits are never
        replaced. Raises ObjectExistsError where the writer may not write; the error names the choices.
        """
        append = ", pass append=True to add to it," if can_append else ""
        choices = f"Choose another folder{append} or pass overwrite=True to replace it"
        others = [path for path in self.unlisted if not is_written(path)]
        if others:
            adopt = ", or pass append=True to make them part of the dataset" if can_append else " or move them"
            raise ObjectExistsError(
                "The folder holds tars that the new dataset would hide",
                found=enumerate_names(others),
                shard=self.root,
                hint=f"Choose another folder{adopt}",
            )
        if self.others and not join:
            beside = ", or pass append=True to write beside them" if can_append else " or move them"
            raise ObjectExistsError(
                "The folder holds files of another format that the new dataset would hide",
                found=enumerate_names(list(self.others)),
                shard=self.root,
                hint=f"Choose another folder{beside}",
            )
        splits = {same_split(split, self.manifest.splits) for split in splits}
        listed = {
            record.path: split
            for split, records in self.manifest.splits.items()
            for record in records
            if split in splits or is_written(record.path)
        }
        taken = next((path for path, split in listed.items() if split not in splits), None)
        if taken is not None:  # not even overwrite=True replaces a split that is not written
            name, number = next(iter(splits), "other"), ", pass append=True for later numbers," if can_append else ""
            raise ObjectExistsError(
                f"Split {listed[taken]!r} has shards of the names that are to be written",
                found=join_url(self.root, taken),
                hint=f"Choose another folder{number} or other names, such as '{name}-%06d.tar'",
            )
        conflicts = [path for path in listed if not join or is_written(path)]
        if conflicts and not overwrite:
            raise ObjectExistsError(
                f"Split {listed[conflicts[0]]!r} already exists", found=join_url(self.root, conflicts[0]), hint=choices
            )
        if self.unlisted and not overwrite:
            raise ObjectExistsError("Dataset already exists", found=join_url(self.root, self.unlisted[0]), hint=choices)
        writing = next(
            (write for write in self.unfinished if write.shards and same_split(write.split or "", splits) in splits),
            None,
        )
        if writing is not None and not overwrite and not join:
            raise ObjectExistsError(
                f"Split {writing.split!r} is being written, or its writer was interrupted",
                found=join_url(self.root, writing.pattern),
                hint=f"Finish that write with resume=True, or {choices[0].lower()}{choices[1:]}",
            )
        return [*(listed if overwrite else ()), *self.unlisted]

    def refuse_new(self, now: Manifest, splits: Collection[str], own: Collection[str]) -> None:
        """Raise ObjectExistsError where others have finished shards of these splits since this was loaded."""
        known = {record.path for record in self.manifest.shards}.union(own)
        splits = {same_split(split, now.splits) for split in splits}
        new = [
            (split, record.path)
            for split, records in now.splits.items()
            for record in records
            if split in splits and record.path not in known
        ]
        if new:
            raise ObjectExistsError(
                f"Split {new[0][0]!r} was written by another writer in the meantime",
                found=join_url(self.root, new[0][1]),
                hint="Run this write again with resume=True to add its shards, or write to another folder",
            )


def load_destination(root: str, pattern: str) -> Destination:
    """Look at the folder ``root`` before shards that are named by ``pattern`` are written into it."""
    manifest = load_manifest(root)
    paths = [] if manifest is not None else [relative_url(info.url, root) for info in files_below(root)]
    tars = [path for path in paths if path.lower().endswith(SHARD_ENDINGS)]
    # In this order: the journal of a tar that was listed is there, unless its writer has finished the manifest.
    unfinished = tuple(write for write in unfinished_writes(root) if write.pattern != pattern and not write.staged)
    manifest = load_manifest(root) if tars else manifest
    unlisted = () if manifest is not None else [path for path in tars if not _is_of_one(unfinished, path)]
    beside = () if tars or unfinished else [path for path in paths if "/" not in path]
    others = tuple(path for path in beside if path.lower().endswith(OTHER_ENDINGS))
    return Destination(root, manifest or Manifest({}), tuple(unlisted), unfinished, others)


def _is_of_one(writes: Iterable[UnfinishedWrite], path: str) -> bool:
    return any(fits_pattern(write.pattern, path) for write in writes)


def index_unlisted(destination: Destination) -> Manifest:
    """The manifest, with the tars that it does not list; each is indexed, and the index kept in the cache.

    They are of the splits that they are of without a manifest; where Energon's ``split.yaml`` leaves a shard out, it
    stays out.
    """
    root, manifest = destination.root, destination.manifest
    unlisted = set(destination.unlisted)
    for split, members in splits_without_manifest(root).items() if unlisted else ():
        paths = [path for url in members if (path := relative_url(url, root)) in unlisted]
        manifest = merge_shards(manifest, split, [_index_one(join_url(root, path), path) for path in paths])
    return manifest


def _index_one(url: str, path: str) -> ShardRecord:
    shard = open_shard(url)
    try:
        return record_of(path, shard.index)
    finally:
        shard.close()


def save_indexes(destination: Destination, manifest: Manifest) -> None:
    """Save the indexes of the tars that `index_unlisted` added to ``manifest`` beside them."""
    added = {record.path for record in manifest.shards}.intersection(destination.unlisted)
    for path in sorted(added):
        shard = open_shard(join_url(destination.root, path))
        try:
            save_rows(shard.index, destination.root, path)
        finally:
            shard.close()


def check_payload_fits(before: Manifest, url: str, *, hint: str) -> None:
    """Raise SchemaMismatchError unless the first payload of a new shard can be read by the dataset's schema.

    For writers of packed samples that name no schema.
    """
    if before.schema is None or not before.shards:
        return
    shard = open_shard(url)
    try:
        payload = read_row(shard, shard.members(0), ["msgpack"]).get("msgpack") if len(shard) else None
        if payload is not None:
            _dataset_schema.check_payload_fits(before.schema, payload, url, hint=hint)
    finally:
        shard.close()
