"""Protocols: classes of shoal satisfy them, classes of users are accepted, and incomplete classes are not."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import shoal
from shoal.protocols import (
    AbstractDataStore,
    AbstractIndex,
    DataSource,
    IndexEntry,
    Packable,
    Resolved,
    Resolver,
)


class Word:
    """A sample that does not use shoal."""

    def __init__(self, text):
        self.text = text

    @classmethod
    def from_data(cls, data):
        return cls(**data)

    @classmethod
    def from_bytes(cls, bs):
        return cls.from_data(msgspec.msgpack.decode(bs))

    @property
    def packed(self):
        return msgspec.msgpack.encode({"text": self.text})

    @property
    def as_wds(self):
        return {"__key__": self.text, "msgpack": self.packed}


class Shelf:
    def __init__(self, held):
        self.held = held

    @property
    def shards(self):
        return ((name, self.open_shard(name)) for name in self.list_shards())

    def list_shards(self):
        return list(self.held)

    def open_shard(self, shard_id):
        return io.BytesIO(self.held[shard_id])


@dataclass(frozen=True)
class Entry:
    name: str
    schema_ref: str
    data_urls: list[str]
    metadata: dict | None = None


class Drawer:
    def insert_dataset(self, ds, *, name, schema_ref=None, **options): ...
    def get_dataset(self, ref): ...
    def list_datasets(self): ...
    def publish_schema(self, sample_type, *, version="1.0.0", **options): ...
    def get_schema(self, ref): ...
    def list_schemas(self): ...


class Shed:
    def write_shards(self, ds, *, prefix, **options): ...
    def read_url(self, url): ...
    def supports_streaming(self): ...


class Lab:
    def matches(self, reference):
        return False

    def resolve(self, reference, *, split=None, data_files=None):
        return Resolved(reference)


USERS = [
    (Packable, Word("a")),
    (DataSource, Shelf({})),
    (IndexEntry, Entry("a", "b", [])),
    (AbstractIndex, Drawer()),
    (AbstractDataStore, Shed()),
    (Resolver, Lab()),
]


def members(protocol):
    inherited = set(dir(type("Empty", (), {})))
    return sorted(name for name in {*dir(protocol), *protocol.__annotations__} - inherited if not name.startswith("_"))


@pytest.mark.parametrize("protocol, value", USERS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_users_class_satisfies_its_protocol_and_no_other(protocol, value):
    assert [other for other, _ in USERS if isinstance(value, other)] == [protocol]


@pytest.mark.parametrize("protocol, value", USERS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_class_that_lacks_a_member_does_not(protocol, value):
    names = members(protocol)
    assert names
    for missing in names:
        partial = type("Partial", (), dict.fromkeys(set(names) - {missing}, lambda self: None))
        assert not isinstance(partial(), protocol), missing
    assert isinstance(type("Whole", (), dict.fromkeys(names, lambda self: None))(), protocol)


def test_samples_of_ours_are_packable():
    @shoal.packable
    class Note:
        text: str

    class Based(shoal.PackableSample):
        text: str

    assert isinstance(Note("a"), Packable)
    assert isinstance(Based("a"), Packable)
    assert isinstance(shoal.DictSample(text="a"), Packable)


def test_a_users_sample_is_written_and_read_as_ours_is(tmp_path):
    with shoal.ShardWriter(tmp_path / "words-%06d.tar") as writer:
        for text in ("cat", "dog"):
            writer.write(Word(text).as_wds)
    ds = shoal.Dataset(tmp_path, decode=False, sample_type=dict)
    assert [Word.from_bytes(sample["msgpack"]).text for sample in ds] == ["cat", "dog"]


def test_a_users_source_is_read_as_files_are():
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("k.txt")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"cat"))
    splits = shoal.load_dataset(Shelf({"test-0.tar": archive.getvalue()}))
    assert {name: [found["txt"] for found in part] for name, part in splits.items()} == {"test": ["cat"]}


TYPED = """
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any, assert_type

import shoal
from shoal.protocols import (AbstractDataStore, DataFiles, DataSource, IndexEntry, Packable, Resolved, Resolver)


class Shelf:
    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        return iter(())

    def list_shards(self) -> list[str]:
        return []

    def open_shard(self, shard_id: str) -> IO[bytes]:
        return BytesIO()


class Lab:
    def matches(self, reference: str) -> bool:
        return True

    def resolve(
        self,
        reference: str,
        *,
        split: str | None = None,
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
    ) -> Resolved:
        return Resolved({"train": Shelf(), "test": ["a.tar"]})


class Note(shoal.PackableSample):
    text: str


@dataclass(frozen=True)
class Entry:
    name: str
    schema_ref: str
    data_urls: list[str]
    metadata: dict[str, Any] | None = None


class Shed:
    def write_shards(self, ds: Any, *, prefix: str, **options: Any) -> list[str]:
        return []

    def read_url(self, address: str) -> str:
        return address

    def supports_streaming(self) -> bool:
        return True


source: DataSource = Shelf()
resolver: Resolver = Lab()
sample: Packable = Note("a")
entry: IndexEntry = Entry("a", "b", [])
store: AbstractDataStore = Shed()


def check() -> None:
    assert_type(shoal.load_dataset("a", split="train", sample_type=Note), shoal.Dataset[Note])
    assert_type(shoal.load_dataset("a", sample_type=Note), shoal.DatasetDict[Note])
    assert_type(shoal.load_dataset(["a"], split="train"), shoal.Dataset[dict[str, Any]])
    assert_type(shoal.load_dataset(Shelf()), shoal.DatasetDict[dict[str, Any]])
    assert_type(shoal.load_dataset("a", sample_type=Note)["train"][0], Note)
    assert_type(shoal.load_dataset("a", sample_type=Note).head(2), list[Note])
    assert_type(shoal.load_dataset("a", sample_type=Note).each(lambda ds: ds.map(lambda n: n.text)).only[0], str)
"""


@pytest.mark.parametrize(
    "command", ["mypy --strict", f"pyright --pythonpath {sys.executable}"], ids=["mypy", "pyright"]
)
def test_type_checkers_know_them(command, tmp_path):
    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    program, *arguments = command.split()
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments, str(path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
