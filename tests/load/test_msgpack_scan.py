"""Scanning many MessagePack payloads at once finds the fields that scanning each of them finds."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from shoal._typing import IntArray
from shoal.load._msgpack_scan import PayloadScan, read_template
from shoal.sample import field_spans


def joined(payloads: list[bytes]) -> tuple[bytes, IntArray, IntArray]:
    """The payloads with other bytes between them, and where each starts and how long it is."""
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    return b"".join(b"??" + payload for payload in payloads), np.cumsum(sizes + 2) - sizes, sizes


@given(st.lists(st.fixed_dictionaries({
    "a": st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False),
    "long name " * 4: st.text(max_size=70_000 // 100) | st.binary(max_size=300),
    "z": st.binary(max_size=70),
}), min_size=1, max_size=8))  # fmt: skip
def test_scanning_many_payloads_finds_the_fields_of_each(maps):
    payloads = [msgspec.msgpack.encode({name: each[name] for name in maps[0]}) for each in maps]
    data, starts, sizes = joined(payloads)
    found = PayloadScan(data, starts, sizes, read_template(payloads[0])).all_fields()
    assert found is not None
    for row, payload in enumerate(payloads):
        for name, span in field_spans(payload).items():
            assert found[name].starts[row] + found[name].sizes[row] == starts[row] + span.stop
            if span.kind in ("str", "bytes", "float"):
                assert found[name].starts[row] == starts[row] + span.content


@pytest.mark.parametrize("odd", [{"b": 1, "a": 2}, {"a": 1}, {"a": [1], "b": 2}, {"a": 1, "b": 2, "c": 3}])
def test_payloads_that_differ_are_not_scanned_together(odd):
    first = msgspec.msgpack.encode({"a": 1, "b": 2})
    data, starts, sizes = joined([first, msgspec.msgpack.encode(odd)])
    assert PayloadScan(data, starts, sizes, read_template(first)).all_fields() is None
