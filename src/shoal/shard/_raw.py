"""One field of many samples as bytes in one buffer: what batches are gathered from, without an object a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["RawField", "join_raw"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RawField:
    """The values of one field: sample ``i`` has ``data[starts[i] : starts[i] + sizes[i]]``.

    A negative start means that it has none.
    """

    data: bytes
    starts: Int64
    sizes: Int64
    key_array: pa.StringArray
    url: str
    """The shard the samples are of; the first one's where they are of several."""

    def __len__(self) -> int:
        return len(self.starts)

    def keys(self, rows: Int64 | slice = slice(None)) -> list[str]:
        """The keys of these samples. Few ask for them, so they are not made before."""
        keys: list[str] = self.key_array.to_numpy(zero_copy_only=False)[rows].tolist()
        return keys

    def take(self, rows: Int64) -> RawField:
        """Some of the samples, over the same bytes."""
        return RawField(self.data, self.starts[rows], self.sizes[rows], self.key_array.take(pa.array(rows)), self.url)


def join_raw(parts: Sequence[RawField]) -> RawField:
    """Several as one; their bytes are copied, so join what is small."""
    if len(parts) == 1:
        return parts[0]
    moved = np.cumsum([0, *(len(part.data) for part in parts)])
    starts = [np.where(part.starts < 0, -1, part.starts + offset) for part, offset in zip(parts, moved, strict=False)]
    return RawField(
        b"".join(part.data for part in parts),
        np.concatenate(starts),
        np.concatenate([part.sizes for part in parts]),
        pa.concat_arrays([part.key_array for part in parts]),
        parts[0].url,
    )
