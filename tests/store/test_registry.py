"""Which store serves which URL."""

from __future__ import annotations

import pytest

from shoal.errors import StoreError
from shoal.store import (
    LocalStore,
    MemoryStore,
    register_store,
    store_for,
)


def test_schemes_find_their_store():
    mine = MemoryStore()
    register_store("Scratch2", mine)
    assert store_for("scratch2://x") is mine
    assert store_for("SCRATCH2://x") is mine
    assert isinstance(store_for("a/b"), LocalStore)
    assert isinstance(store_for("C:\\data\\a.tar"), LocalStore)
    with pytest.raises(StoreError, match="no store for gopher://"):
        store_for("gopher://x")
