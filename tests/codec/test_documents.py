"""Text, integers, JSON, msgpack, CBOR, pickle and gzip: exact both ways, and the same as webdataset's."""

from __future__ import annotations

import gzip as stdlib_gzip
import json
import math
import os
import pickle
import subprocess
import sys
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
TEXT = ["txt", "text", "caption", "transcript", "html", "htm"]
INTEGER = ["cls", "cls2", "class", "count", "index", "inx", "id"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def identical(left, right):
    """Whether two values are equal, where NaN equals NaN, and 1, 1.0 and True differ."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(identical(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(identical, left, right))
    return type(left) is type(right) and (left == right or (left != left and right != right))


@pytest.mark.parametrize("extension", TEXT)
@given(text=st.text())
def test_text_comes_back(extension, text):
    assert decode(extension, encode(extension, text), TRUE) == text


@given(text=st.text())
def test_text_is_webdatasets(wds_decode, wds_encode, text):
    assert encode("a.txt", text) == wds_encode("a.txt", text)
    assert decode("a.txt", text.encode(), TRUE) == wds_decode("a.txt", text.encode())


def test_text_is_not_stripped():
    assert decode("txt", b" a cat\r\n", TRUE) == " a cat\r\n"


def test_bad_utf8_names_the_byte():
    with pytest.raises(DecodeError) as caught:
        decode("caption", b"a cat \xff!", TRUE)
    assert (caught.value.offset, caught.value.field, caught.value.expected) == (6, "caption", "UTF-8 text")


@pytest.mark.parametrize("value", [5, 1.5, None, ["a"], {"a": 1}])
def test_only_text_is_text(value):
    with pytest.raises(EncodeError, match="field txt"):
        encode("txt", value)


@pytest.mark.parametrize("extension", INTEGER)
@given(number=st.integers(-(10**30), 10**30))
def test_integers_come_back(extension, number):
    assert decode(extension, encode(extension, number), TRUE) == number


@pytest.mark.parametrize("extension", INTEGER)
@pytest.mark.parametrize("number", [0, -7, 2**63])
def test_integers_are_written_as_webdataset_writes_them(wds_encode, extension, number):
    assert encode(extension, number) == wds_encode(extension, number)


@pytest.mark.parametrize("extension", ["cls", "cls2", "index", "inx", "id"])
@pytest.mark.parametrize("data", [b"7", b" 12\n", b"-3", b"+4", b"0007"])
def test_integers_are_read_as_webdataset_reads_them(wds_decode, extension, data):
    assert decode(extension, memoryview(data), TRUE) == wds_decode(extension, data)


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)])
def test_integers_of_other_libraries_are_integers(value):
    assert encode("cls", value) == b"3"


def test_true_is_one():
    assert decode("cls", encode("cls", True), TRUE) == 1


@pytest.mark.parametrize("value", [1.5, 2.0, None, [1], np.float32(3), "cat", "", "1.5"])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(EncodeError, match="field cls"):
        encode("cls", value)


@pytest.mark.parametrize("data", [b"", b"cat", b"1.5", b"1 2", b"9" * 5000])
def test_what_does_not_read_as_an_integer_is_refused(data):
    with pytest.raises(DecodeError, match="an integer in decimal digits"):
        decode("cls", data, TRUE)


@given(value=json_values.filter(lambda value: not isinstance(value, str)))  # a str is JSON text already
def test_json_comes_back(value):
    assert identical(decode("json", encode("json", value), TRUE), value)


def test_a_null_is_none_where_webdataset_leaves_the_bytes(wds_decode):
    assert wds_decode("json", b"null") == b"null"  # None means "not mine" among its handlers
    assert decode("json", b"null", TRUE) is None


@given(value=json_values.filter(lambda value: value is not None and not isinstance(value, str)))
def test_webdataset_reads_our_json_and_we_read_theirs(wds_decode, wds_encode, value):
    assert identical(wds_decode("json", encode("json", value)), value)
    assert identical(decode("jsn", wds_encode("jsn", value), TRUE), value)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ascii_only", [True, False])
@given(value=json_values)
def test_json_of_any_style_reads_as_the_standard_librarys(indent, ascii_only, value):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert identical(decode("json", text, TRUE), json.loads(text))


@pytest.mark.parametrize(
    "data",
    [
        b"NaN",
        b"[Infinity, -Infinity]",
        b"1e999",
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        '{"ä": 1}'.encode("utf-16"),
        b"9" * 40,
    ],
)
def test_what_only_the_standard_library_takes_is_taken(wds_decode, data):
    assert identical(decode("json", data, TRUE), wds_decode("json", data))


@pytest.mark.parametrize("value", [math.nan, [1.5, math.inf], {"a": None, "b": [-math.inf]}, np.float32("nan")])
def test_no_number_becomes_null(value):
    decoded = decode("json", encode("json", value), TRUE)
    assert identical(decoded, value.item() if isinstance(value, np.generic) else value)


def test_null_stays_null():
    assert encode("json", {"a": None, "b": "null"}) == b'{"a":null,"b":"null"}'


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": 1}x', b"{'a': 1}", b'"\x01"', b'{"a": "\xff"}', b"[" * 100_000])
def test_invalid_json_is_refused_with_the_field(data):
    with pytest.raises(DecodeError, match="JSON text") as caught:
        decode("meta.json", data, TRUE)
    assert caught.value.field == "meta.json"


@pytest.mark.parametrize("data, offset", [(b'{"a": 1, }', 9), (b'{"a": "\xff"}', 7)])
def test_invalid_json_names_the_byte(data, offset):
    with pytest.raises(DecodeError) as caught:
        decode("json", data, TRUE)
    assert caught.value.offset == offset


def test_numbers_of_numpy_and_torch_are_numbers():
    value = {"a": np.float32(0.5), "b": np.arange(3), "c": torch.tensor([[1, 2]]), "d": np.int8(4), "e": np.bool_(True)}
    assert encode("json", value) == b'{"a":0.5,"b":[0,1,2],"c":[[1,2]],"d":4,"e":true}'


def test_keys_keep_their_order():
    assert encode("json", {"b": 1, "a": [2]}) == b'{"b":1,"a":[2]}'


def test_a_json_str_is_json_text_already(wds_encode):
    assert encode("json", '{"a": 1}') == b'{"a": 1}' == wds_encode("json", '{"a": 1}')


def test_what_has_no_json_is_refused():
    with pytest.raises(EncodeError, match=r"field a\.json"):
        encode("a.json", {"a": object()})


@pytest.mark.parametrize("extension", ["json", "msgpack", "cbor"])
def test_a_set_gives_the_same_bytes_whatever_the_hash_seed(extension):
    code = f"from shoal.codec import encode; print(encode({extension!r}, {{'x': {{'a', 'b', 'c', 'd', 'e'}}}}).hex())"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(runs) == 1


@given(lines=st.lists(json_values))
def test_json_lines_come_back(lines):
    assert identical(decode("jsonl", encode("jsonl", lines), TRUE), lines)


def test_json_lines_are_lines():
    assert encode("jsonl", [{"a": 1}, "b", None]) == b'{"a":1}\n"b"\nnull\n'
    assert decode("jsonl", b'{"a":1}\r\n\n  \n2', TRUE) == [{"a": 1}, 2]
    assert decode("jsonl", b"", TRUE) == []


def test_a_bad_line_is_named():
    with pytest.raises(DecodeError, match="value 1 is not valid JSON") as caught:
        decode("jsonl", b'{"a":1}\n{oops\n3\n', TRUE)
    assert (caught.value.offset, caught.value.field) == (8, "jsonl")


@pytest.mark.parametrize("value", [{"a": 1}, 5, None])
def test_json_lines_need_a_list(value):
    with pytest.raises(EncodeError, match="list of values"):
        encode("jsonl", value)


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
