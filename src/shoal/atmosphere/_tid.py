"""Keys of records: made from the time, or from what the record is about, so that the same thing has the same key."""

from __future__ import annotations

import hashlib
import re
import time

__all__ = ["key_of", "named_key", "new_key"]

_LETTERS = "234567abcdefghijklmnopqrstuvwxyz"


def _encoded(number: int) -> str:
    return "".join(_LETTERS[(number >> shift) & 31] for shift in range(60, -1, -5))


def new_key() -> str:
    """A key for now.

    Example:
        >>> len(new_key())
        13
    """
    return _encoded((time.time_ns() // 1000) << 10)


def key_of(*parts: str) -> str:
    """The key of what these texts say: of the form of a TID, the same for the same texts.

    Whoever publishes the same thing twice, from two machines or after a failure, thereby writes one record.

    Example:
        >>> key_of("pets", "1.0.0") == key_of("pets", "1.0.0"), key_of("pets", "1.0.0") == key_of("pets1", ".0.0")
        (True, False)
    """
    text = "".join(f"{len(part.encode())}:{part}" for part in parts)
    return _encoded(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1)


def named_key(name: str, version: str) -> str:
    """A key that people can read, for a name and a version.

    Example:
        >>> named_key("ImageSample", "1.0.0")
        'ImageSample:1.0.0'
    """
    text = f"{name}:{version}"
    return text if re.fullmatch(r"[a-zA-Z0-9_.:~-]{1,500}", text) else key_of(name, version)
