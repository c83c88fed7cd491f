"""Where samples begin in a file, found once and kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shoal.codec import decode_npy, encode_npy
from shoal.errors import DecodeError, StoreError
from shoal.store import ObjectReader, cache_dir, join_url, store_for

from ._files import place_of

__all__ = ["kept_offsets"]

Int64 = npt.NDArray[np.int64]
_FOLDER = "offsets"


def kept_offsets(reader: ObjectReader, kind: str, find: Callable[[ObjectReader], Int64]) -> Int64:
    """What ``find`` says of an open object, asked once for each state of it; a changed object is another entry."""
    info = reader.info
    name = hashlib.sha256(repr((place_of(info), info.size, info.version, kind)).encode()).hexdigest()
    url = join_url(cache_dir(), _FOLDER, name + ".npy")
    store = store_for(url)
    try:
        kept = decode_npy(store.read_all(url))
        if kept.dtype == np.int64:
            return kept
    except (StoreError, DecodeError):  # not there, or damaged: found again
        pass
    found = find(reader)
    with contextlib.suppress(StoreError):  # a cache that cannot be written costs time, nothing else
        store.write_all(url, encode_npy(found))
    return found
