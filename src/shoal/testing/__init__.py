"""Suites that users run on their own parts: what shoal's own tests ask of its stores, to be asked of yours.

Subclass :class:`StoreTests` in a test module; pytest finds the tests. :func:`store_machine` gives a state machine for
hypothesis that compares a store with a plain dictionary over any sequence of calls.
"""

from ._machine import store_machine
from ._store import StoreReadTests, StoreTests

__all__ = ["StoreReadTests", "StoreTests", "store_machine"]
