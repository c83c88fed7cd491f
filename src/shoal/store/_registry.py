"""Which store serves which URL, and suggestions for paths that do not exist."""

from __future__ import annotations

import contextlib
import difflib
import os

from shoal.errors import ObjectNotFoundError, StoreError

from ._base import Store
from ._local import LocalStore
from ._memory import MemoryStore
from ._options import options_for, shown
from ._url import OBJECT_STORES, local_path, scheme_of

__all__ = ["cache_mode", "is_remote", "no_such_path", "register_store", "store_for"]

_REMOTE_SCHEMES = {*OBJECT_STORES, "hf"}
"""Schemes whose readers are `RemoteReader`."""
_STORES: dict[str, Store] = {"file": LocalStore(), "memory": MemoryStore()}
_MAX_SUGGESTIONS = 3


def register_store(scheme: str, store: Store) -> None:
    """Serve every ``scheme://`` URL of this process from ``store``.

    A store that says ``is_remote`` opens objects as `RemoteReader`, which are read ahead.

    Examples:
        >>> register_store("scratch", MemoryStore())
        >>> _ = store_for("scratch://a/b.bin").write_all("scratch://a/b.bin", b"hello")
        >>> store_for("scratch://a/b.bin").read_all("scratch://a/b.bin")
        b'hello'
    """
    _STORES[scheme.lower()] = store
    _REMOTE_SCHEMES.discard(scheme.lower())
    if getattr(store, "is_remote", False):
        _REMOTE_SCHEMES.add(scheme.lower())


def store_for(url: str) -> Store:
    """The store that serves ``url``. Raises StoreError for a scheme nobody registered."""
    scheme = scheme_of(url)
    try:
        return _STORES[scheme]
    except KeyError:
        if scheme in OBJECT_STORES:
            return _load_object_store()
        if scheme == "hf":
            from ._huggingface import HubStore

            return _STORES.setdefault("hf", HubStore())
        known = ", ".join(f"{name}://" for name in sorted({*_STORES, *OBJECT_STORES, "hf"}))
        raise StoreError(
            f"no store for {scheme}:// URLs",
            expected=f"a path or one of {known}",
            found=url,
            hint="add one with shoal.store.register_store",
        ) from None


def is_remote(url: str) -> bool:
    """Whether reading ``url`` takes a request to another machine, so that what is read is better asked for ahead.

    Examples:
        >>> is_remote("s3://bucket/a.tar"), is_remote("data/a.tar")
        (True, False)
    """
    return scheme_of(url) in _REMOTE_SCHEMES


def cache_mode(url: str, mode: str | None) -> str | None:
    """What of an object is kept on the local disk: ``mode``, or else what `configure` says; nothing of a local one."""
    if not is_remote(url):
        return None
    return options_for(url).cache if mode is None else mode


def _load_object_store() -> Store:
    """Import obstore's store on first use: that takes a third of the time of importing shoal."""
    from ._obstore import ObstoreStore

    made = ObstoreStore()
    for scheme in OBJECT_STORES:
        _STORES.setdefault(scheme, made)
    return made


def no_such_path(url: str) -> ObjectNotFoundError:
    """The error for a file or folder that a user named and that is not there, with the names that are near it.

    Examples:
        >>> import os
        >>> os.makedirs("pets-tar")
        >>> print(no_such_path("pets-tars"))
        no such file or folder: found pets-tars; did you mean pets-tar?
    """
    similar = _similar_paths(url) if scheme_of(url) == "file" else []
    hint = f"did you mean {' or '.join(similar)}?" if similar else "check the path"
    return ObjectNotFoundError("no such file or folder", found=shown(url), hint=hint)


def _similar_paths(url: str) -> list[str]:
    """Return paths in the same folder whose names are similar."""
    folder, name = os.path.split(local_path(url).rstrip("/"))
    names: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        names = os.listdir(folder or os.curdir)
    lower: dict[str, str] = {each.lower(): each for each in sorted(names)}
    found = difflib.get_close_matches(name.lower(), lower, _MAX_SUGGESTIONS)
    return [os.path.join(folder, lower[each]) for each in found]
