"""DictSample: untyped data, decoded when it is read."""

from __future__ import annotations

import copy
import datetime as dt
import pickle

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import encode
from shoal.errors import DecodeError, FieldError, SchemaMismatchError
from shoal.sample import DictSample, same

PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=9),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), PLAIN, max_size=5))
def test_what_is_packed_comes_back(data):
    sample = DictSample(data)
    back = DictSample.from_bytes(sample.packed)
    assert back == sample
    assert same(back.to_dict(), data)
    assert same(msgpack.unpackb(sample.packed), data)
    assert back.packed == sample.packed
    assert pickle.loads(pickle.dumps(back)) == copy.deepcopy(back) == sample


def test_access():
    sample = DictSample({"label": "cat", "keys": 3}, score=0.5)
    assert sample.label == sample["label"] == sample.get("label") == "cat"
    assert sample["keys"] == 3
    assert list(sample.keys()) == ["label", "keys", "score"]
    assert list(sample.values()) == ["cat", 3, 0.5]
    assert dict(sample.items()) == sample.to_dict()
    assert sample.get("x", 1) == 1
    assert "score" in sample
    assert len(sample) == 3
    assert "label" in dir(sample)
    assert repr(sample) == "DictSample(label='cat', keys=3, score=0.5)"
    assert sample.as_wds["msgpack"] == sample.packed


def test_absent_fields():
    sample = DictSample(label="cat")
    with pytest.raises(FieldError, match="expected label, found image"):
        sample["image"]
    with pytest.raises(AttributeError, match="image"):
        _ = sample.image
    assert not hasattr(sample, "image")
    with pytest.raises(AttributeError, match="does not change"):
        sample.label = "dog"


def test_arrays_are_decoded_wherever_they_are_without_a_copy():
    array = np.arange(1000)
    payload = DictSample(x=array, deep={"list": [array]}).packed
    sample = DictSample.from_bytes(payload)
    assert np.array_equal(sample.x, array)
    assert np.shares_memory(sample.x, np.frombuffer(payload, np.uint8))
    assert not sample.x.flags.writeable
    assert np.array_equal(sample["deep"]["list"][0], array)


def test_fields_are_decoded_one_by_one():
    sample = DictSample.from_bytes(b"\x82\xa4good\x01\xa3bad\xa2\xff\xff")  # text that is not UTF-8
    assert sample.good == 1
    with pytest.raises(DecodeError) as raised:
        _ = sample.bad
    assert raised.value.field == "bad"


def test_what_only_begins_like_an_array_stays_bytes():
    for data in (encode("npy", np.arange(3))[:-1], b"\x93NUMPY", encode("npy", np.arange(3)) + b"x"):
        assert DictSample.from_bytes(msgpack.packb({"x": bytes(data)})).x == data


@given(st.binary(max_size=30))
def test_bytes_stay_bytes_unless_they_are_exactly_an_array(data):
    value = DictSample.from_bytes(msgpack.packb({"x": data})).x
    assert value == data or isinstance(value, np.ndarray)


def test_values_that_are_not_messagepack_become_what_is():
    sample = DictSample(when=dt.datetime(2024, 1, 1, tzinfo=dt.UTC), n=np.int8(3), pair=(1, 2))
    assert DictSample.from_bytes(sample.packed).to_dict() == {
        "when": "2024-01-01T00:00:00+00:00",
        "n": 3,
        "pair": [1, 2],
    }
    with pytest.raises(SchemaMismatchError, match=r"found object \(field \['x'\]\[0\]\)"):
        _ = DictSample(x=[object()]).packed
