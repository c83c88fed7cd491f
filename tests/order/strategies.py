"""Strategies of orders."""

from __future__ import annotations

from hypothesis import strategies as st

from shoal.order import (
    BlockShuffle,
)


@st.composite
def block_shuffles(draw):
    count = draw(st.one_of(st.integers(0, 60), st.integers(1, 3000)))
    return BlockShuffle(
        count,
        draw(st.integers(0, 1000)),
        block_samples=draw(st.integers(1, 80)),
        window=draw(st.integers(1, 6)),
        lanes=draw(st.sampled_from([1, 2, 3, 4, 6, 12, 48, 192])),
    )
