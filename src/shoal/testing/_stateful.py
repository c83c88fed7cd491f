"""The same calls to an index under test and to one in memory: they must answer the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.dataset import Dataset, write_samples
from shoal.errors import ShoalError
from shoal.local import Entry, LocalIndex
from shoal.sample import packable

__all__ = ["IndexMachine"]

_NUMBERS = count()
_KINDS: list[type[Any]] = [
    packable(type("Sample", (), {"__annotations__": annotations, **defaults}))
    for annotations, defaults in (({"n": int}, {}), ({"n": int, "m": int}, {"m": 0}), ({"n": str}, {}))
]
_NAMES = st.sampled_from(["a", "a/b", "a-b", "Ä", "z.9", "no good", ""])
_VERSIONS = st.sampled_from([None, "1.0.0", "1.0.1", "1.1.0", "2.0.0", "3.0.0-rc.1", "1.x"])
_TAGS = st.lists(st.sampled_from(["red", "Red", "blue things", "ß"]), max_size=3)
_WORDS = st.one_of(st.none(), st.sampled_from(["red", "cat", "c*", "b* things", "sample", "n", "ss", "ß", "a b", "!"]))
_TEXTS = st.sampled_from([None, "", "A red cat.", "blue", "Ein Spaß"])
_BOUNDS = st.tuples(*[st.one_of(st.none(), st.integers(0, 4))] * 2)


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
        name=_NAMES,
        version=_VERSIONS,
        tags=_TAGS,
        description=_TEXTS,
        metadata=st.sampled_from([None, {}, {"cat": ["red", 1]}]),
    )
    def insert(self, number: int, **facts: Any) -> None:
        """Insert."""
        self.both(lambda index: index.insert_dataset(_DATA[number], **facts))

    @rule(name=_NAMES, version=_VERSIONS)
    def delete(self, name: str, version: str | None) -> None:
        """Delete."""
        self.both(lambda index: index.delete(name if version is None else f"{name}@{version}"))

    @rule(name=_NAMES, to=_NAMES)
    def rename(self, name: str, to: str) -> None:
        """Rename."""
        self.both(lambda index: index.rename(name, to))

    @rule(name=_NAMES, to=_NAMES, version=_VERSIONS, chosen=_VERSIONS, tags=_TAGS)
    def label(self, name: str, to: str, version: str | None, chosen: str | None, tags: list[str]) -> None:
        """Label."""
        ref = name if chosen is None else f"{name}@{chosen}"
        self.both(lambda index: index.label(ref, to, version=version, tags=tags))

    @rule(name=_NAMES, tags=_TAGS, add=st.booleans())
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
