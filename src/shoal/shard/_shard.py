"""`Shard`: read samples and raw fields of one open shard, and check them against its index."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.codec._codec import Buffer
from shoal.errors import ChecksumError, FieldError, ShoalError
from shoal.store._base import ObjectReader
from shoal.store._readers import PrefetchedReader

from ._arrow_arrays import as_arrow, text_array, text_edges
from ._byte_reader import ScatterSpec, TarBytes, keep_freed_memory, read_cut
from ._index import (
    Blocks,
    Edges,
    Extents,
    KnownIndex,
    LongExtents,
    ShardIndex,
    damaged,
    edges_from,
    row_extents,
    rows_per_read,
)
from ._read_plan import LOCAL_GAP_BYTES, Run, is_run, plan_reads, whole_spans

__all__ = [
    "Decoders",
    "RawField",
    "Sample",
    "Shard",
    "block_rows",
    "decode_rows",
    "edged_rows",
    "join_raw",
    "whole_rows",
]

Sample = dict[str, Any]
Decoders = Mapping[str, Callable[[bytes], Any]]


_NO_DECODERS: Decoders = {}
_LEADING_ITEMS = 2  # key and URL, which come before the fields
_MAX_SCALAR_ROWS = 8
"""Up to this many rows, reading one by one is faster than as columns."""
_MAX_RUN_BYTES = 1 << 20
"""Size of one read of neighbours: it should still be in the processor's cache when members are cut out."""


class Shard:
    """Reads samples of one shard. Threads may share it.

    ``verify`` checks every byte read against the index: whole blocks where whole blocks are read, single members
    elsewhere.
    """

    def __init__(
        self,
        url: str,
        index: ShardIndex,
        data: TarBytes,
        *,
        verify: bool = True,
        far: PrefetchedReader | None = None,
        known: KnownIndex | None = None,
    ) -> None:
        keep_freed_memory()
        self.url = url
        self.index = index
        self.known = known
        self._far = far
        self._data = data
        self._verify = verify
        self._edges = Edges(0, np.empty((0, 0), np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def close(self) -> None:
        """Give the file back."""
        self._data.close()

    @property
    def version(self) -> str | None:
        """Of the object when it was opened; None where nobody said."""
        return None if self.known is None else self.known.info.version

    @property
    def verify(self) -> bool:
        """Whether what is read is checked against the index."""
        return self._verify

    def checked_blocks(self, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
        """The blocks that hold the tar's bytes ``[start, stop)``, with where each starts and stops.

        Raises ChecksumError, also where only a header or padding is damaged: the bytes are to be used as they are.
        """
        blocks = self.index.blocks
        assert blocks is not None  # noqa: S101 - asked for only where there are some
        first = int(np.searchsorted(blocks.offsets, start, "right")) - 1
        for number in range(first, len(blocks)):
            base, end = (int(at) for at in blocks.offsets[number : number + 2])
            if base >= stop:
                return
            data = self._data.read(base, end)
            if self._verify and (found := crc32(data)) != blocks.crcs[number]:
                self._name_damage(blocks, number, data)
                problem = "a header or padding changed after it was written"
                expected = f"crc32 {int(blocks.crcs[number]):08x} of a block"
                raise ChecksumError(problem, expected=expected, found=f"{found:08x}", shard=self.url, offset=base)
            yield base, end, data

    @property
    def far(self) -> PrefetchedReader | None:
        """What the bytes come through where the shard is far away, and worth reading ahead; None where it is near."""
        return self._far if self._far is not None and self._far.is_far else None

    def over(self, reader: ObjectReader) -> Shard:
        """The same shard, with its bytes from another reader of the same object."""
        other = copy.copy(self)
        other._data = self._data.over(reader)  # noqa: SLF001 - one class
        return other

    def spans(self, fields: Sequence[str] | None = None) -> list[tuple[int, int]]:
        """The row ranges to read one after the other: the index's blocks, or runs of rows where blocks are no use."""
        blocks = self.index.blocks
        if blocks is not None and self._is_whole(fields):
            return [(a, b) for a, b in zip(blocks.rows[:-1].tolist(), blocks.rows[1:].tolist(), strict=True) if b > a]
        step = rows_per_read(self.index, fields)
        return [(start, min(start + step, len(self))) for start in range(0, len(self), step)]

    def read_span(
        self, start: int, stop: int, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """Samples ``[start, stop)``: in one read where they are a block."""
        blocks = self.index.blocks
        if blocks is not None and self._is_whole(fields) and not isinstance(self.index.fields, LongExtents):
            number = int(np.searchsorted(blocks.rows, start))
            if number < len(blocks) and blocks.rows[number] == start and blocks.rows[number + 1] == stop:
                return self._read_block(blocks, number, decoders)
        return self.read_rows(np.arange(start, stop), fields, decoders)

    def _is_whole(self, fields: Sequence[str] | None) -> bool:
        return fields is None or set(fields) >= set(self.index.fields)

    def _read_block(self, blocks: Blocks, number: int, decoders: Decoders) -> list[Sample]:
        base, stop = (int(at) for at in blocks.offsets[number : number + 2])
        first, last = (int(at) for at in blocks.rows[number : number + 2])
        data = self._data.read(base, stop)
        if self._verify and crc32(data) != blocks.crcs[number]:
            self._name_damage(blocks, number, data)
        places, keys = self._edges_of(first, last).counted_from(base, first, last), self.index.key_list(first, last)
        try:
            return block_rows(data, self.url, keys, list(self.index.fields), places, decoders, self._sparse)
        except ShoalError as error:
            raise self._located(error, np.arange(first, last), None, decoders) from error.__cause__

    def _name_damage(self, blocks: Blocks, number: int, data: Buffer) -> None:
        first, last = (int(at) for at in blocks.rows[number : number + 2])
        check_block(self.url, self.index, data, int(blocks.offsets[number]), range(first, last))

    def _edges_of(self, first: int, last: int) -> Edges:
        if not (edges := self._edges).hold(first, last):
            edges = self._edges = edges_from(self.index, first, last)  # of two threads, each has its own
        return edges

    def runs(self, rows: IntArray) -> list[Run] | None:
        """How whole samples are read where they are neighbours and near; None where each is read by itself."""
        fields = self.index.fields
        if not is_run(rows) or not (self._has_near_samples and fields) or isinstance(fields, LongExtents):
            return None
        first, count = int(rows[0]), len(rows)
        edges = self._edges_of(first, first + count)
        start, stop, wanted = edges.span(first, first + count)
        if not 0 < stop - start <= wanted + LOCAL_GAP_BYTES * len(fields) * count:  # much else lies between them
            return None
        step = max(1, _MAX_RUN_BYTES * count // (stop - start))
        spans = [(at, min(at + step, first + count)) for at in range(first, first + count, step)]
        return [Run(*span, *edges.span(*span)[:2]) for span in spans]

    def _read_run(self, run: Run) -> list[Sample]:
        rows, names = slice(run.first, run.last), list(self.index.fields)
        data, keys = self._data.read(run.start, run.stop), self.index.key_list(run.first, run.last)
        places = self._edges_of(run.first, run.last).counted_from(run.start, run.first, run.last)
        samples = block_rows(data, self.url, keys, names, places, _NO_DECODERS, self._sparse)
        if self._verify:
            for name in names:
                check_samples(self.url, self.index, samples, name, rows)
        return samples

    @functools.cached_property
    def presence(self) -> dict[str, bool]:
        """Whether every sample has a field, by field; where fields are very many, not looked into."""
        if isinstance(self.index.fields, LongExtents):
            return dict.fromkeys(self.index.fields, False)
        return {name: not sparse for name, sparse in zip(self.index.fields, self._sparse, strict=True)}

    @functools.cached_property
    def _sparse(self) -> tuple[bool, ...]:
        """For each field, whether some sample lacks it."""
        return tuple(bool((part.offset == 0).any()) for part in self.index.fields.values())

    def read_rows(
        self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
    ) -> list[Sample]:
        """Samples by row, in the order given: only the wanted fields' bytes are read, near ones together."""
        if len(rows) == 0:
            return []
        if len(rows) == 1:
            return [self.read_row(int(rows[0]), fields, decoders)]
        if isinstance(self.index.fields, LongExtents):
            samples = [self._one_row(row, fields) for row in rows.tolist()]
            names = list({name for sample in samples for name in sample})
        elif self._is_whole(fields) and (runs := self.runs(rows)) is not None:
            names, samples = list(self.index.fields), [sample for run in runs for sample in self._read_run(run)]
        elif len(rows) <= _MAX_SCALAR_ROWS and self._has_near_samples and self._is_whole(fields):
            names, samples = list(self.index.fields), [self._one_row(row, None) for row in rows.tolist()]
        else:
            names = [name for name in self.index.fields if fields is None or name in fields]
            samples = self._wide_rows(rows, names)
        try:
            decode_rows(samples, {name: decoders[name] for name in names if name in decoders})
        except ShoalError as error:
            raise self._located(error, rows, fields, decoders) from error.__cause__
        return samples

    def read_row(self, row: int, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> Sample:
        """One sample, without the price of columns."""
        sample = self._one_row(row, fields)
        names = [name for name in itertools.islice(sample, _LEADING_ITEMS, None) if name in decoders]
        try:
            for name in names:
                sample[name] = decoders[name](sample[name])
        except ShoalError as error:
            raise error.at(shard=self.url, key=sample["__key__"]) from error.__cause__
        return sample

    @property
    def is_near(self) -> bool:
        """Whether small reads one after the other cost little: from a file as it lies."""
        return self.far is None and self._data.scatters

    @property
    def _has_near_samples(self) -> bool:
        return self.is_near and self.index.blocks is not None

    def read_each(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """Ranges of the tar, each by a read of its own where it is near. Raises TruncatedError."""
        return self._data.read_many(starts, stops)

    def _wide_rows(self, rows: IntArray, names: list[str]) -> list[Sample]:
        samples = self._gather(rows, names, [self.index.fields[name] for name in names])
        if self._verify:
            for name in names:
                check_samples(self.url, self.index, samples, name, rows)
        return samples

    def _gather(self, rows: IntArray, names: list[str], extents: list[Extents]) -> list[Sample]:
        offsets = [part.offset[rows].astype(np.int64) for part in extents]
        sizes = [part.size[rows].astype(np.int64) for part in extents]
        keys = self.index.keys.take(as_arrow(rows)).to_pylist()
        if self.index.blocks is not None and len(names) == len(self.index.fields) and names:
            return self._gather_whole(keys, names, offsets, sizes)
        return self._gather_scattered(keys, names, offsets, sizes)

    def _gather_whole(
        self, keys: list[str], names: list[str], offsets: list[IntArray], sizes: list[IntArray]
    ) -> list[Sample]:
        """All fields of samples that are runs of neighbours: one read each, from the first member to the last."""
        low, high = whole_spans(offsets, sizes)
        buffers = self._data.read_many(low.tolist(), high.tolist())
        return whole_rows(buffers, self.url, keys, names, [offset - low for offset in offsets], sizes)

    def _gather_scattered(
        self, keys: list[str], names: list[str], offsets: list[IntArray], sizes: list[IntArray]
    ) -> list[Sample]:
        if not names:
            return scattered_rows([], self.url, keys, [], [], [], [])
        plan = plan_reads(np.concatenate(offsets), np.concatenate(sizes))
        buffers = self._data.read_many(plan.starts.tolist(), plan.stops.tolist())
        count = len(names)
        return scattered_rows(
            buffers, self.url, keys, names, np.split(plan.places, count), np.split(plan.within, count), sizes
        )

    def raw_span(self, start: int, stop: int, field: str, into: memoryview | None = None, at: int = 0) -> RawField:
        """One field of samples ``[start, stop)``: in one read where they are a block and have nothing else.

        Then the block's bytes go to ``into``, where that is given, from ``at`` on.
        """
        number = self._block_at(start, stop, field)
        blocks = self.index.blocks
        if number is None or blocks is None:
            return self.raw_rows(np.arange(start, stop), field)
        base, end = (int(at) for at in blocks.offsets[number : number + 2])
        data = self._data.read(base, end) if into is None else into[at : at + end - base]
        if into is not None:
            self._data.read_into(base, [into[at : at + end - base]])
        if self._verify and crc32(data) != blocks.crcs[number]:
            self._name_damage(blocks, number, data)
        part = self.index.fields[field]
        offsets, sizes = part.offset[start:stop].view(np.int64), part.size[start:stop].view(np.int64)
        starts = np.where(offsets > 0, offsets - base, -1) if not self.presence[field] else offsets - base
        keys = self.index.keys.slice(start, stop - start)
        if into is None:
            return RawField(data, starts, sizes, keys, (self.url,))
        return RawField(into, np.where(starts < 0, -1, starts + at), sizes, keys, (self.url,))

    def span_size(self, start: int, stop: int, field: str) -> int | None:
        """How many bytes `raw_span` reads in one go; None where samples are no block or have other fields."""
        number, blocks = self._block_at(start, stop, field), self.index.blocks
        return None if number is None or blocks is None else int(blocks.offsets[number + 1] - blocks.offsets[number])

    def _block_at(self, start: int, stop: int, field: str) -> int | None:
        """The number of the block that is these samples, where they have only this field."""
        blocks = self.index.blocks
        if blocks is None or list(self.index.fields) != [field]:
            return None
        number = int(np.searchsorted(blocks.rows, start))
        is_one = number < len(blocks) and blocks.rows[number] == start and blocks.rows[number + 1] == stop
        return number if is_one else None

    @property
    def scatters(self) -> bool:
        """Whether `raw_cut` saves a copy."""
        return self._data.scatters

    def read_into(self, start: int, parts: Sequence[memoryview]) -> None:
        """Fill these parts with the tar's bytes from ``start`` on, unverified. Raises TruncatedError."""
        self._data.read_into(start, parts)

    def raw_cut(
        self,
        rows: IntArray,
        field: str,
        cuts: ScatterSpec,
        outs: Sequence[memoryview],
        places: IntArray,
        threads: int = 1,
    ) -> RawField | None:
        """One field of these samples without what is taken of it: that goes to the rows ``places`` of ``outs``.

        None where a sample lacks the field, or is too small for it. Up to ``threads`` read at once. Raises
        ChecksumError.
        """
        part = self.index.fields.get(field)
        if part is None:
            return None
        offsets, sizes = part.offset[rows].astype(np.int64), part.size[rows].astype(np.int64)
        if not bool(offsets.all()) or not cuts.fit(sizes):
            return None
        checked = part.crc[rows] if self._verify and part.crc is not None else None
        found = read_cut(self._data, offsets, sizes, cuts, outs, places, checksums=checked is not None, threads=threads)
        if checked is not None:
            for at in np.flatnonzero(np.array(found.crcs, np.uint32) != checked).tolist():
                key = self.index.keys[int(rows[at])].as_py()
                raise damaged(self.url, key, field, int(offsets[at]), int(checked[at]), found.crcs[at])
        return RawField(found.data, found.starts, found.sizes, self.index.keys.take(as_arrow(rows)), (self.url,))

    def raw_rows(self, rows: IntArray, field: str) -> RawField:
        """One field of these samples, in the order given. Raises FieldError when no sample of the shard has it."""
        if field not in self.index.fields:
            raise FieldError("no such field", expected=" or ".join(self.index.fields), found=field, shard=self.url)
        part = self.index.fields[field]
        offsets, sizes = part.offset[rows].astype(np.int64), part.size[rows].astype(np.int64)
        plan = plan_reads(offsets, sizes)
        buffers = self._data.read_many(plan.starts.tolist(), plan.stops.tolist())
        begins = np.concatenate(([0], np.cumsum(plan.stops - plan.starts)))
        starts = np.where(plan.within < 0, -1, begins[plan.places] + plan.within)
        keys = self.index.keys.take(as_arrow(rows))
        found = RawField(buffers[0] if len(buffers) == 1 else b"".join(buffers), starts, sizes, keys, (self.url,))
        if self._verify:
            check_raw(self.url, self.index, found, field, rows)
        return found

    def _located(
        self, error: ShoalError, rows: IntArray, fields: Sequence[str] | None, decoders: Decoders
    ) -> ShoalError:
        """Decode one by one to name the sample that failed."""
        if error.key is not None:
            return error
        for row in rows.tolist():
            raw = self.read_rows(np.array([row]), fields)
            try:
                decode_rows(raw, decoders)
            except ShoalError as found:
                return found.at(shard=self.url, key=raw[0]["__key__"])
        return error.at(shard=self.url)

    def read_part(self, row: int, field: str, start: int, stop: int) -> bytes:
        """Some bytes of one member, not compared with its checksum, which is over all of them."""
        part = self.index.fields[field]
        first, size = int(part.offset[row]), int(part.size[row])
        return self._data.read(first + min(start, size), first + min(stop, size))

    def _one_row(self, row: int, wanted: Sequence[str] | None) -> Sample:
        """One sample, member by member: for one row this is several times faster than columns of length one."""
        sample: Sample = {"__key__": self.key(row), "__url__": self.url}
        members = row_extents(self.index.fields, row)
        if wanted is not None:
            members = [member for member in members if member[0] in wanted]
        if not members:
            return sample
        together = self.index.blocks is not None and wanted is None
        low = min([start for _, start, _, _ in members])
        data = self._data.read(low, max([start + size for _, start, size, _ in members])) if together else b""
        for name, start, size, crc in members:
            value = data[start - low : start - low + size] if together else self._data.read(start, start + size)
            if self._verify and crc is not None and crc32(value) != crc:
                raise damaged(self.url, sample["__key__"], name, start, crc, crc32(value))
            sample[name] = value
        return sample

    def key(self, row: int) -> str:
        """The key of one sample."""
        edges, texts = self._key_texts
        return str(texts[edges.item(row) : edges.item(row + 1)], "utf-8")

    @functools.cached_property
    def _key_texts(self) -> tuple[npt.NDArray[np.signedinteger[Any]], memoryview]:
        return text_edges(self.index.keys)


# A sample is a dict: ``__key__``, ``__url__``, then its fields. The functions that build them are made once per set of
# fields, as dataclasses makes ``__init__``: one list comprehension without an inner loop, several times faster than a
# loop over the fields of each sample.
def block_rows(
    data: bytes,
    url: str,
    keys: list[str],
    fields: Sequence[str],
    edges: list[list[int]],
    decoders: Decoders,
    sparse: tuple[bool, ...],
) -> list[Sample]:
    """Samples whose members all lie in ``data``: ``edges`` has two lists for each field, where members start and stop.

    A negative start is a missing field; ``sparse`` says of which fields there may be such.
    """
    decoded = tuple([field in decoders for field in fields])
    build = _block_builder(tuple(fields), sparse, decoded)
    return build(data, url, keys, edges, [decoders[field] for field in itertools.compress(fields, decoded)])


def whole_rows(
    buffers: list[bytes],
    url: str,
    keys: list[str],
    fields: Sequence[str],
    starts: list[IntArray],
    sizes: list[IntArray],
) -> list[Sample]:
    """Samples with a buffer each, in which their members lie at ``starts``; a negative start is a missing field."""
    sparse = tuple(bool((start < 0).any()) for start in starts)
    edges = [column.tolist() for start, size in zip(starts, sizes, strict=True) for column in (start, start + size)]
    return edged_rows(buffers, url, keys, fields, edges, sparse)


def edged_rows(
    buffers: list[bytes],
    url: str,
    keys: list[str],
    fields: Sequence[str],
    edges: list[list[int]],
    sparse: tuple[bool, ...],
) -> list[Sample]:
    """Samples with a buffer each: ``edges`` has two lists for each field, where members start and stop in the buffers.

    A negative start is a missing field; ``sparse`` says of which fields there may be such.
    """
    return _whole_builder(tuple(fields), sparse)(keys, [buffers, *edges], url)


def scattered_rows(
    buffers: list[bytes],
    url: str,
    keys: list[str],
    fields: Sequence[str],
    places: list[IntArray],
    starts: list[IntArray],
    sizes: list[IntArray],
) -> list[Sample]:
    """Samples whose members lie each in ``buffers[place]``; a negative start is a missing field."""
    sparse = tuple(bool((start < 0).any()) for start in starts)
    build = _scattered_builder(tuple(fields), sparse)
    columns = [
        column.tolist()
        for place, start, size in zip(places, starts, sizes, strict=True)
        for column in (place, start, start + size)
    ]
    return build(buffers, url, keys, columns)


def decode_rows(rows: list[Sample], decoders: Decoders) -> None:
    """Decode fields in place."""
    for field, decode in decoders.items():
        for row in rows:
            if field in row:
                row[field] = decode(row[field])


@functools.lru_cache(maxsize=256)
def _block_builder(
    fields: tuple[str, ...], sparse: tuple[bool, ...], decoded: tuple[bool, ...]
) -> Callable[..., list[Sample]]:
    numbers = iter(range(len(fields)))
    values = [f"d[{next(numbers)}](buf[a{i}:b{i}])" if decoded[i] else f"buf[a{i}:b{i}]" for i in range(len(fields))]
    columns = [f"a{i}, b{i}" for i in range(len(fields))]
    return _compile_builder("buf, url, keys, columns, d", fields, sparse, columns, values)


@functools.lru_cache(maxsize=256)
def _whole_builder(fields: tuple[str, ...], sparse: tuple[bool, ...]) -> Callable[..., list[Sample]]:
    values = [f"buf[a{i}:b{i}]" for i in range(len(fields))]
    columns = ["buf", *(f"a{i}, b{i}" for i in range(len(fields)))]
    return _compile_builder("keys, columns, url", fields, sparse, columns, values)


@functools.lru_cache(maxsize=256)
def _scattered_builder(fields: tuple[str, ...], sparse: tuple[bool, ...]) -> Callable[..., list[Sample]]:
    values = [f"bufs[p{i}][a{i}:b{i}]" for i in range(len(fields))]
    columns = [f"p{i}, a{i}, b{i}" for i in range(len(fields))]
    return _compile_builder("bufs, url, keys, columns", fields, sparse, columns, values)


def _compile_builder(
    arguments: str, fields: tuple[str, ...], sparse: tuple[bool, ...], columns: list[str], values: list[str]
) -> Callable[..., list[Sample]]:
    """Field names enter the source only through ``repr``, so no name can become code."""
    always = "".join(f", {field!r}: {values[i]}" for i, field in enumerate(fields) if not sparse[i])
    row = f"{{'__key__': k, '__url__': url{always}}}"
    loop = f"for k, {', '.join(columns)} in zip(keys, *columns)" if columns else "for k in keys"
    if any(sparse):
        maybe = "".join(
            f"\n        if a{i} >= 0: row[{field!r}] = {values[i]}" for i, field in enumerate(fields) if sparse[i]
        )
        body = f"    {loop}:\n        row = {row}{maybe}\n        out.append(row)\n"
        source = f"def build({arguments}):\n    out = []\n{body}    return out"
    else:
        source = f"def build({arguments}):\n    return [{row} {loop}]"
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - the text above, with names quoted
    build: Callable[..., list[Sample]] = scope["build"]
    return build


def check_samples(url: str, index: ShardIndex, samples: list[Sample], name: str, rows: IntArray | slice) -> None:
    """One field of samples that are these rows. Raises ChecksumError."""
    part = index.fields[name]
    if part.crc is None:
        return
    expected = part.crc[rows].tolist()
    try:
        if list(map(crc32, map(operator.itemgetter(name), samples))) == expected:
            return
    except KeyError:  # not every sample has the field
        pass
    offsets = part.offset[rows].tolist()
    for sample, wanted, offset in zip(samples, expected, offsets, strict=True):
        data: Any = sample.get(name)
        if data is not None and (found := crc32(data)) != wanted:
            raise damaged(url, sample["__key__"], name, offset, wanted, found)


def check_raw(url: str, index: ShardIndex, found: RawField, name: str, rows: IntArray) -> None:
    """The bytes of one field of these rows. Raises ChecksumError."""
    part = index.fields[name]
    if part.crc is None:
        return
    view, ends = memoryview(found.data), (found.starts + found.sizes).tolist()
    crcs = [crc32(view[start:end]) if start >= 0 else 0 for start, end in zip(found.starts.tolist(), ends, strict=True)]
    for row, crc, expected in zip(rows.tolist(), crcs, part.crc[rows].tolist(), strict=True):
        if crc != expected:
            raise damaged(url, index.keys[row].as_py(), name, int(part.offset[row]), expected, crc)


def check_block(url: str, index: ShardIndex, data: Buffer, base: int, rows: range) -> None:
    """The members of a block whose own checksum is wrong. When all of them are right, only headers or padding differ.

    Raises ChecksumError.
    """
    view = memoryview(data)
    for name, part in index.fields.items():
        if part.crc is None:
            continue
        for row in rows:
            start, size = int(part.offset[row]), int(part.size[row])
            found = crc32(view[start - base : start - base + size])
            if start and found != int(part.crc[row]):
                raise damaged(url, index.keys[row].as_py(), name, start, int(part.crc[row]), found)


@dataclass(frozen=True, slots=True)
class RawField:
    """The values of one field: sample ``i`` has ``data[starts[i] : starts[i] + sizes[i]]``.

    A negative start means that it has none.
    """

    data: Buffer
    starts: IntArray
    sizes: IntArray
    key_array: pa.StringArray | Callable[[], pa.StringArray]
    """The samples' keys, or what makes them: few ask for them."""
    urls: tuple[str, ...]
    """The shards the samples are of."""
    shard_numbers: IntArray | None = None
    """For each sample which of them; None where all are of the first."""

    def __len__(self) -> int:
        return len(self.starts)

    def keys(self, rows: IntArray | slice = slice(None)) -> list[str]:
        """The keys of these samples."""
        every = self.all_keys()
        keys: list[str] = (every[rows] if isinstance(rows, slice) else every.take(as_arrow(rows))).to_pylist()
        return keys

    def all_keys(self) -> pa.StringArray:
        """The keys of all samples, as Arrow has them."""
        return self.key_array() if callable(self.key_array) else self.key_array

    def url(self, row: int) -> str:
        """The shard one sample is of."""
        return self.urls[0 if self.shard_numbers is None else int(self.shard_numbers[row])]

    def take(self, rows: IntArray) -> RawField:
        """Some of the samples, over the same bytes."""
        numbers = None if self.shard_numbers is None else self.shard_numbers[rows]
        keys = self.all_keys().take(as_arrow(rows))
        return RawField(self.data, self.starts[rows], self.sizes[rows], keys, self.urls, numbers)


def join_raw(parts: Sequence[RawField]) -> RawField:
    """Several as one. Their bytes are copied, unless all are over the same: so join what is small."""
    if not parts:
        none = np.empty(0, np.int64)
        return RawField(b"", none, none, text_array([]), ())
    if len(parts) == 1:
        return parts[0]
    data, starts = parts[0].data, [part.starts for part in parts]
    if any(part.data is not data for part in parts):
        moved = np.cumsum([0, *(len(part.data) for part in parts)])
        starts = [
            np.where(part.starts < 0, -1, part.starts + offset) for part, offset in zip(parts, moved, strict=False)
        ]
        data = b"".join(part.data for part in parts)
    return RawField(
        data,
        np.concatenate(starts),
        np.concatenate([part.sizes for part in parts]),
        pa.concat_arrays([part.all_keys() for part in parts]),
        *_shards_of(parts),
    )


def _shards_of(parts: Sequence[RawField]) -> tuple[tuple[str, ...], IntArray | None]:
    urls = tuple(dict.fromkeys(url for part in parts for url in part.urls))
    if len(urls) == 1:
        return urls, None
    return urls, np.concatenate([_numbers(part, urls) for part in parts])


def _numbers(part: RawField, urls: tuple[str, ...]) -> IntArray:
    among = np.array([urls.index(url) for url in part.urls], np.int64)
    return among[np.zeros(len(part), np.int64) if part.shard_numbers is None else part.shard_numbers]
