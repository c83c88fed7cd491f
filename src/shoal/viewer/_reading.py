"""The values that a page shows, read with as few bytes as it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.errors import DecodeError, ShoalError
from shoal.shard import Member, ShardSource

from ._kinds import Kind, kind_of
from ._opened import Opened, Record
from ._places import MOST_READ, Failure, Values, as_mapping, decoded, typed_sample

__all__ = ["CARD_LIMITS", "PAGE_LIMITS", "TooLarge", "read_values"]

CARD_LIMITS: dict[Kind, int] = {"text": 4096, "svg": 0, "value": 512 << 10}
"""Of which kinds a card shows the value, and how many bytes of it are read. Others a browser asks for one by one."""
PAGE_LIMITS: dict[Kind, int] = {"text": 256 << 10, "svg": 64 << 10, "value": MOST_READ, "array": MOST_READ}
_CUT = ("text", "svg")
"""Kinds of which the beginning is worth something by itself."""


class TooLarge:
    """Stands where a value would, had it been smaller."""


TOO_LARGE = TooLarge()


def read_values(opened: Opened, records: Sequence[Record], limits: dict[Kind, int]) -> list[Values]:
    """For each sample, the values of fields whose kind has a limit; bytes of text may be its beginning only.

    A value that cannot be read is a `Failure`.
    """
    source = opened.shards
    if source is None:
        return [_whole(opened, record) for record in records]
    found: list[Values] = [{} for _ in records]
    together: dict[int, list[int]] = {}
    for at, record in enumerate(records):
        wanted = _wanted(record, limits)
        if record.problem is not None:
            found[at] = {"shard": Failure(record.problem)}
        elif wanted and all(_fits(member, limits) for member in wanted):
            together.setdefault(record.shard or 0, []).append(at)
        else:
            found[at] = {member.field: _one(source, record, member, limits) for member in wanted}
    for shard, places in together.items():
        _read_together(source, shard, [records[at] for at in places], [found[at] for at in places], limits)
    return found


def _whole(opened: Opened, record: Record) -> Values:
    """All of a sample of a format that is no tar."""
    try:
        return dict(as_mapping(typed_sample(opened.dataset, record.number)))
    except ShoalError as error:
        return {"sample": Failure(error)}


def _wanted(record: Record, limits: dict[Kind, int]) -> list[Member]:
    return [member for member in record.members if limits.get(kind_of(member.field), 0)]


def _fits(member: Member, limits: dict[Kind, int]) -> bool:
    return member.size <= limits.get(kind_of(member.field), 0)


def _read_together(
    source: ShardSource, shard: int, records: list[Record], found: list[Values], limits: dict[Kind, int]
) -> None:
    """Neighbours in one read. Where one of them is damaged, one by one, so that the others are shown."""
    names = list(dict.fromkeys(member.field for record in records for member in _wanted(record, limits)))
    rows = np.array([record.row for record in records])
    samples: list[dict[str, Any]] = []
    with contextlib.suppress(ShoalError):
        samples = source.shard(shard).read_rows(rows, names)
    for at, record in enumerate(records):
        for member in _wanted(record, limits):
            if samples:
                found[at][member.field] = _value(member.field, samples[at][member.field])
            else:
                found[at][member.field] = _one(source, record, member, limits)


def _one(source: ShardSource, record: Record, member: Member, limits: dict[Kind, int]) -> Any:
    kind, shard = kind_of(member.field), source.shard(record.shard or 0)
    try:
        if _fits(member, limits):
            return _value(member.field, shard.read_rows(np.array([record.row]), [member.field])[0][member.field])
        return shard.read_part(record.row, member.field, 0, limits[kind]) if kind in _CUT else TOO_LARGE
    except ShoalError as error:
        return Failure(error)


def _value(field: str, data: Any) -> Any:
    try:
        return decoded(field, bytes(data))
    except ShoalError as error:
        return Failure(error)
    except RecursionError:
        return Failure(DecodeError("the value is nested too deep to be shown", field=field))
