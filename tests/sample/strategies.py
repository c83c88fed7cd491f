"""Strategies for field types, schemas, and values that fit them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal import schema
from shoal.errors import SchemaError
from shoal.schema import Default, Field, FieldType, Schema

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: (
        name not in {"packed", "as_wds", "if", "in", "is", "or", "as", "and", "not", "for", "def", "del", "try"}
        and name not in {"else", "elif", "from", "pass", "with", "None", "True", "class", "while", "yield", "raise"}
        and name
        not in {"async", "await", "break", "return", "except", "import", "global", "lambda", "assert", "finally"}
    )
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTS = st.integers(-(2**63), 2**64 - 1)
SCALARS = st.one_of(TEXT, st.integers(-(2**40), 2**40))
DTYPES = st.sampled_from(
    ["uint8", "int16", "int64", "float16", "float32", "float64", "bool", "complex64", ">f4", "<M8[s]", "<U3"]
)
LENGTHS = st.one_of(st.none(), st.integers(0, 3), st.sampled_from(["n", "m"]))
ARRAYS = st.builds(
    schema.Array, st.one_of(st.none(), DTYPES), st.one_of(st.none(), st.lists(LENGTHS, max_size=3).map(tuple))
)


def _distinct(values: list[Any]) -> tuple[Any, ...]:
    return tuple({(type(value), value): value for value in values}.values())


LITERALS = st.lists(st.one_of(SCALARS, st.booleans()), min_size=1, max_size=4).map(_distinct).map(schema.LiteralType)


@st.composite
def enums(draw):
    values = _distinct(draw(st.lists(st.one_of(SCALARS, st.floats(0.5, 9.5, width=16)), min_size=1, max_size=4)))
    values = tuple({value: value for value in values}.values())  # equal values would be one member
    names = draw(
        st.lists(st.from_regex(r"[A-Z]{1,6}", fullmatch=True), min_size=len(values), max_size=len(values), unique=True)
    )
    return schema.EnumType(
        draw(st.from_regex(r"[A-Z][a-z]{1,5}", fullmatch=True)), tuple(zip(names, values, strict=True))
    )


LEAVES = st.one_of(
    st.builds(schema.StrType),
    st.builds(schema.IntType),
    st.builds(schema.FloatType),
    st.builds(schema.BoolType),
    st.builds(schema.BytesType),
    st.builds(schema.DateTimeType),
    st.builds(schema.DateType),
    st.builds(schema.TimeType),
    ARRAYS,
    LITERALS,
    enums(),
)


def _union(options: list[FieldType]) -> FieldType | None:
    try:
        return schema.union_of(options)
    except SchemaError:
        return None


def _containers(inner: st.SearchStrategy[FieldType]) -> st.SearchStrategy[FieldType]:
    return st.one_of(
        st.builds(schema.ListType, inner),
        st.lists(inner, max_size=3).map(tuple).map(schema.TupleType),
        inner.map(lambda item: schema.TupleType((item,), variadic=True)),
        st.builds(schema.MapType, st.sampled_from([schema.StrType(), schema.IntType()]), inner),
        inner.map(lambda one: schema.union_of((one, None))),
        st.lists(inner, min_size=2, max_size=3).map(_union).filter(lambda union: union is not None),
        st.builds(schema.RecordType, schemas(inner)),
    )


@st.composite
def schemas(draw, types=None):
    """A schema whose fields have these types; some with the default null where they are optional."""
    types = FIELD_TYPES if types is None else types
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    fields = []
    for name in names:
        of = draw(types)
        optional = isinstance(of, schema.OptionalType) and draw(st.booleans())
        fields.append(
            Field(name, of, Default("null") if optional else None, doc=draw(st.sampled_from(["", "what it is"])))
        )
    version = draw(st.sampled_from(["1.0.0", "0.3.1"]))
    name = draw(st.from_regex(r"[A-Z][a-z]{1,5}", fullmatch=True))
    return Schema(name, tuple(fields), version, draw(st.sampled_from(["", "A sample."])))


FIELD_TYPES = st.recursive(LEAVES, _containers, max_leaves=5)


def shapes(of: schema.Array) -> st.SearchStrategy[tuple[int, ...]]:
    if of.shape is None:
        return hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    names = {length for length in of.shape if isinstance(length, str)}
    bound = st.fixed_dictionaries({name: st.integers(0, 3) for name in sorted(names)})
    free = st.tuples(*(st.integers(0, 3) for _ in of.shape))
    return st.builds(
        lambda named, other: tuple(
            named[length] if isinstance(length, str) else other[n] if length is None else length
            for n, length in enumerate(of.shape)
        ),
        bound,
        free,
    )


def arrays(of: schema.Array) -> st.SearchStrategy[np.ndarray]:
    dtypes = DTYPES if of.dtype is None else st.just(of.dtype)

    def made(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        if kind.kind in "MU":
            return hnp.arrays(kind, shape)
        if kind.kind == "b":
            return hnp.arrays(kind, shape)
        raw = st.binary(min_size=size, max_size=size)  # NaN of every kind, and every other pattern of bits
        return raw.map(lambda data: np.frombuffer(data, kind).reshape(shape))

    ordered = st.sampled_from(["C", "F"])
    plain = st.tuples(dtypes, shapes(of)).flatmap(lambda pair: made(*pair))
    return st.builds(lambda array, order: np.array(array, order=order), plain, ordered)


_ZONES = st.one_of(st.none(), st.integers(-720, 720).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))))
_VALUES = {
    schema.StrType: lambda of, cls: TEXT,
    schema.IntType: lambda of, cls: INTS,
    schema.FloatType: lambda of, cls: st.floats(),
    schema.BoolType: lambda of, cls: st.booleans(),
    schema.BytesType: lambda of, cls: st.binary(max_size=20),
    schema.DateTimeType: lambda of, cls: st.datetimes(timezones=_ZONES),
    schema.DateType: lambda of, cls: st.dates(),
    schema.TimeType: lambda of, cls: st.times(),
    schema.LiteralType: lambda of, cls: st.sampled_from(of.values),
    schema.Array: lambda of, cls: arrays(of),
}


def values(node) -> st.SearchStrategy[Any]:
    """Values of a node of the class that was made of a schema."""
    of = node.type
    if isinstance(of, schema.EnumType):
        return st.sampled_from(list(node.cls))
    if isinstance(of, schema.RecordType):
        return samples(node.cls)
    if isinstance(of, schema.OptionalType):
        return st.one_of(st.none(), values(node.parts[0]))
    if isinstance(of, schema.UnionType):
        return st.one_of([values(part) for part in node.parts])
    if isinstance(of, schema.ListType):
        return st.lists(values(node.parts[0]), max_size=3)
    if isinstance(of, schema.TupleType):
        if of.variadic:
            return st.lists(values(node.parts[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, node.parts))
    if isinstance(of, schema.MapType):
        keys = TEXT if isinstance(of.keys, schema.StrType) else INTS
        return st.dictionaries(keys, values(node.parts[0]), max_size=3)
    return _VALUES[type(of)](of, node.cls)


def samples(cls) -> st.SearchStrategy[Any]:
    """Samples of a packable class."""
    from shoal.sample._annotations import read_record

    members = read_record(cls).members
    return st.builds(cls, **{member.name: values(member.node) for member in members})
