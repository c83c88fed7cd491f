"""A schema as a JSON Schema document (draft-07), with arrays referred to as atdata's published documents do.

What JSON Schema has no word for is under ``x-shoal-*`` (and ``x-atdata-*`` where atdata has one), so that
`schema_from_json` gives back an equal schema, and any other reader sees a plain document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from shoal.schema._schema import Field, Schema

from ._leaves import AnyType, BoolType, BytesType, DateTimeType, DateType, FloatType, IntType, StrType, TimeType
from ._types import (
    Array,
    Audio,
    EnumType,
    FieldType,
    Image,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    TupleType,
    UnionType,
)

__all__ = ["ARRAY_REF", "DRAFT", "INT_KEYS", "JsonObject", "schema_hash", "schema_to_json"]

JsonObject: TypeAlias = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
ARRAY_REF = "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"
INT_KEYS = "^-?[0-9]+$"
_BASE64: JsonObject = {"type": "string", "format": "byte", "contentEncoding": "base64"}


def schema_to_json(schema: Schema) -> JsonObject:
    """The document of a schema: plain dicts, lists, strings and numbers.

    Example:
        >>> from shoal.schema import Array, Field, StrType
        >>> document = schema_to_json(Schema("Sample", (Field("label", StrType()), Field("x", Array("float32")))))
        >>> document["title"], document["properties"]["label"], document["required"]
        ('Sample', {'type': 'string'}, ['label', 'x'])
        >>> document["properties"]["x"]["x-atdata-dtype"]
        'float32'
    """
    return {"$schema": DRAFT, **_object(schema), "arrayFormatVersions": {"ndarrayBytes": "1.0.0"}}


def schema_hash(schema: Schema) -> str:
    """A hash of what decides how data is read: the name, and each field's name, type, default and aliases.

    Equal on every machine and in every version of shoal. Descriptions and the version do not count: words may improve,
    and a version names a content rather than being part of it.

    Example:
        >>> from shoal.schema import Field, IntType
        >>> one = Schema("S", (Field("n", IntType()),))
        >>> two = Schema("S", (Field("n", IntType(), doc="how many"),), version="2.0.0")
        >>> schema_hash(one) == schema_hash(two), len(schema_hash(one))
        (True, 64)
    """
    text = json.dumps(_wordless(_object(schema)), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _wordless(node: JsonObject) -> JsonObject:
    """A part of a document without descriptions and versions."""
    if "allOf" in node:  # wrapped for the sake of a description
        node = {**node["allOf"][0], **{word: value for word, value in node.items() if word != "allOf"}}
    kept = {word: value for word, value in node.items() if word not in ("description", "x-shoal-version")}
    return {word: _WORDLESS[word](value) if word in _WORDLESS else value for word, value in kept.items()}


def _wordless_items(items: Any) -> Any:
    return [*map(_wordless, items)] if isinstance(items, list) else _wordless(items)


# Where a document has further documents in it; anything else, such as a default, is data and stays as it is.
_WORDLESS: dict[str, Callable[[Any], Any]] = {
    "properties": lambda fields: {name: _wordless(field) for name, field in fields.items()},
    "items": _wordless_items,
    "anyOf": _wordless_items,
    "additionalProperties": _wordless,
}


def _object(schema: Schema) -> JsonObject:
    document: JsonObject = {"title": schema.name, "x-shoal-version": schema.version}
    if schema.description:
        document["description"] = schema.description
    document |= {
        "type": "object",
        "properties": {field.name: _property(field) for field in schema.fields},
        "required": [field.name for field in schema.fields if field.required],
        # Stores that sort keys, such as AT Protocol records, would lose the order of the fields.
        "x-shoal-order": list(schema.names),
    }
    return document


def _property(field: Field) -> JsonObject:
    document: JsonObject = _document(field.type)
    if field.doc:
        # A record's own description stays its own.
        document = {
            **({"allOf": [document]} if isinstance(field.type, RecordType) else document),
            "description": field.doc,
        }
    if field.aliases:
        document["x-shoal-aliases"] = list(field.aliases)
    if field.default is not None:
        known = field.default.json is not None
        document |= {"default": json.loads(field.default.json or "null")} if known else {"x-shoal-default": "computed"}
    return document


def _document(of: FieldType) -> JsonObject:
    return _DOCUMENTS[type(of)](of)


def _array(of: Array) -> JsonObject:
    document: JsonObject = {"$ref": ARRAY_REF}
    if of.dtype is not None:
        document["x-atdata-dtype"] = of.dtype
    if of.shape is not None:
        document["x-atdata-shape"] = [length if isinstance(length, int) else None for length in of.shape]
        if any(isinstance(length, str) for length in of.shape):
            document["x-shoal-dimensions"] = [length if isinstance(length, str) else None for length in of.shape]
    return document


def _enum(of: EnumType) -> JsonObject:
    return {"title": of.name, "enum": list(of.values), "x-shoal-names": [name for name, _ in of.members]}


def _optional(of: OptionalType) -> JsonObject:
    options = of.of.options if isinstance(of.of, UnionType) else (of.of,)
    return {"anyOf": [*map(_document, options), {"type": "null"}]}


def _tuple(of: TupleType) -> JsonObject:
    if of.variadic:
        return {"type": "array", "items": _document(of.items[0]), "x-shoal-tuple": True}
    size = len(of.items)
    return {"type": "array", "items": [*map(_document, of.items)], "minItems": size, "maxItems": size}


def _map(of: MapType) -> JsonObject:
    document: JsonObject = {"type": "object", "additionalProperties": _document(of.values)}
    return document if isinstance(of.keys, StrType) else {**document, "propertyNames": {"pattern": INT_KEYS}}


_DOCUMENTS: dict[type, Callable[[Any], JsonObject]] = {
    StrType: lambda of: {"type": "string"},
    IntType: lambda of: {"type": "integer"},
    FloatType: lambda of: {"type": "number"},
    BoolType: lambda of: {"type": "boolean"},
    BytesType: lambda of: dict(_BASE64),
    DateTimeType: lambda of: {"type": "string", "format": "date-time"},
    DateType: lambda of: {"type": "string", "format": "date"},
    TimeType: lambda of: {"type": "string", "format": "time"},
    AnyType: lambda of: {},
    LiteralType: lambda of: {"enum": list(of.values)},
    EnumType: _enum,
    Array: _array,
    Image: lambda of: {**_BASE64, "x-shoal-image": of.format},
    Audio: lambda of: {**_BASE64, "x-shoal-audio": of.format},
    OptionalType: _optional,
    UnionType: lambda of: {"anyOf": [*map(_document, of.options)]},
    ListType: lambda of: {"type": "array", "items": _document(of.items)},
    TupleType: _tuple,
    MapType: _map,
    RecordType: lambda of: _object(of.schema),
}
