"""The hypothesis state machines that compare a store or an index with one in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.dataset._dataset import Dataset
from shoal.dataset._write import write_samples
from shoal.errors import ObjectNotFoundError, ShoalError
from shoal.local._entry import Entry
from shoal.local._index import LocalIndex
from shoal.sample._packable import packable
from shoal.store._base import ObjectWriter, Store
from shoal.store._memory import MemoryStore
from shoal.store._url import relative_url

__all__ = ["IndexMachine", "StoreMachine"]

_NUMBERS = count()
_KINDS: list[type[Any]] = [
    packable(type("Sample", (), {"__annotations__": annotations, **defaults}))
    for annotations, defaults in (({"n": int}, {}), ({"n": int, "m": int}, {"m": 0}), ({"n": str}, {}))
]
_DATASET_NAMES = st.sampled_from(["a", "a/b", "a-b", "Ä", "z.9", "no good", ""])
_VERSIONS = st.sampled_from([None, "1.0.0", "1.0.1", "1.1.0", "2.0.0", "3.0.0-rc.1", "1.x"])
_TAGS = st.lists(st.sampled_from(["red", "Red", "blue things", "ß"]), max_size=3)
_WORDS = st.one_of(st.none(), st.sampled_from(["red", "cat", "c*", "b* things", "sample", "n", "ss", "ß", "a b", "!"]))
_TEXTS = st.sampled_from([None, "", "A red cat.", "blue", "Ein Spaß"])
_BOUNDS = st.tuples(*[st.one_of(st.none(), st.integers(0, 4))] * 2)
_OBJECT_NAMES = st.sampled_from(["a", "b", "f/a", "f/b", "f/g/a"])
_CONTENTS = st.binary(max_size=20)


def _data() -> list[Dataset[Any]]:
    samples: list[list[Any]] = [
        [_KINDS[0](n=1)],
        [_KINDS[0](n=1), _KINDS[0](n=2)],
        [_KINDS[1](n=1)],
        [_KINDS[2](n="x")] * 3,
        [{"txt": "plain"}],
    ]
    return [write_samples(part, f"memory://index-machine/{next(_NUMBERS)}") for part in samples]


_DATA: list[Dataset[Any]] = []


class IndexMachine(RuleBasedStateMachine):
    """Two indexes side by side; a subclass makes the one under test."""

    def made(self) -> LocalIndex:
        """A new, empty index."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        if not _DATA:
            _DATA.extend(_data())
        self.index, self.model = self.made(), LocalIndex("memory://")

    def teardown(self) -> None:
        """Let go of the database."""
        self.index.close()

    def both(self, act: Callable[[LocalIndex], Any]) -> None:
        """Do the same to both; what they answer, and what they refuse, must be the same."""
        assert _answer(act, self.index) == _answer(act, self.model)

    @rule(
        number=st.integers(0, 4),
        name=_DATASET_NAMES,
        version=_VERSIONS,
        tags=_TAGS,
        description=_TEXTS,
        metadata=st.sampled_from([None, {}, {"cat": ["red", 1]}]),
    )
    def insert(self, number: int, **facts: Any) -> None:
        """Insert."""
        self.both(lambda index: index.insert_dataset(_DATA[number], **facts))

    @rule(name=_DATASET_NAMES, version=_VERSIONS)
    def delete(self, name: str, version: str | None) -> None:
        """Delete."""
        self.both(lambda index: index.delete(name if version is None else f"{name}@{version}"))

    @rule(name=_DATASET_NAMES, to=_DATASET_NAMES)
    def rename(self, name: str, to: str) -> None:
        """Rename."""
        self.both(lambda index: index.rename(name, to))

    @rule(name=_DATASET_NAMES, to=_DATASET_NAMES, version=_VERSIONS, chosen=_VERSIONS, tags=_TAGS)
    def label(self, name: str, to: str, version: str | None, chosen: str | None, tags: list[str]) -> None:
        """Label."""
        ref = name if chosen is None else f"{name}@{chosen}"
        self.both(lambda index: index.label(ref, to, version=version, tags=tags))

    @rule(name=_DATASET_NAMES, tags=_TAGS, add=st.booleans())
    def tag(self, name: str, tags: list[str], add: bool) -> None:
        """Tag."""
        self.both(lambda index: (index.tag if add else index.untag)(name, *tags))

    @rule(kind=st.sampled_from(_KINDS), version=_VERSIONS)
    def publish(self, kind: type[Any], version: str | None) -> None:
        """Publish a schema."""
        self.both(lambda index: index.publish_schema(kind, version=version))

    @rule(
        text=_WORDS,
        tags=_TAGS,
        schema=st.sampled_from([None, "Sample", "Sample@1.0.0", "Other"]),
        fields=st.lists(st.sampled_from(["n", "m"]), max_size=2),
        samples=_BOUNDS,
        limit=st.integers(1, 6),
        offset=st.integers(0, 3),
    )
    def search(self, **asked: Any) -> None:
        """Search."""
        self.both(lambda index: index.search(**asked))

    @invariant()
    def holds_the_same(self) -> None:
        """All that both hold is the same."""
        self.both(lambda index: (len(index), list(index.list_datasets())))
        self.both(lambda index: [index.history(entry.name) for entry in index.list_datasets()])
        self.both(lambda index: [(one["$ref"], one["hash"]) for one in index.list_schemas()])
        self.both(lambda index: index.search(limit=100))


def _answer(act: Callable[[LocalIndex], Any], index: LocalIndex) -> Any:
    try:
        return _timeless(act(index))
    except ShoalError as error:
        return type(error), str(error)


def _timeless(answer: Any) -> Any:
    """An answer without the moments in it, which differ between the two."""
    if isinstance(answer, Entry):
        return replace(answer, created_at=None)
    return type(answer)(map(_timeless, answer)) if isinstance(answer, list | tuple) else answer


class StoreMachine(RuleBasedStateMachine):
    """Two stores side by side; a subclass gives the one under test."""

    def store(self) -> Store:
        """The store under test."""
        raise NotImplementedError

    def folder(self) -> str:
        """The URL of a new folder in it."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.stores: tuple[Store, Store] = self.store(), MemoryStore()
        self.roots = self.folder(), "memory://model"
        self.writers: list[tuple[ObjectWriter, ...]] = []

    def both(self, act: Callable[[Store, str], Any]) -> list[Any]:
        return [_outcome(act, each, root) for each, root in zip(self.stores, self.roots, strict=True)]

    @rule(name=_OBJECT_NAMES, data=_CONTENTS)
    def write(self, name: str, data: bytes) -> None:
        self.both(lambda store, root: store.write_all(f"{root}/{name}", data))

    @rule(name=_OBJECT_NAMES, data=_CONTENTS)
    def append(self, name: str, data: bytes) -> None:
        self.both(lambda store, root: store.append(f"{root}/{name}", data))

    @rule(name=_OBJECT_NAMES)
    def delete(self, name: str) -> None:
        self.both(lambda store, root: store.delete(f"{root}/{name}"))

    @rule(source=_OBJECT_NAMES, to=_OBJECT_NAMES)
    def move(self, source: str, to: str) -> None:
        if source != to:
            ours, model = self.both(lambda store, root: store.move(f"{root}/{source}", f"{root}/{to}"))
            assert ours == model

    @rule(name=_OBJECT_NAMES, data=_CONTENTS)
    def begin(self, name: str, data: bytes) -> None:
        writers = tuple(self.both(lambda store, root: store.create(f"{root}/{name}")))
        for writer in writers:
            writer.write(data)
        self.writers.append(writers)

    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        for writer in self.writers.pop() if self.writers else ():
            writer.commit() if commit else writer.abort()

    @rule(name=_OBJECT_NAMES, start=st.integers(0, 25), size=st.integers(0, 25))
    def read(self, name: str, start: int, size: int) -> None:
        ours, model = self.both(lambda store, root: _range(store, f"{root}/{name}", start, start + size))
        assert ours == model

    @invariant()
    def both_hold_the_same(self) -> None:
        ours, model = self.both(_everything)
        assert ours == model

    def teardown(self) -> None:
        for writer in (writer for writers in self.writers for writer in writers):
            writer.abort()


def _outcome(act: Callable[[Store, str], Any], store: Store, root: str) -> Any:
    try:
        return act(store, root)
    except ObjectNotFoundError:
        return ObjectNotFoundError


def _range(store: Store, url: str, start: int, stop: int) -> bytes:
    reader = store.open(url)
    try:
        return reader.read(start, stop)
    finally:
        reader.close()


def _everything(store: Store, root: str) -> list[tuple[str, int, bytes]]:
    return [(relative_url(info.url, root), info.size, store.read_all(info.url)) for info in store.list(root)]
