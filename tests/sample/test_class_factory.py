"""Classes made from schemas behave like the classes that the schemas were made from."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
import threading
from dataclasses import field
from typing import Annotated

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import SchemaError, SchemaMismatchError
from shoal.sample import PackableSample, class_from_schema, from_fields, packable, schema_of
from shoal.schema import (
    Array,
    Default,
    Field,
    Image,
    IntType,
    LiteralType,
    Schema,
    StrType,
    schema_from_json,
    schema_to_json,
)


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = 2


class Inner(PackableSample):
    n: int = 3


class Original(PackableSample, version="1.3.0", aliases={"label": "category"}):
    """What it is."""

    image: NDArray[np.float32]
    label: str
    score: float = float("inf")
    raw: bytes = b"ab"
    mode: Mode = Mode.SLOW
    when: dt.date = dt.date(2024, 2, 29)
    box: tuple[int, int] = (1, 2)
    tags: list[str] = field(default_factory=list)
    inner: Inner = field(default_factory=Inner)
    photo: Annotated[NDArray[np.uint8] | None, Image("png")] = None


def generated() -> type:
    return class_from_schema(schema_from_json(schema_to_json(schema_of(Original))))


def test_it_has_the_same_schema_and_bytes():
    made = generated()
    assert schema_of(made) == schema_of(Original)
    assert (made.__name__, made.__doc__) == ("Original", "What it is.")
    image = np.zeros((2, 2), np.float32)
    one = Original(image, "cat", photo=np.zeros((2, 2), np.uint8))
    two = made.from_bytes(one.packed)
    assert two.packed == one.packed
    assert two.photo.shape == (2, 2)
    assert Original.from_bytes(two.packed) == one


def test_it_has_the_same_defaults_and_none_is_shared():
    made = generated()
    plain = msgpack.packb(
        {"image": msgpack.unpackb(Original(np.zeros(1, np.float32), "x").packed)["image"], "category": "x"}
    )
    with pytest.raises(SchemaMismatchError, match="inner"):  # a computed default: only the original class has it
        made.from_bytes(plain)
    one = made(image=np.zeros(1, np.float32), label="x", inner=schema_class(made, "inner")(n=3))
    assert (one.score, one.raw, one.when, one.box, one.tags) == (float("inf"), b"ab", dt.date(2024, 2, 29), (1, 2), [])
    assert one.mode.value == 2
    assert one.tags is not made(image=one.image, label="x", inner=one.inner).tags
    assert Original.from_bytes(one.packed) == Original(one.image, "x")


def schema_class(made: type, name: str) -> type:
    return class_from_schema(schema_of(made)[name].type.schema)


def test_it_is_made_once_for_a_content_and_not_for_a_name():
    one = Schema("S", (Field("x", IntType()),))
    two = Schema("S", (Field("x", StrType()),))
    assert class_from_schema(one) is class_from_schema(Schema("S", (Field("x", IntType()),)))
    assert class_from_schema(one) is not class_from_schema(two)
    literals = [Schema("S", (Field("x", LiteralType((value,))),)) for value in (1, True)]
    assert class_from_schema(literals[0]) is not class_from_schema(literals[1])


def test_threads_get_the_same_class():
    schema = Schema("Raced", (Field("x", Array()),))
    found: list[type] = []
    threads = [threading.Thread(target=lambda: found.append(class_from_schema(schema))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_samples_are_pickled_with_their_schema():
    made = class_from_schema(Schema("Pickled", (Field("x", Array()), Field("n", IntType(), Default("3")))))
    sample = made(np.arange(3))
    twin = pickle.loads(pickle.dumps(sample))
    assert type(twin) is made
    assert twin == sample
    assert twin.x.flags.writeable


def test_required_fields_may_follow_others():
    made = class_from_schema(Schema("Mixed", (Field("a", IntType(), Default("1")), Field("b", IntType()))))
    assert made(b=2).a == 1
    assert made.from_bytes(made(b=2).packed) == made(b=2)


def test_positions_work_where_the_order_allows():
    assert class_from_schema(Schema("Two", (Field("a", IntType()), Field("b", IntType()))))(1, 2).b == 2


def test_it_reads_plain_samples_too():
    made = class_from_schema(Schema("Captioned", (Field("txt", StrType()), Field("width", IntType()))))
    assert from_fields(made, {"txt": b"x", "json": b'{"width": 3}'}) == made("x", 3)


@pytest.mark.parametrize("name", ["seg.png", "class", "a b", "x;import os", "from_bytes", "1a"])
def test_names_that_are_not_pythons_are_refused_and_never_run(name):
    with pytest.raises(SchemaError):
        class_from_schema(Schema("S", (Field(name, IntType()),)))


@pytest.mark.parametrize("default", ['"x"', "1.5", "null", "[1]"])
def test_a_default_that_does_not_fit_is_refused(default):
    with pytest.raises(SchemaError, match=r"a default does not fit.*field n"):
        class_from_schema(Schema("S", (Field("n", IntType(), Default(default)),)))


def test_array_defaults_travel_as_base64():
    @packable
    class Weighted:
        w: NDArray[np.float32] = field(default_factory=lambda: np.ones(2, np.float32))

    assert schema_of(Weighted)["w"].default == Default(None)
    text = '"' + __import__("base64").b64encode(msgpack.unpackb(Weighted().packed)["w"]).decode() + '"'
    made = class_from_schema(Schema("Weighted", (Field("w", Array("float32"), Default(text)),)))
    assert made().w.tolist() == [1.0, 1.0]
    assert made().w is not made().w
