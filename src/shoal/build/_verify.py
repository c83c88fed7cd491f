"""Verify a dataset: every shard by itself, all of them together, and what other readers would make of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from shoal.errors import OptionError, StoreError
from shoal.shard import WEBDATASET_RULE, Chunk, ShardReport, VerifyOptions, locate_existing, sniff, verify_dataset
from shoal.store import store_for

from ._across import across
from ._decode import every_decoder
from ._explain import error_of, note_of
from ._finding import Finding, by_severity
from ._lint import READERS, RULES
from ._profile import Profile, ShardProfile

__all__ = ["Verification", "verify"]

PathLike = str | os.PathLike[str]


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
