"""Which files of a folder are read."""

from __future__ import annotations

import pytest

import shoal
from shoal.errors import FieldError


def test_splits_by_name(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        (tmp_path / f"{split}-0.jsonl").write_text('{"a": 1}\n' * count)
    assert len(shoal.Dataset(tmp_path)) == 5
    assert len(shoal.Dataset(tmp_path, split="test")) == 2
    with pytest.raises(FieldError, match="train"):
        len(shoal.Dataset(tmp_path, split="validation"))
