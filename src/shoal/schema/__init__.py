"""Sample types as frozen values. Codecs, manifests and viewers read these values, never the class.

::

    _types          the types a field may have, and the names of array types
    _schema         Schema, Field, Default, and versions MAJOR.MINOR.PATCH
    _json_schema    a schema as a JSON Schema document and back, and its hash
    _compatibility  which data can be read as which type, what changed, and the next version

Examples:
    >>> from shoal.schema import Array, Field, Schema, StrType, schema_from_json, schema_to_json
    >>> schema = Schema("ImageSample", (Field("image", Array("uint8", (None, None, 3))), Field("label", StrType())))
    >>> schema_from_json(schema_to_json(schema)) == schema
    True
"""

from __future__ import annotations

from ._compatibility import Change, Problem, check_readable, compare, next_version, reading_problems
from ._json_schema import schema_from_json, schema_hash, schema_to_json
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
    dtype_fits,
    dtype_name,
    union_of,
    wire_kinds,
)
from ._version import FIRST_VERSION, VersionPart, bump_version, newest_version, version_precedence

__all__ = [
    "FIRST_VERSION",
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
    "VersionPart",
    "bump_version",
    "check_readable",
    "compare",
    "dtype_fits",
    "dtype_name",
    "newest_version",
    "next_version",
    "reading_problems",
    "schema_from_json",
    "schema_hash",
    "schema_to_json",
    "union_of",
    "version_precedence",
    "wire_kinds",
]
