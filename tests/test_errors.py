"""Errors: the documented tree is the real one, facts survive pickling, and all messages have one form."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import errors
from shoal.errors import ShoalError

CLASSES = {
    name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__
}
ERRORS = [kind for kind in CLASSES.values() if issubclass(kind, ShoalError)]
FACTS = {
    "expected": 512,
    "found": b"\x00",
    "shard": "a.tar",
    "key": "cat/001",
    "field": "seg.png",
    "offset": 0,
    "hint": "run it",
}
# Name (builtin)  two spaces or more  remark: the drawing's lines, under a margin of four.
DRAWN = re.compile(r"^    (?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<builtin>\w+)\))?(?:  +\S.*)?$", re.MULTILINE)


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Name -> (parent, builtin) in the module docstring."""
    tree, path = {}, {}
    for line in DRAWN.finditer(errors.__doc__ or ""):
        depth = len(line["branch"])
        path[depth] = line["name"]
        parents = [above for above in path if above < depth]
        tree[line["name"]] = (path[max(parents)] if parents else None, line["builtin"])
        path = {at: name for at, name in path.items() if at <= depth}
    return tree


def real_tree() -> dict[str, tuple[str | None, str | None]]:
    """Name -> (parent, builtin) of the classes."""
    tree = {}
    for name, kind in CLASSES.items():
        parents = [base.__name__ for base in kind.__bases__ if base in CLASSES.values()]
        builtins = [base.__name__ for base in kind.__bases__ if base not in (*CLASSES.values(), Exception)]
        assert len(parents) <= 1
        assert len(builtins) <= 1
        tree[name] = (parents[0] if parents else None, builtins[0] if builtins else None)
    return tree


def test_the_drawing_is_the_tree():
    assert drawn_tree() == real_tree()


def test_every_class_is_exported():
    assert set(errors.__all__) == set(CLASSES)


@pytest.mark.parametrize("kind", ERRORS)
def test_facts_survive_pickling(kind):
    error = kind("the header is damaged", **FACTS)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert twin.args == error.args == ("the header is damaged",)
        assert {name: getattr(twin, name) for name in FACTS} == FACTS
        assert str(twin) == str(error)


def test_notes_survive_pickling():
    error = ShoalError("damaged")
    error.add_note("while reading epoch 3")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while reading epoch 3"]


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(
    "facts, sentence",
    [
        ({}, "no"),
        ({"expected": 3}, "no: expected 3"),
        ({"expected": 0, "found": ""}, "no: expected 0, found "),
        ({"shard": "a.tar", "offset": 0}, "no (shard a.tar, byte 0)"),
        ({"key": "k", "field": "jpg"}, "no (key k, field jpg)"),
        ({"hint": "try again"}, "no; try again"),
        (FACTS, "no: expected 512, found b'\\x00' (shard a.tar, key cat/001, field seg.png, byte 0); run it"),
    ],
)
def test_the_sentence(kind, facts, sentence):
    assert str(kind("no", **facts)) == sentence


@given(
    problem=st.text(min_size=1),
    place=st.fixed_dictionaries({}, optional={"shard": st.text(), "key": st.text(), "field": st.text()}),
    offset=st.integers(min_value=0),
)
def test_every_known_fact_is_in_the_sentence(problem, place, offset):
    sentence = str(ShoalError(problem, **place, offset=offset))
    assert sentence.startswith(problem)
    assert f"byte {offset}" in sentence
    assert all(f"{word} {value}" in sentence for word, value in place.items())


def test_at_fills_in_what_was_unknown_and_nothing_else():
    error = errors.DecodeError("not JSON", field="json")
    assert error.at(shard="a.tar", key="k", field="txt") is error
    assert (error.shard, error.key, error.field) == ("a.tar", "k", "json")
    assert str(error) == "not JSON (shard a.tar, key k, field json)"


@pytest.mark.parametrize("kind", ERRORS)
def test_a_place_of_empty_text_is_known(kind):
    assert kind("no", key="").at(key="other").key == ""
