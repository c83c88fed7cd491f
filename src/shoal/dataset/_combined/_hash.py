"""A hash of texts, a column at a time: the same in every process, on every machine, for ever.

FNV-1a of the UTF-8 bytes, 64 bits, then mixed as splitmix64 mixes, because FNV alone leaves its high bits uneven.
Splits that users rely on stand on it, so a golden test pins it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["hash_texts", "texts_of"]

UInt64 = npt.NDArray[np.uint64]

_BASIS, _PRIME = 0xCBF29CE484222325, 0x100000001B3
_WORD = (1 << 64) - 1


def hash_texts(texts: pa.Array | pa.ChunkedArray, seed: int = 0) -> UInt64:
    """64 bits a text, evenly spread; another seed gives other ones.

    Example:
        >>> hash_texts(pa.array(["a", "b"])) // 10**16
        array([ 19, 448], dtype=uint64)
    """
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    start = np.uint64(_BASIS ^ _mixed(seed & _WORD))
    return np.concatenate([np.empty(0, np.uint64), *(_hash_chunk(chunk, start) for chunk in chunks)])


def _hash_chunk(chunk: pa.Array, start: np.uint64) -> UInt64:
    chunk = chunk.cast(pa.large_string())
    _, ends, data = chunk.buffers()
    bounds = np.frombuffer(ends, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    letters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    found = np.full(len(chunk), start, np.uint64)
    sizes = np.diff(bounds)
    order = np.argsort(-sizes, kind="stable")  # long texts first: those still unfinished are a shrinking head
    begins, hashes = bounds[:-1][order], found[order]
    alive = np.searchsorted(-sizes[order], -np.arange(int(sizes.max(initial=0))), "left")
    for at, count in enumerate(alive.tolist()):
        head = hashes[:count]
        np.bitwise_xor(head, letters[begins[:count] + at], out=head)
        np.multiply(head, np.uint64(_PRIME), out=head)
    found[order] = hashes
    return _mix(found)


def _mix(words: UInt64) -> UInt64:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mixed(word: int) -> int:
    """One word, so that seeds 1 and 2 begin far apart; 0 stays 0."""
    return int(_mix(np.array([word], np.uint64))[0])


def texts_of(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as text. A whole number has one text, whether a shard holds it as an integer or as a double."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.large_string())
    return pa.chunked_array([pa.array(_number_texts(chunk), pa.large_string()) for chunk in values.chunks])


def _number_texts(chunk: Any) -> list[str | None]:
    numbers: list[float | None] = chunk.to_pylist()
    return [None if each is None else str(int(each)) if each == each // 1 else repr(each) for each in numbers]
