"""Sound files without chance: the clock's marks taken out, so that the same sound gives the same bytes."""

from __future__ import annotations

import struct
import zlib

__all__ = ["without_serial", "without_time"]

_CHUNK = struct.Struct("<4sI")
_PAGE_HEADER = 27
_SERIAL, _CHECKSUM, _SEGMENTS = 14, 22, 26
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def without_time(data: bytes) -> bytes:
    """A RIFF file with the time in its PEAK chunk (written for float samples) set to zero."""
    result, offset = bytearray(data), 12
    while offset + _CHUNK.size <= len(data):
        name, size = _CHUNK.unpack_from(data, offset)
        if name == b"PEAK":
            start = offset + _CHUNK.size + 4  # after the version
            result[start : start + 4] = bytes(4)
        offset += _CHUNK.size + size + size % 2
    return bytes(result)


def without_serial(data: bytes) -> bytes:
    """An Ogg file with its stream's random serial number set to zero, and the pages' checksums made anew."""
    pages, offset = [], 0
    while offset < len(data):
        lengths = offset + _PAGE_HEADER
        end = lengths + data[offset + _SEGMENTS]
        end += sum(data[lengths:end])
        pages.append(_renumbered(data[offset:end]))
        offset = end
    return b"".join(pages)


def _renumbered(page: bytes) -> bytes:
    blank = bytearray(page)
    blank[_SERIAL : _SERIAL + 4] = blank[_CHECKSUM : _CHECKSUM + 4] = bytes(4)
    blank[_CHECKSUM : _CHECKSUM + 4] = _ogg_crc(blank).to_bytes(4, "little")
    return bytes(blank)


def _ogg_crc(data: bytearray) -> int:
    # Ogg's checksum is zlib's with the bits the other way round and without the inversions at both ends.
    mirrored = zlib.crc32(data.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)
