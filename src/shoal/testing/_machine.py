"""State machines, for those who have hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.errors import MissingExtraError
from shoal.local import LocalIndex
from shoal.store import Store

__all__ = ["index_machine", "store_machine"]


def store_machine(store: Callable[[], Store], folder: Callable[[], str]) -> Any:
    """A state machine for hypothesis that does the same to a store and to a `MemoryStore`: they must hold the same.

    ``store`` gives the store under test and ``folder`` the URL of a new folder in it, for each run. Run it as
    ``TestMine = store_machine(...).TestCase``. Raises MissingExtraError without hypothesis.

    Example:
        >>> from itertools import count
        >>> from shoal.store import MemoryStore
        >>> numbers = count()
        >>> machine = store_machine(MemoryStore, lambda: f"memory://{next(numbers)}")
        >>> machine.TestCase("runTest").runTest()
    """
    try:
        from ._stateful import StoreMachine
    except ImportError:
        raise MissingExtraError("state machines need hypothesis", hint="pip install hypothesis") from None
    members = {"store": lambda self: store(), "folder": lambda self: folder()}
    return type("StoreMachine", (StoreMachine,), members)


def index_machine(index: Callable[[], LocalIndex]) -> Any:
    """A state machine for hypothesis that does the same to an index and to one in memory: they must answer the same.

    ``index`` gives a new, empty index for each run. Run it as ``TestMine = index_machine(...).TestCase``. Raises
    MissingExtraError without hypothesis.

    Example:
        >>> machine = index_machine(lambda: LocalIndex("memory://"))
        >>> machine.TestCase.settings.max_examples >= 1
        True
    """
    try:
        from ._stateful import IndexMachine
    except ImportError:
        raise MissingExtraError("state machines need hypothesis", hint="pip install hypothesis") from None
    return type("IndexMachine", (IndexMachine,), {"made": lambda self: index()})
