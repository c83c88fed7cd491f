"""Read samples and columns: plan the reads, fetch the bytes, verify them, and cut samples or columns from them.

`read_samples` and `read_columns` take `Extents`; `read_row` is the short way for one sample. A fetched range may be a
`bytes`, or lie in a larger buffer, as shards that are kept in memory do.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.codec._codec import Buffer
from shoal.errors import ShoalError
from shoal.store._concurrency import each_done

from ._byte_reader import ScatterSpec, TarBytes
from ._extents import Extents, RowLabels, shard_extents
from ._read_plan import LOCAL_GAP_BYTES, ReadPlan, plan_members, plan_reads
from ._shard import Decoders, Sample, Shard
from ._table import RowMembers

__all__ = [
    "BytesColumn",
    "Fetched",
    "build_samples",
    "columns_of",
    "compare_blocks",
    "crc_of",
    "cut",
    "decode_samples",
    "fetch",
    "read_columns",
    "read_row",
    "read_samples",
    "read_scattered",
    "samples_of",
    "verify",
]

_MAX_GENERATED_FIELDS = 64
_MAX_SHARDS_AT_ONCE = 32
"""Of remote shards: their requests for one batch are under way together."""
_MAX_SCATTER_BYTES = 512 << 10
"""Of one scattered read: still in the processor's cache when the checksums are computed."""
_MIN_THREAD_READ_BYTES = 4 << 20
"""Below this, starting a thread costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of some rows."""

    buffers: Sequence[Buffer]
    ranges: IntArray
    """For each row, or for each field and row, the buffer that it is in."""
    bases: IntArray
    """For each row, or for each field and row, the offset in the tar at which its buffer begins."""
    verified: bool = False
    """Whether these bytes were compared with their checksums before."""
    has_empty: bool = False
    """Whether some members are in no buffer, because they are empty."""
    damaged_block: int | None = None
    """The first block that differs from its checksum, where whole blocks were read."""


def read_samples(extents: Extents) -> list[Sample]:
    """Return the samples of these rows, verified but not decoded.

    Raises ChecksumError, TruncatedError and the errors of the store.
    """
    return samples_of(extents, fetch(extents, plan_reads(extents)))


def samples_of(extents: Extents, fetched: Fetched) -> list[Sample]:
    """Return the samples of rows that were fetched, verified."""
    samples = cut(extents, fetched)
    if not fetched.verified:
        verify(
            extents,
            lambda line: map(crc32, _values(samples, extents.fields[line], extents.sparse[line])),
            fetched.damaged_block,
        )
    return samples


def _values(samples: list[Sample], field: str, is_sparse: bool) -> Iterable[bytes]:
    return [sample.get(field, b"") for sample in samples] if is_sparse else map(operator.itemgetter(field), samples)


def fetch(extents: Extents, plan: ReadPlan, into: memoryview | None = None) -> Fetched:
    """Read the ranges of a plan; whole blocks are verified. With ``into``, they are read into that, one after another.

    Raises TruncatedError and the errors of the store.
    """
    starts, stops = plan.starts.tolist(), plan.stops.tolist()
    buffers: list[Buffer] = []
    if into is not None:
        for number, start, stop in zip(plan.shards.tolist(), starts, stops, strict=True):
            part, into = into[: stop - start], into[stop - start :]
            shard = extents.first_shard if extents.shard_numbers is None else extents.shards[number]
            shard.data.read_into(start, [part])
            buffers.append(part)
    elif starts and extents.shard_numbers is None:
        data = extents.first_shard.data
        buffers += data.read_many(starts, stops) if len(starts) > 1 else map(data.read, starts, stops)
    elif starts:
        inner = (plan.shards[1:] != plan.shards[:-1]).nonzero()[0] + 1
        edges = itertools.pairwise([0, *inner.tolist(), len(starts)])
        parts = [(extents.shards[int(plan.shards[first])], slice(first, last)) for first, last in edges]
        if any(shard.far is not None and not shard.far.holds_ranges for shard, _ in parts):
            reads = [functools.partial(shard.data.read_many, starts[own], stops[own]) for shard, own in parts]
            found = dict(each_done(operator.call, reads, _MAX_SHARDS_AT_ONCE))
            buffers += itertools.chain.from_iterable(map(found.__getitem__, reads))
        else:
            for shard, own in parts:
                buffers += shard.data.read_many(starts[own], stops[own])
    if not buffers:
        return Fetched([b""], plan.ranges, np.zeros(1, np.int64), has_empty=True)
    bases = plan.starts if len(buffers) == 1 else plan.starts[plan.ranges]
    verified, damaged_block = compare_blocks(extents, plan.blocks, map(crc32, buffers))
    return Fetched(buffers, plan.ranges, bases, verified, plan.has_empty, damaged_block)


def compare_blocks(extents: Extents, numbers: range | None, crcs: Iterable[int]) -> tuple[bool, int | None]:
    """Compare the crc32 of whole blocks with the index; return whether all are right, and the first that is not.

    `verify` then compares the members one by one, so that the error names the damaged one.
    """
    blocks = extents.first_shard.blocks
    if extents.crcs is None or numbers is None or blocks is None:
        return False, None
    expected: list[int] = blocks.crcs[numbers.start : numbers.stop].tolist()
    found = list(crcs)
    if found == expected:
        return True, None
    return False, numbers.start + list(map(operator.ne, found, expected)).index(True)


def verify(extents: Extents, crcs: Callable[[int], Iterable[int]], damaged_block: int | None = None) -> None:
    """Compare members with the index; ``crcs`` gives the crc32 of those of one field, by its place in ``fields``.

    Raises ChecksumError, also for a ``damaged_block`` of which all members are right.
    """
    for line, expected in enumerate([] if extents.crcs is None else extents.crcs.tolist()):
        found = list(crcs(line))
        if found != expected:
            for row, (wanted, crc) in enumerate(zip(expected, found, strict=True)):
                if crc != wanted >= 0:
                    field, offset = extents.fields[line], int(extents.starts[line, row])
                    raise extents.shard(row).damaged(extents.key(row), field, offset, wanted, crc)
    if damaged_block is not None:
        raise extents.first_shard.damaged_block(damaged_block)


def cut(extents: Extents, fetched: Fetched) -> list[Sample]:
    """Return the samples of these rows, not verified."""
    starts = extents.starts - fetched.bases
    stops = extents.stops - fetched.bases
    if any(extents.sparse):
        starts[extents.starts < 0] = -1
    if fetched.has_empty:
        np.maximum(starts, 0, out=starts, where=extents.starts >= 0)
        np.maximum(stops, 0, out=stops)  # a negative one would count from the end of its buffer
    buffers: Any = fetched.buffers
    if fetched.ranges.ndim == 2:
        buffers = [list(map(buffers.__getitem__, line)) for line in fetched.ranges.tolist()]
    elif len(buffers) == 1:
        buffers = buffers[0]
    else:
        buffers = list(map(buffers.__getitem__, fetched.ranges.tolist()))
    by_member = fetched.ranges.ndim == 2
    urls = extents.first_shard.url if extents.shard_numbers is None else extents.urls()
    return build_samples(extents.fields, extents.sparse, extents.keys(), urls, buffers, starts, stops, by_member)


def decode_samples(samples: list[Sample], fields: Sequence[str], decoders: Decoders) -> None:
    """Decode fields in place; an error names the sample."""
    for field in fields:
        if field not in decoders:
            continue
        decode = decoders[field]
        for sample in samples:
            if field in sample:
                try:
                    sample[field] = decode(sample[field])
                except ShoalError as error:
                    raise error.at(shard=sample["__url__"], key=sample["__key__"]) from error.__cause__


def build_samples(
    fields: tuple[str, ...],
    sparse: tuple[bool, ...],
    keys: Sequence[str],
    url: str | Sequence[str],
    buffer: Any,
    starts: IntArray,
    stops: IntArray,
    by_member: bool = False,
) -> list[Sample]:
    """Return samples as dicts: ``__key__``, ``__url__``, then the fields, cut out of buffers.

    ``url`` is one for all rows, or one for each. ``buffer`` is one for all rows, a list with one for each, or, with
    ``by_member``, such a list for each field. A negative start is a missing field; ``sparse`` says of which fields
    there may be such.
    """
    varying = "m" if by_member else "r" if isinstance(buffer, list) else ""
    if len(fields) > _MAX_GENERATED_FIELDS:
        return _build_wide(fields, keys, url, buffer, starts.T.tolist(), stops.T.tolist(), varying)
    columns: list[Any] = [] if isinstance(url, str) else [url]
    columns += buffer if by_member else [buffer] if varying else []
    columns += itertools.chain.from_iterable(zip(starts.tolist(), stops.tolist(), strict=True))
    build = _builder(fields, sparse, varying, isinstance(url, str))
    return build(keys, columns, url, buffer)


def _build_wide(
    fields: tuple[str, ...],
    keys: Sequence[str],
    url: str | Sequence[str],
    buffer: Any,
    starts: list[list[int]],
    stops: list[list[int]],
    varying: str,
) -> list[Sample]:
    """Build samples of very many fields with a loop over the fields."""
    urls = itertools.repeat(url) if isinstance(url, str) else url
    rows = (
        zip(*buffer, strict=True)
        if varying == "m"
        else map(itertools.repeat, buffer if varying else [buffer] * len(keys))
    )
    samples = []
    for key, own, line, begin, end in zip(keys, urls, rows, starts, stops, strict=False):
        members = zip(fields, line, begin, end, strict=False)
        samples.append({"__key__": key, "__url__": own, **{name: buf[a:b] for name, buf, a, b in members if a >= 0}})
    return samples


@functools.lru_cache(maxsize=256)
def _builder(
    fields: tuple[str, ...], sparse: tuple[bool, ...], varying: str, one_url: bool
) -> Callable[..., list[Sample]]:
    """Return a function that builds samples from keys and columns: URLs, buffers, starts and stops.

    It is generated once per set of fields, as dataclasses generates ``__init__``: one list comprehension without an
    inner loop is several times faster. Field names enter the source only through ``repr``, so no name becomes code.
    """
    numbers = range(len(fields))
    buffers = [f"buf{i}" for i in numbers] if varying == "m" else ["buf"] if varying else []
    names = ["k", *([] if one_url else ["u"]), *buffers, *(f"{edge}{i}" for i in numbers for edge in "ab")]
    values = [f"buf{i if varying == 'm' else ''}[a{i}:b{i}]" for i in numbers]
    always = "".join(f", {field!r}: {values[i]}" for i, field in enumerate(fields) if not sparse[i])
    row = f"{{'__key__': k, '__url__': u{always}}}"
    loop = f"for {', '.join(names)} in zip(keys, *columns)" if len(names) > 1 else "for k in keys"
    if any(sparse):
        maybe = "".join(
            f"\n        if a{i} >= 0: row[{field!r}] = {values[i]}" for i, field in enumerate(fields) if sparse[i]
        )
        body = f"    {loop}:\n        row = {row}{maybe}\n        out.append(row)\n"
        source = f"def build(keys, columns, u, buf):\n    out = []\n{body}    return out"
    else:
        source = f"def build(keys, columns, u, buf):\n    return [{row} {loop}]"
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - the text above, with names quoted
    build: Callable[..., list[Sample]] = scope["build"]
    return build


def read_row(shard: Shard, found: RowMembers, fields: Sequence[str] | None = None) -> Sample:
    """Return one sample, verified but not decoded: for one row this is several times faster than arrays of length one.

    It reads the ranges that `plan_reads` gives for the row by itself.
    """
    sample: Sample = {"__key__": found.key, "__url__": shard.url}
    members = found.members
    if fields is not None:
        members = [member for member in members if member[0] in fields]
    if not members:
        return sample
    low = high = members[0][1]
    most = 0
    for _, start, size, _ in members:
        low = start if start < low else low  # noqa: FURB136 - min takes twice as long
        high = start + size if start + size > high else high  # noqa: FURB136
        most += size + LOCAL_GAP_BYTES
    together = high - low <= most
    if not together and not shard.is_near:
        return read_samples(shard_extents(shard, np.array([found.row]), fields))[0]
    data = shard.data.read(low, high) if together and low < high else b""
    for name, start, size, crc in members:
        own = start - low
        value = data[own : own + size] if together or not size else shard.data.read(start, start + size)
        if shard.verify and crc is not None and crc32(value) != crc:
            raise shard.damaged(found.key, name, start, crc, crc32(value))
        sample[name] = value
    return sample


class BytesColumn(Sequence[bytes]):
    """One field of several samples, undecoded: a sequence of ``bytes`` over one buffer.

    An item becomes ``bytes`` when it is accessed. ``buffer`` and ``offsets`` hold all of them one after the other, as
    Arrow does. Read-only; a slice refers to the same buffer.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/column/a-%06d.tar") as writer:
        ...     for number in range(4):
        ...         writer.write({"txt": f"text {number}"})
        >>> batch = next(iter(shoal.DataLoader(shoal.Dataset("memory://doc/column", decode=False), batch_size=3)))
        >>> column = batch["txt"]
        >>> column[0], column[-1], len(column), column == [b"text 0", b"text 1", b"text 2"]
        (b'text 0', b'text 2', 3, True)
        >>> bytes(column.buffer), column.offsets.tolist()
        (b'text 0text 1text 2', [0, 6, 12, 18])
        >>> column.to_arrow().type
        DataType(large_binary)
    """

    __slots__ = ("data", "labels", "sizes", "starts")

    def __init__(
        self, data: Buffer, starts: IntArray, sizes: IntArray, labels: RowLabels | list[str] | None = None
    ) -> None:
        self.data = data
        self.starts = starts
        self.sizes = sizes
        self.labels = labels

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> BytesColumn: ...
    def __getitem__(self, index: int | slice) -> bytes | BytesColumn:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return bytes(self.view(index))

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self.views())

    def _bytes(self) -> memoryview:
        """The buffer, which is not to be written to: it may be shared with other batches."""
        return memoryview(self.data).toreadonly()

    def view(self, index: int) -> memoryview:
        """Return one item without a copy."""
        start = int(self.starts[index])
        return self._bytes()[start : start + int(self.sizes[index])]

    def views(self) -> list[memoryview]:
        """Return all items without a copy."""
        view, stops = self._bytes(), (self.starts + self.sizes).tolist()
        return [view[start:stop] for start, stop in zip(self.starts.tolist(), stops, strict=True)]

    def take(self, rows: IntArray) -> BytesColumn:
        """Return some of the items, over the same buffer."""
        labels = self.labels
        if labels is not None:
            labels = labels.take(rows) if isinstance(labels, RowLabels) else [labels[row] for row in rows.tolist()]
        return BytesColumn(self.data, self.starts[rows], self.sizes[rows], labels)

    @property
    def nbytes(self) -> int:
        """The bytes of all items."""
        return int(self.sizes.sum())

    @property
    def offsets(self) -> IntArray:
        """Where each item starts in ``buffer``, and where the last one ends."""
        return np.concatenate(([0], self.sizes.cumsum()))

    @property
    def buffer(self) -> memoryview:
        """The bytes of all items, one after the other; copied unless they are already stored so."""
        stops = self.starts + self.sizes
        if len(self) and bool((self.starts[1:] == stops[:-1]).all()):
            return self._bytes()[int(self.starts[0]) : int(stops[-1])]
        return memoryview(b"".join(self.views()))

    def to_arrow(self) -> pa.LargeBinaryArray:
        """Return the items as an Arrow array."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.buffer)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, bytes | bytearray | memoryview | str):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bytes of these items only."""
        offsets = self.offsets
        return BytesColumn, (bytes(self.buffer), offsets[:-1], np.diff(offsets))

    def __repr__(self) -> str:
        return f"BytesColumn({len(self)} items, {self.nbytes} bytes)"


def read_columns(extents: Extents) -> dict[str, BytesColumn]:
    """Return each field of these rows as a column, verified. A row that lacks a field has a negative start.

    Raises ChecksumError, TruncatedError and the errors of the store.
    """
    return columns_of(extents, fetch(extents, plan_reads(extents)))


def columns_of(extents: Extents, fetched: Fetched, data: Buffer | None = None) -> dict[str, BytesColumn]:
    """Return the columns of rows that were fetched, verified. ``data`` is the buffers one after another, if known."""
    starts, sizes = extents.starts - fetched.bases, extents.stops - extents.starts
    if len(fetched.buffers) == 1 and data is None:
        data = fetched.buffers[0]
    elif len(fetched.buffers) > 1:
        data = b"".join(fetched.buffers) if data is None else data
        lengths = np.fromiter(map(len, fetched.buffers), np.int64, len(fetched.buffers))
        starts += (lengths.cumsum() - lengths)[fetched.ranges]
    if any(extents.sparse):
        starts[extents.starts < 0] = -1
    if fetched.has_empty:
        np.maximum(starts, 0, out=starts, where=extents.starts >= 0)
    known, labels = b"" if data is None else data, extents.labels
    columns = {name: BytesColumn(known, starts[line], sizes[line], labels) for line, name in enumerate(extents.fields)}
    if not fetched.verified:
        verify(extents, lambda line: map(crc32, columns[extents.fields[line]].views()), fetched.damaged_block)
    return columns


def read_scattered(
    extents: Extents, spec: ScatterSpec, outs: Sequence[memoryview], threads: int = 1
) -> BytesColumn | None:
    """Read the only field of these rows without what ``spec`` takes of it: that goes to the rows of ``outs``.

    None if a row lacks the field, or is too small for it. Up to ``threads`` read at once. Raises ChecksumError.
    """
    starts, sizes = extents.starts[0], extents.stops[0] - extents.starts[0]
    if (any(extents.sparse) and bool((starts < 0).any())) or not spec.fit(sizes):
        return None
    kept = sizes - sum(spec.taken)
    scratch, at = bytearray(int(kept.sum())), kept.cumsum() - kept
    pieces = spec.pieces(memoryview(scratch), at.tolist(), sizes.tolist(), outs)
    reads, crcs = _scattered_reads(extents, pieces), [0] * len(extents)

    def fill(share: slice) -> None:
        for data, start, parts, rows in reads[share]:
            data.read_into(start, parts)
            for row in rows if extents.crcs is not None else ():  # while it is in the processor's cache
                crcs[row] = crc_of(pieces[row])

    shares = min(threads, int(sizes.sum()) // _MIN_THREAD_READ_BYTES)
    if shares > 1:
        edges = [len(reads) * share // shares for share in range(shares + 1)]
        with ThreadPoolExecutor(shares) as pool:
            list(pool.map(fill, map(slice, edges, edges[1:])))
    else:
        fill(slice(None))
    verify(extents, lambda _: crcs)
    return BytesColumn(bytes(scratch), at, kept, extents.labels)


def _scattered_reads(
    extents: Extents, pieces: list[list[memoryview]]
) -> list[tuple[TarBytes, int, list[memoryview], list[int]]]:
    """The reads of the only field of these rows: each with its start, the pieces that it fills, and its rows.

    All is worked out before anything is read: each read empties the processor's cache of everything.
    """
    starts, stops = extents.starts[0], extents.stops[0]
    plan = plan_members(extents.shard_numbers, starts, stops, LOCAL_GAP_BYTES, _MAX_SCATTER_BYTES)
    unused = memoryview(bytearray(LOCAL_GAP_BYTES))
    reads: list[tuple[TarBytes, int, list[memoryview], list[int]]] = []
    last, end = -1, 0
    order = np.lexsort((starts, plan.ranges))
    columns = order, plan.ranges[order], starts[order], stops[order]
    for row, number, start, stop in zip(*(column.tolist() for column in columns), strict=True):
        if number != last or not 0 <= start - end <= LOCAL_GAP_BYTES:  # a row that repeats is read again
            reads.append((extents.shard(row).data, start, [], []))
        else:
            reads[-1][2].append(unused[: start - end])
        reads[-1][2].extend(pieces[row])
        reads[-1][3].append(row)
        last, end = number, stop
    return reads


def crc_of(pieces: Iterable[Buffer]) -> int:
    """Return the crc32 of pieces that follow each other."""
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    return crc
