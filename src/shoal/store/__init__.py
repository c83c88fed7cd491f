"""Bytes by URL: where shards, sidecars and manifests live.

A :class:`Store` serves one kind of URL. ``store_for(url)`` finds it; plain paths and ``file://`` go to the local disk,
``memory://`` to a dictionary of this process. Readers depend on the narrow :class:`ObjectReader` (``size``, ``version``
and ``read(start, stop)``), writers on :class:`ObjectWriter` (``write``, ``commit``, ``abort``): an object appears whole
or not at all.
"""

from ._base import ObjectInfo, ObjectReader, ObjectWriter, ScatterReader, Store
from ._cache import cache_dir
from ._local import LocalStore
from ._memory import MemoryStore
from ._pattern import expand_braces, expand_pattern, number_in_name, numbered_name
from ._route import register_store, store_for
from ._url import base_name, join_url, local_path, parent_url, relative_url, scheme_of

__all__ = [
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "ScatterReader",
    "Store",
    "base_name",
    "cache_dir",
    "expand_braces",
    "expand_pattern",
    "join_url",
    "local_path",
    "number_in_name",
    "numbered_name",
    "parent_url",
    "register_store",
    "relative_url",
    "scheme_of",
    "store_for",
]
