"""Folders of files as samples, read by `build_shards` (`FolderItems`) and by ``shoal pack`` (`plan_folder`)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import contains
from typing import Any

import numpy as np

from shoal._typing import IntArray
from shoal.errors import ObjectNotFoundError, UnsafeNameError, WriteError
from shoal.formats._raw import class_folders, folder_splits
from shoal.formats._registry import detect_name
from shoal.shard._manifest import load_manifest
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule, check_field, check_key, split_name
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, local_path, relative_url, scheme_of

from ._digests import digest_values
from ._items import ItemsBase, SplitRuns, map_in_threads, runs_by_split

__all__ = [
    "File",
    "FolderItems",
    "FolderPlan",
    "FolderSample",
    "kind_of_folder",
    "list_files",
    "list_folder",
    "plan_folder",
]

File = tuple[str, int, str]
"""A path below the root, its bytes, and its version."""
_BLOCK = 512
_LABEL_FIELD = "cls"
_IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}
_COMPRESSIONS = {".gz", ".zst", ".bz2", ".xz"}
_MAX_READ_BYTES = 1 << 30  # one read gives at most 2 GiB on Linux


def list_folder(root: str, without: str | None = None) -> list[File]:
    """The files below a folder but for hidden ones, sorted by path; the folder ``without`` is left out."""
    if scheme_of(root) != "file":
        listed = [(relative_url(info.url, root), info.size, info.version) for info in store_for(root).list(root)]
        return [file for file in listed if not any(part.startswith(".") for part in file[0].split("/"))]
    path = local_path(root)
    left_out = None if without is None or scheme_of(without) != "file" else os.path.realpath(local_path(without))
    files: list[File] = []
    folders = [""]
    while folders:
        folders += _scan_folder(path, folders.pop(), left_out, files)
    return sorted(files)


def _scan_folder(root: str, below: str, left_out: str | None, files: list[File]) -> list[str]:
    """Add a folder's files to ``files`` and return its folders. ``scandir`` needs no ``stat`` for that."""
    folders = []
    prefix = f"{below}/" if below else ""
    try:
        for entry in os.scandir(os.path.join(root, below) if below else root):
            name = entry.name
            if name[0] == ".":
                continue
            if not entry.is_dir():
                facts = entry.stat()
                files.append((prefix + name, facts.st_size, str(facts.st_mtime_ns)))
            elif left_out is None or os.path.realpath(entry.path) != left_out:
                folders.append(prefix + name)
    except OSError as error:
        raise ObjectNotFoundError("the folder cannot be read", found=os.path.join(root, below)) from error
    return folders


def kind_of_folder(root: str, files: Sequence[File]) -> str | None:
    """``imagefolder`` or ``folder``; None where there may be files of a format that `detect` knows."""
    paths = [path for path, _, _ in files]
    endings = {ending.lower() for ending in {path[path.rfind(".") :] for path in paths}}
    if endings & _COMPRESSIONS:  # x.jsonl.gz and x.tar.gz are of a format, x.gz is not
        endings |= {"." + ".".join(base_name(path).lower().split(".")[-2:]) for path in paths}
    known = any(detect_name(f"a{ending}") is not None for ending in endings)
    if known or "index.json" in paths or load_manifest(root) is not None:
        return None
    return "imagefolder" if endings <= _IMAGES and all(map(contains, paths, itertools.repeat("/"))) else "folder"


def list_files(urls: Sequence[str]) -> tuple[str, list[File]]:
    """Named files, with the folder that holds them all."""
    parts = [url.split("/")[:-1] for url in urls]
    shared = [same[0] for same in itertools.takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))]
    root = "/".join(shared) or ("/" if urls and urls[0].startswith("/") else "")
    infos = map_in_threads(lambda url: store_for(url).info(url), urls)
    return root or ".", [
        (relative_url(info.url, root) if root else info.url, info.size, info.version) for info in infos
    ]


class FolderItems(ItemsBase):
    """Samples of files: ``cats/1.jpg`` and ``cats/1.txt`` are the fields ``jpg`` and ``txt`` of ``cats/1``.

    With ``labels`` the first folder is the class: a field ``cls`` has its number among the sorted names. Where all
    first folders are called like splits, they are the splits, and the folders in them the classes. Raises WriteError
    when two files would be one field, and when a label has no folder or no room.
    """

    def __init__(
        self, root: str, files: Sequence[File], *, rule: KeyRule = WEBDATASET_RULE, labels: bool = False
    ) -> None:
        self._root = root
        self._is_local = scheme_of(root) == "file"
        self.skipped: list[str] = []
        """Files that belong to no sample."""
        self._identity = digest_values("\n".join([f"{path} {size} {version}" for path, size, version in files]), labels)
        groups = self._group_files(files, rule)
        self._keys = list(groups)
        self._fields = list(groups.values())
        self.classes: tuple[str, ...] = ()
        """The folders that name classes, sorted."""
        if labels:
            folders = _class_folders(groups)
            self.classes = tuple(sorted(set(folders)))
            numbers = {name: number for number, name in enumerate(self.classes)}
            self._labels = [numbers[folder] for folder in folders]

    def _group_files(self, files: Sequence[File], rule: KeyRule) -> dict[str, list[tuple[str, str, int]]]:
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

    def splits(self) -> SplitRuns | None:
        """Those that the first folders are called like."""
        splits = folder_splits([files[0][1] for files in self._fields])
        if splits is None:
            return None
        count = len(splits)
        by_split = {name: [name] for name in dict.fromkeys(splits)}
        return runs_by_split(by_split, splits, np.arange(count + 1), np.arange(count))

    def sizes(self) -> IntArray:
        """The header and the padded bytes of each file."""
        label = 2 * _BLOCK if self.classes else 0
        counts = np.array([len(files) for files in self._fields], np.int64)
        sizes = np.array([size for files in self._fields for _, _, size in files], np.int64)
        padded = _BLOCK + -(-sizes // _BLOCK) * _BLOCK
        return np.add.reduceat(padded, np.cumsum(counts) - counts) + label

    def _samples(self, numbers: IntArray) -> Sequence[Any]:
        if self._is_local:
            return [self._sample(number) for number in numbers.tolist()]
        return list(map_in_threads(self._sample, numbers.tolist()))

    def _sample(self, number: int) -> dict[str, Any]:
        sample: dict[str, Any] = {"__key__": self._keys[number]}
        files = self._fields[number]
        if self.classes:
            label = str(self._labels[number]).encode()
            files = sorted([*files, (_LABEL_FIELD, "", 0)])
            return sample | {field: self._read_file(path, size) if path else label for field, path, size in files}
        for field, path, size in files:
            sample[field] = self._read_file(path, size)
        return sample

    def _read_file(self, path: str, size: int) -> bytes:
        """Return the bytes of a file. Raises WriteError where its size is not the one that was listed."""
        url = join_url(self._root, path)
        data = (
            _read_local_file(url, size) if self._is_local and size < _MAX_READ_BYTES else store_for(url).read_all(url)
        )
        if len(data) != size:
            raise WriteError("a file changed after it was listed", expected=f"{size} bytes", found=len(data), shard=url)
        return data


def _read_local_file(url: str, size: int) -> bytes:
    try:
        file = os.open(local_path(url), os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return store_for(url).read_all(url)  # raises shoal's error for it
    try:
        return os.read(file, size + 1)
    finally:
        os.close(file)


def _class_folders(groups: dict[str, list[tuple[str, str, int]]]) -> list[str]:
    """The folder of each sample that names its class."""
    paths = {key: {field: path for field, path, _ in files} for key, files in groups.items()}
    return list(_named_classes(paths).values())


def _named_classes(samples: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The folder that names the class of each sample, of which the files by field are given."""
    folders = class_folders([next(iter(files.values())) for files in samples.values()])
    for (key, files), folder in zip(samples.items(), folders, strict=True):
        if not folder:
            found = next(iter(files.values()))
            raise WriteError("the file is in no folder that could name its class", found=found, key=key)
        if _LABEL_FIELD in files:
            problem = "the sample has a label in a file, and one by its folder"
            raise WriteError(problem, found=files[_LABEL_FIELD], key=key, field=_LABEL_FIELD)
    return dict(zip(samples, folders, strict=True))


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
        """Yield the samples; files are read when their fields are accessed."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        named = _named_classes(self.samples) if numbers else {}
        for key, files in self.samples.items():
            yield key, FolderSample(self.folder, files, numbers[named[key]] if numbers else None)

    def __len__(self) -> int:
        return len(self.samples)


class FolderSample(Mapping[str, bytes]):
    """One sample of a folder. A file is read when its field is accessed, so a sample that is skipped costs nothing."""

    def __init__(self, folder: str, files: Mapping[str, str], label: int | None) -> None:
        self._folder = folder
        self._files = files
        self._label = label
        self._names: list[str] = sorted(files if label is None else [*files, _LABEL_FIELD])

    def __getitem__(self, field: str) -> bytes:
        if field == _LABEL_FIELD and self._label is not None:
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

    Examples:
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
    for path in _walk_files(folder, without):
        pair = split_name(path, rule)
        if pair is None:
            skipped.append(path)
        else:
            _add_file(files, path, *pair, rule)
    if not files:
        raise WriteError("the folder has no files that make samples", expected="files such as 0001.jpg", found=folder)
    named = _named_classes(files) if label_from_folder else {}
    samples = {key: dict(sorted(files[key].items())) for key in sorted(files)}
    return FolderPlan(folder, samples, tuple(sorted(set(named.values()))), tuple(skipped))


def _walk_files(folder: str, without: str | None) -> Iterator[str]:
    """Yield relative paths with forward slashes, in sorted order."""
    left_out = None if without is None else os.path.realpath(without)
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(root, name)) != left_out
        )
        for name in sorted(names):
            yield os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")


def _add_file(files: dict[str, dict[str, str]], path: str, key: str, field: str, rule: KeyRule) -> None:
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
