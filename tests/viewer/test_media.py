"""Images and arrays as pictures for a browser."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shoal.errors import DecodeError
from shoal.viewer._media import array_facts, array_picture, image_picture, line_plot


def pixels_of(picture):
    return np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB"))


@settings(deadline=None)
@given(
    st.sampled_from(["?", "i1", "u2", "i8", "u8", "f2", "f4", "f8", "c8"]),
    st.lists(st.integers(0, 9), min_size=0, max_size=4),
    st.integers(0, 2**32),
)
def test_any_array_of_numbers_is_drawn_or_refused(dtype, shape, seed):
    array = np.frombuffer(np.random.default_rng(seed).bytes(math.prod(shape) * 16), dtype, math.prod(shape)).reshape(
        shape
    )
    assert str(array.dtype) in array_facts(array)
    if array.ndim == 1 and array.size:
        assert "nan" not in line_plot(array).lower()
    elif array.ndim < 2 or not array.size:
        with pytest.raises(DecodeError):
            array_picture(array)
    else:
        assert pixels_of(array_picture(array, seed)).ndim == 3


def test_a_heat_map_goes_from_the_smallest_to_the_largest():
    pixels = pixels_of(array_picture(np.array([[0.0, 1.0], [2.0, np.nan]])))
    assert pixels[0, 0].tolist() == [13, 20, 53]
    assert pixels[1, 0].tolist() == [253, 240, 190]
    assert pixels[1, 1].tolist() == [150, 150, 150]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "YCbCr"])
def test_images_of_every_mode_are_made_small(mode):
    kind = {"CMYK": "JPEG", "YCbCr": "JPEG", "F": "TIFF"}.get(mode, "PNG")
    out = io.BytesIO()
    Image.new(mode, (640, 320)).save(out, kind)
    assert pixels_of(image_picture(out.getvalue(), 160)).shape == (80, 160, 3)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_image_are_refused(data):
    with pytest.raises(DecodeError):
        image_picture(data, 100)
