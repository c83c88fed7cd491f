"""Bytes by URL: where shards, sidecars and manifests live.

A :class:`Store` serves one kind of URL. ``store_for(url)`` finds it; plain paths and ``file://`` go to the local disk,
``memory://`` to a dictionary of this process, ``s3://``, ``gs://``, ``az://`` and ``http(s)://`` to object stores,
reached as :func:`configure` says. Readers depend on the narrow :class:`ObjectReader` (``size``, ``version`` and
``read(start, stop)``), writers on :class:`ObjectWriter` (``write``, ``commit``, ``abort``): an object appears whole or
not at all.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._base import CopyingStore, ObjectInfo, ObjectReader, ObjectWriter, ScatterReader, Store
from ._cache import cache_dir
from ._local import LocalStore
from ._memory import MemoryStore
from ._options import CredentialProvider, StoreOptions, configure, configure_all, configured, options_for
from ._pattern import expand_braces, expand_pattern, number_in_name, numbered_name
from ._ranges import RangePlan, plan_ranges
from ._route import register_store, store_for
from ._traffic import OpLog, Statistics, op_log, statistics
from ._transfer import Progress, Transferred, copy, download, upload
from ._url import base_name, join_url, local_path, parent_url, relative_url, scheme_of
from ._verbs import delete, exists, get, get_many, put, put_many, stat
from ._verbs import list_objects as list  # noqa: A004 - the verb everybody looks for: shoal.store.list

if TYPE_CHECKING:
    from ._obstore import ObstoreStore

__all__ = [
    "CopyingStore",
    "CredentialProvider",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "ObstoreStore",
    "OpLog",
    "Progress",
    "RangePlan",
    "ScatterReader",
    "Statistics",
    "Store",
    "StoreOptions",
    "Transferred",
    "base_name",
    "cache_dir",
    "configure",
    "configure_all",
    "configured",
    "copy",
    "delete",
    "download",
    "exists",
    "expand_braces",
    "expand_pattern",
    "get",
    "get_many",
    "join_url",
    "list",
    "local_path",
    "number_in_name",
    "numbered_name",
    "op_log",
    "options_for",
    "parent_url",
    "plan_ranges",
    "put",
    "put_many",
    "register_store",
    "relative_url",
    "scheme_of",
    "stat",
    "statistics",
    "store_for",
    "upload",
]


def __getattr__(name: str) -> Any:
    if name != "ObstoreStore":
        raise AttributeError(f"module 'shoal.store' has no attribute {name!r}", name=name)
    from ._obstore import ObstoreStore  # loaded when first used, as in `store_for`

    return ObstoreStore


def __dir__() -> Sequence[str]:  # `list` is a verb here
    return sorted([*globals(), *__all__])
