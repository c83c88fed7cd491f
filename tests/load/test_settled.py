"""Samples that are all in memory give the same columns, whatever rows are asked for, as unpacking each alone."""

from __future__ import annotations

import pathlib
import pickle
from copy import deepcopy

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from numpy.typing import NDArray

import shoal
from shoal.errors import PositionError
from shoal.load import DataLoader, PayloadLayoutCache, PayloadReader, TypedColumns
from shoal.load._columns import settled_run
from shoal.sample import pack
from shoal.shard import RawField, ShardMemoryCache, ShardSource


@shoal.packable
class Row:
    values: NDArray[np.float32]
    text: str
    data: bytes
    number: int
    weight: float
    good: bool


@shoal.packable
class Maybe:
    text: str | None


def row(number: int, text: str = "ä", data: bytes = b"\xff") -> Row:
    return Row(np.full(3, number, np.float32), text, data, number, number / 3, number % 2 == 0)


def raw_of(payloads: list[bytes]) -> RawField:
    """Payloads with something between them, as in a tar."""
    gap = b"\xff" * 7
    sizes = np.array([len(one) for one in payloads], np.int64)
    starts = np.cumsum(sizes + len(gap)) - sizes
    data = b"".join(gap + one for one in payloads)
    keys = pa.array([f"k{number}" for number in range(len(payloads))])
    return RawField(data, starts, sizes, keys, ("a.tar",))


rows = st.builds(row, st.integers(-(1 << 62), 1 << 62), st.text(max_size=40), st.binary(max_size=300))


@given(samples=st.lists(rows, min_size=1, max_size=20), picked=st.data())
def test_any_rows_are_those_samples(samples: list[Row], picked: st.DataObject) -> None:
    run = settled_run(raw_of([pack(one) for one in samples]), PayloadLayoutCache(Row))
    assert run is not None
    wanted = picked.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=30))
    columns = TypedColumns([(run, np.array(wanted, np.int64))])
    assert columns.column("values").tolist() == [samples[at].values.tolist() for at in wanted]
    for name in ("text", "data", "number", "weight", "good"):
        assert columns.column(name) == [getattr(samples[at], name) for at in wanted]
    assert columns.numbers("weight").tolist() == [samples[at].weight for at in wanted]
    assert columns.keys == [f"k{at}" for at in wanted]
    assert [one.text for one in columns.samples] == [samples[at].text for at in wanted]


def test_more_than_are_walked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.load._columns._WALKED_AT_ONCE", 3)
    monkeypatch.setattr("shoal.load._columns._VALUES_AT_ONCE", 3)
    run = settled_run(raw_of([pack(row(number, "t" * number)) for number in range(10)]), PayloadLayoutCache(Row))
    assert run is not None
    columns = TypedColumns([(run, np.arange(9, -1, -1))])
    assert columns.column("text") == ["t" * number for number in range(9, -1, -1)]
    assert columns.column("values")[:, 0].tolist() == list(range(9, -1, -1))


@pytest.mark.parametrize(
    "payloads",
    [
        [],
        [b"\x01"],
        [pack(row(1)), pack(row(2))[:-1]],
        [pack(row(1)), pack(row(2)).replace("ä".encode(), b"\xff\xfe")],
        [pack(row(1)), pack(Row(np.zeros(4, np.float32), "", b"", 1, 1.0, True))],
        [pack(row(1)), pack(row(1 << 63))],
    ],
    ids=["none", "no map", "cut short", "no UTF-8", "another shape", "a number too large"],
)
def test_what_is_not_alike_is_left_to_batches(payloads: list[bytes]) -> None:
    assert settled_run(raw_of(payloads), PayloadLayoutCache(Row)) is None


def test_a_text_that_may_be_missing_is_left_to_batches() -> None:
    assert settled_run(raw_of([pack(Maybe("a")), pack(Maybe(None))]), PayloadLayoutCache(Maybe)) is None
    run = settled_run(raw_of([pack(Maybe("a")), pack(Maybe("b"))]), PayloadLayoutCache(Maybe))
    assert run is not None
    assert TypedColumns([(run, np.array([1, 0]))]).column("text") == ["b", "a"]


def test_a_sample_that_its_class_does_not_allow_is_told_by_who_reads_it() -> None:
    @shoal.packable
    class Other:
        values: NDArray[np.float64]
        text: str
        data: bytes
        number: int
        weight: float
        good: bool

    assert settled_run(raw_of([pack(row(1)), pack(row(2))]), PayloadLayoutCache(Other)) is None


def test_a_reader_goes_over_to_it_when_all_is_in_memory(tmp_path: pathlib.Path) -> None:
    shoal.write_samples(map(row, range(400)), tmp_path / "x.tar")
    source = shoal.Dataset[Row](str(tmp_path / "x.tar")).source
    assert isinstance(source, ShardSource)
    resident = ShardMemoryCache.over(source, 1 << 30)
    assert resident is not None
    assert resident.raw("msgpack") is None  # nothing was read yet
    reader = PayloadReader(source, "msgpack", PayloadLayoutCache(Row), resident=resident)
    wanted = np.random.default_rng(1).permutation(400)
    for _ in range(3):
        assert reader.read(wanted).column("number") == wanted.tolist()
    assert resident.is_full
    (tmp_path / "x.tar").write_bytes(b"")  # whatever is read now is missing
    assert reader.read(wanted).column("text") == ["ä"] * 400
    for outside in (-1, 400):
        with pytest.raises(PositionError):
            reader.read(np.array([0, outside]))


def test_a_batch_goes_to_another_process_with_its_own_samples_only(tmp_path: pathlib.Path) -> None:
    shoal.write_samples((row(number) for number in range(400)), tmp_path / "x.tar")
    dataset = shoal.Dataset[Row](str(tmp_path / "x.tar"))
    with DataLoader(dataset, batch_size=40, shuffle=True, num_workers=0) as loader:
        batch = list(loader)[-1]  # by then all samples are in memory, and the batch is cut from there
    message = pickle.dumps(batch)
    copy = pickle.loads(message)
    assert len(message) < 400 * 40
    assert copy.to_dict().keys() == batch.to_dict().keys()
    assert (copy.values == batch.values).all()
    assert (copy.text, copy.number, copy.keys, len(copy)) == (batch.text, batch.number, batch.keys, 40)


def test_batches_that_were_read_straight_into_place_travel_too(tmp_path: pathlib.Path) -> None:
    large = (Row(np.full(20_000, number, np.float32), "t", b"", number, 0.5, True) for number in range(20))
    shoal.write_samples(large, tmp_path / "x.tar")
    batch = next(iter(DataLoader(shoal.Dataset[Row](str(tmp_path / "x.tar")), batch_size=8, num_workers=0)))
    copy = pickle.loads(pickle.dumps(batch))
    assert (copy.values == batch.values).all()
    assert (copy.number, copy.keys) == (list(range(8)), batch.keys)
    assert [one.number for one in deepcopy(copy)] == list(range(8))
