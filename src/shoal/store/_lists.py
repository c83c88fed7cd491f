"""What is in a bucket, page by page and level by level; and other requests that bring no bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from shoal.errors import ObjectNotFoundError

from ._clients import Clients, clients_for
from ._fetch import Place, RequestFailed, head, place_of
from ._foreign import FOREIGN, failure_of, our_error
from ._gate import hold_all
from ._options import gates_for
from ._parallel import each_done, run_all
from ._traffic import request

__all__ = ["PAGE", "call", "folders_at", "list_all", "list_pages", "list_to", "markers"]

PAGE = 1000
_AT_ONCE = 32


def call(place: Place, op: str, ask: Callable[[Any], Any]) -> Any:
    """One request of a kind that obstore repeats by itself. Raises the errors of `our_error`."""
    clients = place.clients
    try:
        return _asked(place, op, clients, lambda: ask(clients.patient))
    except RequestFailed as failed:
        raise our_error(failed.failure, place.url) from None


def _asked(place: Place, op: str, clients: Clients, ask: Callable[[], Any]) -> Any:
    """Raises RequestFailed."""
    with hold_all(gates_for(place.url)), request(op, place.url, clients.endpoint):
        try:
            return ask()
        except FOREIGN as error:
            raise RequestFailed(failure_of(error)) from None


def list_all(place: Place) -> Iterator[Any]:
    """Everything whose name begins so."""
    for page in list_pages(place):
        yield from page


def list_pages(place: Place) -> Iterator[list[Any]]:
    """At least one page, which may be empty.

    Where something fails it begins anew with the client that repeats by itself: most readers never need to make that.
    """
    clients, given = place.clients, set[str]()
    try:
        for page in _pages(place, clients, clients.once):
            yield page
            given.update(meta["path"] for meta in page)
        return
    except RequestFailed as failed:
        if not failed.failure.passing:
            raise our_error(failed.failure, place.url) from None
    clients = clients_for(place.url, place.address, other_than=clients.endpoint)
    try:
        for page in _pages(place, clients, clients.patient):
            yield [meta for meta in page if meta["path"] not in given]
    except RequestFailed as failed:
        raise our_error(failed.failure, place.url) from None


def _pages(place: Place, clients: Clients, client: Any) -> Iterator[list[Any]]:
    """Raises RequestFailed."""
    pages, more = client.list(place.address.path or None, chunk_size=PAGE), True
    while more:
        page = list(_asked(place, "LIST", clients, lambda: next(pages, ())))
        yield page
        more = len(page) == PAGE


def markers(urls: Iterable[str]) -> set[str]:
    """Which of these empty objects are none: consoles mark folders with a name that ends in a slash.

    obstore loses the slash, and nothing answers to the name without it; so each is asked for. There are rarely any.
    """
    return {url for url, there in each_done(_is_there, urls, _AT_ONCE) if not there}


def _is_there(url: str) -> bool:
    try:
        head(place_of(url))
    except ObjectNotFoundError:
        return False
    return True


def list_to(place: Place, depth: int) -> Iterator[Any]:
    """Level by level, the folders of one level at once."""
    folders = [place.address.path]
    for level in range(depth):
        answers = run_all([_listing(place, folder) for folder in folders])
        for answer in answers:
            yield from answer["objects"]
        folders = [folder for answer in answers for folder in answer["common_prefixes"]]
        if not folders or level == depth - 1:
            return


def folders_at(place: Place, depth: int) -> Sequence[str]:
    folders: Sequence[str] = [place.address.path]
    for _ in range(depth):
        answers = run_all([_listing(place, folder) for folder in folders])
        folders = [folder for answer in answers for folder in answer["common_prefixes"]]
    return folders


def _listing(place: Place, folder: str) -> Any:
    return lambda: call(place, "LIST", lambda client: client.list_with_delimiter(folder or None))
