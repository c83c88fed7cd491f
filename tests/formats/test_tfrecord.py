"""TFRecord files, against TensorFlow itself."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib

import google_crc32c
import numpy as np
import pytest

import shoal
from shoal.dataset import TFRecordDataset
from shoal.errors import ChecksumError, DecodeError, OptionError, ShoalWarning, TruncatedError
from shoal.formats import _tfrecord, write_format
from shoal.formats._tf_example import decode_example, encode_example
from shoal.formats._tfrecord import frame

# One process for everything that needs TensorFlow: it is slow to import, and its warnings are not ours.
PEER = """
import json, sys, tensorflow as tf
folder = sys.argv[1]
def bytes_list(*v): return tf.train.Feature(bytes_list=tf.train.BytesList(value=v))
def floats(*v): return tf.train.Feature(float_list=tf.train.FloatList(value=v))
def ints(*v): return tf.train.Feature(int64_list=tf.train.Int64List(value=v))
def example(n):
    return tf.train.Example(features=tf.train.Features(feature={
        "name": bytes_list(f"n{n}".encode()), "n": ints(n), "neg": ints(-n - 1), "score": floats(n / 4),
        "many": ints(*range(-n, n * 1000, 7)), "few": floats(*[k / 2 for k in range(n % 4)]),
        "texts": bytes_list(*[b"x" * k for k in range(n % 3)]), "none": tf.train.Feature(),
        "big": bytes_list(bytes([n]) * 70000)}))
for kind, ending in (("", ""), ("GZIP", ".gz"), ("ZLIB", ".zlib")):
    with tf.io.TFRecordWriter(f"{folder}/theirs{ending}.tfrecord", kind) as writer:
        for n in range(20):
            writer.write(example(n).SerializeToString())
sequence = tf.train.SequenceExample(
    context=tf.train.Features(feature={"id": ints(5)}),
    feature_lists=tf.train.FeatureLists(feature_list={
        "steps": tf.train.FeatureList(feature=[ints(1, 2), ints(3)])}))
open(f"{folder}/sequence", "wb").write(sequence.SerializeToString())
read = {}
for name, kind in (("ours", ""), ("ours-gzip", "GZIP"), ("ours-zlib", "ZLIB")):
    read[name] = []
    for record in tf.data.TFRecordDataset(f"{folder}/{name}.tfrecord", kind):
        found = tf.train.Example.FromString(record.numpy()).features.feature
        read[name].append([found["n"].int64_list.value[0], list(found["x"].float_list.value),
                           found["s"].bytes_list.value[0].decode(), found["__key__"].bytes_list.value[0].decode()])
json.dump(read, open(f"{folder}/read.json", "w"))
"""


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """A folder with what TensorFlow wrote, and what it read of ours."""
    folder = tmp_path_factory.mktemp("tensorflow")
    samples = [
        {"__key__": f"k{n}", "n": n, "x": np.arange(3, dtype=np.float32) + n, "s": f"text {n}"} for n in range(9)
    ]
    for name, kind in (("ours", ""), ("ours-gzip", "GZIP"), ("ours-zlib", "ZLIB")):
        write_format(folder / f"{name}.tfrecord", samples, compression_type=kind)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEER, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("ending", ["", ".gz", ".zlib"])
def test_what_tensorflow_wrote(peer, ending):
    dataset = shoal.Dataset(peer / f"theirs{ending}.tfrecord")
    assert len(dataset) == 20
    for samples in (list(dataset), dataset[list(range(20))]):
        for n, sample in enumerate(samples):
            assert (sample["name"], sample["n"], sample["neg"], sample["score"]) == (f"n{n}".encode(), n, -n - 1, n / 4)
            many = list(range(-n, n * 1000, 7))
            np.testing.assert_array_equal(sample["many"], many if len(many) != 1 else many[0])
            assert sample["texts"] == [None, b"", [b"", b"x"]][n % 3]
            assert sample["none"] is None
            assert sample["big"] == bytes([n]) * 70000
            if n % 4 > 1:
                np.testing.assert_array_equal(sample["few"], np.arange(n % 4, dtype=np.float32) / 2)


@pytest.mark.parametrize("name", ["ours", "ours-gzip", "ours-zlib"])
def test_tensorflow_reads_what_we_wrote(peer, name):
    read = json.loads((peer / "read.json").read_text())[name]
    assert read == [[n, [n, n + 1, n + 2], f"text {n}", f"k{n}"] for n in range(9)]


def test_a_sequence_example(peer):
    found = decode_example((peer / "sequence").read_bytes())
    assert found["id"] == 5
    assert [np.asarray(step).tolist() for step in found["steps"]] == [[1, 2], 3]


class TestChecksum:
    @pytest.mark.parametrize("size", [0, 1, 7, 255, 256, 257, 511, 512, 1000, 4096, 70_001])
    def test_without_the_compiled_package(self, size):
        data = np.random.default_rng(size).bytes(size)
        found = _tfrecord._by_numpy(data, np.zeros(1, np.int64), np.array([size]))
        assert found.tolist() == [google_crc32c.value(data)]
        assert _tfrecord.crc32c(data) == google_crc32c.value(data)

    def test_of_many_ranges(self, monkeypatch):
        data = np.random.default_rng(0).bytes(50_000)
        starts = np.array([0, 5, 100, 40_000, 7])
        stops = np.array([5, 5, 30_000, 50_000, 8])
        expected = [google_crc32c.value(data[a:b]) for a, b in zip(starts, stops, strict=True)]
        assert _tfrecord.crc32c_of_ranges(data, starts, stops).tolist() == expected
        monkeypatch.setattr(_tfrecord, "_compiled", lambda: None)
        assert _tfrecord.crc32c_of_ranges(data, starts, stops).tolist() == expected
        assert _tfrecord.crc32c(b"123456789") == 0xE3069283


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(frame(encode_example({"n": n})) for n in range(10)))
    return path


SIZE = len(frame(encode_example({"n": 1})))


def test_a_wrong_checksum_of_the_data(records):
    data = bytearray(records.read_bytes())
    data[5 * SIZE + 20] ^= 1
    records.write_bytes(data)
    with pytest.raises(ChecksumError, match=f"byte {5 * SIZE + 12}"):
        list(shoal.Dataset(records))
    dataset = shoal.Dataset(records)
    assert dataset[4]["n"] == 4
    with pytest.raises(ChecksumError, match=str(records)):
        dataset[5]


def test_a_flip_is_seen_without_the_compiled_package(records, monkeypatch):
    monkeypatch.setattr(_tfrecord, "_compiled", lambda: None)
    assert [sample["n"] for sample in shoal.Dataset(records)] == list(range(10))
    data = bytearray(records.read_bytes())
    data[-6] ^= 1
    records.write_bytes(data)
    with pytest.raises(ChecksumError):
        list(shoal.Dataset(records))


def test_checks_can_be_left_out(records):
    data = bytearray(records.read_bytes())
    data[5 * SIZE - 2] ^= 1  # in the checksum itself, so the data is sound
    records.write_bytes(data)
    with pytest.raises(ChecksumError):
        list(shoal.Dataset(records))
    assert [sample["n"] for sample in shoal.Dataset(records, verify=False)] == list(range(10))


def test_a_wrong_checksum_of_a_length(records):
    data = bytearray(records.read_bytes())
    data[3 * SIZE] ^= 1
    records.write_bytes(data)
    with pytest.raises(ChecksumError, match=f"byte {3 * SIZE}"):
        len(shoal.Dataset(records))
    with pytest.raises(ChecksumError, match=f"byte {3 * SIZE}"):
        list(shoal.Dataset(records))


@pytest.mark.parametrize("missing", [1, 5, SIZE - 13, SIZE - 1])
def test_a_file_that_ends_inside_a_record(records, missing):
    records.write_bytes(records.read_bytes()[:-missing])
    with pytest.raises(TruncatedError, match=f"byte {9 * SIZE}"):
        len(shoal.Dataset(records))
    with pytest.raises(TruncatedError, match=f"byte {9 * SIZE}"):
        list(shoal.Dataset(records))


def test_damage_may_be_passed_over(records):
    data = bytearray(records.read_bytes())
    data[-6] ^= 1
    records.write_bytes(data)
    dataset = shoal.Dataset(records, on_error="skip")
    with pytest.warns(ShoalWarning, match="ChecksumError"):
        assert [sample["n"] for sample in dataset] == list(range(9))
    assert dataset.errors.count == 1


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_compressed_bytes_that_are_cut_or_damaged(records, pack):
    packed = pack(records.read_bytes())
    records.write_bytes(packed[:-12])
    with pytest.raises(TruncatedError):
        list(shoal.Dataset(records))
    records.write_bytes(packed[:20] + b"\xff" * 20 + packed[40:])
    with pytest.raises(DecodeError):
        list(shoal.Dataset(records))


def test_several_gzip_members(records):
    plain = records.read_bytes()
    records.write_bytes(gzip.compress(plain[: SIZE + 5]) + gzip.compress(plain[SIZE + 5 :]))
    assert [sample["n"] for sample in shoal.Dataset(records)] == list(range(10))
    assert len(shoal.Dataset(records)) == 10


def test_records_larger_than_what_is_read_at_once(tmp_path, monkeypatch):
    from shoal.formats import _tfrecord

    monkeypatch.setattr(_tfrecord, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(_tfrecord, "_SCHEMA_BYTES", 10)
    path = tmp_path / "a.tfrecord"
    sizes = [10, 5000, 0, 999, 12_345, 1]
    path.write_bytes(b"".join(frame(bytes(size)) for size in sizes))
    dataset = TFRecordDataset(path, example=False)
    assert [len(sample["record"]) for sample in dataset] == sizes
    assert [len(dataset[n]["record"]) for n in range(6)] == sizes


def test_where_records_begin_is_found_once(records, monkeypatch):
    from shoal.formats import _tfrecord

    assert len(shoal.Dataset(records)) == 10
    monkeypatch.setattr(_tfrecord, "_record_starts", None)
    assert shoal.Dataset(records)[7]["n"] == 7


def test_a_changed_file_is_looked_at_again(records):
    assert len(shoal.Dataset(records)) == 10
    records.write_bytes(b"".join(frame(encode_example({"n": n})) for n in range(3)))
    assert len(shoal.Dataset(records)) == 3


def test_an_empty_file(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"")
    assert list(shoal.Dataset(tmp_path / "a.tfrecord")) == []
    assert len(shoal.Dataset(tmp_path / "a.tfrecord")) == 0


def test_names_as_tensorflow_gives_them(records):
    records.rename(records.parent / "train.tfrecord-00000-of-00001")
    assert len(shoal.Dataset(records.parent)) == 10
    assert len(shoal.Dataset(records.parent / "train.tfrecord-00000-of-00001")) == 10


def test_other_records_than_examples(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(frame(b"\xffnot an example"))
    with pytest.raises(DecodeError, match=r"tf\.train\.Example"):
        shoal.Dataset(tmp_path / "a.tfrecord")[0]
    assert TFRecordDataset(tmp_path / "a.tfrecord", example=False)[0]["record"] == b"\xffnot an example"


def test_a_compression_that_there_is_not(records):
    with pytest.raises(OptionError):
        TFRecordDataset(records, compression_type="BROTLI")[0]
    with pytest.raises(OptionError):
        write_format(records.parent / "b.tfrecord", [], compression_type="BROTLI")
    records.write_bytes(gzip.compress(records.read_bytes()))
    dataset = TFRecordDataset(records, compression_type="")
    with pytest.raises(ChecksumError, match="compression_type"):
        len(dataset)
