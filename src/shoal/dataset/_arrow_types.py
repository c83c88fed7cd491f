"""Arrow types for the columns of samples, and conversion of values to and from Arrow arrays.

A `Form` is the Arrow type of a column and how values are stored in it. The schema decides the form. What it leaves
open (the shape of arrays, whether times have a zone, what is in ``Any``), and everything in untyped samples, is
inferred from the values. The forms of two batches merge into the narrowest one that holds both exactly; the widest is
MessagePack.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal import schema
from shoal.codec._arrays import decode_npy, encode_npy
from shoal.schema._types import FieldType

__all__ = [
    "ABSENT",
    "MSGPACK",
    "Column",
    "column_of",
    "form_document",
    "form_from_document",
    "form_of",
    "form_of_type",
    "from_arrow",
    "is_exact_json",
    "merge_columns",
    "merge_forms",
    "payload_converter",
    "to_arrow",
]

Kind: TypeAlias = Literal[
    "null", "plain", "moment", "text", "tensor", "array", "npy", "list", "tuple", "record", "map", "json", "msgpack"
]
Convert = Callable[[Any], Any]
pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them


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
_INT64_LIMIT = 2**63
_ARRAY_EXTENSION = 78  # our MessagePack extension code for arrays


def form_of(values: Sequence[Any], hint: FieldType | None = None) -> Form:
    """The narrowest form of these values, None among them or not; ``hint`` is what the schema says they are.

    Examples:
        >>> form_of([1, None, 2]).type, form_of(["a", 1]).kind
        (DataType(int64), 'json')
        >>> str(form_of([{"w": 1, "tags": ["x"]}]).type)
        'struct<w: int64, tags: list<item: string>>'
    """
    if isinstance(hint, schema.OptionalType):
        hint = hint.of
    known = [value for value in values if value is not None]
    if hint is None:
        return _inferred_form(known)
    if type(hint) in _LEAVES:
        return _LEAVES[type(hint)]
    return _schema_form(known, hint)


def _schema_form(values: list[Any], hint: FieldType) -> Form:
    match hint:
        case schema.IntType():
            return _integer_form(values)
        case schema.DateTimeType() | schema.TimeType():
            return _time_form(values, isinstance(hint, schema.DateTimeType))
        case schema.LiteralType(_) | schema.EnumType():
            return _choice_form(values, hint)
        case schema.Array():
            return _array_form(values)
        case schema.ListType(item):
            return _list_form(form_of(list(itertools.chain.from_iterable(values)), item))
        case schema.TupleType():
            return _tuple_form(values, hint)
        case schema.MapType():
            return _map_form(hint, form_of([item for value in values for item in value.values()], hint.values))
        case schema.RecordType(of):
            inner = [(one.name, form_of([value[one.name] for value in values], one.type)) for one in of.fields]
            return _record_form("record", inner) if inner else JSON
    return _untyped_form(values)  # Any, and unions


def _choice_form(values: list[Any], hint: schema.LiteralType | schema.EnumType) -> Form:
    kinds = set(hint.kinds)
    if len(kinds) > 1:
        return _untyped_form(values)
    return {"str": _PLAIN[str], "bool": _PLAIN[bool], "float": _FLOAT}.get(kinds.pop()) or _integer_form(values)


def _tuple_form(values: list[Any], hint: schema.TupleType) -> Form:
    if hint.variadic:
        return _list_form(form_of(list(itertools.chain.from_iterable(values)), hint.items[0]))
    inner = [(str(at), form_of([value[at] for value in values], item)) for at, item in enumerate(hint.items)]
    return _record_form("tuple", inner) if inner else JSON


def _inferred_form(values: list[Any]) -> Form:
    """The form of values without a schema."""
    kinds = set(map(type, values))
    if not kinds:
        return NULL
    if kinds == {int, float}:
        return _FLOAT
    if len(kinds) > 1 and not kinds <= {bytes, bytearray, memoryview}:
        return _untyped_form(values)
    kind = kinds.pop()
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is int:
        return _integer_form(values)
    if issubclass(kind, np.ndarray):
        return _array_form(values)
    if kind is list:
        return _list_form(_inferred_form([item for value in values for item in value if item is not None]))
    names = list(values[0]) if kind is dict else []
    if names and all(type(name) is str for name in names) and all(value.keys() == values[0].keys() for value in values):
        return _record_form("record", [(name, form_of([value[name] for value in values])) for name in names])
    return _untyped_form(values)


def _untyped_form(values: list[Any]) -> Form:
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


def _integer_form(values: list[Any]) -> Form:
    fits = not values or -_INT64_LIMIT <= min(values) <= max(values) < _INT64_LIMIT
    return _INTEGER if fits else JSON


def _time_form(values: list[Any], dated: bool) -> Form:
    zones = {value.tzinfo is not None and value.utcoffset() is not None for value in values}
    if not zones:
        return NULL
    if not dated:
        return Form("moment", pa.time64("us")) if zones == {False} else TEXT
    if len(zones) > 1 or (True in zones and not all(map(_has_utc_time, values))):
        return TEXT
    return Form("moment", pa.timestamp("us", "UTC" if True in zones else None))


def _has_utc_time(value: dt.datetime) -> bool:
    """Whether the time in UTC is between the years 1 and 9999, as Python requires when it is read back."""
    try:
        value.astimezone(dt.UTC)
    except OverflowError:
        return False
    return True


def array_form(dtype: npt.DTypeLike, shape: tuple[int, ...] | None) -> Form:
    """The form of arrays of one dtype and, where it is given, one shape."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
        return NPY
    of = pa.from_numpy_dtype(dtype)
    if shape and math.prod(shape) and dtype.kind != "b":
        return Form("tensor", pa.fixed_shape_tensor(of, shape))
    return Form("array", pa.struct([("data", pa.list_(of)), ("shape", pa.list_(pa.int64()))]))


def _array_form(values: list[Any]) -> Form:
    kinds = {(value.dtype, value.shape) for value in values}
    if not kinds:
        return NULL
    dtypes, shapes = {dtype for dtype, _ in kinds}, {shape for _, shape in kinds}
    return NPY if len(dtypes) > 1 else array_form(dtypes.pop(), shapes.pop() if len(shapes) == 1 else None)


def _nested_form(form: Form) -> Form:
    """The form inside a list, map or struct, where Arrow has no fixed-shape tensors."""
    if form.kind != "tensor":
        return form
    return array_form(form.type.value_type.to_pandas_dtype(), None)


def _list_form(item: Form) -> Form:
    item = _nested_form(item)
    return Form("list", pa.list_(item.type), (("item", item),))


def _map_form(hint: schema.MapType, item: Form) -> Form:
    item = _nested_form(item)
    keys = pa.string() if isinstance(hint.keys, schema.StrType) else pa.int64()
    return Form("map", pa.map_(keys, item.type), (("value", item),))


def _record_form(kind: Literal["record", "tuple"], inner: Sequence[tuple[str, Form]]) -> Form:
    parts = tuple((name, _nested_form(form)) for name, form in inner)
    return Form(kind, pa.struct([pa.field(name, form.type) for name, form in parts]), parts)


def merge_forms(one: Form, two: Form) -> Form:
    """The narrowest form that holds the values of both.

    Examples:
        >>> import numpy as np
        >>> small, large = form_of([np.zeros(2)]), form_of([np.zeros(3)])
        >>> small.kind, merge_forms(small, large).kind, merge_forms(small, form_of(["text"])).kind
        ('tensor', 'array', 'msgpack')
    """
    if one == two or two.kind == "null":
        return one
    if one.kind == "null":
        return two
    kinds = {one.kind, two.kind}
    if kinds <= {"tensor", "array", "npy"}:
        return _merge_arrays(one, two)
    if kinds <= {"moment", "text"}:
        return TEXT
    if {one, two} == {_INTEGER, _FLOAT}:
        return _FLOAT
    if len(kinds) == 1 and one.inner and [name for name, _ in one.inner] == [name for name, _ in two.inner]:
        return _with_inner(one, [(name, merge_forms(form, dict(two.inner)[name])) for name, form in one.inner])
    return JSON if _is_json(one) and _is_json(two) else MSGPACK


def _merge_arrays(one: Form, two: Form) -> Form:
    if "npy" in (one.kind, two.kind) or _number_type(one) != _number_type(two):
        return NPY
    return array_form(_number_type(one).to_pandas_dtype(), None)


def _number_type(form: Form) -> Any:
    return form.type.value_type if form.kind == "tensor" else form.type.field("data").type.value_type


def _with_inner(form: Form, inner: list[tuple[str, Form]]) -> Form:
    if form.kind == "list":
        return _list_form(inner[0][1])
    if form.kind == "map":
        return Form("map", pa.map_(form.type.key_type, inner[0][1].type), tuple(inner))
    return _record_form("tuple" if form.kind == "tuple" else "record", inner)


def _is_json(form: Form) -> bool:
    if form.kind in ("list", "record"):
        return all(_is_json(inner) for _, inner in form.inner)
    return form.kind in ("json", "null") or (form.kind == "plain" and form != _BINARY)


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


class _Absent:
    """The value of a field that a sample does not have."""


ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True)
class Column:
    """A column's form, and what its nulls stand for: a value that is None, or a field that is not there."""

    form: Form
    nulls: Literal["", "none", "absent"] = ""


def column_of(values: Sequence[Any], hint: FieldType | None = None) -> Column:
    """The narrowest column of these values."""
    present = [value for value in values if value is not ABSENT]
    form, empty = form_of(present, hint), any(value is None for value in present)
    if len(present) == len(values):
        return Column(form, "none" if empty else "")
    return Column(_form_with_none(form), "absent") if empty else Column(form, "absent")


def _form_with_none(form: Form) -> Form:
    """A form that can store None as a value, for columns in which null means that the field is absent."""
    return JSON if merge_forms(form, JSON) == JSON else MSGPACK


def merge_columns(one: Column, two: Column) -> Column:
    """The narrowest column that holds the values of both."""
    form = merge_forms(one.form, two.form)
    if one.nulls and two.nulls and one.nulls != two.nulls:
        return Column(_form_with_none(form), "absent")
    return Column(form, one.nulls or two.nulls)


def to_arrow(column: Column, values: Sequence[Any]) -> pa.Array:
    """The values as one array. Raises ValueError or TypeError where one does not fit the form."""
    form, free = column.form, column.form.kind in ("json", "msgpack") and column.nulls == "absent"
    # If null means that the field is absent, None is stored as a value.
    cells = values if column.nulls != "absent" else [None if value is ABSENT else value for value in values]
    if form.kind == "tensor":
        return _tensor_array(form, cells)
    convert = _packer(form)
    if convert is None:
        return pa.array(cells, form.type)
    empty = ABSENT if free else None
    return pa.array([None if value is empty else convert(value) for value in (values if free else cells)], form.type)


def _tensor_array(form: Form, values: Sequence[Any]) -> pa.Array:
    size = math.prod(form.type.shape)
    blank = np.zeros(form.type.shape, form.type.value_type.to_pandas_dtype())
    flat = np.stack([blank if value is None else value for value in values]).reshape(-1) if len(values) else blank[:0]
    nulls = pa.array([value is None for value in values], pa.bool_())
    mask = nulls if any(value is None for value in values) else None
    storage = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), size, mask=mask)
    return pa.ExtensionArray.from_storage(form.type, storage.cast(form.type.storage_type))


def _packer(form: Form) -> Convert | None:
    """The function that converts values other than None for Arrow; None if Arrow takes them as they are."""
    inner = [_optional(_packer(part)) for _, part in form.inner]
    match form.kind:
        case "list" if inner[0]:
            item = inner[0]
            return lambda value: [item(one) for one in value]
        case "map":
            item = inner[0] or _identity
            return lambda value: [(key, item(one)) for key, one in value.items()]
        case "record" if any(inner):
            parts = [(name, convert or _identity) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: {name: convert(value[name]) for name, convert in parts}
        case "tuple":
            parts = [(name, convert or _identity) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: {name: convert(one) for (name, convert), one in zip(parts, value, strict=True)}
    return _PACKERS.get(form.kind)


def _identity(value: Any) -> Any:
    return value


def _optional(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _to_json(value: Any) -> str:
    if not is_exact_json(value):
        raise ValueError(f"JSON does not hold {value!r}")
    return msgspec.json.encode(value).decode()


def _encode_extension(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgspec.msgpack.Ext(_ARRAY_EXTENSION, encode_npy(value))
    raise TypeError(f"a table cannot hold {type(value).__name__}")


def _decode_extension(code: int, data: memoryview) -> Any:
    if code == _ARRAY_EXTENSION:
        return decode_npy(bytes(data))
    return msgspec.msgpack.Ext(code, bytes(data))


_unpack = msgspec.msgpack.Decoder(ext_hook=_decode_extension).decode
_pack = msgspec.msgpack.Encoder(enc_hook=_encode_extension).encode
_PACKERS: dict[str, Convert] = {
    "array": lambda value: {"data": value.reshape(-1), "shape": value.shape},
    "npy": encode_npy,
    "text": lambda value: value.isoformat(),
    "json": _to_json,
    "msgpack": _pack,
}


def from_arrow(column: Column, array: pa.Array) -> list[Any]:
    """The values of an array: of times their ISO text, of arrays NumPy's; `ABSENT` for fields that are not there."""
    form, nothing = column.form, ABSENT if column.nulls == "absent" else None
    if form.kind == "tensor":
        return _tensor_rows(form, array, nothing)
    if form.kind == "array" and not array.null_count:
        return _ragged_arrays(array)
    convert = _unpacker(form) or _identity
    if (of := _type_of_bits(form)) != form.type:
        array = array.view(of)
    return [nothing if value is None else convert(value) for value in _to_pylist(array)]


def _type_of_bits(form: Form) -> pa.DataType:
    """The type with the numbers of arrays as integers of their bits: Python's float changes signalling NaNs."""
    of = form.type
    if form.kind == "array":
        data, bits = of.field("data"), pa.from_numpy_dtype(_bits_dtype(_number_dtype(form)))
        return pa.struct([data.with_type(pa.list_(data.type.value_field.with_type(bits))), of.field("shape")])
    parts = [_type_of_bits(part) for _, part in form.inner]
    if parts == [part.type for _, part in form.inner]:
        return of
    if form.kind == "list":
        return pa.list_(of.value_field.with_type(parts[0]))
    if form.kind == "map":
        return pa.map_(of.key_type, of.item_field.with_type(parts[0]))
    return pa.struct([of.field(name).with_type(part) for (name, _), part in zip(form.inner, parts, strict=True)])


def _bits_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "f" else dtype


def _number_dtype(form: Form) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(_number_type(form).to_pandas_dtype())
    return dtype


def _to_pylist(array: pa.Array) -> list[Any]:
    """The array as Python values, which have microseconds at most."""
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        array = pc.cast(array, pa.timestamp("us", array.type.tz), safe=False)
    if pa.types.is_time64(array.type) and array.type.unit == "ns":
        array = pc.cast(array, pa.time64("us"), safe=False)
    values: list[Any] = array.to_pylist()
    return values


def _tensor_rows(form: Form, array: pa.Array, nothing: Any) -> list[Any]:
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    sound = storage.drop_null() if storage.null_count else storage
    flat = sound.flatten().to_numpy(zero_copy_only=False)
    rows = iter(flat.reshape(len(sound), *form.type.shape))
    return [next(rows) if valid else nothing for valid in storage.is_valid().to_pylist()]


def _ragged_arrays(array: pa.StructArray) -> list[Any]:
    """Arrays of any shape, as views of one buffer."""
    data, shapes = array.field("data"), array.field("shape").to_pylist()
    numbers = data.values.to_numpy(zero_copy_only=False)
    starts = data.offsets.to_numpy().tolist()
    return [numbers[a:b].reshape(shape) for a, b, shape in zip(starts, starts[1:], shapes, strict=False)]


def _unpacker(form: Form) -> Convert | None:
    inner = [_optional(_unpacker(part)) for _, part in form.inner]
    match form.kind:
        case "list" if inner[0]:
            item = inner[0]
            return lambda value: [item(one) for one in value]
        case "map":
            item = inner[0] or _identity
            return lambda value: {key: item(one) for key, one in value}
        case "record" if any(inner):
            parts = [(name, convert or _identity) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: {name: convert(value[name]) for name, convert in parts}
        case "tuple":
            parts = [(name, convert or _identity) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: [convert(value[name]) for name, convert in parts]
        case "array":
            dtype = _number_dtype(form)
            bits = _bits_dtype(dtype)
            return lambda value: np.asarray(value["data"], bits).view(dtype).reshape(value["shape"])
    return _UNPACKERS.get(form.kind)


_UNPACKERS: dict[str, Convert] = {
    "moment": lambda value: value.isoformat(),
    "npy": decode_npy,
    "json": msgspec.json.decode,
    "msgpack": _unpack,
}


def payload_converter(hint: FieldType) -> Convert | None:
    """The function that converts the strings and bytes of a payload to times and arrays; None if there are none."""
    match hint:
        case schema.OptionalType(of):
            return _optional(payload_converter(of))
        case schema.Array():
            return decode_npy
        case schema.ListType(item) | schema.TupleType((item,), True):
            return _each(payload_converter(item))
        case schema.MapType(_, item):
            return _each_value(payload_converter(item))
        case schema.TupleType(items):
            converts = [payload_converter(item) or _identity for item in items]
            return lambda value: [convert(one) for convert, one in zip(converts, value, strict=True)]
        case schema.RecordType(of):
            parts = [(one.name, convert) for one in of.fields if (convert := payload_converter(one.type))]
            return (
                (lambda value: {**value, **{name: convert(value[name]) for name, convert in parts}}) if parts else None
            )
    return _PAYLOAD_CONVERTERS.get(type(hint))


def _each(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: [convert(one) for one in value]


def _each_value(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: {key: convert(one) for key, one in value.items()}


_PAYLOAD_CONVERTERS: dict[type, Convert] = {
    schema.DateTimeType: dt.datetime.fromisoformat,
    schema.DateType: dt.date.fromisoformat,
    schema.TimeType: dt.time.fromisoformat,
}
