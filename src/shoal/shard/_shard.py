"""One open shard: an index and the bytes it speaks of."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.codec import Buffer
from shoal.errors import ChecksumError, FieldError, ShoalError
from shoal.shard._index import (
    Blocks,
    Edges,
    Extents,
    KnownIndex,
    LongExtents,
    ShardIndex,
    as_arrow,
    edges_from,
    text_edges,
)
from shoal.shard._tar import crc32, keep_freed_memory
from shoal.store import HeldReader, ObjectReader

from ._bytes import TarBytes
from ._check import check_block, check_raw, check_samples
from ._cut import Cuts, read_cut
from ._members import damaged, members_of, rows_per_read
from ._plan import GAP_BYTES, Run, is_run, plan_reads, whole_spans
from ._raw import RawField
from ._rows import Decoders, Sample, block_rows, decode_rows, scattered_rows, whole_rows

__all__ = ["Shard"]

Int64 = npt.NDArray[np.int64]
_NO_DECODERS: Decoders = {}
_OWN_FACTS = 2  # key and URL, which come before the fields
_FEW = 8
"""Rows that are quicker read one by one than as columns."""
_AT_ONCE = 1 << 20
"""Of neighbours read in one go: what is cut out of it should still be in the processor's cache."""


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
        far: HeldReader | None = None,
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
    def far(self) -> HeldReader | None:
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

    def runs(self, rows: Int64) -> list[Run] | None:
        """How whole samples are read where they are neighbours and near; None where each is read by itself."""
        fields = self.index.fields
        if not is_run(rows) or not (self._has_near_samples and fields) or isinstance(fields, LongExtents):
            return None
        first, count = int(rows[0]), len(rows)
        edges = self._edges_of(first, first + count)
        start, stop, wanted = edges.span(first, first + count)
        if not 0 < stop - start <= wanted + GAP_BYTES * len(fields) * count:  # much else lies between them
            return None
        step = max(1, _AT_ONCE * count // (stop - start))
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
        self, rows: Int64, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS
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
        elif len(rows) <= _FEW and self._has_near_samples and self._is_whole(fields):
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
        names = [name for name in itertools.islice(sample, _OWN_FACTS, None) if name in decoders]
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

    def _wide_rows(self, rows: Int64, names: list[str]) -> list[Sample]:
        samples = self._gather(rows, names, [self.index.fields[name] for name in names])
        if self._verify:
            for name in names:
                check_samples(self.url, self.index, samples, name, rows)
        return samples

    def _gather(self, rows: Int64, names: list[str], extents: list[Extents]) -> list[Sample]:
        offsets = [part.offset[rows].astype(np.int64) for part in extents]
        sizes = [part.size[rows].astype(np.int64) for part in extents]
        keys = self.index.keys.take(as_arrow(rows)).to_pylist()
        if self.index.blocks is not None and len(names) == len(self.index.fields) and names:
            return self._gather_whole(keys, names, offsets, sizes)
        return self._gather_scattered(keys, names, offsets, sizes)

    def _gather_whole(
        self, keys: list[str], names: list[str], offsets: list[Int64], sizes: list[Int64]
    ) -> list[Sample]:
        """All fields of samples that are runs of neighbours: one read each, from the first member to the last."""
        low, high = whole_spans(offsets, sizes)
        buffers = self._data.read_many(low.tolist(), high.tolist())
        return whole_rows(buffers, self.url, keys, names, [offset - low for offset in offsets], sizes)

    def _gather_scattered(
        self, keys: list[str], names: list[str], offsets: list[Int64], sizes: list[Int64]
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
        self, rows: Int64, field: str, cuts: Cuts, outs: Sequence[memoryview], places: Int64, threads: int = 1
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

    def raw_rows(self, rows: Int64, field: str) -> RawField:
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

    def _located(self, error: ShoalError, rows: Int64, fields: Sequence[str] | None, decoders: Decoders) -> ShoalError:
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
        members = members_of(self.index.fields, row)
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
