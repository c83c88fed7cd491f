"""Samples kept in memory after they were first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError

from ._source import Described, Geometry, Numbered, StreamSource, describe_source
from ._steps import Filter, FlatMap, Map
from ._typed import Ragged

__all__ = ["CachedData"]

Int64 = npt.NDArray[np.int64]


class CachedData:
    """Data whose samples, after these maps, are kept."""

    def __init__(self, data: Any, steps: tuple[Map, ...]) -> None:
        self._data = data
        self._steps = steps
        self._described: Described | None = None

    def __load__(self) -> Described:
        """The cache itself is made once, so that all loaders over it share it."""
        if self._described is None:
            below = describe_source(self._data)
            steps = (*below.steps, *self._steps)
            if isinstance(below.source, StreamSource):
                raise OptionError("only samples with positions are kept", found=below.source.name)
            if any(isinstance(step, (Filter, FlatMap)) for step in steps):
                raise OptionError("only samples are kept", expected="cache() before filter() and flat_map()")
            functions = [step.function for step in steps if isinstance(step, Map)]
            self._described = Described(_Cached(below.source, functions))
        return self._described


class _Cached:
    """Numbered samples, each read and mapped once."""

    def __init__(self, below: Numbered, functions: list[Callable[..., Any]]) -> None:
        self._below = below
        self._functions = functions
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._below)

    @property
    def fingerprint(self) -> str:
        """That of the samples."""
        return self._below.fingerprint

    def read(self, numbers: Int64) -> list[Any]:
        """Those kept, and the others read now; two threads that miss the same one both read it."""
        missing = [number for number in numbers.tolist() if number not in self._kept]
        if missing:
            values = self._below.read(np.array(missing, np.int64))
            for function in self._functions:
                values = [function(value) for value in values]
            self._kept.update(zip(missing, values, strict=True))
        return [self._kept[number] for number in numbers.tolist()]

    def read_batch(self, numbers: Int64, ragged: Ragged) -> Any | None:
        """Samples are what is kept."""
        del numbers, ragged
        return None

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Where the sample is stored."""
        return self._below.locate(number)

    def geometry(self) -> Geometry:
        """How the samples are stored."""
        return self._below.geometry()
