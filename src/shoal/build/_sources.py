"""Open what a user passes to `build_shards` as its source: paths, lists, datasets, iterables."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.dataset._dataset import Dataset
from shoal.errors import FormatError, ObjectNotFoundError, OptionError
from shoal.formats._registry import SourceOptions, detect
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._source import ShardSource
from shoal.store._pattern import expand_pattern
from shoal.store._registry import store_for
from shoal.store._url import local_path, parent_url, scheme_of

from ._fetch import FetchColumns, FetchedItems, make_fetcher
from ._folders import FolderItems, kind_of_folder, list_files, list_folder
from ._items import DatasetItems, Items, JoinedItems, SequenceItems, ShardItems, SourceItems

__all__ = ["BuildSourceOptions", "Stream", "open_items"]

_FOLDERS = ("folder", "imagefolder", "raw")


@dataclass(frozen=True, slots=True)
class BuildSourceOptions:
    """How sources are opened."""

    format: str | None = None
    fetch: FetchColumns = ()
    base: str | None = None
    """Where relative paths of such columns begin; None: the folder of the table."""
    labels: bool | None = None
    """Whether folders are classes; None: where a folder holds nothing but images in folders."""
    rule: KeyRule = WEBDATASET_RULE
    raw: bool = False
    """Whether samples stay as they are stored, since no function is called with them."""
    without: str | None = None
    """A folder that is not part of the source: the one that is written to."""


@dataclass(frozen=True)
class Stream:
    """Samples of iterables, which have no length and no indices."""

    parts: tuple[Any, ...]
    options: BuildSourceOptions

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(map(self._samples, self.parts))

    def _samples(self, part: Any) -> Iterator[Any]:
        samples = part() if callable(part) and not isinstance(part, Iterable) else part
        if not isinstance(samples, Iterable):
            found = type(samples).__name__
            raise OptionError(
                "this gives no samples", expected="an iterable, or a function that gives one", found=found
            )
        if not self.options.fetch:
            return iter(samples)
        return map(make_fetcher(self.options.fetch, self.options.base or "."), samples)


def open_items(source: Any, options: BuildSourceOptions) -> Items | Stream:
    """Return the items of a path, a list of sources, a dataset or a sequence; a `Stream` of what has no length.

    Raises OptionError for anything else, and what options a path raises.
    """
    parts = list(_open_parts(source, options))
    if not parts:
        raise OptionError("there is no source", expected="a path, a dataset or samples", found=repr(source))
    if any(isinstance(part, Stream) for part in parts):
        return _join_as_stream(parts, options)
    items = [part for part in parts if not isinstance(part, Stream)]
    return items[0] if len(items) == 1 else JoinedItems(items)


def _join_as_stream(parts: Sequence[Items | Stream], options: BuildSourceOptions) -> Stream:
    """Join several sources, one of which is a stream, into one stream."""
    flat: list[Any] = []
    for part in parts:
        flat += part.parts if isinstance(part, Stream) else [_IteratedItems(part)]
    return Stream(tuple(flat), options)


class _IteratedItems:
    """Items as an iterable. Raises the error of an item that cannot be read."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self._items), 64):
            for read in self._items.read(np.arange(start, min(start + 64, len(self._items)))):
                if isinstance(read, Exception):
                    raise read
                yield read


def _open_parts(source: Any, options: BuildSourceOptions) -> Iterator[Items | Stream]:
    if isinstance(source, (str, os.PathLike)):
        yield _with_fetch(_open_path(os.fspath(source), options), options, os.fspath(source))
    elif isinstance(source, (list, tuple)) and source and not _is_sample(source[0]):
        for is_name, group in itertools.groupby(source, lambda one: isinstance(one, (str, os.PathLike))):
            if is_name:
                yield from _open_names([os.fspath(one) for one in group], options)
            else:
                for one in group:
                    yield from _open_parts(one, options)
    elif isinstance(source, Dataset):
        yield _open_dataset(source, options)
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping):
        yield _with_fetch(SequenceItems(source), options, None)
    elif isinstance(source, Mapping):
        raise OptionError("a mapping is one sample", expected="a list of samples, or a path", found="a mapping")
    elif isinstance(source, Iterable) or callable(source):
        yield Stream((source,), options)
    else:
        found = type(source).__name__
        raise OptionError("this is no source", expected="a path, a dataset, or samples", found=found)


def _is_sample(value: Any) -> bool:
    is_pair = (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)
    )
    return isinstance(value, Mapping) or is_pair or hasattr(type(value), "as_wds")


def _open_dataset(dataset: Dataset[Any], options: BuildSourceOptions) -> Items | Stream:
    try:
        len(dataset)
    except TypeError:  # a filter: how many samples pass is known only at the end
        return Stream((dataset,), options)
    is_stored = dataset.stored is dataset and isinstance(dataset.source, ShardSource)
    if options.raw and is_stored and set(dataset.fields) == set(dataset.source.fields):
        return ShardItems(dataset)
    return _with_fetch(DatasetItems(dataset), options, None)


def _with_fetch(items: Items, options: BuildSourceOptions, table: str | None) -> Items:
    """Return the items with the files that their columns name, where the options ask for that."""
    folder = "." if table is None else parent_url(table)
    return FetchedItems(items, options.fetch, options.base or folder) if options.fetch else items


def _open_names(names: list[str], options: BuildSourceOptions) -> Iterator[Items]:
    """Neighbouring files of one format are one source; a folder, or a pattern, is one of its own."""

    def kind(name: str) -> tuple[str, str]:
        if store_for(name).is_folder(name) or any(mark in name for mark in "*?[{"):
            return "one", name
        return "file", _format_of(name, options)

    for (what, _), group in itertools.groupby(names, kind):
        some = list(group)
        if what == "one":
            yield from (_with_fetch(_open_path(name, options), options, name) for name in some)
        else:
            yield _with_fetch(_open_path(some if len(some) > 1 else some[0], options), options, some[0])


def _format_of(path: Any, options: BuildSourceOptions) -> str:
    """The format; ``folder`` for files of no format of their own."""
    if options.format is not None:
        return options.format
    try:
        return detect(path)
    except FormatError:
        return "folder"


def _open_path(path: Any, options: BuildSourceOptions) -> Items:
    items = _open_local_folder(path, options)
    if items is not None:
        return items
    name = _format_of(path, options)
    if name == "webdataset":
        return ShardItems(Dataset(path, sample_type=dict, decode=False, rule=options.rule))
    if name in _FOLDERS:
        return _open_files(path, options, name)
    return SourceItems(path, SourceOptions(rule=options.rule), name)


def _open_local_folder(path: Any, options: BuildSourceOptions) -> Items | None:
    """Open a folder on this disk, listing it only once; None for anything else."""
    if not isinstance(path, str) or options.format is not None or scheme_of(path) != "file":
        return None
    if not os.path.isdir(local_path(path)):
        return None
    files = list_folder(path, options.without)
    kind = kind_of_folder(path, files)
    if kind is None:
        return None
    labels = kind == "imagefolder" if options.labels is None else options.labels
    return FolderItems(path, files, rule=options.rule, labels=labels)


def _open_files(path: Any, options: BuildSourceOptions, name: str) -> Items:
    labels = name == "imagefolder" if options.labels is None else options.labels
    if isinstance(path, str) and store_for(path).is_folder(path):
        return FolderItems(path, list_folder(path, options.without), rule=options.rule, labels=labels)
    urls = expand_pattern(path)
    if not urls:
        raise ObjectNotFoundError("no files were named", found=str(path))
    root, files = list_files(urls)
    return FolderItems(root, files, rule=options.rule, labels=bool(options.labels))
