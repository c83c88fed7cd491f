"""What shards are built from: numbered items that any process can read.

An ``Items`` is pickled to the workers, so it holds names, not open files; what it opens, it opens where it reads.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.dataset import Dataset
from shoal.errors import OptionError
from shoal.formats import SourceOptions, open_source
from shoal.shard import CopySource, Manifest, Sample, ShardSource, Source, open_copy_source
from shoal.store import ObjectInfo

from ._digests import crc_of, mark_of

__all__ = [
    "DatasetItems",
    "Items",
    "ItemsOf",
    "JoinedItems",
    "Read",
    "SequenceItems",
    "ShardItems",
    "SourceItems",
    "at_once",
]

Int64 = npt.NDArray[np.int64]
Read = Sample | Exception
"""An item as it was read, or why it could not be."""
Runs = Mapping[str, Sequence[tuple[int, int]]]
_PROBES = 64
_THREADS = 16


class Items(Protocol):
    """Numbered items of a source."""

    def __len__(self) -> int: ...

    @property
    def identity(self) -> str:
        """Differs where the items may: names, sizes and times of files, or a digest of some of the samples."""
        ...

    def sizes(self) -> Int64 | None:
        """The bytes each item takes of a tar as it is; None where that is not known."""
        ...

    def splits(self) -> Runs | None:
        """Which runs of items are of which split; None where the source has no splits."""
        ...

    def read(self, numbers: Int64) -> list[Read]:
        """These items, in this order; an item that cannot be read is the exception that says why."""
        ...


class ItemsOf(ABC):
    """What most kinds of items have in common: read some at once, and when that fails, one by one."""

    def splits(self) -> Runs | None:
        """None: most sources have no splits."""
        return None

    def sizes(self) -> Int64 | None:
        """None: not known."""
        return None

    def read(self, numbers: Int64) -> list[Read]:
        """These items; each error stands in the place of its item."""
        try:
            return list(self._samples(numbers))
        except Exception as error:  # noqa: BLE001 - whatever a user's dataset raises is told of its item
            return [error] if len(numbers) == 1 else [found for number in numbers for found in self.read(number[None])]

    @abstractmethod
    def _samples(self, numbers: Int64) -> Sequence[Any]: ...


class SourceItems(ItemsOf):
    """A path that a format opens: tables, TFRecord files, arrays."""

    def __init__(self, path: Any, options: SourceOptions, format_name: str | None) -> None:
        self._path = path
        self._options = options
        self._format = format_name

    @functools.cached_property
    def source(self) -> Source:
        """The open source."""
        return open_source(self._path, self._options, format=self._format)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "source"}

    def __len__(self) -> int:
        return len(self.source)

    @property
    def identity(self) -> str:
        """Of the files' names, sizes and times."""
        infos: Sequence[ObjectInfo] = getattr(self.source, "infos", ())
        return mark_of([(info.url, info.size, info.version) for info in infos], len(self))

    def _samples(self, numbers: Int64) -> Sequence[Any]:
        return self.source.read(numbers)


class ShardItems(ItemsOf):
    """Tar shards: the samples in view, as the bytes that are stored."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset}

    @functools.cached_property
    def source(self) -> ShardSource:
        """The open shards."""
        source = self._dataset.source
        if not isinstance(source, ShardSource):
            raise OptionError("this dataset has no shards of its own", found=type(source).__name__)
        if source.known_length is None:  # to count its samples, every shard must be opened: then that is all
            self._held.update((number, open_copy_source(source, number)) for number in range(len(source.shards)))
        return source

    @functools.cached_property
    def rows(self) -> Int64:
        """The number in the shards of each item: deleted samples, and those a query left out, are no items."""
        return self._dataset.numbers

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def identity(self) -> str:
        """Of the shards' sizes and first headers, and of which samples are in view."""
        indexes = [self.held(number).index for number in range(len(self.source.shards))]
        facts = [[index.facts.size, index.facts.head_crc, len(index)] for index in indexes]
        return mark_of([ref.url for ref in self.source.shards], facts, self.rows)

    def held(self, number: int) -> CopySource:
        """A shard's index and where its samples are, kept: planning and copying both ask."""
        found = self._held.get(number)
        if found is None:
            found = self._held[number] = open_copy_source(self.source, number)
        return found

    @functools.cached_property
    def _held(self) -> dict[int, CopySource]:
        return {}

    def sizes(self) -> Int64:
        """Exact: samples keep the bytes they have."""
        sizes = [self.held(number).sizes for number in range(len(self.source.shards))]
        return np.concatenate([np.empty(0, np.int64), *sizes])[self.rows]

    @property
    def manifest(self) -> Manifest | None:
        """The dataset's manifest, where it has one."""
        return self.source.manifest

    def splits(self) -> Runs | None:
        """The manifest's, of a whole dataset whose samples are in their order."""
        manifest = self.source.manifest
        records = [] if manifest is None else list(manifest.shards)
        whole = len(records) == len(self.source.shards) and bool((np.diff(self.rows) > 0).all())
        if manifest is None or not whole:
            return None
        runs: dict[str, Sequence[tuple[int, int]]] = {}
        at = 0
        for split, own in manifest.splits.items():
            span = np.searchsorted(self.rows, self.source.starts[[at, at + len(own)]]).tolist()
            runs[split] = [(span[0], span[1])]
            at += len(own)
        return runs

    def _samples(self, numbers: Int64) -> Sequence[Any]:
        return self.source.read(self.rows[numbers])


class DatasetItems(ItemsOf):
    """A shoal Dataset, as it is seen: its view, its decoding, its stages."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def identity(self) -> str:
        """The dataset's own."""
        return self._dataset.fingerprint

    def _samples(self, numbers: Int64) -> Sequence[Any]:
        return self._dataset.samples_at(numbers)


class SequenceItems(ItemsOf):
    """Anything with a length and positions: lists of samples, Hugging Face datasets, map-style datasets of PyTorch."""

    def __init__(self, samples: Any) -> None:
        self._values = samples

    def __len__(self) -> int:
        return len(self._values)

    @property
    def identity(self) -> str:
        """A Hugging Face dataset's own, a list's content; else of the length, and of some samples over the whole."""
        own = getattr(self._values, "_fingerprint", None)
        if isinstance(own, str):
            return own
        if isinstance(self._values, (list, tuple)):
            return mark_of(len(self), functools.reduce(lambda crc, sample: crc_of(sample, crc), self._values, 0))
        places = np.unique(np.linspace(0, max(len(self) - 1, 0), min(_PROBES, len(self))).astype(np.int64))
        return mark_of(len(self), [self._values[place] for place in places.tolist()])

    def _samples(self, numbers: Int64) -> Sequence[Any]:
        return [self._values[number] for number in numbers.tolist()]


class JoinedItems:
    """Several sources, one after the other."""

    def __init__(self, parts: Sequence[Items]) -> None:
        self.parts = tuple(parts)
        self.starts = [0]
        for part in self.parts:
            self.starts.append(self.starts[-1] + len(part))

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def identity(self) -> str:
        """Of all parts."""
        return hashlib.sha256("\0".join(part.identity for part in self.parts).encode()).hexdigest()

    def sizes(self) -> Int64 | None:
        """Known where all are."""
        found = [sizes for part in self.parts if (sizes := part.sizes()) is not None]
        return np.concatenate(found) if len(found) == len(self.parts) else None

    def splits(self) -> Runs | None:
        """A split has the runs that all parts have of it; a part without splits is all ``train``."""
        own = [part.splits() for part in self.parts]
        if not any(own):
            return None
        joined: dict[str, list[tuple[int, int]]] = {}
        for base, part, runs in zip(self.starts, self.parts, own, strict=False):
            for split, spans in (runs or {"train": [(0, len(part))]}).items():
                joined.setdefault(split, []).extend((base + start, base + stop) for start, stop in spans)
        return joined

    def part_of(self, number: int) -> int:
        """Which part an item is of."""
        return bisect.bisect_right(self.starts, number) - 1

    def read(self, numbers: Int64) -> list[Read]:
        """Each part is asked once for all it has."""
        found: list[Read] = [{}] * len(numbers)
        of = np.searchsorted(self.starts, numbers, "right") - 1
        for part in np.unique(of).tolist():
            places = np.flatnonzero(of == part)
            for place, read in zip(
                places.tolist(), self.parts[part].read(numbers[places] - self.starts[part]), strict=True
            ):
                found[place] = read
        return found


def at_once(work: Any, values: Sequence[Any], *, threads: int = _THREADS) -> Iterator[Any]:
    """What ``work`` gives for each value, in order, several at a time: for what waits for answers."""
    if len(values) < 2:
        yield from map(work, values)
        return
    with ThreadPoolExecutor(min(threads, len(values))) as pool:
        yield from pool.map(work, values)
