"""Files of Hugging Face repositories by ``hf://`` URLs.

One listing tells the size of every file, so nothing is asked of a file before its bytes are. What is listed is one
commit, and its files are read at that commit: a push meanwhile is seen when the repository is opened again.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import msgspec

from shoal.errors import ObjectNotFoundError, StoreError

from ._base import ObjectInfo, ObjectReader, ObjectWriter, anew_in_child
from ._clients import Address, hub_endpoint, hub_headers
from ._concurrency import hold_all
from ._error_mapping import Failure
from ._http import failure_of_answer
from ._obstore import ObstoreReader
from ._options import gates_for, options_for
from ._requests import ObjectVersion, Place, RequestFailed, RetryBudget, fetch, wait_turn
from ._statistics import request

__all__ = ["HubFile", "HubSnapshot", "HubStore", "repository_of"]


# ------------------------------------------ files of Hugging Face repositories, by hf://datasets/org/name@revision/path


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
        return ObstoreReader(place, ObjectVersion(file.size, file.oid, None))

    def read_all(self, url: str) -> bytes:
        file, place = _found(url)
        if file.size > place.options.part_size:
            return ObstoreReader(place, ObjectVersion(file.size, file.oid, None)).read(0, file.size)
        if file.size > _SMALL:
            return fetch(place, 0, None, ObjectVersion(file.size, file.oid, None)).data
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
        held = fetch(place, 0, None, ObjectVersion(file.size, file.oid, None)).data if file.size else b""
        with _lock:
            _SMALL_FILES[key] = held
            while len(_SMALL_FILES) > _MOST_HELD:
                _SMALL_FILES.popitem(last=False)
    return held


def _refuse(url: str) -> NoReturn:
    raise StoreError(
        "a Hugging Face repository is not written file by file", found=url, hint="shoal.hub.push_to_hub(folder, repo)"
    )


# ------------------------------------------------------------------------- what a Hugging Face Hub says of a repository


# The standard library asks, because it shows the headers: where the next page is, how long to wait after a 429.

_KINDS = {"datasets": "datasets/", "models": "", "spaces": "spaces/"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_REF = re.compile(r"@(refs/(?:pr|convert)/[^/]+|[^/]*)")
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at a revision, and the text by which a URL names it."""

    kind: str
    """``datasets``, ``models`` or ``spaces``."""
    name: str
    revision: str
    prefix: str
    """The URL of its root, as it was written."""

    @property
    def web_path(self) -> str:
        """Where its files are on the server."""
        return f"{_KINDS[self.kind]}{self.name}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: ``oid`` is the sha256 of a large one, and git's hash of others."""

    path: str
    size: int
    oid: str
    is_large: bool


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """All files of a repository at one commit."""

    commit: str
    files: Mapping[str, HubFile]


def repository_of(url: str) -> tuple[Repository, str]:
    """The repository that an ``hf://`` URL names, and the path in it. Raises StoreError.

    As huggingface_hub reads them, ``hf://org/name`` without ``datasets/`` is a model; ``@`` names a revision, in which
    a slash is ``%2F``.

    Example:
        >>> repository, path = repository_of("hf://datasets/org/pets@v1/train/0.tar")
        >>> repository.name, repository.revision, path
        ('org/pets', 'v1', 'train/0.tar')
    """
    rest = url[len("hf://") :]
    kind = rest.partition("/")[0]
    kind, rest = (kind, rest[len(kind) + 1 :]) if kind in _KINDS else ("models", rest)
    owner, _, rest = rest.partition("/")
    name = re.split(r"[@/]", rest, maxsplit=1)[0]
    after = rest[len(name) :]
    told = _REF.match(after)
    path = after[told.end() :] if told else after
    if not owner or not name or (told and not told[1]):
        raise StoreError("the URL names no repository", expected="hf://datasets/org/name@revision/path", found=url)
    if not _NAME.fullmatch(owner) or not _NAME.fullmatch(name):
        raise ObjectNotFoundError("a repository cannot have this name", found=url)
    revision = told[1].replace("%2F", "/").replace("%2f", "/") if told else "main"
    prefix = url[: len(url) - len(path)] if path else url
    return Repository(kind, f"{owner}/{name}", revision, prefix), path.strip("/")


def place_in(repository: Repository, commit: str, path: str, url: str) -> Place:
    """Where a file's bytes are asked for. At a commit, so they are the same for ever."""
    options = options_for(url)
    root = hub_endpoint(options, os.environ)
    return Place(url, Address("hf", root, f"{repository.web_path}/resolve/{commit}/{path}", ""), options)


# ------------------------------------------------------------------------------------------------------------ questions


def commit_of(repository: Repository) -> str:
    """The commit that the revision stands for now; nothing is asked of one that is a commit."""
    if _COMMIT.fullmatch(repository.revision):
        return repository.revision
    answer, _ = _ask(repository, f"revision/{quote(repository.revision, safe='')}?expand=sha")
    return str(answer["sha"])


def files_of(repository: Repository, commit: str) -> Iterator[HubFile]:
    """Every file at a commit, page by page."""
    address: str | None = f"tree/{commit}?recursive=true&expand=false"
    while address is not None:
        entries, headers = _ask(repository, address)
        yield from (_file(entry) for entry in entries if entry["type"] == "file")
        told = _NEXT.search(headers.get("Link", ""))
        address = _below_api(repository, told[1]) if told else None


def _file(entry: Mapping[str, Any]) -> HubFile:
    large = entry.get("lfs")
    return HubFile(entry["path"], entry["size"], (large or entry)["oid"], large is not None)


def _below_api(repository: Repository, link: str) -> str:
    """The part of a link that follows the repository: the token is sent to the hub only, whatever the answer says."""
    parts = urlsplit(link)
    return f"{parts.path.partition(f'/{repository.name}/')[2]}?{parts.query}"


def _ask(repository: Repository, what: str) -> tuple[Any, Message]:
    url = repository.prefix
    options = options_for(url)
    root = hub_endpoint(options, os.environ)
    place = Place(url, Address("hf", root, "", ""), options)
    patience = RetryBudget(place)
    while True:
        wait_turn(root)
        try:
            return _once(f"{root}/api/{repository.kind}/{repository.name}/{what}", place, retry=patience.attempts > 0)
        except RequestFailed as failed:
            if (known := _known_error(failed.failure, repository)) is not None:
                raise known from None
            patience.give_up_or_wait(failed.failure)


def _once(address: str, place: Place, *, retry: bool) -> tuple[Any, Message]:
    """The document and the headers of one answer. Raises RequestFailed."""
    asked = urllib.request.Request(address)  # noqa: S310 - http(s) only
    for name, value in hub_headers(place.options, os.environ).items():
        asked.add_unredirected_header(name, value)
    with hold_all(gates_for(place.url)), request("LIST", place.url, place.address.root, retry=retry):
        try:
            with urllib.request.urlopen(asked, timeout=place.options.timeout) as answer:  # noqa: S310 - http(s) only
                return msgspec.json.decode(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                raise RequestFailed(failure_of_answer(error.code, error.headers)) from None
        except TimeoutError:
            raise RequestFailed(Failure("Timeout", broken="Timeout")) from None
        except urllib.error.URLError:
            raise RequestFailed(Failure("Broken", broken="Connect")) from None
        except (OSError, HTTPException):
            raise RequestFailed(Failure("Broken", broken="Interrupted")) from None
        except msgspec.DecodeError:
            raise RequestFailed(Failure("Broken", broken="Decode")) from None


def _known_error(failure: Failure, repository: Repository) -> StoreError | None:
    """What the hub's own words mean."""
    url = repository.prefix
    if failure.code == "RepoNotFound":
        hint = "check the name; for a private one set HF_TOKEN, or log in with `hf auth login`"
        hint += "" if repository.kind != "models" else f"; a dataset is hf://datasets/{repository.name}"
        return ObjectNotFoundError("no such repository, or a private one", found=url, hint=hint)
    if failure.code == "RevisionNotFound":
        return ObjectNotFoundError("no such revision", found=f"{repository.revision} of {url}")
    return None
