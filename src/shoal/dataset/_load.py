"""``load_dataset``: from a path, a pattern, a folder, a reference or a data source to splits."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from shoal.dataset._dataset import Dataset
from shoal.dataset._dict import DatasetDict
from shoal.errors import CatalogError, CatalogKeyError, FormatError, ObjectNotFoundError, OptionError
from shoal.formats import detect
from shoal.protocols import DataFiles, DataSource
from shoal.shard import Located, ShardRef, is_dataset_folder, locate_shards, shards_by_split
from shoal.store import base_name, expand_pattern, join_url, parent_url, relative_url, scheme_of, store_for

from ._data_source import urls_of
from ._resolve import is_reference, resolve_reference
from ._split_spec import SplitPart, parse_split, rows_of

__all__ = ["load_dataset"]

T = TypeVar("T")
PathLike = str | os.PathLike[str]
FilesBySplit = DataFiles | Mapping[str, DataFiles]
_NAME = re.compile(r"[^\W_][\w.\-]*(?:/[^\W_][\w.\-]*)*(?:@[0-9A-Za-z.+\-]+)?")


@dataclass(frozen=True, slots=True)
class _Found:
    """The shards of each split."""

    files: dict[str, list[str]]
    folder: str | None = None
    """The folder whose manifest names them: opened as a whole, so that all that the manifest says is kept."""
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

    Example:
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
        return _chosen(found, parse_split(split, found.files), options)
    return DatasetDict({name: _open(found, name, options) for name in found.files}, sample_type=kind)


def _check_arguments(misplaced: tuple[Any, ...], split: object, sample_type: object) -> None:
    if misplaced:
        name = "split" if isinstance(misplaced[0], str) else "sample_type"
        raise TypeError(f"load_dataset takes one positional argument, the path; write {name}={_shown(misplaced[0])}")
    if split is not None and not isinstance(split, str):
        raise OptionError("split is a text", expected="'train', 'train[:10%]' or 'train+test'", found=repr(split))
    if sample_type is not None and not isinstance(sample_type, type):
        raise OptionError("sample_type is a class", found=repr(sample_type))


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


# ------------------------------------------------------------------------------------------------------- what is there


def _find(path: object, split: str | None, data_files: FilesBySplit | None, format: str | None) -> _Found:  # noqa: A002
    if isinstance(path, str) and is_reference(path):
        resolved = resolve_reference(path, _single(split), data_files)
        found = _at(resolved.files, format)
        return _Found(found.files, found.folder, resolved.sample_type)
    if data_files is not None:
        return _of_data_files(path, data_files, format)
    try:
        return _at(path, format)
    except ObjectNotFoundError as nothing:
        named = _named(path, split, format, nothing)
        if named is None:
            raise
        return named


def _named(path: object, split: str | None, format: str | None, nothing: ObjectNotFoundError) -> _Found | None:  # noqa: A002
    """Where nothing lies, a plain name may be that of a dataset in the local index; None when it is not."""
    if not isinstance(path, str) or not _NAME.fullmatch(path):
        return None
    try:
        resolved = resolve_reference(f"@local/{path}", _single(split), None)
    except (CatalogError, FormatError, OptionError) as error:
        if not isinstance(error, CatalogKeyError):
            nothing.__cause__ = error  # told with it: the index may be meant, and be out of reach
        return None
    found = _at(resolved.files, format)
    return _Found(found.files, found.folder, resolved.sample_type)


def _single(split: str | None) -> str | None:
    """The one split that is asked for, under the name that the user wrote."""
    if split is None or split == "all" or "+" in split:
        return None
    return split.partition("[")[0]


def _at(path: object, format: str | None) -> _Found:  # noqa: A002
    if isinstance(path, Mapping):
        return _Found({str(name): _files(part, format) for name, part in path.items()})
    if isinstance(path, (str, os.PathLike)):
        located = _of_folder(os.fspath(path), format)
        if located is not None and located.manifest is not None and located.root is not None:
            splits = located.manifest.splits.items()
            files = {name: [join_url(located.root, record.path) for record in records] for name, records in splits}
            return _Found(files, located.root)
        root = None if located is None else located.root
        return _Found(shards_by_split(_files(path, format), root))
    if isinstance(path, DataSource):
        urls = urls_of(path)
        return _Found({name: [urls[shard] for shard in ids] for name, ids in shards_by_split(urls).items()})
    return _Found(shards_by_split(_files(path, format)))


def _of_data_files(path: object, data_files: FilesBySplit, format: str | None) -> _Found:  # noqa: A002
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError("data_files are relative to a folder", expected="a path", found=type(path).__name__)
    base = os.fspath(path)
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    return _Found({name: _files(_below(base, part), format) for name, part in by_split.items()})


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
    if not found:
        raise ObjectNotFoundError("no files were named", found=repr(path))
    if len(found) == 1:  # one name is looked at now, so that a typo is told here; many are not asked for one by one
        store_for(found[0]).info(found[0])
    return found


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


def _of_folder(url: str, format: str | None) -> Located | None:  # noqa: A002
    """What is in a folder, or named by its manifest; None when this is neither."""
    is_manifest = base_name(url) == "manifest.json" and base_name(parent_url(url)) == ".shoal"
    if not is_manifest and not is_dataset_folder(url):
        return None
    name = detect(url) if format is None else format
    return locate_shards(url) if name == "webdataset" else _of_format(url, name)


def _of_format(root: str, format: str) -> Located:  # noqa: A002
    infos = store_for(root).list(root)
    shown = [info.url for info in infos if not any(part[:1] == "." for part in relative_url(info.url, root).split("/"))]
    refs = tuple(ShardRef(url) for url in shown if _is_of(url, format))
    if not refs:
        raise ObjectNotFoundError(f"the folder has no {format} files", found=root)
    return Located(refs, None, root)


def _is_of(url: str, format: str) -> bool:  # noqa: A002
    try:
        return detect([url]) == format
    except FormatError:
        return False


# ------------------------------------------------------------------------------------------------------- what is chosen


def _open(found: _Found, split: str, options: Mapping[str, Any]) -> Dataset[Any]:
    if found.folder is not None:
        return Dataset(found.folder, split=split, **options)
    return Dataset(found.files[split], **options)


def _chosen(found: _Found, parts: Sequence[SplitPart], options: Mapping[str, Any]) -> Dataset[Any]:
    if len(parts) == 1:
        dataset = _open(found, parts[0].split, options)
        return dataset if parts[0].whole else dataset.select(_numbers(rows_of(parts[0], len(dataset))))
    return _joined(found, parts, options)


def _joined(found: _Found, parts: Sequence[SplitPart], options: Mapping[str, Any]) -> Dataset[Any]:
    """Several parts as one dataset: all their shards, and of these the samples meant."""
    named = list(dict.fromkeys(part.split for part in parts))
    present = list(found.files) if found.folder is not None else named
    every = [url for name in present for url in found.files[name]]
    dataset: Dataset[Any] = Dataset(every if found.folder is None else found.folder, **options)
    if all(part.whole for part in parts) and [part.split for part in parts] == present:
        return dataset
    lengths = {name: len(_open(found, name, options)) for name in present}
    starts = dict(zip(present, itertools.accumulate(lengths.values(), initial=0), strict=False))
    rows = [starts[part.split] + _numbers(rows_of(part, lengths[part.split])) for part in parts]
    return dataset.select(np.concatenate(rows))


def _numbers(rows: range) -> npt.NDArray[np.int64]:
    return np.arange(rows.start, rows.stop, dtype=np.int64)
