"""A JSON Schema document as a schema: our own exactly, others as far as their words go."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import SchemaError
from shoal.schema._schema import Default, Field, Schema
from shoal.schema._to_document import INT_KEYS, JsonObject
from shoal.schema._version import FIRST_VERSION

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
    RecordType,
    TupleType,
    union_of,
)

__all__ = ["schema_from_json"]

_MAX_DEPTH = 64  # a document that refers to itself has no end
_MAX_NODES = 100_000  # nor, for any purpose, one whose parts each refer to the next one twice
_STRING_FORMATS: dict[str, FieldType] = {"date-time": DateTimeType(), "date": DateType(), "time": TimeType()}
_OTHER_ARRAYS = ("sparse", "safetensors", "arrow", "tensor", "dataframe")


def schema_from_json(document: Mapping[str, Any]) -> Schema:
    """The schema that a document describes.

    For documents of `schema_to_json` this gives back an equal schema. Those of others may use references into their own
    ``definitions`` or ``$defs``, ``oneOf``, ``const``, lists of types, and atdata's references for arrays; what has no
    type here, or none at all, is read as ``Any``. A field that is not required and has no default is optional.

    Raises:
        SchemaError: The document does not describe an object, refers to what is not there, or contains itself.

    Example:
        >>> schema = schema_from_json(
        ...     {"title": "S", "type": "object", "properties": {"n": {"type": ["integer", "null"]}}}
        ... )
        >>> print(schema)
        S@1.0.0(n: int | None)
    """
    return _Reader(document).schema(document, "$", 0)


class _Reader:
    """One document being read: where references lead, and how deep it is."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._nodes = 0

    def schema(self, node: Any, path: str, depth: int) -> Schema:
        if not isinstance(node, Mapping) or not isinstance(node.get("properties"), Mapping):
            raise SchemaError("this is not the document of a schema", expected="an object with properties", field=path)
        try:
            return self._schema(node, path, depth)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            if isinstance(error, SchemaError):
                raise error.at(field=path) from None
            raise SchemaError("this document cannot be read", found=error, field=path) from error

    def _schema(self, node: Mapping[str, Any], path: str, depth: int) -> Schema:
        properties = node["properties"]
        order = [name for name in node.get("x-shoal-order", ()) if name in properties]
        names = [*order, *(name for name in properties if name not in set(order))]
        required = set(node.get("required", ()))
        fields = (self.field(name, properties[name], name in required, f"{path}.{name}", depth) for name in names)
        title = node.get("title") or path.rpartition(".")[2].strip("$[]") or "Sample"
        return Schema(title, tuple(fields), node.get("x-shoal-version", FIRST_VERSION), node.get("description", ""))

    def field(self, name: str, node: Any, required: bool, path: str, depth: int) -> Field:
        node = {} if node is True else node
        doc = "" if _is_record(node) else node.get("description", "")
        found = self.type(node, path, depth + 1)
        default = _default(node)
        if not required and default is None:
            found, default = union_of((found, None)), Default("null")
        elif required:
            default = None
        return Field(name, found, default, tuple(node.get("x-shoal-aliases", ())), doc)

    def type(self, node: Any, path: str, depth: int) -> FieldType:
        """The type that a part of the document describes."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise SchemaError("the document is too large", expected=f"{_MAX_NODES} types at most", field=path)
        if depth > _MAX_DEPTH:
            raise SchemaError(
                "the document is too deep, or contains itself", expected=f"{_MAX_DEPTH} levels", field=path
            )
        if node is True:
            return AnyType()
        for word, read in _WORDS.items():
            if word in node:
                return read(self, node, path, depth)
        return self.typed(node, path, depth)

    def typed(self, node: JsonObject, path: str, depth: int) -> FieldType:
        word = node.get("type")
        if isinstance(word, list):
            options = ({**node, "type": one} for one in word)
            return union_of(None if one["type"] == "null" else self.type(one, path, depth + 1) for one in options)
        return _TYPES.get(str(word), _any)(self, node, path, depth)

    def reference(self, node: JsonObject, path: str, depth: int) -> FieldType:
        target = node["$ref"]
        if not target.startswith("#") or target.endswith("/ndarray"):
            return _array(node) if not any(word in target for word in _OTHER_ARRAYS) else BytesType()
        found: Any = self.root
        for step in target.strip("#/").split("/"):
            if not isinstance(found, Mapping) or step not in found:
                raise SchemaError("a reference leads nowhere", found=target, field=path)
            found = found[step]
        return self.type(found, path, depth + 1)

    def options(self, node: JsonObject, path: str, depth: int) -> FieldType:
        options = node.get("anyOf") or node["oneOf"]
        return union_of(
            None if option == {"type": "null"} else self.type(option, f"{path}[{number}]", depth + 1)
            for number, option in enumerate(options)
        )

    def all_of(self, node: JsonObject, path: str, depth: int) -> FieldType:
        if len(node["allOf"]) != 1:
            raise SchemaError("only one schema can be in allOf", found=len(node["allOf"]), field=path)
        return self.type(node["allOf"][0], path, depth + 1)

    def string(self, node: JsonObject, path: str, depth: int) -> FieldType:
        if "x-shoal-image" in node:
            return Image(node["x-shoal-image"])
        if "x-shoal-audio" in node:
            return Audio(node["x-shoal-audio"])
        if node.get("contentEncoding") == "base64" or node.get("format") in ("byte", "binary"):
            return BytesType()
        return _STRING_FORMATS.get(node.get("format", ""), StrType())

    def array(self, node: JsonObject, path: str, depth: int) -> FieldType:
        items = node.get("items", node.get("prefixItems", {}))
        if isinstance(items, list):
            return TupleType(tuple(self.type(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(items)))
        item = self.type(items, f"{path}[]", depth + 1)
        return TupleType((item,), variadic=True) if node.get("x-shoal-tuple") else ListType(item)

    def object(self, node: JsonObject, path: str, depth: int) -> FieldType:
        if "properties" in node:
            return RecordType(self.schema(node, path, depth))
        integers = node.get("propertyNames", {}).get("pattern") == INT_KEYS
        values = node.get("additionalProperties", {})
        return MapType(IntType() if integers else StrType(), self.type(values or {}, f"{path}[]", depth + 1))


def _is_record(node: JsonObject) -> bool:
    return "properties" in node  # then the description is the record's own


def _default(node: JsonObject) -> Default | None:
    if "default" in node:
        return Default(json.dumps(node["default"], separators=(",", ":"), ensure_ascii=False))
    return Default(None) if "x-shoal-default" in node else None


def _array(node: JsonObject) -> Array:
    lengths = node.get("x-atdata-shape", node.get("shape"))
    names = node.get("x-shoal-dimensions") or [None] * len(lengths or ())
    dtype = node.get("x-atdata-dtype", node.get("dtype"))
    if lengths is None:
        return Array(dtype)
    return Array(dtype, tuple(name or length for length, name in zip(lengths, names, strict=True)))


def _choice(node: JsonObject) -> FieldType:
    values = [value for value in node.get("enum", [node.get("const")]) if value is not None]
    if "x-shoal-names" in node:
        return EnumType(node["title"], tuple(zip(node["x-shoal-names"], values, strict=True)))
    literal = LiteralType(tuple(values))
    return union_of((literal, None)) if None in node.get("enum", ()) else literal


def _any(reader: _Reader, node: JsonObject, path: str, depth: int) -> FieldType:
    return AnyType()


_Read = Callable[[_Reader, JsonObject, str, int], FieldType]

# Tried in this order: a node may have several of these words, and the first one decides.
_WORDS: dict[str, _Read] = {
    "$ref": _Reader.reference,
    "enum": lambda reader, node, path, depth: _choice(node),
    "const": lambda reader, node, path, depth: _choice(node),
    "anyOf": _Reader.options,
    "oneOf": _Reader.options,
    "allOf": _Reader.all_of,
}
_TYPES: dict[str, _Read] = {
    "string": _Reader.string,
    "integer": lambda reader, node, path, depth: IntType(),
    "number": lambda reader, node, path, depth: FloatType(),
    "boolean": lambda reader, node, path, depth: BoolType(),
    "array": _Reader.array,
    "object": _Reader.object,
}
