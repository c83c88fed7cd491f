"""Read small numbers of samples from many shards, as a shuffled batch does.

For a few samples, planning reads and checking them as columns takes longer than reading them, so each is read alone.
The functions return None for whatever is unusual; the caller then reads shard by shard, which finds and reports errors.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import ShoalError

from ._arrow_arrays import text_array
from ._index import LongExtents
from ._read_plan import whole_spans
from ._shard import Decoders, RawField, Sample, Shard, decode_rows, whole_rows

__all__ = ["SourceExtents", "few_raw", "few_samples", "is_few"]

_SMALL_READ_MAX_SAMPLES = 64
"""Samples of a shard, on average, up to which this is quicker."""
_MAX_EXTENTS_BYTES = 128 << 20
_MEMBER_BYTES = 20
"""Bytes that a member takes."""


@dataclass(frozen=True, slots=True)
class _Selection:
    """Samples by shard: those of ``shards[i]`` are ``rows[edges[i] : edges[i + 1]]``."""

    rows: IntArray
    """Numbers in the source."""
    own: IntArray
    """Numbers in their shards."""
    back: IntArray
    """Where each sample that was asked for is among them."""
    shards: list[Shard]
    edges: list[int]

    @property
    def verify(self) -> bool:
        return self.shards[0].verify

    def read(self, starts: IntArray, stops: IntArray) -> list[bytes]:
        """A range for each sample."""
        begins, ends, found = starts.tolist(), stops.tolist(), []
        for shard, (first, last) in zip(self.shards, itertools.pairwise(self.edges), strict=True):
            found += shard.read_each(begins[first:last], ends[first:last])
        return found

    @property
    def numbers(self) -> IntArray:
        """Which of the shards each sample is of."""
        return np.repeat(np.arange(len(self.shards)), np.diff(self.edges))

    def keys(self) -> list[str]:
        """The keys of the samples."""
        keys, own = [shard.index.keys for shard in self.shards], self.own.tolist()
        spans = zip(keys, itertools.pairwise(self.edges), strict=True)
        return [every[row].as_py() for every, (first, last) in spans for row in own[first:last]]


def is_few(rows: IntArray, shards: int) -> bool:
    """Whether these samples of so many shards are better read each by itself: few of each, and not neighbours."""
    return (
        shards > 1
        and len(rows) <= _SMALL_READ_MAX_SAMPLES * shards
        and 2 * int((rows[1:] - rows[:-1] == 1).sum()) <= len(rows)
    )


def few_raw(
    flat: SourceExtents, shard_at: Callable[[int], Shard], starts: IntArray, rows: IntArray, field: str
) -> RawField | None:
    """One field of these samples, of shards that begin at ``starts``, in one buffer and in this order."""
    places = _select(flat, shard_at, starts, rows)
    part = None if places is None else flat.fields.get(field)
    if places is None or part is None:
        return None
    offsets, sizes = part.offset[places.rows], part.size[places.rows]
    if not offsets.all():
        return None
    found = places.read(offsets, offsets + sizes)
    if places.verify and not _match_checksums(found, part.crc[places.rows]):
        return None
    data, sizes = b"".join(map(found.__getitem__, places.back.tolist())), sizes[places.back]
    keys, urls = functools.partial(_keys, places), tuple(shard.url for shard in places.shards)
    return RawField(data, np.cumsum(sizes) - sizes, sizes, keys, urls, places.numbers[places.back])


def _keys(places: _Selection) -> pa.StringArray:
    return text_array(list(map(places.keys().__getitem__, places.back.tolist())))


def few_samples(
    flat: SourceExtents, shard_at: Callable[[int], Shard], starts: IntArray, rows: IntArray, decoders: Decoders
) -> list[Sample] | None:
    """These samples with all their fields, of shards that begin at ``starts``, in this order."""
    places = _select(flat, shard_at, starts, rows)
    if places is None:
        return None
    parts = list(flat.fields.values())
    offsets, sizes = [part.offset[places.rows] for part in parts], [part.size[places.rows] for part in parts]
    low, high = whole_spans(offsets, sizes)
    if not high.all():  # a sample without any field
        return None
    buffers, keys = places.read(low, high), places.keys()
    samples = whole_rows(buffers, "", keys, list(flat.fields), [offset - low for offset in offsets], sizes)
    for sample, number in zip(samples, places.numbers.tolist(), strict=True):
        sample["__url__"] = places.shards[number].url
    if not _checked_and_decoded(samples, flat, places, decoders):
        return None
    return list(map(samples.__getitem__, places.back.tolist()))


def _checked_and_decoded(samples: list[Sample], flat: SourceExtents, places: _Selection, decoders: Decoders) -> bool:
    for name, part in flat.fields.items():
        values = [sample.get(name, b"") for sample in samples]
        if places.verify and not _match_checksums(values, part.crc[places.rows]):
            return False
    try:
        decode_rows(samples, {name: decoders[name] for name in flat.fields if name in decoders})
    except ShoalError:
        return False
    return True


def _match_checksums(values: list[bytes], crcs: npt.NDArray[np.uint32]) -> bool:
    return bool(list(map(crc32, values)) == crcs.tolist())


def _select(
    flat: SourceExtents, shard_at: Callable[[int], Shard], starts: IntArray, rows: IntArray
) -> _Selection | None:
    numbers = np.searchsorted(starts, rows, "right") - 1
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(rows)]
    if not is_few(rows, len(edges) - 1):
        return None
    which = ordered[edges[:-1]].tolist()
    shards = [shard_at(number) for number in which]
    if not flat.meet(which, shards):
        return None
    back = np.empty(len(rows), np.int64)
    back[order] = np.arange(len(rows))
    return _Selection(rows[order], rows[order] - starts[ordered], back, shards, edges)


# Looking into many indexes for a sample or two of each takes longer than reading the samples. So their extents are
# copied once, as shards are opened, into columns over all samples of the source.
@dataclass(frozen=True, slots=True)
class FieldExtents:
    """One field of all samples; what is said of shards that were not met yet means nothing."""

    offset: IntArray
    """0 where a sample lacks the field."""
    size: IntArray
    crc: npt.NDArray[np.uint32]


class SourceExtents:
    """The extents of shards that begin at ``starts``, filled as they are met. Threads may share it.

    Memory is taken for shards that were met. ``fields`` are those of the first of them.
    """

    def __init__(self, starts: IntArray) -> None:
        self._starts = starts
        self._met: dict[int, str] = {}
        """By number, the version of the object whose index was copied."""
        self._unlike: set[int] = set()
        self._lock = threading.Lock()
        self.fields: dict[str, FieldExtents] = {}

    def meet(self, numbers: Sequence[int], shards: Sequence[Shard]) -> bool:
        """Whether these shards are in it now: not those that are far, or packed, or have other fields than the rest."""
        met = self._met
        if all(met.get(number, "") == shard.version for number, shard in zip(numbers, shards, strict=True)):
            return True
        with self._lock:
            return all(self._fill(number, shard) for number, shard in zip(numbers, shards, strict=True))

    def _fill(self, number: int, shard: Shard) -> bool:
        if self._met.get(number, "") == shard.version:
            return True
        own = slice(int(self._starts[number]), int(self._starts[number + 1]))
        if number in self._unlike or len(shard) != own.stop - own.start or not self._fits(shard):
            self._unlike.add(number)
            return False
        for name, extents in shard.index.fields.items():
            part = self.fields[name]
            part.offset[own], part.size[own] = extents.offset, extents.size
            if extents.crc is not None:
                part.crc[own] = extents.crc
        self._met[number] = shard.version or ""
        return True

    def _fits(self, shard: Shard) -> bool:
        index = shard.index
        if not shard.version or not shard.is_near or index.blocks is None or isinstance(index.fields, LongExtents):
            return False
        if not self.fields and _MEMBER_BYTES * len(index.fields) * int(self._starts[-1]) <= _MAX_EXTENTS_BYTES:
            self.fields = {name: _empty(int(self._starts[-1])) for name in index.fields}
        known = not shard.verify or all(part.crc is not None for part in index.fields.values())
        return known and list(index.fields) == list(self.fields)


def _empty(count: int) -> FieldExtents:
    return FieldExtents(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint32))
