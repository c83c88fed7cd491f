"""Entries are plain values."""

from __future__ import annotations

import pickle

import pytest
from tests.local.samples import samples

import shoal
from shoal.errors import (
    FieldError,
)
from shoal.local import Entry, LocalIndex, Repo


def test_an_entry_is_a_value(tmp_path):
    index = LocalIndex(tmp_path / "index.db")
    entry = Repo(tmp_path / "repo", index=index).insert(samples(), name="pets")
    other = pickle.loads(pickle.dumps(entry))
    assert other == entry
    assert isinstance(other, Entry)
    assert other.open()[0].label == "label 0"
    for one in (entry, index.insert_dataset(shoal.Dataset(entry.data_urls), name="one")):
        assert len(one.open("training")) == 5
        with pytest.raises(FieldError, match="no such split"):
            one.open("test")
    index.close()
