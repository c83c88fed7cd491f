"""`Dataset.ordered` and `Dataset.shuffled` yield every sample once, from any store, and raise for damaged data."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal.errors import ChecksumError, OptionError, SchemaMismatchError


@shoal.packable
class First:
    image: NDArray[np.float32]
    label: str
    confidence: float


def firsts(count: int, shape: tuple[int, ...] = (3, 4)) -> list[First]:
    rng = np.random.default_rng(count)
    return [First(rng.random(shape, np.float32), "ab" * (n % 40), n / 3) for n in range(count)]


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
        with shoal.ShardWriter(str(tmp_path / name / f"{name}.tar")) as writer:
            for number, payload in enumerate(payloads):
                writer.write({"__key__": f"{name}{number}", "msgpack": payload})
    with pytest.raises(SchemaMismatchError) as caught:
        _ = [batch.image for batch in shoal.Dataset[First](str(tmp_path / "{a,b,c}" / "*.tar")).shuffled(3, seed=1)]
    assert str(caught.value.shard).endswith("b.tar")
    assert caught.value.key == "b2"


def test_windows_are_read_the_same_from_everywhere(tmp_path):
    samples = firsts(3000)
    found = []
    for url, compression in (
        (str(tmp_path / "a.tar"), None),
        (str(tmp_path / "b" / "b.tar.gz"), "gzip"),
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
