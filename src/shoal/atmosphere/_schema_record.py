"""A schema and its record: written so that every reader finds it, read in every form that was ever written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shoal.errors import RecordError, SchemaError
from shoal.schema import Schema, schema_from_json, schema_to_json

from ._lexicon import NAMESPACE, SCHEMA

__all__ = ["schema_from_record", "schema_to_record"]

_SAFE = 2**53 - 1
_AS_TEXT = "x-shoal-json"
"""Where values are kept as JSON text that a record cannot hold: floats, and integers beyond 53 bits."""
_MOST_BYTES = 1 << 20


def schema_to_record(schema: Schema, created_at: str, *, description: str | None = None) -> dict[str, Any]:
    """The record of a schema.

    The whole document is under ``content``, as the lexicon asks. Its words also stand beside it, where atdata looks.

    Example:
        >>> from shoal.schema import Default, Field, FloatType
        >>> schema = Schema("S", (Field("x", FloatType(), Default("0.5")),))
        >>> record = schema_to_record(schema, "2026-01-01T00:00:00Z")
        >>> record["schema"]["content"]["properties"]["x"]
        {'type': 'number', 'x-shoal-json': {'default': '0.5'}}
        >>> schema_from_record(record) == schema
        True
    """
    document = _without_floats(schema_to_json(schema))
    words = {name: document[name] for name in ("$schema", "type", "properties", "required") if name in document}
    record = {
        "$type": SCHEMA,
        "name": schema.name,
        "version": schema.version,
        "schemaType": "jsonSchema",
        "schema": {
            "$type": f"{SCHEMA}#jsonSchemaFormat",
            "draft": "draft-07",
            "content": document,
            **words,
            "arrayFormatVersions": {"ndarrayBytes": "1.0.0"},
        },
        "createdAt": created_at,
        "atdataSchemaVersion": 1,
    }
    text = description or schema.description
    return {**record, "description": text[:5000]} if text else record


def schema_from_record(record: Mapping[str, Any]) -> Schema:
    """The schema that a record tells of: the lexicon's form, atdata's, and those of before v0.6.

    Only data comes of it: types, names and defaults. Raises RecordError.
    """
    try:
        document = _document(record)
        if len(json.dumps(document)) > _MOST_BYTES:
            raise RecordError("a schema's document is too large", expected=f"at most {_MOST_BYTES} bytes")
        titled = {"title": record["name"], "x-shoal-version": record.get("version", "1.0.0"), **document}
        if record.get("description") and "description" not in titled:
            titled["description"] = record["description"]
        return schema_from_json(titled)
    except RecordError:
        raise
    except (SchemaError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError("a schema's record cannot be read", found=error, field="$.schema") from error


def _document(record: Mapping[str, Any]) -> dict[str, Any]:
    if "fields" in record:
        return _from_fields(record["fields"])
    schema = record["schema"]
    if isinstance(schema.get("content"), Mapping):
        return dict(_with_floats(schema["content"]))
    if "schemaBody" in schema:  # a document as text
        return dict(json.loads(schema["schemaBody"]))
    return dict(_with_floats({name: value for name, value in schema.items() if name != "$type"}))


def _is_safe(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_safe, value.values()))
    if isinstance(value, list):
        return all(map(_is_safe, value))
    return not isinstance(value, float) and (not isinstance(value, int) or abs(value) <= _SAFE)


def _without_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_floats(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    # What holds documents is gone into; anything else, such as a default or an enum, is kept whole.
    kept = {name: inner for name, inner in value.items() if _is_safe(inner) or name in _HOLDERS}
    texts = {name: json.dumps(inner) for name, inner in value.items() if name not in kept}
    kept = {name: _inner(name, inner) for name, inner in kept.items()}
    return {**kept, _AS_TEXT: texts} if texts else kept


_HOLDERS = frozenset({"properties", "items", "anyOf", "oneOf", "allOf", "additionalProperties", "definitions", "$defs"})
_NAMED = frozenset({"properties", "definitions", "$defs"})


def _inner(name: str, value: Any) -> Any:
    if name in _NAMED and isinstance(value, dict):
        return {field: _without_floats(inner) for field, inner in value.items()}
    return _without_floats(value) if name in _HOLDERS else value


def _with_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_floats(inner) for inner in value]
    if not isinstance(value, Mapping):
        return value
    texts: Any = value.get(_AS_TEXT)
    found = {name: _with_floats(inner) for name, inner in value.items() if name != _AS_TEXT or not _is_texts(texts)}
    return {**found, **{name: json.loads(text) for name, text in texts.items()}} if _is_texts(texts) else found


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())


def _from_fields(fields: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of the oldest records: a list of fields, each with a ``fieldType``."""
    properties = {str(field["name"]): _of_field_type(field["fieldType"]) for field in fields}
    required = [str(field["name"]) for field in fields if not field.get("optional", False)]
    return {"type": "object", "properties": properties, "required": required, "x-shoal-order": list(properties)}


_PRIMITIVES = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte", "contentEncoding": "base64"},
}


def _of_field_type(kind: Mapping[str, Any]) -> dict[str, Any]:
    word = str(kind.get("$type", "")).rpartition("#")[2]
    if word == "primitive":
        return dict(_PRIMITIVES[str(kind["primitive"])])
    if word == "array":
        return {"type": "array", "items": _of_field_type(kind["items"])}
    if word in ("ndarray", "structured"):
        facts = {"x-atdata-dtype": kind.get("dtype"), "x-atdata-shape": kind.get("shape")}
        return {"$ref": f"{NAMESPACE}/ndarray", **{name: fact for name, fact in facts.items() if fact is not None}}
    return dict(_PRIMITIVES["bytes"])
