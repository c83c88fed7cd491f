"""Test suites for users' own stores and indexes, the same that shoal runs on its own.

Subclass :class:`StoreTests` or :class:`IndexTests` in a test module; pytest finds the tests. :func:`store_machine` and
:func:`index_machine` give state machines for hypothesis that compare a store with a plain dictionary, and an index with
one in memory, over any sequence of calls.
"""

from ._index import IndexTests, index_machine
from ._store import StoreReadTests, StoreTests, store_machine

__all__ = ["IndexTests", "StoreReadTests", "StoreTests", "index_machine", "store_machine"]
