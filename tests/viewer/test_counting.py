"""Facets, suggestions and pictures by themselves: what they count is what conditions find."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import shoal
from shoal.errors import DecodeError
from shoal.viewer._autocomplete import suggestions
from shoal.viewer._media import array_facts, array_picture, image_picture, line_plot
from shoal.viewer._page_samples import facets_of, joined
from shoal.viewer._session import SampleQuery, ViewerSession, ViewOptions

NUMBERS = itertools.count()
VALUES = st.one_of(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=40),
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40),
    st.lists(st.sampled_from(["a", "it's", 'say "x"', "", "ü\u202e", "null"]), min_size=1, max_size=40),
    st.lists(st.booleans(), min_size=1, max_size=40),
)


def opened_with(values):
    root = f"memory://viewer-counting/{next(NUMBERS)}"
    with shoal.ShardWriter(f"{root}/a-%06d.tar", max_samples=16) as writer:
        for number, value in enumerate(values):
            facts = {"n": number} if value is None else {"n": number, "my value": value}
            writer.write({"__key__": f"k{number}", "json": facts})
    return ViewerSession(ViewOptions(root))


@settings(max_examples=40, deadline=None)
@given(VALUES, st.integers(0, 5))
def test_each_bin_holds_what_its_condition_finds(values, nulls):
    opened = opened_with([*values, *[None] * nulls])
    facet = next(one for one in facets_of(opened, SampleQuery()) if one.name == "json.my value")
    assert facet.nulls == nulls
    for one in facet.bins:
        assert opened.numbers(SampleQuery(one.where)).count == one.count, one
        assert opened.numbers(SampleQuery(joined("n >= 0 or n < 0", one.where))).count == one.count
    if facet.is_histogram:
        assert sum(one.count for one in facet.bins) == len(values)
        assert len(facet.bins) <= 30


def test_a_column_where_all_differ_lists_none_of_them():
    facet = next(
        one for one in facets_of(opened_with([f"name {n}" for n in range(300)]), SampleQuery()) if "my" in one.name
    )
    assert (facet.bins, facet.distinct) == ((), 300)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ["n ", '"my value" ', "__key__ "]),
        ("my", ['"my value" ']),
        ("n >= 1 and m", ['"my value" ', "n "][:1]),
        ("n ", ["= ", "!= ", ">= ", "<= ", "> ", "< ", "between ", "in (", "is null", "is not null"]),
        ("n i", ["in (", "is null", "is not null"]),
        ('"my value" = ', ["'cat' ", "'it''s' ", "'dog' "]),
        ('"my value" = \'c', ["'cat' "]),
        ("\"my value\" in ('cat', ", ["'cat' ", "'it''s' ", "'dog' "]),
        ("n = 1 ", ["and ", "or "]),
        ("n = 1 a", ["and "]),
        ("nothing = ", []),
    ],
)
def test_suggestions_fit_the_place(text, expected):
    opened = opened_with(["cat", "cat", "cat", "it's", "it's", "dog"])
    start, found = suggestions(opened, text, len(text))
    assert [one.text for one in found] == expected
    assert text[start:].strip() == text[start:]


@given(st.text(max_size=40), st.integers(0, 40))
def test_suggestions_never_fail(text, at):
    opened = (
        opened_with(["cat"])
        if not hasattr(test_suggestions_never_fail, "opened")
        else test_suggestions_never_fail.opened
    )
    test_suggestions_never_fail.opened = opened
    start, _ = suggestions(opened, text, min(at, len(text)))
    assert 0 <= start <= len(text)


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
