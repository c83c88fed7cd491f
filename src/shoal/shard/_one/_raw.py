"""One field of many samples as bytes in one buffer: what batches are gathered from, without an object a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.codec import Buffer
from shoal.shard._index import as_arrow, text_array

__all__ = ["RawField", "join_raw"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RawField:
    """The values of one field: sample ``i`` has ``data[starts[i] : starts[i] + sizes[i]]``.

    A negative start means that it has none.
    """

    data: Buffer
    starts: Int64
    sizes: Int64
    key_array: pa.StringArray | Callable[[], pa.StringArray]
    """The samples' keys, or what makes them: few ask for them."""
    urls: tuple[str, ...]
    """The shards the samples are of."""
    shard_numbers: Int64 | None = None
    """For each sample which of them; None where all are of the first."""

    def __len__(self) -> int:
        return len(self.starts)

    def keys(self, rows: Int64 | slice = slice(None)) -> list[str]:
        """The keys of these samples."""
        every = self.all_keys()
        keys: list[str] = (every[rows] if isinstance(rows, slice) else every.take(as_arrow(rows))).to_pylist()
        return keys

    def all_keys(self) -> pa.StringArray:
        """The keys of all samples, as Arrow has them."""
        return self.key_array() if callable(self.key_array) else self.key_array

    def url(self, row: int) -> str:
        """The shard one sample is of."""
        return self.urls[0 if self.shard_numbers is None else int(self.shard_numbers[row])]

    def take(self, rows: Int64) -> RawField:
        """Some of the samples, over the same bytes."""
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        keys = self.all_keys().take(as_arrow(rows))
        return RawField(self.data, self.starts[rows], self.sizes[rows], keys, self.urls, numbers)


def join_raw(parts: Sequence[RawField]) -> RawField:
    """Several as one. Their bytes are copied, unless all are over the same: so join what is small."""
    if not parts:
        none = np.empty(0, np.int64)
        return RawField(b"", none, none, text_array([]), ())
    if len(parts) == 1:
        return parts[0]
    data, starts = parts[0].data, [part.starts for part in parts]
    if any(part.data is not data for part in parts):
        moved = np.cumsum([0, *(len(part.data) for part in parts)])
        starts = [
            np.where(part.starts < 0, -1, part.starts + offset) for part, offset in zip(parts, moved, strict=False)
        ]
        data = b"".join(part.data for part in parts)
    return RawField(
        data,
        np.concatenate(starts),
        np.concatenate([part.sizes for part in parts]),
        pa.concat_arrays([part.all_keys() for part in parts]),
        *_shards_of(parts),
    )


def _shards_of(parts: Sequence[RawField]) -> tuple[tuple[str, ...], Int64 | None]:
    urls = tuple(dict.fromkeys(url for part in parts for url in part.urls))
    if len(urls) == 1:
        return urls, None
    return urls, np.concatenate([_numbers(part, urls) for part in parts])


def _numbers(part: RawField, urls: tuple[str, ...]) -> Int64:
    among = np.array([urls.index(url) for url in part.urls], np.int64)
    return among[np.zeros(len(part), np.int64) if part.shard_numbers is None else part.shard_numbers]
