"""Schemas that come back as classes, bombs that do not go off, lenses that are what they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.local import lenses_stored as stored

import shoal
from shoal.errors import CatalogKeyError, LensError, LensNotFoundError, OptionError, SchemaError
from shoal.local import LocalIndex
from shoal.local._backend import encode_record
from shoal.sample import schema_of, structural_lens
from shoal.schema import Field, IntType, ListType, Schema, schema_from_json


@shoal.packable
class Sample:
    image: NDArray[np.uint8]
    label: str = "none"
    boxes: list[tuple[int, int]] | None = None


def test_a_schema_comes_back_as_a_class_that_reads_the_data(index):
    ref = index.publish_schema(Sample)
    made = index.get_schema_type(ref)
    sample = Sample(np.arange(6, dtype=np.uint8).reshape(2, 3), "cat", [(1, 2)])
    again = made.from_bytes(sample.packed)
    assert (again.image == sample.image).all()
    assert (again.label, again.boxes, made(image=sample.image).label) == ("cat", [(1, 2)], "none")
    record = index.get_schema(ref)
    assert (record["name"], record["version"], record["$ref"]) == ("Sample", "1.0.0", ref)
    assert schema_from_json(record["schema"]) == schema_of(Sample)
    for other in (
        ref,
        "Sample",
        "Sample@1.0.0",
        "Sample@latest",
        "@local/schema/Sample",
        "atdata://local/schema/Sample@1.0.0",
    ):
        assert index.get_schema(other) == record
    for wrong in ("Other", "Sample@2.0.0", "at://did:plc:x/y/z", ""):
        with pytest.raises((CatalogKeyError, OptionError)):
            index.get_schema(wrong)


def test_words_only_are_a_patch(index):
    one = Schema("S", (Field("n", IntType()),))
    assert index.publish_schema(one).endswith("@1.0.0")
    assert index.publish_schema(replace(one, description="Said better.")).endswith("@1.0.1")
    assert index.publish_schema(one).endswith("@1.0.0")


def deep(levels):
    kind = IntType()
    for _ in range(levels):
        kind = ListType(kind)
    return Schema("Deep", (Field("n", kind),))


@pytest.mark.parametrize(
    "schema",
    [
        Schema("Wide", tuple(Field(f"field_{number}", IntType()) for number in range(20_000))),
        Schema("Long", (Field("n", IntType(), doc="x" * (2 << 20)),)),
        Schema("x" * 300, (Field("n", IntType()),)),
        Schema("a/../b", (Field("n", IntType()),)),
        Schema("no good", (Field("n", IntType()),)),
        deep(100),
        deep(5000),
    ],
    ids=["wide", "long", "name", "path", "words", "deep", "deeper"],
)
def test_a_schema_bomb_is_refused(schema):
    index = LocalIndex("memory://")
    with pytest.raises(SchemaError):
        index.publish_schema(schema)
    assert list(index.list_schemas()) == []


def test_a_bomb_that_somebody_else_put_there_does_not_go_off():
    definitions = {f"d{n}": {"type": "array", "items": [{"$ref": f"#/definitions/d{n + 1}"}] * 10} for n in range(30)}
    bomb = {
        "title": "Bomb",
        "properties": {"n": {"$ref": "#/definitions/d0"}},
        "definitions": {**definitions, "d30": {}},
    }
    index = LocalIndex("memory://")
    record = {"name": "Bomb", "version": "1.0.0", "hash": "", "document": bomb, "created_at": 0.0}
    index._backend.transact(lambda change: change.put(("schema", "Bomb@1.0.0"), encode_record(record)))
    with pytest.raises(SchemaError, match="too large"):
        index.get_schema_type("Bomb@1.0.0")


def test_a_lens_comes_back_as_what_it_was(index):
    ref = index.store_lens(stored.to_length)
    assert ref == "shoal://local/lens/to_length@1.0.0"
    loaded = index.load_lens(ref)
    assert loaded is stored.to_length
    assert loaded(stored.Label("abc")).letters == 6
    assert index.store_lens(stored.to_length) == ref
    record = index.get_lens("to_length")
    assert (record.source, record.view) == ("shoal://local/schema/Label@1.0.0", "shoal://local/schema/Length@1.0.0")
    assert (record.module, record.qualname, record.has_put) == ("tests.local.lenses_stored", "to_length", False)
    assert index.store_lens(stored.to_length, name="again").endswith("/again@1.0.0")
    assert [one.name for one in index.list_lenses()] == ["again", "to_length"]


def test_a_way_is_found_over_several_lenses(index):
    full, label, length = (index.publish_schema(kind) for kind in (stored.Full, stored.Label, stored.Length))
    index.store_lens(stored.to_label)
    with pytest.raises(LensNotFoundError, match="to_label"):
        index.find_lenses(full, length)
    index.store_lens(stored.to_length)
    assert [one.name for one in index.find_lenses(full, length)] == ["to_label", "to_length"]
    assert index.find_lens("Full", "Length")(stored.Full("abcd", 0.5)).letters == 8
    assert index.find_lens(full, label).put(stored.Label("b"), stored.Full("a", 1.0)) == stored.Full("b", 1.0)
    index.store_lens(stored.other_way)
    assert [one.name for one in index.find_lenses(full, length)] == ["other_way"]
    index.store_lens(stored.other_way, name="twin")
    with pytest.raises(LensError, match="several ways"):
        index.find_lenses(full, length)
    assert index.find_lenses(full, full) == ()
    with pytest.raises(LensNotFoundError):
        index.find_lenses(length, full)


def test_only_what_can_be_imported_is_stored():
    index = LocalIndex("memory://")

    @shoal.lens(register=False)
    def inside(full: stored.Full) -> stored.Label:
        return stored.Label(full.label)

    composed = stored.to_label | stored.to_length
    for lens in (inside, composed, stored.renamed, structural_lens(stored.Full, stored.Label)):
        with pytest.raises(LensError, match="import"):
            index.store_lens(lens)
    assert list(index.list_lenses()) == []
    assert list(index.list_schemas()) == []


def test_changed_code_is_another_version_and_is_not_run_as_the_old_one(monkeypatch):
    index = LocalIndex("memory://")
    ref = index.store_lens(stored.to_length)
    monkeypatch.setattr(stored.to_length, "_get", stored.other_way._get)  # as if the module had been edited
    with pytest.raises(LensError, match="not the code that was stored"):
        index.load_lens(ref)
    monkeypatch.undo()
    assert index.load_lens(ref) is stored.to_length


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"module": "no_such_module_at_all"}, "not installed"),
        ({"qualname": "nothing"}, "not installed"),
        ({"qualname": "not_a_lens"}, "no lens where"),
        ({"module": "os", "qualname": "system"}, "no lens where"),
    ],
)
def test_a_record_that_leads_elsewhere_runs_nothing(changes, match):
    index = LocalIndex("memory://")
    index.store_lens(stored.to_length)
    forged = replace(index.get_lens("to_length"), **changes)
    index._backend.transact(lambda change: change.put(("lens", "to_length@1.0.0"), encode_record(forged)))
    with pytest.raises(LensError, match=match):
        index.load_lens("to_length@1.0.0")
