"""tf.train.Example, encoded and decoded."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example as case
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import DecodeError, EncodeError
from shoal.formats._tf_example import decode_example, encode_example

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.binary(max_size=200),
    INT64,
    FLOAT32,
    st.lists(st.binary(max_size=20), min_size=2, max_size=5),
    st.lists(INT64, min_size=2, max_size=40),
    st.lists(FLOAT32, min_size=2, max_size=40),
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), VALUES, max_size=6))
@case({"x" * 200: b"long name"})
@case({"a": b"", "b": 0, "c": [0] * 300, "d": [-1] * 30})
def test_encoding_round_trips(features):
    found = decode_example(encode_example(features))
    assert found.keys() == features.keys()
    for name, value in features.items():
        again = found[name]
        if isinstance(value, list) and not isinstance(value[0], bytes):
            assert again.dtype == (np.int64 if isinstance(value[0], int) else np.float32)
            again = again.tolist()
        assert again == value
        assert encode_example({name: found[name]}) == encode_example({name: value})


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(data):
    try:
        found = decode_example(data)
    except DecodeError:
        return
    assert isinstance(found, dict)


@given(st.data())
def test_a_cut_example_is_never_read_as_another(data):
    whole = encode_example({"label": 7, "name": b"hello", "x": [1.5, 2.5]})
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(DecodeError):
        decode_example(whole[:cut])


def test_some_features_and_lists():
    data = encode_example({"a": 1, "b": b"x", "c": 1.5})
    assert decode_example(data, {"a", "c"}) == {"a": 1, "c": 1.5}
    found = decode_example(data, None, lists=True)
    assert found["a"].tolist() == [1]
    assert found["b"] == [b"x"]
    assert decode_example(data, None, lists=("c",))["c"].tolist() == [1.5]


def test_numbers_that_are_not_packed():
    # As the format allows: each number with a tag of its own.
    ints = b"\x08\x05\x08" + b"\xff" * 9 + b"\x01"
    floats = b"\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", 2.5)
    for tag, numbers, expected in ((0x1A, ints, [5, -1]), (0x12, floats, [1.5, 2.5])):
        feature = bytes([tag, len(numbers)]) + numbers
        entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
        features = b"\x0a" + bytes([len(entry)]) + entry
        found = decode_example(b"\x0a" + bytes([len(features)]) + features)
        assert found["a"].tolist() == expected


@pytest.mark.parametrize("value", [{"a": 1}, np.zeros((2, 2)), object(), [b"x", 1j]])
def test_what_no_feature_can_hold(value):
    with pytest.raises((EncodeError, TypeError)):
        encode_example({"x": value})


def test_whole_numbers_have_64_bits():
    with pytest.raises(EncodeError):
        encode_example({"x": np.array([2**63], np.uint64)})
