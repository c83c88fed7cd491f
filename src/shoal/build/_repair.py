"""`repair`: plan what to do with each shard, which is all that a dry run does, and carry it out.

New shards are written and checked first, and damaged ones are copied to quarantine. Only then is the dataset changed.
"""

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
from shoal.shard._discovery import ShardList, locate_existing
from shoal.shard._index import load_index, save_index
from shoal.shard._journal import commit, staging_url
from shoal.shard._manifest import Manifest, ShardRecord, manifest_url, record_of
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule, split_name
from shoal.shard._open_shards import find_index, index_shard
from shoal.shard._shard import Decoders
from shoal.shard._shard_rows import ShardRows, members_of
from shoal.shard._stored_rows import index_path, save_rows
from shoal.shard._verify import Problem, ShardReport, VerifyOptions, verify_shard
from shoal.shard._writer import write_shard
from shoal.store._base import ObjectReader, ObjectWriter
from shoal.store._operations import copy, delete, exists
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, parent_url, relative_url, scheme_of

from ._findings import Action, LostSample, Repair, ShardRepair, every_decoder
from ._salvage import (
    IntactMember,
    MemberRun,
    Salvage,
    SavedSample,
    TarReader,
    UnpackedTar,
    first_member_run,
    has_checksums,
    open_tar,
    salvage_by_checksums,
    salvage_by_structure,
)

__all__ = ["repair"]

PathLike = str | os.PathLike[str]
Trust = Literal["auto", "index", "tar"]
"""Which to believe where a tar without damage and its index differ."""
_READ_BYTES = 8 << 20
_SIDECAR_FOLDER = ".shoal"
_READ_ONLY_SCHEMES = ("http", "https", "hf")
_MAX_REASONS = 20
_NO_LIMIT = 1 << 62


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

    Examples:
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
    target = _find_target(located, output)
    if target.in_place and not dry_run and scheme_of(target.root) in _READ_ONLY_SCHEMES:
        raise OptionError(
            "what lies there can only be read",
            found=target.root,
            hint="name a folder for the repaired dataset (output=, --output), or see what would be done (--dry-run)",
        )
    options = RepairOptions(trust, every_decoder() if decode else None, on_bytes)
    work = partial(_prepare, options=options, target=target, dry_run=dry_run)
    prepared: list[_PreparedRepair] = []
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1), "shoal-repair") as pool:
        for each in pool.map(work, _make_tasks(located, target.root)):
            prepared.append(each)
            if on_shard is not None:
                on_shard(each.repair)
    if not dry_run:
        _commit_repairs(prepared, target, drop_missing=drop_missing)
    paths = ", ".join(os.fspath(each) for each in given)
    return Repair(
        paths, target.output if output is not None else paths, dry_run, tuple(each.repair for each in prepared)
    )


@dataclass(frozen=True, slots=True)
class _RepairTarget:
    """Where the dataset is, and where the repaired one will be."""

    root: str
    output: str
    manifest: Manifest | None

    @property
    def in_place(self) -> bool:
        return self.root == self.output


@dataclass(frozen=True, slots=True)
class _PreparedRepair:
    """A repair that is ready to be committed."""

    task: RepairTask
    repair: ShardRepair
    index: ShardRows | None = None
    staged: str | None = None
    """Where the new tar is, with its index next to it."""
    sha256: str | None = None


def _find_target(located: ShardList, output: PathLike | None) -> _RepairTarget:
    root = located.root if located.root is not None else _shared_folder([ref.url for ref in located.shards])
    if output is None:
        return _RepairTarget(root, root, located.manifest)
    folder = os.fspath(output).rstrip("/")
    if folder == root.rstrip("/"):
        raise OptionError(
            "output is the dataset itself",
            found=folder,
            hint="leave output out: what is replaced is kept in quarantine",
        )
    if exists(folder) and (not store_for(folder).is_folder(folder) or any(store_for(folder).list(folder))):
        raise ObjectExistsError("something is there already", found=folder, hint="name a folder that is not in use")
    return _RepairTarget(root, folder, located.manifest)


def _shared_folder(urls: list[str]) -> str:
    """Return the deepest folder that holds all of them."""
    if len(urls) == 1:
        return parent_url(urls[0])
    levels = zip(*(parent_url(url).split("/") for url in urls), strict=False)
    return "/".join(level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels)) or "."


def _make_tasks(located: ShardList, root: str) -> Iterator[RepairTask]:
    records = {} if located.manifest is None else {record.path: record for record in located.manifest.shards}
    for ref in located.shards:
        path = relative_url(ref.url, root)
        rule = ref.rule if located.manifest is None else located.manifest.rule
        yield RepairTask(ref.url, path, rule, records.get(path), ref.sidecar)


def _make_shard_repair(task: RepairTask, plan: RepairPlan, quarantine: str | None = None) -> ShardRepair:
    salvage, record = plan.salvage, task.record
    lost = () if salvage is None else salvage.lost
    expected = 0 if record is None else record.samples
    return ShardRepair(
        task.url,
        plan.action,
        plan.samples,
        lost,
        max(0, expected - plan.samples - len(lost)),
        None if salvage is None else salvage.proof,
        0 if salvage is None else salvage.moved,
        quarantine,
        plan.reasons,
    )


@dataclass(frozen=True, slots=True)
class RepairTask:
    """A shard to repair. ``path`` is relative to the dataset's root."""

    url: str
    path: str
    rule: KeyRule
    record: ShardRecord | None = None
    """Its record in the manifest."""
    sidecar: str | None = None
    """Where its index is, by the manifest."""


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """How repairs are planned."""

    trust: Trust = "auto"
    decoders: Callable[[Sequence[str]], Decoders] | None = None
    """Decoders of fields without checksums: samples that do not decode are left out."""
    on_bytes: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What to do with a shard, and what it needs for that."""

    action: Action
    reasons: tuple[str, ...] = ()
    index: ShardRows | None = None
    """The index of the shard; the new one where it is reindexed."""
    salvage: Salvage | None = None
    compression: str | None = None
    samples: int = 0


def plan_repair(task: RepairTask, options: RepairOptions) -> RepairPlan:
    """Read a shard completely, and plan what to do with it."""
    try:
        reader = store_for(task.url).open(task.url)
    except StoreError as error:
        return RepairPlan("missing", (error.problem,))
    with closing(reader):
        index, index_problems = _load_index(task, reader)
        report = verify_shard(task.url, index, VerifyOptions(rule=task.rule, on_bytes=options.on_bytes))
        if any(problem.kind == "shard" for problem in report.problems) and reader.info.size:
            return RepairPlan("missing", _reasons(index_problems, report))
        with open_tar(reader, index) as tar:
            plan = _RepairPlanner(task, options, reader, index, tar).plan(report, bool(index_problems))
        reasons = (*_reasons(index_problems, report), *plan.reasons)
        return replace(plan, reasons=reasons, compression=tar.compression)


def _reasons(index_problems: list[str], report: ShardReport) -> tuple[str, ...]:
    reasons = [*index_problems, *(_format_without_shard(problem) for problem in report.problems)]
    more = len(reasons) - _MAX_REASONS
    return (*reasons[:_MAX_REASONS], *((f"and {more} more",) if more > 0 else ()))


def _format_without_shard(problem: Problem) -> str:
    """Return the text of a problem, for a line that names the shard already."""
    return str(replace(problem, shard="")).replace(" (shard )", "").replace("shard , ", "")


def _load_index(task: RepairTask, reader: ObjectReader) -> tuple[ShardRows | None, list[str]]:
    """Return the shard's index, and the problems of loading it where there should be one."""
    try:
        if task.sidecar is not None:
            return load_index(task.sidecar, whole=True), []
        return find_index(reader, task.rule, whole=True), []
    except ObjectNotFoundError:
        return None, ["the shard's index is missing"]
    except (ShardIndexError, StoreError) as error:
        return None, [error.problem]


@dataclass(frozen=True, slots=True)
class _RepairPlanner:
    """Decides what to do with one shard."""

    task: RepairTask
    options: RepairOptions
    reader: ObjectReader
    index: ShardRows | None
    tar: UnpackedTar

    def plan(self, report: ShardReport, index_is_wrong: bool) -> RepairPlan:
        if report.ok and self.index is not None:
            return self._plan_undamaged(self.index)
        if report.ok and self._is_complete():
            return (
                self._plan_reindex()
                if index_is_wrong or self.task.sidecar
                else RepairPlan("sound", samples=report.samples)
            )
        if self.index is not None and has_checksums(self.index):
            return self._plan_by_checksums(self.index)
        return self._plan_rewrite(self._salvage_by_structure())

    def _plan_undamaged(self, index: ShardRows) -> RepairPlan:
        """Tar and index agree: only the manifest may be wrong."""
        record, facts = self.task.record, index.facts
        if record is None or (record.samples, record.bytes) == (len(index), facts.size):
            return RepairPlan("sound", index=index, samples=len(index))
        found = f"{len(index)} samples in {facts.size} bytes"
        reason = f"the manifest counts otherwise: {record.samples} samples in {record.bytes} bytes, found {found}"
        return RepairPlan("recorded", (reason,), index, samples=len(index))

    def _is_complete(self) -> bool:
        """Whether a tar without damage was not cut off."""
        if self._ends_in_order():
            return True
        return self.tar.size > 0 and not self._salvage_by_structure().lost

    def _ends_in_order(self) -> bool:
        return self._first_run().end == "marker" and not self.tar.broken

    def _first_run(self) -> MemberRun:
        return first_member_run(self.tar.tar, self.tar.size, self.task.rule.encoding)

    def _plan_by_checksums(self, index: ShardRows) -> RepairPlan:
        trust = self.options.trust
        if trust == "tar":
            return self._plan_reindex()
        salvage = salvage_by_checksums(self.tar.tar, self.tar.size, index)
        if trust == "auto" and self._was_replaced(index, salvage):
            return self._plan_reindex()
        return self._plan_rewrite(salvage)

    def _was_replaced(self, index: ShardRows, salvage: Salvage) -> bool:
        """Whether the tar was replaced by another valid one after it was indexed, so that the index is wrong.

        Damage neither makes a tar longer nor changes most of it and leaves it valid.
        """
        longer = self.reader.info.size > index.facts.size
        mostly_other = 2 * len(salvage.saved) < len(index)
        return (longer or mostly_other) and self._has_unknown_members(index) and self._is_valid_without_index()

    def _has_unknown_members(self, index: ShardRows) -> bool:
        """Whether there are members with a name or size that is not in the index, which damage does not make."""
        known = {
            (key, member.field, member.size)
            for row, key in enumerate(index.key_list(0, len(index)))
            for member in members_of(index, row)
        }
        run = self._first_run()
        pairs = (split_name(name, self.task.rule) for name in run.names)
        members = zip(pairs, run.sizes.tolist(), strict=True)
        return any(pair is not None and (*pair, size) not in known for pair, size in members)

    def _is_valid_without_index(self) -> bool:
        return self._ends_in_order() and verify_shard(self.task.url, None, VerifyOptions(rule=self.task.rule)).ok

    def _plan_reindex(self) -> RepairPlan:
        """The tar is valid: only its index is made anew."""
        try:
            index = index_shard(self.reader, self.task.rule)
        except ShoalError:
            return self._plan_rewrite(self._salvage_by_structure())
        return RepairPlan("reindexed", index=index, samples=len(index))

    def _salvage_by_structure(self) -> Salvage:
        names = None if self.index is None or has_checksums(self.index) else self.index
        salvage = salvage_by_structure(self.tar.tar, self.tar.size, self.task.rule, names)
        return (
            salvage
            if self.options.decoders is None
            else _drop_undecodable(salvage, self.tar.tar, self.options.decoders)
        )

    def _plan_rewrite(self, salvage: Salvage) -> RepairPlan:
        action: Action = "rewritten" if salvage.saved else "quarantined"
        return RepairPlan(action, index=self.index, salvage=salvage, samples=len(salvage.saved))


def _drop_undecodable(salvage: Salvage, tar: TarReader, decoders: Callable[[Sequence[str]], Decoders]) -> Salvage:
    """Return the salvage without the samples that do not decode."""
    known = decoders(sorted({member.field for sample in salvage.saved for member in sample.members}))
    saved, lost = [], list(salvage.lost)
    for sample in salvage.saved:
        problem = _find_decode_problem(sample, tar, known)
        if problem is None:
            saved.append(sample)
        else:
            lost.append(LostSample(sample.key, problem, sample.members[0].offset))
    return replace(salvage, saved=tuple(saved), lost=tuple(lost))


def _find_decode_problem(sample: SavedSample, tar: TarReader, decoders: Decoders) -> str | None:
    for member in sample.members:
        decode = decoders.get(member.field)
        if decode is None:
            continue
        try:
            decode(tar.read(member.offset, member.offset + member.size))
        except MissingExtraError:
            continue
        except ShoalError as error:
            return f"field {member.field}: {error.problem}"
    return None


def _prepare(task: RepairTask, options: RepairOptions, target: _RepairTarget, *, dry_run: bool) -> _PreparedRepair:
    """Plan the repair of a shard and, unless it is a dry run, do all that does not change the dataset."""
    plan = plan_repair(task, options)
    if dry_run or plan.action in ("sound", "missing"):
        return _PreparedRepair(task, _make_shard_repair(task, plan), plan.index)
    if plan.action == "recorded":
        return _PreparedRepair(task, _make_shard_repair(task, plan), plan.index, sha256=_updated_sha256(task, task.url))
    if plan.action == "reindexed":
        kept = _quarantine_index(task, target) if target.in_place else None
        return _PreparedRepair(
            task, _make_shard_repair(task, plan, kept), plan.index, sha256=_updated_sha256(task, task.url)
        )
    kept = _quarantine_shard(task, target, plan) if target.in_place else None
    staged, index = _write_new_shard(task, plan, target) if plan.action == "rewritten" else (None, None)
    sha256 = None if staged is None else _updated_sha256(task, staged)
    return _PreparedRepair(task, _make_shard_repair(task, plan, kept), index, staged, sha256)


def _updated_sha256(task: RepairTask, url: str) -> str | None:
    """The shard's sha256, where the manifest had one."""
    return None if task.record is None or task.record.sha256 is None else _sha256(url)


def _work_folder(target: _RepairTarget) -> str:
    return join_url(target.output, _SIDECAR_FOLDER, "repair")


def _write_new_shard(task: RepairTask, plan: RepairPlan, target: _RepairTarget) -> tuple[str, ShardRows]:
    """Write the new shard to the work folder."""
    url = join_url(_work_folder(target), hashlib.sha256(task.path.encode()).hexdigest()[:16], "shard.tar")
    metadata = None if target.manifest is None else target.manifest.metadata
    assert plan.salvage is not None  # noqa: S101 - a rewritten shard has one
    with closing(store_for(task.url).open(task.url)) as reader, open_tar(reader, plan.index) as tar:
        return url, rewrite(
            url,
            plan.salvage.saved,
            tar.tar,
            rule=task.rule,
            compression=plan.compression,
            metadata=metadata,
        )


def _quarantine_shard(task: RepairTask, target: _RepairTarget, plan: RepairPlan) -> str:
    """Copy the shard, its index and the report of its repair to quarantine, and return the URL of the copy."""
    digest = _sha256(task.url)
    folder = join_url(target.root, _SIDECAR_FOLDER, "quarantine", digest[:16])
    kept = join_url(folder, base_name(task.path))
    if not exists(kept) or _sha256(kept) != digest:
        copy(task.url, kept)
        if _sha256(kept) != digest:
            raise WriteError("the copy in quarantine is not the shard", found=kept, shard=task.url)
    _copy_sidecars(task, target, folder)
    report = json.dumps(asdict(_make_shard_repair(task, plan, kept)), indent=1)
    store_for(folder).write_all(join_url(folder, "report.json"), report.encode())
    return kept


def _quarantine_index(task: RepairTask, target: _RepairTarget) -> str | None:
    """Copy the index that will be replaced to quarantine, and return the URL of the copy."""
    sidecar = next(iter(_sidecars(task)), None)
    if sidecar is None:
        return None
    folder = join_url(target.root, _SIDECAR_FOLDER, "quarantine", _sha256(sidecar)[:16])
    _copy_sidecars(task, target, folder)
    return join_url(folder, base_name(sidecar))


def _copy_sidecars(task: RepairTask, target: _RepairTarget, folder: str) -> None:
    for url in _sidecars(task):
        copy(url, join_url(folder, base_name(url)))
    if target.manifest is not None:
        copy(manifest_url(target.root), join_url(folder, "manifest.json"))


def _sidecars(task: RepairTask) -> list[str]:
    """Return the URLs of the shard's index files."""
    folder = parent_url(task.url)
    inner = f"{base_name(folder)}/{base_name(task.url)}"
    default_urls = [
        join_url(folder, index_path(base_name(task.url))),
        join_url(parent_url(folder), index_path(inner)),
    ]
    urls = default_urls if task.sidecar is None else [task.sidecar]
    return [url for url in urls if exists(url)]


def _sha256(url: str) -> str:
    digest = hashlib.sha256()
    with closing(store_for(url).open(url)) as reader:
        for start in range(0, reader.info.size, _READ_BYTES):
            digest.update(reader.read(start, start + _READ_BYTES))
    return digest.hexdigest()


def rewrite(
    url: str,
    samples: Sequence[SavedSample],
    tar: TarReader,
    *,
    rule: KeyRule = WEBDATASET_RULE,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> ShardRows:
    """Write ``samples``, whose bytes are in ``tar``, as the shard ``url`` with its index, and verify both.

    Members keep their names. Where those are what shoal itself would write, the shard is as ShardWriter writes it.
    Raises ChecksumError when bytes changed since they were checked, WriteError when the new shard is not right.
    """
    try:
        index = _write_with_shard_writer(url, samples, tar, rule, compression, metadata)
    except (WriteError, CodecError):  # names that shoal reads and would not write
        index = _write_with_tarfile(url, samples, tar, rule, compression)
    report = verify_shard(url, index, VerifyOptions(rule=rule))
    if not report.ok or report.samples != len(samples):
        found = str(report.problems[0]) if report.problems else f"{report.samples} samples"
        raise WriteError("the new shard is not right", expected=f"{len(samples)} samples", found=found, shard=url)
    return index


def _write_with_shard_writer(
    url: str,
    samples: Sequence[SavedSample],
    tar: TarReader,
    rule: KeyRule,
    compression: str | None,
    metadata: Mapping[str, Any] | None,
) -> ShardRows:
    if rule != WEBDATASET_RULE or not all(map(_has_plain_names, samples)):
        raise WriteError("not as shoal writes")
    contents = (
        (sample.key, {member.field: _read_member(tar, member) for member in sample.members}) for sample in samples
    )
    return write_shard(url, contents, compression=compression, metadata=metadata)


def _has_plain_names(sample: SavedSample) -> bool:
    return all(
        member.name == f"{sample.key}.{member.field}" and not member.field.startswith("__") for member in sample.members
    )


def _read_member(tar: TarReader, member: IntactMember) -> bytes:
    data = tar.read(member.offset, member.offset + member.size)
    if len(data) < member.size:
        raise TruncatedError("the shard became shorter while it was repaired", field=member.field, offset=member.offset)
    if member.crc is not None and zlib.crc32(data) != member.crc:
        raise ChecksumError("the shard changed while it was repaired", field=member.field, offset=member.offset)
    return data


def _write_with_tarfile(
    url: str, samples: Sequence[SavedSample], tar: TarReader, rule: KeyRule, compression: str | None
) -> ShardRows:
    """Write members with any names."""
    writer = store_for(url).create(url)
    try:
        with (
            contextlib.closing(_open_compressor(_WriterFile(writer), compression)) as file,
            tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, encoding=rule.encoding) as archive,
        ):
            for sample in samples:
                for member in sample.members:
                    info = tarfile.TarInfo(member.name)
                    info.size, info.mode = member.size, 0o444
                    archive.addfile(info, io.BytesIO(_read_member(tar, member)))
    except BaseException:
        writer.abort()
        raise
    writer.commit()
    with closing(store_for(url).open(url)) as reader:
        index = index_shard(reader, rule)
    save_rows(index, parent_url(url), base_name(url))
    return index


class _WriterFile(io.RawIOBase):
    """An `ObjectWriter` as a file."""

    def __init__(self, writer: ObjectWriter) -> None:
        super().__init__()
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._writer.write(bytes(data))
        return len(data)


def _open_compressor(file: io.RawIOBase, compression: str | None) -> IO[bytes]:
    """Open a compressor that writes no times and no names, so that the same samples give the same bytes."""
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


def _commit_repairs(repairs: list[_PreparedRepair], target: _RepairTarget, *, drop_missing: bool) -> None:
    gone = [each for each in repairs if _is_gone(each, drop_missing)]
    if not target.in_place:
        _write_to_output(repairs, gone, target)
    elif target.manifest is not None:
        _commit_with_manifest(repairs, gone, target.root)
    else:
        for each in repairs:
            _replace_shard(each)
    _remove_folder(_work_folder(target))


def _is_gone(each: _PreparedRepair, drop_missing: bool) -> bool:
    return each.repair.action == "quarantined" or (each.repair.action == "missing" and drop_missing)


def _commit_with_manifest(repairs: list[_PreparedRepair], gone: list[_PreparedRepair], root: str) -> None:
    changed = [each for each in repairs if each.repair.action in ("rewritten", "reindexed")]
    if not gone and not any(map(_is_changed, repairs)):
        return
    staging = staging_url(root)
    for each in changed:
        store_for(staging).delete(join_url(staging, each.task.path))  # left by an interrupted run
        _move_shard(each, staging, with_index=True)
    paths, removed = ([each.task.path for each in those] for those in (changed, gone))
    # Applied to the current manifest, so that concurrent changes are kept.
    commit(root, lambda before: _new_manifest(before, repairs, gone), staged=paths, replaced=removed)


def _move_shard(each: _PreparedRepair, folder: str, *, with_index: bool) -> None:
    """Move a new shard, if there is one, to ``folder``, and save its index there."""
    if with_index and each.index is not None:
        save_rows(each.index, folder, each.task.path)
    if each.staged is not None:
        store_for(each.staged).move(each.staged, join_url(folder, each.task.path))


def _new_manifest(manifest: Manifest, repairs: list[_PreparedRepair], gone: list[_PreparedRepair]) -> Manifest:
    removed = {each.task.path for each in gone}
    records = {each.task.path: _new_record(each) for each in repairs if each.index is not None and _is_changed(each)}
    splits = {
        name: tuple(records.get(record.path, record) for record in kept if record.path not in removed)
        for name, kept in manifest.splits.items()
    }
    return replace(manifest, splits={name: kept for name, kept in splits.items() if kept})


def _is_changed(each: _PreparedRepair) -> bool:
    return each.repair.action in ("rewritten", "reindexed", "recorded")


def _new_record(each: _PreparedRepair) -> ShardRecord:
    assert each.index is not None  # noqa: S101 - checked by the caller
    return replace(record_of(each.task.path, each.index), sha256=each.sha256)


def _replace_shard(each: _PreparedRepair) -> None:
    """Replace a shard of a dataset without a manifest."""
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


def _write_to_output(repairs: list[_PreparedRepair], gone: list[_PreparedRepair], target: _RepairTarget) -> None:
    left = {each.task.path for each in gone}
    for each in repairs:
        if each.repair.action == "missing" or each.task.path in left:
            continue
        if each.staged is None:
            copy(each.task.url, join_url(target.output, each.task.path))
        _move_shard(each, target.output, with_index=target.manifest is not None)
    if target.manifest is not None:
        gone = [*gone, *(each for each in repairs if each.repair.action == "missing")]
        after = _new_manifest(target.manifest, repairs, gone)
        commit(target.output, lambda before: after)


def _remove_folder(folder: str) -> None:
    for info in list(store_for(folder).list(folder)):
        store_for(folder).delete(info.url)
