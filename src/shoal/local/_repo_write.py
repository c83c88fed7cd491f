"""Writing a folder of a repository: the data, and the lease of the process that writes it.

Each folder has a small document that is written before anything else in it. It names the index that the data is for,
and the process that writes it. Data without an entry is garbage once its writer is gone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from shoal.dataset._dataset import Dataset
from shoal.dataset._write import write_samples
from shoal.errors import ObjectNotFoundError, OptionError, StoreError, WriteError
from shoal.schema._json_schema import schema_from_json, schema_to_json
from shoal.shard._discovery import SHARD_ENDINGS, locate_shards
from shoal.shard._journal import commit
from shoal.shard._manifest import Manifest, ShardRecord, load_manifest
from shoal.shard._open_shards import fitting_index, index_shard
from shoal.shard._stored_rows import save_rows
from shoal.shard._table import ShardRef
from shoal.store._base import ObjectWriter
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._cid import data_cid
from ._describe import DataDescription, to_absolute
from ._entry import Storage, StoredShard

__all__ = [
    "OWNER",
    "Owner",
    "Progress",
    "begin_lease",
    "condemn",
    "end_lease",
    "is_writing",
    "mark_lease_done",
    "owner_url",
    "read_owner",
    "renew_lease",
    "write_data",
    "write_owner",
]

Progress = Callable[[int], None]
"""Called with each number of bytes, or of samples, that is done."""
_PART_BYTES = 4 << 20
_RENEW_INTERVAL_S = 600.0
"""Much less than the patience of `Repo.gc` with writers on other machines."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One call of `write_data`: the folder, the options and the callbacks."""

    folder: str
    options: Mapping[str, Any]
    progress: Progress
    renew: Callable[[], None]
    """Called from time to time, and after each shard that is copied, to renew the lease of a long job."""


def write_data(
    data: Any,
    storage: Storage,
    *,
    options: Mapping[str, Any],
    progress: Progress | None = None,
    renew: Callable[[], None] = lambda: None,
) -> DataDescription:
    """Write samples, a dataset, or several by split, below the storage's root, with a manifest at the end.

    Raises WriteError when there are no samples.
    """
    task = _Task(storage.root, options, progress or (lambda done: None), renew)
    if isinstance(data, (str, os.PathLike)):
        data = Dataset(to_absolute(data))
    parts = data if isinstance(data, Mapping) else {None: data}
    if not parts or not all(name is None or isinstance(name, str) for name in parts):
        raise OptionError("splits have names", expected="a mapping from names to samples", found=repr(parts)[:80])
    for split, part in parts.items():
        _write_part(part, split, task)
        renew()
    return _describe_written(storage)


def _write_part(part: Any, split: str | None, task: _Task) -> None:
    refs = _whole_shards(part) if isinstance(part, Dataset) and not task.options else None
    if refs is not None:
        _copy_shards(part, refs, split, task)
    elif isinstance(part, Iterable):
        _write_samples(part, split, task)
    else:
        expected = "samples, a Dataset, or a mapping of these by split"
        raise OptionError("this cannot be written", expected=expected, found=type(part).__name__)


def _write_samples(samples: Iterable[Any], split: str | None, task: _Task) -> None:
    pattern = join_url(task.folder, f"{_file_name('shard' if split is None else split)}-%06d.tar")
    write_samples(
        _with_progress(samples, task), pattern, split=split or "train", hashed=True, durable=True, **task.options
    )


def _file_name(split: str) -> str:
    if not split.replace("-", "").replace("_", "").isalnum():
        raise OptionError("this is no name for a split", expected="letters, digits, '-' and '_'", found=repr(split))
    return split


def _with_progress(samples: Iterable[Any], task: _Task) -> Iterable[Any]:
    renewed = time.monotonic()
    for sample in samples:
        yield sample
        task.progress(1)
        if time.monotonic() - renewed > _RENEW_INTERVAL_S:
            task.renew()
            renewed = time.monotonic()


def _whole_shards(dataset: Dataset[Any]) -> tuple[ShardRef, ...] | None:
    """Return the tars of a dataset that is exactly their content; else None."""
    description = dataset.described
    path: Any = description.path
    is_path = isinstance(path, (str, os.PathLike)) or (
        isinstance(path, tuple) and all(isinstance(one, (str, os.PathLike)) for one in path)
    )
    plain = not description.stages and description.fields is None and description.format in (None, "webdataset")
    if not is_path or not plain or not dataset.is_whole:
        return None
    shards = getattr(dataset.source, "shards", None)
    if not isinstance(shards, tuple) or not all(isinstance(ref, ShardRef) for ref in shards):
        return None
    return shards


def _copy_shards(dataset: Dataset[Any], refs: tuple[ShardRef, ...], split: str | None, task: _Task) -> None:
    """Copy shards under new names, each with its index; then write the manifest."""
    splits = _splits_of(dataset, refs) if split is None else {split: list(refs)}
    copied: dict[str, tuple[ShardRecord, ...]] = {}
    for name, members in splits.items():
        stem = "shard" if split is None and len(splits) == 1 else _file_name(name)
        copied[name] = tuple(
            _copy_shard(ref, f"{stem}-{number:06d}.{_ending(ref)}", task) for number, ref in enumerate(members)
        )
    source, document = _manifest_of(dataset), _schema_document(dataset)
    words = {} if source is None else source.metadata

    def merged(before: Manifest) -> Manifest:
        metadata = {**before.metadata, **words}
        return Manifest({**before.splits, **copied}, metadata, document or before.schema, refs[0].rule)

    commit(task.folder, merged)


def _manifest_of(dataset: Dataset[Any]) -> Manifest | None:
    manifest = getattr(dataset.source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None


def _schema_document(dataset: Dataset[Any]) -> dict[str, Any] | None:
    """Return the schema as JSON, from the dataset's manifest if it has one."""
    manifest = _manifest_of(dataset)
    if manifest is not None and manifest.schema is not None:
        return manifest.schema
    return None if dataset.schema is None else schema_to_json(dataset.schema)


def _ending(ref: ShardRef) -> str:
    """Return the file extension, which names the compression."""
    return next((ending[1:] for ending in SHARD_ENDINGS if ref.url.lower().endswith(ending)), "tar")


def _splits_of(dataset: Dataset[Any], refs: tuple[ShardRef, ...]) -> dict[str, list[ShardRef]]:
    path: Any = dataset.described.path
    located = locate_shards(path, dataset.described.options.split)
    by_url = {ref.url: ref for ref in refs}
    splits = {name: [by_url[url] for url in urls if url in by_url] for name, urls in located.urls_by_split().items()}
    return {name: members for name, members in splits.items() if members}


def _copy_shard(ref: ShardRef, name: str, task: _Task) -> ShardRecord:
    target = join_url(task.folder, name)
    digest, size = _copy_object(ref.url, target, task.progress)
    with closing(store_for(target).open(target)) as reader:
        kept = None if ref.sidecar is None else fitting_index(ref.sidecar, reader)
        index = index_shard(reader, ref.rule) if kept is None else kept
    save_rows(index, task.folder, name)
    keys = index.keys
    first, last = (keys[0].as_py(), keys[-1].as_py()) if len(keys) else (None, None)
    task.renew()
    return ShardRecord(name, len(keys), size, first, last, index.facts.compression, digest)


def _copy_object(url: str, target: str, progress: Progress) -> tuple[str, int]:
    """Copy an object; return its sha256 and size."""
    digest = hashlib.sha256()
    writer: ObjectWriter = store_for(target).create(target)
    try:
        with closing(store_for(url).open(url)) as reader:
            size = reader.info.size
            for start in range(0, size, _PART_BYTES):
                data = reader.read(start, min(start + _PART_BYTES, size))
                digest.update(data)
                writer.write(data)
                progress(len(data))
        writer.commit(durable=True)
    except BaseException:
        writer.abort()
        raise
    return digest.hexdigest(), size


def _describe_written(storage: Storage) -> DataDescription:
    """Return the description of what was written, from the manifest."""
    manifest = load_manifest(storage.root)
    if manifest is None or not manifest.shards:
        raise WriteError("there are no samples to write", expected="at least one")
    shards = tuple(
        StoredShard(one.path, split, one.samples, one.bytes, one.sha256)
        for split, records in manifest.splits.items()
        for one in records
    )
    schema = None if manifest.schema is None else schema_from_json(manifest.schema)
    cid = data_cid([(shard.split, str(shard.sha256)) for shard in shards])
    return DataDescription(cid, replace(storage, has_manifest=True), shards, schema)


OWNER = ".shoal/owner.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that wrote a folder, and the index it wrote for."""

    index: str
    host: str
    process: int
    started: str
    """When the process started: process ids are reused."""
    renewed_at: float
    state: Literal["writing", "done", "condemned"] = "writing"


def owner_url(folder: str) -> str:
    """Return the URL of a folder's owner document."""
    return join_url(folder, OWNER)


def _this_owner(index: str) -> Owner:
    return Owner(index, _this_host(), os.getpid(), _start_time(os.getpid()) or "", time.time())


def write_owner(folder: str, index: str) -> None:
    """Record this process as the writer of a folder."""
    _write_owner_document(folder, _this_owner(index))


def _write_owner_document(folder: str, owner: Owner) -> None:
    url = owner_url(folder)
    store_for(url).write_all(url, msgspec.json.encode(owner))


def mark_lease_done(folder: str, index: str) -> None:
    """Mark a folder as complete and recorded: from now on it is garbage if it has no entry."""
    with contextlib.suppress(StoreError):  # it is then taken for unrenew, until this process ends
        _write_owner_document(folder, replace(_this_owner(index), state="done"))


def condemn(folder: str, owner: Owner) -> None:
    """Mark a folder as being removed, so that its writer stops."""
    _write_owner_document(folder, replace(owner, state="condemned"))


def read_owner(folder: str) -> Owner | None:
    """Return the owner of a folder; None if it has no owner document."""
    url = owner_url(folder)
    try:
        return msgspec.json.decode(store_for(url).read_all(url), type=Owner)
    except (ObjectNotFoundError, msgspec.DecodeError):
        return None


@functools.cache
def _this_host() -> str:
    """Return an id of this machine since its last boot; a container with its own process ids has another one."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        facts.append(file.read().strip())
    with contextlib.suppress(OSError):
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _start_time(process: int) -> str | None:
    """Return when a process started, in kernel ticks; None if there is no such process, "" if that is unknown."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _is_alive(process)
    except OSError:
        return ""
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()  # a zombie writes nothing


def _is_alive(process: int) -> str | None:
    if os.name == "nt":
        return ""  # os.kill would end the process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""


_writing: set[str] = set()
_lock = threading.Lock()


def begin_lease(folder: str, index: str) -> None:
    """Record, in this process and in the folder, that this process writes it."""
    with _lock:
        _writing.add(folder)
    write_owner(folder, index)


def end_lease(folder: str) -> None:
    """End the lease. Call only when the transaction has ended; until then the entry may still be committed."""
    with _lock:
        _writing.discard(folder)


def is_writing(folder: str, owner: Owner, patience: float) -> bool:
    """Whether the writer of a folder may be alive; one on another machine is taken to be for ``patience`` seconds."""
    if owner.state != "writing":
        return False
    if owner.host != _this_host():
        return time.time() - owner.renewed_at < patience
    if owner.process == os.getpid():
        with _lock:
            return folder in _writing
    started = _start_time(owner.process)
    return started is not None and started in ("", owner.started)


def renew_lease(folder: str, index: str) -> None:
    """Renew the lease. Raises StoreError if the folder was removed as garbage in the meantime."""
    owner = read_owner(folder)
    if owner is None or owner.state == "condemned":
        raise StoreError(
            "the folder was removed while it was written",
            found=folder,
            hint="run gc with more patience: its writer took longer than that",
        )
    write_owner(folder, index)
