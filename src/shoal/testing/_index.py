"""What every index of datasets promises, whatever database keeps it."""

from __future__ import annotations

import contextlib
import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from shoal.errors import CatalogConflictError, CatalogKeyError, OptionError
from shoal.local import LocalIndex
from shoal.protocols import AbstractIndex, IndexEntry

from ._index_data import pets, plants
from ._index_search import IndexSearchTests
from ._refused import refused

__all__ = ["IndexTests"]


class IndexTests(IndexSearchTests):
    """What every index promises. A subclass says how a new, empty one is made.

    Example:
        >>> class TestMemory(IndexTests):
        ...     def index(self):
        ...         return LocalIndex("memory://")
        >>> TestMemory().test_what_is_inserted_is_found()
    """

    def again(self, index: LocalIndex) -> LocalIndex:
        """The same index, reached once more, as another process would."""
        again: LocalIndex = pickle.loads(pickle.dumps(index))  # noqa: S301 - our own
        return again

    # ------------------------------------------------------------------------------------------------------ datasets

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

    # --------------------------------------------------------------------------------------------------------- words

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
