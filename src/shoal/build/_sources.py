"""From what a user names as a source to items, or to a stream where there are no numbers to ask by."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.dataset import Dataset
from shoal.errors import FormatError, ObjectNotFoundError, OptionError
from shoal.formats import SourceOptions, detect
from shoal.shard import WEBDATASET_RULE, KeyRule, ShardSource
from shoal.store import expand_pattern, local_path, parent_url, scheme_of, store_for

from ._fetch import FetchedItems, fetched
from ._folder import FolderItems, kind_of_folder, list_files, list_folder
from ._items import DatasetItems, Items, JoinedItems, SequenceItems, ShardItems, SourceItems

__all__ = ["Opening", "Stream", "open_items"]

_FOLDERS = ("folder", "imagefolder", "raw")


@dataclass(frozen=True, slots=True)
class Opening:
    """How sources are opened."""

    format: str | None = None
    fetch: tuple[tuple[str, str | None], ...] = ()
    """Columns that hold paths or URLs, and the field that the bytes become; None: the extension of the name."""
    base: str | None = None
    """Where relative paths of such columns begin; None: the folder of the table."""
    labels: bool | None = None
    """Whether folders are classes; None: where a folder holds nothing but images in folders."""
    rule: KeyRule = WEBDATASET_RULE
    raw: bool = False
    """Whether samples are wanted as they are stored: there is no function to see them."""
    without: str | None = None
    """A folder that is no part of the source: the one that is written to."""


@dataclass(frozen=True)
class Stream:
    """Samples that come one after the other, and only so."""

    parts: tuple[Any, ...]
    opening: Opening

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(map(self._samples, self.parts))

    def _samples(self, part: Any) -> Iterator[Any]:
        samples = part() if callable(part) and not isinstance(part, Iterable) else part
        if not isinstance(samples, Iterable):
            found = type(samples).__name__
            raise OptionError(
                "this gives no samples", expected="an iterable, or a function that gives one", found=found
            )
        return (
            map(fetched(self.opening.fetch, self.opening.base or "."), samples) if self.opening.fetch else iter(samples)
        )


def open_items(source: Any, opening: Opening) -> Items | Stream:
    """The items of a source: a path, a list of sources, a dataset, a sequence; a `Stream` of what has no length.

    Raises OptionError for what can be no source, and what opening a path raises.
    """
    parts = list(_parts(source, opening))
    if not parts:
        raise OptionError("there is no source", expected="a path, a dataset or samples", found=repr(source))
    if any(isinstance(part, Stream) for part in parts):
        return _one_stream(parts, opening)
    items = [part for part in parts if not isinstance(part, Stream)]
    return items[0] if len(items) == 1 else JoinedItems(items)


def _one_stream(parts: Sequence[Items | Stream], opening: Opening) -> Stream:
    """A stream among several sources makes all of them one."""
    flat: list[Any] = []
    for part in parts:
        flat += part.parts if isinstance(part, Stream) else [_Numbered(part)]
    return Stream(tuple(flat), opening)


class _Numbered:
    """Items as a stream. One that cannot be read ends it: there is no number to go on from."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self._items), 64):
            for read in self._items.read(np.arange(start, min(start + 64, len(self._items)))):
                if isinstance(read, Exception):
                    raise read
                yield read


def _parts(source: Any, opening: Opening) -> Iterator[Items | Stream]:
    if isinstance(source, (str, os.PathLike)):
        yield _fetching(_of_path(os.fspath(source), opening), opening, os.fspath(source))
    elif isinstance(source, (list, tuple)) and source and not _is_sample(source[0]):
        for is_name, group in itertools.groupby(source, lambda one: isinstance(one, (str, os.PathLike))):
            if is_name:
                yield from _of_names([os.fspath(one) for one in group], opening)
            else:
                for one in group:
                    yield from _parts(one, opening)
    elif isinstance(source, Dataset):
        yield _of_dataset(source, opening)
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping):
        yield _fetching(SequenceItems(source), opening, None)
    elif isinstance(source, Mapping):
        raise OptionError("a mapping is one sample", expected="a list of samples, or a path", found="a mapping")
    elif isinstance(source, Iterable) or callable(source):
        yield Stream((source,), opening)
    else:
        found = type(source).__name__
        raise OptionError("this is no source", expected="a path, a dataset, or samples", found=found)


def _is_sample(value: Any) -> bool:
    is_pair = (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)
    )
    return isinstance(value, Mapping) or is_pair or hasattr(type(value), "as_wds")


def _of_dataset(dataset: Dataset[Any], opening: Opening) -> Items | Stream:
    try:
        len(dataset)
    except TypeError:  # a filter: how many samples pass is known only at the end
        return Stream((dataset,), opening)
    whole = dataset.stored is dataset and isinstance(dataset.source, ShardSource)
    if opening.raw and whole and set(dataset.fields) == set(dataset.source.fields):
        return ShardItems(dataset)
    return _fetching(DatasetItems(dataset), opening, None)


def _fetching(items: Items, opening: Opening, table: str | None) -> Items:
    return FetchedItems(items, opening.fetch, opening.base or _folder_of(table)) if opening.fetch else items


def _folder_of(path: str | None) -> str:
    return "." if path is None else parent_url(path)


def _of_names(names: list[str], opening: Opening) -> Iterator[Items]:
    """Neighbouring files of one format are one source; a folder, or a pattern, is one of its own."""

    def kind(name: str) -> tuple[str, str]:
        if store_for(name).is_folder(name) or any(mark in name for mark in "*?[{"):
            return "one", name
        return "file", _format_of(name, opening)

    for (what, _), group in itertools.groupby(names, kind):
        some = list(group)
        if what == "one":
            yield from (_fetching(_of_path(name, opening), opening, name) for name in some)
        else:
            yield _fetching(_of_path(some if len(some) > 1 else some[0], opening), opening, some[0])


def _format_of(path: Any, opening: Opening) -> str:
    """The format; ``folder`` for files of no format of their own."""
    if opening.format is not None:
        return opening.format
    try:
        found = detect(path)
    except FormatError:
        return "folder"
    return found


def _of_path(path: Any, opening: Opening) -> Items:
    listed = _listed(path, opening)
    if listed is not None:
        return listed
    name = _format_of(path, opening)
    options = SourceOptions(rule=opening.rule)
    if name == "webdataset":
        return ShardItems(Dataset(path, sample_type=dict, decode=False, rule=opening.rule))
    if name in _FOLDERS:
        return _of_files(path, opening, name)
    return SourceItems(path, options, name)


def _listed(path: Any, opening: Opening) -> Items | None:
    """A folder on this disk, which is listed only once; None for anything else."""
    if not isinstance(path, str) or opening.format is not None or scheme_of(path) != "file":
        return None
    if not os.path.isdir(local_path(path)):
        return None
    files = list_folder(path, opening.without)
    kind = kind_of_folder(path, files)
    if kind is None:
        return None
    labels = kind == "imagefolder" if opening.labels is None else opening.labels
    return FolderItems(path, files, rule=opening.rule, labels=labels)


def _of_files(path: Any, opening: Opening, name: str) -> Items:
    labels = name == "imagefolder" if opening.labels is None else opening.labels
    if isinstance(path, str) and store_for(path).is_folder(path):
        return FolderItems(path, list_folder(path, opening.without), rule=opening.rule, labels=labels)
    urls = expand_pattern(path)
    if not urls:
        raise ObjectNotFoundError("no files were named", found=str(path))
    root, files = list_files(urls)
    return FolderItems(root, files, rule=opening.rule, labels=bool(opening.labels))


Source = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]]
"""What `build_shards` takes."""
