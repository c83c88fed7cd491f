"""Schemas as JSON Schema documents (draft-07), back from documents, and their hashes.

What JSON Schema cannot express is stored under ``x-shoal-*`` (``x-atdata-*`` where atdata has a key for it), so that
`schema_from_json` returns an equal schema, and any other reader sees a plain document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shoal.errors import SchemaError

from ._schema import Default, Field, Schema
from ._types import (
    AnyType,
    Array,
    Audio,
    BoolType,
    BytesType,
    DateTimeType,
    DateType,
    EnumType,
    FieldType,
    FloatType,
    Image,
    IntType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    StrType,
    TimeType,
    TupleType,
    UnionType,
    union_of,
)
from ._version import FIRST_VERSION

__all__ = ["schema_from_json", "schema_hash", "schema_to_json"]

JsonObject: TypeAlias = dict[str, Any]


DRAFT = "http://json-schema.org/draft-07/schema#"
ARRAY_REF = "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"
INT_KEYS = "^-?[0-9]+$"
_BASE64: JsonObject = {"type": "string", "format": "byte", "contentEncoding": "base64"}
_STRING_FORMATS: dict[str, FieldType] = {"date-time": DateTimeType(), "date": DateType(), "time": TimeType()}
_OTHER_ARRAYS = ("sparse", "safetensors", "arrow", "tensor", "dataframe")
_MAX_DEPTH = 64  # a document that refers to itself has no end
_MAX_NODES = 100_000  # a document whose parts each refer to the next one twice grows without end, too


def schema_to_json(schema: Schema) -> JsonObject:
    """The document of a schema: plain dicts, lists, strings and numbers.

    Examples:
        >>> from shoal.schema import Array, Field, StrType
        >>> document = schema_to_json(Schema("Sample", (Field("label", StrType()), Field("x", Array("float32")))))
        >>> document["title"], document["properties"]["label"], document["required"]
        ('Sample', {'type': 'string'}, ['label', 'x'])
        >>> document["properties"]["x"]["x-atdata-dtype"]
        'float32'
    """
    return {"$schema": DRAFT, **_schema_document(schema), "arrayFormatVersions": {"ndarrayBytes": "1.0.0"}}


def schema_hash(schema: Schema) -> str:
    """A hash of what decides how data is read: the name, and each field's name, type, default and aliases.

    Equal on every machine and in every version of shoal. Descriptions and the version do not count: words may improve,
    and a version names a content rather than being part of it.

    Examples:
        >>> from shoal.schema import Field, IntType
        >>> one = Schema("S", (Field("n", IntType()),))
        >>> two = Schema("S", (Field("n", IntType(), doc="how many"),), version="2.0.0")
        >>> schema_hash(one) == schema_hash(two), len(schema_hash(one))
        (True, 64)
    """
    text = json.dumps(
        _without_prose(_schema_document(schema)), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _without_prose(node: JsonObject) -> JsonObject:
    """A part of a document without descriptions and versions."""
    if "allOf" in node:  # wrapped for the sake of a description
        node = {**node["allOf"][0], **{word: value for word, value in node.items() if word != "allOf"}}
    kept = {word: value for word, value in node.items() if word not in ("description", "x-shoal-version")}
    return {
        word: _NESTED_DOCUMENTS[word](value) if word in _NESTED_DOCUMENTS else value for word, value in kept.items()
    }


def _items_without_prose(items: Any) -> Any:
    return [*map(_without_prose, items)] if isinstance(items, list) else _without_prose(items)


# The keys whose values are documents again; any other value, such as a default, is data and stays as it is.
_NESTED_DOCUMENTS: dict[str, Callable[[Any], Any]] = {
    "properties": lambda fields: {name: _without_prose(field) for name, field in fields.items()},
    "items": _items_without_prose,
    "anyOf": _items_without_prose,
    "additionalProperties": _without_prose,
}


def _schema_document(schema: Schema) -> JsonObject:
    document: JsonObject = {"title": schema.name, "x-shoal-version": schema.version}
    if schema.description:
        document["description"] = schema.description
    document |= {
        "type": "object",
        "properties": {field.name: _field_document(field) for field in schema.fields},
        "required": [field.name for field in schema.fields if field.required],
        # Stores that sort keys, such as AT Protocol records, would lose the order of the fields.
        "x-shoal-order": list(schema.names),
    }
    return document


def _field_document(field: Field) -> JsonObject:
    document: JsonObject = _type_document(field.type)
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


def _type_document(of: FieldType) -> JsonObject:
    return _TYPE_DOCUMENTS[type(of)](of)


def _array_document(of: Array) -> JsonObject:
    document: JsonObject = {"$ref": ARRAY_REF}
    if of.dtype is not None:
        document["x-atdata-dtype"] = of.dtype
    if of.shape is not None:
        document["x-atdata-shape"] = [length if isinstance(length, int) else None for length in of.shape]
        if any(isinstance(length, str) for length in of.shape):
            document["x-shoal-dimensions"] = [length if isinstance(length, str) else None for length in of.shape]
    return document


def _enum_document(of: EnumType) -> JsonObject:
    return {"title": of.name, "enum": list(of.values), "x-shoal-names": [name for name, _ in of.members]}


def _optional_document(of: OptionalType) -> JsonObject:
    options = of.of.options if isinstance(of.of, UnionType) else (of.of,)
    return {"anyOf": [*map(_type_document, options), {"type": "null"}]}


def _tuple_document(of: TupleType) -> JsonObject:
    if of.variadic:
        return {"type": "array", "items": _type_document(of.items[0]), "x-shoal-tuple": True}
    size = len(of.items)
    return {"type": "array", "items": [*map(_type_document, of.items)], "minItems": size, "maxItems": size}


def _map_document(of: MapType) -> JsonObject:
    document: JsonObject = {"type": "object", "additionalProperties": _type_document(of.values)}
    return document if isinstance(of.keys, StrType) else {**document, "propertyNames": {"pattern": INT_KEYS}}


_TYPE_DOCUMENTS: dict[type, Callable[[Any], JsonObject]] = {
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
    EnumType: _enum_document,
    Array: _array_document,
    Image: lambda of: {**_BASE64, "x-shoal-image": of.format},
    Audio: lambda of: {**_BASE64, "x-shoal-audio": of.format},
    OptionalType: _optional_document,
    UnionType: lambda of: {"anyOf": [*map(_type_document, of.options)]},
    ListType: lambda of: {"type": "array", "items": _type_document(of.items)},
    TupleType: _tuple_document,
    MapType: _map_document,
    RecordType: lambda of: _schema_document(of.schema),
}


def schema_from_json(document: Mapping[str, Any]) -> Schema:
    """The schema that a document describes.

    For documents of `schema_to_json` this gives back an equal schema. Those of others may use references into their own
    ``definitions`` or ``$defs``, ``oneOf``, ``const``, lists of types, and atdata's references for arrays; what has no
    type here, or none at all, is read as ``Any``. A field that is not required and has no default is optional.

    Raises:
        SchemaError: The document does not describe an object, refers to what is not there, or contains itself.

    Examples:
        >>> schema = schema_from_json(
        ...     {"title": "S", "type": "object", "properties": {"n": {"type": ["integer", "null"]}}}
        ... )
        >>> print(schema)
        S@1.0.0(n: int | None)
    """
    return _DocumentReader(document).schema(document, "$", 0)


class _DocumentReader:
    """Reads one document: resolves references, and limits its depth and its number of types."""

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
        doc = "" if "properties" in node else node.get("description", "")  # a record has a description of its own
        field_type = self.type(node, path, depth + 1)
        default = _default(node)
        if not required and default is None:
            field_type, default = union_of((field_type, None)), Default("null")
        elif required:
            default = None
        return Field(name, field_type, default, tuple(node.get("x-shoal-aliases", ())), doc)

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
        for word, read in _KEYWORD_READERS.items():
            if word in node:
                return read(self, node, path, depth)
        return self.typed(node, path, depth)

    def typed(self, node: JsonObject, path: str, depth: int) -> FieldType:
        word = node.get("type")
        if isinstance(word, list):
            options = ({**node, "type": one} for one in word)
            return union_of(None if one["type"] == "null" else self.type(one, path, depth + 1) for one in options)
        return _TYPE_READERS.get(str(word), _read_any)(self, node, path, depth)

    def reference(self, node: JsonObject, path: str, depth: int) -> FieldType:
        target = node["$ref"]
        if not target.startswith("#") or target.endswith("/ndarray"):
            return _array_type(node) if not any(word in target for word in _OTHER_ARRAYS) else BytesType()
        referenced: Any = self.root
        for step in target.strip("#/").split("/"):
            if not isinstance(referenced, Mapping) or step not in referenced:
                raise SchemaError("a reference leads nowhere", found=target, field=path)
            referenced = referenced[step]
        return self.type(referenced, path, depth + 1)

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


def _default(node: JsonObject) -> Default | None:
    if "default" in node:
        return Default(json.dumps(node["default"], separators=(",", ":"), ensure_ascii=False))
    return Default(None) if "x-shoal-default" in node else None


def _array_type(node: JsonObject) -> Array:
    lengths = node.get("x-atdata-shape", node.get("shape"))
    names = node.get("x-shoal-dimensions") or [None] * len(lengths or ())
    dtype = node.get("x-atdata-dtype", node.get("dtype"))
    if lengths is None:
        return Array(dtype)
    return Array(dtype, tuple(name or length for length, name in zip(lengths, names, strict=True)))


def _choice_type(node: JsonObject) -> FieldType:
    values = [value for value in node.get("enum", [node.get("const")]) if value is not None]
    if "x-shoal-names" in node:
        return EnumType(node["title"], tuple(zip(node["x-shoal-names"], values, strict=True)))
    literal = LiteralType(tuple(values))
    return union_of((literal, None)) if None in node.get("enum", ()) else literal


def _read_any(reader: _DocumentReader, node: JsonObject, path: str, depth: int) -> FieldType:
    return AnyType()


_ReadNode = Callable[[_DocumentReader, JsonObject, str, int], FieldType]

# Tried in this order: a node may have several of these keywords, and the first one decides.
_KEYWORD_READERS: dict[str, _ReadNode] = {
    "$ref": _DocumentReader.reference,
    "enum": lambda reader, node, path, depth: _choice_type(node),
    "const": lambda reader, node, path, depth: _choice_type(node),
    "anyOf": _DocumentReader.options,
    "oneOf": _DocumentReader.options,
    "allOf": _DocumentReader.all_of,
}
_TYPE_READERS: dict[str, _ReadNode] = {
    "string": _DocumentReader.string,
    "integer": lambda reader, node, path, depth: IntType(),
    "number": lambda reader, node, path, depth: FloatType(),
    "boolean": lambda reader, node, path, depth: BoolType(),
    "array": _DocumentReader.array,
    "object": _DocumentReader.object,
}
