"""Read PLAID datasets: `WebDatasetDict` has the splits of a dataset, `WebDatasetWrapper` the samples of a split.

An array is compared with its checksum before it is returned the first time. That takes about as long as adding it up,
so a reader that goes through a split in order has the next samples compared by another thread (`ChecksumPrefetch`).
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.errors import (
    FieldError,
    FormatError,
    ObjectNotFoundError,
    OptionError,
    PositionError,
    ShoalError,
)
from shoal.shard._manifest import Manifest, ShardRecord, load_manifest
from shoal.shard._open_shards import index_url
from shoal.store._registry import store_for
from shoal.store._url import join_url, relative_url, scheme_of

from ._arrays import ArrayShard, ShardPlace, Values, select_features
from ._layout import DATA_FOLDER, decode_sample, number_in_key, split_metadata

if TYPE_CHECKING:
    from webdataset.compat import WebDataset

__all__ = [
    "ChecksumPrefetch",
    "FoundSplit",
    "WebDatasetDict",
    "WebDatasetSample",
    "WebDatasetWrapper",
    "chosen_splits",
    "create_webdataset_pipeline",
    "init_datasetdict_from_disk",
    "splits_at",
]

CheckOf = Callable[[int, Sequence[str] | None], Callable[[], object]]
"""Gives what compares the sample at a position, these features of it or all, with its checksums.

It opens what is to be opened: that is Python's work, at which threads only take turns, and a process that is forked
while another thread opens something would find it locked for ever.
"""
WebDatasetSample = dict[str, Any]
"""A sample: its features by path, arrays or None."""
_PREFETCH = 4
"""Samples prefetched: one that the thread is at, one that a reader who comes too early takes on, and what is next."""
_NO_INDEXERS: Mapping[str, Any] = {}
_OPEN_TOGETHER = 4
"""Shards opened at once when one is prefetched: between large samples, the first takes as long as three that follow."""


@dataclass(frozen=True, slots=True)
class FoundSplit:
    """A split at its place."""

    url: str
    """Of its folder."""
    places: tuple[ShardPlace, ...]
    features: dict[str, str] | None = None
    """The member field of each feature path, where a manifest says it."""

    def opened(self, chosen: Sequence[int] | None = None, wanted: Sequence[str] | None = None) -> WebDatasetWrapper:
        """The split, or some samples and features of it."""
        path = Path(self.url) if "://" not in self.url else self.url
        return WebDatasetWrapper._over(path, self.places, self.features, chosen=chosen, wanted=wanted)  # noqa: SLF001


def init_datasetdict_from_disk(path: str | Path) -> WebDatasetDict:
    """The splits of the dataset in a folder: those its manifest names, else its tars.

    These are ``data/<split>/*.tar`` and ``data/<split>.tar``. Nothing but the manifest is read before a split is used.
    Raises ObjectNotFoundError when there is no dataset.
    """
    found = splits_at(os.fspath(path))
    return WebDatasetDict._of(Path(path), {name: split.opened() for name, split in found.items()})  # noqa: SLF001


def splits_at(root: str) -> dict[str, FoundSplit]:
    """The splits of the dataset at ``root``, a folder or a URL. Raises ObjectNotFoundError."""
    manifest = load_manifest(root)
    facts = {} if manifest is None else split_metadata(manifest, root)
    if manifest is not None and facts:
        return {
            name: FoundSplit(join_url(root, DATA_FOLDER, name), _places(manifest, root, name), fact.features)
            for name, fact in facts.items()
        }
    return _splits_by_name(root)


def _places(manifest: Manifest, root: str, split: str) -> tuple[ShardPlace, ...]:
    return tuple(
        ShardPlace(join_url(root, record.path), index_url(root, record.path), _numbers(record))
        for record in manifest.splits.get(split, ())
    )


def _numbers(record: ShardRecord) -> range | None:
    """The numbers of a shard's samples, where they have no gap: then its ends and their count tell all of them."""
    first, last = (None if key is None else number_in_key(key) for key in (record.first_key, record.last_key))
    if first is None or last is None or last - first + 1 != record.samples:
        return None
    return range(first, last + 1)


def _splits_by_name(root: str) -> dict[str, FoundSplit]:
    folder = join_url(root, DATA_FOLDER)
    tars: dict[str, list[str]] = {}
    for info in store_for(folder).list(folder, depth=2):
        name, _, inner = relative_url(info.url, folder).partition("/")
        if (inner or name).endswith(".tar"):
            tars.setdefault(name if inner else name.removesuffix(".tar"), []).append(info.url)
    if not tars:
        raise ObjectNotFoundError("no PLAID dataset of tars is there", expected="data/<split>/*.tar", found=root)
    return {
        name: FoundSplit(join_url(folder, name), tuple(ShardPlace(url) for url in urls)) for name, urls in tars.items()
    }


def chosen_splits(found: Mapping[str, FoundSplit], split_ids: Mapping[str, object] | None) -> list[str]:
    """The splits that are asked for. Raises FieldError for one that is not there."""
    names = list(found) if split_ids is None else list(split_ids)
    if unknown := [name for name in names if name not in found]:
        raise FieldError("no such split", expected=" or ".join(found), found=unknown[0])
    return names


@dataclass(frozen=True, slots=True)
class _PendingCheck:
    check: Callable[[], object]
    future: Future[object]

    def help(self) -> None:
        """Do it in this thread, unless the other one has begun."""
        if self.future.cancel():
            with contextlib.suppress(ShoalError):  # raised again when the sample is read
                self.check()


class ChecksumPrefetch:
    """Compares samples with their checksums before a reader that goes in order asks for them. Thread-safe."""

    def __init__(self, check_of: CheckOf, count: int) -> None:
        self._check_of = check_of
        self._count = count
        self._expected = -1
        self._pending: dict[int, _PendingCheck] = {}
        self._process = os.getpid()

    def take(self, position: int) -> bool:
        """The caller reads the sample now, and compares what is not compared yet. Whether it was prefetched.

        What the thread is at, it finishes, and meanwhile the next sample is compared here. What it finds wrong it keeps
        to itself, for the reader finds it too.
        """
        begun = self._pending.pop(position, None)
        if begun is not None and self._process == os.getpid() and not begun.future.cancel():
            if not begun.future.done() and (later := self._pending.get(position + 1)) is not None:
                later.help()
            begun.future.exception()
        return begun is not None

    def note(self, position: int, paths: Sequence[str] | None, *, is_new: bool) -> None:
        """A sample was read, one that had to be compared if ``is_new``: begin with the next ones, if it was next."""
        in_order, self._expected = position == self._expected, position + 1
        if not in_order or self._process != os.getpid():
            self._pending.clear()
            self._process = os.getpid()
        elif is_new:
            for later in range(position + 1, min(position + 1 + _PREFETCH, self._count)):
                if later not in self._pending:
                    self._begin(later, paths)

    def _begin(self, position: int, paths: Sequence[str] | None) -> None:
        try:
            check = self._check_of(position, paths)
        except ShoalError:  # raised again when the sample is read
            return
        self._pending[position] = _PendingCheck(check, _thread().submit(check))


@functools.cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "shoal-plaid")


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_thread.cache_clear)  # a child starts a thread of its own


class WebDatasetWrapper:
    """The samples of one split, by number: ``split[7]`` is the sample ``sample_000000007``.

    ``tar_path`` is a tar, or a list of them. A sample is a dict from feature path to array, None where it has no value;
    arrays of local tars are read-only views of the file. ``cache=True`` reads all of them into memory now. Splits may
    be pickled, for loaders that read in other processes; the files open there again.

    Examples:
        >>> import numpy as np, shoal
        >>> with shoal.ShardWriter("train-%06d.tar") as writer:
        ...     writer.write({"__key__": "sample_000000003", "global__mach.npy": np.array([0.8])})
        >>> split = WebDatasetWrapper("train-000000.tar")
        >>> split.ids, split[3]
        (array([3]), {'global/mach': array([0.8])})
    """

    path: str | Path
    """The tar, or the folder of the tars."""
    _cache: dict[int, Values] | None

    def __init__(self, tar_path: str | Path | Sequence[str | Path], cache: bool = False) -> None:
        paths = [tar_path] if isinstance(tar_path, (str, Path)) else list(tar_path)
        one = len(paths) == 1 and not isinstance(tar_path, (list, tuple))
        self.path = paths[0] if one else Path(paths[0]).parent if paths else Path()
        self._set_up([ShardPlace(str(path)) for path in paths], None)
        if cache:
            self._cache = {int(number): _copy_of(self[number]) for number in self.ids}

    @classmethod
    def _over(
        cls,
        path: str | Path,
        places: Sequence[ShardPlace],
        features: Mapping[str, str] | None,
        *,
        chosen: Sequence[int] | None = None,
        wanted: Sequence[str] | None = None,
    ) -> WebDatasetWrapper:
        """A split of which more is known: its features, or that only some samples and features are wanted of it."""
        made = cls.__new__(cls)
        made.path = path
        made._set_up(places, features, chosen, wanted)  # noqa: SLF001 - one class
        return made

    def _set_up(
        self,
        places: Sequence[ShardPlace],
        features: Mapping[str, str] | None,
        chosen: Sequence[int] | None = None,
        wanted: Sequence[str] | None = None,
    ) -> None:
        self._places = tuple(places)
        self._features = None if features is None else dict(features)
        self._chosen = chosen
        self._wanted = wanted
        self._shards = [ArrayShard(place, self._features) for place in self._places]
        self._cache = None

    @functools.cached_property
    def _all_numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of all samples, shard after shard. Raises FormatError when one comes twice."""
        parts = [shard.numbers for shard in self._shards]
        numbers = np.concatenate(parts) if parts else np.empty(0, np.int64)
        counts = np.unique(numbers, return_counts=True)
        if len(twice := counts[0][counts[1] > 1]):
            raise FormatError("two samples have the same number", found=int(twice[0]), shard=str(self.path))
        return numbers

    @functools.cached_property
    def _starts(self) -> list[int]:
        return list(itertools.accumulate((len(shard.numbers) for shard in self._shards), initial=0))

    @functools.cached_property
    def _sorted(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        order = np.argsort(self._all_numbers, kind="stable")
        return self._all_numbers[order], order

    @functools.cached_property
    def ids(self) -> npt.NDArray[np.int64]:
        """The numbers of the samples, in the order of iteration."""
        if self._chosen is None:
            return self._all_numbers
        chosen = np.array(self._chosen, np.int64)
        if len(outside := np.setdiff1d(chosen, self._all_numbers)):
            raise self._no_sample(int(outside[0]))
        return chosen

    @property
    def features(self) -> tuple[str, ...]:
        """The paths of the variable features that samples are read for."""
        return tuple(self.fields) if self._wanted is None else tuple(self._wanted)

    @functools.cached_property
    def fields(self) -> dict[str, str]:
        """The member field of each variable feature's path."""
        if self._features is not None:
            return self._features
        return {path: field for shard in self._shards for path, field in shard.fields.items()}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, idx: int) -> WebDatasetSample:
        """The sample of this number. Raises PositionError."""
        return self.read(idx)

    def read(
        self, idx: int, features: Sequence[str] | None = None, indexers: Mapping[str, Any] | None = None
    ) -> WebDatasetSample:
        """The sample of this number, or some features of it; ``indexers`` pick parts of them along their last axis.

        Only the bytes that are asked for are read. Raises PositionError, and FieldError for a feature that the split
        does not have.
        """
        number = operator.index(idx)
        if self._cache is not None and number in self._cache:
            return select_features(self._cache[number], features, indexers)
        return self._read_place(*self._place_of(number), self._wanted_of(features), indexers or _NO_INDEXERS)

    def _read_place(self, shard: int, row: int, paths: Sequence[str] | None, indexers: Mapping[str, Any]) -> Values:
        position, place = self._starts[shard] + row, self._shards[shard]
        is_prefetched = self._prefetch.take(position)
        compared = not indexers and place.check(row, paths)  # of parts, nothing is compared
        found = place.read(row, paths, indexers)
        self._prefetch.note(position, paths, is_new=is_prefetched or compared)
        return found

    @functools.cached_property
    def _prefetch(self) -> ChecksumPrefetch:
        # Not a method of this object, which would then be in a circle and keep its files mapped until it is collected.
        return ChecksumPrefetch(functools.partial(_check_of, self._shards, self._starts), self._starts[-1])

    def _wanted_of(self, features: Sequence[str] | None) -> Sequence[str] | None:
        if features is None or self._wanted is None:
            return self._wanted if features is None else features
        if unfetched := [path for path in features if path not in self._wanted]:
            raise FieldError("the feature was not asked for", expected=" or ".join(self._wanted), found=unfetched[0])
        return features

    def _place_of(self, number: int) -> tuple[int, int]:
        position = self._position_of(number)
        if position is None or (self._chosen is not None and number not in self._chosen):
            raise self._no_sample(number)
        return _row_at(self._starts, position)

    def _position_of(self, number: int) -> int | None:
        if self._in_order:  # a whole dataset: no search
            return number if 0 <= number < self._starts[-1] else None
        numbers, order = self._sorted
        at = int(np.searchsorted(numbers, number))
        return int(order[at]) if at < len(numbers) and numbers[at] == number else None

    @functools.cached_property
    def _in_order(self) -> bool:
        return np.array_equal(self._all_numbers, np.arange(len(self._all_numbers)))

    def _no_sample(self, number: int) -> PositionError:
        numbers = self._all_numbers if self._chosen is None else np.array(self._chosen)
        known = f"{len(numbers)} of {numbers.min()} to {numbers.max()}" if len(numbers) else "none: the split is empty"
        return PositionError("no sample has this number", expected=known, found=number, shard=str(self.path))

    def __iter__(self) -> Iterator[WebDatasetSample]:
        if self._cache is not None:
            yield from self._cache.values()
            return
        places = [self._place_of(number) for number in self.ids.tolist()]
        for shard, rows in _by_shard(places):
            if self._shards[shard].is_mapped:
                yield from (self._read_place(shard, row, self._wanted, _NO_INDEXERS) for row in rows)
            else:
                yield from self._shards[shard].read_many(rows, self._wanted)

    @functools.cached_property
    def wds_pipeline(self) -> WebDataset:
        """The same tars as a pipeline of the webdataset package, with samples as this split gives them.

        Raises OptionError for tars that are not on this machine: webdataset would fetch them with a program of its own.
        """
        return create_webdataset_pipeline([place.url for place in self._places])

    def __getstate__(self) -> dict[str, Any]:
        kept = ("path", "_places", "_features", "_chosen", "_wanted", "_cache")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up(state["_places"], state["_features"], state["_chosen"], state["_wanted"])
        self.path, self._cache = state["path"], state["_cache"]

    def __repr__(self) -> str:
        shards = "1 shard" if len(self._places) == 1 else f"{len(self._places)} shards"
        return f"<WebDatasetWrapper {self.path}: {shards}>"


def create_webdataset_pipeline(tar_path: str | Sequence[str], features: list[str] | None = None) -> WebDataset:
    """Return a pipeline of the webdataset package over local tars, whose samples are decoded as a split's are.

    ``features`` names the features to keep. Raises OptionError for a tar that is not a local file.
    """
    urls = [tar_path] if isinstance(tar_path, str) else list(tar_path)
    if remote := [url for url in urls if scheme_of(url) != "file"]:
        raise OptionError("a pipeline of webdataset reads local files", found=remote[0], hint="iterate over the split")
    from webdataset.compat import WebDataset

    made: Any = WebDataset(urls, shardshuffle=False, empty_check=False)
    pipeline: WebDataset = made.map(functools.partial(_decode_features, features))
    return pipeline


def _decode_features(features: list[str] | None, sample: Mapping[str, Any]) -> WebDatasetSample:
    return select_features(decode_sample(sample), features, None)


def _copy_of(sample: Values) -> Values:
    return {path: None if value is None else value.copy() for path, value in sample.items()}


def _row_at(starts: Sequence[int], position: int) -> tuple[int, int]:
    """The shard and the row in it; ``starts`` are the positions where shards begin."""
    shard = bisect.bisect_right(starts, position) - 1
    return shard, position - starts[shard]


def _check_of(
    shards: Sequence[ArrayShard], starts: Sequence[int], position: int, paths: Sequence[str] | None
) -> Callable[[], object]:
    """What compares the sample at this position; its shard is opened now."""
    shard, row = _row_at(starts, position)
    if not shards[shard].is_open:
        _open_together(shards[shard + 1 : shard + _OPEN_TOGETHER])
    shards[shard].open()
    return functools.partial(shards[shard].check, row, paths)


def _open_together(shards: Sequence[ArrayShard]) -> None:
    for shard in shards:
        with contextlib.suppress(ShoalError):  # raised again when the sample is read
            shard.open()


def _by_shard(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """Runs of places in one shard, in order."""
    rows: list[int] = []
    for at, (shard, row) in enumerate(places):
        rows.append(row)
        if at + 1 == len(places) or places[at + 1][0] != shard:
            yield shard, rows
            rows = []


class WebDatasetDict(Mapping[str, WebDatasetWrapper]):
    """The splits of a dataset by name.

    ``split_tar_paths`` gives the tars of each split, a list or one path. Anything else that is passed is an attribute.

    Examples:
        >>> splits = WebDatasetDict("data", {"train": "train.tar", "test": ["a.tar", "b.tar"]}, owner="us")
        >>> splits, list(splits), splits.owner
        (<WebDatasetDict data: train, test>, ['train', 'test'], 'us')
    """

    path: str | Path
    """The dataset's folder."""
    split_tar_paths: dict[str, list[Path]]
    """The tars of each split."""

    def __init__(
        self, path: str | Path, split_tar_paths: Mapping[str, str | Path | Sequence[str | Path]], **kwargs: Any
    ) -> None:
        tars = {split: _paths(given) for split, given in split_tar_paths.items()}
        self.__dict__.update(path=path, split_tar_paths=tars, _extra_fields=kwargs, _splits={})

    @classmethod
    def _of(cls, path: str | Path, splits: Mapping[str, WebDatasetWrapper]) -> WebDatasetDict:
        """Splits of which more is known than their tars."""
        tars = {name: [Path(place.url) for place in split._places] for name, split in splits.items()}  # noqa: SLF001
        made = cls(path, tars)
        made.__dict__["_splits"] = dict(splits)
        return made

    def __getitem__(self, split: str) -> WebDatasetWrapper:
        """The split of this name. Raises FieldError, which is a KeyError."""
        if split not in self.split_tar_paths:
            raise FieldError("no such split", expected=" or ".join(self) or "none: it is empty", found=split)
        made: dict[str, WebDatasetWrapper] = self.__dict__["_splits"]
        if split not in made:
            made[split] = WebDatasetWrapper(self.split_tar_paths[split])
        return made[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.split_tar_paths)

    def __len__(self) -> int:
        return len(self.split_tar_paths)

    def __getattr__(self, name: str) -> Any:
        extra = self.__dict__.get("_extra_fields", {})
        if name not in extra:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        return extra[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in {"path", "split_tar_paths"}:
            raise AttributeError(f"{name} cannot be changed: make another {type(self).__name__}")
        self.__dict__["_extra_fields"][name] = value

    def __repr__(self) -> str:
        return f"<WebDatasetDict {self.path}: {', '.join(self) or 'no splits'}>"


def _paths(given: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(given)] if isinstance(given, (str, Path)) else [Path(path) for path in given]
