"""Payloads: the layout, every type packed and unpacked, errors with a path, and arrays without copies."""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.sample.strategies import samples, schemas

from shoal.errors import DecodeError, SchemaMismatchError
from shoal.sample import DictSample, array_span, class_from_schema, field_spans, pack, packable, same, schema_of, unpack
from shoal.schema import Array, schema_from_json, schema_hash, schema_to_json

SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    ONE = 1
    HALF = 0.5
    WORD = "word"


@packable
class Box:
    x: float
    y: float
    label: str = ""


@packable
class Everything:
    text: str
    number: int
    real: float
    flag: bool
    raw: bytes
    array: NDArray
    single: NDArray[np.float32]
    plain: np.ndarray
    fixed: Annotated[NDArray[np.uint8], Array(shape=(None, 3))]
    maybe: NDArray | None
    old_maybe: NDArray[np.int64] | None
    choice: Literal["a", "b", 3]
    either: int | str
    words: list[str]
    pair: tuple[int, str]
    many: tuple[float, ...]
    table: dict[str, int]
    numbered: dict[int, str]
    arrays: list[NDArray[np.float32]]
    named: dict[str, NDArray[np.int16]]
    when: dt.datetime
    day: dt.date
    clock: dt.time
    colour: Colour
    mixed: Mixed
    box: Box
    boxes: list[Box]
    mixture: NDArray[np.float32] | str
    anything: Any


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "text": "cät",
        "number": -5,
        "real": 0.5,
        "flag": True,
        "raw": b"\x00\xff",
        "array": np.arange(6).reshape(2, 3),
        "single": np.array([1.5, np.nan], np.float32),
        "plain": np.zeros((0, 4), np.int8),
        "fixed": np.ones((2, 3), np.uint8),
        "maybe": None,
        "old_maybe": np.array(7),
        "choice": 3,
        "either": "word",
        "words": ["a", ""],
        "pair": (1, "x"),
        "many": (1.0, 2.0),
        "table": {"a": 1},
        "numbered": {-1: "x"},
        "arrays": [np.zeros(2, np.float32)],
        "named": {"k": np.ones(1, np.int16)},
        "when": dt.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=dt.UTC),
        "day": dt.date(2024, 2, 29),
        "clock": dt.time(23, 59),
        "colour": Colour.BLUE,
        "mixed": Mixed.HALF,
        "box": Box(1.0, 2.0),
        "boxes": [Box(3.0, 4.0, "b")],
        "mixture": np.zeros(1, np.float32),
        "anything": {"k": [1, None, np.arange(2)]},
    }
    return Everything(**{**values, **changes})


def test_every_type_comes_back():
    sample = everything()
    back = Everything.from_bytes(sample.packed)
    assert back == sample
    assert back.colour is Colour.BLUE
    assert type(back.pair) is tuple
    assert back.boxes[0] == Box(3.0, 4.0, "b")
    assert back.single.dtype == np.float32
    assert back.packed == sample.packed


@SLOW
@given(st.data())
def test_any_schema_gives_a_class_whose_samples_come_back(data):
    schema = data.draw(schemas())
    made = class_from_schema(schema)
    assert schema_of(made) == schema
    sample = data.draw(samples(made))
    payload = sample.packed
    back = made.from_bytes(payload)
    assert back == sample
    assert back.packed == payload
    assert list(msgpack.unpackb(payload, strict_map_key=False)) == list(schema.names)
    assert made.from_data(dict(vars(sample))) == sample
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert made.from_bytes(bytearray(payload), writable=True) == sample


@SLOW
@given(st.data())
def test_class_to_schema_to_json_to_schema_to_class(data):
    schema = data.draw(schemas())
    again = schema_from_json(schema_to_json(schema))
    assert again == schema
    assert schema_hash(again) == schema_hash(schema)
    assert class_from_schema(again) is class_from_schema(schema)


@packable
class Pair:
    x: NDArray
    n: int


COMPACT = bytes.fromhex("82a178c411033c69320102000000000000000000" + "0100a16e05")


def test_atdata_writes_this_and_it_is_read():
    # The example of atdata's own layout: {x: int16[0, 1], n: 5}, the array in its compact form.
    sample = Pair.from_bytes(COMPACT)
    assert sample == Pair(np.array([0, 1], np.int16), 5)
    assert DictSample.from_bytes(COMPACT).x.tolist() == [0, 1]
    assert array_span(COMPACT, field_spans(COMPACT)["x"]) == (np.dtype("int16"), (2,), "C", 18, 4)


def test_ours_is_a_plain_map_with_npy_in_field_order():
    payload = Pair(np.array([0, 1], np.int16), 5).packed
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }"
    npy = header.ljust(127) + b"\n" + b"\x00\x00\x01\x00"
    assert payload == b"\x82\xa1x\xc4\x84" + npy + b"\xa1n\x05"


@pytest.mark.parametrize(
    "array",
    [
        np.array(5.0),
        np.zeros((0, 3)),
        np.arange(6).reshape(2, 3).T,
        np.array([True]),
        np.array([1 + 2j]),
        np.array([1.0], ">f4"),
        np.array(["2020-01-01"], "M8[D]"),
        np.array(["ab"], "U5"),
        np.array([b"ab"], "S3"),
        np.array([1.5], np.float16),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_both_forms_of_an_array_are_read(array):
    name = array.dtype.str.encode()
    compact = bytes([len(name)]) + name + bytes([array.ndim])
    compact += b"".join(length.to_bytes(8, "little") for length in array.shape) + array.tobytes()
    for data in (compact, Pair(array, 1).packed and msgpack.unpackb(Pair(array, 1).packed)["x"]):
        payload = msgpack.packb({"x": data, "n": 1})
        assert Pair.from_bytes(payload) == Pair(array, 1)
        assert DictSample.from_bytes(payload)["x"].tolist() == array.tolist()


def test_scalars_as_other_readers_see_them():
    plain = msgpack.unpackb(everything().packed, strict_map_key=False)
    assert plain["when"] == "2024-02-29T12:30:01.000005+00:00"
    assert plain["day"] == "2024-02-29"
    assert plain["colour"] == "blue"
    assert plain["pair"] == [1, "x"]
    assert plain["maybe"] is None
    assert plain["box"] == {"x": 1.0, "y": 2.0, "label": ""}
    assert type(plain["real"]) is float


def test_numpy_scalars_and_whole_numbers_become_plain_numbers():
    @packable
    class Numbers:
        f: float
        i: int
        b: bool
        s: str

    payload = Numbers(np.float32(0.5), np.int8(3), np.True_, np.str_("x")).packed  # type: ignore[arg-type]
    assert msgpack.unpackb(payload) == {"f": 0.5, "i": 3, "b": True, "s": "x"}
    assert payload == Numbers(0.5, 3, True, "x").packed
    assert Numbers(1, 3, True, "x").packed == Numbers(1.0, 3, True, "x").packed


def test_timestamps_of_other_writers_are_read():
    @packable
    class Timed:
        when: dt.datetime

    moment = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert Timed.from_bytes(msgpack.packb({"when": moment}, datetime=True)).when == moment


def test_an_offset_of_seconds_is_written_as_utc():
    @packable
    class Timed:
        when: dt.datetime

    moment = dt.datetime(1880, 1, 1, tzinfo=dt.timezone(dt.timedelta(minutes=53, seconds=28)))
    assert Timed.from_bytes(Timed(moment).packed).when == moment


def test_arrays_are_read_only_views_of_the_payload():
    payload = Pair(np.arange(1000), 1).packed
    x = Pair.from_bytes(payload).x
    assert not x.flags.writeable
    assert not x.flags.owndata
    assert np.shares_memory(x, np.frombuffer(payload, np.uint8))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("times", [1, 2], ids=["first", "again"])
def test_a_payload_that_can_change_still_gives_read_only_arrays(kind, times):
    payload = kind(Pair(np.arange(5), 1).packed)
    for _ in range(times):
        x = Pair.from_bytes(payload).x
        assert not x.flags.writeable
        assert x.tolist() == [0, 1, 2, 3, 4]


def test_writable_arrays_are_copies():
    payload = Pair(np.arange(5), 1).packed
    sample = Pair.from_bytes(payload, writable=True)
    sample.x[0] = 9
    assert Pair.from_bytes(payload).x[0] == 0


def test_arrays_of_changing_shapes_and_dtypes_are_told_apart():
    # The reader remembers the last header; another one of the same length must not be taken for it.
    arrays = [np.arange(4), np.arange(4.0), np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2).T, np.arange(5)]
    for array in [*arrays, *reversed(arrays), *arrays]:
        assert Pair.from_bytes(Pair(array, 1).packed) == Pair(array, 1)


@pytest.mark.parametrize(
    "array", [np.array(7), np.array([], np.int8), np.array([True]), np.zeros(2, "M8[s]")], ids=repr
)
def test_the_same_array_again_gives_the_same_bytes(array):
    payloads = {Pair(array.copy(), 1).packed for _ in range(3)}
    assert len(payloads) == 1
    assert all(Pair.from_bytes(payloads.copy().pop()) == Pair(array, 1) for _ in range(3))


def test_strided_arrays_are_written_right_after_plain_ones():
    base = np.arange(10)
    for array in (base[:5], base[::2], base[:5], base[::-2]):
        assert Pair.from_bytes(Pair(array, 0).packed).x.tolist() == array.tolist()


WRONG = [
    ("text", 3, "text", "str", "int"),
    ("number", 1.5, "number", "int", "float"),
    ("number", True, "number", "int", "bool"),
    ("number", 2**64, "number", "int from -2**63 to 2**64 - 1", str(2**64)),
    ("text", "\ud800", "text", "str that UTF-8 can hold", r"'\ud800'"),
    ("real", "1", "real", "float", "str"),
    ("flag", 1, "flag", "bool", "int"),
    ("raw", "x", "raw", "bytes", "str"),
    ("array", [1, 2], "array", "array", "list"),
    ("single", np.zeros(2), "single", "array[float32]", "array[float64, (2,)]"),
    ("fixed", np.zeros((3, 2), np.uint8), "fixed", "array[uint8, (None, 3)]", "array[uint8, (3, 2)]"),
    ("array", np.array([object()]), "array", "array that .npy can hold", "object"),
    ("choice", "c", "choice", "Literal['a', 'b', 3]", "'c'"),
    ("choice", True, "choice", "Literal['a', 'b', 3]", "True"),
    ("either", 1.5, "either", "int | str", "float"),
    ("words", ["a", 2], "words[1]", "str", "int"),
    ("words", "ab", "words", "list[str]", "str"),
    ("pair", (1,), "pair", "tuple[int, str] of 2 items", "1 items"),
    ("pair", ("x", "x"), "pair[0]", "int", "str"),
    ("table", {"a": "b"}, "table['a']", "int", "str"),
    ("table", {1: 1}, "table[1]", "str", "int"),
    ("arrays", [np.zeros(1, np.float32), None], "arrays[1]", "array[float32]", "None"),
    ("when", "2024-01-01", "when", "datetime", "str"),
    ("day", dt.datetime(2024, 1, 1), "day", "date", "datetime"),  # noqa: DTZ001
    ("colour", "blue", "colour", "Colour['red', 'blue']", "str"),
    ("box", {"x": 1.0}, "box", "Box", "dict"),
    ("box", Box("1", 2.0), "box.x", "float", "str"),  # type: ignore[arg-type]
    ("boxes", [Box(1.0, 2.0), Box(1.0, 2.0, None)], "boxes[1].label", "str", "None"),  # type: ignore[arg-type]
    ("boxes", [Box(1.0, 2.0, "\ud800")], "boxes[0].label", "str that UTF-8 can hold", r"'\ud800'"),
    ("anything", {"a": [object()]}, "anything['a'][0]", "what MessagePack holds, or an array", "object"),
    ("anything", [np.array([None])], "anything[0]", "array that .npy can hold", "object"),
    ("anything", {(1,): 1}, "anything[(1,)]", "str or int as a key", "tuple"),
    ("anything", [2**70], "anything[0]", "int from -2**63 to 2**64 - 1", str(2**70)),
]


@pytest.mark.parametrize("name, value, path, expected, found", WRONG, ids=[f"{w[0]}-{w[4][:20]}" for w in WRONG])
def test_a_wrong_value_is_refused_with_its_path(name, value, path, expected, found):
    sample = everything(**{name: value})
    with pytest.raises(SchemaMismatchError) as raised:
        _ = sample.packed
    error = raised.value
    assert (error.field, error.expected, error.found) == (path, expected, found)
    assert "Everything" in str(error)
    assert error.at(key="007").key == "007"


BAD = [
    ({"text": 3}, "text", "str", "int"),
    ({"single": b"\x93NUMPY"}, "single", None, None),
    ({"words": ["a", 3]}, "words[1]", "str", "int"),
    ({"choice": "z"}, "choice", None, None),
    ({"colour": "green"}, "colour", "Colour['red', 'blue']", None),
    ({"mixed": 7}, "mixed", "Mixed[1, 0.5, 'word']", "7"),
    ({"when": "yesterday"}, "when", "datetime", None),
    ({"pair": [1]}, "pair", None, None),
    ({"box": {"x": 1.0}}, "box.y", "a value", "nothing"),
    ({"boxes": [{"x": "1", "y": 2.0}]}, "boxes[0].x", "float", "str"),
    ({"either": None}, "either", "int | str", "None"),
    ({"mixture": 3}, "mixture", "array[float32] | str", "int"),
    ({"arrays": [Pair(np.zeros(1), 1).packed]}, "arrays[0]", None, None),
]


@pytest.mark.parametrize("changes, path, expected, found", BAD, ids=lambda value: str(value)[:30])
def test_data_that_does_not_fit_is_refused_with_its_path(changes, path, expected, found):
    plain = msgpack.unpackb(everything().packed, strict_map_key=False)
    with pytest.raises((SchemaMismatchError, DecodeError)) as raised:
        Everything.from_bytes(msgpack.packb({**plain, **changes}))
    error = raised.value.at(shard="a.tar", key="007")
    assert error.field == path
    assert expected is None or error.expected == expected
    assert found is None or error.found == found
    assert "shard a.tar, key 007" in str(error)


def test_an_array_of_another_dtype_is_refused_at_reading():
    @packable
    class Wide:
        x: NDArray[np.float64]

    @packable
    class Narrow:
        x: NDArray[np.float32]

    payload = Narrow(np.zeros(2, np.float32)).packed
    for _ in range(2):
        with pytest.raises(
            SchemaMismatchError, match=r"expected array\[float64\], found array\[float32, \(2,\)\] \(field x\)"
        ):
            Wide.from_bytes(payload)


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_a_cut_payload_is_refused(cut):
    payload = Pair(np.arange(3), 5).packed
    for read in (Pair.from_bytes, DictSample.from_bytes, field_spans):
        with pytest.raises(DecodeError):
            read(payload[:cut])


@pytest.mark.parametrize("payload", [b"\x93\x01\x02\x03", b"\xc0", b"\x81\x01\x02", COMPACT + b"\x00", b"\xc1"])
def test_what_is_not_one_map_is_refused(payload):
    for read in (Pair.from_bytes, DictSample.from_bytes, field_spans):
        with pytest.raises((DecodeError, SchemaMismatchError)):
            read(payload)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_never_worse(data):
    for read in (Pair.from_bytes, lambda data: DictSample.from_bytes(data).to_dict(), field_spans):
        with contextlib.suppress(DecodeError, SchemaMismatchError):
            read(data)


@given(st.binary(max_size=40))
def test_any_bytes_as_an_array_are_read_or_refused(data):
    payload = msgpack.packb({"x": data, "n": 1})
    with contextlib.suppress(SchemaMismatchError):
        try:
            Pair.from_bytes(payload)
        except DecodeError as error:
            assert error.field == "x"  # noqa: PT017 - most bytes are refused, but not all


def test_a_deep_payload_does_not_exhaust_the_stack():
    payload = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
    assert field_spans(payload)["x"] == (3, len(payload), 4, "list")
    for read in (Pair.from_bytes, Everything.from_bytes, lambda data: DictSample.from_bytes(data)["x"]):
        with pytest.raises((DecodeError, SchemaMismatchError)):
            read(payload)


@dataclass
class Plain:
    x: NDArray[np.float32]
    tags: list[str] = field(default_factory=list)


def test_a_dataclass_is_packed_as_it_is():
    sample = Plain(np.zeros(2, np.float32), ["a"])
    back = unpack(Plain, pack(sample))
    assert type(back) is Plain
    assert same(vars(back), vars(sample))


def test_equality_of_containers_and_nan():
    assert same({"a": [np.array([np.nan]), float("nan")]}, {"a": [np.array([np.nan]), float("nan")]})
    assert not same([1], (1,))
    assert not same(np.array([0.0]), np.array([-0.0]))
    assert not same(np.zeros(2), [0.0, 0.0])
