"""Where things go that can be made again."""

from __future__ import annotations

import os
import sys

__all__ = ["cache_dir"]


def cache_dir() -> str:
    """The user's cache folder for shoal: ``$SHOAL_CACHE``, else the platform's own place for caches."""
    if chosen := os.environ.get("SHOAL_CACHE"):
        return chosen
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "shoal")
    if os.name == "nt":
        return os.path.join(os.environ.get("LOCALAPPDATA", home), "shoal", "cache")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "shoal")
