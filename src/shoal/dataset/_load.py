"""Open datasets: `load_dataset` finds files and splits, `load_shards` opens one folder or URL."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from shoal.errors import CatalogError, CatalogKeyError, FormatError, ObjectNotFoundError, OptionError
from shoal.formats._registry import detect, has_format
from shoal.protocols import DataFiles, DataSource
from shoal.shard._discovery import ShardList, dataset_root, files_below, locate_shards, shards_by_split
from shoal.shard._row_view import RowView
from shoal.shard._split_names import same_split
from shoal.shard._table import ShardRef
from shoal.store._pattern import expand_pattern
from shoal.store._registry import store_for
from shoal.store._url import join_url, scheme_of

from ._data_source import urls_of
from ._dataset import Dataset
from ._resolvers import is_reference, resolve_reference
from ._splits import DatasetDict, SplitPart, parse_split, split_range

__all__ = ["load_dataset", "load_shards"]

T = TypeVar("T")
FilesBySplit = DataFiles | Mapping[str, DataFiles]
_NAME = re.compile(r"[^\W_][\w.\-]*(?:/[^\W_][\w.\-]*)*(?:@[0-9A-Za-z.+\-]+)?")


def load_shards(dir_or_url: str | os.PathLike[str], split: str | None = None, **options: Any) -> Dataset[Any]:
    """Load the shards of a folder or URL, as ``ShardingService`` wrote them, or any tars.

    ``options`` are those of :class:`Dataset`.

    Examples:
        >>> import shoal
        >>> paths = shoal.ShardingService("memory://doc/load").create_shards_from_data([{"txt": "hello"}])
        >>> shoal.load_shards("memory://doc/load")[0]["txt"]
        'hello'
    """
    return Dataset(dir_or_url, split=split, **options)


@dataclass(frozen=True, slots=True)
class _SplitFiles:
    """The files of each split."""

    files: dict[str, list[str]]
    folder: str | None = None
    """The folder that lists the files by split. It is opened instead of them, to use everything in its manifest."""
    sample_type: type[Any] | None = None


@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: str,
    sample_type: type[T],
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[T]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: str,
    sample_type: None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[dict[str, Any]]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: None = None,
    sample_type: type[T],
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> DatasetDict[T]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: None = None,
    sample_type: None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> DatasetDict[dict[str, Any]]: ...
@overload
def load_dataset(
    path: DataFiles | DataSource,
    *,
    split: str | None,
    sample_type: type[Any] | None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[Any] | DatasetDict[Any]: ...
def load_dataset(
    path: DataFiles | DataSource,
    *misplaced: Any,
    split: str | None = None,
    sample_type: type[Any] | None = None,
    data_files: FilesBySplit | None = None,
    **options: Any,
) -> Dataset[Any] | DatasetDict[Any]:
    """Load a split, or all splits, of what ``path`` names.

    ``path`` is a file, a pattern, a list, a folder, a URL (``s3://...``, ``hf://datasets/...``), a reference that a
    resolver understands (``@local/name``), a name in the local index where no file has it, or a
    :class:`~shoal.protocols.DataSource`. A folder's manifest says what the splits are; without one, and for files, the
    names do: ``train``, ``validation``, ``test`` and other words for them, in the file's name or its folder's. A name
    without such a word is ``train``. ``data_files`` says it instead: files relative to ``path``, all of them ``train``,
    or a dict of them by split.

    With ``split`` this is a Dataset, without it always a DatasetDict. ``split`` may be another word for a split
    (``"val"``), a slice (``"train[:10%]"``, ``"train[100:]"``), a sum (``"train+test"``), or ``"all"``.
    ``sample_type`` is the class of the samples, ``options`` are those of :class:`Dataset`. ``streaming`` is taken for
    those who are used to it and changes nothing: a sample is always read when it is asked for.

    Raises FieldError for a split that is not there, with those that are; ObjectNotFoundError when there is nothing;
    FormatError for a reference that nothing installed understands; OptionError for what cannot be meant.

    Examples:
        >>> import shoal
        >>> for name, count in (("train", 10), ("test", 3)):
        ...     with shoal.ShardWriter(f"memory://doc/load_dataset/{name}-%06d.tar") as writer:
        ...         for number in range(count):
        ...             writer.write({"__key__": f"{name}{number}", "txt": "hi"})
        >>> splits = shoal.load_dataset("memory://doc/load_dataset")
        >>> list(splits), len(splits["test"])
        (['train', 'test'], 3)
        >>> len(shoal.load_dataset("memory://doc/load_dataset", split="train[:20%]+test"))
        5
    """
    _check_arguments(misplaced, split, sample_type)
    options.pop("streaming", None)
    found = _find(path, split, data_files, options.get("format"))
    kind = sample_type if sample_type is not None else found.sample_type
    options = options if kind is None else {**options, "sample_type": kind}
    if split is not None:
        return _open_parts(found, parse_split(split, found.files), options)
    return DatasetDict({name: _open(found, name, options) for name in found.files}, sample_type=kind)


def _check_arguments(misplaced: tuple[Any, ...], split: object, sample_type: object) -> None:
    if misplaced:
        name = "split" if isinstance(misplaced[0], str) else "sample_type"
        value = misplaced[0].__name__ if isinstance(misplaced[0], type) else repr(misplaced[0])
        raise TypeError(f"load_dataset takes one positional argument, the path; write {name}={value}")
    if split is not None and not isinstance(split, str):
        raise OptionError("split is a text", expected="'train', 'train[:10%]' or 'train+test'", found=repr(split))
    if sample_type is not None and not isinstance(sample_type, type):
        raise OptionError("sample_type is a class", found=repr(sample_type))


def _find(path: object, split: str | None, data_files: FilesBySplit | None, format: str | None) -> _SplitFiles:  # noqa: A002
    if isinstance(path, str) and is_reference(path):
        resolved = resolve_reference(path, _split_name(split), data_files)
        found = _at(resolved.files, format)
        return _SplitFiles(found.files, found.folder, resolved.sample_type)
    if data_files is not None:
        return _of_data_files(path, data_files, format)
    try:
        return _at(path, format)
    except ObjectNotFoundError as nothing:
        named = _named(path, split, format, nothing)
        if named is None:
            raise
        return named


def _named(path: object, split: str | None, format: str | None, nothing: ObjectNotFoundError) -> _SplitFiles | None:  # noqa: A002
    """The dataset of this name in the local index; None if there is none. Tried when no file has the name."""
    if not isinstance(path, str) or not _NAME.fullmatch(path):
        return None
    try:
        resolved = resolve_reference(f"@local/{path}", _split_name(split), None)
    except (CatalogError, FormatError, OptionError) as error:
        if not isinstance(error, CatalogKeyError):
            nothing.__cause__ = error  # the user may have meant the index, which cannot be reached
        return None
    found = _at(resolved.files, format)
    return _SplitFiles(found.files, found.folder, resolved.sample_type)


def _split_name(split: str | None) -> str | None:
    """The name of the split in ``split=``; None where it names several, or none."""
    if split is None or split == "all" or "+" in split:
        return None
    return split.partition("[")[0]


def _at(path: object, format: str | None) -> _SplitFiles:  # noqa: A002
    if isinstance(path, Mapping):
        return _SplitFiles({str(name): _files(part, format) for name, part in path.items()})
    if isinstance(path, (str, os.PathLike)):
        located = _of_folder(os.fspath(path), format)
        if located is None:
            return _SplitFiles(shards_by_split(_files(path, format)))
        return _SplitFiles(located.urls_by_split(), located.root if located.has_splits else None)
    if isinstance(path, DataSource):
        urls = urls_of(path)
        return _SplitFiles({name: [urls[shard] for shard in ids] for name, ids in shards_by_split(urls).items()})
    return _of_list(path, format)


def _of_list(path: object, format: str | None) -> _SplitFiles:  # noqa: A002
    """Folders, patterns and names: by the lists of splits that folders have, all other files by their names."""
    by_split: dict[str, list[str]] = {}
    others: list[str] = []
    for item in _items(path):
        located = _of_folder(item, format)
        if located is None or not located.has_splits:
            others += expand_pattern(item) if located is None else [ref.url for ref in located.shards]
            continue
        for name, urls in located.urls_by_split().items():
            by_split.setdefault(same_split(name, by_split), []).extend(urls)
    for name, urls in shards_by_split(others if by_split else _checked(others, path)).items():
        by_split.setdefault(same_split(name, by_split), []).extend(urls)
    return _SplitFiles(by_split)


def _of_data_files(path: object, data_files: FilesBySplit, format: str | None) -> _SplitFiles:  # noqa: A002
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError("data_files are relative to a folder", expected="a path", found=type(path).__name__)
    base = os.fspath(path)
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    return _SplitFiles({name: _files(_below(base, part), format) for name, part in by_split.items()})


def _below(base: str, files: DataFiles) -> list[str]:
    return [join_url(base, name) if _is_relative(name) else name for item in _items(files) for name in item.split("::")]


def _is_relative(name: str) -> bool:
    return scheme_of(name) == "file" and not name.startswith("file://") and not os.path.isabs(os.path.expanduser(name))


def _files(path: object, format: str | None) -> list[str]:  # noqa: A002
    """Every file that is named: patterns are expanded, folders are what is in them."""
    if isinstance(path, DataSource):
        return list(urls_of(path).values())
    items = _items(path)
    found: list[str] = []
    for item in items:
        located = _of_folder(item, format)
        found += expand_pattern(item) if located is None else [ref.url for ref in located.shards]
    return _checked(found, path)


def _checked(files: list[str], path: object) -> list[str]:
    if not files:
        raise ObjectNotFoundError("no files were named", found=repr(path))
    if len(files) == 1:  # a typo in a single name is reported here; a check of each of many would cost a request each
        store_for(files[0]).info(files[0])
    return files


def _items(path: object) -> list[str]:
    if isinstance(path, (str, os.PathLike)):
        return [os.fspath(path)]
    if isinstance(path, Iterable) and not isinstance(path, (bytes, Mapping)):
        items = list(path)
        if all(isinstance(item, (str, os.PathLike)) for item in items):
            return [os.fspath(item) for item in items]
    raise OptionError(
        "no dataset can be loaded from this",
        expected="a path, a pattern, a URL, a list of these, or a DataSource",
        found=repr(path),
    )


def _of_folder(url: str, format: str | None) -> ShardList | None:  # noqa: A002
    """The shards in a folder, or listed by its manifest; None if ``url`` is neither."""
    if dataset_root(url) is None:
        return None
    name = detect(url) if format is None else format
    return locate_shards(url) if name == "webdataset" else _of_format(url, name)


def _of_format(root: str, format: str) -> ShardList:  # noqa: A002
    is_of_any_file = format in ("raw", "imagefolder")
    urls = [info.url for info in files_below(root) if is_of_any_file or has_format(info.url, format)]
    if not urls:
        raise ObjectNotFoundError(f"the folder has no {format} files", found=root)
    # Where folders are keys or classes, the folder is opened and not its files.
    splits = shards_by_split(urls, root) if is_of_any_file else None
    return ShardList(tuple(map(ShardRef, urls)), None, root, splits)


def _open(found: _SplitFiles, split: str, options: Mapping[str, Any]) -> Dataset[Any]:
    if found.folder is not None:
        return Dataset(found.folder, split=split, **options)
    return Dataset(found.files[split], **options)


def _open_parts(found: _SplitFiles, parts: Sequence[SplitPart], options: Mapping[str, Any]) -> Dataset[Any]:
    if len(parts) == 1:
        whole = _open(found, parts[0].split, options)
        return whole if parts[0].whole else whole.select(split_range(parts[0], len(whole)))
    # One dataset of all their shards, and in it the rows of the parts.
    named = list(dict.fromkeys(part.split for part in parts))
    listed = [url for urls in found.files.values() for url in urls]
    folder = found.folder if len(set(listed)) == len(listed) else None  # Energon may list a shard in two splits
    present = named if folder is None else list(found.files)
    every = [url for name in present for url in found.files[name]]
    dataset: Dataset[Any] = Dataset(every if folder is None else folder, **options)
    if all(part.whole for part in parts) and [part.split for part in parts] == present:
        return dataset
    lengths = {name: len(_open(found, name, options)) for name in present}
    starts = dict(zip(present, itertools.accumulate(lengths.values(), initial=0), strict=False))
    ranges = [(starts[part.split], split_range(part, lengths[part.split])) for part in parts]
    rows = [dataset.rows.slice(start + own.start, start + own.stop) for start, own in ranges]
    return dataset._view(rows=RowView.concat(rows))  # noqa: SLF001 - of this package
