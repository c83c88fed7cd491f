"""Hugging Face datasets: a round trip changes nothing, and images keep the bytes of their files."""

from __future__ import annotations

import io

import datasets
import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.hf import from_hf_dataset, to_hf_dataset

pytestmark = pytest.mark.usefixtures("leaky_peer")


def jpeg(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(out, "JPEG")
    return out.getvalue()


def test_samples_become_rows(shards):
    made = to_hf_dataset(shoal.Dataset(shards))
    assert made.num_rows == 50
    assert made.features["x.npy"] == datasets.Array2D((3, 2), "float32")
    row = made.with_format("numpy")[7]
    assert row["x.npy"].tolist() == [[7.0, 7.0]] * 3
    assert (row["cls"], row["txt"], row["__key__"]) == (7, "text 7", "k007")
    assert to_hf_dataset(shoal.Dataset(shards), ["cls"]).column_names == ["cls"]


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 2), (1, 2, 1, 2), (2, 1, 2, 1, 2)])
def test_arrays_of_any_shape(shape, tmp_path):
    arrays = [np.arange(np.prod(shape), dtype=np.int32).reshape(shape) + number for number in range(3)]
    written = shoal.write_samples([{"__key__": f"{at}", "x.npy": array} for at, array in enumerate(arrays)], tmp_path)
    made = to_hf_dataset(written)
    assert [np.array(row["x.npy"]).tolist() for row in made] == [array.tolist() for array in arrays]


def test_images_are_images_and_their_bytes_are_the_files(tmp_path):
    files = [jpeg(10), jpeg(200)]
    written = shoal.write_samples([{"__key__": f"{at}", "jpg": data} for at, data in enumerate(files)], tmp_path / "a")
    made = to_hf_dataset(written)
    assert made.features["jpg"] == datasets.Image()
    assert made[1]["jpg"].size == (8, 6)
    again = from_hf_dataset(made, tmp_path / "b", columns={"jpg": "jpg"}, key="__key__")
    assert [shoal.Dataset(tmp_path / "b", decode=False)[at]["jpg"] for at in range(2)] == files
    assert again.keys() == ["0", "1"]


def test_there_and_back(shards, tmp_path):
    first = shoal.Dataset(shards)
    again = from_hf_dataset(to_hf_dataset(first), tmp_path / "again", max_samples=20)
    assert len(again) == 50
    assert len(again.shards) == 3
    assert again.keys() == first.keys()
    assert [sample["cls"] for sample in again] == list(range(50))
    assert all(np.array_equal(mine["x.npy"], its["x.npy"]) for mine, its in zip(first, again, strict=True))


def test_a_streamed_dataset_and_one_with_rows_left_out(tmp_path):
    rows = datasets.Dataset.from_dict(
        {"text": [f"t{n}" for n in range(30)], "vec": [[float(n), 1.0] for n in range(30)]}
    )
    streamed = from_hf_dataset(rows.to_iterable_dataset(), tmp_path / "streamed", batch_size=7)
    assert [sample.text for sample in streamed] == [f"t{n}" for n in range(30)]
    chosen = from_hf_dataset(rows.select([3, 1, 20]), tmp_path / "chosen")
    assert [(sample.text, list(sample.vec)) for sample in chosen] == [("t3", [3, 1]), ("t1", [1, 1]), ("t20", [20, 1])]


def test_a_loader_reads_their_dataset_as_it_is():
    rows = datasets.Dataset.from_dict({"x": list(range(10))}).with_format("numpy")
    batches = list(shoal.DataLoader(rows, batch_size=4, shuffle=True, seed=1))
    assert sorted(int(number) for batch in batches for number in batch["x"]) == list(range(10))
