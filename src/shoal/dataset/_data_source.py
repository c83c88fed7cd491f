"""A user's `DataSource` as a store, so that its shards are read like files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import os
import weakref
from typing import IO, Any
from urllib.parse import quote

from shoal.errors import ObjectNotFoundError, ShoalError, StoreError
from shoal.protocols import DataSource
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._source import ShardSource
from shoal.shard._table import ShardRef
from shoal.store._base import ObjectInfo, ObjectReader
from shoal.store._fork import ForkSafeLock
from shoal.store._read_only import ReadOnlyStore, RenamedReader
from shoal.store._registry import register_store, store_for
from shoal.store._url import join_url

__all__ = ["SCHEME", "source_from_data_source", "urls_of"]

SCHEME = "data-source"
_CHUNK = 1 << 20


def urls_of(data_source: DataSource) -> dict[str, str]:
    """A URL for each shard of the source, by the shard's name; good as long as this process lives.

    Nothing is opened. Raises ObjectNotFoundError when there are no shards.
    """
    return _STORE.mount(data_source)


def source_from_data_source(
    data_source: DataSource, *, rule: KeyRule = WEBDATASET_RULE, verify: bool = True
) -> ShardSource:
    """The shards of a user's source as one sequence of samples; each is opened when it is first needed.

    A shard that is an ordinary file on disk is read where it lies; any other is copied to a temporary file once.
    """
    return ShardSource([ShardRef(url) for url in urls_of(data_source).values()], rule=rule, verify=verify)


class _Mounted:
    """One data source, with the local files that stand for its shards."""

    def __init__(self, data_source: DataSource) -> None:
        self.data_source = data_source
        self._files: dict[str, tuple[str, str | None]] = {}
        self._locks: dict[str, ForkSafeLock] = {}

    def file(self, name: str) -> tuple[str, str]:
        """A local file with the shard's bytes, and what tells these bytes from others."""
        with self._locks.setdefault(name, ForkSafeLock()):  # one a shard: others can be fetched meanwhile
            if name not in self._files:
                self._files[name] = self._fetch(name)
        path, digest = self._files[name]
        return path, digest or _version(path)

    def _fetch(self, name: str) -> tuple[str, str | None]:
        try:
            with contextlib.closing(self.data_source.open_shard(name)) as stream:
                path = _path_of(stream)
                return (path, None) if path is not None else self._copy(stream)
        except ShoalError:
            raise
        except (OSError, LookupError, TypeError, AttributeError) as error:
            kind = type(self.data_source).__name__
            raise StoreError(
                f"the data source {kind} gave no bytes for a shard",
                found=f"{type(error).__name__}: {error}",
                shard=name,
            ) from error

    def _copy(self, stream: IO[bytes]) -> tuple[str, str]:
        import tempfile  # here, since few need it and `import shoal` is to be quick

        descriptor, path = tempfile.mkstemp(dir=self._folder)
        digest = hashlib.sha256()
        with open(descriptor, "wb") as file:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
        return path, digest.hexdigest()

    @functools.cached_property
    def _folder(self) -> str:
        """Where copies are kept until the process ends; made when the first one is."""
        import shutil
        import tempfile

        folder = tempfile.mkdtemp(prefix="shoal-source-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder


def _path_of(stream: Any) -> str | None:
    """The path of the file that a stream reads from its start; None when it is anything else."""
    # By type, not by fileno(): a stream that decrypts or unpacks may show the descriptor of what it reads from.
    if type(stream) not in (io.FileIO, io.BufferedReader, io.BufferedRandom) or stream.tell() != 0:
        return None
    name = getattr(stream, "name", None)
    if not isinstance(name, str):
        return None
    try:
        same = os.path.samestat(os.stat(name), os.fstat(stream.fileno()))
    except OSError:  # it has no name any more
        return None
    return os.path.abspath(name) if same and os.path.isfile(name) else None


def _version(path: str) -> str:
    facts = os.stat(path)
    return f"{os.path.abspath(path)}:{facts.st_ino}:{facts.st_mtime_ns}"


class _DataSourceStore(ReadOnlyStore):
    """All data sources of this process: ``data-source://3/name`` is a shard of the third."""

    def __init__(self) -> None:
        super().__init__("a data source is only read", "write to a path, or to a URL of a store")
        self._numbers = itertools.count()
        self._sources: dict[str, _Mounted] = {}
        self._shards: dict[str, tuple[_Mounted, str]] = {}
        self._lock = ForkSafeLock()

    def mount(self, data_source: DataSource) -> dict[str, str]:
        """A URL for each shard; the same ones for the same source."""
        names = [str(name) for name in data_source.list_shards()]
        if not names:
            raise ObjectNotFoundError("the data source lists no shards", found=type(data_source).__name__)
        with self._lock:
            root = next((url for url, held in self._sources.items() if held.data_source is data_source), None)
            if root is None:
                root = f"{SCHEME}://{next(self._numbers)}"
                self._sources[root] = _Mounted(data_source)
            # Quoted, so that no name is taken for a pattern.
            urls = {name: join_url(root, quote(name, safe="/")) for name in names}
            self._shards.update({url: (self._sources[root], name) for name, url in urls.items()})
        return urls

    def _file(self, url: str) -> tuple[str, ObjectInfo]:
        try:
            source, name = self._shards[url]
        except KeyError:
            raise ObjectNotFoundError("no data source has this shard", found=url) from None
        path, version = source.file(name)
        return path, ObjectInfo(url, store_for(path).info(path).size, version)

    def info(self, url: str) -> ObjectInfo:
        return self._file(url)[1]

    def open(self, url: str) -> ObjectReader:
        path, info = self._file(url)
        return RenamedReader(store_for(path).open(path), info)

    def read_all(self, url: str) -> bytes:
        path, _ = self._file(url)
        return store_for(path).read_all(path)

    def urls(self) -> list[str]:
        return list(self._shards)


_STORE = _DataSourceStore()
register_store(SCHEME, _STORE)
