"""Schemas and field types as values: names, versions, and what is refused."""

from __future__ import annotations

import pytest

from shoal import schema
from shoal.errors import FieldError, SchemaError
from shoal.schema import Array, Default, Field, Image, Schema

SAMPLE = Schema(
    "ImageSample",
    (
        Field("image", Array("float32", (None, "w", 3)), doc="pixels"),
        Field("label", schema.StrType(), aliases=("category",)),
        Field("score", schema.FloatType(), Default("1.0")),
        Field("photo", schema.OptionalType(Image("jpg")), Default("null")),
    ),
    version="1.2.0",
    description="A picture.",
)


def test_access_by_name():
    assert SAMPLE["label"].aliases == ("category",)
    assert "label" in SAMPLE
    with pytest.raises(FieldError, match="ImageSample has no such field: expected image, label, score, photo, found x"):
        SAMPLE["x"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Schema("", ()),
        lambda: Schema("S", (), version="1.0"),
        lambda: Schema("S", (), version="01.0.0"),
        lambda: Schema("S", (Field("a", schema.IntType()), Field("a", schema.IntType()))),
        lambda: Schema("S", (Field("a", schema.IntType()), Field("b", schema.IntType(), aliases=("a",)))),
        lambda: Default("{"),
        lambda: Default("NaN"),
        lambda: schema.LiteralType(()),
        lambda: schema.LiteralType((b"x",)),
        lambda: Array("object"),
        lambda: Array("float32", (-1,)),
        lambda: Image("JPG"),
        lambda: schema.OptionalType(schema.OptionalType(schema.IntType())),
        lambda: schema.UnionType((schema.IntType(),)),
        lambda: schema.UnionType((schema.StrType(), schema.DateType())),
        lambda: schema.UnionType((schema.AnyType(), schema.DateType())),
        lambda: schema.UnionType((schema.IntType(), schema.AnyType())),
        lambda: schema.TupleType((), variadic=True),
        lambda: schema.union_of([None]),
    ],
)
def test_values_that_make_no_sense_are_refused(make):
    with pytest.raises(SchemaError):
        make()


def test_equal_in_python_is_not_equal_on_the_wire():
    assert schema.LiteralType((1,)) != schema.LiteralType((True,))
    assert schema.EnumType("E", (("A", 1),)) != schema.EnumType("E", (("A", 1.0),))


@pytest.mark.parametrize("version", ["1.0.0", "0.0.1", "1.2.3-rc.1", "1.2.3+build.5"])
def test_versions(version):
    assert Schema("S", (), version).version == version
