"""Samples of a damaged tar without checksums: those that no damage can have touched as far as headers tell.

What is left out, and why:

- the two samples on either side of a break: a header there may have come from elsewhere, with its name or its size;
- of a tar that was cut, the last sample, unless the next one's header or its own fields show that it was complete;
- samples whose key comes back, or that have a field twice: headers were exchanged, or a member is another's;
- samples with headers inside their data that are not those of a tar in the tar, when something is broken elsewhere:
  blocks may have been exchanged;
- runs behind a break that end before the archive does and look like none of the samples before it: a tar in a tar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.shard import KeyRule, ShardIndex, members_of, split_name

from ._chains import BLOCK, Chain, TarReader, find_chains
from ._repaired import LostSample
from ._salvage import Piece, Salvage, SavedSample

__all__ = ["salvage_by_structure"]

_NEAR = 2
"""How many samples on either side of damage are not taken."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring members with one key."""

    key: str
    pieces: tuple[Piece, ...]
    doubt: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(sorted(piece.field for piece in self.pieces))


def salvage_by_structure(tar: TarReader, size: int, rule: KeyRule, index: ShardIndex | None = None) -> Salvage:
    """Every sample that the headers show to be in order; ``index``, which has no checksums, must agree where given."""
    chains = find_chains(tar, size, rule.encoding)
    outer, inner = _outer_and_inner(chains)
    runs = [_near_breaks(_groups(chain, rule), chain, number, rule) for number, chain in enumerate(outer)]
    damaged = len(outer) > 1 or outer[0].end != "marker"
    if damaged:
        strange = _strange(tar, inner, chains)
        runs = [_with_headers_inside(groups, strange) for groups in runs]
    runs = _without_strangers(runs, outer)
    groups = [_complete(group) for groups in runs for group in groups]
    groups = _once_each(groups) if rule.group == "neighbours" else _only_whole_archives(groups, damaged)
    if index is not None:
        groups = _as_indexed(groups, index)
    saved = tuple(SavedSample(group.key, group.pieces) for group in groups if group.doubt is None)
    lost = tuple(LostSample(group.key, group.doubt, group.pieces[0].offset) for group in groups if group.doubt)
    return Salvage(saved, (*lost, *_never_met(groups, index)), "structure")


def _outer_and_inner(chains: Sequence[Chain]) -> tuple[list[Chain], list[Chain]]:
    """The runs that follow each other, and those inside the data of their members."""
    outer, inner = [chains[0]], list[Chain]()
    for chain in chains[1:]:
        if chain.start >= outer[-1].stop and outer[-1].end != "cut":  # else it is in the data of the member that is cut
            outer.append(chain)
        else:
            inner.append(chain)
    return outer, inner


def _strange(tar: TarReader, inner: Sequence[Chain], chains: Sequence[Chain]) -> list[int]:
    """Where headers stand in data that are not those of a tar in the tar: one fills its member, and has an end."""
    data_starts = {int(offset) for chain in chains for offset in chain.offsets}
    return [
        chain.start
        for chain in inner
        if chain.start not in data_starts or tar.read(chain.stop, chain.stop + BLOCK).strip(b"\0")
    ]


def _groups(chain: Chain, rule: KeyRule) -> list[_Group]:
    groups: list[_Group] = []
    members = zip(chain.names, chain.offsets.tolist(), chain.sizes.tolist(), strict=True)
    for number, (name, offset, size) in enumerate(members):
        pair = split_name(name, rule)
        if pair is None:
            continue
        if not groups or groups[-1].key != pair[0]:
            groups.append(_Group(pair[0], ()))
        doubt = groups[-1].doubt or ("its name may be another member's" if number in chain.odd else None)
        groups[-1] = _Group(pair[0], (*groups[-1].pieces, Piece(name, pair[1], offset, size)), doubt)
    return groups


def _near_breaks(groups: list[_Group], chain: Chain, number: int, rule: KeyRule) -> list[_Group]:
    """Doubt what stands next to where the run began or ended, unless that is where the archive does."""
    for at in [at for at, group in enumerate(groups) if group.doubt]:  # bytes are missing inside its headers
        groups = _doubted(groups, slice(max(0, at - _NEAR), at + _NEAR + 1), "damage stands near it")
    if number:
        groups = _doubted(groups, slice(0, _NEAR), "damage stands before it")
    if chain.end == "damage":
        return _doubted(groups, slice(max(0, len(groups) - _NEAR), None), "damage stands behind it")
    if chain.end == "cut" and groups and not _was_complete(groups, chain, rule):
        return _doubted(groups, slice(-1, None), "the archive is cut off here")
    return groups


def _was_complete(groups: list[_Group], chain: Chain, rule: KeyRule) -> bool:
    """Whether the last sample before a cut has all of its members, as far as one can see."""
    if chain.next_name is not None:
        following = split_name(chain.next_name, rule)
        return following is not None and following[0] != groups[-1].key
    return groups[-1].fields in {group.fields for group in groups[:-1]}


def _doubted(groups: list[_Group], part: slice, why: str) -> list[_Group]:
    chosen = set(range(len(groups))[part])
    return [replace(group, doubt=group.doubt or why) if at in chosen else group for at, group in enumerate(groups)]


def _with_headers_inside(groups: list[_Group], inner: Iterable[int]) -> list[_Group]:
    places = np.sort(np.fromiter(inner, np.int64))
    return [
        replace(group, doubt=group.doubt or "its data holds a header of another member")
        if any(
            np.searchsorted(places, piece.offset) < np.searchsorted(places, piece.offset + piece.size)
            for piece in group.pieces
        )
        else group
        for group in groups
    ]


def _without_strangers(runs: list[list[_Group]], chains: Sequence[Chain]) -> list[list[_Group]]:
    """Doubt runs behind a break that do not reach the archive's end and look like no sample that must be real."""
    real = {
        group.fields
        for number, (groups, chain) in enumerate(zip(runs, chains, strict=True))
        if number == 0 or chain.end != "damage"
        for group in groups
    }
    return [
        groups
        if number == 0 or chain.end != "damage"
        else [
            group
            if group.fields in real
            else replace(group, doubt=group.doubt or "it looks like no other sample, and may be a part of one")
            for group in groups
        ]
        for number, (groups, chain) in enumerate(zip(runs, chains, strict=True))
    ]


def _complete(group: _Group) -> _Group:
    if len(set(group.fields)) == len(group.fields):
        return group
    return replace(group, doubt=group.doubt or "it has the same field twice")


def _once_each(groups: list[_Group]) -> list[_Group]:
    often = {key for key, count in Counter(group.key for group in groups).items() if count > 1}
    return [
        replace(group, doubt=group.doubt or "its key comes back after other keys") if group.key in often else group
        for group in groups
    ]


def _only_whole_archives(groups: list[_Group], damaged: bool) -> list[_Group]:
    """Samples gathered over the whole archive: after damage any of them may have lost a member."""
    merged: dict[str, _Group] = {}
    for group in groups:
        before = merged.get(group.key)
        pieces = group.pieces if before is None else (*before.pieces, *group.pieces)
        doubt = "a member of it may be lost: its members are spread over the archive" if damaged else None
        merged[group.key] = _complete(_Group(group.key, pieces, doubt))
    return list(merged.values())


def _as_indexed(groups: list[_Group], index: ShardIndex) -> list[_Group]:
    """Doubt what the index does not know just so: names, places and sizes."""
    known = {
        (key, frozenset((member.field, member.offset, member.size) for member in members_of(index, row)))
        for row, key in enumerate(index.key_list(0, len(index)))
    }
    return [
        group
        if (group.key, frozenset((piece.field, piece.offset, piece.size) for piece in group.pieces)) in known
        else replace(group, doubt=group.doubt or "the index knows it otherwise")
        for group in groups
    ]


def _never_met(groups: list[_Group], index: ShardIndex | None) -> tuple[LostSample, ...]:
    if index is None:
        return ()
    met = {group.key for group in groups}
    return tuple(
        LostSample(key, "its headers are gone", members_of(index, row)[0].offset)
        for row, key in enumerate(index.key_list(0, len(index)))
        if key not in met
    )
