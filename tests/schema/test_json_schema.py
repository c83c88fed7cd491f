"""Schemas as JSON Schema documents: exact both ways, documents of others, and the hash."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from tests.sample.strategies import schemas

from shoal import schema
from shoal.errors import SchemaError
from shoal.schema import Array, Default, Field, Image, Schema, schema_from_json, schema_hash, schema_to_json

SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


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


@SLOW
@given(schemas())
def test_json_and_back_is_exact(one):
    document = schema_to_json(one)
    text = json.dumps(document, sort_keys=True)  # as stores write it that sort their keys
    assert schema_from_json(json.loads(text)) == one
    assert schema_hash(schema_from_json(json.loads(text))) == schema_hash(one)
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(one) == hash(schema_from_json(document))


def test_the_document():
    assert schema_to_json(SAMPLE) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ImageSample",
        "description": "A picture.",
        "type": "object",
        "properties": {
            "image": {
                "$ref": "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray",
                "x-atdata-dtype": "float32",
                "x-atdata-shape": [None, None, 3],
                "x-shoal-dimensions": [None, "w", None],
                "description": "pixels",
            },
            "label": {"type": "string", "x-shoal-aliases": ["category"]},
            "score": {"type": "number", "default": 1.0},
            "photo": {
                "anyOf": [
                    {"type": "string", "format": "byte", "contentEncoding": "base64", "x-shoal-image": "jpg"},
                    {"type": "null"},
                ],
                "default": None,
            },
        },
        "required": ["image", "label"],
        "x-shoal-version": "1.2.0",
        "x-shoal-order": ["image", "label", "score", "photo"],
        "arrayFormatVersions": {"ndarrayBytes": "1.0.0"},
    }


def test_the_hash_is_pinned():
    """Manifests keep these: a change here means that no old dataset would be recognised."""
    assert schema_hash(SAMPLE) == "cfa27c9ac6f6db54cf2fa87bd39e523eb2ec9462931f3e6601804a996d1e3452"


@pytest.mark.parametrize(
    "other",
    [
        Schema("Other", SAMPLE.fields),
        Schema("ImageSample", SAMPLE.fields[:3]),
        Schema("ImageSample", tuple(reversed(SAMPLE.fields))),
        Schema("ImageSample", (Field("image", Array("float64")), *SAMPLE.fields[1:])),
        Schema("ImageSample", (*SAMPLE.fields[:1], Field("label", schema.StrType()), *SAMPLE.fields[2:])),
        Schema("ImageSample", (*SAMPLE.fields[:2], Field("score", schema.FloatType()), SAMPLE.fields[3])),
    ],
    ids=["name", "fields", "order", "type", "alias", "default"],
)
def test_the_hash_is_of_the_content(other):
    assert schema_hash(other) != schema_hash(SAMPLE)


def test_words_and_versions_are_not_content():
    image = Field("image", SAMPLE["image"].type)
    assert schema_hash(SAMPLE) == schema_hash(Schema("ImageSample", (image, *SAMPLE.fields[1:]), "9.0.0"))


@pytest.mark.parametrize(
    "holder",
    [
        lambda record: record,
        schema.ListType,
        schema.OptionalType,
        lambda record: schema.MapType(schema.StrType(), record),
        lambda record: schema.TupleType((record,)),
    ],
    ids=["record", "list", "optional", "map", "tuple"],
)
def test_nor_are_those_of_records_within(holder):
    told = Schema("Box", (Field("x", schema.FloatType(), doc="left"),), description="a box", version="3.0.0")
    untold = Schema("Box", (Field("x", schema.FloatType()),))
    one = Schema("S", (Field("b", holder(schema.RecordType(told)), doc="d"),))
    two = Schema("S", (Field("b", holder(schema.RecordType(untold))),))
    assert schema_hash(one) == schema_hash(two)
    assert schema_from_json(schema_to_json(one)) == one


def test_defaults_that_look_like_words_are_content():
    of = schema.MapType(schema.StrType(), schema.StrType())
    one = Schema("S", (Field("m", of, Default('{"description": "x"}')),))
    assert schema_hash(one) != schema_hash(Schema("S", (Field("m", of, Default("{}")),)))


FOREIGN = [
    ({"type": "integer"}, "int"),
    ({"type": ["string", "null"]}, "str | None"),
    ({"type": "string", "format": "date-time"}, "datetime"),
    ({"type": "string", "format": "uri"}, "str"),
    ({"type": "string", "contentEncoding": "base64"}, "bytes"),
    ({"enum": ["a", "b", None]}, "Literal['a', 'b'] | None"),
    ({"const": 3}, "Literal[3]"),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "int | str"),
    ({"$ref": "#/definitions/Box"}, "Box"),
    ({"allOf": [{"$ref": "#/$defs/Point"}]}, "Point"),
    ({"type": "array", "items": {"type": "number"}}, "list[float]"),
    ({"type": "array"}, "list[Any]"),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
    ({"type": "object"}, "dict[str, Any]"),
    ({}, "Any"),
    (True, "Any"),
    ({"$ref": "https://json-schema.alt.science/atdata-ndarray-bytes/1.1.0#/$defs/ndarray"}, "array"),
    ({"$ref": "#/$defs/ndarray", "x-atdata-dtype": "uint8", "x-atdata-shape": [None, 3]}, "array[uint8, (None, 3)]"),
    ({"$ref": "https://alt.science/schemas/atdata-sparse-bytes/1.0.0#/$defs/sparse"}, "bytes"),
]


PARTS = {
    "definitions": {
        "Box": {"title": "Box", "type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    },
    "$defs": {
        "Point": {"title": "Point", "type": "object", "properties": {"y": {"type": "number"}}, "required": ["y"]}
    },
}


@pytest.mark.parametrize("part, shown", FOREIGN, ids=str)
def test_documents_of_others(part, shown):
    document = {"title": "S", "type": "object", "properties": {"x": part}, "required": ["x"], **PARTS}
    assert str(schema_from_json(document)["x"].type) == shown


def test_a_field_that_is_not_required_is_optional():
    field = schema_from_json({"title": "S", "properties": {"x": {"type": "integer"}}})["x"]
    assert (str(field.type), field.default) == ("int | None", Default("null"))


@pytest.mark.parametrize(
    "document, complaint",
    [
        ({"type": "string"}, "an object with properties"),
        ([], "an object with properties"),
        ({"properties": {"x": {"$ref": "#/definitions/None"}}}, "leads nowhere"),
        ({"properties": {"x": {"$ref": "#/properties/x"}}}, "contains itself"),
        ({"properties": {"x": {"allOf": [{}, {}]}}}, "allOf"),
        ({"properties": {"x": {"enum": []}}}, "no values to choose from"),
        ({"properties": {"x": {"enum": [[1]]}}}, "cannot be stored"),
        ({"properties": {"x": {"anyOf": [{"type": "null"}]}}}, "nothing but None"),
        ({"properties": {"x": 3}}, "cannot be read"),
        ({"properties": {"x": {}}, "x-shoal-version": "one"}, "not a version"),
        ({"properties": {"x": {"$ref": "#/$defs/ndarray", "x-atdata-dtype": "nope"}}}, "not the type of an array"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_schema_is_refused(document, complaint):
    with pytest.raises(SchemaError, match=complaint):
        schema_from_json(document)
