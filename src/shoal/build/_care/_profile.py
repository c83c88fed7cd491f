"""What one shard shows of itself while it is verified: its keys, its fields, and what other readers trip over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from shoal.shard import Chunk, KeyRule, ShardReport, split_name

from ._lint import hf_name, name_breaches

__all__ = ["Breach", "Profile", "ShardProfile"]

_BLOCK = 512
_FIRST = 5  # samples that Hugging Face looks at


@dataclass(frozen=True, slots=True)
class Breach:
    """How often a rule is broken, and where first."""

    count: int
    first: str


@dataclass(frozen=True, slots=True)
class ShardProfile:
    """What is known of one shard when all of it was read."""

    report: ShardReport
    keys: pa.StringArray
    field_sets: dict[tuple[str, ...], Breach]
    """Which fields samples have together: how often, and the key of the first that does."""
    breaches: dict[str, Breach]
    hf_first: tuple[tuple[str, ...], ...] = ()
    """The fields of the first samples, as Hugging Face names them."""
    compression: str | None = None


@dataclass(slots=True)
class Profile:
    """Gathers a shard's profile from the members as they go by."""

    rule: KeyRule
    keys: list[str] = field(default_factory=list)
    _sets: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _first_of: dict[tuple[str, ...], str] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _breaches: Counter[str] = field(default_factory=Counter)
    _first_breach: dict[str, str] = field(default_factory=dict)
    _hf: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Take the next members."""
        for rule, name in name_breaches(chunk.names):
            self._broken(rule, name)
        extended = np.flatnonzero(chunk.offsets - chunk.starts > _BLOCK)
        if len(extended):
            self._broken("extended-header", chunk.names[int(extended[0])], len(extended))
        self._look_as_hf(chunk.names)
        for name in chunk.names:
            pair = split_name(name, self.rule)
            if pair is not None:
                self._member(*pair)

    def _member(self, key: str, name: str) -> None:
        if not self.keys or self.keys[-1] != key:
            self._close()
            self.keys.append(key)
        self._open.append(name)

    def _close(self) -> None:
        if self._open:
            fields = tuple(sorted(self._open))
            self._sets[fields] += 1
            self._first_of.setdefault(fields, self.keys[-1])
            self._open = []

    def _broken(self, rule: str, first: str, count: int = 1) -> None:
        self._breaches[rule] += count
        self._first_breach.setdefault(rule, first)

    def _look_as_hf(self, names: list[str]) -> None:
        for name in names:
            if len(self._hf) > _FIRST:
                return
            pair = hf_name(name)
            if pair is None:
                continue
            if not self._hf or self._hf[-1][0] != pair[0]:
                self._hf.append((pair[0], []))
            self._hf[-1][1].append(pair[1])

    def finish(self, report: ShardReport, compression: str | None) -> ShardProfile:
        """All of the shard was read."""
        self._close()
        if self.rule.group == "neighbours":
            self._look_for_returns()
        if not self.keys and not report.problems:
            self._broken("empty-shard", report.url)
        if compression is not None:
            self._broken("zstd" if compression == "zstd" else "compressed", report.url)
        sets = {fields: Breach(count, self._first_of[fields]) for fields, count in self._sets.items()}
        breaches = {rule: Breach(count, self._first_breach[rule]) for rule, count in self._breaches.items()}
        first = tuple(tuple(sorted(fields)) for _, fields in self._hf[:_FIRST])
        return ShardProfile(report, pa.array(self.keys, pa.string()), sets, breaches, first, compression)

    def _look_for_returns(self) -> None:
        often = Counter(self.keys)
        if len(often) < len(self.keys):
            again = next(key for key, count in often.items() if count > 1)
            self._broken("key-comes-back", again, len(self.keys) - len(often))
