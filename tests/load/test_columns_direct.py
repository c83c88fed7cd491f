"""Large arrays that are read directly into their batch equal those of samples unpacked one by one."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

import shoal
from shoal.errors import ChecksumError, SchemaMismatchError, TruncatedError
from shoal.load import BufferPool, PayloadLayoutCache, PayloadReader, SampleBatch, _columns
from shoal.load._columns import direct_columns, direct_plan
from shoal.shard import ShardSource
from shoal.shard import _read as cut

SHAPE = (240, 100, 3)


@shoal.packable
class First:
    image: NDArray[np.uint8]
    label: str
    score: float


@shoal.packable
class Last:
    label: str
    score: float
    image: NDArray[np.float32]


@shoal.packable
class Pair:
    image: NDArray[np.uint8]
    weight: float
    point: NDArray[np.float64]
    mask: NDArray[Any]
    note: str | None = None


@shoal.packable
class Between:
    label: str
    image: NDArray[np.uint8]
    caption: str


def first(number: int) -> First:
    return First(np.full(SHAPE, number % 251, np.uint8), "ab" * (number % 9), number / 3)


def last(number: int) -> Last:
    return Last("x" * (number % 50), float(number), np.full(SHAPE, number, np.float32))


def pair(number: int) -> Pair:
    image, mask = np.full(SHAPE, number % 251, np.uint8), np.full((64, 600), -number, ">i2")
    return Pair(image, 0.5, np.arange(3.0) + number, mask, None if number % 3 else "note")


def between(number: int) -> Between:
    return Between("l" * (number % 5), np.full(SHAPE, number % 251, np.uint8), "c" * (number % 7))


MAKERS = {"first": first, "last": last, "pair": pair}
COUNT = 90


@pytest.fixture(scope="module", params=list(MAKERS))
def stored(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    samples = [MAKERS[request.param](number) for number in range(COUNT)]
    shoal.write_samples(samples, path, max_samples=40)
    return samples, path


def source_of(dataset: Any) -> ShardSource:
    assert isinstance(dataset.source, ShardSource)
    return dataset.source


def assert_same(batch: Any, samples: list[Any]) -> None:
    assert len(batch) == len(samples)
    for field in dataclasses.fields(samples[0]):
        column, values = batch.column(field.name), [getattr(sample, field.name) for sample in samples]
        if isinstance(values[0], np.ndarray):
            assert all(np.array_equal(one, other) for one, other in zip(column, values, strict=True))
        else:
            assert column == values


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_plan_of_one_sample_is_right_for_all_and_each_array_is_one(stored, monkeypatch, threads):
    monkeypatch.setattr(cut, "_MIN_THREAD_READ_BYTES", 1 << 18)
    samples, path = stored
    dataset = shoal.Dataset(path, sample_type=type(samples[0]))
    source, layouts = source_of(dataset), PayloadLayoutCache(type(samples[0]))
    plan = direct_plan(source, 0, "msgpack", layouts)
    assert plan is not None
    numbers = np.random.default_rng(threads).permutation(COUNT)
    columns = direct_columns(source, numbers, "msgpack", layouts, plan, BufferPool(), threads)
    assert columns is not None
    image = columns.column("image")
    assert isinstance(image, np.ndarray)
    assert image.flags.writeable
    assert image.flags.aligned
    assert image.dtype == samples[0].image.dtype
    assert np.array_equal(image, np.stack([samples[number].image for number in numbers]))
    assert columns.keys == source.keys(numbers)
    assert columns.samples == [samples[number] for number in numbers]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("size", [1, 7, 40, 64, 90, 100])
def test_batches_hold_every_sample_once(stored, size, verify):
    samples, path = stored
    dataset = shoal.Dataset(path, sample_type=type(samples[0]), verify=verify)
    seen = 0
    for batch in dataset.ordered(size):
        assert_same(batch, samples[seen : seen + len(batch)])
        seen += len(batch)
    assert seen == COUNT
    place = {key: number for number, key in enumerate(dataset.keys())}
    shuffled = list(dataset.shuffled(size, seed=3))
    order = [place[key] for batch in shuffled for key in batch.keys]
    assert sorted(order) == list(range(COUNT))
    for batch in shuffled:
        assert_same(batch, [samples[place[key]] for key in batch.keys])
    assert sum(map(len, dataset.ordered(size, drop_last=True))) == COUNT // size * size
    assert sum(map(len, dataset.shuffled(size, seed=3, drop_last=True))) == COUNT // size * size


def test_the_order_does_not_depend_on_how_samples_are_read(stored, monkeypatch):
    samples, path = stored
    dataset = shoal.Dataset(path, sample_type=type(samples[0]))
    straight = [key for batch in dataset.shuffled(16, seed=5) for key in batch.keys]
    monkeypatch.setattr(_columns, "_MIN_DIRECT_BYTES", 1 << 40)
    assert [key for batch in dataset.shuffled(16, seed=5) for key in batch.keys] == straight


def test_batches_of_some_samples_come_in_their_order(stored):
    samples, path = stored
    chosen = [70, 3, 3, 41, 0, 39, 89]
    view = shoal.Dataset(path, sample_type=type(samples[0])).select(chosen)
    (batch,) = view.ordered(16)
    assert_same(batch, [samples[number] for number in chosen])
    (mixed,) = view.shuffled(16, seed=1)
    assert sorted(mixed.keys) == sorted(batch.keys)


def test_what_a_caller_holds_is_never_overwritten(stored):
    samples, path = stored
    dataset = shoal.Dataset(path, sample_type=type(samples[0]))
    for _ in range(3):
        batches = [batch.image for batch in dataset.ordered(16)]
        rows = [batch.image[3:5][1] for batch in dataset.ordered(16) if len(batch) > 4]
        assert np.array_equal(np.concatenate(batches), np.stack([sample.image for sample in samples]))
        assert all(np.array_equal(row, samples[16 * at + 4].image) for at, row in enumerate(rows))


def test_a_batch_that_was_let_go_gives_its_memory_to_a_later_one(tmp_path):
    shoal.write_samples([first(number) for number in range(64)], tmp_path)
    source = source_of(shoal.Dataset[First](tmp_path))
    reader = PayloadReader(source, "msgpack", PayloadLayoutCache(First), buffers=BufferPool())
    assert reader.is_direct(0)
    places = set()
    for at in range(0, 64, 8):
        columns = reader.read(np.arange(at, at + 8))
        places.add(columns.column("image").ctypes.data)
    assert len(places) <= 2


def test_threads_that_share_a_reader_read_what_one_reads(stored):
    samples, path = stored
    source = source_of(shoal.Dataset(path, sample_type=type(samples[0])))
    reader = PayloadReader(source, "msgpack", PayloadLayoutCache(type(samples[0])), buffers=BufferPool())
    orders = [np.random.default_rng(seed).permutation(COUNT)[:17] for seed in range(24)]
    with ThreadPoolExecutor(4) as threads:
        for order, columns in zip(orders, threads.map(reader.read, orders), strict=True):
            assert_same(SampleBatch(columns), [samples[number] for number in order])


def test_a_reader_reads_small_samples_in_any_order_too(tmp_path):
    samples = [First(np.full(3, n, np.uint8), str(n), n / 2) for n in range(50)]
    shoal.write_samples(samples, tmp_path, max_samples=20)
    reader = PayloadReader(source_of(shoal.Dataset[First](tmp_path)), "msgpack", PayloadLayoutCache(First))
    for order in ([4, 3, 3, 49, 20], [1, 2, 3], [7], []):
        columns = reader.read(np.array(order, np.int64))
        assert len(columns) == len(order)
        assert columns.samples == [samples[number] for number in order]
        assert columns.column("label") == [str(number) for number in order]


def test_changing_a_batch_changes_neither_its_samples_nor_another_batch(stored):
    samples, path = stored
    dataset = shoal.Dataset(path, sample_type=type(samples[0]))
    before = next(dataset.ordered(8))
    batch = next(dataset.ordered(8))
    batch.image[:] = 1
    assert batch.samples == samples[:8]
    assert_same(before, samples[:8])


def test_samples_that_are_not_alike_are_read_whole(tmp_path):
    samples = [first(number) for number in range(60)]
    samples[20] = First(np.zeros((200, 200), np.uint8), "other", 1.0)
    samples[33] = First(np.zeros((3, 3), np.uint8), "small", 1.0)
    samples[34] = First(np.zeros((100, 120, 3), np.uint8), "turned", 1.0)
    samples[40:] = [First(np.full((210, 210), n, np.uint8), "later", 1.0) for n in range(20)]
    shoal.write_samples(samples, tmp_path, max_samples=25)
    dataset = shoal.Dataset[First](tmp_path)
    for size in (6, 10, 60):
        batches = list(dataset.ordered(size))
        for at, batch in enumerate(batches):
            assert_same(batch, samples[at * size : (at + 1) * size])
    assert isinstance(next(dataset.ordered(60)).image, list)
    assert [type(batch.image) for batch in dataset.ordered(20)] == [np.ndarray, list, np.ndarray]


def test_texts_on_both_sides_are_read_by_block(tmp_path):
    samples = [between(number) for number in range(30)]
    shoal.write_samples(samples, tmp_path)
    dataset = shoal.Dataset[Between](tmp_path)
    assert direct_plan(source_of(dataset), 0, "msgpack", PayloadLayoutCache(Between)) is None
    (batch,) = dataset.ordered(30)
    assert_same(batch, samples)
    held = [one.image[1:] for one in dataset.ordered(10)]
    assert all(np.array_equal(one, batch.image[at * 10 + 1 : at * 10 + 10]) for at, one in enumerate(held))


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_elsewhere_than_in_plain_local_files_batches_are_the_same(tmp_path, compression):
    samples = [last(number) for number in range(30)]
    url = f"memory://direct/{compression}/data.tar" if compression is None else str(tmp_path / "data.tar.gz")
    with shoal.ShardWriter(url, compression=compression) as writer:
        for sample in samples:
            writer.write({"msgpack": sample.packed})
    dataset = shoal.Dataset[Last](url)
    assert direct_plan(source_of(dataset), 0, "msgpack", PayloadLayoutCache(Last)) is None
    for at, batch in enumerate(dataset.ordered(8)):
        assert_same(batch, samples[at * 8 : at * 8 + 8])
    assert sorted(score for batch in dataset.shuffled(8, seed=1) for score in batch.score) == list(
        map(float, range(30))
    )


def written(path: pathlib.Path, payloads: list[bytes]) -> None:
    with shoal.ShardWriter(str(path / "data.tar")) as writer:
        for payload in payloads:
            writer.write({"msgpack": payload})


def test_compact_and_fortran_arrays_are_read_right(tmp_path):
    numbers = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    shape = b"".join(int(length).to_bytes(8, "little") for length in SHAPE)
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(numbers))
    for name, content in (("compact", b"\x03<f4\x03" + shape + numbers.tobytes()), ("fortran", buffer.getvalue())):
        (tmp_path / name).mkdir()
        written(tmp_path / name, [msgspec.msgpack.encode({"label": "a", "score": 1.0, "image": content})] * 5)
        (batch,) = shoal.Dataset[Last](tmp_path / name / "data.tar").ordered(8)
        assert np.array_equal(batch.image, np.stack([numbers] * 5))


def test_a_sample_that_does_not_fit_names_its_shard_and_key(tmp_path):
    good = [first(number).packed for number in range(4)]
    wrong = msgspec.msgpack.encode({"image": b"no array" * 5000, "label": "a", "score": 1.0})
    written(tmp_path, [*good, wrong])
    (batch,) = shoal.Dataset[First](tmp_path / "data.tar").ordered(8)
    with pytest.raises(shoal.errors.ShoalError) as caught:
        _ = batch.image
    assert caught.value.key == "000000004"
    assert str(caught.value.shard).endswith("data.tar")
    (tmp_path / "b").mkdir()
    written(tmp_path / "b", [last(number).packed for number in range(3)])
    (other,) = shoal.Dataset[First](tmp_path / "b" / "data.tar").ordered(8)  # float32 where uint8 is declared
    with pytest.raises(SchemaMismatchError) as misfit:
        _ = other.image
    assert misfit.value.key == "000000000"


@pytest.mark.parametrize("place", [600, 20_000, 36_300], ids=["head", "array", "tail"])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path, place):
    shoal.write_samples([first(number + 5) for number in range(20)], tmp_path)
    path = tmp_path / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    stride = shoal.Dataset[First](tmp_path).source.shard(0).index.fields["msgpack"].offset
    data[int(stride[7]) - 512 + place] ^= 4
    path.write_bytes(data)
    for batches in ("ordered", "shuffled"):
        with pytest.raises(ChecksumError) as caught:
            list(getattr(shoal.Dataset[First](tmp_path), batches)(8))
        assert caught.value.key == "000000007"
        assert caught.value.field == "msgpack"
        assert str(caught.value.shard).endswith("shard-000000.tar")


def test_a_file_cut_short_after_it_was_opened_is_an_error(tmp_path):
    shoal.write_samples([first(number) for number in range(20)], tmp_path)
    path = tmp_path / "shard-000000.tar"
    dataset = shoal.Dataset[First](tmp_path)
    batches = dataset.ordered(4)
    next(batches)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(TruncatedError):
        list(batches)


ROWS = st.lists(
    st.tuples(
        st.text(max_size=40),
        st.sampled_from([(8, 4), (8, 4), (8, 4), (4, 8), (32,), (9, 9)]),
        st.integers(0, 255),
        st.none() | st.text(max_size=5),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("maker", ["first", "last", "pair"])
@settings(max_examples=25, deadline=None)
@given(rows=ROWS, size=st.integers(1, 6))
def test_any_mix_of_layouts_gives_what_unpacking_gives(maker, rows, size):
    def sample(text: str, shape: tuple[int, ...], value: int, note: str | None) -> Any:
        if maker == "first":
            return First(np.full(shape, value, np.uint8), text, value / 2)
        if maker == "last":
            return Last(text, value / 2, np.full(shape, value, np.float32))
        return Pair(np.full(shape, value, np.uint8), 1.0, np.full(2, value * 1.0), np.full((7, 9), value), note)

    samples = [sample(*row) for row in rows]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_columns, "_MIN_DIRECT_BYTES", 16)
        shoal.write_samples(samples, pathlib.Path(folder), max_samples=5)
        dataset = shoal.Dataset(pathlib.Path(folder), sample_type=type(samples[0]))
        assert direct_plan(source_of(dataset), 0, "msgpack", PayloadLayoutCache(type(samples[0]))) is not None
        place = {key: number for number, key in enumerate(dataset.keys())}
        for batch in [*dataset.ordered(size), *dataset.shuffled(size, seed=len(rows))]:
            assert_same(batch, [samples[place[key]] for key in batch.keys])
