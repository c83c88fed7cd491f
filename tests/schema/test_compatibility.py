"""The rules of evolution: what may change, what may not, and the version that follows."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.sample.strategies import LEAVES, samples, schemas

from shoal import schema
from shoal.errors import SchemaMismatchError
from shoal.sample import class_from_schema, packable, schema_of
from shoal.schema import Array, Default, Field, Image, Schema, check_readable, compare, next_version, reading_problems

SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])


class Few(enum.Enum):
    A = "a"


class More(enum.Enum):
    A = "a"
    B = "b"


@packable
class Small:
    n: int


@packable
class Larger:
    n: float
    label: str = ""


def of(annotation: Any) -> schema.FieldType:
    return schema_of(packable(type("S", (), {"__annotations__": {"x": annotation}})))["x"].type


def one(annotation: Any, **more: Any) -> Schema:
    return Schema("S", (Field("x", of(annotation), **more),))


WIDER = [
    (int, float),
    (int, int | None),
    (int, float | None),
    (int | None, float | None),
    (int, int | str),
    (int | str, int | str | bool),
    (int | str, float | str),
    (int | None, str | int | None),
    (Literal["a"], Literal["a", "b"]),
    (Literal["a", 1], str | int),
    (Literal["a"], str),
    (Literal[1], float),
    (Few, More),
    (Few, Literal["b", "a"]),
    (Literal["a"], More),
    (Few, str),
    (list[int], list[float]),
    (list[int], tuple[float, ...]),
    (tuple[int, int], list[int]),
    (tuple[int, str], tuple[float, str | None]),
    (tuple[int, ...], list[int]),
    (dict[str, int], dict[str, float | None]),
    (NDArray[np.float32], NDArray),
    (NDArray[np.float32], NDArray[np.floating]),
    (NDArray[np.floating], NDArray[np.number]),
    (Annotated[NDArray, Array(shape=(2, 3))], Annotated[NDArray, Array(shape=(None, 3))]),
    (Annotated[NDArray, Array(shape=(3, 3))], Annotated[NDArray, Array(shape=("n", "n"))]),
    (Annotated[NDArray, Array(shape=("a", "b"))], Annotated[NDArray, Array(shape=("b", "a"))]),
    (Annotated[NDArray, Array(shape=(2,))], NDArray),
    (Image("jpg"), Image("png")),
    (Small, Larger),
    (list[Small], list[Larger | None]),
    (int, Any),
    (NDArray, Any),
]
NARROWER = [
    (float, int, "x"),
    (int, str, "x"),
    (bool, int, "x"),
    (int | None, int, "x"),
    (int | str, int, "x"),
    (Literal["a", "b"], Literal["a"], "x"),
    (Literal[1], Literal[True], "x"),
    (More, Few, "x"),
    (str, Literal["a"], "x"),
    (list[float], list[int], "x[]"),
    (list[int], tuple[int, int], "x"),
    (tuple[int, int], tuple[int, int, int], "x"),
    (tuple[int, str], tuple[int, int], "x[1]"),
    (dict[str, int], dict[int, int], "x"),
    (dict[str, float], dict[str, int], "x[]"),
    (NDArray, NDArray[np.float32], "x"),
    (NDArray[np.float32], NDArray[np.float64], "x"),
    (Annotated[NDArray, Array(shape=(None, 3))], Annotated[NDArray, Array(shape=(2, 3))], "x"),
    (Annotated[NDArray, Array(shape=(None, None))], Annotated[NDArray, Array(shape=("n", "n"))], "x"),
    (Annotated[NDArray, Array(shape=(2,))], Annotated[NDArray, Array(shape=(2, 1))], "x"),
    (bytes, Image("png"), "x"),
    (NDArray, bytes, "x"),
    (Larger, Small, "x.n"),
    (list[Larger], list[Small], "x[].n"),
    (Any, int, "x"),
    (Small, dict[str, int], "x"),
]


@pytest.mark.parametrize("old, new", WIDER, ids=str)
def test_a_wider_type_reads_what_was_written(old, new):
    check_readable(one(old), one(new))
    kinds = {change.kind for change in compare(one(old), one(new))}
    assert kinds <= {"widened", "added", "words", "default"}
    assert next_version(one(old), one(new)) == "1.1.0"


@pytest.mark.parametrize("old, new, path", NARROWER, ids=str)
def test_a_narrower_type_is_refused_with_the_path(old, new, path):
    with pytest.raises(SchemaMismatchError) as raised:
        check_readable(one(old), one(new))
    assert raised.value.field == path
    assert not all(change.compatible for change in compare(one(old), one(new)))
    assert next_version(one(old), one(new)) == "2.0.0"


@SLOW
@given(st.data())
def test_what_the_rules_allow_is_really_read(data):
    """Two related schemas: wherever the rules say yes, every sample of the one is read by the other."""
    old = data.draw(schemas())
    fields = [data.draw(evolved(field)) for field in old.fields if data.draw(st.integers(0, 4)) or len(old.fields) == 1]
    new = Schema(old.name, tuple(fields))
    assume(
        len({name for field in fields for name in (field.name, *field.aliases)})
        == sum(1 + len(f.aliases) for f in fields)
    )
    assume(not reading_problems(old, new))
    sample = data.draw(samples(class_from_schema(old)))
    class_from_schema(new).from_bytes(sample.packed)


@st.composite
def evolved(draw, field: Field) -> Field:
    """The field as it is, widened, made optional, renamed, or of another type altogether."""
    of = field.type
    change = draw(st.sampled_from(["same", "optional", "float", "union", "list", "rename", "array", "any", "other"]))
    try:
        if change == "optional":
            of = schema.union_of((of, None))
        elif change == "float" and isinstance(of, schema.IntType):
            of = schema.FloatType()
        elif change == "union":
            of = schema.union_of((of, draw(LEAVES)))
        elif change == "list" and isinstance(of, schema.TupleType) and of.items:
            of = schema.ListType(of.items[0])
        elif change == "array" and isinstance(of, Array):
            of = Array(None, of.shape if draw(st.booleans()) else None)
        elif change == "any":
            of = schema.AnyType()
        elif change == "other":
            of = draw(LEAVES)
    except schema._types.SchemaError:
        of = field.type
    if change == "rename":
        return Field(field.name + "_new", of, aliases=(field.name,))
    return Field(field.name, of)


BASE = Schema("S", (Field("a", schema.IntType()), Field("b", schema.StrType())), version="1.4.2")


def changed(*fields: Field, **more: Any) -> Schema:
    return Schema("S", fields, **{"version": "9.9.9", **more})


A, B = BASE.fields
CASES = [
    ("nothing", changed(A, B), [], "1.4.2"),
    ("added with a default", changed(A, B, Field("c", schema.IntType(), Default("0"))), ["added"], "1.5.0"),
    ("added and computed", changed(A, B, Field("c", schema.IntType(), Default(None))), ["added"], "1.5.0"),
    ("added and required", changed(A, B, Field("c", schema.IntType())), ["added"], "2.0.0"),
    ("removed", changed(A), ["removed"], "1.5.0"),
    (
        "renamed with an alias",
        changed(A, Field("c", schema.StrType(), aliases=("b",))),
        ["renamed", "aliases"],
        "1.5.0",
    ),
    ("renamed without", changed(A, Field("c", schema.StrType())), ["added", "removed"], "2.0.0"),
    ("widened", changed(Field("a", schema.FloatType()), B), ["widened"], "1.5.0"),
    ("another type", changed(Field("a", schema.BoolType()), B), ["incompatible"], "2.0.0"),
    ("another default", changed(A, Field("b", schema.StrType(), Default('""'))), ["default"], "1.4.3"),
    ("an alias more", changed(A, Field("b", schema.StrType(), aliases=("z",))), ["aliases"], "1.4.3"),
    ("another order", changed(B, A), ["moved"], "1.4.3"),
    ("words", changed(A, Field("b", schema.StrType(), doc="text")), ["words"], "1.4.3"),
    ("a description", changed(A, B, description="d"), ["words"], "1.4.3"),
]


@pytest.mark.parametrize("new, kinds, version", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_changes_and_the_next_version(new, kinds, version):
    changes = compare(BASE, new)
    assert [change.kind for change in changes] == kinds
    assert next_version(BASE, new) == version
    assert all(change.compatible for change in changes) == (not version.startswith("2"))
    assert all(change.path in str(change) for change in changes)


def test_all_problems_are_told():
    with pytest.raises(
        SchemaMismatchError, match=r"expected str, found int \(field a\); also b: expected int, found str"
    ):
        check_readable(BASE, changed(Field("a", schema.StrType()), Field("b", schema.IntType())))


def test_a_change_within_a_record_has_its_path():
    old, new = one(Small), one(Larger)
    assert [str(change) for change in compare(old, new)][1:] == ["widened x.n: int -> float", "added x.label: str"]
