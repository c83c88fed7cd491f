"""What an index says against what a tar holds. Pure: columns in, problems out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import ShoalError
from shoal.shard._index import Blocks, LongExtents, MemberColumns, ShardIndex
from shoal.shard._tar import Gap, crc32

__all__ = [
    "BlockCheck",
    "Members",
    "Problem",
    "ProblemKind",
    "compare",
    "duplicates",
    "has_checksums",
    "indexed_members",
]

Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

ProblemKind = Literal[
    "shard",  # it is not there, or cannot be opened
    "index",  # its index is missing, stale or no index
    "header",  # a part of the tar cannot be read as members
    "data",  # a member has other bytes than were indexed
    "size",  # or another size
    "name",  # or another name
    "missing",  # a member, or a whole sample, is indexed and not there
    "extra",  # a member is there and not indexed
    "duplicate",  # a sample has the same field twice
    "filler",  # bytes between members changed
    "decode",  # a field is not what its extension says
    "manifest",  # the manifest says otherwise
    "hash",  # the whole shard has another sha256
    "note",  # worth knowing, and no damage
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a shard, and where. ``offset`` counts in the tar, unpacked where it is compressed.

    Example:
        >>> print(Problem("data", "the bytes changed", "a.tar", key="0001", field="jpg", offset=512))
        the bytes changed (shard a.tar, key 0001, field jpg, byte 512)
    """

    kind: ProblemKind
    problem: str
    shard: str
    expected: str | None = None
    found: str | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = {"shard": self.shard, "key": self.key, "field": self.field}
        return str(ShoalError(self.problem, expected=self.expected, found=self.found, offset=self.offset, **where))


@dataclass(frozen=True, slots=True)
class Members:
    """Members in the archive's order, with the names of their rows and fields."""

    keys: Sequence[str]
    fields: Sequence[str]
    columns: MemberColumns
    checked: bool = True
    """Whether the checksums are known."""

    def __len__(self) -> int:
        return len(self.columns.rows)

    def name(self, at: int) -> tuple[str, str]:
        """The key and field of one member."""
        return self.keys[int(self.columns.rows[at])], self.fields[int(self.columns.fields[at])]


def indexed_members(index: ShardIndex) -> Members:
    """The members that an index knows, in the archive's order."""
    parts = _long_parts(index.fields) if isinstance(index.fields, LongExtents) else _wide_parts(index)
    rows, codes, offsets, sizes, crcs = (np.concatenate(arrays) for arrays in zip(_NOTHING, *parts, strict=True))
    order = np.argsort(offsets, kind="stable")
    columns = MemberColumns(rows[order], codes[order], offsets[order], sizes[order], crcs[order].astype(np.uint32))
    return Members(index.key_list(0, len(index)), list(index.fields), columns, has_checksums(index))


_NOTHING = (np.empty(0, np.int64),) * 5


def _wide_parts(index: ShardIndex) -> list[tuple[Int64, ...]]:
    parts: list[tuple[Int64, ...]] = []
    for code, extents in enumerate(index.fields.values()):
        rows = np.flatnonzero(extents.offset)
        crcs = np.zeros(len(rows), np.int64) if extents.crc is None else extents.crc[rows].astype(np.int64)
        offsets, sizes = extents.offset[rows].astype(np.int64), extents.size[rows].astype(np.int64)
        parts.append((rows, np.full(len(rows), code), offsets, sizes, crcs))
    return parts


def _long_parts(long: LongExtents) -> list[tuple[Int64, ...]]:
    crcs = np.zeros(len(long.codes), np.int64) if long.crc is None else long.crc.astype(np.int64)
    return [(long.entry_rows, long.codes, long.offset.astype(np.int64), long.size.astype(np.int64), crcs)]


def has_checksums(index: ShardIndex) -> bool:
    """Whether an index has a checksum for every member; imported ones have not."""
    if isinstance(index.fields, LongExtents):
        return index.fields.crc is not None
    return all(extents.crc is not None for extents in index.fields.values())


def compare(url: str, expected: Members, found: Members, gaps: Sequence[Gap]) -> tuple[list[Problem], int]:
    """What differs, and how many members are where the index says, under the name it says."""
    at = np.searchsorted(expected.columns.offsets, found.columns.offsets)
    met = np.append(expected.columns.offsets, -1)[at] == found.columns.offsets
    lost = np.ones(len(expected), bool)
    lost[at[met]] = False
    ours, theirs = at[met], np.flatnonzero(met)
    renamed = _renamed(expected, found, ours, theirs)
    problems = [
        *_differing(url, expected, found, ours, theirs, renamed),
        *_extra(url, expected, found, np.flatnonzero(~met), lost),
        *_gap_problems(url, expected, gaps, lost),
        *_lost(url, expected, lost),
    ]
    return problems, int(len(renamed) - renamed.sum())


def _differing(
    url: str, expected: Members, found: Members, ours: Int64, theirs: Int64, renamed: npt.NDArray[np.bool_]
) -> Iterator[Problem]:
    """Members ``ours`` of the index and ``theirs`` of the tar, which start at the same bytes, pair by pair."""
    resized = expected.columns.sizes[ours] != found.columns.sizes[theirs]
    changed = (expected.columns.crcs[ours] != found.columns.crcs[theirs]) & expected.checked
    for at in np.flatnonzero(renamed | resized | changed).tolist():
        mine, other = int(ours[at]), int(theirs[at])
        if renamed[at]:
            names = (".".join(members.name(place)) for members, place in ((expected, mine), (found, other)))
            yield _differs("name", "the shard has another member there", url, expected, mine, *names)
        elif resized[at]:
            sizes = f"{expected.columns.sizes[mine]} bytes", str(found.columns.sizes[other])
            yield _differs("size", "a member has another size than indexed", url, expected, mine, *sizes)
        else:
            crcs = f"crc32 {expected.columns.crcs[mine]:08x}", f"{found.columns.crcs[other]:08x}"
            yield _differs("data", "a member's bytes changed after they were written", url, expected, mine, *crcs)


def _renamed(expected: Members, found: Members, ours: Int64, theirs: Int64) -> npt.NDArray[np.bool_]:
    codes = {name: code for code, name in enumerate(expected.fields)}
    field_codes = np.array([codes.get(name, -1) for name in found.fields], np.int64)
    other_field = expected.columns.fields[ours] != field_codes[found.columns.fields[theirs]]
    rows = zip(expected.columns.rows[ours].tolist(), found.columns.rows[theirs].tolist(), strict=True)
    other_key = np.array([expected.keys[mine] != found.keys[other] for mine, other in rows], bool)
    renamed: npt.NDArray[np.bool_] = np.logical_or(other_field, other_key)
    return renamed


def _differs(kind: ProblemKind, problem: str, url: str, members: Members, at: int, said: str, found: str) -> Problem:
    key, field = members.name(at)
    return Problem(kind, problem, url, said, found, key, field, int(members.columns.offsets[at]))


def _extra(url: str, expected: Members, found: Members, extra: Int64, lost: npt.NDArray[np.bool_]) -> Iterator[Problem]:
    """Members that are not indexed, but for those inside a lost member: a tar in a tar, entered through its damage."""
    starts = expected.columns.offsets[lost]
    stops = starts + expected.columns.sizes[lost]
    for at in extra.tolist():
        offset = int(found.columns.offsets[at])
        if ((starts <= offset) & (offset < stops)).any():
            continue
        key, field = found.name(at)
        yield Problem("extra", "the shard has a member that is not indexed", url, key=key, field=field, offset=offset)


def _gap_problems(url: str, expected: Members, gaps: Iterable[Gap], lost: npt.NDArray[np.bool_]) -> Iterator[Problem]:
    """Each damaged place, with the member that is lost by it; that one is then not told again."""
    for gap in gaps:
        at = int(np.searchsorted(expected.columns.offsets, gap.start, "right"))
        hit = at < len(expected) and lost[at] and expected.columns.offsets[at] <= gap.stop
        key, field = expected.name(at) if hit else (gap.error.key, gap.error.field)
        if hit:
            lost[at] = False
        said, met = gap.error.expected, gap.error.found
        yield Problem(
            "header",
            gap.error.problem,
            url,
            expected=None if said is None else str(said),
            found=None if met is None else str(met),
            key=key,
            field=field,
            offset=gap.start if gap.error.offset is None else gap.error.offset,
        )


def _lost(url: str, expected: Members, lost: npt.NDArray[np.bool_]) -> Iterator[Problem]:
    """Members that are not there: told sample by sample where all of one is lost."""
    rows = expected.columns.rows
    left, whole = np.bincount(rows[lost], minlength=1), np.bincount(rows, minlength=1)
    told: set[int] = set()
    for at in np.flatnonzero(lost).tolist():
        row, (key, field), offset = int(rows[at]), expected.name(at), int(expected.columns.offsets[at])
        if left[row] < whole[row]:
            yield Problem("missing", "a member is not in the shard", url, key=key, field=field, offset=offset)
        elif row not in told:
            told.add(row)
            yield Problem("missing", "a sample is not in the shard", url, key=key, offset=offset)


def duplicates(url: str, found: Members) -> list[Problem]:
    """Every field that a sample has once too often."""
    slots = found.columns.rows * max(len(found.fields), 1) + found.columns.fields
    order = np.argsort(slots, kind="stable")
    again = np.sort(order[1:][np.diff(slots[order]) == 0])
    return [_duplicate(url, found, at) for at in again.tolist()]


def _duplicate(url: str, found: Members, at: int) -> Problem:
    key, field = found.name(at)
    offset = int(found.columns.offsets[at])
    return Problem("duplicate", "a sample has the same field twice", url, key=key, field=field, offset=offset)


class BlockCheck:
    """Compares each block's checksum as the archive's bytes go by: headers and padding have no other."""

    def __init__(self, blocks: Blocks | None) -> None:
        self._stops: list[int] = [] if blocks is None else blocks.offsets[1:].tolist()
        self._crcs: list[int] = [] if blocks is None else blocks.crcs.tolist()
        self._start = 0 if blocks is None else int(blocks.offsets[0])
        self._position = 0
        self._running = 0
        self._number = 0
        self.damaged: list[tuple[int, int]] = []
        """Where the blocks that differ start and stop."""

    def add(self, data: memoryview) -> None:
        """Take the archive's next bytes."""
        while data and self._number < len(self._stops):
            part = data[: self._stops[self._number] - self._position]
            self._running = crc32(part, self._running)
            self._position += len(part)
            data = data[len(part) :]
            if self._position == self._stops[self._number]:
                self._end_block()

    def _end_block(self) -> None:
        if self._running != self._crcs[self._number]:
            self.damaged.append((self._start, self._position))
        self._start, self._running = self._position, 0
        self._number += 1

    def problems(self, url: str, known: Sequence[Problem]) -> list[Problem]:
        """The blocks that differ though nothing in them is known to: their headers or padding changed."""
        told = np.sort(np.array([each.offset for each in known if each.offset is not None], np.int64))
        return [
            Problem("filler", "bytes between members changed", url, found=f"in bytes {start} to {stop}", offset=start)
            for start, stop in self.damaged
            if np.searchsorted(told, start) == np.searchsorted(told, stop)
        ]
