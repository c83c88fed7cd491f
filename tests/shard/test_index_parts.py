"""The columns of an index are looked through once for shards that are alike, and anew for any other."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shoal.shard._index import parts_of


def schema(role, *, field="a", kind=None, shard=b"1"):
    parts = [
        pa.field("key", pa.string(), False, {"role": "key"}),
        pa.field("a.offset", kind or pa.uint64(), False, {"role": role, "field": field}),
    ]
    return pa.schema(parts, metadata={b"shoal.facts": shard})


def test_shards_that_are_alike_are_looked_through_once():
    first = parts_of(schema("offset", shard=b"1"))
    assert parts_of(schema("offset", shard=b"2")) is first
    assert first.extents == {b"offset": {"a": 1}, b"size": {}, b"crc": {}}
    assert (first.columns, first.unlike) == ({}, (0,))


def test_the_same_names_may_be_something_else():
    for _ in range(2):
        assert parts_of(schema("offset")).extents[b"offset"] == {"a": 1}
        assert parts_of(schema("offset", field="b")).extents[b"offset"] == {"b": 1}
        assert parts_of(schema("column")).columns == {"a.offset": 1}
        assert parts_of(schema("column", kind=pa.string())).unlike == (0, 1)


def test_a_column_of_no_field_is_refused_each_time():
    nameless = pa.schema([pa.field("x", pa.uint64(), False, {"role": "offset"})])
    for _ in range(2):
        with pytest.raises(KeyError):
            parts_of(nameless)
