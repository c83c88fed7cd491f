"""Open a shard with its index, wherever that is stored, and keep the most recently used shards open."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable

from shoal._crc32 import crc32
from shoal.errors import ObjectNotFoundError, ShardIndexError, ShoalWarning, StoreError
from shoal.store._base import ObjectReader, RemoteReader
from shoal.store._cache import cached_reader, count_added, mark_used
from shoal.store._fork import ForkSafeLock
from shoal.store._options import options_for
from shoal.store._readers import PrefetchedReader
from shoal.store._registry import cache_mode, store_for
from shoal.store._url import base_name, parent_url

from ._byte_reader import CompressedBytes, PlainBytes, TarBytes
from ._compression import open_unpacked, sniff
from ._index import load_index, save_index
from ._index_build import build_index
from ._member_names import WEBDATASET_RULE, KeyRule
from ._shard import Shard
from ._shard_rows import Blocks, IndexMetadata, KnownIndex, ShardRows
from ._shard_rows_table import ShardRowsTable
from ._stored_rows import cached_index_url, index_url
from ._tar_header import BLOCK
from ._tar_scan import ReaderFeed

__all__ = [
    "OpenShards",
    "find_index",
    "fitting_index",
    "index_shard",
    "most_open",
    "open_indexed",
    "open_shard",
    "shard_of_rows",
    "tar_bytes",
]

_MIN_OPEN_SHARDS, _MAX_OPEN_SHARDS = 128, 1024
_MAX_KNOWN_INDEXES = 2048
"""Indexes that are remembered. Small ones are copies, of 64 KiB at most; large ones are the file itself, mapped."""


def open_shard(
    url: str,
    *,
    rule: KeyRule = WEBDATASET_RULE,
    verify: bool = True,
    sidecar: str | None = None,
    cache: str | None = None,
    known: KnownIndex | None = None,
) -> Shard:
    """Open a shard for random access.

    Its index is ``sidecar`` where one is named, else the one beside it; where that is not there, or was made by another
    rule, the one in the user's cache, else one made now by a scan and kept in the cache. An index that does not fit the
    tar raises StaleIndexError when it is a sidecar, and is made again when it is our own cached one. ``cache`` says
    what of a far shard is kept on disk, its index too; None is what ``store.configure`` says. What was ``known`` of the
    shard serves again where it has not changed since.
    """
    cache = cache_mode(url, cache)
    reader = cached_reader(store_for(url).open(url), cache)
    try:
        if known is not None and known.info == reader.info:
            return _to_shard(url, known.index, reader, verify)
        found = _sidecar(url, sidecar, rule) if cache is None else _cached_sidecar(url, sidecar, rule, reader)
        if found is not None:
            _check_fits(found, reader)
            return _to_shard(url, found, reader, verify)
        return _open_foreign(url, reader, rule, verify)
    except BaseException:
        reader.close()
        raise


def _sidecar(url: str, named: str | None, rule: KeyRule, *, whole: bool = False) -> ShardRows | None:
    """The index kept with the shard, unless it was made by another rule; None when there is none."""
    for stored in _index_urls(url) if named is None else (named,):
        try:
            index = load_index(stored, whole=whole)
        except ObjectNotFoundError:
            continue
        if index.facts.rule == rule:
            return index
    return None


def open_indexed(
    url: str,
    *,
    rule: KeyRule = WEBDATASET_RULE,
    verify: bool = True,
    cache: str | None = None,
) -> Shard | ObjectReader:
    """A shard that has an index, beside it or in the cache; else the open object, for whoever can do without."""
    cache = cache_mode(url, cache)
    reader = cached_reader(store_for(url).open(url), cache)
    try:
        cached = cached_index_url(reader, rule)
        found = fitting_index(cached, reader)
        mark_used(cached)
        if found is None and (found := _sidecar(url, None, rule)) is not None:
            _check_fits(found, reader)
        return reader if found is None else _to_shard(url, found, reader, verify)
    except BaseException:
        reader.close()
        raise


def _cached_sidecar(url: str, named: str | None, rule: KeyRule, reader: ObjectReader) -> ShardRows | None:
    """The same through the cache, where it is kept for this state of the shard."""
    kept = cached_index_url(reader, rule)
    found = fitting_index(kept, reader)
    if found is None and (found := _sidecar(url, named, rule)) is not None:
        with contextlib.suppress(StoreError):  # a cache that cannot be written costs time, nothing else
            _save_cached(found, kept, url)
    elif found is not None:
        mark_used(kept)
    return found


def _save_cached(index: ShardRows, stored: str, url: str) -> None:
    save_index(index, stored)
    count_added(stored, store_for(stored).info(stored).size, options_for(url).cache_bytes)


def _index_urls(url: str) -> tuple[str, ...]:
    """Where the index is of a shard in a dataset's root, or in a folder of it."""
    folder = parent_url(url)
    beside, above = index_url(folder, base_name(url)), parent_url(folder)
    if above.endswith("://"):  # the folder is a bucket or a host, and what is above it is nowhere
        return (beside,)
    return beside, index_url(above, f"{base_name(folder)}/{base_name(url)}")


def find_index(reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE, *, whole: bool = False) -> ShardRows | None:
    """The index kept for an open shard, beside it or in the user's cache, fitting or not; None if there is none.

    ``whole`` looks at every byte of it, as `load_index` has it.
    """
    found = _sidecar(reader.info.url, None, rule, whole=whole)
    if found is not None:
        return found
    try:
        return load_index(cached_index_url(reader, rule), whole=whole)
    except (ObjectNotFoundError, ShardIndexError):
        return None


def fitting_index(stored: str, reader: ObjectReader) -> ShardRows | None:
    """The index stored at this URL; None when there is none, or none that fits the open shard."""
    try:
        index = load_index(stored)
        _check_fits(index, reader)
    except (ObjectNotFoundError, ShardIndexError):
        return None
    return index


def _check_fits(index: ShardRows, reader: ObjectReader) -> None:
    head = reader.read(0, BLOCK)
    index.check_object(reader.info.url, reader.info.size, head, crc32(head))


def _to_shard(url: str, index: ShardRows, reader: ObjectReader, verify: bool) -> Shard:
    far = PrefetchedReader(reader) if isinstance(reader, RemoteReader) else None
    data = tar_bytes(reader if far is None else far, index.facts.compression, lambda: index.blocks)
    is_packed = index.facts.compression is not None and isinstance(data, PlainBytes)  # read from where it was unpacked
    known = KnownIndex(reader.info, index)
    return shard_of_rows(url, index, data, verify=verify, far=None if is_packed else far, known=known)


def shard_of_rows(
    url: str,
    index: ShardRows,
    data: TarBytes,
    *,
    verify: bool,
    far: PrefetchedReader | None = None,
    known: KnownIndex | None = None,
) -> Shard:
    """Return an open shard that has its index for itself."""
    table, compression = ShardRowsTable.of_shard(url, index), index.facts.compression
    rows = range(len(index))
    return Shard(url, table, 0, rows, data, compression=compression, verify=verify, far=far, known=known)


def tar_bytes(reader: ObjectReader, compression: str | None, blocks: Callable[[], Blocks | None]) -> TarBytes:
    """Return the bytes of the tar in an open object, which may be compressed."""
    if compression is None:
        return PlainBytes(reader)
    known = blocks()
    if known is not None and known.stored is not None:
        return CompressedBytes(reader, compression, known)
    unpacked = open_unpacked(reader, compression)
    reader.close()
    return PlainBytes(unpacked)


def _open_foreign(url: str, reader: ObjectReader, rule: KeyRule, verify: bool) -> Shard:
    cached = cached_index_url(reader, rule)
    index = fitting_index(cached, reader)
    if index is None:
        index = index_shard(reader, rule)
        _cache_index(index, cached, url)
    else:
        mark_used(cached)
    return _to_shard(url, index, reader, verify)


def _cache_index(index: ShardRows, stored: str, url: str) -> None:
    """Store the index of a shard in the cache; one that cannot be written costs time, nothing else."""
    try:
        _save_cached(index, stored, url)
    except StoreError as error:
        told = f"indexes cannot be kept in the cache and are made again each time: {error.problem}"
        warnings.warn(f"{told}; set SHOAL_CACHE to a folder that can be written", ShoalWarning, stacklevel=2)


def index_shard(reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE) -> ShardRows:
    """Index an open object: a tar, or a compressed tar, told apart by its content.

    A compressed one is unpacked into the cache, since a foreign stream cannot be entered in the middle.
    """
    head = reader.read(0, BLOCK)
    facts = IndexMetadata(reader.info.size, crc32(head), rule, sniff(head))
    if facts.compression is None:
        return build_index(ReaderFeed(reader), facts, reader.info.url)
    unpacked = open_unpacked(reader, facts.compression)
    try:
        return build_index(ReaderFeed(unpacked), facts, reader.info.url)
    finally:
        unpacked.close()


@functools.cache
def most_open() -> int:
    """Shards that a source keeps open: by the system's limit of open files, since a program may have many sources."""
    try:
        import resource
    except ImportError:
        return _MIN_OPEN_SHARDS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN_SHARDS if limit < 0 else max(_MIN_OPEN_SHARDS, min(_MAX_OPEN_SHARDS, limit // 8))


class OpenShards:
    """Shards by number: ``open_one`` opens one when it is first needed, the least used close again.

    What was known of a shard is remembered when it closes, so that to open it again takes no reading, where it is
    still the same. Threads may share it.
    """

    def __init__(self, open_one: Callable[[int, KnownIndex | None], Shard]) -> None:
        self._open_one = open_one
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._opening: dict[int, ForkSafeLock] = {}
        self._alive: weakref.WeakValueDictionary[int, Shard] = weakref.WeakValueDictionary()
        """Those that are in use: who fetches ahead and who reads should speak of the same one."""
        self._known: OrderedDict[int, KnownIndex] = OrderedDict()
        self._counts: dict[int, int] = {}
        self._lock = ForkSafeLock()

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def __getitem__(self, number: int) -> Shard:
        found = self._open.get(number)
        if found is not None:  # each of these two calls is atomic, and a lock takes longer than both
            with contextlib.suppress(KeyError):  # another thread has just closed it: it stays open while it is used
                self._open.move_to_end(number)
            return found
        with self._lock:
            found = self._open.get(number, self._alive.get(number))
            if found is not None:
                self._open[number] = found
                self._close_least_used()
                return found
            opening = self._opening.setdefault(number, ForkSafeLock())
        with opening:  # one a shard: who reads another one does not wait
            found = self._open.get(number)
            return self.keep(number, self._open_one(number, self._known.get(number))) if found is None else found

    def keep(self, number: int, shard: Shard) -> Shard:
        """Have one that somebody else opened."""
        with self._lock:
            self._open[number] = self._alive[number] = shard
            self._counts[number] = len(shard)
            self._opening.pop(number, None)
            if shard.known is not None:
                self._known[number] = shard.known
                self._known.move_to_end(number)
            self._close_least_used()
        return shard

    def count(self, number: int) -> int | None:
        """How many samples one holds that is, or was, open; None where it never was."""
        return self._counts.get(number)

    def _close_least_used(self) -> None:
        if len(self._open) > most_open():
            self._open.popitem(last=False)  # closed when its last reader lets go of it
        if len(self._known) > _MAX_KNOWN_INDEXES:
            self._known.popitem(last=False)

    def close(self) -> None:
        """Give all files back; one that a thread reads from is closed when that read is over.

        Closing it at once would let the thread read from whatever file gets the same descriptor.
        """
        with self._lock:
            self._open.clear()
