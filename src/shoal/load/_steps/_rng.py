"""Random numbers that belong to a sample, not to a thread or a run."""

from __future__ import annotations

import numpy as np

from shoal.order import key_of

__all__ = ["rng_for"]

_PURPOSE = 7
"""So that a sample's own random numbers are not those of the order."""


def rng_for(seed: int, epoch: int, number: int, *parts: int) -> np.random.Generator:
    """The random generator of one sample in one epoch, or of a part of it: the same on every rank, in every run.

    Example:
        >>> bool(rng_for(0, 1, 5).random() == rng_for(0, 1, 5).random())
        True
    """
    return np.random.Generator(np.random.SFC64(key_of(seed, epoch, _PURPOSE, number, *(parts or (0,)))))
