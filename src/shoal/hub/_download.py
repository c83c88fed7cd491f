"""Download a dataset, or some splits and columns of it, from the Hub to a folder."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shoal.dataset._dataset import Dataset
from shoal.errors import (
    ChecksumError,
    FieldError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    UnsafeNameError,
)
from shoal.shard._compression import fitting_compression
from shoal.shard._discovery import SHARD_ENDINGS, locate_shards
from shoal.shard._journal import commit
from shoal.shard._manifest import Manifest, ShardRecord, load_manifest, merge_shards, record_of
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource
from shoal.shard._split_names import split_alias
from shoal.shard._stored_rows import index_path
from shoal.shard._table import ShardRef
from shoal.shard._writer import write_shard
from shoal.store._huggingface import HubFile, HubStore
from shoal.store._operations import Progress, Transferred
from shoal.store._registry import store_for
from shoal.store._url import join_url, local_path, relative_url, scheme_of

from ._client import hub_url, use_access
from ._content import TOMBSTONES_PATH, HubFolder, manifest_path, raw_rows

__all__ = ["download"]

_AT_ONCE = 8
_STEP = 16 << 20


def download(
    repo_id: str,
    local_dir: HubFolder,
    *,
    splits: str | Iterable[str] | None = None,
    columns: str | Iterable[str] | None = None,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    at_once: int = _AT_ONCE,
) -> Dataset[Any]:
    """Fetch a dataset, or the splits and columns of it that are wanted, and open what came.

    Only the shards of ``splits`` are fetched, with their indexes. ``columns`` are fields of the shards (``jpg``,
    ``json``): of other fields nothing is fetched that is not between two that are, and the local shards have the same
    names and samples without them. The hash of each file is checked on the way. Files that are there already are not
    fetched again, so a download that was interrupted is simply made again, and one of another split adds to it.
    ``at_once`` is how many files are fetched at a time; ``progress`` is told what has come.

    ``token`` and ``endpoint``, when given, are used for the repository from now on; else those of
    ``shoal.store.configure("hf://", ...)``, HF_TOKEN and HF_ENDPOINT, or of `hf auth login`.

    Raises:
        ObjectNotFoundError: There is no such repository or revision, or nothing to be seen without a token.
        AccessDeniedError: The token may not read it.
        FieldError: A split or column is not there; it names those that are.
        ObjectExistsError: A file with another content is there, and ``overwrite`` is not set.
        ChecksumError: What came is not what the Hub says it is.
    """
    target = os.fspath(local_dir)
    if scheme_of(target) != "file":
        raise OptionError("only a local folder is downloaded to", found=target)
    use_access(repo_id, token, endpoint)
    snapshot = HubStore().snapshot(hub_url(repo_id, revision))
    root = hub_url(repo_id, snapshot.commit)
    wanted = _wanted(root, splits)
    job = _Job(root, local_path(target), overwrite, progress, at_once)
    if columns is not None:
        names = [columns] if isinstance(columns, str) else list(columns)
        job.fetch_columns(wanted, [name.removeprefix(".") for name in names])
    else:
        job.fetch_files(wanted, _files(wanted, snapshot.files, everything=splits is None))
    return Dataset(target)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The shards of the splits that are wanted, as a manifest; without one in the repository, counts are not known."""

    manifest: Manifest
    has_manifest: bool
    order: tuple[str, ...]
    """All splits that the repository has."""


def _wanted(root: str, splits: str | Iterable[str] | None) -> _Wanted:
    manifest = load_manifest(root)
    has_manifest = manifest is not None
    if manifest is None:
        manifest = _by_names(root)
    if splits is None:
        return _Wanted(manifest, has_manifest, tuple(manifest.splits))
    found = {_split_named(name, manifest) for name in ([splits] if isinstance(splits, str) else splits)}
    kept = {name: records for name, records in manifest.splits.items() if name in found}
    return _Wanted(replace(manifest, splits=kept), has_manifest, tuple(manifest.splits))


def _by_names(root: str) -> Manifest:
    """What the names of the tars say of a repository that others made."""
    sizes = {info.url: info.size for info in store_for(root).list(root)}
    splits = {
        split: tuple(ShardRecord(relative_url(url, root), -1, sizes[url]) for url in shards)
        for split, shards in locate_shards(root).urls_by_split().items()
    }
    return Manifest(splits)


def _split_named(name: str, manifest: Manifest) -> str:
    meant = split_alias(name)
    fitting = (
        [name]
        if name in manifest.splits
        else [each for each in manifest.splits if meant and split_alias(each) == meant]
    )
    if len(fitting) != 1:
        raise FieldError("no such split", expected=" or ".join(manifest.splits), found=name)
    return fitting[0]


def _files(wanted: _Wanted, there: Any, *, everything: bool) -> list[HubFile]:
    """The files of the wanted shards; with all of them also what else the repository holds, but for other tars."""
    shards = {record.path for record in wanted.manifest.shards}
    for path in shards - there.keys():
        raise ObjectNotFoundError("the repository lacks a shard of its manifest", found=path)
    ours = shards | {index_path(path) for path in shards}
    along = {"README.md", "LICENSE", TOMBSTONES_PATH}
    return [
        file
        for path, file in sorted(there.items())
        if path in ours or (path != manifest_path() and (path in along or (everything and _is_downloaded(path))))
    ]


def _is_downloaded(path: str) -> bool:
    """Whether a file that is no shard of the dataset is downloaded with it."""
    return not path.lower().endswith(SHARD_ENDINGS) and not path.startswith((".git", ".shoal/index/"))


class _Job:
    """One download: from where, to where, and how far it is."""

    def __init__(self, root: str, target: str, overwrite: bool, progress: Progress | None, at_once: int) -> None:
        self._root, self._target, self._overwrite, self._at_once = root, target, overwrite, at_once
        self._progress = progress
        self._lock = threading.Lock()
        self._done = (0, 0)
        self._in_all = (0, 0)

    def fetch_files(self, wanted: _Wanted, files: Sequence[HubFile]) -> None:
        """Whole files, several at a time; the manifest comes last."""
        self._in_all = len(files), sum(file.size for file in files)
        with ThreadPoolExecutor(self._at_once, "shoal-hub") as pool:
            work = [pool.submit(self._fetch, file) for file in files]
            try:
                for each in work:
                    each.result()
            finally:
                for each in work:
                    each.cancel()
        if wanted.has_manifest:
            commit(self._target, lambda before: _merged(before, wanted))

    def _fetch(self, file: HubFile) -> None:
        place = join_url(self._target, _inside(file.path))
        if not self._is_there(place, file):
            _copy_checked(join_url(self._root, file.path), place, file, self._tell)
            self._tell(1, 0)
        else:
            self._tell(1, file.size)

    def _is_there(self, place: str, file: HubFile) -> bool:
        if not os.path.lexists(place):
            return False
        if _hash_of(place, file) == file.oid:
            return True
        if not self._overwrite and file.path.lower().endswith(SHARD_ENDINGS):
            raise ObjectExistsError("another shard is there", found=place, hint="pass overwrite=True to replace it")
        return False

    def fetch_columns(self, wanted: _Wanted, columns: Sequence[str]) -> None:
        """Only some fields: each shard is written anew from ranges of it. What an earlier call finished stays."""
        manifest = wanted.manifest
        self._in_all = len(manifest.shards), 0
        done = {record.path: record for record in (load_manifest(self._target) or Manifest({})).shards}
        _check_columns(manifest, columns)
        for split, records in manifest.splits.items():
            for record in records:
                held = done.get(record.path)
                if held is None or set(held.fields) != set(columns) & set(record.fields or columns):
                    self._fetch_columns(split, record, manifest, columns)
                self._tell(1, 0)

    def _fetch_columns(self, split: str, record: ShardRecord, manifest: Manifest, columns: Sequence[str]) -> None:
        url = join_url(self._root, record.path)
        known = record.samples if record.samples >= 0 else None
        sidecar = join_url(self._root, index_path(record.path)) if known is not None else None
        source = ShardSource([ShardRef(url, known, sidecar, manifest.rule)], rule=manifest.rule)
        place = join_url(self._target, record.path)
        if not self._overwrite and os.path.lexists(place):
            raise ObjectExistsError("another shard is there", found=place, hint="pass overwrite=True to replace it")
        with closing(source):
            mean = record.bytes / max(len(source), 1)
            rows = raw_rows(source, RowView.whole(len(source)), _present(source, columns), mean)
            compression = fitting_compression(place, None)
            index = write_shard(
                place, ((row["__key__"], row) for row in rows), compression=compression, metadata=manifest.metadata
            )
        written = record_of(record.path, index)

        def merged(before: Manifest) -> Manifest:
            metadata = {**before.metadata, **manifest.metadata}
            return merge_shards(replace(before, metadata=metadata), split, [written])

        commit(self._target, merged)

    def _tell(self, files: int, size: int) -> None:
        with self._lock:
            self._done = self._done[0] + files, self._done[1] + size
            if self._progress is not None:
                self._progress(Transferred(*self._done, *self._in_all))


def _inside(path: str) -> str:
    """A name from a server must not lead out of the folder. Raises UnsafeNameError."""
    parts = path.replace("\\", "/").split("/")
    if ".." in parts or "" in parts or os.path.isabs(path) or (os.name == "nt" and ":" in path):
        raise UnsafeNameError("a name in the repository leads out of the folder", found=repr(path))
    return path


def _check_columns(manifest: Manifest, columns: Sequence[str]) -> None:
    known = list(dict.fromkeys(name for record in manifest.shards for name in record.fields))
    for name in columns:
        if known and name not in known:
            hint = "the fields of typed samples lie in one payload, which comes whole" if known == ["msgpack"] else None
            raise FieldError("no such column", expected=" or ".join(known), found=name, hint=hint)


def _present(source: ShardSource, columns: Sequence[str]) -> list[str]:
    """The columns that a shard has; raises FieldError when it has none of them."""
    found = [name for name in columns if name in source.fields]
    if not found:
        raise FieldError("no such column", expected=" or ".join(source.fields), found=", ".join(columns))
    return found


def _merged(before: Manifest, wanted: _Wanted) -> Manifest:
    """What is there now: these shards, and those that an earlier download left; splits in the repository's order."""
    merged = replace(wanted.manifest, splits=dict(before.splits))
    for split, records in wanted.manifest.splits.items():
        merged = merge_shards(merged, split, records)
    names = [name for name in dict.fromkeys([*wanted.order, *merged.splits]) if name in merged.splits]
    return replace(merged, splits={name: merged.splits[name] for name in names})


def _copy_checked(url: str, place: str, file: HubFile, tell: Any) -> None:
    """Copy a file; it appears under its name whole and with the hash that the hub names, or not at all."""
    writer, total = store_for(place).create(place), _hasher(file)
    try:
        with closing(store_for(url).open(url)) as reader:
            for start in range(0, file.size, _STEP):
                data = reader.read(start, min(start + _STEP, file.size))
                total.update(data)
                writer.write(data)
                tell(0, len(data))
        if total.hexdigest() != file.oid:
            raise ChecksumError(
                "a file is not what the hub says", expected=file.oid, found=total.hexdigest(), shard=url
            )
        writer.commit()
    except BaseException:
        writer.abort()
        raise


def _hasher(file: HubFile) -> Any:
    """Large files have a sha256 there; others go by the name that git gives their content."""
    if file.is_large:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def _hash_of(place: str, file: HubFile) -> str | None:
    if os.path.getsize(place) != file.size:
        return None
    total = _hasher(file)
    with open(place, "rb") as opened:
        while data := opened.read(_STEP):
            total.update(data)
    return str(total.hexdigest())
