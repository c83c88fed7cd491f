"""A folder of files as samples: files with the same key, side by side, are one sample."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shoal.errors import ObjectNotFoundError, UnsafeNameError, WriteError
from shoal.shard._tar import WEBDATASET_RULE, KeyRule, check_field, check_key, split_name
from shoal.store import store_for

__all__ = ["FolderPlan", "FolderSample", "plan_folder"]

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
