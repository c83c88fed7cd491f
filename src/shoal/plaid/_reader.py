"""A split and all splits of a dataset, as PLAID and WebDataset know them."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError, FormatError, OptionError, PositionError, ShoalError
from shoal.store import scheme_of

from ._ahead import LookAhead
from ._arrays import ArrayShard, ShardPlace, Values
from ._decode import decode_sample

if TYPE_CHECKING:
    from webdataset.compat import WebDataset

__all__ = ["WebDatasetDict", "WebDatasetSample", "WebDatasetWrapper"]

WebDatasetSample = dict[str, Any]
"""A sample: its features by path, arrays or None."""

_NOTHING: Mapping[str, Any] = {}
_TOGETHER = 4
"""Shards opened at once when one is foreseen: between large samples, the first takes as long as three that follow."""


class WebDatasetWrapper:
    """The samples of one split, by number: ``split[7]`` is the sample ``sample_000000007``.

    ``tar_path`` is a tar, or a list of them. A sample is a dict from feature path to array, None where it has no value;
    arrays of local tars are read-only views of the file. ``cache=True`` reads all of them into memory now. Splits may
    be pickled, for loaders that read in other processes; the files open there again.

    Example:
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
            self._cache = {int(number): _copied(self[number]) for number in self.ids}

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
            from ._bridge import pick

            return pick(self._cache[number], features, indexers)
        return self._read_place(*self._place_of(number), self._wanted_of(features), indexers or _NOTHING)

    def _read_place(self, shard: int, row: int, paths: Sequence[str] | None, indexers: Mapping[str, Any]) -> Values:
        position, place = self._starts[shard] + row, self._shards[shard]
        foreseen = self._ahead.take(position)
        compared = not indexers and place.check(row, paths)  # of parts, nothing is compared
        found = place.read(row, paths, indexers)
        self._ahead.note(position, paths, is_new=foreseen or compared)
        return found

    @functools.cached_property
    def _ahead(self) -> LookAhead:
        # Not a method of this object, which would then be in a circle and keep its files mapped until it is collected.
        return LookAhead(functools.partial(_check_of, self._shards, self._starts), self._starts[-1])

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
                yield from (self._read_place(shard, row, self._wanted, _NOTHING) for row in rows)
            else:
                yield from self._shards[shard].read_many(rows, self._wanted)

    @functools.cached_property
    def wds_pipeline(self) -> WebDataset:
        """The same tars as a pipeline of the webdataset package, with samples as this split gives them.

        Raises OptionError for tars that are not on this machine: webdataset would fetch them with a program of its own.
        """
        if far := [place.url for place in self._places if scheme_of(place.url) != "file"]:
            raise OptionError("a pipeline of webdataset reads local files", found=far[0], hint="iterate over the split")
        from webdataset.compat import WebDataset

        urls = [place.url for place in self._places]
        made: Any = WebDataset(urls, shardshuffle=False, empty_check=False)
        pipeline: WebDataset = made.map(decode_sample)
        return pipeline

    def __getstate__(self) -> dict[str, Any]:
        kept = ("path", "_places", "_features", "_chosen", "_wanted", "_cache")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up(state["_places"], state["_features"], state["_chosen"], state["_wanted"])
        self.path, self._cache = state["path"], state["_cache"]

    def __repr__(self) -> str:
        shards = "1 shard" if len(self._places) == 1 else f"{len(self._places)} shards"
        return f"<WebDatasetWrapper {self.path}: {shards}>"


def _copied(sample: Values) -> Values:
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
        _open_together(shards[shard + 1 : shard + _TOGETHER])
    shards[shard].open()
    return functools.partial(shards[shard].check, row, paths)


def _open_together(shards: Sequence[ArrayShard]) -> None:
    for shard in shards:
        with contextlib.suppress(ShoalError):  # told to whoever reads it
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

    Example:
        >>> splits = WebDatasetDict("data", {"train": "train.tar", "test": ["a.tar", "b.tar"]}, owner="us")
        >>> splits, list(splits), splits.owner
        (<WebDatasetDict data: train, test>, ['train', 'test'], 'us')
    """

    path: str | Path
    """The dataset's folder."""
    split_tar_paths: dict[str, list[Path]]
    """The tars of each split."""

    def __init__(
        self, path: str | Path, split_tar_paths: Mapping[str, str | Path | Sequence[str | Path]], **extra: Any
    ) -> None:
        tars = {split: _paths(given) for split, given in split_tar_paths.items()}
        self.__dict__.update(path=path, split_tar_paths=tars, _extra_fields=dict(extra), _splits={})

    @classmethod
    def _of(cls, path: str | Path, splits: Mapping[str, WebDatasetWrapper], **extra: Any) -> WebDatasetDict:
        """Splits of which more is known than their tars."""
        tars = {name: [Path(place.url) for place in split._places] for name, split in splits.items()}  # noqa: SLF001
        made = cls(path, tars, **extra)
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
