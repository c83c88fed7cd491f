"""`Repo`: insert, verify and collect garbage, with leases for writers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from shoal.dataset import Dataset, write_samples
from shoal.errors import CatalogConnectionError, ObjectNotFoundError, OptionError, ShoalError, StoreError, WriteError
from shoal.schema import Schema, schema_from_json, schema_to_json
from shoal.shard import (
    SHARD_ENDINGS,
    Manifest,
    ShardRecord,
    ShardRef,
    fitting_index,
    index_shard,
    index_url,
    load_manifest,
    locate_shards,
    save_index,
    shards_by_split,
    update_manifest,
)
from shoal.store import ObjectWriter, join_url, scheme_of, store_for

from . import _datasets
from ._credentials import CredentialsLike, check_no_secret, credentials_of, reach
from ._entry import DataDescription, Entry, Storage, StoredShard, data_cid, home_of, settled
from ._index import LocalIndex
from ._refs import check_name

__all__ = ["Garbage", "Repo", "ShardCheck", "condemn", "read_owner", "verify_entry", "write_owner"]

Progress = Callable[[int], None]
"""Called with each number of bytes, or of samples, that is done."""


# --------------------------------- repo: datasets' bytes in a folder or a bucket, with an index that says what they are


_PATIENCE = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Garbage:
    """What a `Repo.gc` found: folders that no entry stands for."""

    removed: tuple[str, ...]
    """Gone; or, when it was only a look, those that would be."""
    objects: int
    bytes: int
    in_progress: tuple[str, ...] = ()
    """Whose writer may still be at work."""
    foreign: tuple[str, ...] = ()
    """Of another index, which has to be asked about them."""


class Repo:
    """Keeps datasets: their shards in a folder or a bucket, their entries in an index.

    ``Repo("folder")``, ``Repo("s3://bucket/prefix")``, or ``Repo(s3_credentials=..., bucket=...)``. The credentials are
    a mapping or the path of a ``.env`` file, with AWS_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION;
    what is not among them comes from the environment. They stay in this process: an entry keeps endpoint, region and
    bucket. Without ``index`` it is ``LocalIndex()``.

    Example:
        >>> import shoal
        >>> from shoal.local import LocalIndex, Repo
        >>> @shoal.packable
        ... class Pet:
        ...     name: str
        ...     legs: int
        >>> repo = Repo("pets-repo", index=LocalIndex("pets.db"))
        >>> entry = repo.insert([Pet("cat", 4), Pet("hen", 2)], name="pets")
        >>> entry.schema_ref
        'shoal://local/schema/Pet@1.0.0'
        >>> repo.index.get_dataset("pets").open()[1].legs
        2
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None = None,
        *,
        s3_credentials: CredentialsLike | None = None,
        bucket: str | None = None,
        prefix: str = "",
        index: LocalIndex | None = None,
    ) -> None:
        if (location is None) == (bucket is None):
            raise OptionError("a repository is in one place", expected="a folder or URL, or bucket=")
        self._credentials = credentials_of(s3_credentials)
        self.root = _root(location, bucket, prefix)
        if scheme_of(self.root) not in ("s3", "s3a") and s3_credentials is not None:
            raise OptionError("S3 credentials are for a bucket", expected="bucket= or s3://", found=self.root)
        self.index = LocalIndex() if index is None else index

    def __repr__(self) -> str:
        return f"<Repo {self.root} with {self.index!r}>"

    # ------------------------------------------------------------------------------------------------------- writing

    def insert(
        self,
        samples: Any,
        *,
        name: str,
        version: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Entry:
        """Write a dataset and record it: samples, a :class:`shoal.Dataset`, a path, or a mapping of these by split.

        Whole tar shards are copied byte by byte; anything else is written sample by sample, with ``options`` of
        :func:`shoal.write_samples` (``max_samples``, ``max_bytes``, ``compression``). The bytes come first, then entry
        and schema in one step: a crash leaves no entry without data, only bytes that ``gc`` removes. Data that this
        repository has already is kept once. ``progress`` is called with the samples, or the bytes, of each step.

        Raises OptionError, SchemaError, WriteError or CatalogConflictError, and then nothing stays.
        """
        said = self.index._said(description, tags, metadata, version)  # noqa: SLF001 - one package
        spelled = check_name(name)
        mark = self._index_id
        folder = self._new_folder(spelled, mark)
        with self._removed_on_failure(folder):
            written = self._write(samples, folder, options, lambda: renew_lease(folder, mark), progress)
        draft = _datasets.EntryDraft(spelled, written.cid, written.storage, written.shards, self._place, **said)
        entry = self._recorded(draft, written.schema, folder)
        if entry.storage.root != folder:
            entry = self._settle(entry, draft, folder)
        if entry.storage.root == folder:
            mark_lease_done(folder, mark)
        end_lease(folder)
        return entry

    def _recorded(self, draft: _datasets.EntryDraft, schema: Schema | None, folder: str) -> Entry:
        """The entry, once it stands. A refusal takes the data away.

        Any other failure, a lost connection or Ctrl-C, leaves open whether the entry stands: the data stays, and is
        taken for work in progress while this process lives.
        """
        try:
            return self.index._record(draft, schema, None)  # noqa: SLF001 - one package
        except CatalogConnectionError:
            raise
        except ShoalError:
            self._drop(folder)
            raise

    def _settle(self, entry: Entry, draft: _datasets.EntryDraft, folder: str) -> Entry:
        """Equal data is here already: keep that, unless it is damaged, and let go of what was just written."""
        if _is_there(entry):
            _remove(folder)
            return entry
        repaired = self.index._backend.transact(lambda change: _datasets.move_data(change, draft))  # noqa: SLF001
        return replace(entry, storage=repaired.storage, shards=repaired.shards)

    def _new_folder(self, name: str, mark: str) -> str:
        """A folder of one's own, marked as such before anything else is in it."""
        self._reach()
        folder = join_url(self.root, f"{_slug(name)}-{secrets.token_hex(10)}")
        begin_lease(folder, mark)
        return folder

    @contextlib.contextmanager
    def _removed_on_failure(self, folder: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._drop(folder)
            raise

    def _drop(self, folder: str) -> None:
        with contextlib.suppress(StoreError):  # what cannot be removed now is garbage for gc
            _remove(folder)
        end_lease(folder)

    def _write(
        self,
        samples: Any,
        folder: str,
        options: Mapping[str, Any],
        renew: Callable[[], None],
        progress: Progress | None = None,
    ) -> DataDescription:
        """The data in the folder; ``renew`` says now and then, and at the end, that its writer lives."""
        return write_data(samples, self._home(folder), options=options, progress=progress, finished=renew)

    def _home(self, folder: str) -> Storage:
        home = home_of(folder, has_manifest=False)
        said = self._credentials
        return replace(home, endpoint=said.endpoint or home.endpoint, region=said.region or home.region)

    @property
    def _place(self) -> str:
        return f"{self._home(self.root).endpoint or ''} {self.root}"

    @property
    def _index_id(self) -> str:
        return self.index._id  # noqa: SLF001 - one package

    def _reach(self) -> None:
        reach(self.root, None, None, self._credentials)

    # ---------------------------------------------------------------------------------------------- AbstractDataStore

    def write_shards(self, ds: Any, *, prefix: str, **options: Any) -> list[str]:
        """Write a dataset's samples as shards in a new folder below ``prefix``; returns their URLs.

        They are garbage until an entry stands for them: ``insert`` does both.
        """
        mark = self._index_id
        folder = self._new_folder(check_name(prefix), mark)
        with self._removed_on_failure(folder):
            written = self._write(ds, folder, options, lambda: renew_lease(folder, mark))
        end_lease(folder)
        return [written.storage.url(shard.path) for shard in written.shards]

    def read_url(self, url: str, /) -> str:
        """The URL itself, once this process can read it."""
        self._reach()
        return url

    def supports_streaming(self) -> bool:
        """Parts of a shard can be read."""
        return True

    # -------------------------------------------------------------------------------------------------- looking after

    def entries(self) -> Iterator[Entry]:
        """Every version in the index whose bytes are in this repository."""
        for newest in self.index.list_datasets():
            for entry in self.index.history(newest.name):
                if self._holds(entry):
                    yield entry

    def _holds(self, entry: Entry) -> bool:
        return (
            entry.storage.root.startswith(f"{self.root}/") and entry.storage.endpoint == self._home(self.root).endpoint
        )

    def verify(self, ref: str | None = None, *, progress: Progress | None = None) -> Iterator[ShardCheck]:
        """Read every byte of an entry, or of all entries here, and compare sizes and checksums; one result a shard.

        ``progress`` is called with the bytes of each step. Data that several entries stand for is read once.
        """
        self._reach()
        seen: set[str] = set()
        for entry in self.entries() if ref is None else [self.index.get_dataset(ref)]:
            if entry.storage.root not in seen:
                seen.add(entry.storage.root)
                yield from verify_entry(entry, progress=progress)

    def gc(self, *, dry_run: bool = False, patience: float = _PATIENCE) -> Garbage:
        """Remove what no entry stands for: of inserts that were interrupted, and of entries that were deleted.

        Data whose writer may still be at work stays: one of this machine while it lives, one of another for
        ``patience`` seconds after it last said so. Data of other indexes in the same place stays too.
        """
        self._reach()
        folders = self._folders()
        # Looked at before the entries are: whoever was done by then has recorded what he wrote.
        owners = {folder: owner for folder in folders if (owner := read_owner(folder)) is not None}
        busy = {folder for folder, owner in owners.items() if is_writing(folder, owner, patience)}
        used = _datasets.roots_in_use(self.index._backend)  # noqa: SLF001 - one package
        unused = {folder: owner for folder, owner in owners.items() if folder not in used}
        foreign = tuple(folder for folder, owner in unused.items() if owner.index != self._index_id)
        gone = {folder: owner for folder, owner in unused.items() if folder not in busy and folder not in foreign}
        sizes = [self._removed(folder, owner, dry_run) for folder, owner in gone.items()]
        return Garbage(
            tuple(gone),
            sum(objects for objects, _ in sizes),
            sum(size for _, size in sizes),
            tuple(folder for folder in unused if folder in busy and folder not in foreign),
            foreign,
        )

    def _folders(self) -> list[str]:
        """Every folder that an insert made."""
        mark = f"/{OWNER}"
        urls = (info.url for info in store_for(self.root).list(self.root))
        return [url.removesuffix(mark) for url in urls if url.endswith(mark)]

    def _removed(self, folder: str, owner: Owner, dry_run: bool) -> tuple[int, int]:
        """How many objects there were, and their bytes."""
        infos = list(store_for(folder).list(folder))
        if not dry_run:
            condemn(folder, owner)
            _remove(folder)
        return len(infos), sum(info.size for info in infos)


def _root(location: str | os.PathLike[str] | None, bucket: str | None, prefix: str) -> str:
    if bucket is not None:
        if "/" in bucket or not bucket:
            raise OptionError("this is no bucket", expected="its name alone; prefix= for a folder in it", found=bucket)
        return f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
    if prefix:
        raise OptionError("prefix= goes with bucket=", found=prefix)
    found = settled(location)
    return check_no_secret(str(found)).rstrip("/")


def _is_there(entry: Entry) -> bool:
    """Whether an entry's shards are there, of the size that they should have."""
    try:
        return all(
            store_for(url).info(url).size == shard.bytes
            for url, shard in zip(entry.data_urls, entry.shards, strict=True)
        )
    except StoreError:
        return False


def _remove(folder: str) -> None:
    """Remove a folder, and who owns it last: what is left of it when this is interrupted is found again."""
    store = store_for(folder)
    owner = owner_url(folder)
    for info in list(store.list(folder)):
        if info.url != owner:
            store.delete(info.url)
    store.delete(owner)
    if scheme_of(folder) == "file":
        _remove_empty(folder)


def _remove_empty(folder: str) -> None:
    """An object store has no folders; a disk keeps them when they are empty."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _slug(name: str) -> str:
    """A name as the beginning of a folder's: for people who look; what tells folders apart comes after it.

    Example:
        >>> _slug("team/Größe")
        'team--Groe'
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return plain.replace("/", "--")[:80] or "dataset"


# ----------------------------------------------------------------------------------- data into a folder of a repository


_PART = 4 << 20
_RENEW_SECONDS = 600.0
"""Far less than the patience that gc has with writers on other machines."""


@dataclass(frozen=True, slots=True)
class _Task:
    """Where data goes, how, and who hears of it."""

    folder: str
    options: Mapping[str, Any]
    tell: Progress
    finished: Callable[[], None]
    """Called now and then, and after each shard that is copied, so that a long job can show that it lives."""


def write_data(
    data: Any,
    storage: Storage,
    *,
    options: Mapping[str, Any],
    progress: Progress | None = None,
    finished: Callable[[], None] = lambda: None,
) -> DataDescription:
    """Write samples, a dataset, or several by split, below the storage's root, with a manifest at the end.

    Raises WriteError when there are no samples.
    """
    task = _Task(storage.root, options, progress or (lambda done: None), finished)
    if isinstance(data, (str, os.PathLike)):
        data = Dataset(settled(data))
    parts = data if isinstance(data, Mapping) else {None: data}
    if not parts or not all(name is None or isinstance(name, str) for name in parts):
        raise OptionError("splits have names", expected="a mapping from names to samples", found=repr(parts)[:80])
    for split, part in parts.items():
        _write_part(part, split, task)
        finished()
    return _described(storage)


def _write_part(part: Any, split: str | None, task: _Task) -> None:
    refs = _whole_shards(part) if isinstance(part, Dataset) and not task.options else None
    if refs is not None:
        _copy_shards(part, refs, split, task)
    elif isinstance(part, Iterable):
        _write_samples(part, split, task)
    else:
        expected = "samples, a Dataset, or a mapping of these by split"
        raise OptionError("this cannot be written", expected=expected, found=type(part).__name__)


# ------------------------------------------------------------------------------------------------------------- samples


def _write_samples(samples: Iterable[Any], split: str | None, task: _Task) -> None:
    name = "shard" if split is None else split
    counted = _counted(samples, task)
    pattern = join_url(task.folder, f"{_file_name(name)}-%06d.tar")
    write_samples(counted, pattern, split=split or "train", hashed=True, durable=True, **task.options)


def _file_name(split: str) -> str:
    if not split.replace("-", "").replace("_", "").isalnum():
        raise OptionError("this is no name for a split", expected="letters, digits, '-' and '_'", found=repr(split))
    return split


def _counted(samples: Iterable[Any], task: _Task) -> Iterable[Any]:
    renewed = time.monotonic()
    for sample in samples:
        yield sample
        task.tell(1)
        if time.monotonic() - renewed > _RENEW_SECONDS:
            task.finished()
            renewed = time.monotonic()


# -------------------------------------------------------------------------------------------------------- whole shards


def _whole_shards(dataset: Dataset[Any]) -> tuple[ShardRef, ...] | None:
    """The tars that a dataset is all of; None where it is less, more or something else."""
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
    """The same bytes under names of ours, each with its index; then the manifest."""
    splits = _splits_of(dataset, refs) if split is None else {split: list(refs)}
    copied: dict[str, tuple[ShardRecord, ...]] = {}
    for name, members in splits.items():
        stem = "shard" if split is None and len(splits) == 1 else _file_name(name)
        copied[name] = tuple(
            _copy_shard(ref, f"{stem}-{number:06d}.{_ending(ref)}", task) for number, ref in enumerate(members)
        )
    source, document = _manifest_of(dataset), _document_of(dataset)
    words = {} if source is None else source.metadata

    def merged(before: Manifest) -> Manifest:
        metadata = {**before.metadata, **words}
        return Manifest({**before.splits, **copied}, metadata, document or before.schema, refs[0].rule)

    update_manifest(task.folder, merged)


def _manifest_of(dataset: Dataset[Any]) -> Manifest | None:
    manifest = getattr(dataset.source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None


def _document_of(dataset: Dataset[Any]) -> dict[str, Any] | None:
    """The schema, as the dataset's own manifest has it where it has one."""
    manifest = _manifest_of(dataset)
    if manifest is not None and manifest.schema is not None:
        return manifest.schema
    return None if dataset.schema is None else schema_to_json(dataset.schema)


def _ending(ref: ShardRef) -> str:
    """As the shard is called: it says how it is compressed."""
    return next((ending[1:] for ending in SHARD_ENDINGS if ref.url.lower().endswith(ending)), "tar")


def _splits_of(dataset: Dataset[Any], refs: tuple[ShardRef, ...]) -> dict[str, list[ShardRef]]:
    path: Any = dataset.described.path
    located = locate_shards(path, dataset.described.options.split)
    by_url = {ref.url: ref for ref in refs}
    if located.manifest is not None and located.root is not None:
        listed = {
            name: [by_url[url] for one in records if (url := join_url(located.root, one.path)) in by_url]
            for name, records in located.manifest.splits.items()
        }
        return {name: members for name, members in listed.items() if members}
    return {name: [by_url[url] for url in urls] for name, urls in shards_by_split(list(by_url), located.root).items()}


def _copy_shard(ref: ShardRef, name: str, task: _Task) -> ShardRecord:
    target = join_url(task.folder, name)
    digest, size = _copied(ref.url, target, task.tell)
    with closing(store_for(target).open(target)) as reader:
        kept = None if ref.sidecar is None else fitting_index(ref.sidecar, reader)
        index = index_shard(reader, ref.rule) if kept is None else kept
    save_index(index, index_url(task.folder, name))
    keys = index.keys
    first, last = (keys[0].as_py(), keys[-1].as_py()) if len(keys) else (None, None)
    task.finished()
    return ShardRecord(name, len(keys), size, first, last, index.facts.compression, digest)


def _copied(url: str, target: str, tell: Progress) -> tuple[str, int]:
    """Copy an object and hash it on the way."""
    digest = hashlib.sha256()
    writer: ObjectWriter = store_for(target).create(target)
    try:
        with closing(store_for(url).open(url)) as reader:
            size = reader.info.size
            for start in range(0, size, _PART):
                data = reader.read(start, min(start + _PART, size))
                digest.update(data)
                writer.write(data)
                tell(len(data))
        writer.commit(durable=True)
    except BaseException:
        writer.abort()
        raise
    return digest.hexdigest(), size


# ------------------------------------------------------------------------------------------------------------- outcome


def _described(storage: Storage) -> DataDescription:
    """What the manifest says of what was written."""
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


# ----------------------------------------------------------- whether the bytes of an entry are those that were recorded


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """What was found of one shard."""

    reference: str
    """The entry it belongs to."""
    url: str
    bytes: int
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether its bytes are those that were recorded."""
        return self.problem is None


def verify_entry(
    entry: Entry, *, credentials: CredentialsLike | None = None, progress: Progress | None = None
) -> Iterator[ShardCheck]:
    """Read every shard of an entry and compare size and checksum. Nothing is raised for damage.

    Example:
        >>> from shoal.local import LocalIndex, Repo, verify_entry
        >>> repo = Repo("memory://doc/verify-entry", index=LocalIndex("memory://"))
        >>> entry = repo.insert([{"txt": "a cat"}], name="pets")
        >>> [check.ok for check in verify_entry(entry)]
        [True]
    """
    entry.reach(credentials)
    for shard in entry.shards:
        url = entry.storage.url(shard.path)
        yield ShardCheck(entry.reference, url, shard.bytes, _problem(url, shard, progress or (lambda done: None)))


def _problem(url: str, shard: StoredShard, tell: Progress) -> str | None:
    try:
        size, digest = _read(url, tell)
    except StoreError as error:
        return str(error)
    if size != shard.bytes:
        return f"the size is another: expected {shard.bytes}, found {size}"
    if shard.sha256 is not None and digest != shard.sha256:
        return f"the bytes are others: expected sha256 {shard.sha256}, found {digest}"
    return None


def _read(url: str, tell: Progress) -> tuple[int, str]:
    digest = hashlib.sha256()
    with closing(store_for(url).open(url)) as reader:
        for start in range(0, reader.info.size, _PART):
            data = reader.read(start, min(start + _PART, reader.info.size))
            digest.update(data)
            tell(len(data))
        return reader.info.size, digest.hexdigest()


# ------------------------------------------------------------- who is writing, or has written, a folder of a repository


# Each folder of a repository has a small document that is written before anything else in it. It names the index that
# the data is for, and the process that writes it. Data that no entry stands for is garbage when its writer is gone.

OWNER = ".shoal/owner.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who wrote a folder, for which index."""

    index: str
    host: str
    process: int
    started: str
    """When the process began: a number may be given to another one later."""
    renewed_at: float
    state: Literal["writing", "done", "condemned"] = "writing"


def owner_url(folder: str) -> str:
    """Where a folder's owner is written."""
    return join_url(folder, OWNER)


def this_owner(index: str) -> Owner:
    """This process, as an owner."""
    return Owner(index, this_host(), os.getpid(), _started(os.getpid()) or "", time.time())


def write_owner(folder: str, index: str) -> None:
    """Say that this process writes the folder."""
    _put(folder, this_owner(index))


def _put(folder: str, owner: Owner) -> None:
    url = owner_url(folder)
    store_for(url).write_all(url, msgspec.json.encode(owner))


def mark_lease_done(folder: str, index: str) -> None:
    """Say that the folder is whole and recorded: from now on it is garbage when no entry stands for it."""
    with contextlib.suppress(StoreError):  # it is then taken for unfinished, until this process ends
        _put(folder, replace(this_owner(index), state="done"))


def condemn(folder: str, owner: Owner) -> None:
    """Say that a folder is being removed, so that nobody finishes it."""
    _put(folder, replace(owner, state="condemned"))


def read_owner(folder: str) -> Owner | None:
    """Who wrote a folder; None where nobody says so."""
    url = owner_url(folder)
    try:
        return msgspec.json.decode(store_for(url).read_all(url), type=Owner)
    except (ObjectNotFoundError, msgspec.DecodeError):
        return None


@functools.cache
def this_host() -> str:
    """This machine since it was last started; a container with processes of its own is another machine."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        facts.append(file.read().strip())
    with contextlib.suppress(OSError):
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _started(process: int) -> str | None:
    """When a process began, in the kernel's own ticks; None when there is no such process, "" when nobody knows."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _alive(process)
    except OSError:
        return ""
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()  # a zombie writes nothing


def _alive(process: int) -> str | None:
    if os.name == "nt":
        return ""  # to ask there is to end the process
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
    """Say, here and in the folder, that this process writes it."""
    with _lock:
        _writing.add(folder)
    write_owner(folder, index)


def end_lease(folder: str) -> None:
    """This process is done with the folder. Not to be said while the last word to the database may still arrive."""
    with _lock:
        _writing.discard(folder)


def is_writing(folder: str, owner: Owner, patience: float) -> bool:
    """Whether the writer of a folder may still be at work; one on another machine for ``patience`` seconds more."""
    if owner.state != "writing":
        return False
    if owner.host != this_host():
        return time.time() - owner.renewed_at < patience
    if owner.process == os.getpid():
        with _lock:
            return folder in _writing
    started = _started(owner.process)
    return started is not None and started in ("", owner.started)


def renew_lease(folder: str, index: str) -> None:
    """Say that the writer is still at work. Raises StoreError when the folder was taken for garbage meanwhile."""
    owner = read_owner(folder)
    if owner is None or owner.state == "condemned":
        raise StoreError(
            "the folder was removed while it was written",
            found=folder,
            hint="run gc with more patience: its writer took longer than that",
        )
    write_owner(folder, index)
