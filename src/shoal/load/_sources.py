"""What a loader can read: indexed sources, streams, sequences, and samples cached in memory.

`describe_source` turns any data into a `SourceDescription`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shoal._typing import IntArray
from shoal.errors import OptionError
from shoal.shard._shuffle_window import ReadSchedule
from shoal.shard._stream import ErrorPolicy

from ._columns import Ragged
from ._stages import Map, PerSample, Stage, function_location, rng_for, takes_rng

__all__ = [
    "CachedData",
    "IndexedSource",
    "Located",
    "PrefetchedSource",
    "SourceDescription",
    "SourceLayout",
    "StreamSource",
    "SupportsGenerations",
    "SupportsLoading",
    "SupportsMemoryCache",
    "SupportsPrefetch",
    "ZippedSource",
    "describe_source",
    "source_settings",
    "zip_streams",
]


@dataclass(frozen=True)
class SourceLayout:
    """How samples are stored, which decides in what order they are best read."""

    shard_starts: IntArray
    """The number of each shard's first sample, and the total at the end."""
    mean_bytes: float | None = None
    """Mean bytes of a sample, if known."""
    local: bool = True
    """Whether reading a single sample is cheap."""


class Located(Protocol):
    """A source that knows where its samples are stored."""

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Return the shard and the key of a sample, for messages."""
        ...


@runtime_checkable
class SupportsGenerations(Protocol):
    """Data that others may add to, or delete from, between two runs."""

    @property
    def generation(self) -> str | None:
        """The name of the state that is read; None if there is none."""
        ...

    def at_generation(self, generation: str) -> Any:
        """Return the data as it was then. Raises ShoalError if that is not possible."""
        ...


class IndexedSource(Located, Protocol):
    """Samples by number, as exact orders, lengths and resuming need. Thread-safe."""

    def __len__(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Differs when the samples or their numbers do."""
        ...

    def read(self, numbers: IntArray) -> list[Any]:
        """Return the samples with these numbers, in this order."""
        ...

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        """Return a batch of them, if that is faster than sample by sample; else None."""
        ...

    def geometry(self) -> SourceLayout: ...


@runtime_checkable
class SupportsMemoryCache(Protocol):
    """A source that can keep its samples in memory, as stored, when they are read in random order."""

    def hold(self, most_bytes: int) -> None:
        """Keep them, if they take no more than this."""
        ...


@runtime_checkable
class SupportsPrefetch(Protocol):
    """A remote source, whose samples are best fetched before they are read."""

    def foresee_order(self, foresight: ReadSchedule) -> PrefetchedSource | None:
        """Fetch samples in this order until the returned value is closed; None if that would not help."""
        ...


class PrefetchedSource(Protocol):
    """Samples that are being prefetched."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class StreamSource:
    """Samples that can only be read from the first one on: a pipe, a generator, a live feed."""

    begin: Callable[[], Iterator[Any]]
    """Starts the stream from its first sample."""
    name: str
    once: bool = False
    """Whether it can be started only once."""
    set_epoch: Callable[[int], object] | None = None
    """Called with the epoch before it is started, if samples depend on it."""
    close: Callable[[], object] | None = None
    """Called when no more samples are needed for now."""

    @property
    def fingerprint(self) -> str:
        """Depends on the name only: samples are not known beforehand."""
        return hashlib.sha256(f"stream {self.name}".encode()).hexdigest()[:16]

    def of_epoch(self, epoch: int) -> Iterator[Any]:
        """Start the stream for an epoch."""
        if self.set_epoch is not None:
            self.set_epoch(epoch)
        return self.begin()

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Return the name of the stream, and how many samples came before."""
        return self.name, str(number)


@dataclass(frozen=True)
class SourceDescription:
    """A source, and the stages that come before those of the loader."""

    source: IndexedSource | StreamSource
    steps: tuple[PerSample | Stage, ...] = ()
    collate: Callable[[list[Any]], Any] | None = None
    """Combines samples into a batch, if the data has a way of its own."""
    errors: ErrorPolicy | None = None
    """What the data does with samples that fail."""


@runtime_checkable
class SupportsLoading(Protocol):
    """Data that describes itself to a loader."""

    def __load__(self) -> SourceDescription: ...


class SequenceSource:
    """Anything with a length and indices: a list, an array, a map-style dataset of PyTorch."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def fingerprint(self) -> str:
        """Depends on type and length only: samples are not examined."""
        kind = type(self.samples)
        return hashlib.sha256(f"{kind.__module__}.{kind.__qualname__} {len(self)}".encode()).hexdigest()[:16]

    def read(self, numbers: IntArray) -> list[Any]:
        """Read one by one, or with ``__getitems__`` if there is one, as in PyTorch."""
        getitems = getattr(self.samples, "__getitems__", None)
        if getitems is not None:
            return list(getitems(numbers.tolist()))
        return [self.samples[number] for number in numbers.tolist()]

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        """Return rows of an array; None of anything else."""
        del ragged
        return self.samples[numbers] if isinstance(self.samples, np.ndarray) else None

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Return the number only."""
        return None, str(number)

    def geometry(self) -> SourceLayout:
        """Return the layout of one shard."""
        return SourceLayout(np.array([0, len(self)], np.int64))


def source_settings(source: IndexedSource | StreamSource) -> dict[str, Any]:
    """Return what identifies the samples of a source: a digest of each setting if it has them apart, else of all."""
    digests: dict[str, Any] | None = getattr(source, "setting_digests", None)
    return {"data": source.fingerprint} if digests is None else digests


def describe_source(data: Any) -> SourceDescription:
    """Return how to read data: as it describes itself, by index, or as a stream. Raises OptionError if impossible."""
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
        set_epoch = getattr(data, "set_epoch", None)  # iterable datasets of PyTorch and Hugging Face have it
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
    """Data whose samples are cached in memory after some maps."""

    def __init__(self, data: Any, steps: tuple[Map, ...], seed: int) -> None:
        self._data = data
        self._steps = steps
        self._seed = seed
        self._described: SourceDescription | None = None

    def __load__(self) -> SourceDescription:
        """Describe the cache, which is created once, so that all loaders over it share it."""
        if self._described is None:
            below = describe_source(self._data)
            steps = (*below.steps, *self._steps)
            if isinstance(below.source, StreamSource):
                raise OptionError("only samples with positions are kept", found=below.source.name)
            maps = [stage for stage in steps if isinstance(stage, Map)]
            if len(maps) < len(steps):
                raise OptionError("only samples are kept", expected="cache() before all but map()")
            cached = _CachedSource(below.source, maps, self._seed)
            self._described = SourceDescription(cached, collate=below.collate, errors=below.errors)
        return self._described


class _CachedSource:
    """An indexed source whose samples are each read and mapped once."""

    def __init__(self, below: IndexedSource, maps: list[Map], seed: int) -> None:
        self._below = below
        self._maps = maps
        self._seed = seed
        self._values: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._below)

    @property
    def fingerprint(self) -> str:
        """That of the uncached samples."""
        return self._below.fingerprint

    @property
    def setting_digests(self) -> dict[str, Any]:
        """Those of the uncached samples."""
        return source_settings(self._below)

    def read(self, numbers: IntArray) -> list[Any]:
        """Return samples, reading those that are not cached; two threads that miss the same one both read it."""
        missing = [number for number in numbers.tolist() if number not in self._values]
        if missing:
            values = self._below.read(np.array(missing, np.int64))
            random = 0
            for stage in self._maps:
                random += takes_rng(stage.function)
                values = [self._map(stage, value, at, random) for value, at in zip(values, missing, strict=True)]
            self._values.update(zip(missing, values, strict=True))
        return [self._values[number] for number in numbers.tolist()]

    def _map(self, stage: Map, value: Any, number: int, random: int) -> Any:
        """Map one value; random numbers are those of the first epoch."""
        try:
            if takes_rng(stage.function):
                return stage.function(value, rng=rng_for(self._seed, 0, number, 0, random))
            return stage.function(value)
        except Exception as error:
            error.add_note(f"in map({function_location(stage.function)}), to be kept")
            raise

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        """Return None: only samples are cached."""
        del numbers, ragged
        return None

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Return where the sample is stored."""
        return self._below.locate(number)

    def geometry(self) -> SourceLayout:
        """Return how the samples are stored."""
        return self._below.geometry()


class ZippedSource:
    """An indexed source of tuples, with one sample of each of several sources."""

    def __init__(self, sources: list[IndexedSource]) -> None:
        self._sources = sources

    def __len__(self) -> int:
        return min(map(len, self._sources))

    @property
    def fingerprint(self) -> str:
        """Depends on those of all sources."""
        return hashlib.sha256(" ".join(source.fingerprint for source in self._sources).encode()).hexdigest()[:16]

    def read(self, numbers: IntArray) -> list[Any]:
        """Return tuples of the samples with these numbers."""
        return list(zip(*(source.read(numbers) for source in self._sources), strict=True))

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        """Return a batch of each source, if all sources make batches."""
        parts = [source.read_batch(numbers, ragged) for source in self._sources]
        return None if any(part is None for part in parts) else tuple(parts)

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Return where the sample of the first source is stored."""
        return self._sources[0].locate(number)

    def geometry(self) -> SourceLayout:
        """Return how the samples of the first source are stored."""
        layout = self._sources[0].geometry()
        return SourceLayout(np.minimum(layout.shard_starts, len(self)), layout.mean_bytes, layout.local)


def zip_streams(streams: list[StreamSource]) -> StreamSource:
    """Return a stream of tuples; the shortest stream ends it."""

    def set_epoch(epoch: int) -> None:
        for stream in streams:
            if stream.set_epoch is not None:
                stream.set_epoch(epoch)

    def begin() -> Iterator[Any]:
        return zip(*(stream.begin() for stream in streams), strict=False)

    def close() -> None:
        for stream in streams:
            if stream.close is not None:
                stream.close()

    name = "zip of " + ", ".join(stream.name for stream in streams)
    return StreamSource(begin, name, any(stream.once for stream in streams), set_epoch, close)
