"""What a loader reads from: numbered samples, or a line of them without numbers."""

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
from shoal.load._columns import Ragged
from shoal.shard import Foresight

from ._steps import PerSample, Step

__all__ = [
    "Described",
    "Foreseeing",
    "Foreseen",
    "Geometry",
    "Holding",
    "Loadable",
    "Located",
    "Numbered",
    "SequenceSource",
    "StreamSource",
    "describe_source",
]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Geometry:
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


class Numbered(Located, Protocol):
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

    def geometry(self) -> Geometry: ...


@runtime_checkable
class Holding(Protocol):
    """Samples that may be kept in memory, as they are stored, where they are read in no order."""

    def hold(self, most_bytes: int) -> None:
        """Keep them, if they take no more than this."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """Samples that are far away, and better fetched before they are read."""

    def foresee_order(self, foresight: Foresight) -> Foreseen | None:
        """Fetch them in the order told, from now until what this gives is closed; None where that is no use."""
        ...


class Foreseen(Protocol):
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
class Described:
    """A source and what is done to its samples first."""

    source: Numbered | StreamSource
    steps: tuple[PerSample | Step, ...] = ()
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples, where the data says how."""


@runtime_checkable
class Loadable(Protocol):
    """Anything that says itself how a loader reads it."""

    def __load__(self) -> Described: ...


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

    def geometry(self) -> Geometry:
        """One shard."""
        return Geometry(np.array([0, len(self)], np.int64))


def describe_source(data: Any) -> Described:
    """How this is read: by its own word, by position, or as a line. Raises OptionError when it cannot be."""
    if isinstance(data, Loadable):
        return data.__load__()
    if isinstance(data, (str, bytes, os.PathLike)):
        raise OptionError("a loader reads a dataset", expected=f"shoal.Dataset({data!r})", found=repr(data))
    if isinstance(data, Mapping):
        names = ", ".join(map(str, itertools.islice(data, 5)))
        raise OptionError("a loader reads one dataset", expected="one of these, as data[name]", found=names or "none")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Described(SequenceSource(data))
    if isinstance(data, Iterator):
        return Described(StreamSource(lambda: data, type(data).__name__, once=True))
    if isinstance(data, Iterable):
        set_epoch = getattr(data, "set_epoch", None)  # as iterable datasets of PyTorch and Hugging Face have it
        return Described(StreamSource(lambda: iter(data), type(data).__name__, set_epoch=set_epoch))
    if callable(data):
        begin: Callable[[], Any] = data
        return Described(StreamSource(lambda: iter(begin()), getattr(data, "__qualname__", type(data).__name__)))
    raise OptionError(
        "nothing can be loaded from this", expected="a dataset, a sequence or an iterable", found=repr(data)
    )
