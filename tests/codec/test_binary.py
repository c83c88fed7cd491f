"""msgpack, cbor, pickle, pth, gzip, and bytes as they are."""

from __future__ import annotations

import gzip as stdlib_gzip
import io
import pickle
import zlib

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import EncodeOptions, decode, decode_spec, encode
from shoal.errors import DecodeError, EncodeError, UnsafeCodecError

TRUE = decode_spec(True)
TRUSTING = EncodeOptions(allow_pickle=True)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


to_encode = values.filter(lambda value: not isinstance(value, bytes))  # bytes are encoded already


@pytest.mark.parametrize("extension", ["msgpack", "mp", "msg", "cbor"])
@given(value=to_encode)
def test_values_come_back(extension, value):
    assert decode(extension, memoryview(encode(extension, value)), TRUE) == value


@given(value=to_encode.filter(lambda value: value is not None and not isinstance(value, str)))
def test_msgpack_is_webdatasets(wds_decode, wds_encode, value):
    assert encode("mp", value) == wds_encode("mp", value)
    assert decode("mp", wds_encode("mp", value), TRUE) == wds_decode("mp", encode("mp", value)) == value


def test_a_str_is_a_value_where_the_payload_is_binary():
    assert msgpack.unpackb(encode("mp", "text")) == "text"
    assert decode("cbor", encode("cbor", "text"), TRUE) == "text"


@pytest.mark.parametrize("extension", ["msgpack", "cbor"])
def test_numbers_of_numpy_are_numbers(extension):
    value = {"a": np.float32(0.5), "b": np.arange(3), "c": torch.tensor(2)}
    assert decode(extension, encode(extension, value), TRUE) == {"a": 0.5, "b": [0, 1, 2], "c": 2}


@pytest.mark.parametrize("extension", ["msgpack", "cbor"])
@pytest.mark.parametrize("value", [object(), {"a": object()}])
def test_what_has_no_plain_form_is_refused(extension, value):
    with pytest.raises(EncodeError, match=f"field {extension}"):
        encode(extension, value)


@pytest.mark.parametrize("extension", ["msgpack", "cbor"])
def test_values_cut_anywhere_are_refused(extension):
    data = encode(extension, {"a": [1, 2.5, "text"], "b": None})
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode(extension, data[:size], TRUE)
    with pytest.raises(DecodeError):
        decode(extension, data + b"\x00", TRUE)


# From RFC 8949, appendix A.
@pytest.mark.parametrize(
    "data, value",
    [
        ("00", 0),
        ("1903e8", 1000),
        ("1bffffffffffffffff", 18446744073709551615),
        ("c249010000000000000000", 18446744073709551616),
        ("29", -10),
        ("f93c00", 1.0),
        ("fb3ff199999999999a", 1.1),
        ("f5", True),
        ("f6", None),
        ("4401020304", b"\x01\x02\x03\x04"),
        ("6449455446", "IETF"),
        ("62c3bc", "ü"),
        ("8301820203820405", [1, [2, 3], [4, 5]]),
        ("a26161016162820203", {"a": 1, "b": [2, 3]}),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("7f657374726561646d696e67ff", "streaming"),
    ],
)
def test_cbor_is_the_standards(data, value):
    assert decode("cbor", bytes.fromhex(data), TRUE) == value


class Bomb:
    """An object whose pickle would run code."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


@pytest.mark.parametrize("extension", ["pkl", "pickle", "pyd"])
@given(value=to_encode)
def test_pickle_comes_back_where_it_is_allowed(extension, value):
    assert decode(extension, encode(extension, value, TRUSTING), decode_spec(True, allow_pickle=True)) == value


def test_pickle_is_webdatasets(wds_decode, wds_encode):
    value = {"a": (1, 2), "b": {3}}
    assert wds_decode("pyd", encode("pyd", value, TRUSTING)) == value
    assert decode("pickle", wds_encode("pickle", value), decode_spec(True, allow_pickle=True)) == value


@pytest.mark.parametrize("extension", ["pkl", "pickle", "pyd"])
def test_pickle_is_refused_unless_allowed(extension):
    with pytest.raises(UnsafeCodecError, match="allow_pickle=True") as caught:
        encode(f"x.{extension}", {"a": 1})
    assert caught.value.field == f"x.{extension}"
    for spec in (decode_spec(extension), decode_spec({extension: True}, on_decode_error="keep")):
        with pytest.raises(UnsafeCodecError, match="allow_pickle=True"):
            decode(extension, pickle.dumps(Bomb()), spec)


def test_true_leaves_a_pickle_as_bytes():
    data = pickle.dumps(Bomb())
    assert decode("pkl", data, TRUE) is data
    assert decode("pkl.gz", stdlib_gzip.compress(data), TRUE) == data


def test_a_pickle_that_is_bytes_already_is_written_without_asking():
    assert encode("pkl", pickle.dumps(1)) == pickle.dumps(1)


def test_a_damaged_pickle_is_refused():
    with pytest.raises(DecodeError, match="a pickle"):
        decode("pkl", b"\x80\x04nonsense", decode_spec(True, allow_pickle=True))


def test_pth_comes_back_and_is_webdatasets(wds_decode, wds_encode):
    value = {"weight": torch.arange(6.0).reshape(2, 3), "step": 3}
    ours = encode("pth", value)
    assert ours == encode("pth", value)
    for decoded in (
        decode("pth", ours, decode_spec("pth")),
        decode("pth", wds_encode("pth", value), decode_spec({"pth": True})),
    ):
        assert torch.equal(decoded["weight"], value["weight"])
        assert decoded["step"] == 3
    assert torch.equal(wds_decode("pth", ours)["weight"], value["weight"])


def test_pth_with_more_than_weights_is_refused():
    stream = io.BytesIO()
    torch.save(Bomb(), stream)
    with pytest.raises(UnsafeCodecError, match="more than weights"):
        decode("pth", stream.getvalue(), decode_spec("pth", allow_pickle=True))


def test_a_damaged_pth_is_refused():
    with pytest.raises((DecodeError, UnsafeCodecError)):
        decode("pth", encode("pth", torch.ones(3))[:100], decode_spec("pth"))


FIELDS = [
    ("meta.json.gz", {"a": [1, 2]}),
    ("txt.gz", "a cat"),
    ("cls.GZ", 7),
    ("x.npy.gz", np.arange(4)),
    ("mp.gz", {"b": 2}),
]


@pytest.mark.parametrize("field, value", FIELDS)
def test_gzipped_fields_come_back(field, value):
    data = encode(field, value)
    assert data[:2] == b"\x1f\x8b"
    assert data[4:8] == bytes(4), "a time in the header would make each run's bytes differ"
    assert np.array_equal(decode(field, data, TRUE), value)


@pytest.mark.parametrize("field, value", [pair for pair in FIELDS if pair[0].endswith("gz")])
def test_gzipped_fields_are_webdatasets(wds_decode, wds_encode, field, value):
    assert np.array_equal(wds_decode(field, encode(field, value)), value)
    assert np.array_equal(decode(field, wds_encode(field, value), TRUE), value)


@given(data=st.binary())
def test_gzip_of_bytes_is_webdatasets(wds_decode, data):
    if data[:2] != b"\x1f\x8b":
        assert stdlib_gzip.decompress(encode("blob.bin.gz", data)) == data
        assert wds_decode("blob.bin.gz", encode("blob.bin.gz", data)) == data
    assert decode("gz", stdlib_gzip.compress(data), TRUE) == data


def test_gzip_data_is_not_compressed_again():
    data = stdlib_gzip.compress(b"{}")
    assert encode("meta.json.gz", data) == data


def test_only_one_gz_is_undone(wds_decode):
    data = stdlib_gzip.compress(stdlib_gzip.compress(b"1"))
    assert decode("json.gz.gz", data, TRUE) == wds_decode("json.gz.gz", data) == stdlib_gzip.decompress(data)


def test_gz_inside_a_spec_that_leaves_it_alone_stays_compressed():
    data = stdlib_gzip.compress(b"{}")
    assert decode("json.gz", data, decode_spec(False)) is data
    assert decode("json.gz", data, decode_spec({"json": False})) is data
    assert decode("json.gz", data, decode_spec({"json.gz": False})) is data
    assert decode("jpg.gz", stdlib_gzip.compress(b"picture"), TRUE) == b"picture"


def test_several_members_and_padding_are_read(wds_decode):
    data = stdlib_gzip.compress(b"[1,") + stdlib_gzip.compress(b"2]") + bytes(100)
    assert decode("json.gz", data, TRUE) == wds_decode("json.gz", data) == [1, 2]


@pytest.mark.parametrize("members", [1, 3])
def test_a_gzip_bomb_is_refused(members):
    data = stdlib_gzip.compress(bytes(400_000)) * members
    with pytest.raises(DecodeError, match="at most 300000 bytes"):
        decode("txt.gz", data, decode_spec(True, max_bytes=300_000))
    assert len(decode("txt.gz", data, decode_spec(True, max_bytes=400_000 * members))) == 400_000 * members


def test_a_bomb_of_many_members_is_refused():
    with pytest.raises(DecodeError, match="at most 1000 bytes"):
        decode("txt.gz", stdlib_gzip.compress(bytes(100)) * 11, decode_spec(True, max_bytes=1000))


def test_gzip_cut_anywhere_or_damaged_is_refused():
    data = stdlib_gzip.compress(b"a long enough text, a long enough text")
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode("txt.gz", data[:size], TRUE)
    with pytest.raises(DecodeError):
        decode("txt.gz", data[:-8] + bytes(4) + data[-4:], TRUE)
    with pytest.raises(DecodeError):
        decode("txt.gz", data + b"garbage", TRUE)
    with pytest.raises(DecodeError):
        decode("txt.gz", zlib.compress(b"not gzip"), TRUE)


@pytest.mark.parametrize("field", ["blob.bin", "jpg", "json", "npy", "pkl", "mp4", "noextension", "weird."])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_pass_through(field, wrap):
    encoded = encode(field, wrap(b"as it is"))
    assert bytes(encoded) == b"as it is"
    assert isinstance(encoded, bytes | memoryview)


def test_views_are_not_copied():
    block = bytearray(b"0123456789")
    encoded = encode("bin", memoryview(block)[2:5])
    block[2] = ord("x")
    assert bytes(encoded) == b"x34"


@pytest.mark.parametrize("array", [np.arange(6, dtype="f4").reshape(2, 3), np.arange(10)[::2], np.zeros((0, 3))])
def test_a_view_of_numbers_counts_as_bytes(array):
    encoded = encode("bin", memoryview(array))
    assert len(encoded) == array.nbytes
    assert bytes(encoded) == array.tobytes()


def test_text_under_an_unknown_name_is_utf8(wds_encode):
    assert encode("blob.xyz", "ä") == "ä".encode() == wds_encode("blob.xyz", "ä")


@pytest.mark.parametrize("value", [5, None, {"a": 1}, np.arange(3)])
def test_other_values_under_an_unknown_name_are_refused(value):
    with pytest.raises(EncodeError, match="register_codec") as caught:
        encode("blob.xyz", value)
    assert caught.value.field == "blob.xyz"
