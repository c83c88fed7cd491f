"""Verify a dataset: each shard by itself, and all shards together."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import OptionError, StoreError
from shoal.shard import (
    SHARD_ENDINGS,
    WEBDATASET_RULE,
    Chunk,
    KeyRule,
    ShardList,
    ShardReport,
    VerifyOptions,
    locate_existing,
    shards_by_split,
    sniff,
    split_name,
    split_of,
    verify_dataset,
)
from shoal.store import base_name, join_url, relative_url, store_for

from ._findings import Finding, by_severity, error_of, every_decoder, note_of
from ._lint import READERS, RULES, hf_name, lint_finding, name_breaches

__all__ = ["Verification", "verify"]

PathLike = str | os.PathLike[str]


# ----------------------------------------------------------------------------------------------------- verify a dataset


@dataclass(frozen=True, slots=True)
class Verification:
    """All that verify found."""

    path: str
    shards: tuple[ShardReport, ...]
    findings: tuple[Finding, ...]
    """The worst first."""
    fields: dict[str, int]
    """Each field and how many samples have it."""

    @property
    def ok(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return not self.count("error")

    @property
    def samples(self) -> int:
        """How many samples were found."""
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """How many bytes the shards have."""
        return sum(shard.bytes for shard in self.shards)

    def count(self, severity: str) -> int:
        """How many findings of this severity there are."""
        return sum(finding.severity == severity for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can say it."""
        shards = [{"ok": shard.ok, **asdict(shard)} for shard in self.shards]
        totals = {"ok": self.ok, "path": self.path, "samples": self.samples, "bytes": self.bytes, "fields": self.fields}
        return {**totals, "findings": [asdict(finding) for finding in self.findings], "shards": shards}


def verify(
    path: PathLike | Iterable[PathLike],
    *,
    split: str | None = None,
    hashed: bool = False,
    decode: bool = False,
    readers: Sequence[str] = READERS,
    workers: int | None = None,
    on_shard: Callable[[ShardReport], None] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Verification:
    """Read every byte of a dataset and find all that is wrong with it.

    Each shard: its headers, its members against the index (name, size, crc32), its counts and sizes against the
    manifest. All of them: keys that are there twice, samples with other fields, files that nobody lists. And what
    webdataset, Hugging Face ``datasets`` and DALI would make of it. Damage never raises.

    Args:
        path: What ``Dataset`` takes: a folder, a tar, a pattern, several of them.
        split: Only this split.
        hashed: Also compare each shard's sha256 with the manifest's.
        decode: Also decode every field, pictures too where they can be.
        readers: Which of `READERS` are asked about; empty for none.
        workers: How many shards at a time; by default one for each processor, at most eight.
        on_shard: Called with each shard's report, in order.
        on_bytes: Called with how many bytes were read, again and again.

    Raises ObjectNotFoundError when ``path`` names nothing that is there, OptionError for a reader that nobody knows.

    Example:
        >>> import shoal
        >>> from shoal.build import verify
        >>> with shoal.ShardWriter("memory://doc/care/a-%06d.tar") as writer:
        ...     writer.write({"__key__": "0001", "jpg": b"...", "cls": 3})
        ...     writer.write({"__key__": "0002", "jpg": b"..."})
        >>> found = verify("memory://doc/care")
        >>> found.ok, found.samples, found.fields
        (True, 2, {'jpg': 2, 'cls': 1})
        >>> [(each.severity, each.rule) for each in found.findings]
        [('warning', 'mixed-fields'), ('warning', 'hf-first-samples')]
    """
    unknown = [reader for reader in readers if reader not in READERS]
    if unknown:
        raise OptionError("no such reader", expected=" or ".join(READERS), found=unknown[0])
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    located = locate_existing(path if isinstance(path, (str, os.PathLike)) else given, split)
    decoders = every_decoder() if decode else None
    rule = WEBDATASET_RULE if located.manifest is None else located.manifest.rule
    options = VerifyOptions(rule, hashed=hashed, decoders=decoders, on_bytes=on_bytes)
    profiles = _profiles(given, split, options, workers, on_shard)
    findings = [error_of(each) for profile in profiles for each in profile.report.problems]
    findings += [
        finding
        for finding in across(profiles, located)
        if finding.rule not in RULES or set(RULES[finding.rule].readers) & set(readers)
    ]
    findings += _merged(note_of(note) for profile in profiles for note in profile.report.notes)
    told = ", ".join(os.fspath(each) for each in given)
    reports = tuple(profile.report for profile in profiles)
    return Verification(told, reports, by_severity(findings), _fields(profiles))


def _profiles(
    given: list[PathLike],
    split: str | None,
    options: VerifyOptions,
    workers: int | None,
    on_shard: Callable[[ShardReport], None] | None,
) -> list[ShardProfile]:
    """Verify every shard, watching what goes by."""
    watched: dict[str, Profile] = {}

    def watch(url: str) -> Callable[[Chunk], None]:
        watched[url] = Profile(options.rule)
        return watched[url].add

    profiles = []
    path = given[0] if len(given) == 1 else given
    count = workers or min(8, os.cpu_count() or 1)
    for report in verify_dataset(path, split=split, options=replace(options, watch=watch), workers=count):
        profile = watched.pop(report.url, None)
        if profile is None:  # not there, or not listed
            profiles.append(ShardProfile(report, pa.array([], pa.string()), {}, {}))
        else:
            profiles.append(profile.finish(report, _compression(report.url)))
        if on_shard is not None:
            on_shard(report)
    return profiles


def _compression(url: str) -> str | None:
    try:
        with closing(store_for(url).open(url)) as reader:
            return sniff(reader.read(0, 512))
    except StoreError:
        return None


def _merged(notes: Iterable[Finding]) -> list[Finding]:
    """The same note of many shards once, with its first place."""
    merged: dict[str, Finding] = {}
    for note in notes:
        before = merged.get(note.what)
        merged[note.what] = note if before is None else replace(before, count=before.count + 1)
    return list(merged.values())


def _fields(profiles: Sequence[ShardProfile]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for profile in profiles:
        for fields, breach in profile.field_sets.items():
            totals.update(dict.fromkeys(set(fields), breach.count))
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


# ----------------------------------------------------------- what is wrong with a dataset that no shard shows by itself


_MANY_FIELDS = 50
_OUTWEIGH_TAR = (".parquet", ".lance", ".arrow", ".jsonl", ".json", ".csv")
"""Of as many files of one kind as there are tars, Hugging Face takes these rather."""


def across(profiles: Sequence[ShardProfile], located: ShardList) -> Iterator[Finding]:
    """Look at all shards together."""
    yield from _same_keys(profiles, located)
    yield from _split_samples(profiles)
    yield from _differing_fields(profiles)
    yield from _first_samples(profiles)
    yield from _breaches(profiles)
    yield from _neighbours(located)


def _same_keys(profiles: Sequence[ShardProfile], located: ShardList) -> Iterator[Finding]:
    """Keys in more than one shard. They are compared by hash first: eight bytes each, however many there are."""
    hashes = [np.unique(np.fromiter(map(hash, profile.keys.to_pylist()), np.int64)) for profile in profiles]
    values, counts = np.unique(np.concatenate([np.empty(0, np.int64), *hashes]), return_counts=True)
    doubled = values[counts > 1]
    if not len(doubled):
        return
    homes: dict[str, list[int]] = {}
    for number, profile in enumerate(profiles):
        if np.isin(hashes[number], doubled).any():
            for key in set(profile.keys.to_pylist()):
                if _is_among(hash(key), doubled):
                    homes.setdefault(key, []).append(number)
    splits = _splits(profiles, located)
    inside, between = {}, {}
    for key, numbers in homes.items():
        if len({splits[number] for number in numbers}) < len(numbers):
            inside[key] = numbers
        elif len(numbers) > 1:
            between[key] = numbers
    for rule, again in (("key-twice", inside), ("key-in-splits", between)):
        if again:
            yield _doubled(rule, again, profiles)


def _doubled(rule: str, again: dict[str, list[int]], profiles: Sequence[ShardProfile]) -> Finding:
    key = min(again, key=lambda each: (again[each], each))
    first, second = (base_name(profiles[number].report.url) for number in again[key][:2])
    shard = profiles[again[key][1]].report.url
    return lint_finding(rule, shard, key, found=f"in {first} and in {second}", count=len(again))


def _splits(profiles: Sequence[ShardProfile], located: ShardList) -> list[str]:
    """The split of each shard: the manifest's, or what its name says."""
    urls = [profile.report.url for profile in profiles]
    known = {url: split for split, those in shards_by_split(urls, located.root).items() for url in those}
    if located.manifest is not None and located.root is not None:
        for split, records in located.manifest.splits.items():
            known |= {join_url(located.root, record.path): split for record in records}
    return [known[url] for url in urls]


def _is_among(value: int, among: npt.NDArray[np.int64]) -> bool:
    at = int(np.searchsorted(among, value))
    return at < len(among) and int(among[at]) == value


def _split_samples(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    for before, after in itertools.pairwise(profiles):
        if len(before.keys) and len(after.keys) and before.keys[-1].as_py() == after.keys[0].as_py():
            yield lint_finding("split-sample", after.report.url, after.keys[0].as_py())


def _differing_fields(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """Samples that have other fields than most."""
    totals: Counter[tuple[str, ...]] = Counter()
    for profile in profiles:
        totals.update({fields: breach.count for fields, breach in profile.field_sets.items()})
    names = {name for fields in totals for name in fields}
    samples = sum(totals.values())
    if len(names) > max(_MANY_FIELDS, samples // 2):
        yield lint_finding("fields-like-keys", found=f"{len(names)} fields in {samples} samples")
    if len(totals) < 2:
        return
    usual, _ = totals.most_common(1)[0]
    shard, fields = next((shard, other) for shard in profiles for other in shard.field_sets if other != usual)
    finding = lint_finding("mixed-fields", shard.report.url, shard.field_sets[fields].first)
    count = samples - totals[usual]
    yield replace(finding, expected=", ".join(usual), found=", ".join(fields), count=count)


def _first_samples(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """Hugging Face learns the columns from the first samples it meets: of each split's first shard, then."""
    first = [profile for number, profile in enumerate(profiles) if number == 0 or _is_other_split(profiles, number)]
    for profile in first:
        if len(set(profile.hf_first)) > 1:
            yield lint_finding("hf-first-samples", profile.report.url, found=_listed(profile.hf_first))
            return
    known = {name.lower() for profile in first for fields in profile.hf_first for name in fields}
    for profile in profiles:
        for fields, breach in profile.field_sets.items():
            late = [name for name in fields if name.lower() not in known]
            if late and profile.hf_first:
                finding = lint_finding("hf-late-field", profile.report.url, breach.first)
                yield replace(finding, field=late[0])
                return


def _is_other_split(profiles: Sequence[ShardProfile], number: int) -> bool:
    before, here = (split_of(base_name(profiles[at].report.url)) for at in (number - 1, number))
    return before != here


def _listed(sets: Sequence[tuple[str, ...]]) -> str:
    return " and ".join(dict.fromkeys(", ".join(fields) for fields in sets))


def _breaches(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """The rules that shards break by themselves: each told once, where it is broken first."""
    totals: Counter[str] = Counter()
    first: dict[str, tuple[ShardProfile, str]] = {}
    for profile in profiles:
        for rule, breach in profile.breaches.items():
            totals[rule] += breach.count
            first.setdefault(rule, (profile, breach.first))
    for rule, count in totals.items():
        profile, name = first[rule]
        found = None if name == profile.report.url else name
        yield lint_finding(rule, profile.report.url, found=found, count=count)


def _neighbours(located: ShardList) -> Iterator[Finding]:
    """Files beside the tars that make Hugging Face take the folder for something else."""
    if located.root is None:
        return
    try:
        paths = [relative_url(info.url, located.root) for info in store_for(located.root).list(located.root)]
    except StoreError:
        return
    seen = [path for path in paths if not any(part.startswith((".", "__")) for part in path.split("/"))]
    near = [path for path in seen if ".tar." in path and not path.endswith(SHARD_ENDINGS)]
    kinds = Counter("." + base_name(path).rpartition(".")[2].lower() for path in seen if "." in base_name(path))
    tars = sum(path.lower().endswith(SHARD_ENDINGS) for path in seen)
    more = [kind for kind in _OUTWEIGH_TAR if kinds[kind] >= tars]
    if near:
        yield lint_finding("hf-neighbours", found=near[0], count=len(near))
    if more:
        yield lint_finding("hf-neighbours", found=f"{kinds[more[0]]} {more[0]} files beside {tars} tars")


# ------------------------------------------------------------------ what one shard shows of itself while it is verified


_BLOCK = 512
_FIRST = 5  # samples that Hugging Face looks at


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """How often a rule is broken, and where first."""

    count: int
    first: str


@dataclass(frozen=True, slots=True)
class ShardProfile:
    """What is known of one shard when all of it was read."""

    report: ShardReport
    keys: pa.StringArray
    field_sets: dict[tuple[str, ...], RuleViolation]
    """Which fields samples have together: how often, and the key of the first that does."""
    breaches: dict[str, RuleViolation]
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
        sets = {fields: RuleViolation(count, self._first_of[fields]) for fields, count in self._sets.items()}
        breaches = {rule: RuleViolation(count, self._first_breach[rule]) for rule, count in self._breaches.items()}
        first = tuple(tuple(sorted(fields)) for _, fields in self._hf[:_FIRST])
        return ShardProfile(report, pa.array(self.keys, pa.string()), sets, breaches, first, compression)

    def _look_for_returns(self) -> None:
        often = Counter(self.keys)
        if len(often) < len(self.keys):
            again = next(key for key, count in often.items() if count > 1)
            self._broken("key-comes-back", again, len(self.keys) - len(often))
