"""RowView: what a list of row numbers would do, in every form, in little memory."""

from __future__ import annotations

import hashlib
import pickle

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from shoal.errors import OptionError, PositionError
from shoal.shard import _row_view
from shoal.shard._row_view import RowView

FORMS = ["_Runs", "_Bitmap", "_Array"]
MANY = settings(max_examples=120 if settings().max_examples < 100 else settings().max_examples * 5)


def form_of(view: RowView) -> str:
    return type(view._form).__name__


@pytest.fixture(autouse=True, scope="module")
def small_limits():
    """Forms of large views for small ones, and a few chunks for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_row_view, "_MAX_ARRAY_BYTES", 64)
        patch.setattr(_row_view, "_CHUNK_ROWS", 50)
        yield


@st.composite
def row_lists(draw, most=700):
    """Rows as runs, here and there, in any order, repeated, or few of many."""
    kind = draw(st.sampled_from(["runs", "scattered", "any", "sorted", "few", "backward runs"]))
    if kind == "few":
        return sorted(draw(st.sets(st.integers(0, 10**12), max_size=20)))
    if kind == "scattered":
        rng = np.random.default_rng(draw(st.integers(0, 1000)))
        first, share = draw(st.integers(0, 1000)), draw(st.floats(0.01, 0.99))
        return (np.flatnonzero(rng.random(draw(st.integers(1, most))) < share) + first).tolist()
    if kind in ("any", "sorted"):
        rows = draw(st.lists(st.integers(0, 60), max_size=60))
        return sorted(rows) if kind == "sorted" else rows
    runs, at = [], draw(st.integers(0, 300))
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), max_size=8)):
        runs.append(range(at + gap, at + gap + length))
        at += gap + length
    return [row for run in (runs[::-1] if kind == "backward runs" else runs) for row in run]


@st.composite
def views(draw):
    """A view that was made in some way, and its rows as a list."""
    rows = draw(row_lists())
    array = np.array(rows, np.int64)
    ways = ["rows", "runs"]
    ways += ["mask"] if rows and rows[-1] < 10_000 and (array[1:] > array[:-1]).all() else []
    match draw(st.sampled_from(ways)):
        case "rows":
            return RowView.from_rows(array), rows
        case "runs":
            return RowView.from_runs(array, array + 1), rows
    first = draw(st.integers(0, rows[0]))
    mask = np.zeros(rows[-1] + 1 - first + draw(st.integers(0, 300)), np.bool_)
    mask[array - first] = True
    return RowView.from_mask(mask, first), rows


def check(view: RowView, rows: list[int]) -> None:
    """Everything that a view tells of its rows."""
    array = np.array(rows, np.int64)
    assert len(view) == len(rows)
    assert view.as_array().tolist() == rows
    assert view.as_array().dtype == np.int64
    assert [view.row_at(position) for position in range(len(rows))] == rows
    assert view.rows_at(np.arange(len(rows))[::-1]).tolist() == rows[::-1]
    assert [row for chunk in view.chunks(7) for row in chunk.tolist()] == rows
    assert view.is_ascending == bool((array[1:] > array[:-1]).all())
    assert view.is_sorted == (sorted(rows) == rows)
    assert view.digest == hashlib.sha256(array.astype("<i8").tobytes()).hexdigest()


@MANY
@given(views())
def test_a_view_has_the_rows_that_it_was_made_of(case):
    check(*case)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_drawn(form):
    rows = {"_Runs": range(300), "_Bitmap": range(0, 600, 2), "_Array": range(0, -1 + 3 * 10**6, 10**5)}[form]
    assert form_of(RowView.from_rows(np.array(rows))) == form
    assert form_of(RowView.from_rows(np.array([rows[1], *rows[3::-1], *rows[:60:7]]))) == "_Array"


@MANY
@given(views(), st.data())
def test_slices_are_those_of_a_list(case, data):
    view, rows = case
    cut = data.draw(st.slices(len(rows)))
    check(view.slice(*cut.indices(len(rows))), rows[cut])
    start, stop = data.draw(st.tuples(st.integers(0, len(rows) + 5), st.integers(0, len(rows) + 5)))
    assert view.between(start, stop).tolist() == rows[start:stop]


@MANY
@given(views(), st.data())
def test_rows_are_taken_by_position_and_by_mask(case, data):
    view, rows = case
    positions = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30) if rows else st.just([]))
    check(view.take(np.array(positions, np.int64)), [rows[position] for position in positions])
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    keep = rng.random(len(rows)) < data.draw(st.sampled_from([0, 0.02, 0.5, 0.98, 1]))
    check(view.where(keep), [row for row, kept in zip(rows, keep, strict=True) if kept])


@MANY
@given(views(), st.data())
def test_rows_are_found_and_left_out(case, data):
    view, rows = case
    known = st.sampled_from(rows) if rows else st.nothing()
    asked = data.draw(st.lists(known | st.integers(0, 1200) | st.just(10**12), max_size=20))
    some = np.array(asked, np.int64)
    assert view.contains(some).tolist() == [row in rows for row in asked]
    for row in asked:
        assert view.position_of(row) == (rows.index(row) if row in rows else None)
    check(view.without(some), [row for row in rows if row not in asked])
    assert view.without(RowView.from_rows(some)) == view.without(some)
    if sorted(rows) == rows:
        assert view.rank(some).tolist() == np.searchsorted(rows, some).tolist()
    else:
        with pytest.raises(OptionError, match="not sorted"):
            view.rank(some)


@MANY
@given(views(), views())
def test_a_view_within_another(case, other):
    (view, rows), (second, own) = case, other
    assert view.among(second).tolist() == [row in own for row in rows]
    check(view.within(second), [row for row in rows if row in own])
    check(view.without(second), [row for row in rows if row not in own])


@MANY
@given(st.lists(views(), min_size=1, max_size=4), st.integers(0, 500))
def test_views_are_put_together_and_shifted(cases, offset):
    joined = RowView.concat([view.shifted(offset) for view, _ in cases])
    check(joined, [row + offset for _, rows in cases for row in rows])
    starts = np.cumsum([0, *(max([0, *rows]) for _, rows in cases[:-1])]).tolist()
    moved = [(view.shifted(at), [row + at for row in rows]) for at, (view, rows) in zip(starts, cases, strict=True)]
    check(RowView.concat([view for view, _ in moved]), [row for _, rows in moved for row in rows])


@MANY
@given(views(), st.integers(1, 9), st.booleans())
def test_shards_of_a_view_have_each_row_once(case, num_shards, contiguous):
    view, rows = case
    parts = [view.shard(num_shards, index, contiguous=contiguous) for index in range(num_shards)]
    expected = (
        np.array_split(rows, num_shards) if contiguous else [rows[index::num_shards] for index in range(num_shards)]
    )
    for part, own in zip(parts, expected, strict=True):
        check(part, list(own))


@MANY
@given(views(), st.lists(st.integers(0, 200), max_size=8))
def test_rows_are_split_by_shard(case, sizes):
    view, rows = case
    starts = np.cumsum([0, *sizes, max([0, *rows]) + 1])
    expected = {number: [] for number in range(len(starts) - 1)}
    for row in rows:
        number = int(np.searchsorted(starts, row, "right")) - 1
        expected[number].append(row - int(starts[number]))
    found = {number: own.tolist() for number, own in view.split_by(starts)}
    assert found == {number: own for number, own in expected.items() if own}
    assert view.shards(starts).tolist() == list(found)


@MANY
@given(views(), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), max_size=8), st.booleans())
def test_rows_move_with_their_shards(case, sizes, in_order):
    view, rows = case
    starts = np.cumsum([0, *(size for size, _ in sizes), max([0, *rows]) + 1])
    gaps = np.array([*(gap for _, gap in sizes), 0])
    offsets = gaps.cumsum() * 100 if in_order else gaps * 1000
    expected = [row + int(offsets[np.searchsorted(starts, row, "right") - 1]) for row in rows]
    check(view.moved(starts, offsets), expected)


@MANY
@given(views())
def test_columns_are_picked(case):
    view, rows = case
    rows = [row for row in rows if row < 5000]
    view = RowView.from_rows(view.as_array()[view.as_array() < 5000])
    values = pa.chunked_array([pa.array(range(2000)), pa.array(range(2000, 5000))])
    assert view.pick(values).to_pylist() == rows


@MANY
@given(views(), views())
def test_equality_hash_digest_and_pickles_do_not_depend_on_the_form(case, other):
    (view, rows), array = case, np.array(case[1], np.int64)
    runs, plain = RowView.from_runs(array, array + 1), RowView(_row_view._Array(array))
    copy = pickle.loads(pickle.dumps(view))
    for same in (runs, plain, copy):
        check(same, rows)
        assert (same, hash(same), same.digest) == (view, hash(view), view.digest)
    assert (view == other[0]) == (rows == other[1])
    assert view != rows
    assert view.is_whole(len(rows)) == plain.is_whole(len(rows)) == (rows == list(range(len(rows))))
    assert not view.is_whole(len(rows) + 1)


@given(views(), st.sampled_from([-1, 0, 5]))
def test_positions_outside_and_masks_of_another_length_are_refused(case, more):
    view, rows = case
    position = -1 if more < 0 else len(rows) + more
    with pytest.raises(PositionError, match=f"Position {position} is out of range for a view of {len(rows)} rows"):
        view.row_at(position)
    with pytest.raises(PositionError, match=f"Position {position} is out of range"):
        view.rows_at(np.array([position]))
    with pytest.raises(OptionError, match=f"mask must have {len(rows)} entries"):
        view.where(np.ones(len(rows) + 1, np.bool_))
    with pytest.raises(OptionError, match="index must be from 0 to 2, got 3"):
        view.shard(3, 3)


def test_large_views_are_small():
    """In the limits that users have: views of 20 million rows, as arrays 160 MB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.undo()
        patch.setattr(_row_view, "_MAX_ARRAY_BYTES", 4 << 20)
        patch.setattr(_row_view, "_CHUNK_ROWS", 1 << 16)
        count = 20_000_000
        visible = RowView.whole(count).without(np.array([1_234_567]))
        half = visible.where(np.random.default_rng(0).random(len(visible)) < 0.5)
        assert visible.nbytes < 1000
        assert form_of(half) == "_Bitmap"
        assert half.nbytes < 4 << 20
        assert len(pickle.dumps(half)) < 4 << 20
        assert form_of(half.slice(0, 500_000)) == "_Array"
        assert half.slice(0, 600_000).nbytes < 1 << 20
        assert RowView.whole(count).slice(0, count, 8).nbytes < 4 << 20
        positions = np.random.default_rng(1).integers(0, len(half), 50)
        rows = half.rows_at(positions)
        assert rows.tolist() == [half.row_at(position) for position in positions.tolist()]
        assert half.rank(rows).tolist() == positions.tolist()
        assert not half.contains(np.array([1_234_567])).any()


def test_rows_in_another_order_are_not_the_whole_and_the_first_of_equal_rows_is_found():
    view = RowView.from_rows(np.array([0, 2, 1, 2, 4]))
    assert not view.is_whole(5)
    assert RowView.whole(5).is_whole(5)
    assert view.position_of(2) == 1
    assert view.position_of(3) is None
