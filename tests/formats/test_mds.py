"""MDS as its own package wrote it, and damage to the chunks of MDS and litData (golden/README.md says how)."""

from __future__ import annotations

import io
import json
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.dataset import LitdataDataset, MdsDataset
from shoal.errors import DecodeError, FormatError, ObjectNotFoundError, TruncatedError, UnsafeCodecError

GOLDEN = Path(__file__).parent / "golden"


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("name", ["mds", "mds-zstd"])
def test_mds_as_its_package_wrote_it(name):
    dataset = MdsDataset(GOLDEN / name)
    assert len(dataset) == 7
    assert len(dataset.source.infos) > 1
    for i, sample in enumerate(dataset):
        assert (sample["index"], sample["name"], sample["raw"]) == (i, f"n{i}", bytes([i] * i))
        assert (sample["score"], sample["big"], sample["dec"]) == (i / 4, 10**20 + i, Decimal(f"1.{i}"))
        assert sample["meta"] == {"i": [i, None]}
        for field, expected in (
            ("arr", np.full((2, i + 1), i, np.int16)),
            ("fixed", np.arange(6.0).reshape(2, 3) + i),
            ("typed", np.arange(i + 1, dtype=np.uint8)),
            ("img", np.full((4, 5, 3), i, np.uint8)),
        ):
            np.testing.assert_array_equal(sample[field], expected)
            assert sample[field].dtype == expected.dtype
        assert [int(pixels(pic)[0, 0]) for pic in sample["pics"]] == [i, i + 1]
    assert dataset[[6, 0]][0]["index"] == 6


@pytest.fixture
def copy(tmp_path):
    def made(name):
        shutil.copytree(GOLDEN / name, tmp_path / name)
        return tmp_path / name

    return made


def change_index(root, change):
    index = json.loads((root / "index.json").read_text())
    change(index)
    (root / "index.json").write_text(json.dumps(index))


def test_a_raw_shard_is_read_rather_than_the_packed_one(copy):
    root = copy("mds-zstd")
    for path in (GOLDEN / "mds").glob("*.mds"):
        shutil.copy(path, root)
    for path in root.glob("*.zstd"):
        path.write_bytes(b"not looked at")
    assert [sample["index"] for sample in MdsDataset(root)] == list(range(7))


def test_by_the_index_itself_and_by_split(copy, tmp_path):
    root = copy("mds")
    assert len(shoal.Dataset(root / "index.json")) == 7
    root.rename(tmp_path / "train")
    assert len(MdsDataset(tmp_path, split="train")) == 7


@pytest.mark.parametrize("name, chunk", [("mds", "shard.00000.mds"), ("litdata-dict", "chunk-0-0.bin")])
def test_a_chunk_that_is_cut_or_missing(copy, name, chunk):
    root = copy(name)
    path = root / chunk
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 9])
    with pytest.raises(TruncatedError, match=chunk):
        shoal.Dataset(root)[0]
    path.write_bytes(whole[:6])
    with pytest.raises(DecodeError):
        shoal.Dataset(root)[0]
    path.unlink()
    with pytest.raises(ObjectNotFoundError):
        shoal.Dataset(root)[0]


def test_a_packed_chunk_that_is_damaged(copy):
    root = copy("mds-zstd")
    path = min(root.glob("*.zstd"))
    path.write_bytes(path.read_bytes()[:30] + b"xxxx")
    with pytest.raises(DecodeError):
        MdsDataset(root)[0]


def test_another_count_than_the_index_says(copy):
    root = copy("mds")
    change_index(root, lambda index: index["shards"][0].update(samples=1))
    with pytest.raises(DecodeError, match="number of samples"):
        MdsDataset(root)[0]


def test_pickles_are_refused(copy):
    root = copy("mds")
    change_index(root, lambda index: index["shards"][0]["column_encodings"].__setitem__(-1, "pkl"))
    last = json.loads((root / "index.json").read_text())["shards"][0]["column_names"][-1]
    with pytest.raises(UnsafeCodecError, match=last):
        MdsDataset(root)[0]
    assert MdsDataset(root).columns(["index"])[0]["index"] == 0
    root = copy("litdata-dict")
    change_index(root, lambda index: index["config"]["data_format"].__setitem__(0, "pickle"))
    with pytest.raises(UnsafeCodecError):
        LitdataDataset(root)[0]


@pytest.mark.parametrize(
    "name, change",
    [
        ("mds", lambda index: index.update(version=1)),
        ("mds", lambda index: index["shards"][0].update(format="json")),
        ("mds", lambda index: index["shards"][0].pop("column_names")),
        ("mds", lambda index: index["shards"][0]["column_encodings"].__setitem__(0, "no such encoding")),
        ("litdata-dict", lambda index: index["config"].update(encryption={"algorithm": "fernet"})),
        ("litdata-dict", lambda index: index["config"].update(item_loader="TokensLoader")),
        ("litdata-dict", lambda index: index["config"].pop("data_spec")),
        ("litdata-dict", lambda index: index["config"]["data_format"].__setitem__(0, "no such kind")),
    ],
)
def test_what_cannot_be_read_is_said(copy, name, change):
    root = copy(name)
    change_index(root, change)
    with pytest.raises(FormatError):
        shoal.Dataset(root)[0]


def test_an_index_that_is_none(tmp_path):
    (tmp_path / "index.json").write_text("[1")
    with pytest.raises(FormatError):
        len(MdsDataset(tmp_path))
    (tmp_path / "index.json").write_text("[1]")
    with pytest.raises(FormatError):
        len(MdsDataset(tmp_path))
