"""How long does the viewer take to show a page of a million samples?"""

from __future__ import annotations

import http.client
from typing import Self
from urllib.parse import quote, urlsplit

import shoal
from shoal.viewer import viewing

from ._measure import Contender, Question, measure
from .where_million import _made

__all__ = ["run"]

CONDITION = "width >= 512 and label = 'cat'"
PAGES = (
    ("first page", "/"),
    ("a page in the middle", "/?page=20000"),
    ("a page in random order", "/?shuffle=3&page=777"),
    ("a condition, seen before", f"/?where={quote(CONDITION)}"),
    ("one sample", "/sample/654321"),
    ("all columns counted", "/facets"),
    ("all columns counted, under a condition", f"/facets?where={quote(CONDITION)}"),
    ("map of shards", "/shards"),
    ("suggestions for a value", f"/suggest?where={quote('label = ')}&at=8"),
)


def run(rounds: int = 5) -> Question:
    """Ask for pages over HTTP, as a browser does, from a viewer that has shown a page before."""
    folder = _made()
    question = Question(
        "viewer of 1 M samples",
        "Milliseconds from the request to the last byte of the page, over loopback, once the viewer has shown a page. "
        "The limit is what the page's samples cost to read with nothing around them.",
        ("page", "ms", "worst ms", "bytes"),
    )
    with viewing(folder) as address, _Browser(address.url) as browser:
        contenders = [Contender(name, lambda path=path: browser.get(path)) for name, path in PAGES]
        for name, one in measure(contenders, rounds).items():
            size = len(browser.body(dict(PAGES)[name]))
            question.rows.append((name, f"{one.median * 1000:.1f}", f"{one.worst * 1000:.1f}", f"{size:,}"))
    dataset = shoal.Dataset(folder)
    bare = measure([Contender("limit: reading the 24 samples of one page", lambda: _once(dataset[:24]))], rounds)
    question.rows.extend(
        (name, f"{one.median * 1000:.1f}", f"{one.worst * 1000:.1f}", "") for name, one in bare.items()
    )
    return question


def _once(_: object) -> int:
    return 1


class _Browser:
    """One connection to a viewer, with its cookie."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    def __enter__(self) -> Self:
        self._connection = http.client.HTTPConnection(self._parts.hostname or "", self._parts.port, timeout=60)
        self._connection.request("GET", f"/?{self._parts.query}")
        answer = self._connection.getresponse()
        answer.read()
        self._headers = {"Cookie": (answer.getheader("set-cookie") or "").partition(";")[0]}
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def body(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {data[:500]!r}")
        return data

    def get(self, path: str) -> int:
        return len(self.body(path)) and 1


if __name__ == "__main__":
    print(run().markdown())
