"""Bytes by URL: where shards, sidecars and manifests live.

A :class:`Store` serves one kind of URL. ``store_for(url)`` finds it; plain paths and ``file://`` go to the local disk,
``memory://`` to a dictionary of this process, ``s3://``, ``gs://``, ``az://`` and ``http(s)://`` to object stores, and
``hf://`` to the Hugging Face Hub, reached as :func:`configure` says. Readers depend on the narrow
:class:`ObjectReader` (``size``, ``version`` and ``read(start, stop)``), writers on :class:`ObjectWriter` (``write``,
``commit``, ``abort``): an object appears whole or not at all.
"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._base import (
    CopyingStore,
    FolderStore,
    ObjectInfo,
    ObjectReader,
    ObjectWriter,
    RemoteReader,
    ScatterReader,
    Store,
    UpdatingStore,
)
from ._cache import (
    CachedReader,
    CacheEntry,
    cache_dir,
    cache_entries,
    cached_reader,
    clear_cache,
    count_added,
    mark_used,
)
from ._concurrency import submit
from ._hub_access import HubAccess, hub_access
from ._local import LocalStore
from ._memory import MemoryStore
from ._operations import (
    Progress,
    Transferred,
    copy,
    delete,
    download,
    exists,
    folders,
    get,
    get_many,
    prefetch_small_object,
    put,
    put_many,
    stat,
    upload,
)
from ._operations import list_objects as list  # noqa: A004 - the verb everybody looks for: shoal.store.list_objects
from ._options import CredentialProvider, StoreOptions, configure, configure_all, configured, options_for
from ._pattern import expand_braces, expand_pattern, number_in_name, numbered_name
from ._ranges import RangePlan, cut_range, plan_ranges
from ._read_only import ReadOnlyStore, RenamedReader
from ._readers import PrefetchedReader, PrefetchRange, StreamingReader, read_forward
from ._registry import is_remote, no_such_path, register_store, store_for
from ._snapshot import StoreSnapshot
from ._statistics import OpLog, Statistics, op_log, statistics
from ._url import base_name, join_url, local_path, parent_url, relative_url, scheme_of

if TYPE_CHECKING:
    from ._huggingface import HubFile, HubSnapshot, HubStore
    from ._obstore import ObstoreStore

__all__ = [
    "CacheEntry",
    "CachedReader",
    "CopyingStore",
    "CredentialProvider",
    "FolderStore",
    "HubAccess",
    "HubFile",
    "HubSnapshot",
    "HubStore",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "ObstoreStore",
    "OpLog",
    "PrefetchRange",
    "PrefetchedReader",
    "Progress",
    "RangePlan",
    "ReadOnlyStore",
    "RemoteReader",
    "RenamedReader",
    "ScatterReader",
    "Statistics",
    "Store",
    "StoreOptions",
    "StoreSnapshot",
    "StreamingReader",
    "Transferred",
    "UpdatingStore",
    "base_name",
    "cache_dir",
    "cache_entries",
    "cached_reader",
    "clear_cache",
    "configure",
    "configure_all",
    "configured",
    "copy",
    "count_added",
    "cut_range",
    "delete",
    "download",
    "exists",
    "expand_braces",
    "expand_pattern",
    "folders",
    "get",
    "get_many",
    "hub_access",
    "is_remote",
    "join_url",
    "list",
    "local_path",
    "mark_used",
    "no_such_path",
    "number_in_name",
    "numbered_name",
    "op_log",
    "options_for",
    "parent_url",
    "plan_ranges",
    "prefetch_small_object",
    "put",
    "put_many",
    "read_forward",
    "register_store",
    "relative_url",
    "scheme_of",
    "stat",
    "statistics",
    "store_for",
    "submit",
    "upload",
]


_LAZY = {
    "ObstoreStore": "_obstore",
    "HubStore": "_huggingface",
    "HubFile": "_huggingface",
    "HubSnapshot": "_huggingface",
}
"""Names whose modules import obstore, loaded on first use."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'shoal.store' has no attribute {name!r}", name=name)
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> Sequence[str]:  # `list` is a verb here
    return sorted([*globals(), *__all__])
