"""Folders and lists of files as items: files with the same key, side by side, are one sample."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from operator import contains
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ObjectNotFoundError, WriteError
from shoal.formats import detect_name
from shoal.shard import WEBDATASET_RULE, KeyRule, load_manifest, split_name
from shoal.store import base_name, join_url, local_path, relative_url, scheme_of, store_for

from ._items import ItemsOf, at_once
from ._mark import mark_of

__all__ = ["FolderItems", "kind_of_folder", "list_files", "list_folder"]

Int64 = npt.NDArray[np.int64]
File = tuple[str, int, str]
"""A path below the root, its bytes, and its version."""
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
