"""Open a shard: find its index, or make it once and keep it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings

from shoal.errors import ObjectNotFoundError, ShardIndexError, ShoalWarning, StoreError
from shoal.shard._compress import sniff, unpacked_cache
from shoal.shard._index import IndexFacts, KnownIndex, ShardIndex, build_index, load_index, save_index
from shoal.shard._one import CompressedBytes, PlainBytes, Shard, TarBytes
from shoal.shard._tar import BLOCK, WEBDATASET_RULE, KeyRule, ReaderFeed, crc32
from shoal.store import (
    FarReader,
    HeldReader,
    ObjectReader,
    base_name,
    cache_dir,
    cached_reader,
    join_url,
    local_path,
    options_for,
    parent_url,
    scheme_of,
    store_for,
)

__all__ = [
    "INDEX_FOLDER",
    "SIDECAR_FOLDER",
    "cached_index_url",
    "find_index",
    "fitting_index",
    "index_shard",
    "index_url",
    "open_indexed",
    "open_shard",
]

SIDECAR_FOLDER = ".shoal"
INDEX_FOLDER = "index"


def index_url(root: str, path: str) -> str:
    """Where the index of the shard ``path``, relative to the dataset's root, is kept."""
    return join_url(root, SIDECAR_FOLDER, INDEX_FOLDER, path + ".arrow")


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
    cache = options_for(url).cache if cache is None else cache
    reader = cached_reader(store_for(url).open(url), cache)
    try:
        if known is not None and known.info == reader.info:
            return _opened(url, known.index, reader, verify)
        found = _sidecar(url, sidecar, rule) if cache is None else _kept_sidecar(url, sidecar, rule, reader)
        if found is not None:
            _check_fits(found, reader)
            return _opened(url, found, reader, verify)
        return _open_foreign(url, reader, rule, verify)
    except BaseException:
        reader.close()
        raise


def _sidecar(url: str, named: str | None, rule: KeyRule, *, whole: bool = False) -> ShardIndex | None:
    """The index kept with the shard, unless it was made by another rule; None when there is none."""
    for stored in _places(url) if named is None else (named,):
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
    cache = options_for(url).cache if cache is None else cache
    reader = cached_reader(store_for(url).open(url), cache)
    try:
        found = fitting_index(cached_index_url(reader, rule), reader)
        if found is None and (found := _sidecar(url, None, rule)) is not None:
            _check_fits(found, reader)
        return reader if found is None else _opened(url, found, reader, verify)
    except BaseException:
        reader.close()
        raise


def _kept_sidecar(url: str, named: str | None, rule: KeyRule, reader: ObjectReader) -> ShardIndex | None:
    """The same through the cache, where it is kept for this state of the shard."""
    kept = cached_index_url(reader, rule)
    found = fitting_index(kept, reader)
    if found is None and (found := _sidecar(url, named, rule)) is not None:
        with contextlib.suppress(StoreError):  # a cache that cannot be written costs time, nothing else
            save_index(found, kept)
    return found


def _places(url: str) -> tuple[str, ...]:
    """Where the index is of a shard in a dataset's root, or in a folder of it."""
    folder = parent_url(url)
    beside, above = index_url(folder, base_name(url)), parent_url(folder)
    if above.endswith("://"):  # the folder is a bucket or a host, and what is above it is nowhere
        return (beside,)
    return beside, index_url(above, f"{base_name(folder)}/{base_name(url)}")


def find_index(reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE, *, whole: bool = False) -> ShardIndex | None:
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


def fitting_index(stored: str, reader: ObjectReader) -> ShardIndex | None:
    """The index stored at this URL; None when there is none, or none that fits the open shard."""
    try:
        index = load_index(stored)
        _check_fits(index, reader)
    except (ObjectNotFoundError, ShardIndexError):
        return None
    return index


def _check_fits(index: ShardIndex, reader: ObjectReader) -> None:
    head = reader.read(0, BLOCK)
    index.check_object(reader.info.url, reader.info.size, head, crc32(head))


def _opened(url: str, index: ShardIndex, reader: ObjectReader, verify: bool) -> Shard:
    far = HeldReader(reader) if isinstance(reader, FarReader) else None
    data = _bytes(reader if far is None else far, index)
    is_packed = index.facts.compression is not None and isinstance(data, PlainBytes)  # read from where it was unpacked
    known = KnownIndex(reader.info, index)
    return Shard(url, index, data, verify=verify, far=None if is_packed else far, known=known)


def _bytes(reader: ObjectReader, index: ShardIndex) -> TarBytes:
    compression, blocks = index.facts.compression, index.blocks
    if compression is None:
        return PlainBytes(reader)
    if blocks is not None and blocks.stored is not None:
        return CompressedBytes(reader, compression, blocks)
    return PlainBytes(_unpacked(reader, compression))


def _unpacked(reader: ObjectReader, compression: str) -> ObjectReader:
    path = unpacked_cache(reader, compression, cache_dir())
    reader.close()
    return store_for(path).open(path)


def _open_foreign(url: str, reader: ObjectReader, rule: KeyRule, verify: bool) -> Shard:
    cached = cached_index_url(reader, rule)
    index = fitting_index(cached, reader)
    if index is None:
        index = index_shard(reader, rule)
        _keep(index, cached)
    return _opened(url, index, reader, verify)


def _keep(index: ShardIndex, url: str) -> None:
    """Store an index in the cache; one that cannot be written costs time, nothing else."""
    try:
        save_index(index, url)
    except StoreError as error:
        told = f"indexes cannot be kept in the cache and are made again each time: {error.problem}"
        warnings.warn(f"{told}; set SHOAL_CACHE to a folder that can be written", ShoalWarning, stacklevel=2)


def cached_index_url(reader: ObjectReader, rule: KeyRule) -> str:
    """One place for each state of each object: a changed file is another entry."""
    info = reader.info
    place = os.path.abspath(local_path(info.url)) if scheme_of(info.url) == "file" else info.url
    name = hashlib.sha256(repr((place, info.size, info.version, rule)).encode()).hexdigest()
    return join_url(cache_dir(), INDEX_FOLDER, name + ".arrow")


def index_shard(reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE) -> ShardIndex:
    """Index an open object: a tar, or a compressed tar, told apart by its content.

    A compressed one is unpacked into the cache, since a foreign stream cannot be entered in the middle.
    """
    head = reader.read(0, BLOCK)
    facts = IndexFacts(reader.info.size, crc32(head), rule, sniff(head))
    if facts.compression is None:
        return build_index(ReaderFeed(reader), facts, reader.info.url)
    path = unpacked_cache(reader, facts.compression, cache_dir())
    unpacked = store_for(path).open(path)
    try:
        return build_index(ReaderFeed(unpacked), facts, reader.info.url)
    finally:
        unpacked.close()
