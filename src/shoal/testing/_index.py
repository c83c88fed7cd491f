"""`IndexTests` and `index_machine`: what every index of datasets promises."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from shoal.dataset._dataset import Dataset
from shoal.dataset._write import write_samples
from shoal.errors import CatalogConflictError, CatalogKeyError, MissingExtraError, OptionError, SchemaError
from shoal.local._index import LocalIndex
from shoal.protocols import AbstractIndex, IndexEntry
from shoal.sample._annotations import schema_of
from shoal.sample._packable import packable

__all__ = ["IndexTests", "index_machine"]

_FOLDERS = count()


@packable
class Pet:
    """The sample type of most datasets in these tests."""

    name: str
    legs: int


@packable
class Plant:
    """Another sample type."""

    name: str
    height: float


def pets(*names: str) -> Dataset[Pet]:
    """A dataset of its own, in memory."""
    return write_samples([Pet(name, 4) for name in names], f"memory://index-tests/{next(_FOLDERS)}")


def plants() -> Dataset[Plant]:
    """A dataset of another type."""
    return write_samples([Plant("oak", 20.0)], f"memory://index-tests/{next(_FOLDERS)}")


def refused(kind: type[Exception] | tuple[type[Exception], ...], act: Callable[..., Any], *args: Any) -> Exception:
    """The error that a call raises; no error, or another one, fails the test."""
    try:
        act(*args)
    except kind as error:
        return error
    raise AssertionError(f"{act} of {args} raised no {kind}")


class IndexSearchTests:
    """The part of `IndexTests` that is about search and schemas."""

    def index(self) -> LocalIndex:
        """A new, empty index."""
        raise NotImplementedError

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


# ---------------------------------------------------- what every index of datasets promises, whatever database keeps it


class IndexTests(IndexSearchTests):
    """What every index promises. A subclass says how a new, empty one is made.

    Examples:
        >>> class TestMemory(IndexTests):
        ...     def index(self):
        ...         return LocalIndex("memory://")
        >>> TestMemory().test_what_is_inserted_is_found()
    """

    def again(self, index: LocalIndex) -> LocalIndex:
        """The same index, reached once more, as another process would."""
        again: LocalIndex = pickle.loads(pickle.dumps(index))  # noqa: S301 - our own
        return again

    def test_it_is_an_index(self) -> None:
        index: AbstractIndex = self.index()
        entry: IndexEntry = index.insert_dataset(pets("cat"), name="pets")
        assert isinstance(index, AbstractIndex)
        assert isinstance(entry, IndexEntry)

    def test_nothing_is_in_a_new_one(self) -> None:
        index = self.index()
        assert (len(index), list(index.list_datasets()), list(index.list_schemas()), list(index.list_lenses())) == (
            0,
            [],
            [],
            [],
        )
        assert index.search() == []
        assert index.search("pets") == []
        refused(CatalogKeyError, index.get_dataset, "pets")
        refused(KeyError, index.get_schema, "Pet")

    def test_what_is_inserted_is_found(self) -> None:
        index, data = self.index(), pets("cat", "hen")
        facts: dict[str, Any] = {"tags": ["b", "a"], "metadata": {"from": ["a", 1, None, 2.5]}, "description": "Two."}
        entry = index.insert_dataset(data, name="team/pets", **facts)
        assert (entry.name, entry.version, entry.reference) == ("team/pets", "1.0.0", "team/pets@1.0.0")
        assert (entry.tags, entry.metadata, entry.description) == (("a", "b"), {"from": ["a", 1, None, 2.5]}, "Two.")
        assert entry.schema_ref == "shoal://local/schema/Pet@1.0.0"
        assert (entry.samples, len(entry.checksums)) == (2, 1)
        assert entry.created_at is not None
        assert abs(entry.created_at - datetime.now(UTC)) < timedelta(minutes=5)
        for ref in ("team/pets", "team/pets@1.0.0", "team/pets@latest", "@local/team/pets", "@local/team/pets@1.0.0"):
            assert index.get_dataset(ref) == entry
            assert ref in index
        assert list(index.list_datasets()) == [entry]
        assert [pet.name for pet in index.get_dataset("team/pets").open()] == ["cat", "hen"]

    def test_what_is_not_there_is_a_key_error_that_says_what_is(self) -> None:
        index = self.index()
        index.insert_dataset(pets("cat"), name="pets")
        assert "1.0.0" in str(refused(KeyError, index.get_dataset, "pets@2.0.0"))
        assert "pets" in str(refused(KeyError, index.get_dataset, "petsy"))
        for act in (index.history, index.delete, index.tag, index.get_schema, index.get_lens, index.load_lens):
            refused(KeyError, act, "nothing")
        assert "nothing" not in index
        assert "pets" in index

    def test_the_same_again_changes_nothing(self) -> None:
        index, data = self.index(), pets("cat")
        first = index.insert_dataset(data, name="pets", description="One.", tags=["a"], metadata={"n": 1})
        assert index.insert_dataset(data, name="pets") == first
        assert index.insert_dataset(data, name="pets", version="1.0.0", metadata={"n": 1}) == first
        assert len(index.history("pets")) == 1
        assert index.insert_dataset(data, name="pets", tags=["b"]).tags == ("a", "b")

    def test_versions_follow_from_what_changed(self) -> None:
        index, data = self.index(), pets("cat")
        index.insert_dataset(data, name="pets")
        assert index.insert_dataset(data, name="pets", description="Words.").version == "1.0.1"
        assert index.insert_dataset(pets("hen"), name="pets").version == "1.1.0"
        assert index.get_dataset("pets").description == "Words."
        others = plants()
        assert index.insert_dataset(others, name="pets").version == "2.0.0"
        assert index.insert_dataset(data, name="pets", version="4.0.0-rc.1").version == "4.0.0-rc.1"
        assert index.get_dataset("pets").version == "2.0.0"
        versions = [entry.version for entry in index.history("pets")]
        assert versions == ["1.0.0", "1.0.1", "1.1.0", "2.0.0", "4.0.0-rc.1"]
        assert index.get_dataset("pets@1.0.0").cid == index.get_dataset("pets@1.0.1").cid
        assert index.get_dataset("pets@1.1.0").cid != index.get_dataset("pets@1.0.1").cid

    def test_a_version_is_one_thing_for_ever(self) -> None:
        index = self.index()
        first = index.insert_dataset(pets("cat"), name="pets", version="1.5.0")
        refused(CatalogConflictError, lambda: index.insert_dataset(pets("hen"), name="pets", version="1.5.0"))
        assert index.history("pets") == [first]

    def test_two_names_of_the_same_data_do_not_overwrite_each_other(self) -> None:
        index, data = self.index(), pets("cat")
        one = index.insert_dataset(data, name="one", description="First.", tags=["a"])
        two = index.insert_dataset(data, name="two", description="Second.", metadata={"n": 2})
        assert one.cid == two.cid
        assert (index.get_dataset("one"), index.get_dataset("two")) == (one, two)
        assert sorted(entry.name for entry in index.find_content(one.cid)) == ["one", "two"]
        index.delete("one")
        assert [entry.name for entry in index.find_content(one.cid)] == ["two"]
        index.delete("two")
        assert index.find_content(one.cid) == []

    def test_a_label_is_another_name_for_a_version(self) -> None:
        index = self.index()
        index.insert_dataset(pets("cat"), name="pets", metadata={"n": 1})
        index.insert_dataset(pets("hen"), name="pets")
        entry = index.label("pets@1.0.0", "pets-stable", tags=["kept"])
        assert (entry.reference, entry.metadata, entry.tags) == ("pets-stable@1.0.0", {"n": 1}, ("kept",))
        assert entry.cid == index.get_dataset("pets@1.0.0").cid
        index.delete("pets")
        assert index.get_dataset("pets-stable").open()[0].name == "cat"
        refused(CatalogKeyError, index.label, "pets", "other")

    def test_delete_takes_a_version_or_all(self) -> None:
        index = self.index()
        for name in ("cat", "hen", "fox"):
            index.insert_dataset(pets(name), name="pets")
        assert index.delete("pets@1.2.0") == 1
        assert index.get_dataset("pets").version == "1.1.0"
        assert index.search("pets")[0].version == "1.1.0"
        refused(CatalogKeyError, index.delete, "pets@1.2.0")
        assert index.delete("pets") == 2
        assert "pets" not in index
        assert index.search() == []
        assert len(index) == 0

    def test_rename_keeps_history_and_takes_no_name_away(self) -> None:
        index = self.index()
        index.insert_dataset(pets("cat"), name="pets", tags=["a"])
        index.insert_dataset(pets("hen"), name="pets", description="Later.")
        index.insert_dataset(pets("fox"), name="taken")
        refused(CatalogConflictError, index.rename, "pets", "taken")
        refused(CatalogKeyError, index.rename, "nothing", "something")
        moved = index.rename("pets", "animals")
        assert (moved.name, moved.version, moved.tags) == ("animals", "1.1.0", ("a",))
        assert [entry.version for entry in index.history("animals")] == ["1.0.0", "1.1.0"]
        assert "pets" not in index
        assert [entry.name for entry in index.search("animals")] == ["animals"]
        assert index.search("pets") == []
        assert [entry.reference for entry in index.find_content(moved.cid)] == ["animals@1.1.0"]

    def test_lists_are_in_order_and_complete(self) -> None:
        index, data = self.index(), pets("cat")
        names = ["b", "a", "a/b", "a-b", "A", "é", "z/z", "a.b", "a_b", "0"]
        for name in names:
            index.insert_dataset(data, name=name)
        assert [entry.name for entry in index.list_datasets()] == sorted(names, key=str.encode)
        assert [entry.name for entry in index.list_datasets("a")] == ["a", "a-b", "a.b", "a/b", "a_b"]
        assert len(index) == len(names)

    def test_many_are_listed_a_page_at_a_time(self) -> None:
        index, data = self.index(), pets("cat")
        names = [f"pets-{number:04d}" for number in range(230)]
        for name in names:
            index.insert_dataset(data, name=name)
        assert [entry.name for entry in index.list_datasets()] == names
        assert len(index.search(limit=1000)) == 230
        assert len(index.find_content(index.get_dataset("pets-0000").cid)) == 230

    def test_another_process_sees_the_same(self) -> None:
        index = self.index()
        entry = index.insert_dataset(pets("cat"), name="pets")
        other = self.again(index)
        assert other.get_dataset("pets") == entry
        other.delete("pets")
        assert "pets" not in index

    def test_threads_lose_nothing(self) -> None:
        index, failures = self.index(), list[BaseException]()
        datasets = [pets(f"pet {number}") for number in range(4)]

        def insert(number: int) -> None:
            try:
                for turn in range(4):
                    index.insert_dataset(datasets[number], name=f"own-{number}-{turn}", tags=[f"t{number}"])
                    index.insert_dataset(datasets[number], name="shared", description=f"{number}.{turn}")
            except BaseException as error:  # noqa: BLE001 - told below, in the thread that can fail the test
                failures.append(error)

        threads = [threading.Thread(target=insert, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(index) == 17
        history = index.history("shared")
        assert len({entry.version for entry in history}) == len(history) == 16

    def test_who_reads_while_others_rename_sees_the_one_or_the_other(self) -> None:
        index, failures, done = self.index(), list[BaseException](), threading.Event()
        index.insert_dataset(pets("cat"), name="one")
        index.insert_dataset(pets("hen"), name="one")

        def read() -> None:
            try:
                while not done.is_set():
                    for act in (index.get_dataset, index.history, lambda name: index.label(name, "label")):
                        for name in ("one", "two"):
                            with contextlib.suppress(CatalogKeyError):
                                act(name)
            except BaseException as error:  # noqa: BLE001 - told below, in the thread that can fail the test
                failures.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(15):
            index.rename("one", "two")
            index.rename("two", "one")
        done.set()
        for reader in readers:
            reader.join()
        assert failures == []
        assert [entry.version for entry in index.history("one")] == ["1.0.0", "1.1.0"]

    def test_hostile_names_are_refused_everywhere(self) -> None:
        index, data = self.index(), pets("cat")
        bad = ["", " ", "a b", "../a", "a/../b", "/a", "a/", "a//b", ".a", "-a", "a@b", "a:b", "a\\b", "a\nb", "a\0b"]
        bad += ["a'b", 'a"b', "a;DROP TABLE records", "a%b", "a*", "a?b", "a#b", "\ud800", "x" * 201, "@local/", "a/.b"]
        for name in bad:
            refused(OptionError, lambda name=name: index.insert_dataset(data, name=name))
            refused((OptionError, CatalogKeyError), index.get_dataset, name)
            assert name not in index
        others: list[Any] = [None, 7, b"pets", ["pets"]]
        for other in others:
            refused(OptionError, lambda name=other: index.insert_dataset(data, name=name))
        assert list(index.list_datasets()) == []

    def test_one_spelling_of_a_name(self) -> None:
        index = self.index()
        entry = index.insert_dataset(pets("cat"), name="cafe\u0301")
        assert entry.name == "caf\u00e9"
        assert index.get_dataset("cafe\u0301") == index.get_dataset("caf\u00e9") == entry

    def test_metadata_that_cannot_be_kept_is_refused(self) -> None:
        index, data = self.index(), pets("cat")
        deep: dict[str, Any] = {}
        for _ in range(200):
            deep = {"in": deep}
        itself: dict[str, Any] = {}
        itself["itself"] = itself
        bad: list[Any] = [{"a": float("nan")}, {"a": float("inf")}, {1: 2}, {"a": b"bytes"}, {"a": object()}, deep]
        bad += [itself, {"a": "x" * (2 << 20)}, {"a": 2**70}, {"a": {1: "x"}}, {"a": "\ud800"}, {"a": {"b"}}, "text"]
        for metadata in bad:
            refused(OptionError, lambda metadata=metadata: index.insert_dataset(data, name="p", metadata=metadata))
        assert "p" not in index
        kept = {"a": {"b": [1, -(2**63), 0.1, "ü\u0000\u2028", None, True]}, "": []}
        assert index.insert_dataset(data, name="p", metadata=kept).metadata == kept
        assert index.get_dataset("p").metadata == kept
        large = {"text": "word " * 200_000}
        assert index.insert_dataset(data, name="p", metadata=large).metadata == large

    def test_tags_and_descriptions_have_limits(self) -> None:
        index, data = self.index(), pets("cat")
        for tags in ([""], ["a\nb"], ["x" * 151], [str(number) for number in range(31)], "text", [7]):
            refused(OptionError, lambda tags=tags: index.insert_dataset(data, name="p", tags=tags))
        for description in ("x" * 5001, 7, "\ud800"):
            refused(OptionError, lambda text=description: index.insert_dataset(data, name="p", description=text))
        assert "p" not in index

    def test_a_url_with_credentials_is_not_kept(self) -> None:
        index = self.index()
        for url in ("https://user:secret@host/a.tar", "https://host/a.tar?X-Amz-Signature=secret&X-Amz-Date=1"):
            error = refused(OptionError, lambda url=url: index.insert_dataset(url, name="p"))
            assert "secret" not in str(error)

    def test_tags_come_and_go(self) -> None:
        index = self.index()
        index.insert_dataset(pets("cat"), name="pets", tags=["a"])
        assert index.tag("pets", "b", "c").tags == ("a", "b", "c")
        assert index.untag("pets", "a", "none").tags == ("b", "c")
        assert [entry.name for entry in index.search(tags=["b"])] == ["pets"]
        assert index.search(tags=["a"]) == []
        refused(OptionError, index.tag, "pets", "")


def index_machine(index: Callable[[], LocalIndex]) -> Any:
    """A state machine for hypothesis that does the same to an index and to one in memory: they must answer the same.

    ``index`` gives a new, empty index for each run. Run it as ``TestMine = index_machine(...).TestCase``. Raises
    MissingExtraError without hypothesis.

    Examples:
        >>> machine = index_machine(lambda: LocalIndex("memory://"))
        >>> machine.TestCase.settings.max_examples >= 1
        True
    """
    try:
        from ._stateful import IndexMachine
    except ImportError:
        raise MissingExtraError("state machines need hypothesis", hint="pip install hypothesis") from None
    return type("IndexMachine", (IndexMachine,), {"made": lambda self: index()})
