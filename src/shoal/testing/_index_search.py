"""What every index of datasets promises about finding them, and about schemas."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from shoal.errors import CatalogConflictError, CatalogKeyError, OptionError, SchemaError
from shoal.local import LocalIndex
from shoal.sample import packable, schema_of

from ._index_data import Pet, pets, plants
from ._refused import refused

__all__ = ["IndexSearchTests"]


class IndexSearchTests:
    """The part of `IndexTests` that is about search and schemas."""

    def index(self) -> LocalIndex:
        """A new, empty index."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------------- search

    def test_words_tags_schema_and_fields_are_found(self) -> None:
        index = self.index()
        index.insert_dataset(pets("cat"), name="team/house-pets", description="Photos of CATS, Größe!", tags=["Small"])
        others = plants()
        index.insert_dataset(others, name="trees", metadata={"place": {"city": "Graz"}}, tags=["large", "photos"])
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"text": "cats"}, ["team/house-pets"]),
            ({"text": "cat"}, []),
            ({"text": "cat*"}, ["team/house-pets"]),
            ({"text": "größe"}, ["team/house-pets"]),
            ({"text": "GRO\u0308SSE"}, ["team/house-pets"]),
            ({"text": "photos"}, ["trees", "team/house-pets"]),
            ({"text": "photos cats"}, ["team/house-pets"]),
            ({"text": "photos graz"}, ["trees"]),
            ({"text": "p* t*"}, ["trees", "team/house-pets"]),
            ({"text": "place city"}, ["trees"]),
            ({"text": "height"}, ["trees"]),
            ({"text": "pet"}, ["team/house-pets"]),
            ({"text": "house-pets"}, ["team/house-pets"]),
            ({"tags": ["small"]}, ["team/house-pets"]),
            ({"tags": ["large", "photos"]}, ["trees"]),
            ({"tags": ["large", "small"]}, []),
            ({"schema": "Plant"}, ["trees"]),
            ({"schema": "Pet@1.0.0"}, ["team/house-pets"]),
            ({"schema": "shoal://local/schema/Pet@2.0.0"}, []),
            ({"fields": ["name"]}, ["trees", "team/house-pets"]),
            ({"fields": ["name", "legs"]}, ["team/house-pets"]),
            ({"fields": ["Name"]}, []),
            ({"text": "photos", "fields": ["height"], "tags": ["large"], "schema": "Plant"}, ["trees"]),
            ({"text": ""}, ["trees", "team/house-pets"]),
        ]
        for asked, names in cases:
            assert [entry.name for entry in index.search(**asked)] == names, asked

    def test_sizes_and_dates_are_bounds(self) -> None:
        index, start = self.index(), datetime.now(UTC)
        for number in (1, 5, 10):
            index.insert_dataset(pets(*map(str, range(number))), name=f"pets-{number}")
        sizes = [index.get_dataset(f"pets-{number}").bytes for number in (1, 5, 10)]
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"samples": (5, None)}, ["pets-10", "pets-5"]),
            ({"samples": (2, 9)}, ["pets-5"]),
            ({"samples": (None, 1)}, ["pets-1"]),
            ({"samples": (6, 9)}, []),
            ({"bytes": (sizes[2], None)}, [f"pets-{n}" for n, s in ((10, sizes[2]), (5, sizes[1])) if s >= sizes[2]]),
            ({"created": (start - timedelta(hours=1), None)}, ["pets-10", "pets-5", "pets-1"]),
            ({"created": (None, start - timedelta(hours=1))}, []),
            ({"text": "pets", "samples": (5, 5)}, ["pets-5"]),
            ({"limit": 2}, ["pets-10", "pets-5"]),
            ({"limit": 2, "offset": 1}, ["pets-5", "pets-1"]),
            ({"text": "pets", "limit": 1, "offset": 2}, ["pets-1"]),
            ({"samples": (1, 5), "limit": 1, "offset": 1}, ["pets-1"]),
            ({"text": "p*", "limit": 1, "offset": 1}, ["pets-5"]),
        ]
        for asked, names in cases:
            assert [entry.name for entry in index.search(**asked)] == names, asked

    def test_the_newest_version_is_what_is_found(self) -> None:
        index = self.index()
        index.insert_dataset(pets("cat"), name="one", description="old words")
        index.insert_dataset(pets("hen"), name="two")
        assert [entry.name for entry in index.search()] == ["two", "one"]
        index.insert_dataset(pets("fox"), name="one", description="new words")
        assert [entry.name for entry in index.search()] == ["one", "two"]
        assert index.search("old") == []
        assert index.search("new words")[0].version == "1.1.0"
        index.delete("one@1.1.0")
        assert index.search("old")[0].version == "1.0.0"

    def test_strange_questions_are_answered_or_refused(self) -> None:
        index = self.index()
        index.insert_dataset(pets("cat"), name="pets", description='quote " star * paren ( AND or NOT near')
        for text in ('"', "* *", "(", "--", "'; --"):
            refused(OptionError, index.search, text)
        for text in ('quote"', "paren(", "AND", "NOT near", "star *", "or AND not"):
            assert [entry.name for entry in index.search(text)] == ["pets"], text
        for asked in ({"limit": 0}, {"limit": 10**9}, {"offset": -1}, {"tags": "text"}, {"fields": "text"}):
            refused(OptionError, lambda asked=asked: index.search(**asked))

    # ------------------------------------------------------------------------------------------------------- schemas

    def test_schemas_get_versions_by_what_changed(self) -> None:
        index = self.index()
        one: type[Any] = packable(type("Sample", (), {"__annotations__": {"n": int}}))
        more: type[Any] = packable(type("Sample", (), {"__annotations__": {"n": int, "m": int}, "m": 0}))
        other: type[Any] = packable(type("Sample", (), {"__annotations__": {"n": bytes}}))
        refs = [index.publish_schema(kind) for kind in (one, more, other, one, more, other)]
        assert [ref.rpartition("@")[2] for ref in refs] == ["1.0.0", "1.1.0", "2.0.0"] * 2
        assert [record["version"] for record in index.list_schemas()] == ["1.0.0", "1.1.0", "2.0.0"]
        assert index.get_schema("Sample")["version"] == "2.0.0"
        made = index.get_schema_type("Sample@1.1.0")
        assert made.from_bytes(more(1, 2).packed) == made(n=1, m=2)
        assert schema_of(made).fields == schema_of(more).fields
        assert index.get_schema_type(refs[1]) is made

    def test_a_version_of_a_schema_is_one_thing_for_ever(self) -> None:
        index = self.index()
        one: type[Any] = packable(type("Sample", (), {"__annotations__": {"n": int}}))
        other: type[Any] = packable(type("Sample", (), {"__annotations__": {"n": bytes}}))
        index.publish_schema(one, version="1.2.0")
        assert "incompatible n" in str(refused(SchemaError, lambda: index.publish_schema(other, version="1.2.0")))
        refused(SchemaError, lambda: index.publish_schema(other, version="1.3.0"))
        assert index.publish_schema(other, version="3.0.0").endswith("@3.0.0")
        assert index.publish_schema(one, version="1.2.0").endswith("@1.2.0")
        for version in ("1", "1.0", "x", "", "1.0.0.0", "01.0.0"):
            refused(OptionError, lambda version=version: index.publish_schema(one, version=version))
        assert [record["version"] for record in index.list_schemas()] == ["1.2.0", "3.0.0"]

    def test_a_dataset_can_name_a_schema(self) -> None:
        index = self.index()
        ref = index.publish_schema(Pet)
        entry = index.insert_dataset(pets("cat"), name="pets", schema_ref="Pet")
        assert entry.schema_ref == ref
        refused(CatalogKeyError, lambda: index.insert_dataset(pets("cat"), name="x", schema_ref="Nothing@1.0.0"))
        assert "x" not in index

    def test_what_fails_leaves_nothing(self) -> None:
        index, data = self.index(), pets("cat")
        index.insert_dataset(data, name="pets", version="1.0.0")
        others = plants()
        refused(CatalogConflictError, lambda: index.insert_dataset(others, name="pets", version="1.0.0"))
        assert [record["name"] for record in index.list_schemas()] == ["Pet"]
        assert index.search("plant") == []
