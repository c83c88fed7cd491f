"""Several loaders side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ._columns import Ragged
from ._steps import Described, Geometry, Numbered, StreamSource, describe_source

__all__ = ["Zipped"]

Int64 = npt.NDArray[np.int64]


class Zipped:
    """Data whose samples are tuples, one part of each: by number where all have numbers, else as a line."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __load__(self) -> Described:
        found = [describe_source(part) for part in self._parts]
        numbered = [each.source for each in found if not isinstance(each.source, StreamSource) and not each.steps]
        if len(numbered) == len(found):
            return Described(_ZippedSource(numbered))
        return Described(_side_by_side([_line(part, each) for part, each in zip(self._parts, found, strict=True)]))


def _line(part: Any, described: Described) -> StreamSource:
    """One part as a line of its elements, whole: ranks share out what the lines give together."""
    from ._loader import DataLoader

    if isinstance(described.source, StreamSource) and not described.steps:
        return described.source
    loader = part if isinstance(part, DataLoader) else DataLoader(part, batch_size=None)
    return loader.as_line()


def _side_by_side(lines: list[StreamSource]) -> StreamSource:
    def set_epoch(epoch: int) -> None:
        for line in lines:
            if line.set_epoch is not None:
                line.set_epoch(epoch)

    def begin() -> Iterator[Any]:
        return zip(*(line.begin() for line in lines), strict=False)  # the shortest ends it, as in Python

    def close() -> None:
        for line in lines:
            if line.close is not None:
                line.close()

    name = "zip of " + ", ".join(line.name for line in lines)
    return StreamSource(begin, name, any(line.once for line in lines), set_epoch, close)


class _ZippedSource:
    """Numbered samples of several sources as tuples."""

    def __init__(self, sources: list[Numbered]) -> None:
        self._sources = sources

    def __len__(self) -> int:
        return min(map(len, self._sources))

    @property
    def fingerprint(self) -> str:
        """That of all of them."""
        return hashlib.sha256(" ".join(source.fingerprint for source in self._sources).encode()).hexdigest()[:16]

    def read(self, numbers: Int64) -> list[Any]:
        """The same number of each."""
        return list(zip(*(source.read(numbers) for source in self._sources), strict=True))

    def read_batch(self, numbers: Int64, ragged: Ragged) -> Any | None:
        """Batches of all, where all can be gathered."""
        parts = [source.read_batch(numbers, ragged) for source in self._sources]
        return None if any(part is None for part in parts) else tuple(parts)

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Where the first part is stored."""
        return self._sources[0].locate(number)

    def geometry(self) -> Geometry:
        """How the first part lies."""
        found = self._sources[0].geometry()
        return Geometry(np.minimum(found.shard_starts, len(self)), found.mean_bytes, found.local)
