"""Annotations of fields: their types, defaults and descriptions in the schema, and those that are refused."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, NewType, TypeVar

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import SchemaError
from shoal.sample import PackableSample, packable, schema_of
from shoal.schema import Array, Audio, Image, StrType


@packable
class Inner:
    label: str


Metres = NewType("Metres", float)
T = TypeVar("T", bound=int)


@pytest.mark.parametrize(
    "annotation, shown",
    [
        (NDArray, "array"),
        (np.ndarray, "array"),
        (NDArray[np.float32], "array[float32]"),
        (NDArray[np.floating], "array[floating]"),
        (NDArray[Any], "array"),
        (NDArray[np.datetime64], "array[datetime64]"),
        (np.ndarray[tuple[int, Literal[3]], np.dtype[np.uint8]], "array[uint8, (None, 3)]"),
        (Annotated[NDArray[np.uint8], Array(shape=("h", "w", 3))], "array[uint8, (h, w, 3)]"),
        (Annotated[NDArray | None, Array("int8")], "array[int8] | None"),
        (Annotated[NDArray[np.uint8], Image("jpg")], "image[jpg]"),
        (Annotated[NDArray[np.uint8] | None, Image("jpg")], "image[jpg] | None"),
        (Image, "image[png]"),
        (Image("webp"), "image[webp]"),
        (Audio("wav"), "audio[wav]"),
        (Literal["a", None], "Literal['a'] | None"),  # noqa: PYI061 - as people write it
        (Literal["a", "b"] | int, "Literal['a', 'b'] | int"),
        (list, "list[Any]"),
        (dict, "dict[str, Any]"),
        (tuple, "tuple[Any, ...]"),
        (tuple[()], "tuple[()]"),
        (dict[str, list[int | None]], "dict[str, list[int | None]]"),
        (Metres, "float"),
        (T, "int"),
        (Inner | None, "Inner | None"),
        (object, "Any"),
    ],
    ids=str,
)
def test_annotations_and_their_types(annotation, shown):
    made = packable(type("Made", (), {"__annotations__": {"x": annotation}}))
    assert str(schema_of(made)["x"].type) == shown


@pytest.mark.parametrize(
    "annotation, complaint",
    [
        (set[int], "no field has this type"),
        (complex, "no field has this type"),
        (enum.Flag("Bits", "A B"), "no field has this type"),
        (dict[float, int], "keys are text or whole numbers"),
        (str | Literal["a"], "look the same when stored"),  # noqa: PYI051 - that is what is refused
        (bytes | NDArray, "look the same when stored"),
        (list[int] | tuple[str, ...], "look the same when stored"),
        (NDArray[np.object_], "has no schema"),
        (Annotated[str, Array()], "annotates arrays only"),
        (Annotated[NDArray[np.uint8], Array("int8")], "two dtypes"),
        (Literal[b"x"], "cannot be stored"),
        (Image("exe"), "not a format"),
        (None, "no field has this type"),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_at_the_class(annotation, complaint):
    with pytest.raises(SchemaError, match=complaint) as raised:
        packable(type("Made", (), {"__annotations__": {"x": annotation}}))
    assert raised.value.field == "Made.x"


def test_a_class_that_contains_itself_is_refused():
    with pytest.raises(SchemaError, match="contains itself"):

        class _Tree(PackableSample):
            children: list[_Tree]


def test_a_name_that_is_never_defined_is_told_at_first_use():
    class Lost(PackableSample):
        other: Nowhere  # noqa: F821

    with pytest.raises(SchemaError, match="names what is not there: found Nowhere"):
        schema_of(Lost)


def test_class_variables_are_no_fields():
    @packable
    class Limited:
        n: int
        limit: ClassVar[int] = 3

    assert schema_of(Limited).names == ("n",)


def test_an_initvar_is_refused():
    with pytest.raises(SchemaError, match="InitVar"):

        @packable
        class _Made:
            n: int
            seed: dataclasses.InitVar[int]


@pytest.mark.parametrize(
    "value, kind, shown",
    [
        (3, int, "3"),
        (None, int | None, "null"),
        (float("nan"), float, '"nan"'),
        (b"ab", bytes, '"YWI="'),
        ((1, 2), tuple[int, int], "[1,2]"),
    ],
    ids=str,
)
def test_defaults_are_in_the_schema(value, kind, shown):
    made = packable(type("Made", (), {"__annotations__": {"x": kind}, "x": value}))
    assert schema_of(made)["x"].default.json == shown


def test_a_default_that_is_computed_is_not_run_for_the_schema():
    ran: list[int] = []

    @packable
    class Computed:
        n: int = field(default_factory=lambda: ran.append(1) or 5)

    assert schema_of(Computed)["n"].default.json is None
    assert ran == []
    assert Computed.from_bytes(b"\x80").n == 5


def test_docs_of_fields():
    @packable
    class Documented:
        a: Annotated[str, msgspec.Meta(description="the first")]
        b: str = field(default="", metadata={"doc": "the second"})

    assert [one.doc for one in schema_of(Documented).fields] == ["the first", "the second"]
    assert schema_of(Documented)["a"].type == StrType()
