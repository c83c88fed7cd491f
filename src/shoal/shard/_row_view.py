"""`RowView`: the rows of a dataset that a view shows, in order, in little memory.

Most views are runs of neighbouring rows: a split, all rows that are not deleted, a `where` that selects many
neighbours. A `where` that selects rows here and there is a bitmap. Rows are an array only where the user gave an order,
and where there are few of them. A caller sees no difference.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shoal._typing import BoolArray, IntArray, UInt8Array, UInt32Array
from shoal.errors import OptionError, PositionError

__all__ = ["RowView"]

_MAX_ARRAY_BYTES = 4 << 20
"""Up to this size rows are an array, from which they are taken fastest."""
_BLOCK_ROWS = 256
"""Rows of a bitmap that are counted together."""
_BLOCK_BYTES = _BLOCK_ROWS // 8
_RUN_BYTES = 32
_BITMAP_BYTES_PER_ROW = 1 / 8 + 8 / _BLOCK_ROWS
_CHUNK_ROWS = 1 << 16
"""Rows that are expanded at a time where all of them are walked through."""
_MAX_NARROW = (1 << 32) - 1
"""Rows below this are kept in 32 bits."""
_MAX_SLICES = 1024
"""Up to so many runs are slices of a column."""


class _Form(Protocol):
    """One way to store rows. Positions are within bounds; rows may be any."""

    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def row_at(self, position: int) -> int: ...
    def rows_at(self, positions: IntArray) -> IntArray: ...
    def between(self, start: int, stop: int) -> IntArray:
        """The rows at the positions from start to stop."""
        ...

    def rank(self, rows: IntArray) -> IntArray:
        """How many rows are below each of these, where rows are sorted."""
        ...


class _Runs:
    """Runs of neighbouring rows: where each begins, and how many rows there are up to its end."""

    def __init__(self, starts: IntArray, stops: IntArray) -> None:
        self.starts, self.stops = starts, stops
        self._ends = np.cumsum(stops - starts)
        self._shifts = stops - self._ends
        """What is added to a position in a run to get its row."""
        self._end_list, self._shift_list = self._ends.data, self._shifts.data

    @property
    def nbytes(self) -> int:
        return len(self.starts) * _RUN_BYTES

    def __len__(self) -> int:
        return self._end_list[-1] if len(self.starts) else 0

    def row_at(self, position: int) -> int:
        return position + self._shift_list[bisect_right(self._end_list, position)]

    def rows_at(self, positions: IntArray) -> IntArray:
        if len(self.starts) == 1:
            return positions + self._shift_list[0]
        return positions + self._shifts[np.searchsorted(self._ends, positions, "right")]

    def between(self, start: int, stop: int) -> IntArray:
        if len(self.starts) == 1 and start < stop:
            return np.arange(start + self._shift_list[0], stop + self._shift_list[0])
        first, last = self._numbers(start, stop)
        ends = np.minimum(self._ends[first:last], stop)
        counts = np.diff(np.concatenate(([start], ends)))
        return np.arange(start, stop) + np.repeat(self._shifts[first:last], counts)

    def rank(self, rows: IntArray) -> IntArray:
        numbers = np.minimum(np.searchsorted(self.stops, rows, "right"), len(self.stops) - 1)
        starts, stops = self.starts[numbers], self.stops[numbers]
        rank: IntArray = self._ends[numbers] - (stops - np.clip(rows, starts, stops))
        return rank

    def clip(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """The runs of the positions from start to stop, which is above start."""
        first, last = self._numbers(start, stop)
        starts, stops = self.starts[first:last].copy(), self.stops[first:last].copy()
        starts[0], stops[-1] = self.row_at(start), self.row_at(stop - 1) + 1
        return starts, stops

    def _numbers(self, start: int, stop: int) -> tuple[int, int]:
        """The first run with one of these positions, and the one after the last."""
        if start >= stop:
            return 0, 0
        return bisect_right(self._end_list, start), bisect_right(self._end_list, stop - 1) + 1


_SELECT = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
"""For each byte its set bits."""
_HALVES = tuple((width, (1 << width) - 1) for width in (128, 64, 32, 16, 8))


class _Bitmap:
    """One bit for each row from ``first`` on, and how many rows there are before each block of 256 bits."""

    def __init__(self, first: int, bits: UInt8Array) -> None:
        self.first = first
        self.bits = np.concatenate((bits, np.zeros(-len(bits) % _BLOCK_BYTES, np.uint8)))
        self._blocks = self.bits.reshape(-1, _BLOCK_BYTES)
        counts = np.bitwise_count(self._blocks).sum(1, dtype=np.int64)
        self._ends = np.cumsum(counts)
        self._end_list, self._bytes = self._ends.data, self.bits.data

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes + self._ends.nbytes

    def __len__(self) -> int:
        return self._end_list[-1]

    def row_at(self, position: int) -> int:
        block = bisect_right(self._end_list, position)
        at = block * _BLOCK_BYTES
        value = int.from_bytes(self._bytes[at : at + _BLOCK_BYTES], "little")
        position -= self._end_list[block - 1] if block else 0
        row = self.first + block * _BLOCK_ROWS
        for width, mask in _HALVES:
            count = (value & mask).bit_count()
            if position < count:
                value &= mask
            else:
                position, value, row = position - count, value >> width, row + width
        return row + _SELECT[value][position]

    def rows_at(self, positions: IntArray) -> IntArray:
        blocks = np.searchsorted(self._ends, positions, "right")
        ends, begins = self._ends[blocks], self._ends[blocks - 1]
        begins[blocks == 0] = 0
        # The set bits of all blocks in one array: a block's follow those of the blocks before it.
        bits = np.flatnonzero(np.unpackbits(self._blocks[blocks], bitorder="little").view(np.bool_))
        found = bits[positions - ends + np.cumsum(ends - begins)]
        rows: IntArray = self.first + blocks * _BLOCK_ROWS + found % _BLOCK_ROWS
        return rows

    def between(self, start: int, stop: int) -> IntArray:
        if start >= stop:
            return np.empty(0, np.int64)
        low, high = (int(at) for at in np.searchsorted(self._ends, (start, stop - 1), "right"))
        mask = np.unpackbits(self.bits[low * _BLOCK_BYTES : (high + 1) * _BLOCK_BYTES], bitorder="little")
        start -= int(self._ends[low - 1]) if low else 0
        stop -= int(self._ends[low - 1]) if low else 0
        return np.flatnonzero(mask.view(np.bool_))[start:stop] + (self.first + low * _BLOCK_ROWS)

    def clip(self, start: int, stop: int) -> _Bitmap:
        """The bitmap of the positions from start to stop, which is above start."""
        low, high = self.row_at(start) - self.first, self.row_at(stop - 1) - self.first
        bits = self.bits[low // 8 : high // 8 + 1].copy()
        bits[0] &= 0xFF << low % 8 & 0xFF
        bits[-1] &= 0xFF >> 7 - high % 8
        return _Bitmap(self.first + low // 8 * 8, bits)

    def rank(self, rows: IntArray) -> IntArray:
        offsets = np.clip(rows - self.first, 0, len(self.bits) * 8)
        blocks, within = np.divmod(offsets, _BLOCK_ROWS)
        before = np.concatenate(([0], self._ends))[blocks]
        chosen = self._blocks[np.minimum(blocks, len(self._blocks) - 1)]
        counts = np.bitwise_count(chosen).cumsum(1, dtype=np.int64)
        ends = np.concatenate((np.zeros((len(rows), 1), np.int64), counts), axis=1)
        own, (at, bit) = np.arange(len(rows)), np.divmod(within, 8)
        last = np.bitwise_count(chosen[own, at] & ((1 << bit) - 1).astype(np.uint8))
        rank: IntArray = before + ends[own, at] + last
        return rank


class _Array:
    """Row numbers as they are."""

    def __init__(self, rows: IntArray | UInt32Array) -> None:
        self.rows = rows.view()
        self.rows.flags.writeable = False

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def __len__(self) -> int:
        return len(self.rows)

    def row_at(self, position: int) -> int:
        return int(self.rows[position])

    def rows_at(self, positions: IntArray) -> IntArray:
        return self.rows[positions].astype(np.int64, copy=False)

    def between(self, start: int, stop: int) -> IntArray:
        return self.rows[start:stop].astype(np.int64, copy=False)

    def rank(self, rows: IntArray) -> IntArray:
        # Of one type, or NumPy converts all rows of the view.
        wanted = np.clip(rows, 0, _MAX_NARROW).astype(np.uint32) if self.rows.dtype == np.uint32 else rows
        return np.searchsorted(self.rows, wanted).astype(np.int64, copy=False)


def _form_of_runs(starts: IntArray, stops: IntArray, max_array_bytes: int) -> _Form:
    """Rows in the smallest form, or as an array where that takes no more than so many bytes."""
    filled = starts < stops
    starts, stops = starts[filled], stops[filled]
    begins = np.concatenate(([True], starts[1:] != stops[:-1])) if len(starts) else filled[:0]
    starts, stops = starts[begins], stops[np.roll(begins, -1)]  # runs that touch are one
    runs = _Runs(starts, stops)
    count = len(runs)
    if len(starts) != 1 and 8 * count <= max_array_bytes:
        return _Array(runs.between(0, count))
    if len(starts) > 1 and bool((starts[1:] > stops[:-1]).all()):
        first, span = int(starts[0]), int(stops[-1] - starts[0])
        if span * _BITMAP_BYTES_PER_ROW < min(runs.nbytes, 8 * count):
            edges = np.zeros(span + 1, np.int8)
            edges[starts - first], edges[stops - first] = 1, -1
            return _Bitmap(first, np.packbits(edges.cumsum(dtype=np.int8)[:-1].view(np.bool_), bitorder="little"))
    return runs if runs.nbytes <= 8 * count else _Array(_narrow(runs.between(0, count)))


def _form_of_rows(rows: IntArray, max_array_bytes: int) -> _Form:
    count = len(rows)
    if count and rows[-1] - rows[0] == count - 1 and bool((rows[1:] == rows[:-1] + 1).all()):
        return _Runs(rows[:1].copy(), rows[-1:] + 1)
    if rows.nbytes <= max_array_bytes:
        return _Array(rows)
    ends = np.flatnonzero(rows[1:] != rows[:-1] + 1)
    if (len(ends) + 1) * _RUN_BYTES > rows.nbytes and not _ascends(rows):
        return _Array(_narrow(rows))
    starts = rows[np.concatenate(([0], ends + 1))]
    return _form_of_runs(starts, rows[np.append(ends, count - 1)] + 1, max_array_bytes)


def _form_of_mask(mask: BoolArray, first: int, max_array_bytes: int) -> _Form:
    count = int(np.count_nonzero(mask))
    if 8 * count <= max_array_bytes:
        return _form_of_rows(np.flatnonzero(mask) + first, max_array_bytes)
    edges = mask[1:] != mask[:-1]
    if int(np.count_nonzero(edges)) // 2 * _RUN_BYTES > len(mask) * _BITMAP_BYTES_PER_ROW:
        begin = int(mask.argmax())
        span = len(mask) - begin - int(mask[::-1].argmax())
        if span * _BITMAP_BYTES_PER_ROW < 8 * count:
            return _Bitmap(first + begin, np.packbits(mask[begin : begin + span], bitorder="little"))
    changes = np.flatnonzero(edges) + 1
    changes = np.concatenate(([0] if mask[0] else [], changes, [len(mask)] if mask[-1] else [])).astype(np.int64)
    return _form_of_runs(changes[::2] + first, changes[1::2] + first, max_array_bytes)


def _narrow(rows: IntArray) -> IntArray | UInt32Array:
    """Rows in 32 bits where they fit."""
    return rows.astype(np.uint32) if len(rows) and rows.min() >= 0 and rows.max() < _MAX_NARROW else rows


def _ascends(rows: IntArray | UInt32Array) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


class RowView:
    """The rows of a dataset that a view shows, in order. Immutable; compares and pickles by its rows. Thread-safe.

    A position counts in the view, from 0; a row counts in the dataset. Positions that are not in the view raise
    PositionError, negative ones too.

    Examples:
        >>> view = RowView.whole(10).without(np.array([3]))
        >>> len(view), view.row_at(3), view.rows_at(np.array([2, 8])).tolist(), view.position_of(9)
        (9, 4, [2, 9], 8)
        >>> view.where(view.as_array() % 2 == 0)
        RowView(5 of rows 0 to 8)
    """

    __slots__ = ("_ascending", "_digest", "_form", "_length", "_sorted")

    def __init__(self, form: _Form) -> None:
        self._form = form
        self._length = len(form)
        self._ascending: bool | None = None
        self._sorted: bool | None = None
        self._digest: str | None = None

    @classmethod
    def whole(cls, count: int) -> RowView:
        """The rows from 0 up to ``count``."""
        return cls.from_runs(np.array([0]), np.array([count]))

    @classmethod
    def from_runs(cls, starts: IntArray, stops: IntArray) -> RowView:
        """The rows of some runs, one run after the other."""
        return cls(_form_of_runs(starts, stops, _MAX_ARRAY_BYTES))

    @classmethod
    def from_rows(cls, rows: IntArray) -> RowView:
        """These rows, in this order. The array must not be changed afterwards."""
        return cls(_form_of_rows(rows, _MAX_ARRAY_BYTES))

    @classmethod
    def from_mask(cls, mask: BoolArray, first: int = 0) -> RowView:
        """The rows from ``first`` on for which a mask is true."""
        return cls(_form_of_mask(mask, first, _MAX_ARRAY_BYTES))

    @classmethod
    def concat(cls, views: Sequence[RowView]) -> RowView:
        """The rows of some views, one view after the other."""
        views = [view for view in views if len(view)]
        if len(views) == 1:
            return views[0]
        forms = [view._form for view in views]  # noqa: SLF001 - one class
        runs = [form for form in forms if isinstance(form, _Runs)]
        if len(runs) == len(forms):
            none = np.empty(0, np.int64)
            starts = np.concatenate([none, *(form.starts for form in runs)])
            return cls.from_runs(starts, np.concatenate([none, *(form.stops for form in runs)]))
        count, ends = sum(map(len, views)), [(view.row_at(0), view.row_at(len(view) - 1)) for view in views]
        first, span = ends[0][0], ends[-1][1] + 1 - ends[0][0]
        in_order = all(one[1] < two[0] for one, two in itertools.pairwise(ends))
        if in_order and span < 8 * count and all(view.is_ascending for view in views):
            mask = np.zeros(span, np.bool_)
            for rows in itertools.chain.from_iterable(view.chunks() for view in views):
                mask[rows - first] = True
            return cls.from_mask(mask, first)
        return cls.from_rows(np.concatenate([view.as_array() for view in views]))

    @property
    def nbytes(self) -> int:
        """The memory that the rows take."""
        return self._form.nbytes

    def __len__(self) -> int:
        return self._length

    def row_at(self, position: int) -> int:
        """The row at one position."""
        if not 0 <= position < self._length:
            raise _position_error(position, self._length)
        return self._form.row_at(position)

    def rows_at(self, positions: IntArray) -> IntArray:
        """The rows at some positions."""
        outside = positions.view(np.uint64) >= self._length  # as such, negative ones are very large
        if outside.any():
            raise _position_error(int(positions[outside][0]), self._length)
        return self._form.rows_at(positions)

    def between(self, start: int, stop: int) -> IntArray:
        """The rows at the positions from start to stop, as far as there are any."""
        start, stop, _ = slice(max(start, 0), max(stop, 0)).indices(self._length)
        return self._form.between(start, max(start, stop))

    def chunks(self, size: int | None = None) -> Iterator[IntArray]:
        """All rows in order, ``size`` at a time, or as many as is good to expand at once."""
        size = _CHUNK_ROWS if size is None else size
        step = max(_CHUNK_ROWS // size, 1) * size
        for start in range(0, self._length, step):
            rows = self.between(start, start + step)
            yield from (rows[at : at + size] for at in range(0, len(rows), size))

    def as_array(self) -> IntArray:
        """All rows as an array, which may be read only."""
        return self._form.between(0, self._length)

    @property
    def is_ascending(self) -> bool:
        """Whether each row is above the one before."""
        if self._ascending is None:
            form = self._form
            if isinstance(form, _Runs):
                self._ascending = bool((form.starts[1:] >= form.stops[:-1]).all())
            else:
                self._ascending = not isinstance(form, _Array) or _ascends(form.rows)
        return self._ascending

    @property
    def is_sorted(self) -> bool:
        """Whether no row is below the one before; rows may repeat."""
        if self._sorted is None:
            form = self._form
            if isinstance(form, _Runs):
                self._sorted = bool((form.starts[1:] >= form.stops[:-1] - 1).all())
            else:
                self._sorted = not isinstance(form, _Array) or bool((form.rows[1:] >= form.rows[:-1]).all())
        return self._sorted

    def is_whole(self, count: int) -> bool:
        """Whether these are all rows from 0 up to ``count``, in order."""
        return self._length == count and (not count or (self.row_at(count - 1) == count - 1 and self.is_ascending))

    def rank(self, rows: IntArray) -> IntArray:
        """How many rows of a sorted view are below each of these."""
        if not self.is_sorted:
            raise OptionError("Cannot rank rows: the rows of the view are not sorted")
        return self._form.rank(np.asarray(rows, np.int64)) if self._length else np.zeros(len(rows), np.int64)

    def contains(self, rows: IntArray) -> BoolArray:
        """Whether each of these rows is in the view."""
        if not self._length or not self.is_sorted:
            return np.isin(rows, self.as_array())
        positions = np.minimum(self.rank(rows), self._length - 1)
        found: BoolArray = self._form.rows_at(positions) == rows
        return found

    def position_of(self, row: int) -> int | None:
        """The first position of a row; None where the view does not have it."""
        if self._length and self.is_sorted:
            position = int(self.rank(np.array([row]))[0])
            return position if position < self._length and self._form.row_at(position) == row else None
        start = 0
        for rows in self.chunks():
            if len(found := np.flatnonzero(rows == row)):
                return start + int(found[0])
            start += len(rows)
        return None

    def take(self, positions: IntArray) -> RowView:
        """The view of the rows at these positions."""
        return RowView.from_rows(self.rows_at(positions))

    def slice(self, start: int, stop: int, step: int = 1) -> RowView:
        """The view of a range of positions, as ``slice(start, stop, step).indices(len(view))`` gives them."""
        positions, form = range(start, stop, step), self._form
        if not positions:
            return RowView.from_rows(np.empty(0, np.int64))
        for position in (positions[0], positions[-1]):
            if not 0 <= position < self._length:
                raise _position_error(position, self._length)
        is_small = 8 * len(positions) <= _MAX_ARRAY_BYTES
        if step == 1 or len(positions) == 1:
            if isinstance(form, _Runs):
                return RowView.from_runs(*form.clip(start, positions[-1] + 1))
            if isinstance(form, _Bitmap) and not is_small:
                return RowView(form.clip(start, positions[-1] + 1))
            return RowView.from_rows(form.between(start, positions[-1] + 1))
        if is_small or step < 0 or not self.is_ascending:
            return self.take(start + np.arange(len(positions)) * step)
        keep = np.zeros(self._length, np.bool_)
        keep[start:stop:step] = True
        return self.where(keep)

    def shard(self, num_shards: int, index: int, *, contiguous: bool = True) -> RowView:
        """One of ``num_shards`` equal parts: neighbours, or every ``num_shards``-th position; the first are longer."""
        if not 0 <= index < num_shards:
            raise OptionError(f"index must be from 0 to {num_shards - 1}, got {index}")
        if not contiguous:
            return self.slice(index, self._length, num_shards)
        size, more = divmod(self._length, num_shards)
        start = size * index + min(index, more)
        return self.slice(start, start + size + (index < more))

    def where(self, keep: BoolArray) -> RowView:
        """The view of the positions for which a mask is true."""
        if len(keep) != self._length:
            raise OptionError(f"mask must have {self._length} entries, one for each row, got {len(keep)}")
        form = self._form
        if isinstance(form, _Runs) and len(form.starts) == 1:
            return RowView.from_mask(keep, int(form.starts[0]))
        if isinstance(form, _Array) or not self.is_ascending:
            return RowView.from_rows(self.as_array()[keep])
        first = form.row_at(0)
        mask = np.zeros(form.row_at(self._length - 1) + 1 - first, np.bool_)
        at = 0
        for rows in self.chunks():
            mask[rows - first] = keep[at : at + len(rows)]
            at += len(rows)
        return RowView.from_mask(mask, first)

    def without(self, rows: IntArray | RowView) -> RowView:
        """The view without some rows, which need not be in it."""
        other = rows if isinstance(rows, RowView) else RowView.from_rows(np.unique(rows))
        form, gone = self._form, other._form  # noqa: SLF001 - one class
        if not isinstance(form, _Runs) or len(form.starts) != 1 or isinstance(gone, _Bitmap) or not other.is_ascending:
            return self.where(~self.among(other))
        starts, stops = (gone.starts, gone.stops) if isinstance(gone, _Runs) else (other.as_array(), None)
        edges = np.clip((starts, starts + 1 if stops is None else stops), form.starts[0], form.stops[0])
        return RowView.from_runs(np.append(form.starts, edges[1]), np.append(edges[0], form.stops))

    def within(self, other: RowView) -> RowView:
        """The view of the rows that another view has, too."""
        return self.where(self.among(other))

    def among(self, other: RowView) -> BoolArray:
        """For each position, whether another view has its row."""
        other = other if other.is_sorted else RowView.from_rows(np.unique(other.as_array()))
        return np.concatenate([np.empty(0, np.bool_), *(other.contains(rows) for rows in self.chunks())])

    def shifted(self, offset: int) -> RowView:
        """The view of the same rows in a dataset in which they come ``offset`` later."""
        form = self._form
        if isinstance(form, _Runs):
            return RowView(_Runs(form.starts + offset, form.stops + offset))
        if isinstance(form, _Bitmap):
            return RowView(_Bitmap(form.first + offset, form.bits))
        return RowView.from_rows(self.as_array() + offset)

    def moved(self, starts: IntArray, offsets: IntArray) -> RowView:
        """The view of the same rows where those of each shard come so much later; ``starts`` are as in `split_by`."""
        shards = self.shards(starts)
        if len(np.unique(offsets[shards])) <= 1:
            return self.shifted(int(offsets[shards[0]])) if len(shards) else self
        if not self.is_sorted:
            rows = self.as_array()
            return RowView.from_rows(rows + offsets[np.searchsorted(starts, rows, "right") - 1])
        bounds = zip(self.rank(starts[shards]).tolist(), self.rank(starts[shards + 1]).tolist(), strict=True)
        own = zip(bounds, offsets[shards].tolist(), strict=True)
        return RowView.concat([self.slice(*bound).shifted(offset) for bound, offset in own])

    def shards(self, starts: IntArray) -> IntArray:
        """The shards that have some of the rows; ``starts`` are as in `split_by`."""
        if self.is_sorted:
            return np.flatnonzero(np.diff(self.rank(starts)))
        found = [np.unique(np.searchsorted(starts, rows, "right")) - 1 for rows in self.chunks()]
        return np.unique(np.concatenate(found))

    def split_by(self, starts: IntArray) -> Iterator[tuple[int, IntArray]]:
        """The rows in each shard, counted from its start; shards that have none are left out.

        ``starts`` are the first row of each shard and the number of all rows.
        """
        if self.is_sorted:
            bounds = self.rank(starts)
            for number in np.flatnonzero(np.diff(bounds)).tolist():
                yield number, self.between(*bounds[number : number + 2].tolist()) - starts[number]
            return
        rows = self.as_array()
        numbers = np.searchsorted(starts, rows, "right") - 1
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers, np.arange(len(starts)), sorter=order)
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            yield number, rows[order[bounds[number] : bounds[number + 1]]] - starts[number]

    def pick(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Of a column with a value for each row of the dataset, those of the view, in its order."""
        form = self._form
        if isinstance(form, _Runs) and len(form.starts) <= _MAX_SLICES:
            runs = zip(form.starts.tolist(), form.stops.tolist(), strict=True)
            chunks = [chunk for start, stop in runs for chunk in values.slice(start, stop - start).chunks]
            return pa.chunked_array(chunks, values.type)
        if isinstance(form, _Array) or not self.is_ascending:
            return values.take(pa.array(form.rows if isinstance(form, _Array) else self.as_array()))
        mask = np.zeros(len(values), np.bool_)
        for rows in self.chunks():
            mask[rows] = True
        return values.filter(pa.array(mask))

    @property
    def digest(self) -> str:
        """The SHA-256 of the rows as little-endian 64-bit integers, whatever form they have."""
        if self._digest is None:
            digest = hashlib.sha256()
            for rows in self.chunks():
                digest.update(np.ascontiguousarray(rows, "<i8").data)
            self._digest = digest.hexdigest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        """Whether another view has the same rows in the same order."""
        if not isinstance(other, RowView):
            return NotImplemented
        if self is other:
            return True
        same = len(self) == len(other)
        return same and all(np.array_equal(*pair) for pair in zip(self.chunks(), other.chunks(), strict=True))

    def __hash__(self) -> int:
        """By the number of rows and the first and the last of them."""
        ends = (self.row_at(0), self.row_at(self._length - 1)) if self._length else ()
        return hash((self._length, *ends))

    def __reduce__(self) -> tuple[Any, ...]:
        """The smallest form, since a pickle is sent to other processes."""
        form = self._form
        form = _form_of_rows(self.as_array(), 0) if isinstance(form, _Array) else form
        if isinstance(form, _Runs):
            return RowView.from_runs, (form.starts, form.stops)
        if isinstance(form, _Bitmap):
            return _from_bitmap, (form.first, form.bits)
        assert isinstance(form, _Array)  # noqa: S101 - there are no other forms
        return _from_narrow, (form.rows,)

    def __repr__(self) -> str:
        """How many rows there are, and the first and the last."""
        ends = f" of rows {self.row_at(0)} to {self.row_at(self._length - 1)}" if self._length else ""
        return f"RowView({self._length}{ends})"


def _from_bitmap(first: int, bits: UInt8Array) -> RowView:
    form = _Bitmap(first, bits)
    return RowView(form) if 8 * len(form) > _MAX_ARRAY_BYTES else RowView.from_rows(form.between(0, len(form)))


def _from_narrow(rows: IntArray | UInt32Array) -> RowView:
    return RowView.from_rows(rows.astype(np.int64))


def _position_error(position: int, length: int) -> PositionError:
    return PositionError(f"Position {position} is out of range for a view of {length} rows")
