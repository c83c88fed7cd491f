"""One object per sample: raw files, folders of images, `.npz` files."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.dataset import ImageFolderDataset, NpzDataset, RawDataset
from shoal.errors import FormatError
from shoal.store import store_for


def test_images_are_decoded_as_told(tmp_path):
    for name, level in (("cat", 10), ("dog", 200)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (5, 4), (level,) * 3).save(tmp_path / name / "a.png")
    samples = list(shoal.Dataset(tmp_path, decode="rgb8"))
    assert [(s["class_name"], int(s["image"][0, 0, 0]), s["image"].shape) for s in samples] == [
        ("cat", 10, (4, 5, 3)),
        ("dog", 200, (4, 5, 3)),
    ]


def test_an_image_without_a_class(tmp_path):
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    with pytest.raises(FormatError, match="class"):
        ImageFolderDataset(tmp_path)[0]


def test_raw_bytes_stay_bytes(tmp_path):
    (tmp_path / "a.json").write_text('{"x": 1}')
    (tmp_path / "b").write_bytes(b"\0\1")
    (tmp_path / ".hidden").write_bytes(b"")
    dataset = RawDataset(tmp_path)
    assert dataset.keys() == ["a.json", "b"]
    assert dataset[0]["json"] == {"x": 1}
    assert dataset[1]["bin"] == b"\0\1"
    assert [s["data"] for s in RawDataset(tmp_path, field="data", decode=False)] == [b'{"x": 1}', b"\0\1"]


def test_several_objects_are_fetched_at_once():
    from shoal.store import MemoryStore, register_store

    store = MemoryStore()
    register_store("slow", store)
    for number in range(40):
        data = io.BytesIO()
        np.savez(data, n=number)
        store_for("slow://x").write_all(f"slow://bucket/{number:02d}.npz", data.getvalue())
    assert [int(sample["n"]) for sample in NpzDataset("slow://bucket")] == list(range(40))
