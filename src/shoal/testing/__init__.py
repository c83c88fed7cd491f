"""Suites that users run on their own parts: what shoal's own tests ask of its stores and its indexes.

Subclass :class:`StoreTests` or :class:`IndexTests` in a test module; pytest finds the tests. :func:`store_machine` and
:func:`index_machine` give state machines for hypothesis that compare a store with a plain dictionary, and an index with
one in memory, over any sequence of calls.
"""

from ._index import IndexTests
from ._machine import index_machine, store_machine
from ._store import StoreReadTests, StoreTests

__all__ = ["IndexTests", "StoreReadTests", "StoreTests", "index_machine", "store_machine"]
