"""Formats with one object per sample: raw files, and folders of images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import FormatError, SampleKeyError, ShoalError
from shoal.shard._shard import Decoders, Sample
from shoal.shard._split_names import split_alias
from shoal.shard._stream import ErrorLog
from shoal.shard._table import checked_rows, column_error
from shoal.store._base import ObjectInfo
from shoal.store._registry import store_for
from shoal.store._url import base_name, local_path, relative_url, scheme_of

from ._sources import KEY, Files, Values, decode_values, identity_of

__all__ = [
    "ObjectSource",
    "class_folders",
    "class_labels",
    "folder_splits",
    "image_values",
    "raw_fields",
    "raw_values",
    "relative_paths",
    "stem_of",
]

_NO_EXTENSION = "bin"
_NO_DECODERS: Decoders = {}
_RUN = 64
_AT_ONCE = 16
"""How many objects are asked for at once where each answer takes a while."""


def raw_field(path: str) -> str:
    """The field that holds a file's bytes: its extension in small letters.

    Examples:
        >>> raw_field("a/photo.JPG"), raw_field("a/notes")
        ('jpg', 'bin')
    """
    stem, dot, extension = base_name(path).rpartition(".")
    return extension.lower() if dot and stem and extension else _NO_EXTENSION


def raw_values(path: str, data: bytes, fields: Sequence[str] | None) -> Values:
    """The bytes of a file under its extension."""
    field = raw_field(path)
    return {field: data} if fields is None or field in fields else {}


def raw_fields(paths: Sequence[str], read: Callable[[str], bytes]) -> tuple[str, ...]:
    """Every extension, in the order they appear."""
    return tuple(dict.fromkeys(map(raw_field, paths)))


def image_values(path: str, data: bytes, fields: Sequence[str] | None) -> Values:
    """The bytes of an image file, whichever extension it has."""
    return {"image": data} if fields is None or "image" in fields else {}


def folder_splits(paths: Sequence[str]) -> list[str] | None:
    """The split that the first folder of each file names; None where a first folder is not called like a split.

    Examples:
        >>> folder_splits(["train/cat/1.jpg", "val/cat/1.jpg"]), folder_splits(["train/1.jpg", "cat/1.jpg"])
        (['train', 'validation'], None)
    """
    names = {folder: split_alias(folder) for folder in {path.partition("/")[0] for path in paths}}
    if not all(names.values()) or not all("/" in path for path in paths):
        return None
    return [names[path.partition("/")[0]] or "train" for path in paths]


def class_folders(paths: Sequence[str]) -> list[str]:
    """The folder of each file that names its class, or "": the first, and the next one where the first are splits.

    Examples:
        >>> class_folders(["cat/1.jpg", "dog/a/1.jpg"]), class_folders(["train/cat/1.jpg", "val/dog/1.jpg"])
        (['cat', 'dog'], ['cat', 'dog'])
    """
    below = [path.partition("/")[2] for path in paths]
    is_split = all("/" in path for path in below) and folder_splits(paths) is not None
    return [path.rpartition("/")[0].partition("/")[0] for path in (below if is_split else paths)]


def class_labels(paths: Sequence[str], all_paths: Sequence[str]) -> list[Mapping[str, Any]]:
    """The class of each file, numbered in the order of the names in all files. Raises FormatError without one."""
    named = dict(zip(all_paths, class_folders(all_paths), strict=True))
    for path in paths:
        if not named[path]:
            raise FormatError("an image is in no class's folder", expected="class/image", found=path)
    numbers = {name: number for number, name in enumerate(sorted(set(named.values())))}
    return [{"cls": numbers[named[path]], "class_name": named[path]} for path in paths]


def relative_paths(files: Files, infos: Sequence[ObjectInfo] | None = None) -> list[str]:
    """The names of files below their folder; their own names where files were named."""
    root = files.folder
    urls = [info.url for info in (files.find() if infos is None else infos)]
    return [base_name(url) if root is None else relative_url(url, root) for url in urls]


def stem_of(path: str) -> str:
    """A file's path without its extension."""
    folder, slash, name = path.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return folder + slash + (stem if dot and stem else name)


class ObjectSource:
    """Every object is a sample, in the order of their names; its key is its name below the folder."""

    def __init__(
        self,
        name: str,
        files: Files,
        values: Callable[[str, bytes, Sequence[str] | None], Values],
        fields: Callable[[Sequence[str], Callable[[str], bytes]], tuple[str, ...]],
        *,
        key: Callable[[str], str] = str,
        extra: Callable[[Sequence[str]], Sequence[Mapping[str, Any]]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._files = files
        self._values = values
        self._field_names = fields
        self._key = key
        self._extra = extra
        self._options = dict(options or {})

    @functools.cached_property
    def infos(self) -> tuple[ObjectInfo, ...]:
        """The objects."""
        return self._files.find()

    @functools.cached_property
    def paths(self) -> list[str]:
        """Each object's name below the folder; its own name where files were named."""
        return relative_paths(self._files, self.infos)

    @property
    def identity(self) -> str:
        """Equal for equal objects, wherever they lie."""
        return identity_of([self._name, sorted(self._options.items())], self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields samples have."""
        return self._names

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        try:
            return self._field_names(self.paths, self._bytes_of)
        except ShoalError as error:
            raise error.at(shard=self.infos[0].url) from error.__cause__

    def _bytes_of(self, path: str) -> bytes:
        return self._fetch(self.infos[self.paths.index(path)].url)

    @functools.cached_property
    def _is_local(self) -> bool:
        return all(scheme_of(info.url) in {"file", "memory"} for info in self.infos[:1])

    def _fetch(self, url: str) -> bytes:
        if scheme_of(url) != "file":
            return store_for(url).read_all(url)
        try:
            with open(local_path(url), "rb", buffering=0) as file:
                return file.read()
        except OSError:
            return store_for(url).read_all(url)  # which says in our words what is wrong

    @functools.cached_property
    def _extras(self) -> Sequence[Mapping[str, Any]] | None:
        return None if self._extra is None else self._extra(self.paths)

    def read(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """The samples with these numbers, in this order; several objects are fetched at once where that helps."""
        numbers = checked_rows(rows, len(self)).tolist()
        urls = [self.infos[number].url for number in numbers]
        samples = [self._sample(*each, fields) for each in zip(numbers, self._fetched(urls, fields), strict=True)]
        decode_values(samples, decoders)
        return samples

    def _fetched(self, urls: list[str], fields: Sequence[str] | None) -> list[bytes]:
        if fields is not None and not fields:
            return [b""] * len(urls)
        if self._is_local or len(urls) < 2:
            return [self._fetch(url) for url in urls]
        with ThreadPoolExecutor(min(_AT_ONCE, len(urls))) as pool:
            return list(pool.map(self._fetch, urls))

    def _sample(self, number: int, data: bytes, fields: Sequence[str] | None) -> Sample:
        url, path = self.infos[number].url, self.paths[number]
        sample: Sample = {KEY: self._key(path), "__url__": url}
        if fields is None or fields:
            try:
                sample.update(self._values(path, data, fields))
            except ShoalError as error:
                raise error.at(shard=url, key=sample[KEY]) from error.__cause__
        extras = self._extras
        if extras is not None:
            sample.update({name: v for name, v in extras[number].items() if fields is None or name in fields})
        return sample

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples in order; where ``log`` goes on, without those that cannot be read."""
        log = log or ErrorLog()
        for start in range(0, len(self), _RUN):
            rows = np.arange(start, min(start + _RUN, len(self)))
            try:
                samples = self.read(rows, fields, decoders)
            except ShoalError:
                if not log.goes_on:
                    raise
                samples = [sample for row in rows.tolist() for sample in self._sound(row, fields, decoders, log)]
            yield samples

    def _sound(self, row: int, fields: Sequence[str] | None, decoders: Decoders, log: ErrorLog) -> list[Sample]:
        try:
            return self.read(np.array([row]), fields, decoders)
        except ShoalError as error:
            log.handle(error)
            return []

    def find(self, key: str) -> int:
        """The number of the first sample with this key. Raises SampleKeyError."""
        number = self._number_by_key.get(key)
        if number is None:
            first = next(iter(self._number_by_key), None)
            hint = None if first is None else f"keys look like {first!r}"
            raise SampleKeyError("no sample has this key", found=repr(key), hint=hint)
        return number

    @functools.cached_property
    def _number_by_key(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for number, path in enumerate(self.paths):
            numbers.setdefault(self._key(path), number)
        return numbers

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these samples."""
        return [self._key(self.paths[row]) for row in checked_rows(rows, len(self)).tolist()]

    def table(self, columns: Sequence[str]) -> pa.Table:
        """The keys; these formats have no metadata columns."""
        for name in columns:
            if name != KEY:
                raise column_error(name, "this format has no indexed columns")
        keys = pa.array(self.keys(np.arange(len(self))), pa.string())
        return pa.table([keys] * len(columns), names=list(columns))
