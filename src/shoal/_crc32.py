"""CRC-32 of bytes, as zlib, tar indexes and PNG define it, by the fastest library that is installed."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # isal has no wheel for every platform; zlib gives the same values, slower
    from zlib import crc32

__all__ = ["crc32"]
