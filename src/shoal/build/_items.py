"""Items that shards are built from: addressed by number, readable in any process.

An ``Items`` is pickled to the workers, so it holds names, and opens files only where it reads them.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from shoal._typing import IntArray
from shoal.dataset._dataset import Dataset
from shoal.errors import OptionError
from shoal.formats._registry import SourceOptions, open_source
from shoal.shard._copy import CopySource, open_copy_source
from shoal.shard._discovery import shards_by_split
from shoal.shard._manifest import Manifest
from shoal.shard._row_view import RowView
from shoal.shard._shard import Sample
from shoal.shard._source import ShardSource, Source
from shoal.shard._split_names import same_split
from shoal.store._base import ObjectInfo

from ._digests import checksum_sample, digest_values

__all__ = [
    "DatasetItems",
    "Items",
    "ItemsBase",
    "JoinedItems",
    "Read",
    "SequenceItems",
    "ShardItems",
    "SourceItems",
    "SplitRuns",
    "map_in_threads",
    "runs_by_split",
]

Read = Sample | Exception
"""An item, or the error of reading it."""
SplitRuns = Mapping[str, Sequence[tuple[int, int]]]
"""For each split, the half-open ranges of its items."""
_PROBES = 64
_THREADS = 16


class Items(Protocol):
    """Numbered items of a source."""

    def __len__(self) -> int: ...

    @property
    def identity(self) -> str:
        """A digest that differs where the items may: of names, sizes and times of files, or of some of the samples."""
        ...

    def sizes(self) -> IntArray | None:
        """The bytes that each item takes in a tar if it is written unchanged; None where that is not known."""
        ...

    def splits(self) -> SplitRuns | None:
        """The items of each split; None where the source has no splits."""
        ...

    def read(self, numbers: IntArray) -> list[Read]:
        """Read items, in the given order; an item that cannot be read is its exception."""
        ...


class ItemsBase(ABC):
    """Base class for items that are read together and, when that fails, one by one."""

    def splits(self) -> SplitRuns | None:
        """None: most sources have no splits."""
        return None

    def sizes(self) -> IntArray | None:
        """None: not known."""
        return None

    def read(self, numbers: IntArray) -> list[Read]:
        """Read items, in the given order; an item that cannot be read is its exception."""
        try:
            return list(self._samples(numbers))
        except Exception as error:  # noqa: BLE001 - a user's dataset may raise anything
            return [error] if len(numbers) == 1 else [item for number in numbers for item in self.read(number[None])]

    @abstractmethod
    def _samples(self, numbers: IntArray) -> Sequence[Any]: ...


class SourceItems(ItemsBase):
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
        return digest_values([(info.url, info.size, info.version) for info in infos], len(self))

    def splits(self) -> SplitRuns | None:
        """Those that the names of the files say."""
        urls, starts = _files_of(self.source)
        return runs_by_split(shards_by_split(urls), urls, starts, np.arange(len(self))) if urls else None

    def _samples(self, numbers: IntArray) -> Sequence[Any]:
        return self.source.read(numbers)


def _files_of(source: Source) -> tuple[list[str], IntArray]:
    """The URLs of the files of a source, and the number of the first sample in each; none where it has no files."""
    if isinstance(source, ShardSource):
        return [ref.url for ref in source.shards], source.starts
    infos: Sequence[ObjectInfo] = getattr(source, "infos", ())
    starts = getattr(source, "starts", np.arange(len(infos) + 1))  # where each file is a sample, there are none
    return [info.url for info in infos], starts


def _splits_of_dataset(dataset: Dataset[Any]) -> SplitRuns | None:
    urls, starts = _files_of(dataset.source)
    listed = dataset.source.urls_by_split if isinstance(dataset.source, ShardSource) else None
    by_split = shards_by_split(urls) if listed is None else listed()
    return runs_by_split(by_split, urls, starts, dataset.rows.as_array()) if urls else None


def runs_by_split(
    by_split: Mapping[str, Sequence[str]], urls: Sequence[str], starts: IntArray, rows: IntArray
) -> SplitRuns:
    """The runs of items of each split, where item i is sample ``rows[i]`` of files that begin at ``starts``.

    Examples:
        >>> by_split = {"train": ["a", "c"], "test": ["b"]}
        >>> runs_by_split(by_split, ["a", "b", "c"], np.array([0, 2, 3, 6]), np.array([0, 1, 2, 3, 5]))
        {'train': [(0, 2), (3, 5)], 'test': [(2, 3)]}
    """
    names = list(by_split)
    numbers = {url: number for number, name in reversed(list(enumerate(names))) for url in by_split[name]}
    split_of_file = np.array([numbers[url] for url in urls])
    splits = split_of_file[np.searchsorted(starts, rows, "right") - 1]
    edges = np.concatenate(([0], np.flatnonzero(np.diff(splits)) + 1, [len(splits)])) if len(rows) else np.zeros(1, int)
    runs: dict[str, list[tuple[int, int]]] = {}
    for start, stop in itertools.pairwise(edges.tolist()):
        runs.setdefault(names[splits[start]], []).append((start, stop))
    return {name: runs[name] for name in names if name in runs}


class ShardItems(ItemsBase):
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
        if source.index.known_length is None:  # counting its samples opens every shard: keep what copying needs
            self._copy_sources.update(
                (number, open_copy_source(source, number)) for number in range(len(source.shards))
            )
        return source

    @functools.cached_property
    def rows(self) -> RowView:
        """The row of each item in the shards: samples that were deleted, or left out by a query, are not items."""
        return self._dataset.rows

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def identity(self) -> str:
        """Of the shards' sizes and first headers, and of which samples are in view."""
        indexes = [self.copy_source(number).index for number in range(len(self.source.shards))]
        facts = [[index.facts.size, index.facts.head_crc, len(index)] for index in indexes]
        return digest_values([ref.url for ref in self.source.shards], facts, self.rows.digest)

    def copy_source(self, number: int) -> CopySource:
        """A shard's index and where its samples are; cached, since planning and copying both need it."""
        cached = self._copy_sources.get(number)
        if cached is None:
            cached = self._copy_sources[number] = open_copy_source(self.source, number)
        return cached

    @functools.cached_property
    def _copy_sources(self) -> dict[int, CopySource]:
        return {}

    def sizes(self) -> IntArray:
        """Exact: samples keep the bytes they have."""
        sizes = [self.copy_source(number).sizes for number in range(len(self.source.shards))]
        return np.concatenate([np.empty(0, np.int64), *sizes])[self.rows.as_array()]

    @property
    def manifest(self) -> Manifest | None:
        """The dataset's manifest, where it has one."""
        return self.source.manifest

    def splits(self) -> SplitRuns | None:
        """Those that the shards are of: by the manifest, Energon's ``split.yaml``, or the shards' names."""
        return _splits_of_dataset(self._dataset)

    def _samples(self, numbers: IntArray) -> Sequence[Any]:
        return self.source.read(self.rows.rows_at(numbers))


class DatasetItems(ItemsBase):
    """The samples of a `Dataset` as it yields them: with its view, its decoding and its stages."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def identity(self) -> str:
        """The dataset's own."""
        return self._dataset.fingerprint

    def splits(self) -> SplitRuns | None:
        """Those that the files of the samples are of."""
        return _splits_of_dataset(self._dataset)

    def _samples(self, numbers: IntArray) -> Sequence[Any]:
        return self._dataset.samples_at(numbers)


class SequenceItems(ItemsBase):
    """Any sequence: lists of samples, Hugging Face datasets, map-style datasets of PyTorch."""

    def __init__(self, samples: Any) -> None:
        self._values = samples

    def __len__(self) -> int:
        return len(self._values)

    @property
    def identity(self) -> str:
        """The fingerprint of a Hugging Face dataset, the content of a list; else the length and some of the samples."""
        own = getattr(self._values, "_fingerprint", None)
        if isinstance(own, str):
            return own
        if isinstance(self._values, (list, tuple)):
            return digest_values(
                len(self), functools.reduce(lambda crc, sample: checksum_sample(sample, crc), self._values, 0)
            )
        probes = np.unique(np.linspace(0, max(len(self) - 1, 0), min(_PROBES, len(self))).astype(np.int64))
        return digest_values(len(self), [self._values[probe] for probe in probes.tolist()])

    def _samples(self, numbers: IntArray) -> Sequence[Any]:
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

    def sizes(self) -> IntArray | None:
        """Known where all are."""
        known = [sizes for part in self.parts if (sizes := part.sizes()) is not None]
        return np.concatenate(known) if len(known) == len(self.parts) else None

    def splits(self) -> SplitRuns | None:
        """A split has the runs that all parts have of it; a part without splits is all ``train``."""
        own = [part.splits() for part in self.parts]
        if not any(own):
            return None
        joined: dict[str, list[tuple[int, int]]] = {}
        for base, part, runs in zip(self.starts, self.parts, own, strict=False):
            for split, spans in (runs or {"train": [(0, len(part))]}).items():
                runs_so_far = joined.setdefault(same_split(split, joined), [])
                runs_so_far.extend((base + start, base + stop) for start, stop in spans)
        return joined

    def part_of(self, number: int) -> int:
        """Which part an item is of."""
        return bisect.bisect_right(self.starts, number) - 1

    def read(self, numbers: IntArray) -> list[Read]:
        """Read items, with one read of each part."""
        reads: list[Read] = [{}] * len(numbers)
        parts = np.searchsorted(self.starts, numbers, "right") - 1
        for part in np.unique(parts).tolist():
            at = np.flatnonzero(parts == part)
            own = self.parts[part].read(numbers[at] - self.starts[part])
            for position, read in zip(at.tolist(), own, strict=True):
                reads[position] = read
        return reads


def map_in_threads(work: Any, values: Sequence[Any], *, threads: int = _THREADS) -> Iterator[Any]:
    """Yield ``work(value)`` for each value, in order, with several calls in flight; for work that waits for a store."""
    if len(values) < 2:
        yield from map(work, values)
        return
    with ThreadPoolExecutor(min(threads, len(values))) as pool:
        yield from pool.map(work, values)
