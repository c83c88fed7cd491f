"""How long a shuffle window keeps blocks: arithmetic only."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.shard._shuffle_window import BlockRefCounts


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=5), st.integers(0, 99))
def test_a_block_is_over_with_its_last_read_of_an_epoch(epochs, seed):
    """However far ahead the order is known, and whether reads come before they are known."""
    uses, told, read = BlockRefCounts(), 0, []
    line = [(epoch, block) for epoch, blocks in enumerate(epochs) for block in blocks]
    over, draw = [], random.Random(seed)
    while len(read) < len(line):
        if told < len(line) and draw.random() < 0.6:
            epoch, block = line[told]
            over += uses.expect(epoch, np.array([block]))
            told += 1
        elif len(read) < told:
            over += uses.read(np.array([line[len(read)][1]]))
            read.append(line[len(read)])
    assert all(block not in uses for block in range(6))
    assert set(over) == {block for _, block in line}


def test_reads_before_they_are_known_are_counted_when_they_are():
    uses = BlockRefCounts()
    assert uses.read(np.array([3, 3])) == set()
    assert uses.expect(0, np.array([3, 3, 3])) == set()
    assert uses.read(np.array([3])) == {3}
    assert 3 not in uses
