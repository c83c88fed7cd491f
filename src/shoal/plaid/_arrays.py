"""The arrays of one shard, by row and feature.

A shard on the local disk is mapped, as PLAID maps its constants and ``hf_datasets`` its tables: an array is a read-only
view of the file, and bytes that nobody looks at are not read. Each array is compared with its checksum before it is
given out the first time. As with those two, a file that is cut short while it is mapped ends the process: shards are
replaced by renaming, never in place. A shard elsewhere is read by ranges, those of neighbouring members together.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import AnyArray, IntArray, UInt32Array
from shoal.codec._arrays import decode_npy
from shoal.errors import (
    DecodeError,
    FieldError,
    FormatError,
    ObjectNotFoundError,
    OptionError,
    PositionError,
    TarError,
    TruncatedError,
)
from shoal.shard._index import ShardIndex, damaged, load_index
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._open_shards import open_shard
from shoal.shard._shard import Shard
from shoal.shard._tar_header import BLOCK
from shoal.store._registry import store_for
from shoal.store._url import local_path, scheme_of

from ._layout import RECORD_FIELD, SampleRecord, decode_record, number_in_key, path_of_field

__all__ = ["ArrayShard", "ShardPlace", "Values", "apply_indexer", "read_indexed", "select_features"]

Values = dict[str, npt.NDArray[Any] | None]
Read = Callable[[int, int], bytes]
"""The bytes ``[start, stop)`` of a member."""
_NO_INDEXERS: Mapping[str, Any] = {}
_FETCH_BYTES = 16 << 20
"""Of a shard elsewhere, fetched at once when samples are read one after the other."""
_MOST_OF_IT = 7 / 8
"""Of a block must be wanted, for all of it to be compared: bytes that nobody asks for are not read."""
_KEEP_CASE = KeyRule(case="keep")  # a foreign tar may name its features in its members
_HEAD_BYTES = 512
_GAP_BYTES = 4096
_MOST_RANGES = 64
"""Where more would be needed, the whole array is read at once."""


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """A shard that belongs to a split."""

    url: str
    sidecar: str | None = None
    numbers: range | None = None
    """Of its samples, where that is known before it is opened."""


class ArrayShard:
    """Reads arrays of one shard, which opens when it is first needed. Threads may share it.

    ``features`` gives the member field of each feature path; without it, the shard's own records do.
    """

    def __init__(self, place: ShardPlace, features: Mapping[str, str] | None = None) -> None:
        self.place = place
        self._features = features

    @functools.cached_property
    def _shard(self) -> Shard:
        if self.place.sidecar is not None:
            return open_shard(self.place.url, sidecar=self.place.sidecar)
        return open_shard(self.place.url, rule=_KEEP_CASE)

    @functools.cached_property
    def _index(self) -> ShardIndex:
        """Of a file whose index is named, without opening the file, which will be mapped."""
        if self.place.sidecar is not None and scheme_of(self.place.url) == "file":
            with contextlib.suppress(ObjectNotFoundError):  # `open_shard` makes one
                index = load_index(self.place.sidecar)
                if index.facts.rule == WEBDATASET_RULE:
                    return index
        return self._shard.index

    @functools.cached_property
    def _mapped(self) -> memoryview | None:
        """The tar's bytes, where they can be mapped."""
        url, index = self.place.url, self._index
        if scheme_of(url) != "file" or index.facts.compression is not None:
            return None
        mapped = map_tar(url, index)
        if "_shard" in self.__dict__:
            self._shard.close()  # only its index was needed
        return mapped

    @functools.cached_property
    def numbers(self) -> IntArray:
        """The number of each sample in its split. Raises FormatError when a key has none."""
        if self.place.numbers is not None:
            return np.arange(self.place.numbers.start, self.place.numbers.stop)
        keys = self._index.key_list(0, len(self._index))
        found = [number_in_key(key) for key in keys]
        if None in found:
            raise FormatError(
                "this is not a shard of a PLAID dataset",
                expected="keys like sample_000000000",
                found=keys[found.index(None)],
                shard=self.place.url,
            )
        return np.array(found, np.int64)

    @functools.cached_property
    def fields(self) -> Mapping[str, str]:
        """The member field of each feature path."""
        if self._features is not None:
            return self._features
        names = self._index.fields
        if RECORD_FIELD in names and len(self._index):
            return {path: field for field, path in self.record(0).features}
        return {path: name for name in names if (path := path_of_field(name)) is not None}

    def record(self, row: int) -> SampleRecord:
        """What a sample says of itself. Raises DecodeError."""
        part = self._index.fields[RECORD_FIELD]
        if not (start := int(part.offset[row])):
            raise TarError("a sample has no record", expected=".json", shard=self.place.url, key=self._key(row))
        if (view := self._mapped) is None:
            data = self._shard.read_rows(np.array([row]), [RECORD_FIELD])[0][RECORD_FIELD]
        else:
            data = view[start : start + int(part.size[row])]
            self._compare(row, RECORD_FIELD, data, start, int(part.size[row]), part.crc)
        try:
            return decode_record(data)
        except DecodeError as error:
            raise error.at(shard=self.place.url, key=self._key(row), field=RECORD_FIELD) from error.__cause__

    @functools.cached_property
    def _columns(self) -> dict[str, int]:
        return {path: column for column, path in enumerate(self.fields)}

    @functools.cached_property
    def _extents(self) -> tuple[IntArray, IntArray, UInt32Array]:
        """Offset, size and checksum of each feature, a row a sample. Offset 0: the sample lacks it."""
        index, shape = self._index, (len(self._index), len(self.fields))
        offsets, sizes, crcs = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.uint32)
        for column, field in enumerate(self.fields.values()):
            if field in index.fields:
                part = index.fields[field]
                offsets[:, column], sizes[:, column] = part.offset, part.size
                crcs[:, column] = part.crc if part.crc is not None else 0
        return offsets, sizes, crcs

    @functools.cached_property
    def _checked(self) -> npt.NDArray[np.bool_]:
        """Of each feature, a row a sample, whether it was compared with its checksum, or need not be."""
        parts = [self._index.fields.get(field) for field in self.fields.values()]
        bare = np.array([part is None or part.crc is None for part in parts], bool)
        found: npt.NDArray[np.bool_] = np.logical_or(bare, self._extents[0] == 0)
        return found

    @functools.cached_property
    def _done(self) -> bytearray:
        """Of each sample, whether all of it is compared: quicker to look up."""
        return bytearray(self._checked.all(axis=1).tobytes())

    @property
    def is_open(self) -> bool:
        """Whether `open` has nothing to do."""
        return "_done" in self.__dict__

    def open(self) -> None:
        """Open it now, so that another thread that checks a sample finds all it needs."""
        if self._mapped is not None:
            _ = self._done, self._columns

    def read(self, row: int, paths: Sequence[str] | None = None, indexers: Mapping[str, Any] = _NO_INDEXERS) -> Values:
        """The features of one sample: all of them, or these. None for one that the sample has not.

        Raises FieldError for one that the dataset has not; ChecksumError, DecodeError.
        """
        paths = list(self.fields) if paths is None else self._known(paths)
        if (view := self._mapped) is None:
            found = self._fetched([row], paths, indexers)[0]
        else:
            self.check(row, [path for path in paths if path not in indexers] if indexers else paths)
            found = self._viewed(view, row, paths, indexers)
        if missing := [path for path in paths if found[path] is None]:
            self._check_none(row, missing)
        return found

    @property
    def is_mapped(self) -> bool:
        """Whether it is a file of this machine, mapped."""
        return self._mapped is not None

    def read_many(self, rows: Sequence[int], paths: Sequence[str] | None = None) -> Iterator[Values]:
        """Samples one after the other, several fetched at once: for a shard elsewhere."""
        paths = list(self.fields) if paths is None else self._known(paths)
        columns = [self._columns[path] for path in paths]
        size = int(self._extents[1][np.ix_(rows, columns)].sum(axis=1).mean()) if len(rows) else 0
        step = max(1, min(256, _FETCH_BYTES // max(size, 1)))
        for start in range(0, len(rows), step):
            for row, found in zip(rows[start:], self._fetched(rows[start : start + step], paths, {}), strict=False):
                if missing := [path for path in paths if found[path] is None]:
                    self._check_none(row, missing)
                yield found

    def _known(self, paths: Sequence[str]) -> list[str]:
        if unknown := [path for path in paths if path not in self._columns]:
            raise FieldError(
                "no such variable feature",
                expected=" or ".join(list(self.fields)[:8]) or "none: the dataset has no variable features",
                found=" and ".join(unknown),
                shard=self.place.url,
            )
        return list(paths)

    def check(self, row: int, paths: Sequence[str] | None = None) -> bool:
        """Compare features of a mapped shard with their checksums, once. Whether there was anything left to compare.

        What is fetched is compared whenever it is. Raises ChecksumError, TruncatedError; FieldError.
        """
        if (view := self._mapped) is None or self._done[row]:
            return False
        checked = self._checked[row].tolist()
        wanted = self._columns if paths is None else {path: self._columns[path] for path in self._known(paths)}
        left = {path: column for path, column in wanted.items() if not checked[column]}
        if left and not self._check_block(view, row, list(left.values())):
            for path, column in left.items():
                self._check_member(view, row, path, column)
        self._done[row] = len(wanted) == len(checked)
        return bool(left)

    def _check_block(self, view: memoryview, row: int, columns: list[int]) -> bool:
        """Compare the block that a sample is in, where little else is in it: one call instead of one a member.

        Each call lets other threads run, and then waits for its turn. False where a block is no use, or is damaged.
        """
        if (blocks := self._index.blocks) is None:
            return False
        number = int(np.searchsorted(blocks.rows, row, "right")) - 1
        start, stop = blocks.offsets[number : number + 2].tolist()
        is_wanted = self._extents[1][row, columns].sum() >= _MOST_OF_IT * (stop - start)
        if not is_wanted or crc32(view[start:stop]) != blocks.crcs[number]:
            return False
        self._checked[blocks.rows[number] : blocks.rows[number + 1]] = True
        return True

    def _check_member(self, view: memoryview, row: int, path: str, column: int) -> None:
        offsets, sizes, crcs = self._extents
        start, size = int(offsets[row, column]), int(sizes[row, column])
        self._compare(row, path, view[start : start + size], start, size, crcs[:, column])
        self._checked[row, column] = True

    def _viewed(self, view: memoryview, row: int, paths: Sequence[str], indexers: Mapping[str, Any]) -> Values:
        offsets, sizes = (part[row].tolist() for part in self._extents[:2])
        found: Values = {}
        for path in paths:
            column = self._columns[path]
            if not offsets[column]:
                found[path] = None
                continue
            array = self._decoded(row, path, view[offsets[column] : offsets[column] + sizes[column]])
            found[path] = apply_indexer(array, indexers[path], path) if path in indexers else array
        return found

    def _compare(self, row: int, path: str, data: memoryview, start: int, size: int, crcs: UInt32Array | None) -> None:
        if len(data) != size:
            raise TruncatedError(
                "the shard ends before its index says",
                expected=f"{size} bytes",
                found=len(data),
                shard=self.place.url,
                key=self._key(row),
                field=path,
                offset=start,
            )
        if crcs is not None and (found := crc32(data)) != crcs[row]:
            raise damaged(self.place.url, self._key(row), path, start, int(crcs[row]), found)

    def _decoded(self, row: int, path: str, data: bytes | memoryview) -> npt.NDArray[Any]:
        try:
            return decode_npy(data)
        except DecodeError as error:
            raise error.at(shard=self.place.url, key=self._key(row), field=path) from error.__cause__

    def _key(self, row: int) -> str:
        return str(self._index.key_list(row, row + 1)[0])

    def _fetched(self, rows: Sequence[int], paths: Sequence[str], indexers: Mapping[str, Any]) -> list[Values]:
        whole = [path for path in paths if path not in indexers]
        fields = [self.fields[path] for path in whole]
        # A single row is read member by member, each its own request; of two, even the same, near ones go together.
        twice = [*rows, *rows] if len(rows) == 1 else list(rows)
        samples = self._shard.read_rows(np.array(twice), fields) if whole else [{} for _ in rows]
        found: list[Values] = []
        for row, sample in zip(rows, samples, strict=False):
            values: Values = dict.fromkeys(paths)
            for path, field in zip(whole, fields, strict=True):
                if field in sample:
                    values[path] = self._decoded(row, path, sample[field])
            for path in indexers.keys() & set(paths):
                values[path] = self._indexed(row, path, indexers[path])
            found.append(values)
        return found

    def _indexed(self, row: int, path: str, indexer: Any) -> npt.NDArray[Any] | None:
        size = int(self._extents[1][row, self._columns[path]])
        if not self._extents[0][row, self._columns[path]]:
            return None
        field = self.fields[path]
        try:
            return read_indexed(lambda start, stop: self._shard.read_part(row, field, start, stop), size, indexer, path)
        except DecodeError as error:
            raise error.at(shard=self.place.url, key=self._key(row), field=path) from error.__cause__

    def _check_none(self, row: int, paths: Sequence[str]) -> None:
        """A member that is not there is None only where the sample's record says so."""
        if RECORD_FIELD not in self._index.fields:
            return
        if lost := [path for path in paths if path not in self.record(row).none]:
            raise TarError(
                "a member is missing",
                expected=self.fields[lost[0]],
                shard=self.place.url,
                key=self._key(row),
                field=lost[0],
                hint="restore the shard",
            )


def apply_indexer(array: AnyArray, indexer: Any, path: str) -> AnyArray:
    """What an indexer (a slice, or positions) picks along the last axis; all of it where it is None.

    Raises OptionError for an indexer of another form or an array without axes, PositionError for one out of bounds.

    Examples:
        >>> apply_indexer(np.arange(6).reshape(2, 3), [0, 2], "Global/x")
        array([[0, 2],
               [3, 5]])
    """
    if indexer is None:
        return array
    picked = _checked(array.shape, indexer, path)
    found: AnyArray = array[..., picked]
    return found


def select_features(
    sample: Mapping[str, Any], features: Sequence[str] | None, indexers: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return some features of a sample, with indexers applied. Raises FieldError."""
    names = list(sample) if features is None else list(features)
    if unknown := [name for name in names if name not in sample]:
        raise FieldError("no such variable feature", expected=" or ".join(list(sample)[:8]), found=unknown[0])
    found = {name: sample[name] for name in names}
    for name, indexer in (indexers or {}).items():
        if found.get(name) is not None:
            found[name] = apply_indexer(found[name], indexer, name)
    return found


def _checked(shape: tuple[int, ...], indexer: Any, path: str) -> slice | npt.NDArray[np.int64]:
    if not shape:
        raise OptionError("a feature without axes has nothing to pick from", field=path)
    if isinstance(indexer, slice):
        return indexer
    positions = np.asarray(indexer, np.int64)
    if positions.ndim != 1:
        raise OptionError("an indexer is a slice or a list of positions", found=f"{positions.ndim} axes", field=path)
    if len(positions) and (positions.max() >= shape[-1] or positions.min() < -shape[-1]):
        raise PositionError(
            "an indexer is out of bounds",
            expected=f"{-shape[-1]} to {shape[-1] - 1}",
            found=f"{positions.min()} to {positions.max()}",
            field=path,
        )
    return positions


def read_indexed(read: Read, size: int, indexer: Any, path: str) -> AnyArray:
    """What an indexer picks of an array that lies elsewhere: its header is read, then the runs of what is picked."""
    if indexer is None or size <= _GAP_BYTES:
        return apply_indexer(decode_npy(read(0, size)), indexer, path)
    dtype, shape, fortran, start = _header(read(0, _HEAD_BYTES))
    picked = _checked(shape, indexer, path)
    positions = np.arange(shape[-1])[picked] if isinstance(picked, slice) else picked % max(shape[-1], 1)
    runs = _runs(positions, dtype.itemsize)
    rows = math.prod(shape[:-1])
    if fortran or rows * len(runs) > _MOST_RANGES:
        return apply_indexer(decode_npy(read(0, size)), indexer, path)
    return _gathered(read, dtype, shape, start, runs, positions)


def _header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise DecodeError("the .npy header is damaged", found=error, offset=0) from error
    if dtype.hasobject:
        raise DecodeError("an array of Python objects cannot be read in parts", found=dtype)
    return dtype, shape, fortran, stream.tell()


def _runs(positions: npt.NDArray[np.int64], itemsize: int) -> list[tuple[int, int]]:
    """The stretches of an axis that hold these positions: first, and after the last."""
    if not len(positions):
        return []
    ordered = np.unique(positions)
    breaks = np.flatnonzero(np.diff(ordered) * itemsize > _GAP_BYTES) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(ordered, breaks)]


def _gathered(
    read: Read,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    start: int,
    runs: list[tuple[int, int]],
    positions: npt.NDArray[np.int64],
) -> AnyArray:
    rows, length = math.prod(shape[:-1]), shape[-1]
    found = np.empty((rows, len(positions)), dtype)
    for row in range(rows):
        for first, last in runs:
            begin = start + (row * length + first) * dtype.itemsize
            part = np.frombuffer(read(begin, begin + (last - first) * dtype.itemsize), dtype)
            here = (positions >= first) & (positions < last)
            found[row, here] = part[positions[here] - first]
    return found.reshape(*shape[:-1], len(positions))


def map_tar(url: str, index: ShardIndex) -> memoryview:
    """The bytes of a tar, of which hardly any are read yet.

    Raises ObjectNotFoundError, StoreError; StaleIndexError when the index is of another tar.
    """
    mapped = _mapped(url) if store_for(url).info(url).size else memoryview(b"")
    head = bytes(mapped[:BLOCK])
    index.check_object(url, len(mapped), head, crc32(head))
    return mapped


def _mapped(url: str) -> memoryview:
    try:
        # By Arrow, since Python's own maps keep their files open, and of shards there may be more than of those. Arrow
        # maps the whole file, and has the system read ahead what it is asked for: so it is asked for one byte.
        with pa.memory_map(local_path(url)) as file:
            first = file.read_buffer(1)
            return memoryview(pa.foreign_buffer(first.address, file.size(), first))
    except OSError:
        store_for(url).open(url).close()  # says what is wrong in our words
        raise
