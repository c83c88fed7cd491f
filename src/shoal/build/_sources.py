"""What shards can be built from: files, folders, tables and URLs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import contains
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.dataset import Dataset
from shoal.errors import (
    FieldError,
    FormatError,
    ObjectNotFoundError,
    OptionError,
    ShoalError,
    UnsafeNameError,
    WriteError,
)
from shoal.formats import SourceOptions, detect, detect_name
from shoal.shard import WEBDATASET_RULE, KeyRule, ShardSource, check_key, load_manifest, split_name
from shoal.shard._member_names import check_field
from shoal.store import base_name, expand_pattern, join_url, local_path, parent_url, relative_url, scheme_of, store_for

from ._digests import mark_of
from ._items import (
    DatasetItems,
    Items,
    ItemsOf,
    JoinedItems,
    Read,
    Runs,
    SequenceItems,
    ShardItems,
    SourceItems,
    at_once,
)

__all__ = [
    "BuildSourceOptions",
    "FolderItems",
    "FolderPlan",
    "FolderSample",
    "Stream",
    "open_items",
    "parse_fetch",
    "plan_folder",
]

Source = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]]
"""What `build_shards` takes."""
Int64 = npt.NDArray[np.int64]
File = tuple[str, int, str]
"""A path below the root, its bytes, and its version."""
Fetch = tuple[tuple[str, str | None], ...]


# -------------------------------------------------------------------------- from what a user names as a source to items


_FOLDERS = ("folder", "imagefolder", "raw")


@dataclass(frozen=True, slots=True)
class BuildSourceOptions:
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
    opening: BuildSourceOptions

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


def open_items(source: Any, opening: BuildSourceOptions) -> Items | Stream:
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


def _one_stream(parts: Sequence[Items | Stream], opening: BuildSourceOptions) -> Stream:
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


def _parts(source: Any, opening: BuildSourceOptions) -> Iterator[Items | Stream]:
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


def _of_dataset(dataset: Dataset[Any], opening: BuildSourceOptions) -> Items | Stream:
    try:
        len(dataset)
    except TypeError:  # a filter: how many samples pass is known only at the end
        return Stream((dataset,), opening)
    whole = dataset.stored is dataset and isinstance(dataset.source, ShardSource)
    if opening.raw and whole and set(dataset.fields) == set(dataset.source.fields):
        return ShardItems(dataset)
    return _fetching(DatasetItems(dataset), opening, None)


def _fetching(items: Items, opening: BuildSourceOptions, table: str | None) -> Items:
    return FetchedItems(items, opening.fetch, opening.base or _folder_of(table)) if opening.fetch else items


def _folder_of(path: str | None) -> str:
    return "." if path is None else parent_url(path)


def _of_names(names: list[str], opening: BuildSourceOptions) -> Iterator[Items]:
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


def _format_of(path: Any, opening: BuildSourceOptions) -> str:
    """The format; ``folder`` for files of no format of their own."""
    if opening.format is not None:
        return opening.format
    try:
        found = detect(path)
    except FormatError:
        return "folder"
    return found


def _of_path(path: Any, opening: BuildSourceOptions) -> Items:
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


def _listed(path: Any, opening: BuildSourceOptions) -> Items | None:
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


def _of_files(path: Any, opening: BuildSourceOptions, name: str) -> Items:
    labels = name == "imagefolder" if opening.labels is None else opening.labels
    if isinstance(path, str) and store_for(path).is_folder(path):
        return FolderItems(path, list_folder(path, opening.without), rule=opening.rule, labels=labels)
    urls = expand_pattern(path)
    if not urls:
        raise ObjectNotFoundError("no files were named", found=str(path))
    root, files = list_files(urls)
    return FolderItems(root, files, rule=opening.rule, labels=bool(opening.labels))


# ---------------------------------------------------------------------------------- folders and lists of files as items


_BLOCK = 512
_LABEL = "cls"
_IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}
_MOST_AT_ONCE = 1 << 30  # one read gives at most 2 GiB on Linux


def list_folder(root: str, without: str | None = None) -> list[File]:
    """The files below a folder but for hidden ones, sorted by path; the folder ``without`` is left out."""
    if scheme_of(root) != "file":
        far = [(relative_url(info.url, root), info.size, info.version) for info in store_for(root).list(root)]
        return [file for file in far if not any(part.startswith(".") for part in file[0].split("/"))]
    path = local_path(root)
    left_out = None if without is None or scheme_of(without) != "file" else os.path.realpath(local_path(without))
    found: list[File] = []
    folders = [""]
    while folders:
        folders += _look_into(path, folders.pop(), left_out, found)
    return sorted(found)


def _look_into(root: str, below: str, left_out: str | None, found: list[File]) -> list[str]:
    """Add a folder's files; give its folders. By scandir, which tells the two apart without asking for each."""
    folders = []
    prefix = f"{below}/" if below else ""
    try:
        for entry in os.scandir(os.path.join(root, below) if below else root):
            name = entry.name
            if name[0] == ".":
                continue
            if not entry.is_dir():
                facts = entry.stat()
                found.append((prefix + name, facts.st_size, str(facts.st_mtime_ns)))
            elif left_out is None or os.path.realpath(entry.path) != left_out:
                folders.append(prefix + name)
    except OSError as error:
        raise ObjectNotFoundError("the folder cannot be read", found=os.path.join(root, below)) from error
    return folders


def kind_of_folder(root: str, files: Sequence[File]) -> str | None:
    """``imagefolder`` or ``folder``; None where there may be files of a format: then somebody else must look."""
    paths = [path for path, _, _ in files]
    endings = {ending.lower() for ending in {path[path.rfind(".") :] for path in paths}}
    known = any(detect_name(f"a{ending}") is not None for ending in endings)
    if known or "index.json" in paths or load_manifest(root) is not None:
        return None
    return "imagefolder" if endings <= _IMAGES and all(map(contains, paths, itertools.repeat("/"))) else "folder"


def list_files(urls: Sequence[str]) -> tuple[str, list[File]]:
    """Named files, with the folder that holds them all."""
    parts = [url.split("/")[:-1] for url in urls]
    shared = [same[0] for same in itertools.takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))]
    root = "/".join(shared) or ("/" if urls and urls[0].startswith("/") else "")
    infos = at_once(lambda url: store_for(url).info(url), urls)
    return root or ".", [
        (relative_url(info.url, root) if root else info.url, info.size, info.version) for info in infos
    ]


class FolderItems(ItemsOf):
    """Samples of files: ``cats/1.jpg`` and ``cats/1.txt`` are the fields ``jpg`` and ``txt`` of ``cats/1``.

    With ``labels`` the first folder is the class: a field ``cls`` has its number among the sorted names. Raises
    WriteError when two files would be one field, and when a label has no folder or no room.
    """

    def __init__(
        self, root: str, files: Sequence[File], *, rule: KeyRule = WEBDATASET_RULE, labels: bool = False
    ) -> None:
        self._root = root
        self._is_local = scheme_of(root) == "file"
        self.skipped: list[str] = []
        """Files that belong to no sample."""
        self._identity = mark_of("\n".join([f"{path} {size} {version}" for path, size, version in files]), labels)
        groups = self._grouped(files, rule)
        self._keys = list(groups)
        self._fields = list(groups.values())
        self.classes: tuple[str, ...] = ()
        """The folders that name classes, sorted."""
        if labels:
            folders = _class_folders(groups)
            self.classes = tuple(sorted(set(folders)))
            numbers = {name: number for number, name in enumerate(self.classes)}
            self._labels = [numbers[folder] for folder in folders]

    def _grouped(self, files: Sequence[File], rule: KeyRule) -> dict[str, list[tuple[str, str, int]]]:
        groups: dict[str, list[tuple[str, str, int]]] = {}
        plain = rule == WEBDATASET_RULE
        for path, size, _ in files:
            dot = path.find(".", at := path.rfind("/") + 1)
            if dot > at and plain and not path.startswith("__"):  # as the rule has it, but quicker
                key, field = path[:dot], path[dot + 1 :].lower()
            elif (pair := split_name(path, rule)) is not None:
                key, field = pair
            else:
                self.skipped.append(path)
                continue
            fields = groups.get(key)
            if fields is None:
                groups[key] = [(field, path, size)]
                continue
            if any(field == other for other, _, _ in fields):
                both = f"{next(other for name, other, _ in fields if name == field)} and {path}"
                raise WriteError("two files would be one field of one sample", found=both, key=key, field=field)
            if rule.folders == "flatten" and os.path.dirname(fields[0][1]) != os.path.dirname(path):
                both = f"{fields[0][1]} and {path}"
                raise WriteError("without folders two samples would be one", found=both, key=key)
            fields.append((field, path, size))
        if not groups:
            expected = "files such as 0001.jpg"
            raise WriteError("there are no files that make samples", expected=expected, found=self._root)
        return {key: own if len(own := groups[key]) == 1 else sorted(own) for key in sorted(groups)}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def identity(self) -> str:
        """Of the files' names, sizes and times."""
        return self._identity

    def sizes(self) -> Int64:
        """A header and the padded bytes of each file."""
        label = 2 * _BLOCK if self.classes else 0
        counts = np.array([len(files) for files in self._fields], np.int64)
        sizes = np.array([size for files in self._fields for _, _, size in files], np.int64)
        padded = _BLOCK + -(-sizes // _BLOCK) * _BLOCK
        return np.add.reduceat(padded, np.cumsum(counts) - counts) + label

    def _samples(self, numbers: Int64) -> Sequence[Any]:
        if self._is_local:
            return [self._sample(number) for number in numbers.tolist()]
        return list(at_once(self._sample, numbers.tolist()))

    def _sample(self, number: int) -> dict[str, Any]:
        sample: dict[str, Any] = {"__key__": self._keys[number]}
        files = self._fields[number]
        if self.classes:
            label = str(self._labels[number]).encode()
            files = sorted([*files, (_LABEL, "", 0)])
            return sample | {field: self._bytes_of(path, size) if path else label for field, path, size in files}
        for field, path, size in files:
            sample[field] = self._bytes_of(path, size)
        return sample

    def _bytes_of(self, path: str, size: int) -> bytes:
        """A file's bytes; with one call where it is as large as it was."""
        url = join_url(self._root, path)
        data = _read_local(url, size) if self._is_local and size < _MOST_AT_ONCE else store_for(url).read_all(url)
        if len(data) != size:
            raise WriteError("a file changed after it was listed", expected=f"{size} bytes", found=len(data), shard=url)
        return data


def _read_local(url: str, size: int) -> bytes:
    try:
        file = os.open(local_path(url), os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return store_for(url).read_all(url)  # which says in our words what is wrong
    try:
        return os.read(file, size + 1)
    finally:
        os.close(file)


def _class_folders(groups: dict[str, list[tuple[str, str, int]]]) -> list[str]:
    """The folder of each sample that names its class."""
    found = []
    for key, files in groups.items():
        path = files[0][1]
        folder, slash, _ = path.partition("/")
        if not slash:
            raise WriteError("the file is in no folder that could name its class", found=path, key=key)
        for field, _, _ in files:
            if field == _LABEL:
                problem = "the sample has a label in a file, and one by its folder"
                raise WriteError(problem, found=base_name(path), key=key, field=_LABEL)
        found.append(folder)
    return found


# ----------------------------------------------------------------------------------------------- tables that name files


_EXTENSION = re.compile(r"[a-z0-9]{1,8}")


def parse_fetch(fetch: str | Sequence[str] | Mapping[str, str | None] | None) -> Fetch:
    """What to fetch as columns and fields: a column, several, or a mapping from column to field.

    Example:
        >>> parse_fetch("image_url"), parse_fetch({"photo": "jpg"})
        ((('image_url', None),), (('photo', 'jpg'),))
    """
    if fetch is None:
        return ()
    if isinstance(fetch, str):
        return ((fetch, None),)
    return tuple(fetch.items()) if isinstance(fetch, Mapping) else tuple((name, None) for name in fetch)


def fetched(fetch: Fetch, base: str) -> Callable[[Any], Any]:
    """A function that puts the bytes into a sample, in place of the column that named them."""

    def fill(sample: Any) -> Any:
        found = dict(sample)
        for column, field in fetch:
            if column not in found:
                raise FieldError("no such column", expected=" or ".join(map(str, found)), found=column)
            place = found.pop(column)
            if place is None:
                continue
            url = _url(str(place), base)
            found[field or _extension(url)] = store_for(url).read_all(url)
        return found

    return fill


def _url(place: str, base: str) -> str:
    is_whole = scheme_of(place) != "file" or os.path.isabs(place)
    return place if is_whole else join_url(base, place)


def _extension(url: str) -> str:
    """What the name ends in; a URL's query says nothing."""
    name = base_name(url.partition("?")[0] if scheme_of(url) in ("http", "https") else url)
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem or not _EXTENSION.fullmatch(extension.lower()):
        hint = "say the field: fetch={column: 'jpg'}"
        raise WriteError("the name tells no field for its bytes", expected="an extension", found=name, hint=hint)
    return extension.lower()


class FetchedItems:
    """Rows of a table, with what their columns name."""

    def __init__(self, items: Items, fetch: Fetch, base: str) -> None:
        self._items = items
        self._fetch = fetch
        self._base = base

    def __len__(self) -> int:
        return len(self._items)

    @property
    def identity(self) -> str:
        """Of the table; what it names is not looked at before it is fetched."""
        return mark_of(self._items.identity, self._fetch, self._base)

    def sizes(self) -> Int64 | None:
        """None: what is named has not been looked at."""
        return None

    def splits(self) -> Runs | None:
        """The table's."""
        return self._items.splits()

    def read(self, numbers: Int64) -> list[Read]:
        """Several are fetched at once; each failure stands in the place of its item."""
        fill = fetched(self._fetch, self._base)

        def one(read: Read) -> Read:
            if isinstance(read, Exception):
                return read
            try:
                return dict(fill(read))
            except ShoalError as error:
                return error.at(key=read.get("__key__"))
            except Exception as error:  # noqa: BLE001 - told of its item
                return error

        return list(at_once(one, self._items.read(numbers)))


# ----------------------------------------------------------------------------------------- a folder of files as samples


LABEL_FIELD = "cls"


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """Which files make which sample; nothing of them has been read."""

    folder: str
    samples: Mapping[str, Mapping[str, str]]
    """For each key, sorted, its fields, sorted, and for each field the file, relative to the folder."""
    classes: tuple[str, ...] = ()
    """The folders that name classes, sorted: a sample's label is a position in them."""
    skipped: tuple[str, ...] = ()
    """Files whose name has no extension, or starts with a dot, and so belong to no sample."""

    def __iter__(self) -> Iterator[tuple[str, FolderSample]]:
        """The samples, each read when its fields are asked for."""
        labels = {name: number for number, name in enumerate(self.classes)}
        for key, files in self.samples.items():
            label = labels[_class_of(next(iter(files.values())))] if labels else None
            yield key, FolderSample(self.folder, files, label)

    def __len__(self) -> int:
        return len(self.samples)


class FolderSample(Mapping[str, bytes]):
    """One sample of a folder: a file is read when its field is asked for, so a sample passed over costs nothing."""

    def __init__(self, folder: str, files: Mapping[str, str], label: int | None) -> None:
        self._folder = folder
        self._files = files
        self._label = label
        self._names: list[str] = sorted(files if label is None else [*files, LABEL_FIELD])

    def __getitem__(self, field: str) -> bytes:
        if field == LABEL_FIELD and self._label is not None:
            return str(self._label).encode()
        path = os.path.join(self._folder, self._files[field])
        return store_for(path).read_all(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def plan_folder(
    folder: str, *, rule: KeyRule = WEBDATASET_RULE, label_from_folder: bool = False, without: str | None = None
) -> FolderPlan:
    """Group a folder's files into samples by ``rule``, names taken relative to the folder and in sorted order.

    Hidden files and folders are passed over, and so is the folder ``without``. ``label_from_folder`` takes the folder
    right below ``folder`` for a sample's class. Raises WriteError when two files would be one field, when there is no
    sample at all, and when a label has no folder or no room; UnsafeNameError for names that no reader would give back.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("a.jpg", "a.txt", "b.jpg"):
        ...     _ = open(os.path.join(folder, name), "wb").close()
        >>> {key: list(sample) for key, sample in plan_folder(folder)}
        {'a': ['jpg', 'txt'], 'b': ['jpg']}
    """
    if not os.path.isdir(folder):
        raise ObjectNotFoundError("no such folder", found=folder, hint="check the path")
    files: dict[str, dict[str, str]] = {}
    skipped = []
    for path in _files_below(folder, without):
        pair = split_name(path, rule)
        if pair is None:
            skipped.append(path)
        else:
            _add(files, path, *pair, rule)
    if not files:
        raise WriteError("the folder has no files that make samples", expected="files such as 0001.jpg", found=folder)
    classes = _classes(files) if label_from_folder else ()
    samples = {key: dict(sorted(files[key].items())) for key in sorted(files)}
    return FolderPlan(folder, samples, classes, tuple(skipped))


def _files_below(folder: str, without: str | None) -> Iterator[str]:
    """Relative paths with forward slashes, in sorted order whatever order the disk has."""
    left_out = None if without is None else os.path.realpath(without)
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(root, name)) != left_out
        )
        for name in sorted(names):
            yield os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")


def _add(files: dict[str, dict[str, str]], path: str, key: str, field: str, rule: KeyRule) -> None:
    try:
        check_key(key)
        check_field(key, field)
    except UnsafeNameError as error:
        raise UnsafeNameError(error.problem, found=repr(path), hint="rename the file") from None
    fields = files.setdefault(key, {})
    other = next(iter(fields.values()), None)
    if field in fields:
        both = f"{fields[field]} and {path}"
        raise WriteError("two files would be one field of one sample", found=both, key=key, field=field)
    if rule.folders == "flatten" and other is not None and os.path.dirname(other) != os.path.dirname(path):
        both = f"{other} and {path}"
        raise WriteError("without folders two samples would be one", found=both, key=key, hint="keep the folders")
    fields[field] = path


def _class_of(path: str) -> str:
    return path.partition("/")[0]


def _classes(files: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    for key, fields in files.items():
        path = next(iter(fields.values()))
        if "/" not in path:
            raise WriteError("the file is in no folder that could name its class", found=path, key=key)
        if LABEL_FIELD in fields:
            problem = "the sample has a label in a file, and one by its folder"
            raise WriteError(problem, found=fields[LABEL_FIELD], key=key, field=LABEL_FIELD)
    return tuple(sorted({_class_of(path) for fields in files.values() for path in fields.values()}))
