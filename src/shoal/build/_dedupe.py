"""Items with the same content: the first one stays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError, ObjectNotFoundError
from shoal.store import join_url, store_for

from ._digests import feed, mark_of
from ._engines import Engine
from ._items import Items
from ._tasks import Control

__all__ = ["Hashing", "content_hash", "first_of_each", "forget_hashes"]

Int64 = npt.NDArray[np.int64]
_CHUNK = 4096
_WIDTH = 16


def content_hash(sample: Any, fields: Sequence[str] | None) -> bytes:
    """128 bits of a sample's content; the key is no part of it.

    ``fields`` are those that count; None for all. Raises FieldError where a sample lacks one.

    Example:
        >>> content_hash({"__key__": "a", "txt": "x"}, None) == content_hash({"__key__": "b", "txt": "x"}, None)
        True
    """
    values = sample if isinstance(sample, Mapping) else getattr(sample, "as_wds", None)
    if not isinstance(values, Mapping):
        values = {"": sample}
    names = sorted(name for name in values if not name.startswith("__")) if fields is None else fields
    digest = hashlib.blake2b(digest_size=_WIDTH)
    for name in names:
        if name not in values:
            raise FieldError("a sample lacks the field to compare", expected=name, found=" ".join(map(str, values)))
        feed(digest.update, name)
        feed(digest.update, values[name])
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Hashing:
    """The work of hashing: what a worker needs."""

    items: Items
    fields: tuple[str, ...] | None

    def __call__(self, task: tuple[int, int], control: Control) -> bytes:
        """The hashes of a run of items. One that cannot be read is like no other: it fails later, and is told of."""
        found, step = [], 64
        for start in range(*task, step):
            numbers = np.arange(start, min(start + step, task[1]))
            for number, read in zip(numbers.tolist(), self.items.read(numbers), strict=True):
                found.append(_own(number) if isinstance(read, Exception) else self._hash(number, read))
        return b"".join(found)

    def _hash(self, number: int, read: Any) -> bytes:
        try:
            return content_hash(read, self.fields)
        except FieldError as error:
            raise error.at(key=read.get("__key__") if isinstance(read, dict) else str(number)) from None


def _own(number: int) -> bytes:
    return hashlib.blake2b(b"item %d" % number, digest_size=_WIDTH).digest()


def first_of_each(
    items: Items,
    fields: tuple[str, ...] | None,
    engine: Engine,
    folder: str,
    tell: Callable[[int, int], None] = lambda done, size: None,
) -> Int64:
    """The numbers of the items that are the first with their content, ascending.

    All items are read once for it. Hashes are kept below ``folder`` as they are made, so an interrupted pass goes on.
    """
    kept = join_url(folder, f"hashes-{mark_of(items.identity, fields)}")
    tasks = [(start, min(start + _CHUNK, len(items))) for start in range(0, len(items), _CHUNK)]
    found = {task: data for task in tasks if (data := _stored(kept, task)) is not None}
    left = [task for task in tasks if task not in found]
    for task, data in engine.run(Hashing(items, fields), left, lambda samples, size: None):
        store_for(kept).write_all(_url(kept, task), data)
        found[task] = data
        tell(task[1] - task[0], 0)
    hashes = np.frombuffer(b"".join(found[task] for task in tasks), np.dtype((np.void, _WIDTH)))
    first: Int64 = np.unique(hashes, return_index=True)[1]
    return np.sort(first).astype(np.int64)


def _url(kept: str, task: tuple[int, int]) -> str:
    return join_url(kept, f"{task[0]:012d}.bin")


def _stored(kept: str, task: tuple[int, int]) -> bytes | None:
    url = _url(kept, task)
    try:
        data = store_for(url).read_all(url)
    except ObjectNotFoundError:
        return None
    return data if len(data) == (task[1] - task[0]) * _WIDTH else None


def forget_hashes(folder: str) -> None:
    """Take away what `first_of_each` kept."""
    for url in _kept(folder):
        store_for(url).delete(url)


def _kept(folder: str) -> Iterator[str]:
    prefix = join_url(folder, "hashes-")
    yield from (info.url for info in list(store_for(folder).list(folder)) if info.url.startswith(prefix))
