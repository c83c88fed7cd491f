"""`verify`: check each shard of a dataset, then all of them together."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import OptionError, StoreError
from shoal.shard._compression import sniff
from shoal.shard._discovery import SHARD_ENDINGS, ShardList, locate_existing
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule, split_name
from shoal.shard._split_names import split_of
from shoal.shard._tar_scan import Chunk
from shoal.shard._verify import ShardReport, VerifyOptions, verify_dataset
from shoal.store._registry import store_for
from shoal.store._url import base_name, relative_url

from ._findings import Finding, Verification, error_finding, every_decoder, note_finding, sort_by_severity
from ._lint import READERS, RULES, hf_name, lint_finding, name_violations

__all__ = ["verify"]

PathLike = str | os.PathLike[str]
_BLOCK = 512
_HF_FIRST_SAMPLES = 5
"""How many samples Hugging Face takes the columns from."""
_MIN_SUSPICIOUS_FIELDS = 50
_PREFERRED_TO_TAR = (".parquet", ".lance", ".arrow", ".jsonl", ".json", ".csv")
"""Where there are as many of these files as tars, Hugging Face reads these."""


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

    Raises ObjectNotFoundError when ``path`` names nothing that is there, OptionError for an unknown reader.

    Examples:
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
    profiles = _verify_shards(given, split, options, workers, on_shard)
    findings = [error_finding(each) for profile in profiles for each in profile.report.problems]
    findings += [
        finding
        for finding in check_across_shards(profiles, located)
        if finding.rule not in RULES or set(RULES[finding.rule].readers) & set(readers)
    ]
    findings += _merge_notes(note_finding(note) for profile in profiles for note in profile.report.notes)
    paths = ", ".join(os.fspath(each) for each in given)
    reports = tuple(profile.report for profile in profiles)
    return Verification(paths, reports, sort_by_severity(findings), _count_fields(profiles))


def _verify_shards(
    given: list[PathLike],
    split: str | None,
    options: VerifyOptions,
    workers: int | None,
    on_shard: Callable[[ShardReport], None] | None,
) -> list[ShardProfile]:
    """Verify every shard, and profile it on the way."""
    watched: dict[str, ProfileBuilder] = {}

    def watch(url: str) -> Callable[[Chunk], None]:
        watched[url] = ProfileBuilder(options.rule)
        return watched[url].add

    profiles = []
    path = given[0] if len(given) == 1 else given
    count = workers or min(8, os.cpu_count() or 1)
    for report in verify_dataset(path, split=split, options=replace(options, watch=watch), workers=count):
        profile = watched.pop(report.url, None)
        if profile is None:  # not there, or not listed
            profiles.append(ShardProfile(report, pa.array([], pa.string()), {}, {}))
        else:
            profiles.append(profile.finish(report, _compression_of(report.url)))
        if on_shard is not None:
            on_shard(report)
    return profiles


def _compression_of(url: str) -> str | None:
    try:
        with closing(store_for(url).open(url)) as reader:
            return sniff(reader.read(0, 512))
    except StoreError:
        return None


def _merge_notes(notes: Iterable[Finding]) -> list[Finding]:
    """Return each note once, with the first shard that it is about and how many there are."""
    merged: dict[str, Finding] = {}
    for note in notes:
        before = merged.get(note.what)
        merged[note.what] = note if before is None else replace(before, count=before.count + 1)
    return list(merged.values())


def _count_fields(profiles: Sequence[ShardProfile]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for profile in profiles:
        for fields, occurrences in profile.field_sets.items():
            totals.update(dict.fromkeys(set(fields), occurrences.count))
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def check_across_shards(profiles: Sequence[ShardProfile], located: ShardList) -> Iterator[Finding]:
    """Yield what is wrong with a dataset and cannot be seen in one shard alone."""
    yield from _shared_keys(profiles, located)
    yield from _divided_samples(profiles)
    yield from _mixed_fields(profiles)
    yield from _hf_columns(profiles)
    yield from _rule_violations(profiles)
    yield from _neighbour_files(located)


def _shared_keys(profiles: Sequence[ShardProfile], located: ShardList) -> Iterator[Finding]:
    """Keys in more than one shard. They are compared by hash first: eight bytes each, however many there are."""
    hashes = [np.unique(np.fromiter(map(hash, profile.keys.to_pylist()), np.int64)) for profile in profiles]
    values, counts = np.unique(np.concatenate([np.empty(0, np.int64), *hashes]), return_counts=True)
    doubled = values[counts > 1]
    if not len(doubled):
        return
    shards_of_key: dict[str, list[int]] = {}
    for number, profile in enumerate(profiles):
        if np.isin(hashes[number], doubled).any():
            for key in set(profile.keys.to_pylist()):
                if _contains(hash(key), doubled):
                    shards_of_key.setdefault(key, []).append(number)
    splits = _splits(profiles, located)
    inside, between = {}, {}
    for key, numbers in shards_of_key.items():
        if len({splits[number] for number in numbers}) < len(numbers):
            inside[key] = numbers
        elif len(numbers) > 1:
            between[key] = numbers
    for rule, again in (("key-twice", inside), ("key-in-splits", between)):
        if again:
            yield _shared_key_finding(rule, again, profiles)


def _shared_key_finding(rule: str, again: dict[str, list[int]], profiles: Sequence[ShardProfile]) -> Finding:
    key = min(again, key=lambda each: (again[each], each))
    first, second = (base_name(profiles[number].report.url) for number in again[key][:2])
    shard = profiles[again[key][1]].report.url
    return lint_finding(rule, shard, key, found=f"in {first} and in {second}", count=len(again))


def _splits(profiles: Sequence[ShardProfile], located: ShardList) -> list[str]:
    """The split of each shard."""
    urls = [profile.report.url for profile in profiles]
    known = {url: split for split, listed in located.urls_by_split().items() for url in listed}
    return [known[url] for url in urls]


def _contains(value: int, among: npt.NDArray[np.int64]) -> bool:
    at = int(np.searchsorted(among, value))
    return at < len(among) and int(among[at]) == value


def _divided_samples(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    for before, after in itertools.pairwise(profiles):
        if len(before.keys) and len(after.keys) and before.keys[-1].as_py() == after.keys[0].as_py():
            yield lint_finding("split-sample", after.report.url, after.keys[0].as_py())


def _mixed_fields(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """Samples that have other fields than most."""
    totals: Counter[tuple[str, ...]] = Counter()
    for profile in profiles:
        totals.update({fields: occurrences.count for fields, occurrences in profile.field_sets.items()})
    names = {name for fields in totals for name in fields}
    samples = sum(totals.values())
    if len(names) > max(_MIN_SUSPICIOUS_FIELDS, samples // 2):
        yield lint_finding("fields-like-keys", found=f"{len(names)} fields in {samples} samples")
    if len(totals) < 2:
        return
    usual, _ = totals.most_common(1)[0]
    shard, fields = next((shard, other) for shard in profiles for other in shard.field_sets if other != usual)
    finding = lint_finding("mixed-fields", shard.report.url, shard.field_sets[fields].first)
    count = samples - totals[usual]
    yield replace(finding, expected=", ".join(usual), found=", ".join(fields), count=count)


def _hf_columns(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """Check the first samples of each split's first shard, from which Hugging Face takes the columns."""
    first = [profile for number, profile in enumerate(profiles) if number == 0 or _starts_split(profiles, number)]
    for profile in first:
        if len(set(profile.hf_first)) > 1:
            yield lint_finding("hf-first-samples", profile.report.url, found=_format_field_sets(profile.hf_first))
            return
    known = {name.lower() for profile in first for fields in profile.hf_first for name in fields}
    for profile in profiles:
        for fields, occurrences in profile.field_sets.items():
            late = [name for name in fields if name.lower() not in known]
            if late and profile.hf_first:
                finding = lint_finding("hf-late-field", profile.report.url, occurrences.first)
                yield replace(finding, field=late[0])
                return


def _starts_split(profiles: Sequence[ShardProfile], number: int) -> bool:
    before, here = (split_of(base_name(profiles[at].report.url)) for at in (number - 1, number))
    return before != here


def _format_field_sets(sets: Sequence[tuple[str, ...]]) -> str:
    return " and ".join(dict.fromkeys(", ".join(fields) for fields in sets))


def _rule_violations(profiles: Sequence[ShardProfile]) -> Iterator[Finding]:
    """Yield each rule that shards violate, once, with its first place."""
    totals: Counter[str] = Counter()
    first: dict[str, tuple[ShardProfile, str]] = {}
    for profile in profiles:
        for rule, violation in profile.violations.items():
            totals[rule] += violation.count
            first.setdefault(rule, (profile, violation.first))
    for rule, count in totals.items():
        profile, name = first[rule]
        found = None if name == profile.report.url else name
        yield lint_finding(rule, profile.report.url, found=found, count=count)


def _neighbour_files(located: ShardList) -> Iterator[Finding]:
    """Yield files next to the tars that make Hugging Face take the folder for another format."""
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
    more = [kind for kind in _PREFERRED_TO_TAR if kinds[kind] >= tars]
    if near:
        yield lint_finding("hf-neighbours", found=near[0], count=len(near))
    if more:
        yield lint_finding("hf-neighbours", found=f"{kinds[more[0]]} {more[0]} files beside {tars} tars")


@dataclass(frozen=True, slots=True)
class Occurrences:
    """How often a rule is violated or a set of fields occurs, and where first."""

    count: int
    first: str


@dataclass(frozen=True, slots=True)
class ShardProfile:
    """Keys, fields and violated rules of one shard, gathered while it was verified."""

    report: ShardReport
    keys: pa.StringArray
    field_sets: dict[tuple[str, ...], Occurrences]
    """The sets of fields that samples have, each with its count and the key of the first such sample."""
    violations: dict[str, Occurrences]
    hf_first: tuple[tuple[str, ...], ...] = ()
    """The fields of the first samples, as Hugging Face names them."""
    compression: str | None = None


@dataclass(slots=True)
class ProfileBuilder:
    """Builds the profile of a shard from its members as they are read."""

    rule: KeyRule
    keys: list[str] = field(default_factory=list)
    _sets: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _first_of: dict[tuple[str, ...], str] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _violations: Counter[str] = field(default_factory=Counter)
    _first_violation: dict[str, str] = field(default_factory=dict)
    _hf: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Add the next members."""
        for rule, name in name_violations(chunk.names):
            self._violated(rule, name)
        extended = np.flatnonzero(chunk.offsets - chunk.starts > _BLOCK)
        if len(extended):
            self._violated("extended-header", chunk.names[int(extended[0])], len(extended))
        self._add_hf_names(chunk.names)
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

    def _violated(self, rule: str, first: str, count: int = 1) -> None:
        self._violations[rule] += count
        self._first_violation.setdefault(rule, first)

    def _add_hf_names(self, names: list[str]) -> None:
        for name in names:
            if len(self._hf) > _HF_FIRST_SAMPLES:
                return
            pair = hf_name(name)
            if pair is None:
                continue
            if not self._hf or self._hf[-1][0] != pair[0]:
                self._hf.append((pair[0], []))
            self._hf[-1][1].append(pair[1])

    def finish(self, report: ShardReport, compression: str | None) -> ShardProfile:
        """Return the profile, after the last member."""
        self._close()
        if self.rule.group == "neighbours":
            self._check_returning_keys()
        if not self.keys and not report.problems:
            self._violated("empty-shard", report.url)
        if compression is not None:
            self._violated("zstd" if compression == "zstd" else "compressed", report.url)
        sets = {fields: Occurrences(count, self._first_of[fields]) for fields, count in self._sets.items()}
        violations = {rule: Occurrences(count, self._first_violation[rule]) for rule, count in self._violations.items()}
        first = tuple(tuple(sorted(fields)) for _, fields in self._hf[:_HF_FIRST_SAMPLES])
        return ShardProfile(report, pa.array(self.keys, pa.string()), sets, violations, first, compression)

    def _check_returning_keys(self) -> None:
        often = Counter(self.keys)
        if len(often) < len(self.keys):
            again = next(key for key, count in often.items() if count > 1)
            self._violated("key-comes-back", again, len(self.keys) - len(often))
