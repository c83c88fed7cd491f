"""TensorFlow: known types and shapes, the loader's batches, and a state of the batch in use."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import shoal
from shoal.errors import DecodeError, OptionError
from shoal.tf import TFRecordDataset, generator_signature, output_signature, to_tf_dataset


def loader_of(shards: str) -> shoal.DataLoader:
    return shoal.DataLoader(shoal.Dataset(shards), batch_size=4, shuffle=True, seed=5)


def test_batches_of_a_dataset_are_the_loaders_epoch_after_epoch(shards):
    dataset, plain = to_tf_dataset(loader_of(shards)), loader_of(shards)
    for _ in range(2):
        for batch, expected in zip(dataset, plain, strict=True):
            assert batch["cls"].numpy().tolist() == expected["cls"]
            assert batch["x.npy"].numpy().tolist() == expected["x.npy"].tolist()
            assert [text.decode() for text in batch["txt"].numpy()] == expected["txt"]


def test_the_signature_is_typed_and_its_shapes_are_known(shards):
    loader = loader_of(shards)
    before = loader.state_dict()
    signature = output_signature(loader)
    assert signature["x.npy"] == tf.TensorSpec((None, 3, 2), tf.float32)
    assert signature["cls"] == tf.TensorSpec((None,), tf.int64)
    assert signature["txt"] == signature["__key__"] == tf.TensorSpec((None,), tf.string)
    assert loader.state_dict() == before


def test_it_is_what_from_generator_takes(shards):
    loader = loader_of(shards)
    made = tf.data.Dataset.from_generator(generator_signature(loader), output_signature=output_signature(loader))
    assert sum(len(batch["cls"]) for batch in made) == 50


def test_the_loaders_state_is_that_of_the_batch_in_use(shards):
    loader = loader_of(shards)
    plain = loader_of(shards)
    for _, _ in zip(to_tf_dataset(loader), plain, strict=False):
        assert loader.state_dict() == plain.state_dict()


def test_a_training_that_was_stopped_goes_on_inside_an_epoch(shards):
    loader = loader_of(shards)
    batches = iter(to_tf_dataset(loader))
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    rest = [batch["cls"].numpy().tolist() for batch in batches]
    again = loader_of(shards)
    again.load_state_dict(state)
    assert [batch["cls"].numpy().tolist() for batch in to_tf_dataset(again)] == rest


def test_tuples_samples_and_nested_batches():
    loader = shoal.DataLoader(range(4), batch_size=None).map(lambda n: (np.full(2, n), {"deep": float(n), "ok": True}))
    spec = (tf.TensorSpec((2,), tf.int64), {"deep": tf.TensorSpec((), tf.float64), "ok": tf.TensorSpec((), tf.bool)})
    assert output_signature(loader) == spec
    assert [deep["deep"].numpy() for _, deep in to_tf_dataset(loader)] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "ragged, expected",
    [
        ("list", tf.RaggedTensorSpec((None, None), tf.int64, 1, tf.int64)),
        ("pad", tf.TensorSpec((None, None), tf.int64)),
    ],
)
def test_arrays_of_different_lengths(ragged, expected):
    tokens = [np.arange(length) for length in (1, 3, 2, 5)]
    loader = shoal.DataLoader(tokens, batch_size=2, ragged=ragged)
    assert output_signature(loader) == expected
    given = [batch.to_tensor().numpy() if ragged == "list" else batch.numpy() for batch in to_tf_dataset(loader)]
    assert [batch.tolist() for batch in given] == [[[0, 0, 0], [0, 1, 2]], [[0, 1, 0, 0, 0], [0, 1, 2, 3, 4]]]


def test_a_signature_of_ones_own():
    loader = shoal.DataLoader([1, 2, 3], batch_size=2)
    made = to_tf_dataset(loader, tf.TensorSpec((None,), tf.int32))
    assert [batch.numpy().tolist() for batch in made] == [[1, 2], [3]]
    assert made.element_spec.dtype == tf.int32


def test_what_has_no_tensor_is_named():
    with pytest.raises(DecodeError, match=r"no tensor.*meta"):
        to_tf_dataset(shoal.DataLoader([{"meta": {"deep": None}}]))
    with pytest.raises(OptionError, match="no batch"):
        to_tf_dataset(shoal.DataLoader([]))


def _records(path: str, count: int, compression: str = "") -> list[bytes]:
    made = [bytes([at % 251]) * (at * 7 % 3000) for at in range(count)]
    with tf.io.TFRecordWriter(path, options=tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in made:
            writer.write(record)
    return made


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
@pytest.mark.parametrize("options", [{}, {"buffer_size": 1}, {"num_parallel_reads": 2}])
def test_tfrecords_are_those_of_tensorflow(tmp_path, compression, options):
    paths = [str(tmp_path / f"{at}.tfrecord") for at in range(3)]
    for at, path in enumerate(paths):
        _records(path, 50 + at, compression)
    ours = TFRecordDataset(paths, compression, **options)
    theirs = tf.data.TFRecordDataset(paths, compression)
    assert ours.element_spec == theirs.element_spec
    assert list(ours.as_numpy_iterator()) == list(theirs.as_numpy_iterator())
    assert len(list(ours.batch(10))) == 16  # a second time, and with TensorFlow's own verbs


def test_a_damaged_tfrecord_is_not_read_over(tmp_path):
    path = tmp_path / "a.tfrecord"
    _records(str(path), 20)
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    with pytest.raises(tf.errors.OpError, match="not those that were written"):
        list(TFRecordDataset(path))


def test_a_number_that_is_none_is_refused(tmp_path):
    _records(str(tmp_path / "a.tfrecord"), 1)
    with pytest.raises(OptionError, match="num_parallel_reads"):
        TFRecordDataset(tmp_path / "a.tfrecord", num_parallel_reads=0)
