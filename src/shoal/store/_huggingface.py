"""Files of Hugging Face repositories, by ``hf://datasets/org/name@revision/path``.

One listing has the size of every file, so opening a file takes no request. A listing is of one commit, and its files
are read at that commit: a later push is seen when the repository is opened again.
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

from ._base import ObjectInfo, ObjectReader, ObjectWriter
from ._clients import Address
from ._concurrency import acquire_all
from ._error_mapping import Failure
from ._fork import register_after_fork
from ._http import failure_of_answer
from ._hub_access import hub_endpoint, hub_headers
from ._obstore import ObstoreReader
from ._options import concurrency_limits_for, options_for
from ._requests import ObjectLocation, ObjectVersion, RequestError, RetryBudget, fetch, wait_for_rate_limit
from ._statistics import request

__all__ = ["HubFile", "HubSnapshot", "HubStore", "repository_of"]


_MAX_AGE_S = 5.0
"""A listing is taken to be current for this long: opening a dataset needs it several times in a row."""
_MAX_CACHED = 16
_MAX_SMALL_FILE_BYTES = 1 << 20
_KINDS = {"datasets": "datasets/", "models": "", "spaces": "spaces/"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_REF = re.compile(r"@(refs/(?:pr|convert)/[^/]+|[^/]*)")
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at a revision, and the URL of its root."""

    kind: str
    """``datasets``, ``models`` or ``spaces``."""
    name: str
    revision: str
    prefix: str
    """The URL of its root, as it was written."""

    @property
    def web_path(self) -> str:
        """The path of its files on the server."""
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

    Examples:
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


def _locate_file(repository: Repository, commit: str, path: str, url: str) -> ObjectLocation:
    """Return the location of a file's bytes at a commit, where they never change."""
    options = options_for(url)
    root = hub_endpoint(options, os.environ)
    return ObjectLocation(url, Address("hf", root, f"{repository.web_path}/resolve/{commit}/{path}", ""), options)


@dataclass(frozen=True, slots=True)
class _Listing:
    snapshot: HubSnapshot
    requested_at: float

    @property
    def is_old(self) -> bool:
        return time.monotonic() - self.requested_at > _MAX_AGE_S


_lock = threading.Lock()
_LISTINGS: OrderedDict[tuple[str, ...], _Listing] = OrderedDict()
_SMALL_FILES: OrderedDict[str, bytes] = OrderedDict()
"""Small files by their address at a commit, which never change."""


def _reset_after_fork() -> None:
    """Replace the lock, which may be held; listings stay valid."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


register_after_fork(_reset_after_fork)


def _snapshot_of(repository: Repository, *, fresh: bool = True) -> HubSnapshot:
    """Return the files of a repository, from at most a few seconds ago or, unless ``fresh``, from the last listing."""
    key = _cache_key(repository)
    held = _LISTINGS.get(key)
    if held is None or (fresh and held.is_old):
        with _lock:  # one thread requests it, the others wait
            held = _LISTINGS.get(key)
            if held is None or (fresh and held.is_old):
                held = _LISTINGS[key] = _refresh(repository, held)
                _LISTINGS.move_to_end(key)
            while len(_LISTINGS) > _MAX_CACHED:
                _LISTINGS.popitem(last=False)
    return held.snapshot


def _refresh(repository: Repository, held: _Listing | None) -> _Listing:
    """Request the commit, and its files only if it is another one."""
    commit, now = _commit_of(repository), time.monotonic()
    if held is not None and held.snapshot.commit == commit:
        return _Listing(held.snapshot, now)
    return _Listing(HubSnapshot(commit, {file.path: file for file in _files_of(repository, commit)}), now)


def _cache_key(repository: Repository) -> tuple[str, ...]:
    """Return the cache key of a listing; the token is part of it, because users see different repositories."""
    options = options_for(repository.prefix)
    user = hashlib.sha256(str(hub_headers(options, os.environ)).encode()).hexdigest()
    return (hub_endpoint(options, os.environ), user, repository.kind, repository.name, repository.revision)


class HubStore:
    """Files under ``hf://``, for reading. They are written by ``shoal.hub.push_to_hub``, as commits."""

    def snapshot(self, url: str) -> HubSnapshot:
        """Return all files of a repository, at the commit of its revision now or a few seconds ago.

        Raises ObjectNotFoundError for a repository or a revision that does not exist or needs a token.
        """
        return _snapshot_of(repository_of(url)[0])

    def forget(self, url: str) -> None:
        """Drop the listings of a repository, because it was just changed."""
        repository, _ = repository_of(url)
        with _lock:
            for key in [key for key in _LISTINGS if key[2:4] == (repository.kind, repository.name)]:
                del _LISTINGS[key]

    def info(self, url: str) -> ObjectInfo:
        file, _ = _find_file(url)
        return ObjectInfo(url, file.size, file.oid)

    def open(self, url: str) -> ObjectReader:
        file, location = _find_file(url)
        return ObstoreReader(location, ObjectVersion(file.size, file.oid, None))

    def read_all(self, url: str) -> bytes:
        file, location = _find_file(url)
        if file.size > location.options.part_size:
            return ObstoreReader(location, ObjectVersion(file.size, file.oid, None)).read(0, file.size)
        if file.size > _MAX_SMALL_FILE_BYTES:
            return fetch(location, 0, None, ObjectVersion(file.size, file.oid, None)).data
        return _read_small(file, location)

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


def _find_file(url: str) -> tuple[HubFile, ObjectLocation]:
    """Return a file of the listing, and the location of its bytes. Raises ObjectNotFoundError."""
    repository, path = repository_of(url)
    snapshot = _snapshot_of(repository, fresh=False)
    if path not in snapshot.files:
        snapshot = _snapshot_of(repository)  # it may be newer than the listing
    file = snapshot.files.get(path)
    if file is None:
        raise ObjectNotFoundError("no such file in the repository", found=url)
    return file, _locate_file(repository, snapshot.commit, path, url)


def _read_small(file: HubFile, location: ObjectLocation) -> bytes:
    """Read a small file through the cache: opening a dataset, a split or a card reads the same manifest."""
    key = f"{location.address.root}/{location.address.path}"
    held = _SMALL_FILES.get(key)
    if held is None:
        held = fetch(location, 0, None, ObjectVersion(file.size, file.oid, None)).data if file.size else b""
        with _lock:
            _SMALL_FILES[key] = held
            while len(_SMALL_FILES) > _MAX_CACHED:
                _SMALL_FILES.popitem(last=False)
    return held


def _refuse(url: str) -> NoReturn:
    raise StoreError(
        "a Hugging Face repository is not written file by file", found=url, hint="shoal.hub.push_to_hub(folder, repo)"
    )


def _commit_of(repository: Repository) -> str:
    """Return the commit of the revision; no request if the revision is a commit itself."""
    if _COMMIT.fullmatch(repository.revision):
        return repository.revision
    answer, _ = _request(repository, f"revision/{quote(repository.revision, safe='')}?expand=sha")
    return str(answer["sha"])


def _files_of(repository: Repository, commit: str) -> Iterator[HubFile]:
    """Yield every file at a commit, page by page."""
    address: str | None = f"tree/{commit}?recursive=true&expand=false"
    while address is not None:
        entries, headers = _request(repository, address)
        yield from (_file(entry) for entry in entries if entry["type"] == "file")
        told = _NEXT.search(headers.get("Link", ""))
        address = _api_path(repository, told[1]) if told else None


def _file(entry: Mapping[str, Any]) -> HubFile:
    large = entry.get("lfs")
    return HubFile(entry["path"], entry["size"], (large or entry)["oid"], large is not None)


def _api_path(repository: Repository, link: str) -> str:
    """Return the part of a link after the repository, so that the token is never sent to another host."""
    parts = urlsplit(link)
    return f"{parts.path.partition(f'/{repository.name}/')[2]}?{parts.query}"


def _request(repository: Repository, what: str) -> tuple[Any, Message]:
    """Send a request to the hub's API by urllib, which shows the headers: the next page, the wait after a 429."""
    url = repository.prefix
    options = options_for(url)
    root = hub_endpoint(options, os.environ)
    location = ObjectLocation(url, Address("hf", root, "", ""), options)
    budget = RetryBudget(location)
    while True:
        wait_for_rate_limit(root)
        try:
            return _request_once(
                f"{root}/api/{repository.kind}/{repository.name}/{what}", location, retry=budget.attempts > 0
            )
        except RequestError as failed:
            if (known := _hub_error(failed.failure, repository)) is not None:
                raise known from None
            budget.give_up_or_wait(failed.failure)


def _request_once(address: str, location: ObjectLocation, *, retry: bool) -> tuple[Any, Message]:
    """Return document and headers of one response. Raises RequestError."""
    asked = urllib.request.Request(address)  # noqa: S310 - http(s) only
    for name, value in hub_headers(location.options, os.environ).items():
        asked.add_unredirected_header(name, value)
    with (
        acquire_all(concurrency_limits_for(location.url)),
        request("LIST", location.url, location.address.root, retry=retry),
    ):
        try:
            with urllib.request.urlopen(asked, timeout=location.options.timeout) as answer:  # noqa: S310 - http(s) only
                return msgspec.json.decode(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                raise RequestError(failure_of_answer(error.code, error.headers)) from None
        except TimeoutError:
            raise RequestError(Failure("Timeout", broken="Timeout")) from None
        except urllib.error.URLError:
            raise RequestError(Failure("Broken", broken="Connect")) from None
        except (OSError, HTTPException):
            raise RequestError(Failure("Broken", broken="Interrupted")) from None
        except msgspec.DecodeError:
            raise RequestError(Failure("Broken", broken="Decode")) from None


def _hub_error(failure: Failure, repository: Repository) -> StoreError | None:
    """Return the error for the hub's own error codes, or None."""
    url = repository.prefix
    if failure.code == "RepoNotFound":
        hint = "check the name; for a private one set HF_TOKEN, or log in with `hf auth login`"
        hint += "" if repository.kind != "models" else f"; a dataset is hf://datasets/{repository.name}"
        return ObjectNotFoundError("no such repository, or a private one", found=url, hint=hint)
    if failure.code == "RevisionNotFound":
        return ObjectNotFoundError("no such revision", found=f"{repository.revision} of {url}")
    return None
