"""Repair a dataset: judge each shard, write anew what needs it, keep what was there, and change over in one step."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial

from shoal.errors import ObjectExistsError, OptionError, WriteError
from shoal.shard import (
    Located,
    Manifest,
    ShardIndex,
    ShardRecord,
    commit_staged,
    index_url,
    locate_existing,
    manifest_url,
    record_of,
    save_index,
    save_manifest,
    staging_url,
)
from shoal.store import base_name, copy, delete, exists, join_url, parent_url, relative_url, scheme_of, store_for

from ._decode import every_decoder
from ._judge import Judgement, RepairOptions, ShardTask, Trust, judge
from ._repaired import Repair, ShardRepair
from ._rewrite import rewrite
from ._unpacked import unpacked

__all__ = ["repair"]

PathLike = str | os.PathLike[str]

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


def _place(located: Located, output: PathLike | None) -> _Place:
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


def _tasks(located: Located, root: str) -> Iterator[ShardTask]:
    records = {} if located.manifest is None else {record.path: record for record in located.manifest.shards}
    for ref in located.shards:
        path = relative_url(ref.url, root)
        rule = ref.rule if located.manifest is None else located.manifest.rule
        yield ShardTask(ref.url, path, rule, records.get(path), ref.sidecar)


def _look(task: ShardTask, options: RepairOptions) -> _Done:
    found = judge(task, options)
    return _Done(task, _told(task, found), found.index)


def _told(task: ShardTask, found: Judgement, quarantine: str | None = None) -> ShardRepair:
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


def _rewritten(task: ShardTask, found: Judgement, place: _Place) -> tuple[str, ShardIndex]:
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


def _keep(task: ShardTask, place: _Place, found: Judgement) -> str:
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
