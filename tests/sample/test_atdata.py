"""Payloads written by atdata are read, and payloads written here follow its rules."""

from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.sample import DictSample, packable


@packable
class ImageSample:
    image: NDArray
    label: str
    confidence: float
    extra: NDArray[np.float32] | None = None


# Made by the array encoder of the published package atdata 0.7.0b1 and msgpack.packb, which is how it packs a sample.
WRITTEN = bytes.fromhex(
    "84a5696d616765c41b037c75310202000000000000000300000000000000000102030405a56c6162656ca463c3a474aa636f"
    "6e666964656e6365cb3fd0000000000000a56578747261c411033c66340101000000000000000000c03f"
)


def test_a_sample_that_atdata_wrote_is_read():
    sample = ImageSample.from_bytes(WRITTEN)
    assert sample == ImageSample(np.arange(6, dtype=np.uint8).reshape(2, 3), "cät", 0.25, np.array([1.5], np.float32))
    untyped = DictSample.from_bytes(WRITTEN)
    assert untyped.image.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert untyped.label == "cät"


def read_as_atdata(data: bytes) -> np.ndarray:
    """The reader's rule, from the layout: the magic of .npy, else the compact form."""
    if data[:6] == b"\x93NUMPY":
        from io import BytesIO

        return np.load(BytesIO(data), allow_pickle=False)
    size = data[0]
    dtype, dimensions = data[1 : 1 + size].decode("ascii"), data[1 + size]
    shape = struct.unpack_from(f"<{dimensions}q", data, 2 + size)
    return np.frombuffer(data, dtype, offset=2 + size + 8 * dimensions).reshape(shape)


@pytest.mark.parametrize("dtype", ["uint8", "<f4", ">f8", "bool", "complex64", "M8[s]", "U3"])
def test_ours_is_read_by_its_rules(dtype):
    image = np.zeros((2, 3), dtype)
    plain = msgpack.unpackb(ImageSample(image, "x", 1.0).packed)
    assert list(plain) == ["image", "label", "confidence", "extra"]
    assert (plain["label"], plain["confidence"], plain["extra"]) == ("x", 1.0, None)
    found = read_as_atdata(plain["image"])
    assert found.dtype == image.dtype
    assert np.array_equal(found, image)
