"""Which database an index is kept in: an argument, then the environment, then a file. Nothing is probed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from shoal.errors import OptionError
from shoal.store import scheme_of

from ._backend import Backend
from ._memory import MemoryBackend
from ._sqlite import SqliteBackend

__all__ = ["backend_for", "default_path"]

_REDIS = ("redis", "rediss", "unix")
_POSTGRES = ("postgresql", "postgres")


def backend_for(
    location: str | os.PathLike[str] | None,
    redis: Any,
    host: str | None,
    port: int | None,
    namespace: str,
    environ: Mapping[str, str],
) -> Backend:
    """The database for these arguments; nothing is opened. Raises OptionError when they say two things."""
    given = [
        name
        for name, value in (("a location", location), ("redis", redis), ("host or port", host or port))
        if value is not None
    ]
    if len(given) > 1:
        raise OptionError("an index is in one place", expected="one of them", found=" and ".join(given))
    if redis is not None:
        return _redis(client=redis, namespace=namespace)
    if host is not None or port is not None:
        return _redis(url=f"redis://{host or '127.0.0.1'}:{port or 6379}/0", namespace=namespace)
    if location is None:
        location = environ.get("SHOAL_INDEX") or environ.get("REDIS_URL") or default_path(environ)
    return _at(os.fspath(location), namespace)


def _at(location: str, namespace: str) -> Backend:
    scheme = scheme_of(location)
    if scheme in _REDIS:
        return _redis(url=location, namespace=namespace)
    if scheme in _POSTGRES:
        from ._postgres import PostgresBackend

        return PostgresBackend(location, namespace)
    if scheme == "memory":
        return MemoryBackend()
    path = location.removeprefix("sqlite:///") if scheme == "sqlite" else location
    if scheme not in ("file", "sqlite") or not path:
        expected = "a path, redis://, rediss://, postgresql:// or memory://"
        raise OptionError("an index cannot be kept there", expected=expected, found=f"{scheme}://...")
    return SqliteBackend(os.path.abspath(os.path.expanduser(path.removeprefix("file://"))))


def _redis(*, url: str | None = None, client: Any = None, namespace: str) -> Backend:
    from ._redis import RedisBackend

    return RedisBackend(url=url, client=client, namespace=namespace)


def default_path(environ: Mapping[str, str]) -> str:
    """The user's own index: ``index.db`` in ``$SHOAL_HOME``, else in the platform's place for data."""
    if chosen := environ.get("SHOAL_HOME"):
        return os.path.join(chosen, "index.db")
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        folder = os.path.join(home, "Library", "Application Support", "shoal")
    elif os.name == "nt":
        folder = os.path.join(environ.get("LOCALAPPDATA", home), "shoal")
    else:
        folder = os.path.join(environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "shoal")
    return os.path.join(folder, "index.db")
