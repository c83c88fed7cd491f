"""How values become Arrow columns: the form of a column, found by looking at values, and widened when others come.

A form is a tree of frozen values. Where the schema says what a field is, the form follows it; what it leaves open (the
shape of arrays, whether times have a zone, what is in ``Any``) and all of untyped samples is told by the values. Forms
of two batches merge into the narrowest that holds both exactly; in the end that is MessagePack, which holds anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal import schema
from shoal.schema import FieldType

__all__ = [
    "JSON",
    "MSGPACK",
    "NULL",
    "Form",
    "Kind",
    "array_form",
    "form_document",
    "form_from_document",
    "form_of",
    "form_of_type",
    "is_exact_json",
    "merged",
]

Kind: TypeAlias = Literal[
    "null", "plain", "moment", "text", "tensor", "array", "npy", "list", "tuple", "record", "map", "json", "msgpack"
]


@dataclass(frozen=True, slots=True)
class Form:
    """What a column, or a part of one, is.

    ``plain`` values are Arrow's own; ``moment`` is a time, ``text`` a time as ISO text; ``tensor`` an array of a fixed
    shape, ``array`` one of any shape, ``npy`` one of any dtype; ``json`` and ``msgpack`` hold what has no type.
    """

    kind: Kind
    type: pa.DataType
    inner: tuple[tuple[str, Form], ...] = ()


NULL = Form("null", pa.null())
JSON = Form("json", pa.string())
MSGPACK = Form("msgpack", pa.binary())
TEXT = Form("text", pa.string())
NPY = Form("npy", pa.binary())
_BINARY = Form("plain", pa.binary())
_INTEGER = Form("plain", pa.int64())
_FLOAT = Form("plain", pa.float64())
_PLAIN: dict[type, Form] = {
    str: Form("plain", pa.string()),
    bool: Form("plain", pa.bool_()),
    float: _FLOAT,
    bytes: _BINARY,
    bytearray: _BINARY,
    memoryview: _BINARY,
}
_LEAVES: dict[type, Form] = {
    schema.StrType: _PLAIN[str],
    schema.BoolType: _PLAIN[bool],
    schema.FloatType: _FLOAT,
    schema.BytesType: _BINARY,
    schema.Image: _BINARY,
    schema.Audio: _BINARY,
    schema.DateType: Form("moment", pa.date32()),
}
_LARGEST = 2**63


def form_of(values: Sequence[Any], hint: FieldType | None = None) -> Form:
    """The narrowest form of these values, None among them or not; ``hint`` is what the schema says they are.

    Example:
        >>> form_of([1, None, 2]).type, form_of(["a", 1]).kind
        (DataType(int64), 'json')
        >>> str(form_of([{"w": 1, "tags": ["x"]}]).type)
        'struct<w: int64, tags: list<item: string>>'
    """
    if isinstance(hint, schema.OptionalType):
        hint = hint.of
    known = [value for value in values if value is not None]
    if hint is None:
        return _seen(known)
    if type(hint) in _LEAVES:
        return _LEAVES[type(hint)]
    return _hinted(known, hint)


def _hinted(values: list[Any], hint: FieldType) -> Form:
    match hint:
        case schema.IntType():
            return _integers(values)
        case schema.DateTimeType() | schema.TimeType():
            return _moments(values, isinstance(hint, schema.DateTimeType))
        case schema.LiteralType(_) | schema.EnumType():
            return _choices(values, hint)
        case schema.Array():
            return _arrays(values)
        case schema.ListType(item):
            return _list(form_of(list(itertools.chain.from_iterable(values)), item))
        case schema.TupleType():
            return _tuples(values, hint)
        case schema.MapType():
            return _map(hint, form_of([item for value in values for item in value.values()], hint.values))
        case schema.RecordType(of):
            inner = [(one.name, form_of([value[one.name] for value in values], one.type)) for one in of.fields]
            return _record("record", inner) if inner else JSON
    return _free(values)  # Any, and unions


def _choices(values: list[Any], hint: schema.LiteralType | schema.EnumType) -> Form:
    kinds = set(hint.kinds)
    if len(kinds) > 1:
        return _free(values)
    return {"str": _PLAIN[str], "bool": _PLAIN[bool], "float": _FLOAT}.get(kinds.pop()) or _integers(values)


def _tuples(values: list[Any], hint: schema.TupleType) -> Form:
    if hint.variadic:
        return _list(form_of(list(itertools.chain.from_iterable(values)), hint.items[0]))
    inner = [(str(at), form_of([value[at] for value in values], item)) for at, item in enumerate(hint.items)]
    return _record("tuple", inner) if inner else JSON


def _seen(values: list[Any]) -> Form:
    """The form of values of which nothing is known."""
    kinds = set(map(type, values))
    if not kinds:
        return NULL
    if kinds == {int, float}:
        return _FLOAT
    if len(kinds) > 1 and not kinds <= {bytes, bytearray, memoryview}:
        return _free(values)
    kind = kinds.pop()
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is int:
        return _integers(values)
    if issubclass(kind, np.ndarray):
        return _arrays(values)
    if kind is list:
        return _list(_seen([item for value in values for item in value if item is not None]))
    names = list(values[0]) if kind is dict else []
    if names and all(type(name) is str for name in names) and all(value.keys() == values[0].keys() for value in values):
        return _record("record", [(name, form_of([value[name] for value in values])) for name in names])
    return _free(values)


def _free(values: list[Any]) -> Form:
    if not values:
        return NULL
    return JSON if all(map(is_exact_json, values)) else MSGPACK


def is_exact_json(value: Any) -> bool:
    """Whether JSON gives the value back as it is."""
    if isinstance(value, float):
        return math.isfinite(value)
    if type(value) is dict:
        return all(type(name) is str and is_exact_json(item) for name, item in value.items())
    if type(value) is list:
        return all(map(is_exact_json, value))
    return value is None or type(value) in (str, int, bool)


def _integers(values: list[Any]) -> Form:
    fits = not values or -_LARGEST <= min(values) <= max(values) < _LARGEST
    return _INTEGER if fits else JSON


def _moments(values: list[Any], dated: bool) -> Form:
    zones = {value.tzinfo is not None and value.utcoffset() is not None for value in values}
    if not zones:
        return NULL
    if not dated:
        return Form("moment", pa.time64("us")) if zones == {False} else TEXT
    return TEXT if len(zones) > 1 else Form("moment", pa.timestamp("us", "UTC" if True in zones else None))


def array_form(dtype: npt.DTypeLike, shape: tuple[int, ...] | None) -> Form:
    """The form of arrays of one dtype and, where it is given, one shape."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
        return NPY
    of = pa.from_numpy_dtype(dtype)
    if shape and math.prod(shape) and dtype.kind != "b":
        return Form("tensor", pa.fixed_shape_tensor(of, shape))
    return Form("array", pa.struct([("data", pa.list_(of)), ("shape", pa.list_(pa.int64()))]))


def _arrays(values: list[Any]) -> Form:
    kinds = {(value.dtype, value.shape) for value in values}
    if not kinds:
        return NULL
    dtypes, shapes = {dtype for dtype, _ in kinds}, {shape for _, shape in kinds}
    return NPY if len(dtypes) > 1 else array_form(dtypes.pop(), shapes.pop() if len(shapes) == 1 else None)


def _nested(form: Form) -> Form:
    """Inside of something else a tensor has no place of its own."""
    if form.kind != "tensor":
        return form
    return array_form(form.type.value_type.to_pandas_dtype(), None)


def _list(item: Form) -> Form:
    item = _nested(item)
    return Form("list", pa.list_(item.type), (("item", item),))


def _map(hint: schema.MapType, item: Form) -> Form:
    item = _nested(item)
    keys = pa.string() if isinstance(hint.keys, schema.StrType) else pa.int64()
    return Form("map", pa.map_(keys, item.type), (("value", item),))


def _record(kind: Literal["record", "tuple"], inner: Sequence[tuple[str, Form]]) -> Form:
    parts = tuple((name, _nested(form)) for name, form in inner)
    return Form(kind, pa.struct([pa.field(name, form.type) for name, form in parts]), parts)


# ------------------------------------------------------------------------------------------------------------- merging


def merged(one: Form, two: Form) -> Form:
    """The narrowest form that holds the values of both.

    Example:
        >>> import numpy as np
        >>> small, large = form_of([np.zeros(2)]), form_of([np.zeros(3)])
        >>> small.kind, merged(small, large).kind, merged(small, form_of(["text"])).kind
        ('tensor', 'array', 'msgpack')
    """
    if one == two or two.kind == "null":
        return one
    if one.kind == "null":
        return two
    kinds = {one.kind, two.kind}
    if kinds <= {"tensor", "array", "npy"}:
        return _merged_arrays(one, two)
    if kinds <= {"moment", "text"}:
        return TEXT
    if {one, two} == {_INTEGER, _FLOAT}:
        return _FLOAT
    if len(kinds) == 1 and one.inner and [name for name, _ in one.inner] == [name for name, _ in two.inner]:
        return _rebuilt(one, [(name, merged(form, dict(two.inner)[name])) for name, form in one.inner])
    return JSON if _is_json(one) and _is_json(two) else MSGPACK


def _merged_arrays(one: Form, two: Form) -> Form:
    if "npy" in (one.kind, two.kind) or _numbers(one) != _numbers(two):
        return NPY
    return array_form(_numbers(one).to_pandas_dtype(), None)


def _numbers(form: Form) -> Any:
    return form.type.value_type if form.kind == "tensor" else form.type.field("data").type.value_type


def _rebuilt(form: Form, inner: list[tuple[str, Form]]) -> Form:
    if form.kind == "list":
        return _list(inner[0][1])
    if form.kind == "map":
        return Form("map", pa.map_(form.type.key_type, inner[0][1].type), tuple(inner))
    return _record("tuple" if form.kind == "tuple" else "record", inner)


def _is_json(form: Form) -> bool:
    if form.kind in ("list", "record"):
        return all(_is_json(inner) for _, inner in form.inner)
    return form.kind in ("json", "null") or (form.kind == "plain" and form != _BINARY)


# ----------------------------------------------------------------------------------------------------------- documents


def form_document(form: Form) -> Any:
    """A form as JSON, without its Arrow type, which the column itself has."""
    return [form.kind, {name: form_document(inner) for name, inner in form.inner}] if form.inner else form.kind


def form_from_document(document: Any, of: pa.DataType) -> Form:
    """The form of a column of type ``of``, as its document says. Raises ValueError where they do not fit."""
    kind, parts = document if isinstance(document, list) else (document, {})
    types = _inner_types(of) if parts else {}
    if types.keys() != dict(parts).keys():
        raise ValueError(f"{document} is not {of}")
    return Form(kind, of, tuple((name, form_from_document(part, types[name])) for name, part in parts.items()))


def form_of_type(of: pa.DataType) -> Form:
    """The form of a column of which nothing is known but its Arrow type."""
    types = pa.types
    if isinstance(of, pa.FixedShapeTensorType):
        return Form("tensor", of)
    if types.is_timestamp(of) or types.is_date(of) or types.is_time(of):
        return Form("moment", of)
    parts = _inner_types(of)
    kind: Kind = "map" if types.is_map(of) else "record" if types.is_struct(of) else "list" if parts else "plain"
    return Form(kind, of, tuple((name, form_of_type(part)) for name, part in parts.items()))


def _inner_types(of: pa.DataType) -> Mapping[str, pa.DataType]:
    types = pa.types
    if types.is_struct(of):
        return {of.field(at).name: of.field(at).type for at in range(of.num_fields)}
    if types.is_map(of):
        return {"value": of.item_type}
    if types.is_list(of) or types.is_large_list(of) or types.is_fixed_size_list(of):
        return {"item": of.value_type}
    return {}
