"""`Repo`: datasets in a folder or a bucket, with an index of them; insert, verify and collect garbage."""

from __future__ import annotations

import contextlib
import os
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import CatalogConnectionError, OptionError, ShoalError, StoreError
from shoal.schema._schema import Schema
from shoal.store._registry import store_for
from shoal.store._url import join_url, scheme_of

from . import _datasets
from ._credentials import CredentialsLike, check_no_secret, credentials_of, reach
from ._describe import DataDescription, hash_object, storage_of, to_absolute
from ._entry import Entry, Storage, StoredShard
from ._index import LocalIndex
from ._refs import check_name
from ._repo_write import (
    OWNER,
    Owner,
    Progress,
    begin_lease,
    condemn,
    end_lease,
    is_writing,
    mark_lease_done,
    owner_url,
    read_owner,
    renew_lease,
    write_data,
)

__all__ = ["Garbage", "Repo", "ShardCheck", "verify_entry"]

_DEFAULT_PATIENCE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Garbage:
    """The result of `Repo.gc`: folders without an entry."""

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

    Examples:
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
        self.root = _root_url(location, bucket, prefix)
        if scheme_of(self.root) not in ("s3", "s3a") and s3_credentials is not None:
            raise OptionError("S3 credentials are for a bucket", expected="bucket= or s3://", found=self.root)
        self.index = LocalIndex() if index is None else index

    def __repr__(self) -> str:
        return f"<Repo {self.root} with {self.index!r}>"

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
        said = self.index._check_words(description, tags, metadata, version)  # noqa: SLF001 - one package
        spelled = check_name(name)
        mark = self._index_id
        folder = self._new_folder(spelled, mark)
        with self._removed_on_failure(folder):
            written = self._write(samples, folder, options, lambda: renew_lease(folder, mark), progress)
        draft = _datasets.EntryDraft(spelled, written.cid, written.storage, written.shards, self._place, **said)
        entry = self._record(draft, written.schema, folder)
        if entry.storage.root != folder:
            entry = self._keep_one_copy(entry, draft, folder)
        if entry.storage.root == folder:
            mark_lease_done(folder, mark)
        end_lease(folder)
        return entry

    def _record(self, draft: _datasets.EntryDraft, schema: Schema | None, folder: str) -> Entry:
        """Record the entry. The data is removed if the index refuses it.

        After any other failure, such as a lost connection or Ctrl-C, the entry may have been committed: the data stays,
        and counts as work in progress while this process lives.
        """
        try:
            return self.index._record(draft, schema, None)  # noqa: SLF001 - one package
        except CatalogConnectionError:
            raise
        except ShoalError:
            self._drop(folder)
            raise

    def _keep_one_copy(self, entry: Entry, draft: _datasets.EntryDraft, folder: str) -> Entry:
        """The repository has equal data already: keep that, unless it is damaged, and remove what was just written."""
        if _has_all_shards(entry):
            _remove(folder)
            return entry
        repaired = self.index._backend.transact(lambda change: _datasets.move_data(change, draft))  # noqa: SLF001
        return replace(entry, storage=repaired.storage, shards=repaired.shards)

    def _new_folder(self, name: str, mark: str) -> str:
        """Create a new folder, with a lease before anything else is in it."""
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
        """Write the data into the folder; ``renew`` is called from time to time, and at the end, to renew the lease."""
        return write_data(samples, self._storage_of(folder), options=options, progress=progress, renew=renew)

    def _storage_of(self, folder: str) -> Storage:
        storage = storage_of(folder, has_manifest=False)
        endpoint = self._credentials.endpoint or storage.endpoint
        return replace(storage, endpoint=endpoint, region=self._credentials.region or storage.region)

    @property
    def _place(self) -> str:
        return f"{self._storage_of(self.root).endpoint or ''} {self.root}"

    @property
    def _index_id(self) -> str:
        return self.index._id  # noqa: SLF001 - one package

    def _reach(self) -> None:
        reach(self.root, None, None, self._credentials)

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

    def entries(self) -> Iterator[Entry]:
        """Every version in the index whose bytes are in this repository."""
        for newest in self.index.list_datasets():
            for entry in self.index.history(newest.name):
                if self._holds(entry):
                    yield entry

    def _holds(self, entry: Entry) -> bool:
        return (
            entry.storage.root.startswith(f"{self.root}/")
            and entry.storage.endpoint == self._storage_of(self.root).endpoint
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

    def gc(self, *, dry_run: bool = False, patience: float = _DEFAULT_PATIENCE_S) -> Garbage:
        """Remove what no entry stands for: of inserts that were interrupted, and of entries that were deleted.

        Data whose writer may still be at work stays: one of this machine while it lives, one of another for
        ``patience`` seconds after it last said so. Data of other indexes in the same place stays too.
        """
        self._reach()
        folders = self._folders()
        # Owners are read before entries: a writer that is done has recorded its entry by then.
        owners = {folder: owner for folder in folders if (owner := read_owner(folder)) is not None}
        busy = {folder for folder, owner in owners.items() if is_writing(folder, owner, patience)}
        used = _datasets.roots_in_use(self.index._backend)  # noqa: SLF001 - one package
        unused = {folder: owner for folder, owner in owners.items() if folder not in used}
        foreign = tuple(folder for folder, owner in unused.items() if owner.index != self._index_id)
        gone = {folder: owner for folder, owner in unused.items() if folder not in busy and folder not in foreign}
        sizes = [self._remove_garbage(folder, owner, dry_run) for folder, owner in gone.items()]
        return Garbage(
            tuple(gone),
            sum(objects for objects, _ in sizes),
            sum(size for _, size in sizes),
            tuple(folder for folder in unused if folder in busy and folder not in foreign),
            foreign,
        )

    def _folders(self) -> list[str]:
        """Return every folder that an insert created."""
        mark = f"/{OWNER}"
        urls = (info.url for info in store_for(self.root).list(self.root))
        return [url.removesuffix(mark) for url in urls if url.endswith(mark)]

    def _remove_garbage(self, folder: str, owner: Owner, dry_run: bool) -> tuple[int, int]:
        """Remove a folder; return the number of its objects, and their bytes."""
        infos = list(store_for(folder).list(folder))
        if not dry_run:
            condemn(folder, owner)
            _remove(folder)
        return len(infos), sum(info.size for info in infos)


def _root_url(location: str | os.PathLike[str] | None, bucket: str | None, prefix: str) -> str:
    if bucket is not None:
        if "/" in bucket or not bucket:
            raise OptionError("this is no bucket", expected="its name alone; prefix= for a folder in it", found=bucket)
        return f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
    if prefix:
        raise OptionError("prefix= goes with bucket=", found=prefix)
    found = to_absolute(location)
    return check_no_secret(str(found)).rstrip("/")


def _has_all_shards(entry: Entry) -> bool:
    """Whether all shards of an entry exist and have the recorded size."""
    try:
        return all(
            store_for(url).info(url).size == shard.bytes
            for url, shard in zip(entry.data_urls, entry.shards, strict=True)
        )
    except StoreError:
        return False


def _remove(folder: str) -> None:
    """Remove a folder, its owner document last, so that `gc` finds the rest if this is interrupted."""
    store = store_for(folder)
    owner = owner_url(folder)
    for info in list(store.list(folder)):
        if info.url != owner:
            store.delete(info.url)
    store.delete(owner)
    if scheme_of(folder) == "file":
        _remove_empty(folder)


def _remove_empty(folder: str) -> None:
    """Remove empty folders, which only a disk has."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _slug(name: str) -> str:
    """Return a readable start of a folder's name; the random part after it makes it unique.

    Examples:
        >>> _slug("team/Größe")
        'team--Groe'
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return plain.replace("/", "--")[:80] or "dataset"


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """The result of verifying one shard."""

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

    Examples:
        >>> from shoal.local import LocalIndex, Repo, verify_entry
        >>> repo = Repo("memory://doc/verify-entry", index=LocalIndex("memory://"))
        >>> entry = repo.insert([{"txt": "a cat"}], name="pets")
        >>> [check.ok for check in verify_entry(entry)]
        [True]
    """
    entry.reach(credentials)
    for shard in entry.shards:
        url = entry.storage.url(shard.path)
        yield ShardCheck(entry.reference, url, shard.bytes, _find_problem(url, shard, progress))


def _find_problem(url: str, shard: StoredShard, progress: Progress | None) -> str | None:
    try:
        size, digest = hash_object(url, progress)
    except StoreError as error:
        return str(error)
    if size != shard.bytes:
        return f"the size is another: expected {shard.bytes}, found {size}"
    if shard.sha256 is not None and digest != shard.sha256:
        return f"the bytes are others: expected sha256 {shard.sha256}, found {digest}"
    return None
