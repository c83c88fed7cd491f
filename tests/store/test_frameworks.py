"""Frameworks fed from the real S3 server: seed 004's own job, and its shuffle at 10,000 objects."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.scale import times

import shoal
import shoal.store
from shoal.dataset import NpzDataset, RawDataset
from shoal.tf import TFRecordDataset, to_tf_dataset
from shoal.torch import DataLoader as TensorLoader
from shoal.torch import TorchIterableDataset, TorchMapDataset

pytestmark = pytest.mark.timeout(120)
OBJECTS = 100


def _npz(number: int) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.full((4, 3), number, np.float32), y=np.int64(number))
    return stream.getvalue()


@pytest.fixture
def npz(s3):
    """100 NPZ objects in a folder."""
    shoal.store.put_many((f"{s3}/{number:04d}.npz", _npz(number)) for number in range(OBJECTS))
    return NpzDataset(s3)


def _numbers(batches, field: str = "y") -> list[int]:
    return [int(number) for batch in batches for number in np.asarray(batch[field]).reshape(-1)]


def test_torch_reads_100_npz_objects(npz):
    loader = TensorLoader(npz, batch_size=16, shuffle=True, seed=3)
    batches = list(loader)
    assert all(isinstance(batch["x"], torch.Tensor) and batch["x"].shape[1:] == (4, 3) for batch in batches)
    assert all(torch.equal(batch["x"][:, 0, 0].long(), batch["y"].reshape(-1)) for batch in batches)
    assert sorted(_numbers(batches)) == list(range(OBJECTS))


def test_torchs_own_loader_reads_them_by_position_and_in_line(npz):
    by_position = torch.utils.data.DataLoader(TorchMapDataset(npz), batch_size=16)
    assert _numbers(by_position) == list(range(OBJECTS))
    in_line = torch.utils.data.DataLoader(TorchIterableDataset(npz.loader(batch_size=16)), batch_size=None)
    assert _numbers(in_line) == list(range(OBJECTS))


def test_tensorflow_reads_100_npz_objects(npz):
    batches = to_tf_dataset(npz.loader(batch_size=16, shuffle=True, seed=3))
    assert batches.element_spec["x"].shape.as_list() == [None, 4, 3]
    assert sorted(_numbers(batches)) == list(range(OBJECTS))


def test_tensorflow_reads_records_of_a_bucket(s3, tmp_path):
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(30):
            writer.write(str(number).encode() * 50)
    with open(path, "rb") as file:
        shoal.store.put(f"{s3}/a.tfrecord", file.read())
    found = list(TFRecordDataset(f"{s3}/a.tfrecord").as_numpy_iterator())
    assert found == list(tf.data.TFRecordDataset(path).as_numpy_iterator())


def test_objects_are_shuffled_each_once_by_the_seed(s3):
    """Two runs with one seed are equal, two seeds differ, nothing is lost or doubled: seed 004, in full in soak."""
    count = times(500, 10_000)
    shoal.store.put_many((f"{s3}/{number:05d}.bin", number.to_bytes(4, "little")) for number in range(count))
    dataset = RawDataset(s3)
    assert len(dataset) == count

    def order(seed: int) -> list[int]:
        loader = dataset.loader(batch_size=100, shuffle=True, seed=seed, num_workers=8)
        fields = [name for name in dataset[0] if not name.startswith("__")]
        return [int.from_bytes(data, "little") for batch in loader for data in batch[fields[0]]]

    first = order(1)
    assert sorted(first) == list(range(count))
    assert first == order(1)
    assert first != order(2)
    assert np.abs(np.corrcoef(first, np.arange(count))[0, 1]) < 0.2
