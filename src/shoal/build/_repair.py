"""Plan the repair of each shard, which is all that a dry run does, and carry it out."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import IO, Any, Literal, cast

from shoal.errors import (
    ChecksumError,
    CodecError,
    MissingExtraError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    ShardIndexError,
    ShoalError,
    StoreError,
    TruncatedError,
    WriteError,
)
from shoal.shard import (
    WEBDATASET_RULE,
    Decoders,
    KeyRule,
    Manifest,
    Problem,
    ShardIndex,
    ShardList,
    ShardRecord,
    ShardReport,
    ShardWriter,
    VerifyOptions,
    commit_staged,
    find_index,
    index_shard,
    index_url,
    load_index,
    locate_existing,
    manifest_url,
    members_of,
    record_of,
    save_index,
    save_manifest,
    split_name,
    staging_url,
    verify_shard,
)
from shoal.store import (
    ObjectReader,
    ObjectWriter,
    base_name,
    copy,
    delete,
    exists,
    join_url,
    parent_url,
    relative_url,
    scheme_of,
    store_for,
)

from ._findings import Action, LostSample, Repair, ShardRepair, every_decoder
from ._salvage import (
    Piece,
    Salvage,
    SavedSample,
    TarReader,
    Unpacked,
    first_chain,
    has_checksums,
    salvage_by_checksums,
    salvage_by_structure,
    unpacked,
)

__all__ = ["repair"]

PathLike = str | os.PathLike[str]
Trust = Literal["auto", "index", "tar"]
"""Whom to believe where a tar that is sound in itself and its index say different things."""


# ----------------------------------------------------------------------------------------------------- Repair a dataset


_PART = 8 << 20
_SIDE = ".shoal"
_READ_ONLY = ("http", "https", "hf")


def repair(
    path: PathLike | Iterable[PathLike],
    *,
    output: PathLike | None = None,
    dry_run: bool = False,
    split: str | None = None,
    trust: Trust = "auto",
    decode: bool = False,
    drop_missing: bool = False,
    workers: int | None = None,
    on_shard: Callable[[ShardRepair], None] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Repair:
    """Save what is whole of a damaged dataset, and keep the rest.

    Sound shards are not touched. A sound tar whose index is missing or stale is indexed again. Of a damaged one every
    sample that is whole is written into a new shard of the same name; the shard as it was goes to
    ``.shoal/quarantine``, and nothing is ever deleted that is not there first. A dataset with a manifest changes over
    in one step. To repair what is repaired changes nothing.

    With an index every saved byte is checked against its crc32. Without one a tar does not say whether its data is
    right, only whether its headers are: the samples next to damage are left out, and ``decode=True`` also leaves out
    those that do not decode.

    Args:
        path: What ``Dataset`` takes: a folder, a tar, a pattern, several of them.
        output: Write the repaired dataset there, and touch nothing at ``path``.
        dry_run: Say what would be done, and write nothing.
        split: Only this split.
        trust: Whom to believe where a tar is in order and its index says otherwise: ``"tar"`` indexes it again,
            ``"index"`` keeps what the index knows, ``"auto"`` finds out which of them is the other's successor.
        decode: Also leave out samples that do not decode, in shards without checksums.
        drop_missing: Take shards that are not there off the manifest; else they are only told of.
        workers: How many shards at a time; by default one for each processor, at most eight.
        on_shard: Called with each shard's outcome.
        on_bytes: Called with how many bytes were read, again and again.

    Raises ObjectNotFoundError when ``path`` names nothing that is there, ObjectExistsError when ``output`` is in use.

    Example:
        >>> import shoal
        >>> from shoal.build import repair
        >>> with shoal.ShardWriter("sick/a-%06d.tar") as writer:
        ...     for number in range(3):
        ...         writer.write({"__key__": f"k{number}", "txt": "x" * 600})
        >>> with open("sick/a-000000.tar", "r+b") as file:
        ...     _ = file.seek(2100), file.write(b"damage")
        >>> done = repair("sick")
        >>> done.saved, done.lost, [lost.key for lost in done.shards[0].lost]
        (2, 1, ['k1'])
        >>> [sample["__key__"] for sample in shoal.Dataset("sick")]
        ['k0', 'k2']
    """
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    located = locate_existing(path if isinstance(path, (str, os.PathLike)) else given, split)
    place = _place(located, output)
    if place.in_place and not dry_run and scheme_of(place.root) in _READ_ONLY:
        raise OptionError(
            "what lies there can only be read",
            found=place.root,
            hint="name a folder for the repaired dataset (output=, --output), or see what would be done (--dry-run)",
        )
    options = RepairOptions(trust, every_decoder() if decode else None, on_bytes)
    work = partial(_look, options=options) if dry_run else partial(_mend, options=options, place=place)
    done: list[_Done] = []
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1), "shoal-repair") as pool:
        for each in pool.map(work, _tasks(located, place.root)):
            done.append(each)
            if on_shard is not None:
                on_shard(each.repair)
    if not dry_run:
        _change_over(done, place, drop_missing=drop_missing)
    told = ", ".join(os.fspath(each) for each in given)
    return Repair(told, place.target if output is not None else told, dry_run, tuple(each.repair for each in done))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the dataset is, and where the repaired one will be."""

    root: str
    target: str
    manifest: Manifest | None

    @property
    def in_place(self) -> bool:
        return self.root == self.target


@dataclass(frozen=True, slots=True)
class _Done:
    """A shard that was dealt with, but for the last step."""

    task: ShardTask
    repair: ShardRepair
    index: ShardIndex | None = None
    staged: str | None = None
    """Where its new tar waits, with its index beside it."""
    sha256: str | None = None


def _place(located: ShardList, output: PathLike | None) -> _Place:
    root = located.root if located.root is not None else _shared_folder([ref.url for ref in located.shards])
    if output is None:
        return _Place(root, root, located.manifest)
    target = os.fspath(output).rstrip("/")
    if target == root.rstrip("/"):
        raise OptionError(
            "output is the dataset itself",
            found=target,
            hint="leave output out: what is replaced is kept in quarantine",
        )
    if exists(target) and (not store_for(target).is_folder(target) or any(store_for(target).list(target))):
        raise ObjectExistsError("something is there already", found=target, hint="name a folder that is not in use")
    return _Place(root, target, located.manifest)


def _shared_folder(urls: list[str]) -> str:
    """The folder that holds all of them."""
    if len(urls) == 1:
        return parent_url(urls[0])
    levels = zip(*(parent_url(url).split("/") for url in urls), strict=False)
    return "/".join(level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels)) or "."


def _tasks(located: ShardList, root: str) -> Iterator[ShardTask]:
    records = {} if located.manifest is None else {record.path: record for record in located.manifest.shards}
    for ref in located.shards:
        path = relative_url(ref.url, root)
        rule = ref.rule if located.manifest is None else located.manifest.rule
        yield ShardTask(ref.url, path, rule, records.get(path), ref.sidecar)


def _look(task: ShardTask, options: RepairOptions) -> _Done:
    found = judge(task, options)
    return _Done(task, _told(task, found), found.index)


def _told(task: ShardTask, found: RepairPlan, quarantine: str | None = None) -> ShardRepair:
    salvage, record = found.salvage, task.record
    lost = () if salvage is None else salvage.lost
    expected = 0 if record is None else record.samples
    return ShardRepair(
        task.url,
        found.action,
        found.samples,
        lost,
        max(0, expected - found.samples - len(lost)),
        None if salvage is None else salvage.proof,
        0 if salvage is None else salvage.moved,
        quarantine,
        found.reasons,
    )


# ------------------------------------------------------------------------------------------------------ before the step


def _mend(task: ShardTask, options: RepairOptions, place: _Place) -> _Done:
    """Do all that can be done without touching the dataset."""
    found = judge(task, options)
    if found.action in ("sound", "missing"):
        return _Done(task, _told(task, found), found.index)
    if found.action == "recorded":
        return _Done(task, _told(task, found), found.index, sha256=_new_hash(task, task.url))
    if found.action == "reindexed":
        kept = _keep_index(task, place) if place.in_place else None
        return _Done(task, _told(task, found, kept), found.index, sha256=_new_hash(task, task.url))
    kept = _keep(task, place, found) if place.in_place else None
    staged, index = _rewritten(task, found, place) if found.action == "rewritten" else (None, None)
    sha256 = None if staged is None else _new_hash(task, staged)
    return _Done(task, _told(task, found, kept), index, staged, sha256)


def _new_hash(task: ShardTask, url: str) -> str | None:
    """The shard's sha256, where the manifest had one."""
    return None if task.record is None or task.record.sha256 is None else _sha256(url)


def _work_folder(place: _Place) -> str:
    return join_url(place.target, _SIDE, "repair")


def _rewritten(task: ShardTask, found: RepairPlan, place: _Place) -> tuple[str, ShardIndex]:
    """Write the new shard where nobody looks for it yet."""
    url = join_url(_work_folder(place), hashlib.sha256(task.path.encode()).hexdigest()[:16], "shard.tar")
    metadata = None if place.manifest is None else place.manifest.metadata
    assert found.salvage is not None  # noqa: S101 - so it was judged
    with closing(store_for(task.url).open(task.url)) as reader, unpacked(reader, found.index) as tar:
        return url, rewrite(
            url,
            found.salvage.saved,
            tar.tar,
            rule=task.rule,
            compression=found.compression,
            metadata=metadata,
        )


def _keep(task: ShardTask, place: _Place, found: RepairPlan) -> str:
    """Copy the shard as it is, with its index and what was said of it, to quarantine; returns where it is."""
    digest = _sha256(task.url)
    folder = join_url(place.root, _SIDE, "quarantine", digest[:16])
    kept = join_url(folder, base_name(task.path))
    if not exists(kept) or _sha256(kept) != digest:
        copy(task.url, kept)
        if _sha256(kept) != digest:
            raise WriteError("the copy in quarantine is not the shard", found=kept, shard=task.url)
    _keep_sidecars(task, place, folder)
    said = json.dumps(asdict(_told(task, found, kept)), indent=1)
    store_for(folder).write_all(join_url(folder, "report.json"), said.encode())
    return kept


def _keep_index(task: ShardTask, place: _Place) -> str | None:
    """Copy the index that is to be replaced."""
    sidecar = next(iter(_sidecars(task)), None)
    if sidecar is None:
        return None
    folder = join_url(place.root, _SIDE, "quarantine", _sha256(sidecar)[:16])
    _keep_sidecars(task, place, folder)
    return join_url(folder, base_name(sidecar))


def _keep_sidecars(task: ShardTask, place: _Place, folder: str) -> None:
    for url in _sidecars(task):
        copy(url, join_url(folder, base_name(url)))
    if place.manifest is not None:
        copy(manifest_url(place.root), join_url(folder, "manifest.json"))


def _sidecars(task: ShardTask) -> list[str]:
    """The indexes that are kept with the shard."""
    folder = parent_url(task.url)
    inner = f"{base_name(folder)}/{base_name(task.url)}"
    beside = [index_url(folder, base_name(task.url)), index_url(parent_url(folder), inner)]
    places = beside if task.sidecar is None else [task.sidecar]
    return [url for url in places if exists(url)]


def _sha256(url: str) -> str:
    digest = hashlib.sha256()
    with closing(store_for(url).open(url)) as reader:
        for start in range(0, reader.info.size, _PART):
            digest.update(reader.read(start, start + _PART))
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------------------ the step


def _change_over(done: list[_Done], place: _Place, *, drop_missing: bool) -> None:
    gone = [each for each in done if _is_gone(each, drop_missing)]
    if not place.in_place:
        _write_elsewhere(done, gone, place)
    elif place.manifest is not None:
        _commit(done, gone, place.root)
    else:
        for each in done:
            _replace(each)
    _remove_folder(_work_folder(place))


def _is_gone(each: _Done, drop_missing: bool) -> bool:
    return each.repair.action == "quarantined" or (each.repair.action == "missing" and drop_missing)


def _commit(done: list[_Done], gone: list[_Done], root: str) -> None:
    changed = [each for each in done if each.repair.action in ("rewritten", "reindexed")]
    if not gone and not any(map(_is_changed, done)):
        return
    staging = staging_url(root)
    for each in changed:
        store_for(staging).delete(join_url(staging, each.task.path))  # left there by a run that was interrupted
        _put(each, staging, index_too=True)
    paths, removed = ([each.task.path for each in those] for those in (changed, gone))
    # Of the manifest as it is by now: what others wrote meanwhile stays.
    commit_staged(root, lambda before: _new_manifest(before, done, gone), paths, removed)


def _put(each: _Done, folder: str, *, index_too: bool) -> None:
    """Move a new shard, if there is one, and its index to below ``folder``."""
    if index_too and each.index is not None:
        save_index(each.index, index_url(folder, each.task.path))
    if each.staged is not None:
        store_for(each.staged).move(each.staged, join_url(folder, each.task.path))


def _new_manifest(manifest: Manifest, done: list[_Done], gone: list[_Done]) -> Manifest:
    removed = {each.task.path for each in gone}
    records = {each.task.path: _record(each) for each in done if each.index is not None and _is_changed(each)}
    splits = {
        name: tuple(records.get(record.path, record) for record in kept if record.path not in removed)
        for name, kept in manifest.splits.items()
    }
    return replace(manifest, splits={name: kept for name, kept in splits.items() if kept})


def _is_changed(each: _Done) -> bool:
    return each.repair.action in ("rewritten", "reindexed", "recorded")


def _record(each: _Done) -> ShardRecord:
    assert each.index is not None  # noqa: S101 - asked before
    return replace(record_of(each.task.path, each.index), sha256=each.sha256)


def _replace(each: _Done) -> None:
    """Without a manifest each shard is a dataset of its own: put the new one in the old one's place."""
    action, sidecars = each.repair.action, _sidecars(each.task)
    if action not in ("rewritten", "reindexed", "quarantined"):
        return
    if each.staged is not None:
        store_for(each.staged).move(each.staged, each.task.url)
    for url in sidecars:
        if each.index is not None:
            save_index(each.index, url)
        else:
            delete(url)
    if action == "quarantined":
        delete(each.task.url)


def _write_elsewhere(done: list[_Done], gone: list[_Done], place: _Place) -> None:
    left = {each.task.path for each in gone}
    for each in done:
        if each.repair.action == "missing" or each.task.path in left:
            continue
        if each.staged is None:
            copy(each.task.url, join_url(place.target, each.task.path))
        _put(each, place.target, index_too=place.manifest is not None)
    if place.manifest is not None:
        gone = [*gone, *(each for each in done if each.repair.action == "missing")]
        save_manifest(_new_manifest(place.manifest, done, gone), place.target)


def _remove_folder(folder: str) -> None:
    for info in list(store_for(folder).list(folder)):
        store_for(folder).delete(info.url)


# ------------------------------------------------------------------------------------ what is to be done with one shard


_MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to look at. ``path`` is relative to the dataset's root."""

    url: str
    path: str
    rule: KeyRule
    record: ShardRecord | None = None
    """What the manifest says of it."""
    sidecar: str | None = None
    """Where its index must be, by the manifest."""


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """How to judge."""

    trust: Trust = "auto"
    decoders: Callable[[Sequence[str]], Decoders] | None = None
    """For samples that no checksum speaks for: how their fields are decoded, to leave out what does not."""
    on_bytes: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What is to be done, and with what."""

    action: Action
    reasons: tuple[str, ...] = ()
    index: ShardIndex | None = None
    """The one that was there; where the shard is reindexed, the new one."""
    salvage: Salvage | None = None
    compression: str | None = None
    samples: int = 0


def judge(task: ShardTask, options: RepairOptions) -> RepairPlan:
    """Read all of a shard and say what is to be done with it."""
    try:
        reader = store_for(task.url).open(task.url)
    except StoreError as error:
        return RepairPlan("missing", (error.problem,))
    with closing(reader):
        index, wrong = _index_of(task, reader)
        report = verify_shard(task.url, index, VerifyOptions(rule=task.rule, on_bytes=options.on_bytes))
        if any(problem.kind == "shard" for problem in report.problems) and reader.info.size:
            return RepairPlan("missing", _reasons(wrong, report))
        with unpacked(reader, index) as tar:
            found = _Shard(task, options, reader, index, tar).judged(report, bool(wrong))
        return replace(found, reasons=(*_reasons(wrong, report), *found.reasons), compression=tar.compression)


def _reasons(wrong: list[str], report: ShardReport) -> tuple[str, ...]:
    told = [*wrong, *(_without_shard(problem) for problem in report.problems)]
    more = len(told) - _MOST_REASONS
    return (*told[:_MOST_REASONS], *((f"and {more} more",) if more > 0 else ()))


def _without_shard(problem: Problem) -> str:
    """What a problem says, on a line that has named the shard already."""
    return str(replace(problem, shard="")).replace(" (shard )", "").replace("shard , ", "")


def _index_of(task: ShardTask, reader: ObjectReader) -> tuple[ShardIndex | None, list[str]]:
    """The shard's index, and what is wrong with it where there should be one."""
    try:
        if task.sidecar is not None:
            return load_index(task.sidecar, whole=True), []
        return find_index(reader, task.rule, whole=True), []
    except ObjectNotFoundError:
        return None, ["the shard's index is missing"]
    except (ShardIndexError, StoreError) as error:
        return None, [error.problem]


@dataclass(frozen=True, slots=True)
class _Shard:
    """Everything that is known of one shard while it is judged."""

    task: ShardTask
    options: RepairOptions
    reader: ObjectReader
    index: ShardIndex | None
    tar: Unpacked

    def judged(self, report: ShardReport, index_is_wrong: bool) -> RepairPlan:
        if report.ok and self.index is not None:
            return self._sound(self.index)
        if report.ok and self._has_all():
            return (
                self._indexed() if index_is_wrong or self.task.sidecar else RepairPlan("sound", samples=report.samples)
            )
        if self.index is not None and has_checksums(self.index):
            return self._by_checksums(self.index)
        return self._saved(self._by_structure())

    def _sound(self, index: ShardIndex) -> RepairPlan:
        """Tar and index agree; does the manifest?"""
        record, facts = self.task.record, index.facts
        if record is None or (record.samples, record.bytes) == (len(index), facts.size):
            return RepairPlan("sound", index=index, samples=len(index))
        found = f"{len(index)} samples in {facts.size} bytes"
        reason = f"the manifest counts otherwise: {record.samples} samples in {record.bytes} bytes, found {found}"
        return RepairPlan("recorded", (reason,), index, samples=len(index))

    def _has_all(self) -> bool:
        """Whether a tar that is sound as far as it goes was not cut there."""
        if self._ends_in_order():
            return True
        return self.tar.size > 0 and not self._by_structure().lost

    def _ends_in_order(self) -> bool:
        return first_chain(self.tar.tar, self.tar.size, self.task.rule.encoding).end == "marker" and not self.tar.broken

    def _by_checksums(self, index: ShardIndex) -> RepairPlan:
        trust = self.options.trust
        if trust == "tar":
            return self._indexed()
        salvage = salvage_by_checksums(self.tar.tar, self.tar.size, index)
        if trust == "auto" and self._was_replaced(index, salvage):
            return self._indexed()
        return self._saved(salvage)

    def _was_replaced(self, index: ShardIndex, salvage: Salvage) -> bool:
        """Whether this is another tar than was indexed, and a sound one: then it is the index that is wrong.

        Damage does not make a tar longer, nor most of it wrong and yet in order.
        """
        longer = self.reader.info.size > index.facts.size
        mostly_other = 2 * len(salvage.saved) < len(index)
        return (longer or mostly_other) and self._has_others_than(index) and self._is_sound_alone()

    def _has_others_than(self, index: ShardIndex) -> bool:
        """Whether there are members of a name or a size that the index does not know: damage makes no such thing."""
        known = {
            (key, member.field, member.size)
            for row, key in enumerate(index.key_list(0, len(index)))
            for member in members_of(index, row)
        }
        chain = first_chain(self.tar.tar, self.tar.size, self.task.rule.encoding)
        pairs = (split_name(name, self.task.rule) for name in chain.names)
        members = zip(pairs, chain.sizes.tolist(), strict=True)
        return any(pair is not None and (*pair, size) not in known for pair, size in members)

    def _is_sound_alone(self) -> bool:
        return self._ends_in_order() and verify_shard(self.task.url, None, VerifyOptions(rule=self.task.rule)).ok

    def _indexed(self) -> RepairPlan:
        """The tar is in order: only its index is to be made anew."""
        try:
            index = index_shard(self.reader, self.task.rule)
        except ShoalError:
            return self._saved(self._by_structure())
        return RepairPlan("reindexed", index=index, samples=len(index))

    def _by_structure(self) -> Salvage:
        names = None if self.index is None or has_checksums(self.index) else self.index
        salvage = salvage_by_structure(self.tar.tar, self.tar.size, self.task.rule, names)
        return salvage if self.options.decoders is None else _decoded(salvage, self.tar.tar, self.options.decoders)

    def _saved(self, salvage: Salvage) -> RepairPlan:
        action: Action = "rewritten" if salvage.saved else "quarantined"
        return RepairPlan(action, index=self.index, salvage=salvage, samples=len(salvage.saved))


def _decoded(salvage: Salvage, tar: TarReader, decoders: Callable[[Sequence[str]], Decoders]) -> Salvage:
    """Without the samples that do not decode."""
    known = decoders(sorted({piece.field for sample in salvage.saved for piece in sample.pieces}))
    saved, lost = [], list(salvage.lost)
    for sample in salvage.saved:
        problem = _decode_problem(sample, tar, known)
        if problem is None:
            saved.append(sample)
        else:
            lost.append(LostSample(sample.key, problem, sample.pieces[0].offset))
    return replace(salvage, saved=tuple(saved), lost=tuple(lost))


def _decode_problem(sample: SavedSample, tar: TarReader, decoders: Decoders) -> str | None:
    for piece in sample.pieces:
        decode = decoders.get(piece.field)
        if decode is None:
            continue
        try:
            decode(tar.read(piece.offset, piece.offset + piece.size))
        except MissingExtraError:
            continue
        except ShoalError as error:
            return f"field {piece.field}: {error.problem}"
    return None


# --------------------------------------- write saved samples into a new shard, and read it back to see that it is right


_NO_LIMIT = 1 << 62


def rewrite(
    url: str,
    samples: Sequence[SavedSample],
    tar: TarReader,
    *,
    rule: KeyRule = WEBDATASET_RULE,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ShardIndex:
    """Write ``samples``, whose bytes are in ``tar``, as the shard ``url`` with its index beside it, and check both.

    Members keep their names. Where those are what shoal itself would write, the shard is as ShardWriter writes it.
    Raises ChecksumError when bytes changed since they were looked at, WriteError when the new shard is not right.
    """
    try:
        index = _as_shoal_writes(url, samples, tar, rule, compression, metadata)
    except (WriteError, CodecError):  # names that shoal reads and would not write
        index = _as_it_was(url, samples, tar, rule, compression)
    report = verify_shard(url, index, VerifyOptions(rule=rule))
    if not report.ok or report.samples != len(samples):
        found = str(report.problems[0]) if report.problems else f"{report.samples} samples"
        raise WriteError("the new shard is not right", expected=f"{len(samples)} samples", found=found, shard=url)
    return index


def _as_shoal_writes(
    url: str,
    samples: Sequence[SavedSample],
    tar: TarReader,
    rule: KeyRule,
    compression: str | None,
    metadata: Mapping[str, Any] | None,
) -> ShardIndex:
    if rule != WEBDATASET_RULE or not all(map(_is_plain, samples)):
        raise WriteError("not as shoal writes")
    writer = ShardWriter(
        url,
        max_samples=_NO_LIMIT,
        max_bytes=_NO_LIMIT,
        compression=compression,
        metadata=metadata,
        overwrite=True,
    )
    with writer:
        for sample in samples:
            writer.write((sample.key, {piece.field: _data(tar, piece) for piece in sample.pieces}))
    return load_index(index_url(parent_url(url), base_name(url)))


def _is_plain(sample: SavedSample) -> bool:
    return all(
        piece.name == f"{sample.key}.{piece.field}" and not piece.field.startswith("__") for piece in sample.pieces
    )


def _data(tar: TarReader, piece: Piece) -> bytes:
    data = tar.read(piece.offset, piece.offset + piece.size)
    if len(data) < piece.size:
        raise TruncatedError("the shard became shorter while it was repaired", field=piece.field, offset=piece.offset)
    if piece.crc is not None and zlib.crc32(data) != piece.crc:
        raise ChecksumError("the shard changed while it was repaired", field=piece.field, offset=piece.offset)
    return data


def _as_it_was(
    url: str, samples: Sequence[SavedSample], tar: TarReader, rule: KeyRule, compression: str | None
) -> ShardIndex:
    """Any names at all, one member after the other."""
    sink = store_for(url).create(url)
    try:
        with (
            contextlib.closing(_compressing(_Sink(sink), compression)) as file,
            tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, encoding=rule.encoding) as archive,
        ):
            for sample in samples:
                for piece in sample.pieces:
                    info = tarfile.TarInfo(piece.name)
                    info.size, info.mode = piece.size, 0o444
                    archive.addfile(info, io.BytesIO(_data(tar, piece)))
    except BaseException:
        sink.abort()
        raise
    sink.commit()
    with closing(store_for(url).open(url)) as reader:
        index = index_shard(reader, rule)
    save_index(index, index_url(parent_url(url), base_name(url)))
    return index


class _Sink(io.RawIOBase):
    """A store's writer as a file."""

    def __init__(self, writer: ObjectWriter) -> None:
        super().__init__()
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._writer.write(bytes(data))
        return len(data)


def _compressing(file: io.RawIOBase, compression: str | None) -> IO[bytes]:
    """No times and no names go in: the same samples give the same bytes."""
    raw = cast("IO[bytes]", file)
    if compression == "gzip":
        return cast("IO[bytes]", gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
    if compression == "bz2":
        return bz2.BZ2File(raw, "wb")
    if compression == "xz":
        return lzma.LZMAFile(raw, "wb")
    return _zstd(raw) if compression == "zstd" else raw


def _zstd(file: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError("zstd shards need the zstandard package", hint="pip install 'shoal[zstd]'") from None
    return cast("IO[bytes]", zstandard.ZstdCompressor().stream_writer(file, closefd=False))
