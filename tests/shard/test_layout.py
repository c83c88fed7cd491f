"""Members laid out many at once are what headers built one by one give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.shard._tar_header import BLOCK, _plain_headers, build_header, lay_out, member_bytes, padded

NAMES = st.text(st.sampled_from("ab/é."), min_size=1, max_size=160).map(lambda text: f"{text}.bin".encode())
CONTENTS = st.integers(0, 3 * BLOCK).map(lambda size: (b"data" * (size // 4 + 1))[:size])


def one_by_one(members, mtime):
    parts, offsets = [], []
    for name, data in members:
        parts.append(build_header(name, len(data), mtime))
        offsets.append(sum(map(len, parts)))
        parts += [data, bytes(padded(len(data)) - len(data))]
    return b"".join(parts), offsets


@given(st.lists(st.tuples(NAMES, CONTENTS), min_size=1, max_size=20), st.integers(0, 8**11 - 1))
def test_many_at_once_are_each_as_built_alone(members, mtime):
    names, contents = [name for name, _ in members], [data for _, data in members]
    data, offsets = lay_out(names, contents, np.array([len(data) for data in contents]), mtime)
    assert (bytes(data), offsets.tolist()) == one_by_one(members, mtime)
    assert len(data) == sum(member_bytes(name, len(content)) for name, content in members)


@pytest.mark.parametrize("length", [96, 99, 100, 101, 104, 105, 256])
def test_names_around_what_a_header_holds(length):
    members = [(b"n" * length, b"x"), (b"short", b"y" * 512), (b"m" * length, b"")]
    data, offsets = lay_out([name for name, _ in members], [data for _, data in members], np.array([1, 512, 0]), 7)
    assert (bytes(data), offsets.tolist()) == one_by_one(members, 7)


@given(st.lists(st.integers(0, 8**11 - 1), min_size=1, max_size=9), st.integers(0, 8**11 - 1))
def test_headers_of_any_size_are_as_built_alone(sizes, mtime):
    names = [b"a.bin" * (at + 1) for at in range(len(sizes))]
    made = _plain_headers(names, np.array(sizes), mtime)
    assert [row.tobytes() for row in made] == list(map(build_header, names, sizes, [mtime] * len(sizes)))
