"""Values of one column <-> an Arrow array, by the column's form."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute

from shoal import schema
from shoal.codec import decode_npy, encode_npy
from shoal.schema import FieldType

from ._arrow_forms import JSON, MSGPACK, Form, form_of, is_exact_json, merged

__all__ = ["ABSENT", "Column", "column_of", "from_arrow", "joined", "opener", "to_arrow"]

Convert = Callable[[Any], Any]
pc: Any = pyarrow.compute


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
    return Column(_both(form), "absent") if empty else Column(form, "absent")


def _both(form: Form) -> Form:
    """A form in which None is a value like others, because null means something else."""
    return JSON if merged(form, JSON) == JSON else MSGPACK


def joined(one: Column, two: Column) -> Column:
    """The narrowest column that holds the values of both."""
    form = merged(one.form, two.form)
    if one.nulls and two.nulls and one.nulls != two.nulls:
        return Column(_both(form), "absent")
    return Column(form, one.nulls or two.nulls)


def to_arrow(column: Column, values: Sequence[Any]) -> pa.Array:
    """The values as one array. Raises ValueError or TypeError where one does not fit the form."""
    form, free = column.form, column.form.kind in ("json", "msgpack") and column.nulls == "absent"
    # Where null says that a field is not there, None is a value like others.
    cells = values if column.nulls != "absent" else [None if value is ABSENT else value for value in values]
    if form.kind == "tensor":
        return _tensors(form, cells)
    convert = _packer(form)
    if convert is None:
        return pa.array(cells, form.type)
    empty = ABSENT if free else None
    return pa.array([None if value is empty else convert(value) for value in (values if free else cells)], form.type)


def _tensors(form: Form, values: Sequence[Any]) -> pa.Array:
    size = math.prod(form.type.shape)
    blank = np.zeros(form.type.shape, form.type.value_type.to_pandas_dtype())
    flat = np.stack([blank if value is None else value for value in values]).reshape(-1) if len(values) else blank[:0]
    nulls = pa.array([value is None for value in values], pa.bool_())
    mask = nulls if any(value is None for value in values) else None
    storage = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), size, mask=mask)
    return pa.ExtensionArray.from_storage(form.type, storage.cast(form.type.storage_type))


def _packer(form: Form) -> Convert | None:
    """What makes of a value that is not None what Arrow takes; None where it takes the value itself."""
    inner = [_optional(_packer(part)) for _, part in form.inner]
    match form.kind:
        case "list" if inner[0]:
            item = inner[0]
            return lambda value: [item(one) for one in value]
        case "map":
            item = inner[0] or _same
            return lambda value: [(key, item(one)) for key, one in value.items()]
        case "record" if any(inner):
            parts = [(name, convert or _same) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: {name: convert(value[name]) for name, convert in parts}
        case "tuple":
            parts = [(name, convert or _same) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: {name: convert(one) for (name, convert), one in zip(parts, value, strict=True)}
    return _PACKERS.get(form.kind)


def _same(value: Any) -> Any:
    return value


def _optional(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _to_json(value: Any) -> str:
    if not is_exact_json(value):
        raise ValueError(f"JSON does not hold {value!r}")
    return msgspec.json.encode(value).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgspec.msgpack.Ext(_ARRAY, encode_npy(value))
    raise TypeError(f"a table cannot hold {type(value).__name__}")


def _revived(code: int, data: memoryview) -> Any:
    if code == _ARRAY:
        return decode_npy(bytes(data))
    return msgspec.msgpack.Ext(code, bytes(data))


_ARRAY = 78  # the number of an array among MessagePack's extensions, which has nothing for it
_unpack = msgspec.msgpack.Decoder(ext_hook=_revived).decode
_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_PACKERS: dict[str, Convert] = {
    "array": lambda value: {"data": value.reshape(-1), "shape": value.shape},
    "npy": encode_npy,
    "text": lambda value: value.isoformat(),
    "json": _to_json,
    "msgpack": _pack,
}


# ------------------------------------------------------------------------------------------------------------- reading


def from_arrow(column: Column, array: pa.Array) -> list[Any]:
    """The values of an array: of times their ISO text, of arrays NumPy's; `ABSENT` for fields that are not there."""
    form, nothing = column.form, ABSENT if column.nulls == "absent" else None
    if form.kind == "tensor":
        return _rows(form, array, nothing)
    if form.kind == "array" and not array.null_count:
        return _ragged(array)
    convert = _unpacker(form) or _same
    return [nothing if value is None else convert(value) for value in _listed(array)]


def _listed(array: pa.Array) -> list[Any]:
    """As Python values, of which there are none for nanoseconds."""
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        array = pc.cast(array, pa.timestamp("us", array.type.tz), safe=False)
    if pa.types.is_time64(array.type) and array.type.unit == "ns":
        array = pc.cast(array, pa.time64("us"), safe=False)
    values: list[Any] = array.to_pylist()
    return values


def _rows(form: Form, array: pa.Array, nothing: Any) -> list[Any]:
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    sound = storage.drop_null() if storage.null_count else storage
    flat = sound.flatten().to_numpy(zero_copy_only=False)
    rows = iter(flat.reshape(len(sound), *form.type.shape))
    return [next(rows) if valid else nothing for valid in storage.is_valid().to_pylist()]


def _ragged(array: pa.StructArray) -> list[Any]:
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
            item = inner[0] or _same
            return lambda value: {key: item(one) for key, one in value}
        case "record" if any(inner):
            parts = [(name, convert or _same) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: {name: convert(value[name]) for name, convert in parts}
        case "tuple":
            parts = [(name, convert or _same) for (name, _), convert in zip(form.inner, inner, strict=True)]
            return lambda value: [convert(value[name]) for name, convert in parts]
        case "array":
            dtype = form.type.field("data").type.value_type.to_pandas_dtype()
            return lambda value: np.asarray(value["data"], dtype).reshape(value["shape"])
    return _UNPACKERS.get(form.kind)


_UNPACKERS: dict[str, Convert] = {
    "moment": lambda value: value.isoformat(),
    "npy": decode_npy,
    "json": msgspec.json.decode,
    "msgpack": _unpack,
}


# ------------------------------------------------------------------------------------------------------------- opening


def opener(hint: FieldType) -> Convert | None:
    """What makes times and arrays of the texts and bytes that a payload has for them; None where there are none."""
    match hint:
        case schema.OptionalType(of):
            return _optional(opener(of))
        case schema.Array():
            return decode_npy
        case schema.ListType(item) | schema.TupleType((item,), True):
            return _each(opener(item))
        case schema.MapType(_, item):
            return _each_value(opener(item))
        case schema.TupleType(items):
            converts = [opener(item) or _same for item in items]
            return lambda value: [convert(one) for convert, one in zip(converts, value, strict=True)]
        case schema.RecordType(of):
            parts = [(one.name, convert) for one in of.fields if (convert := opener(one.type))]
            return (
                (lambda value: {**value, **{name: convert(value[name]) for name, convert in parts}}) if parts else None
            )
    return _OPENERS.get(type(hint))


def _each(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: [convert(one) for one in value]


def _each_value(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: {key: convert(one) for key, one in value.items()}


_OPENERS: dict[type, Convert] = {
    schema.DateTimeType: dt.datetime.fromisoformat,
    schema.DateType: dt.date.fromisoformat,
    schema.TimeType: dt.time.fromisoformat,
}
