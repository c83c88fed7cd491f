"""Files that hold samples: found by the name a user gave, and read as one numbered sequence."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.codec._arrays import decode_npy, encode_npy
from shoal.errors import (
    CodecError,
    DecodeError,
    FieldError,
    ObjectNotFoundError,
    SampleKeyError,
    ShoalError,
    StoreError,
)
from shoal.shard._discovery import files_below, shards_by_split
from shoal.shard._member_names import key_hint
from shoal.shard._shard import Decoders, Sample
from shoal.shard._split_names import find_split
from shoal.shard._stream import ErrorLog
from shoal.shard._table import checked_rows, column_error
from shoal.store._base import ObjectInfo, ObjectReader
from shoal.store._cache import cache_dir, count_added, mark_used
from shoal.store._options import options_for
from shoal.store._pattern import expand_pattern
from shoal.store._registry import store_for
from shoal.store._url import join_url, local_path, scheme_of

__all__ = [
    "KEY",
    "Files",
    "PartSource",
    "PathLike",
    "RangeFile",
    "Values",
    "cached_offsets",
    "decode_values",
    "file_for",
    "identity_of",
    "nearby_runs",
    "number_key",
    "runs_of",
    "strip_part_number",
]

PathLike = str | os.PathLike[str]
Values = dict[str, Any]
KEY = "__key__"
"""The field of a file that holds the keys of its samples, where it has one."""
_NO_DECODERS: Decoders = {}
_MAX_OPEN_FILES = 16
_MAX_GAP_BYTES = 64 << 10
"""Byte ranges nearer to each other than this are read together."""
_RUN = 256
_OFFSETS_FOLDER = "offsets"
_PART_NUMBER = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True, slots=True)
class Files:
    """Names of files, which are looked up when they are first needed."""

    path: PathLike | tuple[PathLike, ...]
    endings: tuple[str, ...] | None = None
    """What the names of files in a folder end in; None for all files."""
    split: str | None = None

    @property
    def folder(self) -> str | None:
        """The folder that was named; None where files were."""
        if not isinstance(self.path, (str, os.PathLike)):
            return None
        text = os.fspath(self.path)
        return text if store_for(text).is_folder(text) else None

    def find(self) -> tuple[ObjectInfo, ...]:
        """The files. Raises ObjectNotFoundError when there are none, FieldError when none is of the split."""
        root = self.folder
        if root is not None:
            found = self._below(root)
        else:
            found = tuple(store_for(url).info(url) for url in expand_pattern(self.path))
        if not found:
            wanted = "any file" if self.endings is None else " or ".join(self.endings)
            raise ObjectNotFoundError("there are no such files", expected=wanted, found=str(self.path))
        return found if self.split is None else _of_split(found, self.split, root)

    def _below(self, root: str) -> tuple[ObjectInfo, ...]:
        endings = self.endings
        return tuple(
            info for info in files_below(root) if endings is None or strip_part_number(info.url).endswith(endings)
        )


def strip_part_number(url: str) -> str:
    """The URL in lower case, without what TensorFlow writes after the ending: ``train.tfrecord-00000-of-00010``."""
    return _PART_NUMBER.sub("", url.lower())


def _of_split(infos: Sequence[ObjectInfo], split: str, root: str | None) -> tuple[ObjectInfo, ...]:
    by_split = shards_by_split([info.url for info in infos], root)
    urls = set(by_split[find_split(split, by_split)])
    return tuple(info for info in infos if info.url in urls)


def identity_of(parts: Iterable[object], infos: Sequence[ObjectInfo]) -> str:
    """A digest that differs where the files, their order or their sizes do; where they lie is no part of it."""
    first, last = min(info.url for info in infos), max(info.url for info in infos)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    cut = first.rfind("/", 0, same) + 1  # the folder of the first and the last is that of all
    facts = [repr(part) for part in parts] + [repr((info.url[cut:], info.size)) for info in infos]
    return hashlib.sha256("\0".join(facts).encode("utf-8", "surrogatepass")).hexdigest()


class Part(Protocol):
    """One open file. Safe to use from several threads."""

    def __len__(self) -> int: ...

    @property
    def fields(self) -> tuple[str, ...]: ...

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """The values of these rows, in this order; a row may lack a field."""
        ...

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All rows in order, in runs as long as is good to read at once."""
        ...


def runs_of(part: Part, fields: Sequence[str] | None, size: int = _RUN) -> Iterator[list[Values]]:
    """All rows of a part in order, read some at a time."""
    for start in range(0, len(part), size):
        yield part.read(np.arange(start, min(start + size, len(part))), fields)


def nearby_runs(starts: IntArray, stops: IntArray) -> list[IntArray]:
    """The numbers of byte ranges, which come in the order of their starts, in groups that are worth one read each."""
    if not len(starts):
        return []
    gaps = np.flatnonzero(starts[1:] > np.maximum.accumulate(stops)[:-1] + _MAX_GAP_BYTES) + 1
    return np.split(np.arange(len(starts)), gaps)


def number_key(number: int) -> str:
    """The key of a sample that has none of its own."""
    return f"{number:09d}"


def _decodes(sample: Sample, decoders: Decoders, log: ErrorLog) -> bool:
    """Decode a sample; False where it cannot be decoded and ``log`` goes on."""
    try:
        decode_values([sample], decoders)
    except DecodeError as error:
        log.handle(error)
        return False
    return True


def decode_values(samples: Sequence[Sample], decoders: Decoders) -> None:
    """Decode the fields that are bytes; values of other types are what they are."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    for name in names:
        if name.startswith("__") or name not in decoders:
            continue
        decode = decoders[name]
        for sample in samples:
            value = sample.get(name)
            if isinstance(value, (bytes, memoryview)):
                sample[name] = _decoded(decode, value, sample, name)


def _decoded(decode: Callable[[Any], Any], value: Any, sample: Sample, field: str) -> Any:
    try:
        return decode(value)
    except CodecError as error:
        raise error.at(shard=sample["__url__"], key=sample[KEY], field=field) from error.__cause__


class Located(Protocol):
    """What knows which files there are."""

    def find(self) -> tuple[ObjectInfo, ...]: ...


class PartSource:
    """Files of one format as one sequence. They open when they are first needed, and the least used close again."""

    has_integers = True
    """The format has integers of its own, so bytes are not one because their field is called ``id``."""

    def __init__(
        self,
        name: str,
        files: Located,
        open_part: Callable[[ObjectReader], Part],
        *,
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
        max_open: int = _MAX_OPEN_FILES,
        counts: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        self._name = name
        self._files = files
        self._open_part = open_part
        self._requested_key = key
        self._options = dict(options or {})
        self._max_open = max_open
        self._counts = counts
        self._open: OrderedDict[int, Part] = OrderedDict()
        self._lock = threading.RLock()

    @functools.cached_property
    def infos(self) -> tuple[ObjectInfo, ...]:
        """The files."""
        return self._files.find()

    @property
    def identity(self) -> str:
        """Equal for equal files, wherever they lie."""
        return identity_of([self._name, self._requested_key, sorted(self._options.items())], self.infos)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def starts(self) -> IntArray:
        """The number of each file's first sample, and the total at the end."""
        known = None if self._counts is None else self._counts()
        counts = [self._length(number) for number in range(len(self.infos))] if known is None else known
        return np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)

    def _length(self, number: int) -> int:
        try:
            return len(self.part(number))
        except ShoalError as error:
            raise error.at(shard=self.infos[number].url) from error.__cause__

    def part(self, number: int) -> Part:
        """An open file."""
        with self._lock:
            found = self._open.get(number)
            if found is None:
                found = self._open[number] = self._opened(self.infos[number])
                if len(self._open) > self._max_open:
                    self._open.popitem(last=False)  # closed when its last reader lets go of it
            self._open.move_to_end(number)
            return found

    def _opened(self, info: ObjectInfo) -> Part:
        reader = store_for(info.url).open(info.url)
        try:
            return self._open_part(reader)
        except ShoalError as error:
            reader.close()
            raise error.at(shard=info.url) from error.__cause__
        except BaseException:
            reader.close()
            raise

    @functools.cached_property
    def _stored(self) -> tuple[str, ...]:
        """What the first file with fields has, the column of keys included: all of them may be a whole folder."""
        for number, info in enumerate(self.infos):
            try:
                if fields := self.part(number).fields:
                    return fields
            except ShoalError as error:
                raise error.at(shard=info.url) from error.__cause__
        return ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the first file that has any."""
        return tuple(name for name in self._stored if name != KEY)

    @functools.cached_property
    def _key(self) -> str | None:
        """The field that keys are taken from; None where samples are numbered."""
        if self._requested_key is not None and self._requested_key not in self._stored:
            raise FieldError("no such field", expected=" or ".join(self.fields), found=self._requested_key)
        return self._requested_key or (KEY if KEY in self._stored else None)

    def read(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """The samples with these numbers, in this order: each file is asked once for all it holds."""
        rows = checked_rows(rows, len(self))
        found: list[Sample] = [{}] * len(rows)
        for number, places in self._by_part(rows):
            own = rows[places]
            values = self._read_part(number, own - self.starts[number], fields)
            samples = self._samples(number, own.tolist(), values, fields)
            for place, sample in zip(places.tolist(), samples, strict=True):
                found[place] = sample
        decode_values(found, decoders)
        return found

    def _by_part(self, rows: IntArray) -> Iterator[tuple[int, IntArray]]:
        numbers = np.searchsorted(self.starts, rows, "right") - 1
        if len(rows) and bool((numbers == numbers[0]).all()):
            yield int(numbers[0]), np.arange(len(rows))
            return
        for number in np.unique(numbers).tolist():
            yield number, np.flatnonzero(numbers == number)

    def _read_part(self, number: int, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        try:
            return self.part(number).read(rows, self._with_key(fields))
        except ShoalError as error:
            raise error.at(shard=self.infos[number].url) from error.__cause__

    def _with_key(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        if fields is None or self._key is None or self._key in fields:
            return fields
        return [*fields, self._key]

    def _samples(
        self, number: int, rows: Sequence[int], values: list[Values], fields: Sequence[str] | None
    ) -> list[Sample]:
        url, key = self.infos[number].url, self._key
        if key is None:
            return [
                {KEY: f"{row:09d}", "__url__": url, **row_values} for row, row_values in zip(rows, values, strict=True)
            ]
        drop = key == KEY or (fields is not None and key not in fields)
        samples = []
        for row, row_values in zip(rows, values, strict=True):
            name = row_values.pop(key, None) if drop else row_values.get(key)
            samples.append({KEY: number_key(row) if name is None else _text(name), "__url__": url, **row_values})
        return samples

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Sample]]:
        """All samples in order; where ``log`` goes on, without those that cannot be read."""
        log = log or ErrorLog()
        first = 0
        for number in range(len(self.infos)):
            done = 0
            for rows, values in self._part_runs(number, self._with_key(fields), log):
                samples = self._samples(number, [first + row for row in rows], values, fields)
                if log.goes_on:
                    yield [sample for sample in samples if _decodes(sample, decoders, log)]
                else:
                    decode_values(samples, decoders)
                    yield samples
                done = rows[-1] + 1 if len(rows) else done
            first += done

    def _part_runs(
        self, number: int, fields: Sequence[str] | None, log: ErrorLog
    ) -> Iterator[tuple[Sequence[int], list[Values]]]:
        """The rows of one file with their numbers in it; after damage, one row at a time."""
        done = 0
        try:
            for values in self.part(number).runs(fields):
                yield range(done, done + len(values)), values
                done += len(values)
        except ShoalError as error:
            if not log.goes_on:
                raise error.at(shard=self.infos[number].url) from error.__cause__
            yield from self._sound_rows(number, done, fields, log, error)

    def _sound_rows(
        self, number: int, start: int, fields: Sequence[str] | None, log: ErrorLog, error: ShoalError
    ) -> Iterator[tuple[Sequence[int], list[Values]]]:
        try:
            length = self._length(number)
        except ShoalError:  # where rows begin is not known either, so the rest of the file is one loss
            log.handle(error.at(shard=self.infos[number].url))
            return
        for row in range(start, length):
            try:
                yield [row], self._read_part(number, np.array([row]), fields)
            except ShoalError as lost:
                log.handle(lost)

    def find(self, key: str) -> int:
        """The number of the first sample with this key. Raises SampleKeyError, which suggests near ones."""
        number = self._numbered(key) if self._key is None else self._number_by_key.get(key)
        if number is None:
            raise SampleKeyError("no sample has this key", found=repr(key), hint=self._near(key))
        return number

    def _numbered(self, key: str) -> int | None:
        number = int(key) if key.isascii() and key.isdigit() else -1
        return number if 0 <= number < len(self) and number_key(number) == key else None

    @functools.cached_property
    def _number_by_key(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for number, key in enumerate(self._all_keys):
            numbers.setdefault(key, number)
        return numbers

    @functools.cached_property
    def _all_keys(self) -> list[str]:
        return [sample[KEY] for run in self.stream(()) for sample in run]

    def _near(self, key: str) -> str | None:
        return key_hint(key, self.keys(np.arange(min(2000, len(self)))))

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these samples."""
        rows = checked_rows(rows, len(self))
        if self._key is None:
            return [number_key(row) for row in rows.tolist()]
        if 4 * len(rows) < len(self):
            return [sample[KEY] for sample in self.read(rows, ())]
        return [self._all_keys[row] for row in rows.tolist()]

    def table(self, columns: Sequence[str]) -> pa.Table:
        """The keys; these formats have no metadata columns."""
        for name in columns:
            if name != KEY:
                raise column_error(name, "this format has no indexed columns")
        keys = pa.array(self.keys(np.arange(len(self))), pa.string())
        return pa.table([keys] * len(columns), names=list(columns))


def _text(name: Any) -> str:
    if isinstance(name, (bytes, memoryview)):
        return str(name, "utf-8", "replace")
    return str(name)


class RangeFile(io.RawIOBase):
    """An open object, read by ranges; each has a place of its own, so it belongs to one thread at a time."""

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__()
        self._reader = reader
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.info.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._reader.read(self._at, self._at + len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def file_for(reader: ObjectReader) -> Any:
    """What a library can open: the path of a local file, else a file over its ranges."""
    if scheme_of(reader.info.url) == "file":
        return local_path(reader.info.url)
    return io.BufferedReader(RangeFile(reader), 1 << 18)


def cached_offsets(reader: ObjectReader, kind: str, find: Callable[[ObjectReader], IntArray]) -> IntArray:
    """What ``find`` says of an open object, asked once for each state of it; a changed object is another entry."""
    info = reader.info
    where = os.path.abspath(local_path(info.url)) if scheme_of(info.url) == "file" else info.url
    name = hashlib.sha256(repr((where, info.size, info.version, kind)).encode()).hexdigest()
    url = join_url(cache_dir(), _OFFSETS_FOLDER, name + ".npy")
    store = store_for(url)
    try:
        kept = decode_npy(store.read_all(url))
        if kept.dtype == np.int64:
            mark_used(url)
            return kept
    except (StoreError, DecodeError):  # not there, or damaged: found again
        pass
    found = find(reader)
    with contextlib.suppress(StoreError):  # a cache that cannot be written costs time, nothing else
        count_added(url, store.write_all(url, encode_npy(found)).size, options_for(info.url).cache_bytes)
    return found
