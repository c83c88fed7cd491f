"""Image specs: names with a size, checked options, and equality."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import ImageSpec, decode_spec
from shoal.codec._image_spec import IMAGE_FORMS
from shoal.errors import OptionError


@pytest.mark.parametrize(
    "name, spec",
    [
        ("rgb8@224", ImageSpec("rgb8", (224, 224))),
        ("RGB8@224x320", ImageSpec("rgb8", (224, 320))),
        ("torchl@7x1", ImageSpec("torchl", (7, 1))),
        ("pil@5", ImageSpec("pil", 5)),
    ],
)
def test_a_form_with_a_size_is_short_for_a_spec(name, spec):
    assert decode_spec(name).steps == (spec,)
    assert decode_spec({"jpg": name}).fields == ((("jpg",), spec),)
    assert decode_spec(spec).steps == (spec,)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("rgb9@224", "rgb8"),
        ("@224", "rgb8"),
        ("audio@224", "rgb8"),
        ("rgb8@", "rgb8@224x320"),
        ("rgb8@x3", "rgb8@224x320"),
        ("rgb8@3x", "rgb8@224x320"),
        ("rgb8@-3", "rgb8@224x320"),
        ("rgb8@3@4", "rgb8@224x320"),
        ("rgb8@0", "at least 1"),
        ("rgb8@999999999", "pixels at most"),
        ("numpy@224", "rgb8"),
    ],
)
def test_a_wrong_name_is_told_what_there_is(name, expected):
    for wrong in (name, {"jpg": name}):
        with pytest.raises(OptionError) as caught:
            decode_spec(wrong)
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    "option, expected",
    [
        ({"form": "rgb9"}, "rgb8"),
        ({"fit": "squeeze"}, "'stretch' or 'crop' or 'pad'"),
        ({"interpolation": "cubic"}, "'area' or 'linear' or 'nearest'"),
        ({"decoder": "dali"}, "'fastest' or 'simplejpeg' or 'cv2' or 'pillow'"),
        ({"resizer": "simplejpeg"}, "'fastest' or 'cv2' or 'pillow'"),
        ({"size": (3,)}, "(height, width)"),
        ({"size": (3, 0)}, "(height, width)"),
        ({"size": (3, 2.5)}, "(height, width)"),
        ({"size": "224"}, "(height, width)"),
        ({"size": True}, "(height, width)"),
    ],
)
def test_a_wrong_value_is_told_what_there_is(option, expected):
    with pytest.raises(OptionError) as caught:
        ImageSpec(**option)
    assert expected in str(caught.value)


@given(
    spec=st.builds(
        ImageSpec,
        form=st.sampled_from([name for name, form in IMAGE_FORMS.items() if form.mode]),
        size=st.none() | st.integers(1, 99) | st.tuples(st.integers(1, 99), st.integers(1, 99)),
        fit=st.sampled_from(["stretch", "crop", "pad"]),
        interpolation=st.sampled_from(["area", "linear", "nearest"]),
        scaled=st.booleans(),
        decoder=st.sampled_from(["fastest", "simplejpeg", "cv2", "pillow"]),
        resizer=st.sampled_from(["fastest", "cv2", "pillow"]),
    )
)
def test_a_spec_is_a_value(spec):
    assert eval(repr(spec)) == spec == pickle.loads(pickle.dumps(spec))
    assert hash(decode_spec(spec)) == hash(decode_spec(pickle.loads(pickle.dumps(spec))))
