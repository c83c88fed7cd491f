"""Fetch the files that the columns of a table name, as fields of its samples."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal._typing import IntArray
from shoal.errors import FieldError, ShoalError, WriteError
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, scheme_of

from ._digests import digest_values
from ._items import Items, Read, SplitRuns, map_in_threads

__all__ = ["FetchColumns", "FetchedItems", "make_fetcher", "parse_fetch"]

FetchColumns = tuple[tuple[str, str | None], ...]
"""Columns that hold paths or URLs, each with the field that the bytes become; None: the extension of the name."""
_EXTENSION = re.compile(r"[a-z0-9]{1,8}")


def parse_fetch(fetch: str | Sequence[str] | Mapping[str, str | None] | None) -> FetchColumns:
    """Return the columns to fetch and their fields, given a column, several, or a mapping from column to field.

    Examples:
        >>> parse_fetch("image_url"), parse_fetch({"photo": "jpg"})
        ((('image_url', None),), (('photo', 'jpg'),))
    """
    if fetch is None:
        return ()
    if isinstance(fetch, str):
        return ((fetch, None),)
    return tuple(fetch.items()) if isinstance(fetch, Mapping) else tuple((name, None) for name in fetch)


def make_fetcher(fetch: FetchColumns, base: str) -> Callable[[Any], Any]:
    """Return a function that replaces each column of a sample by the bytes of the file that it names."""

    def fill(sample: Any) -> Any:
        found = dict(sample)
        for column, field in fetch:
            if column not in found:
                raise FieldError("no such column", expected=" or ".join(map(str, found)), found=column)
            name = found.pop(column)
            if name is None:
                continue
            url = _absolute_url(str(name), base)
            found[field or _extension(url)] = store_for(url).read_all(url)
        return found

    return fill


def _absolute_url(name: str, base: str) -> str:
    is_absolute = scheme_of(name) != "file" or os.path.isabs(name)
    return name if is_absolute else join_url(base, name)


def _extension(url: str) -> str:
    """The extension of the name, in lower case; the query of a URL is no part of it."""
    name = base_name(url.partition("?")[0] if scheme_of(url) in ("http", "https") else url)
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem or not _EXTENSION.fullmatch(extension.lower()):
        hint = "say the field: fetch={column: 'jpg'}"
        raise WriteError("the name tells no field for its bytes", expected="an extension", found=name, hint=hint)
    return extension.lower()


class FetchedItems:
    """Rows of a table, with the files that their columns name."""

    def __init__(self, items: Items, fetch: FetchColumns, base: str) -> None:
        self._items = items
        self._fetch = fetch
        self._base = base

    def __len__(self) -> int:
        return len(self._items)

    @property
    def identity(self) -> str:
        """That of the table and of what is fetched; the files themselves are not looked at."""
        return digest_values(self._items.identity, self._fetch, self._base)

    def sizes(self) -> IntArray | None:
        """None: the files have not been looked at."""
        return None

    def splits(self) -> SplitRuns | None:
        """The table's."""
        return self._items.splits()

    def read(self, numbers: IntArray) -> list[Read]:
        """Fetch several at a time; an item that fails is its exception."""
        fill = make_fetcher(self._fetch, self._base)

        def one(read: Read) -> Read:
            if isinstance(read, Exception):
                return read
            try:
                return dict(fill(read))
            except ShoalError as error:
                return error.at(key=read.get("__key__"))
            except Exception as error:  # noqa: BLE001 - told of its item
                return error

        return list(map_in_threads(one, self._items.read(numbers)))
