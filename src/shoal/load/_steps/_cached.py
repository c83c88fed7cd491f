"""Samples kept in memory after they were first read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.load._columns import Ragged

from ._rng import rng_for
from ._source import Described, Geometry, Numbered, StreamSource, describe_source
from ._steps import Map, name_of, takes_rng

__all__ = ["CachedData"]

Int64 = npt.NDArray[np.int64]


class CachedData:
    """Data whose samples, after these maps, are kept."""

    def __init__(self, data: Any, steps: tuple[Map, ...], seed: int) -> None:
        self._data = data
        self._steps = steps
        self._seed = seed
        self._described: Described | None = None

    def __load__(self) -> Described:
        """The cache itself is made once, so that all loaders over it share it."""
        if self._described is None:
            below = describe_source(self._data)
            steps = (*below.steps, *self._steps)
            if isinstance(below.source, StreamSource):
                raise OptionError("only samples with positions are kept", found=below.source.name)
            maps = [step for step in steps if isinstance(step, Map)]
            if len(maps) < len(steps):
                raise OptionError("only samples are kept", expected="cache() before all but map()")
            self._described = Described(_Cached(below.source, maps, self._seed), collate=below.collate)
        return self._described


class _Cached:
    """Numbered samples, each read and mapped once."""

    def __init__(self, below: Numbered, maps: list[Map], seed: int) -> None:
        self._below = below
        self._maps = maps
        self._seed = seed
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
            random = 0
            for step in self._maps:
                random += takes_rng(step.function)
                values = [self._mapped(step, value, at, random) for value, at in zip(values, missing, strict=True)]
            self._kept.update(zip(missing, values, strict=True))
        return [self._kept[number] for number in numbers.tolist()]

    def _mapped(self, step: Map, value: Any, number: int, random: int) -> Any:
        """What is random is drawn once, as in the first epoch."""
        try:
            if takes_rng(step.function):
                return step.function(value, rng=rng_for(self._seed, 0, number, 0, random))
            return step.function(value)
        except Exception as error:
            error.add_note(f"in map({name_of(step.function)}), to be kept")
            raise

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
