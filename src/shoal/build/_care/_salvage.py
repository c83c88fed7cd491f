"""Which samples of a damaged shard are whole, and where their bytes are.

With an index that has checksums nothing is guessed: a member is whole when the bytes at its place, or behind a header
that bears its name, have its size and crc32. Without checksums a tar does not say whether data is right. Then only the
headers speak: samples whose headers are sound and follow each other are taken, and those next to damage are left.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from shoal.shard import KeyRule, ShardIndex, split_name

from ._chains import Chain, TarReader, find_chains
from ._repaired import LostSample

__all__ = ["Piece", "Proof", "Salvage", "SavedSample", "has_checksums", "salvage_by_checksums"]

Proof = Literal["checksums", "structure"]
"""What says that a saved sample is right: the checksum of each member, or only that its headers are in order."""

_BUFFER = 4 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One member that is whole: its bytes are ``[offset, offset + size)`` of the tar."""

    name: str
    field: str
    offset: int
    size: int
    crc: int | None = None
    """Of its bytes, where it is known."""


@dataclass(frozen=True, slots=True)
class SavedSample:
    """A sample of which every member is whole."""

    key: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Salvage:
    """What can be had of one shard."""

    saved: tuple[SavedSample, ...]
    lost: tuple[LostSample, ...]
    proof: Proof
    moved: int = 0
    """How many members were found elsewhere than the index says."""


def has_checksums(index: ShardIndex) -> bool:
    """Whether the index has a checksum for every member; imported ones have not."""
    return all(extents.crc is not None for extents in index.fields.values())


@dataclass(frozen=True, slots=True)
class _Expected:
    """A member as the index has it."""

    row: int
    field: str
    offset: int
    size: int
    crc: int


def salvage_by_checksums(tar: TarReader, size: int, index: ShardIndex) -> Salvage:
    """Every sample whose members' bytes are whole by their crc32, and for the others why they are not."""
    members = sorted(_expected(index), key=lambda each: each.offset)
    whole = _whole_at_their_place(tar, members)
    chains = find_chains(tar, size, index.facts.rule.encoding)
    keys = index.key_list(0, len(index))
    places = _named_places(chains, index.facts.rule)
    pieces: dict[int, list[tuple[int, Piece]]] = defaultdict(list)
    bad: dict[int, _Expected] = {}
    moved = 0
    for member, is_whole in zip(members, whole, strict=True):
        named = places.get((keys[member.row], member.field), [])
        found = _at_its_place(member, keys[member.row], named) if is_whole else _elsewhere(tar, member, named)
        moved += found is not None and not is_whole
        if found is None:
            bad.setdefault(member.row, member)
        else:
            pieces[member.row].append((member.offset, found))
    saved = [
        SavedSample(key, tuple(piece for _, piece in sorted(pieces[row], key=lambda pair: pair[0])))
        for row, key in enumerate(keys)
        if row not in bad and row in pieces
    ]
    lost = [_lost(keys[row], bad[row], size) for row in sorted(bad)]
    return Salvage(tuple(saved), tuple(lost), "checksums", moved)


def _expected(index: ShardIndex) -> Iterator[_Expected]:
    for name, extents in index.fields.items():
        rows = np.flatnonzero(extents.offset)
        assert extents.crc is not None  # noqa: S101 - asked before
        columns = (rows.tolist(), *(column[rows].tolist() for column in (extents.offset, extents.size, extents.crc)))
        for row, offset, size, crc in zip(*columns, strict=True):
            yield _Expected(row, name, offset, size, crc)


def _whole_at_their_place(tar: TarReader, members: Sequence[_Expected]) -> list[bool]:
    """Whether each member, in the order of their offsets, has the bytes that were indexed; read in large parts."""
    base, held, answers = 0, memoryview(b""), []
    for member in members:
        start, stop = member.offset, member.offset + member.size
        if member.size > _BUFFER:
            answers.append(_crc_of(tar, start, member.size) == member.crc)
            continue
        if not (base <= start and stop <= base + len(held)):
            base, held = start, memoryview(tar.read(start, start + _BUFFER))
        data = held[start - base : stop - base]
        answers.append(len(data) == member.size and zlib.crc32(data) == member.crc)
    return answers


def _crc_of(tar: TarReader, start: int, size: int) -> int | None:
    """The crc32 of a part of the tar; None where it is cut off."""
    crc, at, stop = 0, start, start + size
    while at < stop:
        data = tar.read(at, min(at + _BUFFER, stop))
        if not data:
            return None
        crc, at = zlib.crc32(data, crc), at + len(data)
    return crc


_Places = dict[tuple[str, str], list[Piece]]


def _named_places(chains: Sequence[Chain], rule: KeyRule) -> _Places:
    """Where members stand by what their headers say."""
    places: _Places = defaultdict(list)
    for chain in chains:
        for name, offset, size in zip(chain.names, chain.offsets.tolist(), chain.sizes.tolist(), strict=True):
            pair = split_name(name, rule)
            if pair is not None:
                places[pair].append(Piece(name, pair[1], offset, size))
        for number, name in chain.odd.items():
            pair = split_name(name, rule)
            if pair is not None:
                places[pair].append(Piece(name, pair[1], int(chain.offsets[number]), int(chain.sizes[number])))
    return places


def _at_its_place(member: _Expected, key: str, named: Sequence[Piece]) -> Piece:
    """The member where the index has it, by its own name where its header can still be read."""
    places = (piece.name for piece in named if (piece.offset, piece.size) == (member.offset, member.size))
    name = next(places, f"{key}.{member.field}")
    return Piece(name, member.field, member.offset, member.size, member.crc)


def _elsewhere(tar: TarReader, member: _Expected, named: Sequence[Piece]) -> Piece | None:
    """The member behind a header of its name; None when its bytes are nowhere to be found."""
    for piece in named:
        if piece.size == member.size and _crc_of(tar, piece.offset, piece.size) == member.crc:
            return replace(piece, crc=member.crc)
    return None


def _lost(key: str, member: _Expected, size: int) -> LostSample:
    cut = member.offset + member.size > size
    reason = "cut off" if cut else "its bytes are not those that were indexed"
    return LostSample(key, f"field {member.field}: {reason}", member.offset)
