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

from shoal.schema._changes import Change, compare, next_version
from shoal.schema._dtype import dtype_fits, dtype_name
from shoal.schema._from_document import schema_from_json
from shoal.schema._reading import Problem, check_readable, reading_problems
from shoal.schema._schema import Default, Field, Schema
from shoal.schema._to_document import schema_hash, schema_to_json

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
