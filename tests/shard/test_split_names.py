"""The split that the name of a shard stands for."""

from __future__ import annotations

import pytest

from shoal.shard import split_of


@pytest.mark.parametrize(
    "path, split",
    [
        ("train-000001.tar", "train"),
        ("shard-000000.tar", "train"),
        ("val-1.tar", "validation"),
        ("valid_1.tar", "validation"),
        ("validation.tar", "validation"),
        ("dev-0.tar", "validation"),
        ("test/a.tar", "test"),
        ("testing-0.tar", "test"),
        ("EVAL-0.tar", "test"),
        ("train/test-0.tar", "test"),
        ("contest-0.tar", "train"),
        ("value-0.tar", "train"),
        ("devices-0.tar", "train"),
        ("latest-0.tar", "train"),
        ("imagenet1k-val-07.tar", "validation"),
        ("val2017.tar", "validation"),
    ],
)
def test_the_split_a_name_stands_for(path, split):
    assert split_of(path) == split
