"""Records of an index that cannot be read."""

from __future__ import annotations

import pytest

from shoal.errors import CatalogError
from shoal.local import LocalIndex


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"number": "x"}', b"[" * 100_000, b"\xff"])
def test_a_record_that_nobody_of_ours_wrote_is_told(data, tmp_path):
    index = LocalIndex("memory://")
    index._backend.transact(lambda change: change.put(("head", "pets"), data))
    with pytest.raises(CatalogError, match="head pets"):
        index.get_dataset("pets")
    with pytest.raises(CatalogError, match="head pets"):
        list(index.list_datasets())
