"""Text, integers and JSON: exact both ways, and the same as webdataset's."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import decode, decode_spec, encode
from shoal.errors import DecodeError, EncodeError

TRUE = decode_spec(True)
TEXT = ["txt", "text", "caption", "transcript", "html", "htm"]
INTEGER = ["cls", "cls2", "class", "count", "index", "inx", "id"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def same(left, right):
    """Equality in which NaN is itself, and 1, 1.0 and True are three things."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
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


@given(value=values.filter(lambda value: not isinstance(value, str)))  # a str is JSON text already
def test_json_comes_back(value):
    assert same(decode("json", encode("json", value), TRUE), value)


def test_a_null_is_none_where_webdataset_leaves_the_bytes(wds_decode):
    assert wds_decode("json", b"null") == b"null"  # None means "not mine" among its handlers
    assert decode("json", b"null", TRUE) is None


@given(value=values.filter(lambda value: value is not None and not isinstance(value, str)))
def test_webdataset_reads_our_json_and_we_read_theirs(wds_decode, wds_encode, value):
    assert same(wds_decode("json", encode("json", value)), value)
    assert same(decode("jsn", wds_encode("jsn", value), TRUE), value)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ascii_only", [True, False])
@given(value=values)
def test_json_of_any_style_reads_as_the_standard_librarys(indent, ascii_only, value):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert same(decode("json", text, TRUE), json.loads(text))


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
    assert same(decode("json", data, TRUE), wds_decode("json", data))


@pytest.mark.parametrize("value", [math.nan, [1.5, math.inf], {"a": None, "b": [-math.inf]}, np.float32("nan")])
def test_no_number_becomes_null(value):
    decoded = decode("json", encode("json", value), TRUE)
    assert same(decoded, value.item() if isinstance(value, np.generic) else value)


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


@given(lines=st.lists(values))
def test_json_lines_come_back(lines):
    assert same(decode("jsonl", encode("jsonl", lines), TRUE), lines)


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
