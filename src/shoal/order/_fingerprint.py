"""A short name for settings: equal settings, equal name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["fingerprint_of"]


def fingerprint_of(settings: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that stand for ``settings``, whatever the order of its keys.

    Example:
        >>> fingerprint_of({"seed": 1, "count": 10}) == fingerprint_of({"count": 10, "seed": 1})
        True
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
