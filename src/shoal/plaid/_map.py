"""A tar on the local disk, as memory."""

from __future__ import annotations

import pyarrow as pa

from shoal.shard import BLOCK, ShardIndex, crc32
from shoal.store import local_path, store_for

__all__ = ["map_tar"]


def map_tar(url: str, index: ShardIndex) -> memoryview:
    """The bytes of a tar, of which hardly any are read yet.

    Raises ObjectNotFoundError, StoreError; StaleIndexError when the index is of another tar.
    """
    mapped = _mapped(url) if store_for(url).info(url).size else memoryview(b"")
    head = bytes(mapped[:BLOCK])
    index.check_object(url, len(mapped), head, crc32(head))
    return mapped


def _mapped(url: str) -> memoryview:
    try:
        # By Arrow, since Python's own maps keep their files open, and of shards there may be more than of those. Arrow
        # maps the whole file, and has the system read ahead what it is asked for: so it is asked for one byte.
        with pa.memory_map(local_path(url)) as file:
            first = file.read_buffer(1)
            return memoryview(pa.foreign_buffer(first.address, file.size(), first))
    except OSError:
        store_for(url).open(url).close()  # says what is wrong in our words
        raise
