"""What a writer finds where it is to write: shards of others, and those of an interrupted run of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from shoal.errors import ObjectNotFoundError
from shoal.store import join_url, numbered_name, store_for

from ._manifest import ShardRecord
from ._open import index_url

__all__ = ["edge_keys", "remove_shards", "shards_there", "still_there"]


def shards_there(folder: str, pattern: str, start: int = 0) -> Iterator[str]:
    """The shards in ``folder`` that ``pattern`` names, from number ``start`` on, up to the first that is missing."""
    numbers = itertools.count(start) if numbered_name(pattern, 0) != pattern else range(start, 1)
    paths = (numbered_name(pattern, number) for number in numbers)
    return itertools.takewhile(lambda path: _size(join_url(folder, path)) is not None, paths)


def still_there(finished: Sequence[ShardRecord], folders: Sequence[str]) -> list[ShardRecord]:
    """The finished shards up to the first that somebody removed or changed meanwhile."""

    def is_there(record: ShardRecord) -> bool:
        return any(_size(join_url(folder, record.path)) == record.bytes for folder in folders)

    return list(itertools.takewhile(is_there, finished))


def remove_shards(folder: str, paths: Sequence[str]) -> None:
    """Remove shards and their indexes; the tar last, so that an interruption leaves nothing nobody would find."""
    for path in paths:
        store_for(folder).delete(index_url(folder, path))
        store_for(folder).delete(join_url(folder, path))


def edge_keys(records: Sequence[ShardRecord]) -> Iterator[tuple[str | None, str]]:
    """For each sample of ``records`` its key, where it is known (the first and last of a shard), and its shard."""
    for record in records:
        for position in range(record.samples):
            last = position == record.samples - 1
            yield record.first_key if position == 0 else record.last_key if last else None, record.path


def _size(url: str) -> int | None:
    try:
        return store_for(url).info(url).size
    except ObjectNotFoundError:
        return None
