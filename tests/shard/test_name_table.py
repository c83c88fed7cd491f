"""Names as a table: split and grouped exactly as they are one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.shard._member_names import Grouper, KeyRule, as_texts, name_table, split_names
from shoal.shard._tar_header import NAME_BYTES

LETTERS = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=20)
LIKE_NAMES = st.text("ab1A_./\n", min_size=1, max_size=9)
FIELDS = ["jpg", "seg.png", "json", "a_longer_name"]
NUMBERED = st.builds("{:03d}.{}".format, st.integers(0, 5), st.sampled_from(FIELDS))


def columns(names):
    """Names as a column of headers holds them."""
    return np.array([list(name.encode("utf-8").ljust(NAME_BYTES, b"\0")) for name in names], np.uint8)


@given(st.lists(LETTERS, min_size=1, max_size=8))
def test_a_table_gives_back_its_names(names):
    assert name_table(columns(names)).texts() == names


@pytest.mark.parametrize("name", ["kätzchen.jpg", "a\0b.jpg", "\0b.jpg"])
def test_names_that_a_table_cannot_hold(name):
    assert name_table(columns(["a.jpg", name])) is None


def grouped(grouper, names):
    found = grouper.add(names)
    return found.rows.tolist(), found.fields.tolist(), None if found.kept is None else found.kept.tolist()


@given(
    st.lists(st.lists(LETTERS | LIKE_NAMES | NUMBERED, min_size=1, max_size=9), max_size=3),
    st.sampled_from([KeyRule(), KeyRule(case="keep"), KeyRule(dot="last"), KeyRule(group="archive")]),
)
@example([["__x.jpg", "__y.jpg"]], KeyRule())
@example([["a/b.jpg", "c/d.jpg"]], KeyRule())
@example([["a.b/c", "d.e/f"]], KeyRule())
@example([["a.", "b."]], KeyRule())
@example([["a.jpg", "a.JPG"]], KeyRule())
@example([["a.jpg", "b"]], KeyRule())
@example([["a.x.y", "b.x"]], KeyRule())
@example([["0.jpg", "0.txt"], ["0.cls", "1.jpg"], ["1.txt"]], KeyRule())
def test_a_table_is_grouped_as_its_names_are(runs, rule):
    by_table, by_text = Grouper(rule), Grouper(rule)
    for names in runs:
        assert grouped(by_table, name_table(columns(names))) == grouped(by_text, names)
    assert (by_table.keys, by_table.fields) == (by_text.keys, by_text.fields)


@given(st.lists(NUMBERED, min_size=1, max_size=30))
def test_numbered_names_are_split_without_looking_at_each(names):
    found = split_names(name_table(columns(names)))
    keys, fields = zip(*[name.split(".", 1) for name in names], strict=True)
    assert [found.fields[code] for code in found.codes] == list(fields)
    assert found.fields == list(dict.fromkeys(fields))
    new = [at for at, key in enumerate(keys) if at == 0 or key != keys[at - 1]]
    assert np.flatnonzero(found.is_new).tolist() == new
    assert found.keys == [keys[at] for at in new]


@pytest.mark.parametrize("fields, is_split", [(32, True), (33, False)])
def test_many_fields_are_looked_at_one_by_one(fields, is_split):
    names = [f"000.{number:02d}" for number in range(fields)]
    assert (split_names(name_table(columns(names))) is not None) == is_split
    assert grouped(Grouper(), name_table(columns(names))) == grouped(Grouper(), names)


def test_a_fields_own_name_is_refused_in_a_table_too():
    with pytest.raises(ValueError, match="name of a fact that every sample has"):
        Grouper().add(name_table(columns(["a.jpg", "a.__key__"])))


def test_parts_become_one_list():
    assert as_texts([["a.b"], name_table(columns(["c.d", "e.f"])), []]) == ["a.b", "c.d", "e.f"]
