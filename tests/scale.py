"""How often a test repeats what is left to chance: a few times in ``make test``, many times in ``make soak``."""

from __future__ import annotations

import os

__all__ = ["times"]


def times(usual: int, soak: int) -> int:
    """``usual``, or ``soak`` where the environment has SHOAL_SOAK set, as ``make soak`` does."""
    return soak if os.environ.get("SHOAL_SOAK") else usual
