"""`Dataset.ordered` and `Dataset.shuffled`: samples and batches, read on the caller's thread."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Never, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args, overload

import numpy as np

from shoal._typing import IntArray
from shoal.errors import OptionError
from shoal.load._buffers import shared_buffers
from shoal.load._collate import SampleBatch, collate
from shoal.load._columns import PayloadLayoutCache, PayloadReader, PayloadRun, Ragged, TypedColumns, window_run
from shoal.load._loader import DataLoader
from shoal.order._epoch_plan import launched_rank
from shoal.shard._extents import shard_extents
from shoal.shard._read import read_columns
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource

from ._base import DatasetBase
from ._decoding import PAYLOAD
from ._output_format import Formatting

__all__ = ["Batches", "check_batch_size"]

Span = tuple[int, int, int]
"""Shard, first row, and the row after the last."""
T = TypeVar("T")
WINDOW_BLOCKS = 32
"""How many blocks are mixed at a time; a dataset that fits is shuffled as a whole."""
_MOST_ROWS = 4096
_HELD_BYTES = 32 << 20
_READ_THREADS = 2
"""Threads that read a batch of large arrays; more than two gain little."""
OfScalars: TypeAlias = "Batches[str] | Batches[bytes] | Batches[int] | Batches[float] | Batches[bool]"


@dataclass(frozen=True, slots=True)
class TypedOptions:
    """Options of batches of typed samples."""

    sample_type: type[Any]
    batch_size: int
    drop_last: bool
    ragged: Ragged


def check_batch_size(batch_size: int) -> int:
    """Raise OptionError unless it is a whole number of at least 1."""
    if type(batch_size) is not int or batch_size < 1:
        raise OptionError(
            "a batch holds at least one sample", expected="batch_size of at least 1", found=repr(batch_size)
        )
    return batch_size


def check_ragged(ragged: str) -> None:
    """Raise OptionError unless it is one of the things that can become of arrays of different shapes."""
    if ragged not in get_args(Ragged):
        raise OptionError("no such `ragged`", expected=" or ".join(map(repr, get_args(Ragged))), found=repr(ragged))


def check_buffers(samples: int | None, shards: int | None) -> int:
    """How many samples are to be mixed at least. Raises OptionError for what is no number of them, or of shards."""
    for name, count in (("buffer_samples", samples), ("buffer_shards", shards)):
        if count is not None and (type(count) is not int or count < 1):
            raise OptionError(f"{name} is out of range", expected="a whole number of at least 1", found=repr(count))
    return samples or 1


def in_batches(samples: Iterable[Any], batch_size: int, drop_last: bool, ragged: Ragged) -> Iterator[Any]:
    """Samples gathered into batches; the last one may be short."""
    held: list[Any] = []
    for sample in samples:
        held.append(sample)
        if len(held) == batch_size:
            yield collate(held, ragged)
            held = []
    if held and not drop_last:
        yield collate(held, ragged)


def ordered_batches(
    source: ShardSource, field: str, rows: RowView | None, options: TypedOptions
) -> Iterator[SampleBatch[Any]]:
    """Batches of typed samples as they lie, or of some samples in the order given; few are held at once."""
    layout_cache = PayloadLayoutCache(options.sample_type)
    reader = _direct_reader(source, field, rows, layout_cache)
    if reader is not None:
        chosen = RowView.whole(len(source)) if rows is None else rows
        yield from _direct_batches(reader, chosen.chunks(), options)
    elif rows is None:
        yield from _cut(((PayloadRun(raw, layout_cache), None) for raw in source.stream_column(field)), options)
    elif _by_block(source, rows):
        kept = ((span, _kept(source, span, rows)) for span in _spans(source, field))
        yield from _cut(
            ((_span_run(source, span, field, layout_cache), order) for span, order in kept if len(order)), options
        )
    else:
        yield from _cut(_row_runs(source, field, rows, layout_cache), options)


def shuffled_batches(
    source: ShardSource, field: str, seed: int, rows: RowView | None, options: TypedOptions, least: int = 1
) -> Iterator[SampleBatch[Any]]:
    """Batches of typed samples in a random order: blocks are permuted, and the samples of each window of blocks mixed.

    A window has ``least`` samples or more, but for the last.

    Where few samples are wanted they are permuted as a whole, since blocks would be read for little. The order depends
    on the seed and the windows alone, not on how the samples are read.
    """
    if rows is not None and not _by_block(source, rows):
        yield from ordered_batches(source, field, permuted(rows, seed), options)
        return
    layout_cache, buffers = PayloadLayoutCache(options.sample_type), shared_buffers()
    reader = _direct_reader(source, field, rows, layout_cache)
    windows = _windows(source, field, seed, rows, least)
    if reader is not None:
        numbers = (_numbers(source, spans)[order] for spans, order in windows)
        yield from _direct_batches(reader, numbers, options)
    else:
        runs = ((window_run(source, spans, field, layout_cache, buffers), order) for spans, order in windows)
        yield from _cut(runs, options)


def shuffled_rows(source: ShardSource, field: str, seed: int, rows: RowView | None, least: int = 1) -> RowView:
    """The rows of `shuffled_batches`, in its order, for ranks that split them."""
    if rows is not None and not _by_block(source, rows):
        return permuted(rows, seed)
    windows = _windows(source, field, seed, rows, least)
    numbers = [_numbers(source, spans)[order] for spans, order in windows]
    return RowView.from_rows(np.concatenate([np.empty(0, np.int64), *numbers]))


def permuted(rows: RowView, seed: int) -> RowView:
    """The rows in a random order."""
    return rows.take(np.random.default_rng(seed).permutation(len(rows)))


def _direct_reader(
    source: ShardSource, field: str, rows: RowView | None, layout_cache: PayloadLayoutCache[Any]
) -> PayloadReader[Any] | None:
    """A reader by number, where the first sample has arrays so large that they are read straight into their batch."""
    first = 0 if rows is None else rows.row_at(0) if len(rows) else -1
    reader = PayloadReader(source, field, layout_cache, threads=_READ_THREADS)
    return reader if 0 <= first < len(source) and reader.is_direct(first) else None


def _spans(source: ShardSource, field: str) -> list[Span]:
    return [(number, *span) for number in range(len(source.shards)) for span in source.shard(number).spans([field])]


def _span_run(source: ShardSource, span: Span, field: str, layout_cache: PayloadLayoutCache[Any]) -> PayloadRun[Any]:
    number, start, stop = span
    return PayloadRun(
        read_columns(shard_extents(source.shard(number), slice(start, stop), [field]))[field], layout_cache
    )


def _by_block(source: ShardSource, rows: RowView) -> bool:
    """Whether a view has enough of its dataset, and in order, to be read by whole blocks."""
    return 4 * len(rows) > len(source) and rows.is_ascending


def _kept(source: ShardSource, span: Span, rows: RowView | None) -> IntArray:
    """Which samples of a span are wanted, counted from its first."""
    number, start, stop = span
    if rows is None:
        return np.arange(stop - start)
    first = int(source.starts[number]) + start
    low, high = rows.rank(np.array([first, first + stop - start])).tolist()
    return rows.between(low, high) - first


def _kept_counts(source: ShardSource, spans: list[Span], rows: RowView | None) -> list[int]:
    """How many samples of each span are wanted."""
    numbers, starts, stops = np.array(spans, np.int64).reshape(-1, 3).T
    firsts = source.starts[numbers] + starts
    lasts = firsts + stops - starts
    counts: list[int] = (lasts - firsts if rows is None else rows.rank(lasts) - rows.rank(firsts)).tolist()
    return counts


def _windows(
    source: ShardSource, field: str, seed: int, rows: RowView | None, least: int
) -> Iterator[tuple[list[Span], IntArray]]:
    """The spans of each window, and which of their samples come, in which order."""
    spans = _spans(source, field)
    counted = list(zip(spans, _kept_counts(source, spans, rows), strict=True))
    rng = np.random.default_rng(seed)
    order = [counted[place] for place in rng.permutation(len(counted)).tolist()]
    for run in _runs_of(order, least):
        window = [(span, _kept(source, span, rows)) for span, count in run if count]
        if window:
            sizes = [stop - start for (_, start, stop), _ in window]
            firsts = np.cumsum([0, *sizes[:-1]])
            wanted = np.concatenate([kept + first for (_, kept), first in zip(window, firsts, strict=True)])
            yield [span for span, _ in window], wanted[rng.permutation(len(wanted))]


def _runs_of(spans: list[tuple[Span, int]], least: int) -> Iterator[list[tuple[Span, int]]]:
    """Spans in runs of `WINDOW_BLOCKS`, or of as many more as it takes to have so many samples."""
    run: list[tuple[Span, int]] = []
    count = 0
    for span in spans:
        run.append(span)
        count += span[1]
        if len(run) >= WINDOW_BLOCKS and count >= least:
            yield run
            run, count = [], 0
    yield run


def _numbers(source: ShardSource, spans: list[Span]) -> IntArray:
    return np.concatenate([np.arange(start, stop) + source.starts[number] for number, start, stop in spans])


def _row_runs(
    source: ShardSource, field: str, rows: RowView, layout_cache: PayloadLayoutCache[Any]
) -> Iterator[tuple[PayloadRun[Any], IntArray]]:
    """Some samples, as many at a time as is good to hold: read as they lie, and each part's order."""
    for part in rows.chunks(_rows_at_once(source, field, rows)):
        lying, order = np.unique(part, return_inverse=True)
        yield PayloadRun(source.column(lying, field), layout_cache), order


def _rows_at_once(source: ShardSource, field: str, rows: RowView) -> int:
    """By the mean size of the first shard's."""
    if not len(rows):
        return 1
    number, _ = source.index.locate(rows.row_at(0))
    return max(1, min(_MOST_ROWS, int(_HELD_BYTES // max(source.index.mean_bytes(number, field), 1))))


def _direct_batches(
    reader: PayloadReader[Any], runs: Iterator[IntArray], options: TypedOptions
) -> Iterator[SampleBatch[Any]]:
    for numbers in _in_batches(runs, options):
        yield SampleBatch(reader.read(numbers), ragged=options.ragged)


def _in_batches(runs: Iterator[IntArray], options: TypedOptions) -> Iterator[IntArray]:
    left = np.empty(0, np.int64)
    for run in runs:
        numbers = np.concatenate([left, run]) if len(left) else run
        whole = len(numbers) // options.batch_size * options.batch_size
        yield from (numbers[at : at + options.batch_size] for at in range(0, whole, options.batch_size))
        left = numbers[whole:]
    if len(left) and not options.drop_last:
        yield left


def _cut(runs: Iterable[tuple[PayloadRun[Any], IntArray | None]], options: TypedOptions) -> Iterator[SampleBatch[Any]]:
    """Payloads cut into batches, each run in the order given for it, or as it lies.

    A batch across a border is of two runs; nothing is copied to make it one.
    """
    held: list[tuple[PayloadRun[Any], slice | IntArray]] = []
    count = 0
    for run, order in runs:
        at, length = 0, len(run) if order is None else len(order)
        while count + length - at >= options.batch_size:
            stop = at + options.batch_size - count
            yield SampleBatch(TypedColumns([*held, (run, _part(order, at, stop))]), ragged=options.ragged)
            at, count, held = stop, 0, []
        if at < length:
            held.append((run, _part(order, at, length)))
            count += length - at
    if held and not options.drop_last:
        yield SampleBatch(TypedColumns(list(held)), ragged=options.ragged)


def _part(order: IntArray | None, start: int, stop: int) -> slice | IntArray:
    return slice(start, stop) if order is None else order[start:stop]


class BatchOptions(TypedDict, total=False):
    """Options of batches."""

    drop_last: bool
    ragged: Ragged


class ShuffleOptions(BatchOptions, total=False):
    """Options of shuffled batches."""

    seed: int | None
    buffer_samples: int | None
    buffer_shards: int | None


class Batches(DatasetBase[T]):
    """``ordered`` and ``shuffled``."""

    @overload
    def ordered(self, batch_size: None = None, **options: Unpack[BatchOptions]) -> Iterator[T]: ...
    @overload  # of what is Any nothing is known; nothing else is also a Never
    def ordered(self: Batches[Never], batch_size: int, **options: Unpack[BatchOptions]) -> Iterator[Any]: ...
    @overload
    def ordered(  # type: ignore[overload-overlap] # the more special come first
        self: Batches[dict[str, Any]], batch_size: int, **options: Unpack[BatchOptions]
    ) -> Iterator[dict[str, Any]]: ...
    @overload
    def ordered(  # type: ignore[overload-overlap] # as above
        self: OfScalars, batch_size: int, **options: Unpack[BatchOptions]
    ) -> Iterator[list[T]]: ...
    @overload
    def ordered(self, batch_size: int, **options: Unpack[BatchOptions]) -> Iterator[SampleBatch[T]]: ...
    @overload
    def ordered(self, batch_size: int | None, **options: Unpack[BatchOptions]) -> Iterator[Any]: ...
    def ordered(
        self, batch_size: int | None = None, *, drop_last: bool = False, ragged: Ragged = "list"
    ) -> Iterator[Any]:
        """Samples in order, or batches of them: a ``SampleBatch`` of typed samples, a dict of columns of dicts.

        The last batch may be short, unless ``drop_last``. ``ragged`` says what becomes of arrays of different shapes.
        In a program of several ranks, each is given its own batches, as by ``DataLoader``; samples are never split.
        """
        if batch_size is None:
            return iter(self)
        check_batch_size(batch_size)
        check_ragged(ragged)
        if launched_rank()[1] > 1:
            return self._batches_of_rank(None, batch_size, drop_last, ragged)
        return self._all_batches(batch_size, drop_last=drop_last, ragged=ragged)

    def _all_batches(self, batch_size: int, *, drop_last: bool = False, ragged: Ragged = "list") -> Iterator[Any]:
        """The batches of all samples in order, which are not split over ranks."""
        if self._format is not None:
            return self._formatted_batches(self._rows, batch_size, drop_last)
        source = self.raw_source
        if source is None:
            return in_batches(self._walk(self._rows), batch_size, drop_last, ragged)
        options = TypedOptions(self.sample_type, batch_size, drop_last, ragged)
        return ordered_batches(source, PAYLOAD, self._rows, options)

    @overload
    def shuffled(self, batch_size: None = None, **options: Unpack[ShuffleOptions]) -> Iterator[T]: ...
    @overload  # of what is Any nothing is known; nothing else is also a Never
    def shuffled(self: Batches[Never], batch_size: int, **options: Unpack[ShuffleOptions]) -> Iterator[Any]: ...
    @overload
    def shuffled(  # type: ignore[overload-overlap] # the more special come first
        self: Batches[dict[str, Any]], batch_size: int, **options: Unpack[ShuffleOptions]
    ) -> Iterator[dict[str, Any]]: ...
    @overload
    def shuffled(  # type: ignore[overload-overlap] # as above
        self: OfScalars, batch_size: int, **options: Unpack[ShuffleOptions]
    ) -> Iterator[list[T]]: ...
    @overload
    def shuffled(self, batch_size: int, **options: Unpack[ShuffleOptions]) -> Iterator[SampleBatch[T]]: ...
    @overload
    def shuffled(self, batch_size: int | None, **options: Unpack[ShuffleOptions]) -> Iterator[Any]: ...
    def shuffled(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        ragged: Ragged = "list",
        buffer_samples: int | None = None,
        buffer_shards: int | None = None,
    ) -> Iterator[Any]:
        """Samples, or batches of them, in a random order, each once. A drawn seed is kept as ``seed``.

        Samples, and batches of dicts, are drawn from all there are. Batches of typed samples are read in blocks from
        all over the dataset, 32 of them mixed at a time, or as many more as it takes to mix ``buffer_samples``, which
        costs their memory. ``buffer_shards`` is atdata's, and accepted for its users: every shard is mixed, whatever
        it says.

        In a program of several ranks, each is given its own batches, as by ``DataLoader``, and ``seed`` is required,
        since all ranks must draw the same order. Samples are never split. Raises OptionError.
        """
        check_ragged(ragged)
        least = check_buffers(buffer_samples, buffer_shards)
        is_split = batch_size is not None and launched_rank()[1] > 1
        if is_split and seed is None:
            raise OptionError(
                "seed must be an int with several ranks, which all draw the same order",
                expected="shuffled(batch_size, seed=0)",
                found=None,
            )
        self.seed = secrets.randbits(32) if seed is None else seed
        source = self.raw_source
        if batch_size is not None and is_split:
            rows = (
                permuted(self.rows, self.seed)
                if source is None
                else shuffled_rows(source, PAYLOAD, self.seed, self._rows, least)
            )
            return self._batches_of_rank(rows, check_batch_size(batch_size), drop_last, ragged)
        if batch_size is not None and source is not None:
            options = TypedOptions(self.sample_type, check_batch_size(batch_size), drop_last, ragged)
            return shuffled_batches(source, PAYLOAD, self.seed, self._rows, options, least)
        order = permuted(self.rows, self.seed)
        if batch_size is not None and self._format is not None:
            return self._formatted_batches(order, check_batch_size(batch_size), drop_last)
        samples = self._walk(order)
        return samples if batch_size is None else in_batches(samples, check_batch_size(batch_size), drop_last, ragged)

    def _batches_of_rank(self, rows: RowView | None, batch_size: int, drop_last: bool, ragged: Ragged) -> Iterator[Any]:
        """The batches of this rank, in order or in that of ``rows``."""
        dataset = self if rows is None else self._view(rows=rows)
        return iter(DataLoader(dataset, batch_size=batch_size, drop_last=drop_last, ragged=ragged, num_workers=0))

    def _formatted_batches(self, chosen: RowView | None, batch_size: int, drop_last: bool) -> Iterator[Any]:
        """Batches in the format that samples are handed out in."""
        form, log = cast(Formatting, self._format), self._begin_pass(chosen)
        runs = self._stored_runs(chosen, log)
        samples = (sample for run in runs for sample in self._before_format_valid(run, log))
        while held := list(itertools.islice(samples, batch_size)):
            if len(held) == batch_size or not drop_last:
                yield form.batch(held, None)
        log.tell()
