"""Find the members of a damaged tar: every unbroken run of them, wherever it stands.

A run begins at the archive's start, or at any block, aligned or not, whose checksum says that it is a header: bytes may
have been lost or put in between. It goes on for as long as each member is followed by a sound header.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from shoal.errors import TarError
from shoal.shard import Chunk, Gap, ScanOptions, scan

__all__ = ["BLOCK", "Chain", "TarReader", "find_chains", "first_chain"]

BLOCK = 512
_WINDOW = 4 << 20
_MAGIC = re.compile(rb"ustar[\0 ]")
_MAGIC_AT = 257
_LARGE = 8 << 20

Int64 = npt.NDArray[np.int64]
ChainEnd = Literal["marker", "cut", "damage"]


class TarReader(Protocol):
    """A tar's bytes by position; fewer than asked for only where it ends."""

    def read(self, start: int, stop: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Members that follow each other without a break."""

    names: list[str]
    starts: Int64
    """Where each member's first header stands."""
    offsets: Int64
    sizes: Int64
    start: int
    stop: int
    """Where the next header was expected."""
    end: ChainEnd
    """How it ended: at an end marker with only zeros behind it, at the end of the bytes, or at damage."""
    next_name: str | None = None
    """The name in the header at ``stop``, where that is one and only its data is cut off."""
    odd: dict[int, str] = field(default_factory=dict)
    """Members whose PAX or GNU header may be that of another: their number, and the name in their own header."""

    def __len__(self) -> int:
        return len(self.names)


class _Padded:
    """The bytes with zeros behind them: a member whose padding alone is cut off is still whole."""

    def __init__(self, tar: TarReader, size: int) -> None:
        self._tar = tar
        self._stop = size
        self.size: int | None = size + BLOCK

    def at(self, position: int, length: int) -> bytes:
        data = self._tar.read(position, min(position + length, self._stop)) if position < self._stop else b""
        stop = min(position + length, self._stop + BLOCK)
        return data + bytes(max(0, stop - max(position, self._stop)))


def first_chain(tar: TarReader, size: int, encoding: str) -> Chain:
    """The run of members at the archive's start."""
    return _follow(tar, size, 0, encoding, set())


def find_chains(tar: TarReader, size: int, encoding: str) -> list[Chain]:
    """Every run of members, in the order of their starts. Runs inside a member's data (a tar in a tar) are among them.

    Each member is in one run only: a run that comes to a member of an earlier one ends there.
    """
    known: set[int] = set()
    chains = [_follow(tar, size, 0, encoding, known)]
    own = _own_headers(chains[0])
    for position in _candidates(tar, size):
        if position not in known and position not in own:
            chain = _follow(tar, size, position, encoding, known)
            own |= _own_headers(chain)
            if len(chain):
                chains.append(chain)
    return chains


def _own_headers(chain: Chain) -> set[int]:
    """Where the headers of members stand that have PAX or GNU headers before them."""
    return set((chain.offsets[chain.offsets - chain.starts > BLOCK] - BLOCK).tolist())


def _candidates(tar: TarReader, size: int) -> Iterator[int]:
    """Every position at which a sound header stands."""
    for base in range(0, size, _WINDOW):
        data = tar.read(base, min(base + _WINDOW + BLOCK, size))
        for found in _MAGIC.finditer(data):
            at = found.start() - _MAGIC_AT
            if 0 <= at < _WINDOW and _header(data[at : at + BLOCK]) is not None:
                yield base + at


def _header(block: bytes) -> tarfile.TarInfo | None:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError:
        return None


def _follow(tar: TarReader, size: int, start: int, encoding: str, known: set[int]) -> Chain:
    """The run that begins at ``start`` and ends, at the latest, at a member of ``known``; its own are added there."""
    run = _Run(start, known)
    options = ScanOptions(chunk_bytes=1 << 20, large_bytes=_LARGE, encoding=encoding)
    parts = scan(_Padded(tar, size), options, start=start, on_no_marker=lambda text: None)
    try:
        run.end = "damage" if not all(map(run.take, parts)) else "cut" if run.stop >= size else "marker"
    except TarError:
        run.end = "damage"
    run.drop_cut(size)
    cut, name = _cut_there(tar, size, run.stop) if run.end == "damage" else (False, None)
    starts, offsets, sizes = (np.array(column, np.int64) for column in (run.starts, run.offsets, run.sizes))
    return Chain(run.names, starts, offsets, sizes, start, run.stop, "cut" if cut else run.end, name, run.odd)


class _Run:
    """A chain in the making."""

    def __init__(self, start: int, known: set[int]) -> None:
        self.names: list[str] = []
        self.starts: list[int] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.stop = start
        self.end: ChainEnd = "damage"
        self.odd: dict[int, str] = {}
        self._known = known

    def take(self, part: Chunk | Gap) -> bool:
        """Add the next members; False when one of them is known already."""
        if isinstance(part, Gap):
            return False
        starts = part.starts.tolist()
        met = next((number for number, at in enumerate(starts) if at in self._known), len(starts))
        for at in np.flatnonzero(part.offsets[:met] - part.starts[:met] > BLOCK).tolist() if part.data else ():
            self._look_at_headers(part, at)
        self.names += part.names[:met]
        self.starts += starts[:met]
        self.offsets += part.offsets[:met].tolist()
        self.sizes += part.sizes[:met].tolist()
        self._known.update(starts[:met])
        self.stop = part.stop if met == len(starts) else starts[met]
        return met == len(starts)

    def _look_at_headers(self, part: Chunk, at: int) -> None:
        """Whether what stands before a member's own header belongs to it: after a loss of bytes it may be another's."""
        start, stop = int(part.starts[at]) - part.base, int(part.offsets[at]) - part.base
        own = _header(part.data[stop - BLOCK : stop])
        if own is None:
            return
        if not _is_short_for(own.name, part.names[at]) or _pax_headers(part.data, start, stop - BLOCK) > 1:
            self.odd[len(self.names) + at] = own.name

    def drop_cut(self, size: int) -> None:
        """Leave out a last member of which more than the padding was made up."""
        if self.offsets and self.offsets[-1] + self.sizes[-1] > size:
            self.stop = self.starts[-1]
            self.end = "damage"
            for column in (self.names, self.starts, self.offsets, self.sizes):
                column.pop()


def _is_short_for(short: str, name: str) -> bool:
    """Whether a header's own name may be what was left of a longer one: cut, or with marks for other letters."""
    return len(short) <= len(name) and all(
        one == other or one in "?\ufffd" or not one.isascii() for one, other in zip(short, name, strict=False)
    )


def _pax_headers(data: bytes, start: int, stop: int) -> int:
    """How many PAX headers speak of one member."""
    count = 0
    while start < stop and (head := _header(data[start : start + BLOCK])) is not None:
        count += head.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
        start += BLOCK + -(-head.size // BLOCK) * BLOCK
    return count


_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def _cut_there(tar: TarReader, size: int, stop: int) -> tuple[bool, str | None]:
    """Whether the bytes end in the entry at ``stop``, and the name of its member where that can be read."""
    extended = False
    while (head := _header(tar.read(stop, stop + BLOCK))) is not None:
        behind = stop + BLOCK + -(-head.size // BLOCK) * BLOCK
        if head.type not in _EXTENDED:
            cut = stop + BLOCK + head.size > size
            return cut, head.name if cut and head.isreg() and not (extended and _may_be_short(head.name)) else None
        extended, stop = True, behind
    return size < stop + BLOCK, None


def _may_be_short(name: str) -> bool:
    """Whether the name in a header may stand for a longer one, or one with other letters."""
    return len(name.encode()) >= 100 or "?" in name or not name.isascii()
