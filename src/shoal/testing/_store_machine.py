"""Any sequence of calls on a store, compared with a plain dictionary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.errors import ObjectNotFoundError
from shoal.store import MemoryStore, ObjectWriter, Store, relative_url

__all__ = ["StoreMachine"]

_NAMES = st.sampled_from(["a", "b", "f/a", "f/b", "f/g/a"])
_CONTENTS = st.binary(max_size=20)


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

    @rule(name=_NAMES, data=_CONTENTS)
    def write(self, name: str, data: bytes) -> None:
        self.both(lambda store, root: store.write_all(f"{root}/{name}", data))

    @rule(name=_NAMES, data=_CONTENTS)
    def append(self, name: str, data: bytes) -> None:
        self.both(lambda store, root: store.append(f"{root}/{name}", data))

    @rule(name=_NAMES)
    def delete(self, name: str) -> None:
        self.both(lambda store, root: store.delete(f"{root}/{name}"))

    @rule(source=_NAMES, to=_NAMES)
    def move(self, source: str, to: str) -> None:
        if source != to:
            ours, model = self.both(lambda store, root: store.move(f"{root}/{source}", f"{root}/{to}"))
            assert ours == model

    @rule(name=_NAMES, data=_CONTENTS)
    def begin(self, name: str, data: bytes) -> None:
        writers = tuple(self.both(lambda store, root: store.create(f"{root}/{name}")))
        for writer in writers:
            writer.write(data)
        self.writers.append(writers)

    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        for writer in self.writers.pop() if self.writers else ():
            writer.commit() if commit else writer.abort()

    @rule(name=_NAMES, start=st.integers(0, 25), size=st.integers(0, 25))
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
