"""Which store serves which URL, and suggestions for paths that do not exist."""

from __future__ import annotations

import contextlib
import difflib
import os

from shoal.errors import ObjectNotFoundError, StoreError

from ._base import Store
from ._local import LocalStore
from ._memory import MemoryStore
from ._options import shown
from ._url import OBJECT_STORES, local_path, scheme_of

__all__ = ["is_remote", "no_such_path", "register_store", "store_for"]

_FAR = {*OBJECT_STORES, "hf"}
"""Schemes whose readers are `RemoteReader`."""
_STORES: dict[str, Store] = {"file": LocalStore(), "memory": MemoryStore()}
_MOST_NAMES = 3


def register_store(scheme: str, store: Store) -> None:
    """Serve every ``scheme://`` URL of this process from ``store``.

    A store that says ``is_far`` opens objects as `RemoteReader`, which are read ahead.

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


def is_remote(url: str) -> bool:
    """Whether reading ``url`` takes a request to another machine, so that what is read is better asked for ahead.

    Example:
        >>> is_remote("s3://bucket/a.tar"), is_remote("data/a.tar")
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
    from ._huggingface import HubStore

    return _STORES.setdefault("hf", HubStore())


def no_such_path(url: str) -> ObjectNotFoundError:
    """The error for a file or folder that a user named and that is not there, with the names that are near it.

    Example:
        >>> import os
        >>> os.makedirs("pets-tar")
        >>> print(no_such_path("pets-tars"))
        no such file or folder: found pets-tars; did you mean pets-tar?
    """
    near = _near(url) if scheme_of(url) == "file" else []
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    return ObjectNotFoundError("no such file or folder", found=shown(url), hint=hint)


def _near(url: str) -> list[str]:
    """What lies in the same folder under a name like it."""
    folder, name = os.path.split(local_path(url).rstrip("/"))
    names: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        names = os.listdir(folder or os.curdir)
    lower: dict[str, str] = {each.lower(): each for each in sorted(names)}
    found = difflib.get_close_matches(name.lower(), lower, _MOST_NAMES)
    return [os.path.join(folder, lower[each]) for each in found]
