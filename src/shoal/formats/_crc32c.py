"""CRC-32C (Castagnoli), as TFRecord files have it: by the compiled ``google_crc32c`` where it is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["crc32c", "crc32c_of_ranges", "crc32c_of_words", "masked"]

UInt32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]
_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_PIECE = 256
"""Bytes of a piece, a power of two: long enough that joining costs little, short enough for many side by side."""
_AT_ONCE = 8192


def masked(crc: Any) -> Any:
    """A checksum as it is stored: turned and shifted, because CRCs of data with CRCs in it are weak.

    Takes a number or an array of them.
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES


@functools.cache
def _compiled() -> Callable[[bytes], int] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    # Without its compiled part the package is slower than what is below.
    return google_crc32c.value if google_crc32c.implementation == "c" else None


def crc32c(data: bytes) -> int:
    """The checksum of some bytes.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    found = _compiled()
    if found is not None:
        return found(data)
    return int(_by_numpy(data, np.zeros(1, np.int64), np.array([len(data)]))[0])


def crc32c_of_ranges(data: bytes, starts: Int64, stops: Int64) -> UInt32:
    """The checksums of several ranges of some bytes."""
    found = _compiled()
    if found is None:
        return _by_numpy(data, starts, stops)
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.array([found(data[start:stop]) for start, stop in ranges], np.uint32)


def _by_numpy(data: bytes, starts: Int64, stops: Int64) -> UInt32:
    """Pieces of all ranges side by side, two bytes of each at a step; then the pieces of each range are joined.

    A CRC is linear: that of two pieces one after the other is that of the first, shifted by the length of the second,
    added to that of the second. Zeros before the data change nothing when the register starts at zero, so the first
    piece of a range is filled up with them, and what the register starts with is added at the end.
    """
    sizes = stops - starts
    counts = -(-sizes // _PIECE)
    firsts = np.cumsum(counts) - counts
    registers = np.zeros(int(counts.sum()), np.uint32)
    _fill(registers, data, starts, sizes, counts, firsts)
    found = np.zeros(len(starts), np.uint32)
    for step in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > step)
        found[rows] = _apply(_piece_tables(), found[rows]) ^ registers[firsts[rows] + step]
    return found ^ _ones_shifted(sizes) ^ np.uint32(_ONES)


def _fill(registers: UInt32, data: bytes, starts: Int64, sizes: Int64, counts: Int64, firsts: Int64) -> None:
    """The register after each piece, had it started at zero."""
    raw = np.frombuffer(data, np.uint8)
    pieces = np.arange(len(registers))
    owner = np.repeat(np.arange(len(starts)), counts)
    ends = starts[owner] + sizes[owner] - (counts[owner] - 1 - (pieces - firsts[owner])) * _PIECE
    table, columns = _pair_table(), np.arange(_PIECE)
    for at in range(0, len(pieces), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        places = ends[some, None] - _PIECE + columns
        inside = places >= starts[owner[some], None]
        block = np.where(inside, raw[np.where(inside, places, 0)], 0).astype(np.uint8)
        steps = np.ascontiguousarray(block.view("<u2").T)
        register = np.zeros(steps.shape[1], np.uint32)
        for step in steps:
            register = table[(register & 0xFFFF) ^ step] ^ register >> np.uint32(16)
        registers[some] = register


def _ones_shifted(sizes: Int64) -> UInt32:
    """What as many bytes of zeros make of a register of ones."""
    found = np.full(len(sizes), _ONES, np.uint32)
    for power in range(int(sizes.max(initial=0)).bit_length()):
        found = np.where(sizes >> power & 1, _apply(_zeros_tables(power), found), found).astype(np.uint32)
    return found


def crc32c_of_words(words: npt.NDArray[np.uint64]) -> UInt32:
    """The checksums of many numbers of eight bytes, all at once."""
    steps = np.ascontiguousarray(words, "<u8").view("<u2").reshape(-1, 4)
    table, register = _pair_table(), np.full(len(words), _ONES, np.uint32)
    for column in range(4):
        register = table[(register & 0xFFFF) ^ steps[:, column]] ^ register >> np.uint32(16)
    return register ^ np.uint32(_ONES)


@functools.cache
def _byte_table() -> UInt32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table.astype(np.uint32)


@functools.cache
def _pair_table() -> UInt32:
    """What two bytes at once do to the register."""
    one, pairs = _byte_table(), np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        pairs = one[pairs & 0xFF] ^ pairs >> np.uint32(8)
    return pairs


def _apply(tables: UInt32, registers: UInt32) -> UInt32:
    """Registers after the bytes of zeros that these tables are about."""
    found: UInt32 = tables[0][registers & 0xFF]
    for byte in (1, 2, 3):
        found = found ^ tables[byte][registers >> np.uint32(8 * byte) & 0xFF]
    return found


@functools.cache
def _piece_tables() -> UInt32:
    """What a piece of zeros makes of each byte of the register."""
    return _zeros_tables(_PIECE.bit_length() - 1)


@functools.cache
def _zeros_tables(power: int) -> UInt32:
    """What 2**power bytes of zeros make of each byte of the register."""
    values = np.arange(256, dtype=np.uint32)
    bytes_alone = np.stack([values << np.uint32(8 * byte) for byte in range(4)])
    if power:
        smaller = _zeros_tables(power - 1)
        return _apply(smaller, _apply(smaller, bytes_alone))
    one: UInt32 = _byte_table()[bytes_alone & 0xFF] ^ bytes_alone >> np.uint32(8)
    return one
