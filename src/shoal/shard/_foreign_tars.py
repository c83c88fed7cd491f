"""Tars that no manifest names: each is scanned once, into a rows file in the user's cache, and a list is one table.

    <cache>/index/<hash>[.<loader>].rows    the rows file of a tar, by its URL, size and version, and the key rule; with
                                            ``loader`` it was imported from the index of that loader
    <cache>/lists/<hash>/                   segments over a list of tars, by the hashes of these tars, in order
    <cache>/locks/                          who scans a tar, or makes segments, locks one of these files

So a part of a list, or a list with one more tar, scans nothing twice. The folder of a list is laid out as a dataset,
with a manifest, and appears by a rename: it is complete, or not there. What is damaged is made again. Where the cache
cannot be written, rows and segments are kept in memory until the table is gone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Literal, NamedTuple

from shoal.errors import (
    ManifestError,
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    ShardIndexError,
    ShoalError,
    ShoalWarning,
    StoreError,
    TarError,
)
from shoal.store._base import ObjectInfo, ObjectReader
from shoal.store._cache import cache_dir, cached_reader, count_added, mark_used
from shoal.store._concurrency import each_done, run_all
from shoal.store._memory import MemoryStore
from shoal.store._options import options_for, shown
from shoal.store._registry import cache_mode, is_remote, store_for
from shoal.store._url import join_url, local_path, scheme_of

from ._commit import MANIFEST, load_generation, write_document
from ._file_lock import FileLock, try_lock_file
from ._foreign_formats import Loader, import_rows
from ._generation import Generation, Split, encode_generation, new_id
from ._manifest import record_of
from ._member_names import WEBDATASET_RULE, KeyRule
from ._open_shards import index_shard
from ._records import OpenFiles
from ._rows_file import RowBatch, RowsFile, RowsSummary, write_rows_file
from ._segment import write_segments
from ._shard_rows import ShardRows
from ._split_table import SplitTable

__all__ = ["IndexOptions", "IndexedTar", "TarRows", "index_tars", "open_tars"]

_SCAN_VERSION = 1
"""Counts changes of what a scan accepts and joins: what was cached before such a change is made again."""
_SPLIT = "tars"
"""The only split of the generation of a list."""
_MEMORY_CACHE = "memory://shoal-cache"
"""For tars in memory: their versions begin anew in every process, and in every store."""
_MEMORY_STORES: weakref.WeakKeyDictionary[MemoryStore, str] = weakref.WeakKeyDictionary()
"""An id of each store that has had such tars."""
_LOADERS: tuple[Loader, ...] = ("energon", "dali")
_LOCAL_SCANS, _REMOTE_SCANS = 2, 8
"""Tars that are scanned at a time."""
_MIN_OPEN_FILES = 256
_MAX_ATTEMPTS = 3
_MAX_WAIT_S = 600.0
"""A process that takes longer for one tar, or for the segments of one list, is not waited for."""
_POLL_S = 0.002, 0.1


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How tars are indexed."""

    rule: KeyRule = WEBDATASET_RULE
    loader: Loader | None = None
    """Import the index that this loader has of each tar, instead of scanning."""
    root: str | None = None
    """The folder of the dataset, where a loader has one index for all."""
    cache: str | None = None
    """What of remote tars is kept on disk; None is what ``store.configure`` says."""
    force: bool = False
    """Index again what was indexed before."""


@dataclass(frozen=True, slots=True)
class IndexedTar:
    """A tar whose rows are known."""

    url: str
    state: Literal["kept", "indexed", "imported"]
    """``kept`` where they were known before."""
    samples: int
    bytes: int


OnDamage = Callable[[ShoalError], None]
OnIndexed = Callable[[IndexedTar], None]
_DEFAULT_OPTIONS = IndexOptions()


def open_tars(
    tars: Iterable[str | ObjectInfo],
    options: IndexOptions = _DEFAULT_OPTIONS,
    *,
    on_damage: OnDamage | None = None,
    on_indexed: OnIndexed | None = None,
) -> SplitTable:
    """Return a list of tars as one table, in this order; those that were not indexed before are indexed now.

    Tars that come from a listing, as ObjectInfo, need no request. ``on_damage`` gets the error of each tar that cannot
    be indexed, which is left out unless that call raises; without it the error is raised. ``on_indexed`` gets each tar.

    Raises TarError or ShardIndexError with the URL of the tar, and ObjectNotFoundError for a tar that is not there.

    Examples:
        >>> from shoal.shard._tar_header import build_header
        >>> url = "memory://open-tars/a.tar"
        >>> _ = store_for(url).write_all(url, build_header(b"k.txt", 5) + b"hello" + bytes(507 + 1024))
        >>> table = open_tars([url])
        >>> table.key(0), table.shard_url(0)
        ('k', 'memory://open-tars/a.tar')
    """
    infos = _current_infos(tars)
    with closing(_Cache(infos)) as cache:
        table = None if options.force else cache.open_list(infos, options.rule)
        if table is not None:
            if on_indexed is not None:
                for shard in table.shards().select(["path", "samples", "bytes"]).to_pylist():
                    on_indexed(IndexedTar(shard["path"], "kept", shard["samples"], shard["bytes"]))
            return table
        names = (None, *_LOADERS) if options.loader is None else (options.loader,)
        rows = _index(cache, infos, options, names, on_damage, on_indexed)
        return cache.make_list(rows, options)


@contextlib.contextmanager
def index_tars(
    tars: Iterable[str | ObjectInfo],
    options: IndexOptions = _DEFAULT_OPTIONS,
    *,
    on_damage: OnDamage | None = None,
    on_indexed: OnIndexed | None = None,
) -> Iterator[list[TarRows]]:
    """Give the rows of tars, in this order, as sources for segments; otherwise as `open_tars`.

    Rows that were imported before are used only if the same import is asked for: they say less than a scan.
    """
    infos = _current_infos(tars)
    with closing(_Cache(infos)) as cache:
        yield _index(cache, infos, options, (options.loader,), on_damage, on_indexed)


def _current_infos(tars: Iterable[str | ObjectInfo]) -> list[ObjectInfo]:
    items = list(tars)
    reads = [partial(store_for(each).info, each) for each in items if isinstance(each, str)]
    is_far = any(isinstance(each, str) and is_remote(each) for each in items)
    read = iter(run_all(reads) if is_far else [each() for each in reads])
    return [next(read) if isinstance(each, str) else each for each in items]


# --------------------------------------------------------------------------------------------------------- rows of tars


class TarRows:
    """The rows of one tar, from the cache: a `RowSource`. They are made again where the cache does not have them."""

    def __init__(self, info: ObjectInfo, file: RowsFile, make: Callable[[], RowsFile]) -> None:
        self.info = info
        self._file, self._make = file, make
        self.record = file.record
        """What is known of the tar without its rows. Its path is the URL of the tar when that was indexed."""

    @property
    def summary(self) -> RowsSummary:
        """Of its rows, without reading them."""
        return self._file.summary

    @property
    def digest(self) -> bytes:
        """The digest of the shard."""
        return self._file.digest

    def batches(self) -> Iterator[RowBatch]:
        """Yield all rows as one batch."""
        try:
            batches = list(self._file.batches())
        except (StoreError, ShardIndexError):  # it left the cache, or is damaged
            self._file = self._make()
            batches = list(self._file.batches())
        yield from batches


def _index(
    cache: _Cache,
    infos: Sequence[ObjectInfo],
    options: IndexOptions,
    loaders: Sequence[Loader | None],
    on_damage: OnDamage | None,
    on_indexed: OnIndexed | None,
) -> list[TarRows]:
    """Return the rows of tars, without those that are damaged. Other processes may do some of the work."""
    rows: dict[ObjectInfo, TarRows | None] = {}

    def add(info: ObjectInfo, result: _Indexed) -> None:
        if isinstance(result.rows, ShoalError):
            if on_damage is None:
                raise result.rows
            on_damage(result.rows)
            rows[info] = None
        elif result.rows is not None:
            rows[info] = result.rows
            if on_indexed is not None:
                record = result.rows.record
                on_indexed(IndexedTar(info.url, result.state, record.samples, record.bytes))

    for info in () if options.force else infos:
        if info not in rows:
            add(info, _Indexed(cache.load(info, options, loaders), "kept"))
    scans = _REMOTE_SCANS if any(is_remote(info.url) for info in infos) else _LOCAL_SCANS
    for is_waiting in (False, True):  # tars that another process is at come last
        missing = [info for info in dict.fromkeys(infos) if info not in rows]
        work = partial(_index_one, cache, options, loaders, is_waiting)
        for info, result in each_done(work, missing, scans) if missing else ():
            add(info, result)
    return [found for info in infos if (found := rows[info]) is not None]


class _Indexed(NamedTuple):
    rows: TarRows | ShoalError | None
    """None while another process is at work on it."""
    state: Literal["kept", "indexed", "imported"]


def _index_one(
    cache: _Cache, options: IndexOptions, loaders: Sequence[Loader | None], is_waiting: bool, info: ObjectInfo
) -> _Indexed:
    def load() -> TarRows | None:
        return None if options.force else cache.load(info, options, loaders)

    lock = _lock(f"tar-{_tar_key(info, options.rule)[:2]}", load if is_waiting else None)
    if lock is None:
        return _Indexed(load(), "kept")
    with lock:
        rows = load()
        if rows is not None:
            return _Indexed(rows, "kept")
        try:
            return _Indexed(cache.make(info, options), "indexed" if options.loader is None else "imported")
        except (TarError, ShardIndexError) as error:
            return _Indexed(error.at(shard=info.url), "indexed")


def _lock(name: str, wait_for: Callable[[], object] | None) -> AbstractContextManager[object] | None:
    """Lock a name in the cache; None if another process has it, which is waited for until there is a result.

    Locks are shared by many tars, since no file of a lock is ever removed.
    """
    path = os.path.join(cache_dir(), "locks", name)
    deadline, pause = time.monotonic() + _MAX_WAIT_S, _POLL_S[0]
    while True:
        try:
            lock = try_lock_file(path)
        except StoreError:  # nothing can be written there
            return nullcontext()
        if lock is not None:
            return lock
        if wait_for is None or wait_for() is not None:
            return None
        if time.monotonic() > deadline:
            return nullcontext()
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S[1])


def _tar_key(info: ObjectInfo, rule: KeyRule) -> str:
    if scheme_of(info.url) == "file":
        place = os.path.abspath(local_path(info.url))
    else:
        store = store_for(info.url)
        place = _MEMORY_STORES.setdefault(store, new_id()) if isinstance(store, MemoryStore) else ""
        place += info.url
    return _hash(repr((place, info.size, info.version, _rule_text(rule))))


@functools.lru_cache(maxsize=16)
def _rule_text(rule: KeyRule) -> str:
    return repr((rule, _SCAN_VERSION))


def _list_key(infos: Iterable[ObjectInfo], rule: KeyRule) -> str:
    return _hash("".join(_tar_key(info, rule) for info in infos))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# ------------------------------------------------------------------------------------------------------------ the cache


class _Cache:
    """The user's cache, or memory as soon as that cannot be written. `close` drops rows in memory, not lists."""

    def __init__(self, infos: Sequence[ObjectInfo]) -> None:
        is_memory = any(isinstance(store_for(info.url), MemoryStore) for info in infos)
        self._root = _MEMORY_CACHE if is_memory else cache_dir()
        self._problem: OSError | None = None
        self._lock = threading.Lock()
        self._limit = options_for(infos[0].url).cache_bytes if infos else 0

    # ------------------------------------------------------------------------------------------------------ rows files

    def load(self, info: ObjectInfo, options: IndexOptions, loaders: Sequence[Loader | None]) -> TarRows | None:
        """Return the rows of a tar that was indexed before; None where they are missing or damaged."""
        for loader in loaders:
            url = self._rows_url(info, options.rule, loader)
            with contextlib.suppress(StoreError, ShardIndexError):
                rows = TarRows(info, RowsFile(url), partial(self._make, info, options))
                self._mark_used(url)
                return rows
        return None

    def make(self, info: ObjectInfo, options: IndexOptions) -> TarRows:
        """Index a tar. Raises TarError, or ShardIndexError where the index of another loader does not fit."""
        return TarRows(info, self._make(info, options), partial(self._make, info, options))

    def _make(self, info: ObjectInfo, options: IndexOptions) -> RowsFile:
        with closing(cached_reader(store_for(info.url).open(info.url), cache_mode(info.url, options.cache))) as reader:
            if (reader.info.size, reader.info.version) != (info.size, info.version):
                raise ObjectChangedError("The tar was replaced while it was opened", found=shown(info.url))
            rows = _read_rows(reader, options)
        record = record_of(shown(info.url), rows)
        while True:
            root, url = self._root, self._rows_url(info, options.rule, options.loader)
            try:
                write_rows_file(url, record, rows)
            except OSError as error:
                self._use_memory(root, error)
                continue
            self._count_added(url, store_for(url).info(url).size)
            return RowsFile(url)

    def _rows_url(self, info: ObjectInfo, rule: KeyRule, loader: Loader | None) -> str:
        name = _tar_key(info, rule) + (".rows" if loader is None else f".{loader}.rows")
        return join_url(self._root, "index", name)

    # ----------------------------------------------------------------------------------------------------------- lists

    def open_list(self, infos: Sequence[ObjectInfo], rule: KeyRule) -> SplitTable | None:
        """Return a list of tars whose segments were made before; None where they are missing or damaged."""
        try:
            return self._load_list(infos, rule)
        except (ManifestError, OptionError, StoreError):
            return None

    def _load_list(self, infos: Sequence[ObjectInfo], rule: KeyRule) -> SplitTable:
        """As `open_list`. All files are opened, so that the table can be read after they left the cache."""
        folder = self._list_folder(_list_key(infos, rule))
        generation = load_generation(folder)
        if generation is None:
            raise ObjectNotFoundError("There are no segments of these tars", found=folder)
        files = generation.files()
        open_files = OpenFiles(max(len(files), _MIN_OPEN_FILES))
        for path, size in files.items():
            open_files.get(join_url(folder, path), size)
        segments = generation.splits.get(_SPLIT, Split()).segments
        table = SplitTable(folder, segments, open_files, [info.url for info in infos])
        self._mark_used(folder)
        return table

    def make_list(self, rows: Sequence[TarRows], options: IndexOptions) -> SplitTable:
        """Return a list of tars whose rows are known, with its segments in the cache."""
        infos = [each.info for each in rows]
        key = _list_key(infos, options.rule)

        def load() -> SplitTable | None:
            return None if options.force else self.open_list(infos, options.rule)

        lock = _lock(f"list-{key[:2]}", load)
        with nullcontext() if lock is None else lock:
            table = load()
            if table is None and isinstance(lock, FileLock) and lock.is_real:
                self._remove_unfinished(key)
            if table is None:
                table = self._write_and_load(key, rows, options.rule)
        if self._problem is not None:
            weakref.finalize(table, _remove, table.root)
        return table

    def _write_and_load(self, key: str, rows: Sequence[TarRows], rule: KeyRule) -> SplitTable:
        for _ in range(_MAX_ATTEMPTS):
            root = self._root
            try:
                self._write_list(key, rows, rule)
            except OSError as error:
                self._use_memory(root, error)
                continue
            with contextlib.suppress(ObjectNotFoundError):  # another process made room just now
                return self._load_list([each.info for each in rows], rule)
        raise StoreError(
            "The cache is too small for the index of these tars",
            found=cache_dir(),
            hint="raise cache_bytes with shoal.store.configure",
        )

    def _remove_unfinished(self, key: str) -> None:
        """Remove what processes left that were killed. The caller has the lock of this list."""
        folder = os.path.join(cache_dir(), "lists")
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(f".{key}."):
                    _remove(os.path.join(folder, name))

    def _write_list(self, key: str, rows: Sequence[TarRows], rule: KeyRule) -> None:
        folder = self._list_folder(key)
        is_local = scheme_of(folder) == "file"
        new = self._list_folder(f".{key}.{new_id()}.partial") if is_local else folder
        try:
            segments = write_segments(new, rows)
            name, now = key[:16], f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
            # The same list has the same id whenever it is made.
            generation = Generation(name, None, name, now, {_SPLIT: Split(segments)}, rule=rule)
            write_document(join_url(new, MANIFEST), encode_generation(generation))
            if is_local:
                _replace_folder(local_path(new), local_path(folder))
        except BaseException:
            _remove(new)
            raise
        self._count_added(folder, sum(generation.files().values()))

    def _list_folder(self, name: str) -> str:
        return join_url(self._root, "lists", name)

    # ---------------------------------------------------------------------------------------------------------- memory

    def _use_memory(self, root: str, error: OSError) -> None:
        """Keep what follows in memory. Raises the error if it was memory that could not be written."""
        with self._lock:
            if scheme_of(root) != "file":
                raise error
            if self._root == root:
                self._root, self._problem = f"{_MEMORY_CACHE}-{new_id()}", error

    def _mark_used(self, url: str) -> None:
        if scheme_of(self._root) == "file":
            mark_used(url)

    def _count_added(self, url: str, size: int) -> None:
        if scheme_of(self._root) == "file":
            count_added(url, size, self._limit)

    def close(self) -> None:
        """Drop rows that are in memory because the cache cannot be written, and warn of that."""
        error = self._problem
        if error is not None:
            _remove(join_url(self._root, "index"))
            problem = getattr(error, "problem", None) or error.strerror or str(error)
            warnings.warn(
                f"Indexes cannot be kept in the cache and are made again each time: {problem}. Set SHOAL_CACHE to a "
                "folder that can be written.",
                ShoalWarning,
                stacklevel=4,
            )


def _read_rows(reader: ObjectReader, options: IndexOptions) -> ShardRows:
    if options.loader is None:
        return index_shard(reader, options.rule)
    return import_rows(options.loader, reader, options.rule, options.root)


def _replace_folder(new: str, folder: str) -> None:
    """Rename a folder to a name that another one may have, which is damaged, or as good as this one."""
    with contextlib.suppress(FileNotFoundError):
        old = f"{new}.removed"
        os.rename(folder, old)
        shutil.rmtree(old, ignore_errors=True)
    os.rename(new, folder)


def _remove(folder: str) -> None:
    if scheme_of(folder) == "file":
        shutil.rmtree(local_path(folder), ignore_errors=True)
        return
    for info in list(store_for(folder).list(folder)):
        store_for(folder).delete(info.url)
