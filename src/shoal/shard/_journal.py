"""The journal of a write, the commit of staged shards, and recovery from interruptions.

A new write puts each shard under its final name as it closes and adds a line to the journal; the manifest comes last. A
rerun with ``resume=True`` reads the journal and continues after the last finished shard.

A write over an existing dataset must not touch it before the new one is complete. Its shards wait in
``.shoal/staging``; when all are there, one small commit record makes them the dataset, and only then are they moved
into place. Opening the dataset while that record exists finishes the moves first, so readers see the old dataset or the
new one, never a mix.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from shoal.errors import ManifestError, ObjectNotFoundError, WriteError
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url

from ._manifest import (
    Manifest,
    ShardRecord,
    check_inside,
    encode_manifest,
    load_manifest,
    lock_manifest,
    manifest_url,
    update_manifest,
)
from ._split_names import split_of
from ._stored_rows import SIDECAR_FOLDER, move_shard, remove_shards

__all__ = [
    "Journal",
    "UnfinishedWrite",
    "commit",
    "is_unfinished",
    "recover",
    "staging_url",
    "unfinished_writes",
]


_JOURNAL_NAME = re.compile(r"journal-.*\.jsonl", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JournalHead:
    """What a run was asked to do; another run may go on only when it was asked the same."""

    pattern: str
    options: dict[str, Any]
    staged: bool = False
    """Whether its shards wait in the staging folder; otherwise they stand under their final names already."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """The record that makes staged shards the dataset."""

    manifest: str
    paths: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """A write that is under way, or was interrupted, as its journal tells it."""

    pattern: str
    shards: tuple[ShardRecord, ...]
    """Those that are finished, in the order in which they closed."""
    staged: bool = False
    """Whether they wait to take the place of others; otherwise they stand under their final names."""
    split: str | None = None
    """The split that is written; None for builds, which may write several."""


class Journal:
    """The journal of one writer: one file a pattern, so that several writers share a folder."""

    def __init__(self, root: str, pattern: str, options: dict[str, Any]) -> None:
        name = hashlib.sha256(pattern.encode()).hexdigest()[:16]
        self._url = join_url(root, SIDECAR_FOLDER, f"journal-{name}.jsonl")
        self._head = JournalHead(pattern, options)

    def left_in_place(self) -> bool:
        """Whether an earlier run left shards under their final names: they are ours to take away."""
        return _is_in_place(self._lines())

    def read(self) -> list[ShardRecord]:
        """The shards an earlier run finished. Raises WriteError when it was asked something else, or is unreadable."""
        lines = self._lines()
        if not lines:
            return []
        head = _decode_line(lines[0], JournalHead)
        if (head.pattern, head.options) != (self._head.pattern, self._head.options):
            raise WriteError(
                "the interrupted run was asked something else",
                expected=head.options,
                found=self._head.options,
                hint="resume with the same options, or start over",
            )
        return [_decode_line(line, ShardRecord) for line in lines[1:]]

    def _lines(self) -> list[bytes]:
        try:
            return _complete_lines(store_for(self._url).read_all(self._url))
        except ObjectNotFoundError:
            return []

    def start(self, records: list[ShardRecord], *, staged: bool) -> None:
        """Begin anew, keeping ``records``."""
        head = replace(self._head, staged=staged)
        lines = [msgspec.json.encode(value) + b"\n" for value in (head, *records)]
        store_for(self._url).write_all(self._url, b"".join(lines))

    def add(self, record: ShardRecord) -> None:
        """Note a finished shard, for good."""
        store_for(self._url).append(self._url, msgspec.json.encode(record) + b"\n")

    def remove(self) -> None:
        """The manifest says it all now."""
        store_for(self._url).delete(self._url)


def is_unfinished(root: str) -> bool:
    """Whether shards stand at ``root`` whose writer is at work, or was interrupted."""
    return any(_is_in_place(_complete_lines(store_for(root).read_all(url))) for url in _journals(root))


def _journals(root: str) -> list[str]:
    listed = store_for(root).list(join_url(root, SIDECAR_FOLDER))
    return [info.url for info in listed if _JOURNAL_NAME.fullmatch(base_name(info.url))]


def unfinished_writes(root: str) -> tuple[UnfinishedWrite, ...]:
    """The writes into the folder ``root`` that have not ended, one for each writer; a journal nobody can read is none.

    Examples:
        >>> import shoal
        >>> from shoal.shard import unfinished_writes
        >>> with shoal.ShardWriter("memory://doc/unfinished/a-%06d.tar", max_samples=1) as writer:
        ...     for number in range(3):
        ...         writer.write({"__key__": f"k{number}", "txt": "hi"})
        ...     [[record.path for record in write.shards] for write in unfinished_writes("memory://doc/unfinished")]
        [['a-000000.tar', 'a-000001.tar']]
        >>> unfinished_writes("memory://doc/unfinished")
        ()
    """
    found: dict[str, UnfinishedWrite] = {}
    for url in sorted(_journals(root)):
        try:
            lines = _complete_lines(store_for(url).read_all(url))
            if lines:
                head = _decode_line(lines[0], JournalHead)
                # A long journal is several files, each with the same head.
                before = found[head.pattern].shards if head.pattern in found else ()
                records = (*before, *(_decode_line(line, ShardRecord) for line in lines[1:]))
                found[head.pattern] = UnfinishedWrite(head.pattern, records, head.staged, _split_of_write(head))
        except (ObjectNotFoundError, WriteError):  # it ended between the listing and the look
            continue
    return tuple(found.values())


def _split_of_write(head: JournalHead) -> str | None:
    if "max_samples" not in head.options:  # the journal of a build
        return None
    return str(head.options.get("split") or split_of(head.pattern))


def _complete_lines(text: bytes) -> list[bytes]:
    """A line without its end was being written when the run was killed."""
    return text.split(b"\n")[:-1]


def _is_in_place(lines: list[bytes]) -> bool:
    try:
        return bool(lines) and not _decode_line(lines[0], JournalHead).staged
    except WriteError:
        return True  # unreadable, but a journal


_Line = TypeVar("_Line", JournalHead, ShardRecord)


def _decode_line(line: bytes, kind: type[_Line]) -> _Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise WriteError("the journal cannot be read", found=str(error), hint="start over without resume") from error


def staging_url(root: str) -> str:
    """Where shards wait that will replace others."""
    return join_url(root, SIDECAR_FOLDER, "staging")


def _commit_url(root: str) -> str:
    return join_url(root, SIDECAR_FOLDER, "commit.json")


def commit(
    root: str,
    change: Callable[[Manifest], Manifest],
    *,
    staged: Iterable[str] | None = None,
    replaced: Iterable[str] = (),
) -> Manifest:
    """Change the dataset at ``root``: ``change`` makes its new manifest of the one that is there, and may be repeated.

    With ``staged``, these shards are moved from the staging folder to their places, and of the shards ``replaced``
    those are deleted that the new manifest does not list.
    """
    if staged is None:
        return update_manifest(root, change)
    with lock_manifest(root):
        _finish(root)
        manifest = change(load_manifest(root) or Manifest({}))
        kept = {record.path for record in manifest.shards}
        removed = tuple(path for path in replaced if path not in kept)
        record = _Commit(encode_manifest(manifest).decode(), tuple(staged), removed)
        store_for(root).write_all(_commit_url(root), msgspec.json.encode(record))
        _finish(root)
    return manifest


def recover(root: str) -> None:
    """Finish a commit that was interrupted; every step may be repeated. Raises ManifestError for a record not ours.

    One that is under way is waited for.
    """
    if _commit_record(root) is not None:
        with lock_manifest(root):
            _finish(root)


def _finish(root: str) -> None:
    store = store_for(root)
    record = _commit_record(root)
    if record is None:
        return
    for path in record.paths:
        move_shard(staging_url(root), path, root, path)
    remove_shards(root, record.removed)
    store.write_all(manifest_url(root), record.manifest.encode())
    store.delete(_commit_url(root))


def _commit_record(root: str) -> _Commit | None:
    """The record, if one stands. It says what to remove, and came with the data: it may name nothing outside."""
    url = _commit_url(root)
    try:
        record = msgspec.json.decode(store_for(url).read_all(url), type=_Commit)
    except ObjectNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ManifestError("the commit record cannot be read", found=str(error), shard=url) from error
    for path in (*record.paths, *record.removed):
        check_inside(path, url)
    return record
