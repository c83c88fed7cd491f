"""Files of Hugging Face repositories, by ``hf://datasets/org/name@revision/path``, for reading.

One listing tells the size of every file, so nothing is asked of a file before its bytes are. What is listed is one
commit, and its files are read at that commit: a push meanwhile is seen when the repository is opened again.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from shoal.errors import ObjectNotFoundError, StoreError

from ._base import ObjectInfo, ObjectReader, ObjectWriter
from ._fetch import Known, Place, fetch
from ._fork import anew_in_child
from ._hf_access import hub_endpoint, hub_headers
from ._hf_api import HubFile, HubSnapshot, Repository, commit_of, files_of, place_in, repository_of
from ._obstore import ObstoreReader
from ._options import options_for

__all__ = ["HubStore"]

_GOOD_FOR = 5.0
"""Seconds for which a branch is taken to be where it was: opening a dataset asks several times in a row."""
_MOST_HELD = 16
_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class _Held:
    snapshot: HubSnapshot
    asked: float

    @property
    def is_old(self) -> bool:
        return time.monotonic() - self.asked > _GOOD_FOR


_lock = threading.Lock()
_HELD: OrderedDict[tuple[str, ...], _Held] = OrderedDict()
_SMALL_FILES: OrderedDict[str, bytes] = OrderedDict()
"""Small files by their address at a commit, which never change."""


def _renew() -> None:
    """The child's own; what was listed stays true."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


anew_in_child(_renew)


def _snapshot_of(repository: Repository, *, fresh: bool = True) -> HubSnapshot:
    """What a repository holds: as of at most a few seconds ago, or, unless ``fresh``, of when it was last asked."""
    key = _key(repository)
    held = _HELD.get(key)
    if held is None or (fresh and held.is_old):
        with _lock:  # one asks, the others wait for it
            held = _HELD.get(key)
            if held is None or (fresh and held.is_old):
                held = _HELD[key] = _asked(repository, held)
                _HELD.move_to_end(key)
            while len(_HELD) > _MOST_HELD:
                _HELD.popitem(last=False)
    return held.snapshot


def _asked(repository: Repository, held: _Held | None) -> _Held:
    """The commit is asked for again, the files of a commit never."""
    commit, now = commit_of(repository), time.monotonic()
    if held is not None and held.snapshot.commit == commit:
        return _Held(held.snapshot, now)
    return _Held(HubSnapshot(commit, {file.path: file for file in files_of(repository, commit)}), now)


def _key(repository: Repository) -> tuple[str, ...]:
    """What one user may see, another may not."""
    options = options_for(repository.prefix)
    user = hashlib.sha256(str(hub_headers(options, os.environ)).encode()).hexdigest()
    return (hub_endpoint(options, os.environ), user, repository.kind, repository.name, repository.revision)


class HubStore:
    """Files under ``hf://``, for reading. They are written by ``shoal.hub.push_to_hub``, as commits."""

    def snapshot(self, url: str) -> HubSnapshot:
        """All files of a repository, at the commit where its revision is now or was a few seconds ago.

        Raises ObjectNotFoundError for a repository or a revision that is not there, or not to be seen without a token.
        """
        return _snapshot_of(repository_of(url)[0])

    def forget(self, url: str) -> None:
        """Ask anew when next needed: for whoever has just changed the repository."""
        repository, _ = repository_of(url)
        with _lock:
            for key in [key for key in _HELD if key[2:4] == (repository.kind, repository.name)]:
                del _HELD[key]

    def info(self, url: str) -> ObjectInfo:
        file, _ = _found(url)
        return ObjectInfo(url, file.size, file.oid)

    def open(self, url: str) -> ObjectReader:
        file, place = _found(url)
        return ObstoreReader(place, Known(file.size, file.oid, None))

    def read_all(self, url: str) -> bytes:
        file, place = _found(url)
        if file.size > place.options.part_size:
            return ObstoreReader(place, Known(file.size, file.oid, None)).read(0, file.size)
        if file.size > _SMALL:
            return fetch(place, 0, None, Known(file.size, file.oid, None)).data
        return _small(file, place)

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        repository, folder = repository_of(url)
        start = f"{folder}/" if folder else ""
        root = repository.prefix.rstrip("/")
        for path, file in sorted(_snapshot_of(repository).files.items()):
            if path.startswith(start) and (depth is None or path[len(start) :].count("/") < depth):
                yield ObjectInfo(f"{root}/{path}", file.size, file.oid)

    def is_folder(self, url: str) -> bool:
        try:
            repository, folder = repository_of(url)
            paths = _snapshot_of(repository).files
        except ObjectNotFoundError:
            return False
        return any(path.startswith(f"{folder}/") for path in paths) if folder else bool(paths)

    def create(self, url: str) -> ObjectWriter:
        _refuse(url)

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        _refuse(url)

    def append(self, url: str, data: bytes) -> None:
        _refuse(url)

    def delete(self, url: str) -> None:
        _refuse(url)

    def move(self, url: str, target: str) -> None:
        _refuse(url)


def _found(url: str) -> tuple[HubFile, Place]:
    """A file as it was listed, and where its bytes are. Raises ObjectNotFoundError."""
    repository, path = repository_of(url)
    snapshot = _snapshot_of(repository, fresh=False)
    if path not in snapshot.files:
        snapshot = _snapshot_of(repository)  # it may have come since
    file = snapshot.files.get(path)
    if file is None:
        raise ObjectNotFoundError("no such file in the repository", found=url)
    return file, place_in(repository, snapshot.commit, path, url)


def _small(file: HubFile, place: Place) -> bytes:
    """A manifest is read by whoever opens a dataset, a split of it, or its card: it is fetched once."""
    key = f"{place.address.root}/{place.address.path}"
    held = _SMALL_FILES.get(key)
    if held is None:
        held = fetch(place, 0, None, Known(file.size, file.oid, None)).data if file.size else b""
        with _lock:
            _SMALL_FILES[key] = held
            while len(_SMALL_FILES) > _MOST_HELD:
                _SMALL_FILES.popitem(last=False)
    return held


def _refuse(url: str) -> NoReturn:
    raise StoreError(
        "a Hugging Face repository is not written file by file", found=url, hint="shoal.hub.push_to_hub(folder, repo)"
    )
