"""Verify shards: find all that is wrong with them, not only the first thing.

A shard is read once, in order, in bounded memory. Damage does not stop the walk: it goes on at the next sound header.
What was found is then compared with the index, member by member and block by block.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

from shoal.errors import (
    ObjectNotFoundError,
    ShardIndexError,
    StoreError,
    TruncatedError,
)
from shoal.shard._folder import Manifest, ShardRecord, find_index
from shoal.shard._index import ShardIndex, load_index
from shoal.shard._many import Located, ShardRef, locate_shards, tars_below
from shoal.shard._tar import BLOCK, WEBDATASET_RULE, KeyRule, crc32
from shoal.store import ObjectReader, join_url, store_for

from ._compare import Members, Problem, compare, duplicates, indexed_members
from ._walk import NO_MEMBERS, VerifyOptions, problem_of, walk

__all__ = ["ShardReport", "verify_dataset", "verify_shard", "with_hashes"]

_PART = 1 << 20
_DEFAULTS = VerifyOptions()

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What was found in one shard."""

    url: str
    samples: int = 0
    members: int = 0
    bytes: int = 0
    problems: tuple[Problem, ...] = ()
    """All that is wrong."""
    notes: tuple[Problem, ...] = ()
    """What is worth knowing and no damage."""
    sha256: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_shard(url: str, index: ShardIndex | None = None, options: VerifyOptions = _DEFAULTS) -> ShardReport:
    """Read all of a shard and report what is wrong with it; compared with ``index`` where there is one.

    Without an index only the tar itself can be judged: its headers, its end, duplicate fields. With one, every member's
    name, size and checksum must be as indexed, and every byte between members too. Damage never raises.

    Example:
        >>> import shoal
        >>> from shoal.shard import verify_shard
        >>> with shoal.ShardWriter("memory://doc/verify/a-%06d.tar") as writer:
        ...     writer.write({"__key__": "0001", "txt": "hello"})
        >>> report = verify_shard(writer.urls[0])
        >>> report.ok, report.samples, report.members
        (True, 1, 1)
    """
    try:
        reader = store_for(url).open(url)
    except StoreError as error:
        return ShardReport(url, problems=(problem_of("shard", url, error),))
    with closing(reader):
        if reader.info.size == 0 and index is None:  # an empty archive, or far more often a failed download
            return ShardReport(url, problems=(problem_of("shard", url, TruncatedError("the file is empty")),))
        try:
            return _verify_open(url, reader, index, options)
        except StoreError as error:  # a bad sector, a lost connection: other shards are still worth looking at
            return ShardReport(url, bytes=reader.info.size, problems=(problem_of("shard", url, error),))


def _verify_open(url: str, reader: ObjectReader, index: ShardIndex | None, options: VerifyOptions) -> ShardReport:
    stale = _stale(url, reader, index)
    seen, blocks = walk(url, reader, index, options)
    found = seen.members()
    problems, notes = seen.problems, seen.notes(index)
    expected = Members((), (), NO_MEMBERS, checked=False) if index is None else indexed_members(index)
    differing, met = compare(url, expected, found, seen.gaps)
    if index is None or (stale and len(found) and not met):  # of another tar: only what this one itself says counts
        differing, _ = compare(url, found, found, seen.gaps)
    problems = [*stale, *problems, *differing, *duplicates(url, found)]
    problems += blocks.problems(url, problems) if met else []
    sha256 = _sha256(reader) if options.hashed else None
    return ShardReport(url, len(found.keys), len(found), reader.info.size, _in_order(problems), tuple(notes), sha256)


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda each: -1 if each.offset is None else each.offset))


def _stale(url: str, reader: ObjectReader, index: ShardIndex | None) -> list[Problem]:
    if index is None:
        return []
    head = reader.read(0, BLOCK)
    try:
        index.check_object(url, reader.info.size, head, crc32(head))
    except ShardIndexError as error:
        return [problem_of("index", url, error)]
    return []


def _sha256(reader: ObjectReader) -> str:
    digest = hashlib.sha256()
    for start in range(0, reader.info.size, _PART):
        digest.update(reader.read(start, start + _PART))
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------------------- the dataset


def verify_dataset(
    path: PathLike | Iterable[PathLike],
    *,
    split: str | None = None,
    options: VerifyOptions = _DEFAULTS,
    workers: int = 1,
) -> Iterator[ShardReport]:
    """Verify every shard that ``path`` names, one report each, in order; ``workers`` of them at a time.

    Shards of a manifest are compared with what it says of them; one that is missing is reported, and a tar that it does
    not list gets a report with a note. Raises what ``locate_shards`` raises when ``path`` names nothing.
    """
    located = locate_shards(path, split)
    manifest = located.manifest
    rule = manifest.rule if manifest is not None and options.rule == WEBDATASET_RULE else options.rule
    options = replace(options, rule=rule)
    records = _records(located)

    def verified(ref: ShardRef) -> ShardReport:
        return _verify_ref(ref, records.get(ref.url), options)

    if workers == 1:
        yield from map(verified, located.shards)
    else:
        with ThreadPoolExecutor(workers, "shoal-verify") as pool:
            yield from pool.map(verified, located.shards)
    if manifest is not None and located.root is not None and split is None:
        yield from _unlisted(located.root, {ref.url for ref in located.shards})


def _records(located: Located) -> dict[str, ShardRecord]:
    """What the manifest says of each shard, by the shard's URL."""
    if located.manifest is None or located.root is None:
        return {}
    return {join_url(located.root, record.path): record for record in located.manifest.shards}


def _verify_ref(ref: ShardRef, record: ShardRecord | None, options: VerifyOptions) -> ShardReport:
    index, problems = _index_of(ref, options.rule)
    report = verify_shard(ref.url, index, options)
    if record is not None and all(each.kind != "shard" for each in report.problems):
        problems += _against_manifest(report, record)
    return replace(report, problems=(*problems, *report.problems))


def _index_of(ref: ShardRef, rule: KeyRule) -> tuple[ShardIndex | None, list[Problem]]:
    try:
        if ref.sidecar is not None:
            return load_index(ref.sidecar, whole=True), []
        with closing(store_for(ref.url).open(ref.url)) as reader:
            return find_index(reader, rule, whole=True), []
    except ObjectNotFoundError:
        if ref.sidecar is None:  # there is no shard either, which is told of as such
            return None, []
        return None, [Problem("index", "the shard's index is missing", ref.url, expected=ref.sidecar)]
    except (ShardIndexError, StoreError) as error:
        return None, [problem_of("index", ref.url, error)]


def _against_manifest(report: ShardReport, record: ShardRecord) -> list[Problem]:
    said = (("samples", record.samples, report.samples), ("bytes", record.bytes, report.bytes))
    problems = [
        Problem("manifest", f"the manifest counts other {what}", report.url, str(expected), str(found))
        for what, expected, found in said
        if expected != found
    ]
    if record.sha256 and report.sha256 and record.sha256 != report.sha256:
        problem = "the shard is not the one that was hashed"
        problems.append(Problem("hash", problem, report.url, record.sha256, report.sha256))
    return problems


def _unlisted(root: str, listed: set[str]) -> Iterator[ShardReport]:
    try:
        found = tars_below(root)
    except StoreError:  # every shard is gone, which the reports before have told; or nobody can list them
        return
    for url in found:
        if url not in listed:
            note = Problem("note", "the manifest does not list this tar, so no reader sees it", url)
            yield ShardReport(url, bytes=store_for(url).info(url).size, notes=(note,))


def with_hashes(manifest: Manifest, hashes: Mapping[str, str]) -> Manifest:
    """The manifest with the sha256 of shards, by path, filled in."""
    splits = {
        name: tuple(replace(record, sha256=hashes.get(record.path, record.sha256)) for record in records)
        for name, records in manifest.splits.items()
    }
    return replace(manifest, splits=splits)
