"""Which store serves which URL."""

from __future__ import annotations

from shoal.errors import StoreError

from ._base import Store
from ._local import LocalStore
from ._memory import MemoryStore
from ._url import OBJECT_STORES, scheme_of

__all__ = ["is_far", "register_store", "store_for"]

_FAR = {*OBJECT_STORES, "hf"}
"""Schemes whose readers are `FarReader`."""
_STORES: dict[str, Store] = {"file": LocalStore(), "memory": MemoryStore()}


def register_store(scheme: str, store: Store) -> None:
    """Serve every ``scheme://`` URL of this process from ``store``.

    A store that says ``is_far`` opens objects as `FarReader`, which are read ahead.

    Example:
        >>> register_store("scratch", MemoryStore())
        >>> _ = store_for("scratch://a/b.bin").write_all("scratch://a/b.bin", b"hello")
        >>> store_for("scratch://a/b.bin").read_all("scratch://a/b.bin")
        b'hello'
    """
    _STORES[scheme.lower()] = store
    _FAR.discard(scheme.lower())
    if getattr(store, "is_far", False):
        _FAR.add(scheme.lower())


def store_for(url: str) -> Store:
    """The store that serves ``url``. Raises StoreError for a scheme nobody registered."""
    scheme = scheme_of(url)
    try:
        return _STORES[scheme]
    except KeyError:
        if scheme in OBJECT_STORES:
            return _object_store()
        if scheme == "hf":
            return _hub_store()
        known = ", ".join(f"{name}://" for name in sorted({*_STORES, *OBJECT_STORES, "hf"}))
        raise StoreError(
            f"no store for {scheme}:// URLs",
            expected=f"a path or one of {known}",
            found=url,
            hint="add one with shoal.store.register_store",
        ) from None


def is_far(url: str) -> bool:
    """Whether reading ``url`` takes a request to another machine, so that what is read is better asked for ahead.

    Example:
        >>> is_far("s3://bucket/a.tar"), is_far("data/a.tar")
        (True, False)
    """
    return scheme_of(url) in _FAR


def _object_store() -> Store:
    """Loaded when the first such URL is met: its client and what it needs take a third of the time of an import."""
    from ._obstore import ObstoreStore

    made = ObstoreStore()
    for scheme in OBJECT_STORES:
        _STORES.setdefault(scheme, made)
    return made


def _hub_store() -> Store:
    from ._hf import HubStore

    return _STORES.setdefault("hf", HubStore())
