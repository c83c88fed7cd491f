"""Batches gathered from payloads are what unpacking sample by sample would give."""

from __future__ import annotations

import io
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from numpy.typing import NDArray

import shoal
from shoal.errors import ChecksumError, DecodeError, FieldError, OptionError, SchemaMismatchError
from shoal.load import PayloadLayoutCache, PayloadRun, SampleBatch, TypedColumns
from shoal.load._msgpack_scan import steps_of, walk
from shoal.sample import field_spans
from shoal.shard import RawField, join_raw


@shoal.packable
class First:
    """The array comes first: its place is the same in every payload."""

    image: NDArray[np.float32]
    label: str
    confidence: float


@shoal.packable
class Last:
    """A text of any length stands before the array."""

    label: str
    count: int
    image: NDArray[Any]
    note: str | None = None


def raw_of(payloads: list[bytes], gap: bytes = b"??") -> RawField:
    data, starts = b"", []
    for payload in payloads:
        data += gap
        starts.append(len(data))
        data += payload
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    return RawField(
        data, np.array(starts, np.int64), sizes, pa.array([str(n) for n in range(len(payloads))]), ("x.tar",)
    )


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


@given(st.lists(st.fixed_dictionaries({
    "a": st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False),
    "long name " * 4: st.text(max_size=70_000 // 100) | st.binary(max_size=300),
    "z": st.binary(max_size=70),
}), min_size=1, max_size=8))  # fmt: skip
def test_walking_many_payloads_finds_what_walking_each_finds(maps):
    payloads = [msgspec.msgpack.encode({name: each[name] for name in maps[0]}) for each in maps]
    raw = raw_of(payloads)
    found = walk(raw.data, raw.starts, raw.sizes, steps_of(payloads[0]))
    assert found is not None
    for row, payload in enumerate(payloads):
        for name, span in field_spans(payload).items():
            assert found[name].starts[row] + found[name].sizes[row] == raw.starts[row] + span.stop
            if span.kind in ("str", "bytes", "float"):
                assert found[name].starts[row] == raw.starts[row] + span.content


@pytest.mark.parametrize("odd", [{"b": 1, "a": 2}, {"a": 1}, {"a": [1], "b": 2}, {"a": 1, "b": 2, "c": 3}])
def test_payloads_that_are_not_alike_are_not_walked_together(odd):
    first = msgspec.msgpack.encode({"a": 1, "b": 2})
    raw = raw_of([first, msgspec.msgpack.encode(odd)])
    assert walk(raw.data, raw.starts, raw.sizes, steps_of(first)) is None


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
    assert (caught.value.shard, caught.value.key) == ("x.tar", "1")
    wrong = msgspec.msgpack.encode({"image": np.arange(2).tobytes(), "label": "a", "confidence": 1.0})
    with pytest.raises((SchemaMismatchError, DecodeError)):
        _ = SampleBatch(TypedColumns.over(raw_of([wrong, wrong]), First)).image


def test_a_name_that_is_no_field_is_an_attribute_error_naming_those_that_are():
    with pytest.raises(AttributeError, match="image or label or confidence"):
        _ = SampleBatch.of(firsts(2)).colour


def test_joined_runs_keep_every_sample():
    samples = firsts(9)
    parts = [raw_of([sample.packed for sample in samples[at : at + 3]]) for at in (0, 3, 6)]
    assert TypedColumns.over(join_raw(parts), First).samples == samples


@pytest.fixture
def stored(tmp_path):
    samples = firsts(5000)
    shoal.write_samples(samples, tmp_path, max_samples=1800)
    return samples, shoal.Dataset[First](tmp_path)


@pytest.mark.parametrize("batch_size", [1, 7, 256, 1800, 4999, 5000, 6000])
def test_ordered_batches_hold_every_sample_once_in_order(stored, batch_size):
    samples, dataset = stored
    batches = list(dataset.ordered(batch_size))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert [label for batch in batches for label in batch.confidence] == [sample.confidence for sample in samples]
    assert np.array_equal(np.concatenate([batch.image for batch in batches]), np.stack([s.image for s in samples]))
    assert sum(len(batch) for batch in dataset.ordered(batch_size, drop_last=True)) == 5000 // batch_size * batch_size


def test_shuffled_batches_hold_every_sample_once_and_a_seed_fixes_the_order(stored):
    samples, dataset = stored

    def order(seed):
        return [value for batch in dataset.shuffled(64, seed=seed) for value in batch.confidence]

    assert sorted(order(1)) == [sample.confidence for sample in samples]
    assert order(1) == order(1) != order(2)
    assert order(1) != [sample.confidence for sample in samples]
    assert dataset.seed == 2 or dataset.seed == 1
    list(dataset.shuffled())
    assert isinstance(dataset.seed, int)


def test_batches_of_a_view_and_through_stages(stored):
    samples, dataset = stored
    view = dataset.select([3, 1, 4000])
    (batch,) = view.ordered(8)
    assert batch.samples == [samples[3], samples[1], samples[4000]]
    doubled = dataset.map(lambda sample: sample.confidence * 2).filter(lambda value: value > 3000)
    assert list(doubled) == [s.confidence * 2 for s in samples if s.confidence * 2 > 3000]
    assert [value for batch in doubled.ordered(50) for value in batch] == list(doubled)
    with pytest.raises(TypeError, match="materialize"):
        len(doubled)
    kept = dataset.filter(lambda sample: sample.label == "").materialize()
    assert len(kept) == sum(sample.label == "" for sample in samples)


def test_untyped_batches_are_a_dict_of_columns(tmp_path):
    with shoal.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(5):
            writer.write({"txt": str(number), "npy": np.full(3, number)})
    first, last = shoal.Dataset(tmp_path).ordered(3)
    assert first["txt"] == ["0", "1", "2"]
    assert first["npy"].tolist() == [[0] * 3, [1] * 3, [2] * 3]
    assert last["__key__"] == ["000000003", "000000004"]


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_batch_size_that_is_none_is_refused(stored, size):
    with pytest.raises(OptionError, match="batch"):
        stored[1].ordered(size)


def test_a_flipped_bit_is_found_in_batches_too(stored, tmp_path):
    path = tmp_path / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[512 + 150] ^= 4  # in the first payload
    path.write_bytes(data)
    with pytest.raises(ChecksumError):
        list(shoal.Dataset[First](tmp_path).ordered(16))
    with pytest.raises(ChecksumError):
        list(shoal.Dataset[First](tmp_path).shuffled(16, seed=1))


def test_an_error_in_a_window_names_the_shard_of_its_sample(tmp_path):
    good, bad = firsts(1)[0].packed, msgspec.msgpack.encode({"image": 3, "label": "a", "confidence": 1.0})
    for name, payloads in (("a", [good] * 5), ("b", [good, good, bad]), ("c", [good] * 4)):
        with shoal.ShardWriter(str(tmp_path / f"{name}.tar")) as writer:
            for number, payload in enumerate(payloads):
                writer.write({"__key__": f"{name}{number}", "msgpack": payload})
    with pytest.raises(SchemaMismatchError) as caught:
        _ = [batch.image for batch in shoal.Dataset[First](str(tmp_path / "{a,b,c}.tar")).shuffled(3, seed=1)]
    assert str(caught.value.shard).endswith("b.tar")
    assert caught.value.key == "b2"


def test_windows_are_read_the_same_from_everywhere(tmp_path):
    samples = firsts(3000)
    found = []
    for url, compression in (
        (str(tmp_path / "a.tar"), None),
        (str(tmp_path / "b.tar.gz"), "gzip"),
        ("memory://windows/a.tar", None),
    ):
        with shoal.ShardWriter(url, compression=compression) as writer:
            for sample in samples:
                writer.write({"msgpack": sample.packed})
        batches = list(shoal.Dataset[First](url).shuffled(100, seed=4))
        found.append([(key, *row) for b in batches for key, *row in zip(b.keys, b.label, b.confidence, strict=True)])
        images = np.concatenate([batch.image for batch in batches])
        order = [int(key) for key, *_ in found[-1]]
        assert np.array_equal(images, np.stack([samples[number].image for number in order]))
        assert [sample for batch in batches[:2] for sample in batch] == [samples[number] for number in order[:200]]
    assert found[0] == found[2]
    assert sorted(found[0]) == sorted(found[1])  # a compressed shard has blocks of its own


def test_shards_with_other_fields_are_shuffled_too(tmp_path):
    samples = firsts(500)
    with shoal.ShardWriter(str(tmp_path / "a.tar")) as writer:
        for number, sample in enumerate(samples):
            writer.write({"msgpack": sample.packed, "txt": str(number)})
    found = [value for batch in shoal.Dataset[First](tmp_path / "a.tar").shuffled(64, seed=1) for value in batch.label]
    assert sorted(found) == sorted(sample.label for sample in samples)


def test_what_comes_from_a_window_outlives_it(tmp_path):
    samples = firsts(400)
    dataset = shoal.write_samples(samples, tmp_path)
    held = [(batch.samples, batch.image) for batch in dataset.shuffled(50, seed=1)]
    for _ in range(3):
        list(dataset.shuffled(50, seed=2))
    by_confidence = {sample.confidence: sample for sample in samples}
    for some, images in held:
        assert some == [by_confidence[sample.confidence] for sample in some]
        assert np.array_equal(images, np.stack([sample.image for sample in some]))


def test_payloads_stored_in_one_of_two_ways_are_each_gathered(tmp_path):
    samples = [*firsts(3000, (2, 2)), *firsts(3000, (5,)), *firsts(40, (2, 2))]
    dataset = shoal.write_samples(samples, tmp_path)
    at = 0
    for batch in dataset.ordered(500):
        assert all(np.array_equal(one, s.image) for one, s in zip(batch.image, samples[at : at + 500], strict=False))
        at += len(batch)
    assert at == len(samples)


def test_a_payload_that_ends_within_its_array_is_refused_and_not_read_on_into_the_next():
    good = firsts(1)[0].packed
    columns = TypedColumns.over(raw_of([good, good[:160], good], gap=b""), First)
    with pytest.raises(DecodeError) as caught:
        _ = SampleBatch(columns).image
    assert (caught.value.shard, caught.value.key) == ("x.tar", "1")


def test_what_was_learnt_of_other_payloads_does_not_stand_in_the_way():
    learnt = PayloadLayoutCache(First)
    for shape in ((3, 4), (5,), (3, 4)):
        samples = firsts(4, shape)
        run = PayloadRun(raw_of([sample.packed for sample in samples]), learnt)
        layout = run.layout("image")
        assert layout is not None
        assert layout.shape == shape
        assert TypedColumns([(run, slice(None))]).column("image").shape == (4, *shape)
    run = PayloadRun(raw_of([msgspec.msgpack.encode({"confidence": 1.0, "label": "a", "image": b""})] * 2), learnt)
    assert TypedColumns([(run, slice(None))]).column("label") == ["a", "a"]


def test_payloads_that_do_not_lie_in_order_are_read_in_theirs():
    samples = firsts(30)
    order = np.array([7, 3, 3, 29, 0, 12])
    raw = raw_of([sample.packed for sample in samples]).take(order)
    batch = SampleBatch(TypedColumns.over(raw, First))
    expected = [samples[number] for number in order]
    assert batch.label == [sample.label for sample in expected]
    assert batch.array("confidence").tolist() == [sample.confidence for sample in expected]
    assert np.array_equal(batch.image, np.stack([sample.image for sample in expected]))
    assert batch.keys == [str(number) for number in order]


def test_a_batch_is_made_of_samples_and_asked_for_fields_by_either_name():
    samples = firsts(3)
    batch = SampleBatch[First](samples)
    assert (batch[1], batch.samples, batch["label"]) == (samples[1], samples, batch.label)
    assert batch["image"] is batch.image
    with pytest.raises(FieldError, match="expected image or label or confidence, found colour"):
        _ = batch["colour"]
