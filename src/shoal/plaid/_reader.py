"""Read PLAID datasets: `WebDatasetDict` has the splits of a dataset, `WebDatasetWrapper` the samples of a split.

A sample is read in one go, as long as few of its bytes are left out, and its arrays are views of what was read.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import (
    DecodeError,
    FieldError,
    FormatError,
    ObjectNotFoundError,
    OptionError,
    PositionError,
    ShoalError,
    TarError,
)
from shoal.shard._manifest import Manifest, ShardRecord, load_manifest
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._read import fetch, samples_of
from shoal.shard._read_plan import is_run, plan_reads
from shoal.shard._shard import Sample
from shoal.shard._source import ShardSource
from shoal.shard._stored_rows import index_path
from shoal.shard._table import ShardRef
from shoal.store._registry import is_remote, store_for
from shoal.store._url import join_url, relative_url, scheme_of

from ._arrays import read_indexed, select_features
from ._layout import (
    DATA_FOLDER,
    RECORD_FIELD,
    SampleRecord,
    Values,
    decode_features,
    decode_record,
    decode_sample,
    fields_by_name,
    number_in_key,
    split_metadata,
)

if TYPE_CHECKING:
    from webdataset.compat import WebDataset

__all__ = [
    "FoundSplit",
    "WebDatasetDict",
    "WebDatasetSample",
    "WebDatasetWrapper",
    "chosen_splits",
    "create_webdataset_pipeline",
    "init_datasetdict_from_disk",
    "splits_at",
]

WebDatasetSample = dict[str, Any]
"""A sample: its features by path, arrays or None."""
_NO_INDEXERS: Mapping[str, Any] = {}
_KEEP_CASE = KeyRule(case="keep")  # a foreign tar may name its features in its members
_FAR_READS = 16
"""Reads of neighbours, a mebibyte each, that are requested together of a shard elsewhere."""


@dataclass(frozen=True, slots=True)
class ShardPlace(ShardRef):
    """A shard that belongs to a split."""

    numbers: range | None = None
    """Of its samples, where that is known before it is opened."""


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
        ShardPlace(
            join_url(root, record.path),
            record.samples,
            join_url(root, index_path(record.path)),
            numbers=_numbers(record),
        )
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


class WebDatasetWrapper:
    """The samples of one split, by number: ``split[7]`` is the sample ``sample_000000007``.

    ``tar_path`` is a tar, or a list of them. A sample is a dict from feature path to array, None where it has no value;
    arrays are read-only, and views of the bytes that were read for the sample, which they keep in memory together.
    ``cache=True`` reads all samples into memory now. Splits may be pickled, for loaders that read in other processes;
    the files open there again. Threads may share a split.

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
            self._cache = dict(zip(self.ids.tolist(), self, strict=True))

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
        is_foreign = any(place.sidecar is None for place in self._places)
        self._source = ShardSource(self._places, rule=_KEEP_CASE if is_foreign else WEBDATASET_RULE)
        self._shard_fields: dict[str, Mapping[str, str]] = {}
        self._cache = None

    @functools.cached_property
    def _positions(self) -> dict[int, int]:
        """The position of each sample in the source, by number. Raises FormatError when a number comes twice."""
        found: dict[int, int] = {}
        for number in itertools.chain.from_iterable(map(self._numbers_of, range(len(self._places)))):
            if number in found:
                raise FormatError("two samples have the same number", found=number, shard=str(self.path))
            found[number] = len(found)
        if self._chosen is None:
            return found
        return {number: self._position_in(found, number) for number in self._chosen}

    def _numbers_of(self, shard: int) -> Sequence[int]:
        known = self._places[shard].numbers
        if known is not None:
            return known
        keys = self._source.index.shard_keys(shard).to_pylist()
        found = [number for key in keys if (number := number_in_key(key)) is not None]
        if len(found) < len(keys):
            raise FormatError(
                "this is not a shard of a PLAID dataset",
                expected="keys like sample_000000000",
                found=next(key for key in keys if number_in_key(key) is None),
                shard=self._places[shard].url,
            )
        return found

    def _position_in(self, positions: Mapping[int, int], number: int) -> int:
        if number in positions:
            return positions[number]
        known = f"{len(positions)} of {min(positions)} to {max(positions)}" if positions else "none: the split is empty"
        raise PositionError("no sample has this number", expected=known, found=number, shard=str(self.path))

    @functools.cached_property
    def ids(self) -> npt.NDArray[np.int64]:
        """The numbers of the samples, in the order of iteration."""
        known = self._positions
        return np.array(list(known) if self._chosen is None else self._chosen, np.int64)

    @property
    def features(self) -> tuple[str, ...]:
        """The paths of the variable features that samples are read for."""
        return tuple(self.fields) if self._wanted is None else tuple(self._wanted)

    @functools.cached_property
    def fields(self) -> dict[str, str]:
        """The member field of each variable feature's path."""
        if self._features is not None:
            return self._features
        starts = np.unique(self._source.starts)[:-1].tolist()  # an empty shard has none
        return {path: field for start in starts for path, field in self._fields_at(start).items()}

    def _fields_at(self, position: int, paths: Sequence[str] | None = None) -> Mapping[str, str]:
        """The member field of each feature path, or of these, in the shard of a sample. Raises FieldError."""
        fields: Mapping[str, str] | None = self._features
        if fields is None:
            url = self._source.shard_of(position).url
            fields = self._shard_fields.get(url)
            if fields is None:
                fields = self._shard_fields[url] = self._fields_said(position)
        if paths is None:
            return fields
        if unknown := [path for path in paths if path not in fields]:
            raise FieldError(
                "no such variable feature",
                expected=" or ".join(list(fields)[:8]) or "none: the dataset has no variable features",
                found=" and ".join(unknown),
                shard=str(self.path),
            )
        return {path: fields[path] for path in paths}

    def _fields_said(self, position: int) -> dict[str, str]:
        """The member fields as a sample's record says them, or as the names of the members do."""
        record = self._record(position)
        if record is None:
            return fields_by_name(self._shard_fields_of(position))
        return {path: field for field, path in record.features}

    def _shard_fields_of(self, position: int) -> tuple[str, ...]:
        number, _ = self._source.index.locate(position)
        return self._source.index.fields_of(number)

    def _record(self, position: int, sample: Sample | None = None) -> SampleRecord | None:
        """The record of a sample, which ``sample`` may hold; None in a shard without records. Raises TarError."""
        if sample is None or RECORD_FIELD not in sample:
            if RECORD_FIELD not in self._shard_fields_of(position):
                return None
            sample = self._source.read_one(position, [RECORD_FIELD])
        try:
            if RECORD_FIELD not in sample:
                raise TarError("a sample has no record", expected=".json")
            return decode_record(sample[RECORD_FIELD])
        except (TarError, DecodeError) as error:
            raise error.at(shard=sample["__url__"], key=sample["__key__"]) from error.__cause__

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
        position = self._position_in(self._positions, number)
        return self._read([position], self._wanted_of(features), indexers or _NO_INDEXERS)[0]

    def _read(
        self, positions: Sequence[int], paths: Sequence[str] | None, indexers: Mapping[str, Any] = _NO_INDEXERS
    ) -> list[Values]:
        """Samples of one shard, by their positions in the source."""
        fields = self._fields_at(positions[0], paths)
        parts = {path: indexers[path] for path in fields if indexers.get(path) is not None}
        whole = None if paths is None and not parts else [fields[path] for path in fields if path not in parts]
        with _naming_features(fields):
            samples = self._fetch(np.array(positions), whole)
        for position, sample in zip(positions, samples, strict=True):
            for path, indexer in parts.items():
                self._fetch_part(position, sample, fields[path], indexer, path)
        return list(map(self._decoded, positions, samples, itertools.repeat(fields)))

    def _fetch(self, positions: IntArray, fields: Sequence[str] | None) -> list[Sample]:
        """Samples of which neighbouring bytes are read together, verified once; their members are views."""
        is_slice = len(positions) == 1 or is_run(positions)
        rows = slice(int(positions[0]), int(positions[-1]) + 1) if is_slice else positions
        extents = self._source.extents(rows, fields)
        fetched = fetch(extents, plan_reads(extents))
        return samples_of(extents, replace(fetched, buffers=[memoryview(data) for data in fetched.buffers]))

    def _fetch_part(self, position: int, sample: Sample, field: str, indexer: Any, path: str) -> None:
        """Read of one member what an indexer picks of it, not verified."""
        extents = self._source.extents(slice(position, position + 1), [field])
        if not extents.fields or extents.starts[0, 0] < 0:
            return
        read = functools.partial(extents.first_shard.read_part, int(extents.row_numbers()[0]), field)
        try:
            sample[field] = read_indexed(read, int(extents.stops[0, 0] - extents.starts[0, 0]), indexer, path)
        except DecodeError as error:
            raise error.at(shard=sample["__url__"], key=sample["__key__"], field=path) from error.__cause__

    def _decoded(self, position: int, sample: Sample, fields: Mapping[str, str]) -> Values:
        try:
            return decode_features(sample, fields, functools.partial(self._record, position, sample))
        except ShoalError as error:
            raise error.at(shard=sample["__url__"], key=sample["__key__"]) from error.__cause__

    def _wanted_of(self, features: Sequence[str] | None) -> Sequence[str] | None:
        if features is None or self._wanted is None:
            return self._wanted if features is None else features
        if unfetched := [path for path in features if path not in self._wanted]:
            raise FieldError("the feature was not asked for", expected=" or ".join(self._wanted), found=unfetched[0])
        return features

    def __iter__(self) -> Iterator[WebDatasetSample]:
        if self._cache is not None:
            yield from self._cache.values()
        elif self._is_streamed:
            yield from self._streamed()
        else:
            for positions in self._batches():
                yield from self._read(positions, self._wanted)

    @property
    def _is_streamed(self) -> bool:
        """Whether all samples are wanted of shards elsewhere, and the manifest says the features."""
        is_whole = self._chosen is None and self._features is not None
        return is_whole and any(is_remote(place.url) for place in self._places)

    def _streamed(self) -> Iterator[Values]:
        """All samples, read ahead."""
        fields = self._fields_at(0, self._wanted)
        names = None if self._wanted is None else list(fields.values())
        with _naming_features(fields):
            for position, sample in enumerate(itertools.chain.from_iterable(self._source.stream(names))):
                yield self._decoded(position, sample, fields)

    def _batches(self) -> Iterator[list[int]]:
        """The positions of the samples, those of one shard that are read together."""
        positions = [self._positions[number] for number in self.ids.tolist()]
        shards = np.searchsorted(self._source.starts, positions, "right") - 1
        for number, group in itertools.groupby(zip(shards.tolist(), positions, strict=True), operator.itemgetter(0)):
            own = [position for _, position in group]
            names = None if self._wanted is None else list(self._fields_at(own[0], self._wanted).values())
            shard = self._source.shard(number)
            step = self._source.index.rows_per_read(number, names) * (1 if shard.is_near else _FAR_READS)
            yield from (own[start : start + step] for start in range(0, len(own), step))

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


@contextlib.contextmanager
def _naming_features(fields: Mapping[str, str]) -> Iterator[None]:
    """Let errors name a feature by its path, not by its member."""
    try:
        yield
    except ShoalError as error:
        error.field = next((path for path, field in fields.items() if field == error.field), error.field)
        raise


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
