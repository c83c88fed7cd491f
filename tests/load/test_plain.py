"""Plain fields read from where they lie are what unpacking gives, whatever is stored."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

import shoal
from shoal.errors import DecodeError, SchemaMismatchError
from shoal.load import PayloadLayoutCache, PayloadRun, SampleBatch, TypedColumns
from shoal.sample import unpack
from shoal.shard import RawField


@shoal.packable
class Plain:
    whole: int
    real: float
    flag: bool
    text: str
    data: bytes
    maybe: int | None = None
    note: str | None = None


NAMES = [field.name for field in Plain.__schema__.fields]
INTS = st.integers(-(2**63), 2**64 - 1) | st.integers(-200, 200)
ROWS = st.builds(
    Plain,
    INTS,
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=40) | st.text(min_size=250, max_size=300),
    st.binary(max_size=300),
    st.none() | INTS,
    st.none() | st.text(max_size=10),
)


def raw_of(payloads: list[bytes]) -> RawField:
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    keys = pa.array([f"key {number}" for number in range(len(payloads))])
    return RawField(b"".join(payloads), np.cumsum(sizes) - sizes, sizes, keys, ("x.tar",))


@given(st.lists(ROWS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_columns_are_what_unpacking_gives_in_any_order(samples, random):
    run = PayloadRun(raw_of([sample.packed for sample in samples]), PayloadLayoutCache(Plain))
    order = np.array([random.randrange(len(samples)) for _ in range(7)])
    for rows, expected in ((slice(None), samples), (order, [samples[place] for place in order])):
        batch = SampleBatch(TypedColumns([(run, rows)]))
        for name in NAMES:
            column, values = batch.column(name), [getattr(sample, name) for sample in expected]
            assert column == values
            assert [type(value) for value in column] == [type(value) for value in values]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200), min_size=1, max_size=30))
def test_numbers_are_one_array_of_the_type_that_numpy_gives_them(numbers):
    samples = [Plain(number, number / 3, number % 2 == 0, "", b"") for number in numbers]
    batch = SampleBatch(TypedColumns.over(raw_of([sample.packed for sample in samples]), Plain))
    for name in ("whole", "real", "flag"):
        expected = np.asarray([getattr(sample, name) for sample in samples])
        assert batch.array(name).dtype == expected.dtype
        assert np.array_equal(batch.array(name), expected)


def test_an_array_of_numbers_is_the_callers_own():
    batch = SampleBatch(TypedColumns.over(raw_of([Plain(n, n, True, "", b"").packed for n in range(3)]), Plain))
    batch.array("whole")[:] = 9
    assert batch.array("whole").tolist() == batch.whole == [0, 1, 2]


def payload(**changes: object) -> bytes:
    return msgspec.msgpack.encode({"whole": 1, "real": 0.5, "flag": True, "text": "a", "data": b"b", **changes})


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"real": 3}, "real"),
        ({"real": -70_000}, "real"),
        ({"extra": [1, {"a": 2}]}, "text"),
        ({"maybe": None}, "maybe"),
    ],
)
def test_what_is_stored_in_another_way_is_read_as_unpacking_reads_it(changes, name):
    payloads = [payload(), payload(**changes), payload(maybe=300)]
    batch = SampleBatch(TypedColumns.over(raw_of(payloads), Plain))
    assert batch.column(name) == [getattr(unpack(Plain, one), name) for one in payloads]


@pytest.mark.parametrize("name", NAMES[:5])
def test_a_value_of_another_kind_is_refused_with_its_sample(name):
    payloads = [payload(), payload(**{name: [1]})]
    with pytest.raises(SchemaMismatchError) as caught:
        SampleBatch(TypedColumns.over(raw_of(payloads), Plain)).column(name)
    assert (caught.value.shard, caught.value.key, caught.value.field) == ("x.tar", "key 1", name)


@pytest.mark.parametrize("rows", [slice(None), np.array([1, 0])], ids=["neighbours", "any order"])
def test_a_text_that_is_not_utf8_is_refused_with_its_sample(rows):
    wrong = payload(text="abc").replace(b"abc", b"a\xff\xfe")
    run = PayloadRun(raw_of([payload(text="xyz"), wrong]), PayloadLayoutCache(Plain))
    with pytest.raises(DecodeError) as caught:
        _ = SampleBatch(TypedColumns([(run, rows)])).text
    assert caught.value.key == "key 1"


def test_a_field_that_some_samples_lack_has_its_default():
    batch = SampleBatch(TypedColumns.over(raw_of([payload(maybe=5), payload(), payload(note="n", maybe=2)]), Plain))
    assert batch.maybe == [5, None, 2]
    assert batch.note == [None, None, "n"]
    assert batch.whole == [1, 1, 1]
