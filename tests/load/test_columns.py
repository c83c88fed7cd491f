"""Columns of typed samples equal those of samples that are unpacked one by one, whatever is stored and in any order."""

from __future__ import annotations

import functools
import io
import pathlib
import pickle
from copy import deepcopy
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import shoal
from shoal.errors import DecodeError, FieldError, PositionError, SchemaMismatchError
from shoal.load import DataLoader, PayloadLayoutCache, PayloadReader, PayloadRun, SampleBatch, TypedColumns
from shoal.load._columns import resolved_run
from shoal.sample import pack, unpack
from shoal.shard import BytesColumn, ShardMemoryCache, ShardSource


@shoal.packable
class First:
    """The array comes first, at the same offset in every payload."""

    image: NDArray[np.float32]
    label: str
    confidence: float


@shoal.packable
class Last:
    """A string of any length comes before the array."""

    label: str
    count: int
    image: NDArray[Any]
    note: str | None = None


URL = "memory://columns/x.tar"


@functools.cache
def named() -> ShardSource:
    """Samples with the keys 0, 1, ..., from whose shard payloads are said to be."""
    with shoal.ShardWriter(URL) as writer:
        for number in range(400):
            writer.write({"__key__": str(number), "bin": b""})
    source = shoal.Dataset(URL).source
    assert isinstance(source, ShardSource)
    return source


def raw_of(payloads: list[bytes], gap: bytes = b"\xff" * 7) -> BytesColumn:
    """Payloads with other bytes between them, as in a tar."""
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    data = b"".join(gap + payload for payload in payloads)
    labels = named().extents(np.arange(len(payloads))).labels
    return BytesColumn(data, np.cumsum(sizes + len(gap)) - sizes, sizes, labels)


def firsts(count: int, shape: tuple[int, ...] = (3, 4)) -> list[First]:
    rng = np.random.default_rng(count)
    return [First(rng.random(shape, np.float32), "ab" * (n % 40), n / 3) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_columns_are_the_samples_fields(count):
    samples = firsts(count)
    batch = SampleBatch(TypedColumns.over(raw_of([sample.packed for sample in samples]), First))
    assert batch.image.dtype == np.float32
    assert np.array_equal(batch.image, np.stack([sample.image for sample in samples]))
    assert batch.label == [sample.label for sample in samples]
    assert batch.confidence == [sample.confidence for sample in samples]
    assert batch.array("confidence").tolist() == batch.confidence
    assert batch.samples == samples
    assert len(batch) == count
    assert list(batch) == samples


@given(
    st.lists(
        st.tuples(
            st.text(max_size=400), st.integers(-(2**63), 2**64 - 1), st.integers(0, 3), st.none() | st.text(max_size=40)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_lengths_and_numbers_are_read_as_unpacking_reads_them(rows):
    samples = [Last(label, count, np.full((2, 2), kind, np.int16), note) for label, count, kind, note in rows]
    batch = SampleBatch(TypedColumns.over(raw_of([sample.packed for sample in samples]), Last))
    assert np.array_equal(batch.image, np.stack([sample.image for sample in samples]))
    assert batch.label == [sample.label for sample in samples]
    assert batch.count == [sample.count for sample in samples]
    assert batch.note == [sample.note for sample in samples]


def test_arrays_of_different_shapes_are_a_list_or_padded_or_refused():
    samples = [First(np.ones(n, np.float32), "x", 0.0) for n in (2, 3)]
    columns = TypedColumns.over(raw_of([sample.packed for sample in samples]), First)
    assert [array.shape for array in SampleBatch(columns).image] == [(2,), (3,)]
    padded = SampleBatch(columns, ragged="pad").image
    assert padded.tolist() == [[1, 1, 0], [1, 1, 1]]
    with pytest.raises(DecodeError, match="do not stack"):
        _ = SampleBatch(columns, ragged="error").image


def test_both_forms_of_arrays_and_fortran_order_are_read():
    compact = b"\x03<f4\x01" + (2).to_bytes(8, "little") + np.array([1, 2], "<f4").tobytes()
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for content, expected in ((compact, [1, 2]), (buffer.getvalue(), [[0, 1, 2], [3, 4, 5]])):
        payload = msgspec.msgpack.encode({"image": content, "label": "a", "confidence": 1.0})
        batch = SampleBatch(TypedColumns.over(raw_of([payload, payload]), First))
        assert batch.image.tolist() == [expected, expected]


def test_a_payload_that_does_not_fit_names_shard_and_key():
    good = firsts(1)[0].packed
    bad = msgspec.msgpack.encode({"image": 3, "label": "a", "confidence": 1.0})
    with pytest.raises(SchemaMismatchError) as caught:
        _ = SampleBatch(TypedColumns.over(raw_of([good, bad]), First)).image
    assert (caught.value.shard, caught.value.key) == (URL, "1")
    wrong = msgspec.msgpack.encode({"image": np.arange(2).tobytes(), "label": "a", "confidence": 1.0})
    with pytest.raises((SchemaMismatchError, DecodeError)):
        _ = SampleBatch(TypedColumns.over(raw_of([wrong, wrong]), First)).image


def test_a_name_that_is_no_field_is_an_attribute_error_naming_those_that_are():
    with pytest.raises(AttributeError, match="image or label or confidence"):
        _ = SampleBatch.of(firsts(2)).colour


def test_joined_runs_keep_every_sample():
    samples = firsts(9)
    layouts = PayloadLayoutCache(First)
    runs = [PayloadRun(raw_of([sample.packed for sample in samples[at : at + 3]]), layouts) for at in (0, 3, 6)]
    joined = TypedColumns([(run, slice(None)) for run in runs])
    assert joined.samples == samples
    assert joined.column("label") == [sample.label for sample in samples]
    assert joined.keys == ["0", "1", "2"] * 3


def test_a_payload_that_ends_within_its_array_is_refused_and_not_read_on_into_the_next():
    good = firsts(1)[0].packed
    columns = TypedColumns.over(raw_of([good, good[:160], good], gap=b""), First)
    with pytest.raises(DecodeError) as caught:
        _ = SampleBatch(columns).image
    assert (caught.value.shard, caught.value.key) == (URL, "1")


def test_cached_layouts_of_other_payloads_do_no_harm():
    layouts = PayloadLayoutCache(First)
    for shape in ((3, 4), (5,), (3, 4)):
        samples = firsts(4, shape)
        run = PayloadRun(raw_of([sample.packed for sample in samples]), layouts)
        arrays = run.arrays("image")
        assert arrays is not None
        assert arrays[0].shape == shape
        assert TypedColumns([(run, slice(None))]).column("image").shape == (4, *shape)
    run = PayloadRun(raw_of([msgspec.msgpack.encode({"confidence": 1.0, "label": "a", "image": b""})] * 2), layouts)
    assert TypedColumns([(run, slice(None))]).column("label") == ["a", "a"]


def test_payloads_out_of_order_are_read_in_their_order():
    samples = firsts(30)
    order = np.array([7, 3, 3, 29, 0, 12])
    raw = raw_of([sample.packed for sample in samples]).take(order)
    batch = SampleBatch(TypedColumns.over(raw, First))
    expected = [samples[number] for number in order]
    assert batch.label == [sample.label for sample in expected]
    assert batch.array("confidence").tolist() == [sample.confidence for sample in expected]
    assert np.array_equal(batch.image, np.stack([sample.image for sample in expected]))
    assert batch.keys == [str(number) for number in order]


def test_a_batch_has_samples_by_index_and_fields_by_name():
    samples = firsts(3)
    batch = SampleBatch[First](samples)
    assert (batch[1], batch.samples, batch["label"]) == (samples[1], samples, batch.label)
    assert batch["image"] is batch.image
    with pytest.raises(FieldError, match="expected image or label or confidence, found colour"):
        _ = batch["colour"]


@shoal.packable
class Plain:
    whole: int
    real: float
    flag: bool
    text: str
    data: bytes
    maybe: int | None = None
    note: str | None = None


PLAIN_FIELDS = [field.name for field in Plain.__schema__.fields]
INTS = st.integers(-(2**63), 2**64 - 1) | st.integers(-200, 200)
PLAIN_SAMPLES = st.builds(
    Plain,
    INTS,
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=40) | st.text(min_size=250, max_size=300),
    st.binary(max_size=300),
    st.none() | INTS,
    st.none() | st.text(max_size=10),
)


@given(st.lists(PLAIN_SAMPLES, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_columns_are_what_unpacking_gives_in_any_order(samples, random):
    run = PayloadRun(raw_of([sample.packed for sample in samples]), PayloadLayoutCache(Plain))
    order = np.array([random.randrange(len(samples)) for _ in range(7)])
    for rows, expected in ((slice(None), samples), (order, [samples[place] for place in order])):
        batch = SampleBatch(TypedColumns([(run, rows)]))
        for name in PLAIN_FIELDS:
            column, values = batch.column(name), [getattr(sample, name) for sample in expected]
            assert column == values
            assert [type(value) for value in column] == [type(value) for value in values]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200), min_size=1, max_size=30))
def test_numbers_are_one_array_of_the_type_that_numpy_gives_them(numbers):
    samples = [Plain(number, number / 3, number % 2 == 0, "", b"") for number in numbers]
    batch = SampleBatch(TypedColumns.over(raw_of([sample.packed for sample in samples]), Plain))
    for name in ("whole", "real", "flag"):
        expected = np.asarray([getattr(sample, name) for sample in samples])
        assert batch.array(name).dtype == expected.dtype
        assert np.array_equal(batch.array(name), expected)


def test_an_array_of_numbers_is_the_callers_own():
    batch = SampleBatch(TypedColumns.over(raw_of([Plain(n, n, True, "", b"").packed for n in range(3)]), Plain))
    batch.array("whole")[:] = 9
    assert batch.array("whole").tolist() == batch.whole == [0, 1, 2]


def payload(**changes: object) -> bytes:
    return msgspec.msgpack.encode({"whole": 1, "real": 0.5, "flag": True, "text": "a", "data": b"b", **changes})


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"real": 3}, "real"),
        ({"real": -70_000}, "real"),
        ({"extra": [1, {"a": 2}]}, "text"),
        ({"maybe": None}, "maybe"),
    ],
)
def test_what_is_stored_in_another_way_is_read_as_unpacking_reads_it(changes, name):
    payloads = [payload(), payload(**changes), payload(maybe=300)]
    batch = SampleBatch(TypedColumns.over(raw_of(payloads), Plain))
    assert batch.column(name) == [getattr(unpack(Plain, one), name) for one in payloads]


@pytest.mark.parametrize("name", PLAIN_FIELDS[:5])
def test_a_value_of_another_kind_is_refused_with_its_sample(name):
    payloads = [payload(), payload(**{name: [1]})]
    with pytest.raises(SchemaMismatchError) as caught:
        SampleBatch(TypedColumns.over(raw_of(payloads), Plain)).column(name)
    assert (caught.value.shard, caught.value.key, caught.value.field) == (URL, "1", name)


@pytest.mark.parametrize("rows", [slice(None), np.array([1, 0])], ids=["neighbours", "any order"])
def test_a_text_that_is_not_utf8_is_refused_with_its_sample(rows):
    wrong = payload(text="abc").replace(b"abc", b"a\xff\xfe")
    run = PayloadRun(raw_of([payload(text="xyz"), wrong]), PayloadLayoutCache(Plain))
    with pytest.raises(DecodeError) as caught:
        _ = SampleBatch(TypedColumns([(run, rows)])).text
    assert caught.value.key == "1"


def test_a_field_that_some_samples_lack_has_its_default():
    batch = SampleBatch(TypedColumns.over(raw_of([payload(maybe=5), payload(), payload(note="n", maybe=2)]), Plain))
    assert batch.maybe == [5, None, 2]
    assert batch.note == [None, None, "n"]
    assert batch.whole == [1, 1, 1]


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


ROWS = st.builds(row, st.integers(-(1 << 62), 1 << 62), st.text(max_size=40), st.binary(max_size=300))


@given(samples=st.lists(ROWS, min_size=1, max_size=20), picked=st.data())
def test_resolved_payloads_have_the_columns_of_any_rows(samples: list[Row], picked: st.DataObject) -> None:
    run = resolved_run(raw_of([pack(one) for one in samples]), PayloadLayoutCache(Row))
    assert run is not None
    wanted = picked.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=30))
    columns = TypedColumns([(run, np.array(wanted, np.int64))])
    assert columns.column("values").tolist() == [samples[at].values.tolist() for at in wanted]
    for name in ("text", "data", "number", "weight", "good"):
        assert columns.column(name) == [getattr(samples[at], name) for at in wanted]
    assert columns.numbers("weight").tolist() == [samples[at].weight for at in wanted]
    assert columns.keys == [str(at) for at in wanted]
    assert [one.text for one in columns.samples] == [samples[at].text for at in wanted]


def test_payloads_are_resolved_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.load._columns._SCAN_CHUNK", 3)
    monkeypatch.setattr("shoal.load._columns._TEXT_CHUNK", 3)
    run = resolved_run(raw_of([pack(row(number, "t" * number)) for number in range(10)]), PayloadLayoutCache(Row))
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
def test_payloads_that_differ_are_not_resolved(payloads: list[bytes]) -> None:
    assert resolved_run(raw_of(payloads), PayloadLayoutCache(Row)) is None


def test_null_in_some_samples_is_not_resolved() -> None:
    assert resolved_run(raw_of([pack(Maybe("a")), pack(Maybe(None))]), PayloadLayoutCache(Maybe)) is None
    run = resolved_run(raw_of([pack(Maybe("a")), pack(Maybe("b"))]), PayloadLayoutCache(Maybe))
    assert run is not None
    assert TypedColumns([(run, np.array([1, 0]))]).column("text") == ["b", "a"]


def test_a_sample_that_does_not_fit_its_class_is_not_resolved() -> None:
    @shoal.packable
    class Other:
        values: NDArray[np.float64]
        text: str
        data: bytes
        number: int
        weight: float
        good: bool

    assert resolved_run(raw_of([pack(row(1)), pack(row(2))]), PayloadLayoutCache(Other)) is None


def test_a_reader_uses_memory_once_all_samples_are_cached(tmp_path: pathlib.Path) -> None:
    shoal.write_samples(map(row, range(400)), tmp_path / "x.tar")
    source = shoal.Dataset[Row](str(tmp_path / "x.tar")).source
    assert isinstance(source, ShardSource)
    resident = ShardMemoryCache.over(source, 1 << 30)
    assert resident is not None
    assert resident.column("msgpack") is None  # nothing was read yet
    reader = PayloadReader(source.with_memory(resident), "msgpack", PayloadLayoutCache(Row), resident=resident)
    wanted = np.random.default_rng(1).permutation(400)
    for _ in range(3):
        assert reader.read(wanted).column("number") == wanted.tolist()
    assert resident.is_full
    (tmp_path / "x.tar").write_bytes(b"")  # whatever is read now is missing
    assert reader.read(wanted).column("text") == ["ä"] * 400
    for outside in (-1, 400):
        with pytest.raises(PositionError):
            reader.read(np.array([0, outside]))


def test_a_pickled_batch_has_only_its_own_samples(tmp_path: pathlib.Path) -> None:
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


def test_batches_that_were_read_directly_are_pickled(tmp_path: pathlib.Path) -> None:
    large = (Row(np.full(20_000, number, np.float32), "t", b"", number, 0.5, True) for number in range(20))
    shoal.write_samples(large, tmp_path / "x.tar")
    batch = next(iter(DataLoader(shoal.Dataset[Row](str(tmp_path / "x.tar")), batch_size=8, num_workers=0)))
    copy = pickle.loads(pickle.dumps(batch))
    assert (copy.values == batch.values).all()
    assert (copy.number, copy.keys) == (list(range(8)), batch.keys)
    assert [one.number for one in deepcopy(copy)] == list(range(8))
