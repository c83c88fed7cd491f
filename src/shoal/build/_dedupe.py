"""Find items with the same content, of which a build keeps the first."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal._typing import IntArray
from shoal.errors import FieldError, ObjectNotFoundError
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._digests import digest_values, update_digest
from ._engines import Engine
from ._items import Items
from ._tasks import Control

__all__ = ["HashWork", "content_hash", "delete_hashes", "find_unique_items"]

_CHUNK = 4096
_WIDTH = 16


def content_hash(sample: Any, fields: Sequence[str] | None) -> bytes:
    """Return a 128-bit hash of a sample's content, without its key.

    ``fields`` are those that count; None for all. Raises FieldError where a sample lacks one.

    Examples:
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
        update_digest(digest.update, name)
        update_digest(digest.update, values[name])
    return digest.digest()


@dataclass(frozen=True, slots=True)
class HashWork:
    """Hashes runs of items. Pickled to the workers."""

    items: Items
    fields: tuple[str, ...] | None

    def __call__(self, task: tuple[int, int], control: Control) -> bytes:
        """Return the hashes of a range of items. An unreadable item has its own: it fails when it is built."""
        hashes, step = [], 64
        for start in range(*task, step):
            numbers = np.arange(start, min(start + step, task[1]))
            for number, read in zip(numbers.tolist(), self.items.read(numbers), strict=True):
                hashes.append(self._hash(number, read))
        return b"".join(hashes)

    def _hash(self, number: int, read: Any) -> bytes:
        if isinstance(read, Exception):
            return hashlib.blake2b(b"item %d" % number, digest_size=_WIDTH).digest()
        try:
            return content_hash(read, self.fields)
        except FieldError as error:
            raise error.at(key=read.get("__key__") if isinstance(read, dict) else str(number)) from None


def find_unique_items(
    items: Items,
    fields: tuple[str, ...] | None,
    engine: Engine,
    folder: str,
    tell: Callable[[int, int], None] = lambda done, size: None,
) -> IntArray:
    """Return the numbers of the items that are the first with their content, in ascending order.

    Reads all items once. Hashes are stored below ``folder`` as they are computed, so that an interrupted pass resumes.
    """
    folder = join_url(folder, f"hashes-{digest_values(items.identity, fields)}")
    tasks = [(start, min(start + _CHUNK, len(items))) for start in range(0, len(items), _CHUNK)]
    stored = {task: data for task in tasks if (data := _load_hashes(folder, task)) is not None}
    left = [task for task in tasks if task not in stored]
    for task, data in engine.run(HashWork(items, fields), left, lambda samples, size: None):
        store_for(folder).write_all(_hashes_url(folder, task), data)
        stored[task] = data
        tell(task[1] - task[0], 0)
    hashes = np.frombuffer(b"".join(stored[task] for task in tasks), np.dtype((np.void, _WIDTH)))
    first: IntArray = np.unique(hashes, return_index=True)[1]
    return np.sort(first).astype(np.int64)


def _hashes_url(folder: str, task: tuple[int, int]) -> str:
    return join_url(folder, f"{task[0]:012d}.bin")


def _load_hashes(folder: str, task: tuple[int, int]) -> bytes | None:
    url = _hashes_url(folder, task)
    try:
        data = store_for(url).read_all(url)
    except ObjectNotFoundError:
        return None
    return data if len(data) == (task[1] - task[0]) * _WIDTH else None


def delete_hashes(folder: str) -> None:
    """Delete the hashes that `find_unique_items` stored."""
    prefix = join_url(folder, "hashes-")
    for info in list(store_for(folder).list(folder)):
        if info.url.startswith(prefix):
            store_for(info.url).delete(info.url)
