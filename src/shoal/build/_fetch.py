"""Tables that name files: the bytes behind the paths or URLs of a column become a field."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError, ShoalError, WriteError
from shoal.store import base_name, join_url, scheme_of, store_for

from ._items import Items, Read, Runs, at_once
from ._mark import mark_of

__all__ = ["FetchedItems", "fetched", "parse_fetch"]

Int64 = npt.NDArray[np.int64]
Fetch = tuple[tuple[str, str | None], ...]
_EXTENSION = re.compile(r"[a-z0-9]{1,8}")


def parse_fetch(fetch: str | Sequence[str] | Mapping[str, str | None] | None) -> Fetch:
    """What to fetch as columns and fields: a column, several, or a mapping from column to field.

    Example:
        >>> parse_fetch("image_url"), parse_fetch({"photo": "jpg"})
        ((('image_url', None),), (('photo', 'jpg'),))
    """
    if fetch is None:
        return ()
    if isinstance(fetch, str):
        return ((fetch, None),)
    return tuple(fetch.items()) if isinstance(fetch, Mapping) else tuple((name, None) for name in fetch)


def fetched(fetch: Fetch, base: str) -> Callable[[Any], Any]:
    """A function that puts the bytes into a sample, in place of the column that named them."""

    def fill(sample: Any) -> Any:
        found = dict(sample)
        for column, field in fetch:
            if column not in found:
                raise FieldError("no such column", expected=" or ".join(map(str, found)), found=column)
            place = found.pop(column)
            if place is None:
                continue
            url = _url(str(place), base)
            found[field or _extension(url)] = store_for(url).read_all(url)
        return found

    return fill


def _url(place: str, base: str) -> str:
    is_whole = scheme_of(place) != "file" or os.path.isabs(place)
    return place if is_whole else join_url(base, place)


def _extension(url: str) -> str:
    """What the name ends in; a URL's query says nothing."""
    name = base_name(url.partition("?")[0] if scheme_of(url) in ("http", "https") else url)
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem or not _EXTENSION.fullmatch(extension.lower()):
        hint = "say the field: fetch={column: 'jpg'}"
        raise WriteError("the name tells no field for its bytes", expected="an extension", found=name, hint=hint)
    return extension.lower()


class FetchedItems:
    """Rows of a table, with what their columns name."""

    def __init__(self, items: Items, fetch: Fetch, base: str) -> None:
        self._items = items
        self._fetch = fetch
        self._base = base

    def __len__(self) -> int:
        return len(self._items)

    @property
    def identity(self) -> str:
        """Of the table; what it names is not looked at before it is fetched."""
        return mark_of(self._items.identity, self._fetch, self._base)

    def sizes(self) -> Int64 | None:
        """None: what is named has not been looked at."""
        return None

    def splits(self) -> Runs | None:
        """The table's."""
        return self._items.splits()

    def read(self, numbers: Int64) -> list[Read]:
        """Several are fetched at once; each failure stands in the place of its item."""
        fill = fetched(self._fetch, self._base)

        def one(read: Read) -> Read:
            if isinstance(read, Exception):
                return read
            try:
                return dict(fill(read))
            except ShoalError as error:
                return error.at(key=read.get("__key__"))
            except Exception as error:  # noqa: BLE001 - told of its item
                return error

        return list(at_once(one, self._items.read(numbers)))
