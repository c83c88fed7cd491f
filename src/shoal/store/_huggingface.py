"""What a Hugging Face Hub says of a repository: which commit a revision is, and which files it holds.

The standard library asks, because it shows the headers: where the next page is, how long to wait after a 429.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from shoal.errors import ObjectNotFoundError, StoreError

from ._clients import Address
from ._fetch import Patience, Place, RequestFailed, wait_turn
from ._foreign import Failure
from ._gate import hold_all
from ._hf_access import hub_endpoint, hub_headers
from ._options import gates_for, options_for
from ._signed import failure_of_answer
from ._traffic import request

__all__ = ["HubFile", "HubSnapshot", "Repository", "commit_of", "files_of", "place_in", "repository_of"]

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
    patience = Patience(place)
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
