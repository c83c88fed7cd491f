"""What a sample type is, as frozen values: documents, codecs, manifests and viewers read these, never the class.

::

    _types, _leaves the types a field may have      _dtype     names of array types
    _schema         Schema, Field, Default          _version   MAJOR.MINOR.PATCH
    _to_document    schema -> JSON Schema, hash     _from_document  and back
    _reading        which data is read as what      _changes   what changed, and the next version

Example:
    >>> from shoal.schema import Array, Field, Schema, StrType, schema_from_json, schema_to_json
    >>> schema = Schema("ImageSample", (Field("image", Array("uint8", (None, None, 3))), Field("label", StrType())))
    >>> schema_from_json(schema_to_json(schema)) == schema
    True
"""

from __future__ import annotations

from shoal.schema._schema import Default, Field, Schema

from ._compatibility import Change, Problem, check_readable, compare, next_version, reading_problems
from ._json_schema import schema_from_json, schema_hash, schema_to_json
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
    dtype_fits,
    dtype_name,
    union_of,
    wire_kinds,
)

__all__ = [
    "AnyType",
    "Array",
    "Audio",
    "BoolType",
    "BytesType",
    "Change",
    "DateTimeType",
    "DateType",
    "Default",
    "EnumType",
    "Field",
    "FieldType",
    "FloatType",
    "Image",
    "IntType",
    "ListType",
    "LiteralType",
    "MapType",
    "OptionalType",
    "Problem",
    "RecordType",
    "Schema",
    "StrType",
    "TimeType",
    "TupleType",
    "UnionType",
    "check_readable",
    "compare",
    "dtype_fits",
    "dtype_name",
    "next_version",
    "reading_problems",
    "schema_from_json",
    "schema_hash",
    "schema_to_json",
    "union_of",
    "wire_kinds",
]
