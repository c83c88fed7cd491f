"""What a loader can read, and samples kept in memory."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.shard import ReadSchedule

from ._columns import Ragged
from ._stages import Map, PerSample, Step, name_of, rng_for, takes_rng

__all__ = [
    "CachedData",
    "IndexedSource",
    "Located",
    "PrefetchedSource",
    "SourceDescription",
    "SourceLayout",
    "StreamSource",
    "SupportsLoading",
    "SupportsMemoryCache",
    "SupportsPrefetch",
    "describe_source",
]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SourceLayout:
    """How samples lie: what decides in which order it is good to read them."""

    shard_starts: Int64
    """The number of each shard's first sample, and the total at the end."""
    mean_bytes: float | None = None
    """Bytes a sample takes, on average, where that is known."""
    local: bool = True
    """Whether reading one sample alone is cheap."""


class Located(Protocol):
    """What can say where a sample is."""

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """The shard and the key of a sample, for messages."""
        ...


class IndexedSource(Located, Protocol):
    """Numbered samples: what exact orders, lengths and resuming need. Safe to use from several threads."""

    def __len__(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Differs when the samples or their numbers do."""
        ...

    def read(self, numbers: Int64) -> list[Any]:
        """The samples with these numbers, in this order."""
        ...

    def read_batch(self, numbers: Int64, ragged: Ragged) -> Any | None:
        """A batch of them gathered as a whole, where that is quicker than sample by sample; else None."""
        ...

    def geometry(self) -> SourceLayout: ...


@runtime_checkable
class SupportsMemoryCache(Protocol):
    """Samples that may be kept in memory, as they are stored, where they are read in no order."""

    def hold(self, most_bytes: int) -> None:
        """Keep them, if they take no more than this."""
        ...


@runtime_checkable
class SupportsPrefetch(Protocol):
    """Samples that are far away, and better fetched before they are read."""

    def foresee_order(self, foresight: ReadSchedule) -> PrefetchedSource | None:
        """Fetch them in the order told, from now until what this gives is closed; None where that is no use."""
        ...


class PrefetchedSource(Protocol):
    """Samples that are being fetched ahead."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class StreamSource:
    """A line of samples that can only be read from its start: a pipe, a generator, a live feed."""

    begin: Callable[[], Iterator[Any]]
    """Starts the line anew."""
    name: str
    once: bool = False
    """Whether it can be started one time only."""
    set_epoch: Callable[[int], object] | None = None
    """Told which epoch is started next, where that changes what comes."""
    close: Callable[[], object] | None = None
    """Told when nothing more is wanted for now."""

    @property
    def fingerprint(self) -> str:
        """By its name: what it will give is not known."""
        return hashlib.sha256(f"stream {self.name}".encode()).hexdigest()[:16]

    def of_epoch(self, epoch: int) -> Iterator[Any]:
        """The line anew, for an epoch."""
        if self.set_epoch is not None:
            self.set_epoch(epoch)
        return self.begin()

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """A name, and how many came before."""
        return self.name, str(number)


@dataclass(frozen=True)
class SourceDescription:
    """A source and what is done to its samples first."""

    source: IndexedSource | StreamSource
    steps: tuple[PerSample | Step, ...] = ()
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples, where the data says how."""


@runtime_checkable
class SupportsLoading(Protocol):
    """Anything that says itself how a loader reads it."""

    def __load__(self) -> SourceDescription: ...


class SequenceSource:
    """Anything with a length and positions: a list, an array, a map-style dataset of PyTorch's."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def fingerprint(self) -> str:
        """By type and length: what it holds is not looked at."""
        kind = type(self.samples)
        return hashlib.sha256(f"{kind.__module__}.{kind.__qualname__} {len(self)}".encode()).hexdigest()[:16]

    def read(self, numbers: Int64) -> list[Any]:
        """One by one, or in one call where there is ``__getitems__``, as PyTorch has it."""
        together = getattr(self.samples, "__getitems__", None)
        if together is not None:
            return list(together(numbers.tolist()))
        return [self.samples[number] for number in numbers.tolist()]

    def read_batch(self, numbers: Int64, ragged: Ragged) -> Any | None:
        """An array's rows are taken at once."""
        del ragged
        return self.samples[numbers] if isinstance(self.samples, np.ndarray) else None

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Its number is all that is known of a sample."""
        return None, str(number)

    def geometry(self) -> SourceLayout:
        """One shard."""
        return SourceLayout(np.array([0, len(self)], np.int64))


def describe_source(data: Any) -> SourceDescription:
    """How this is read: by its own word, by position, or as a line. Raises OptionError when it cannot be."""
    if isinstance(data, SupportsLoading):
        return data.__load__()
    if isinstance(data, (str, bytes, os.PathLike)):
        raise OptionError("a loader reads a dataset", expected=f"shoal.Dataset({data!r})", found=repr(data))
    if isinstance(data, Mapping):
        names = ", ".join(map(str, itertools.islice(data, 5)))
        raise OptionError("a loader reads one dataset", expected="one of these, as data[name]", found=names or "none")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return SourceDescription(SequenceSource(data))
    if isinstance(data, Iterator):
        return SourceDescription(StreamSource(lambda: data, type(data).__name__, once=True))
    if isinstance(data, Iterable):
        set_epoch = getattr(data, "set_epoch", None)  # as iterable datasets of PyTorch and Hugging Face have it
        return SourceDescription(StreamSource(lambda: iter(data), type(data).__name__, set_epoch=set_epoch))
    if callable(data):
        begin: Callable[[], Any] = data
        return SourceDescription(
            StreamSource(lambda: iter(begin()), getattr(data, "__qualname__", type(data).__name__))
        )
    raise OptionError(
        "nothing can be loaded from this", expected="a dataset, a sequence or an iterable", found=repr(data)
    )


class CachedData:
    """Data whose samples, after these maps, are kept."""

    def __init__(self, data: Any, steps: tuple[Map, ...], seed: int) -> None:
        self._data = data
        self._steps = steps
        self._seed = seed
        self._described: SourceDescription | None = None

    def __load__(self) -> SourceDescription:
        """The cache itself is made once, so that all loaders over it share it."""
        if self._described is None:
            below = describe_source(self._data)
            steps = (*below.steps, *self._steps)
            if isinstance(below.source, StreamSource):
                raise OptionError("only samples with positions are kept", found=below.source.name)
            maps = [step for step in steps if isinstance(step, Map)]
            if len(maps) < len(steps):
                raise OptionError("only samples are kept", expected="cache() before all but map()")
            self._described = SourceDescription(_Cached(below.source, maps, self._seed), collate=below.collate)
        return self._described


class _Cached:
    """Numbered samples, each read and mapped once."""

    def __init__(self, below: IndexedSource, maps: list[Map], seed: int) -> None:
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

    def geometry(self) -> SourceLayout:
        """How the samples are stored."""
        return self._below.geometry()
