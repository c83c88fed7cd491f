"""The folder of one writer, ``.shoal/writing/<writer>/``, and the moves that follow a commit that replaces tars.

``head.json`` says who writes what; ``rows-<number>`` is the rows file of a finished shard; ``staging/`` has new tars
that will replace others; ``moves.json`` lists them. On a local disk ``lock`` is locked while the writer is alive. A
writer that died is taken over by ``resume``, or discarded by the next writer of the same pattern.

A write that replaces tars stages the new ones, lists the moves, commits a generation that names the list, moves the
tars, and commits that they are moved. Readers look in the staging folder first. Every step can be repeated, and any
writer finishes the moves of one that died, so that there is always the old dataset or the new one.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from shoal._crc32 import crc32
from shoal.errors import (
    ManifestError,
    ObjectExistsError,
    ObjectNotFoundError,
    ShardIndexError,
    StoreError,
    StoreTimeoutError,
    WriteError,
)
from shoal.store._base import UpdatingStore
from shoal.store._concurrency import run_all
from shoal.store._operations import folders
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, local_path, scheme_of

from ._commit import (
    WRITING_FOLDER,
    collect_garbage,
    commit,
    is_committed,
    load_generation,
    locate_folder,
    lock_dataset,
    protect_new_files,
    read_optional,
    remove_folder,
    write_document,
)
from ._file_lock import FileLock, lock_file, try_lock_file
from ._generation import (
    NO_GENERATION,
    Generation,
    PendingMoves,
    check_id,
    decode_document,
    encode_document,
    locate,
    new_id,
)
from ._manifest import ShardRecord
from ._rows_file import read_record, write_rows_file
from ._shard_rows import ShardRows

__all__ = [
    "UnfinishedWrite",
    "WriteHead",
    "Writing",
    "finish_moves",
    "stage_moves",
    "staged_url",
    "unfinished_writes",
]

_ID = re.compile(r"[0-9a-f]{16}")
_ROWS_NAME = re.compile(r"rows-(\d{8})")
_NOTE_NAME = re.compile(r"name-[0-9a-f]{16}")
_PARTIAL_TAR = re.compile(r"\.(.+)\.[0-9a-f]{16}\.partial", re.DOTALL)
_WORK = ("kind", "pattern", "split", "options", "staged")
_LOCK_TIMEOUT_S = 1.0
"""Readers that look whether a writer is alive hold its lock for an instant."""


@dataclass(frozen=True, slots=True)
class WriteHead:
    """What a write was asked to do, and by whom. Another run goes on with it only when it is asked the same."""

    kind: str
    """What is done: ``append`` only adds; every other kind holds its split, so that no second one replaces it."""
    pattern: str
    """The names of its shards, relative to the dataset's root."""
    split: str | None = None
    """The split that is written; None for builds, which may write several."""
    options: dict[str, Any] = field(default_factory=dict)
    """As JSON gives them back."""
    staged: bool = False
    """Whether its shards wait to take the place of others; otherwise they have their final names."""
    host: str = ""
    pid: int = 0
    """0 where the process let go of the write."""
    process: str = ""
    """Tells apart processes that have the same pid, one after the other or on machines of one name; may be empty."""
    user: str = ""
    since: str = ""
    """The UTC time at which it began, in ISO 8601. This and who writes is filled in when it begins."""

    @property
    def writer(self) -> str:
        """Who writes, for messages."""
        return f"{self.user}@{self.host}, process {self.pid}, since {self.since}"


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """A write that has not ended: somebody is writing, or was interrupted."""

    id: str
    head: WriteHead
    shards: tuple[ShardRecord, ...]
    """Those that are finished, in the order of their numbers."""
    is_alive: bool | None
    """None where that cannot be known: it ran on another machine, or before a reboot, and there are no locks."""


class Writing:
    """A write into a dataset from its beginning until `discard`, or until `close` leaves it to be resumed.

    Made by `begin` and `resume`. While it is open, garbage collection leaves new files of the index alone. The commit
    of the write gets its ``id`` as ``writer``.
    """

    def __init__(self, root: str, writer: str, head: WriteHead) -> None:
        self.root, self.id, self.head = root, writer, head
        self._process = os.getpid()
        self._lock: FileLock | None = None
        self._protection = contextlib.ExitStack()
        self._next_number: int | None = None
        self._state: Literal["open", "discarded", "closed"] = "open"

    @classmethod
    def begin(
        cls,
        root: str,
        head: WriteHead,
        *,
        is_named: Callable[[str], bool] | None = None,
        exclusive: bool = False,
    ) -> Self:
        """Begin a write. A write of the same pattern that died is discarded.

        So are the tars that it finished under their final names, if ``is_named`` tells which paths the dataset names:
        others may have made them part of it. Raises ObjectExistsError, which names the writer, where one that is alive
        has the same pattern or split, unless both only append. Where there are no locks, so does one of another
        machine, unless ``exclusive`` says that nobody else writes; of two that begin at the same time both may be
        refused. Raises StoreError where only ``exclusive=True`` allows to write.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(protect_new_files(root, exclusive=exclusive))
            with lock_dataset(root):
                writes = _writes(root)
                for write in writes:
                    _refuse_conflict(root, write, head, exclusive=exclusive)
                for write in writes:
                    is_dead = write.is_alive is False or (write.is_alive is None and exclusive)
                    if write.head.pattern == head.pattern and is_dead:
                        _discard_dead(root, write, is_named)
                writing = cls(root, new_id(), _signed(head))
                writing._start(stack.pop_all(), is_new=True, exclusive=exclusive)
                return writing

    @classmethod
    def resume(cls, root: str, head: WriteHead, *, exclusive: bool = False) -> Self:
        """Go on with a write of the same pattern that died; begin where there is none.

        One of another machine counts as dead where there are no locks. Raises WriteError where none was asked the same,
        and otherwise as `begin`.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(protect_new_files(root, exclusive=exclusive))
            with lock_dataset(root):
                dead = []
                for write in _writes(root):
                    if write.is_alive is not True and write.head.pattern == head.pattern:
                        dead.append(write)
                    else:
                        _refuse_conflict(root, write, head, exclusive=exclusive)
                writer = _choose(root, dead, head)
                if writer is not None:
                    _remove_partial_tars(root, writer)
                writing = cls(root, writer or new_id(), _signed(head))
                writing._start(stack.pop_all(), is_new=writer is None, exclusive=exclusive)
                return writing

    def _start(self, protection: contextlib.ExitStack, *, is_new: bool, exclusive: bool) -> None:
        """Take the folder. The caller holds the lock of the dataset, so nobody else takes it now."""
        self._protection = protection
        _OPEN[self.id] = self
        try:
            if scheme_of(self.root) == "file":
                self._lock = lock_file(local_path(self._url("lock")), timeout_s=_LOCK_TIMEOUT_S)
            self._write_head(self.head)
            if self._lock is None:
                self._refuse_race(is_new=is_new, exclusive=exclusive)
        except BaseException:
            self._state = "discarded"
            self.close()
            raise

    def _refuse_race(self, *, is_new: bool, exclusive: bool) -> None:
        """Withdraw, and raise ObjectExistsError, if another writer has begun since the caller looked."""
        try:
            for write in _writes(self.root):
                if write.id != self.id:
                    _refuse_conflict(self.root, write, self.head, exclusive=exclusive)
        except ObjectExistsError:
            if is_new:
                _discard_folder(self.root, self.id)
            else:
                self._write_head(replace(self.head, pid=0))
            raise

    def _write_head(self, head: WriteHead) -> None:
        write_document(self._url("head.json"), encode_document(msgspec.to_builtins(head)))

    @property
    def _path(self) -> str:
        return f"{WRITING_FOLDER}/{self.id}"

    def _url(self, name: str) -> str:
        return locate(self.root, f"{self._path}/{name}")

    @property
    def folder(self) -> str:
        """The URL of its folder."""
        return locate_folder(self.root, self._path)

    @property
    def staging(self) -> str:
        """The URL of the folder for new tars that will replace others; a tar has the same path in it as in the end."""
        return locate_folder(self.root, f"{self._path}/staging")

    def rows_url(self, number: int) -> str:
        """Return where the rows file of a shard belongs, given its number in this write; any process may write it."""
        return self._url(f"rows-{number:08d}")

    def add(self, record: ShardRecord, rows: ShardRows, *, durable: bool = False) -> None:
        """Note that the next shard is finished."""
        if self._next_number is None:
            self._next_number = max(_rows_files(self.root, self.id), default=-1) + 1
        write_rows_file(self.rows_url(self._next_number), record, rows, durable=durable)
        self._next_number += 1

    def keep(self, count: int) -> None:
        """Forget finished shards from this number on, and go on with that number; their tars stay."""
        store = store_for(self.root)
        for number, url in _rows_files(self.root, self.id).items():
            if number >= count:
                store.delete(url)
        self._next_number = count

    def finished(self, *, gaps: bool = False) -> list[ShardRecord]:
        """Return the records of finished shards in the order of their numbers.

        They end before the first that is missing, unless ``gaps`` are allowed. A damaged rows file counts as missing.
        """
        records = _finished(self.root, self.id)
        numbers = sorted(records)
        return [records[number] for at, number in enumerate(numbers) if gaps or at == number]

    def reserve(self, path: str) -> bool:
        """Create an empty tar of this path, so that no other writer takes its name; False where there is something.

        It is also True for a path that this write has reserved before it was interrupted. What has the path vanishes
        with the write, unless a generation names it. Raises ManifestError for a path that no tar can have.
        """
        url, note = _locate_tar(self.root, path), self._url(f"name-{sha256(path.encode()).hexdigest()[:16]}")
        with lock_dataset(self.root):  # whoever discards a write sees no tar that is half reserved
            before = read_optional(note)
            if before is not None and _is_ours(self.id, decode_document(before, note), url):
                is_reserved = True
            else:
                write_document(note, encode_document({"path": path}))
                is_reserved = _create(url, _empty_tar(self.id))
            if is_reserved:  # from now on all that has this path is from this write
                write_document(note, encode_document({"path": path, "reserved": True}))
            else:
                store_for(note).delete(note)
        return is_reserved

    def discard(self) -> None:
        """Remove the folder: what was written is committed, or given up. Tars that were written stay.

        Raises WriteError, and removes nothing, where its tars are not all moved to their places yet. In a process that
        was forked meanwhile nothing happens: the write is its parent's.
        """
        if self._process != os.getpid():
            return
        try:
            if self._state == "open":
                newest = load_generation(self.root) or NO_GENERATION
                if any(moves.writer == self.id for moves in newest.pending):
                    raise WriteError("The tars of this write are not all moved to their places yet", shard=self.root)
                _remove_reserved(self.root, self.id, None)
                _discard_folder(self.root, self.id)
                self._state = "discarded"
        finally:
            self.close()
        with contextlib.suppress(StoreError, ManifestError):  # the next commit collects
            collect_garbage(self.root)

    def close(self) -> None:
        """Let go of the write; a folder that was not discarded can be resumed, in this process or another one.

        In a process that was forked meanwhile nothing happens: the write is its parent's.
        """
        state, self._state = self._state, "closed"
        if self._process != os.getpid():
            return
        try:
            # Nobody sees that a lock is free where there is none.
            if state == "open" and (self._lock is None or not self._lock.is_real):
                self._write_head(replace(self.head, pid=0))
        finally:
            _OPEN.pop(self.id, None)
            if self._lock is not None:
                self._lock.close()
            self._protection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_OPEN: weakref.WeakValueDictionary[str, Writing] = weakref.WeakValueDictionary()
"""The writes of this process, by their ids."""


# ---------------------------------------------------------------------------------------------------- unfinished writes


def unfinished_writes(root: str, *, committed: bool = False) -> tuple[UnfinishedWrite, ...]:
    """Return the writes into a dataset that somebody is at, or that were interrupted before they were committed.

    With ``committed``, also those that only have to be removed. Raises ManifestError where the head of one is damaged.

    Examples:
        >>> head = WriteHead("write", "a-%06d.tar", "train")
        >>> with Writing.begin("memory://doc/unfinished-writes", head):
        ...     [write.head.pattern for write in unfinished_writes("memory://doc/unfinished-writes")]
        ['a-%06d.tar']
    """
    writes = _writes(root)
    newest = (load_generation(root) if writes else None) or NO_GENERATION
    return tuple(
        replace(write, shards=tuple(record for _, record in sorted(_finished(root, write.id).items())))
        for write in writes
        if committed or not is_committed(root, newest, write.id)
    )


def _writes(root: str) -> list[UnfinishedWrite]:
    """Return the writes that have a folder, without their shards."""
    found = []
    for writer in sorted(filter(_ID.fullmatch, map(base_name, folders(locate(root, WRITING_FOLDER))))):
        url = locate(root, f"{WRITING_FOLDER}/{writer}/head.json")
        data = read_optional(url)
        if data is not None:
            head = _decode_head(data, url)
            found.append(UnfinishedWrite(writer, head, (), _is_alive(root, writer, head)))
    return found


def _decode_head(data: bytes, url: str) -> WriteHead:
    try:
        return msgspec.convert(decode_document(data, url), WriteHead)
    except msgspec.ValidationError as error:
        raise ManifestError("The document is not one that shoal wrote", found=str(error), shard=url) from error


def _finished(root: str, writer: str) -> dict[int, ShardRecord]:
    """Return the records of finished shards by their numbers."""
    urls = _rows_files(root, writer)
    records = run_all([partial(_read_record, url) for url in urls.values()])
    return {number: record for number, record in zip(urls, records, strict=True) if record is not None}


def _rows_files(root: str, writer: str) -> dict[int, str]:
    folder = locate(root, f"{WRITING_FOLDER}/{writer}")
    urls = [info.url for info in store_for(root).list(folder, depth=1)]
    return {int(match[1]): url for url in urls if (match := _ROWS_NAME.fullmatch(base_name(url)))}


def _read_record(url: str) -> ShardRecord | None:
    try:
        return read_record(url)
    except (ShardIndexError, ObjectNotFoundError):
        return None


def _refuse_conflict(root: str, write: UnfinishedWrite, head: WriteHead, *, exclusive: bool) -> None:
    other, is_known = write.head, write.is_alive is not None
    is_same = other.pattern == head.pattern or (other.split is not None and other.split == head.split)
    is_dead = write.is_alive is False or (not is_known and exclusive)
    if is_dead or not is_same or {other.kind, head.kind} == {"append"}:
        return
    subject = f"Split {other.split!r}" if other.split is not None else "The dataset"
    hint = "Wait until that writer has ended"
    raise ObjectExistsError(
        f"{subject} {'is' if is_known else 'may be'} being written by another writer",
        found=f"{other.pattern!r} by {other.writer}",
        shard=root,
        hint=hint if is_known else f"{hint}, or resume its write, or pass exclusive=True if nobody else writes",
    )


def _choose(root: str, dead: Sequence[UnfinishedWrite], head: WriteHead) -> str | None:
    """Return the write to go on with: of those that were asked the same, rather one that is not committed yet."""
    if not dead:
        return None
    newest, work = load_generation(root) or NO_GENERATION, _work_of(head)
    same = [write for write in dead if _work_of(write.head) == work]
    if not same:
        before = _work_of(dead[0].head)
        changed = [name for name in _WORK if before[name] != work[name]]
        raise WriteError(
            "The interrupted run was asked something else",
            expected={name: before[name] for name in changed},
            found={name: work[name] for name in changed},
            shard=join_url(root, head.pattern),
            hint="Resume with the same options, or start over",
        )
    return min(same, key=lambda write: (is_committed(root, newest, write.id), write.head.since, write.id)).id


def _work_of(head: WriteHead) -> dict[str, Any]:
    return {**{name: getattr(head, name) for name in _WORK}, "options": _as_json(head.options)}


def _as_json(options: dict[str, Any]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(msgspec.json.encode(options), type=dict[str, Any])
    except (TypeError, ValueError, msgspec.EncodeError) as error:
        raise WriteError("The options of a write must be JSON", found=str(error)) from error


def _discard_dead(root: str, write: UnfinishedWrite, is_named: Callable[[str], bool] | None) -> None:
    """Remove what a writer that died left; of a write that was committed only its folder, when its moves are done."""
    newest = load_generation(root) or NO_GENERATION
    if any(moves.writer == write.id for moves in newest.pending):
        return
    if not is_committed(root, newest, write.id):
        _remove_partial_tars(root, write.id)
        _remove_reserved(root, write.id, is_named)
        if is_named is not None and not write.head.staged:
            for record in _finished(root, write.id).values():
                if not is_named(record.path):
                    store_for(root).delete(_locate_tar(root, record.path))
    _discard_folder(root, write.id)


def _reserved_tars(root: str, writer: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the note of each tar whose name a writer has reserved, and the URL of the tar."""
    store = store_for(root)
    for info in list(store.list(locate_folder(root, f"{WRITING_FOLDER}/{writer}"), depth=1)):
        if _NOTE_NAME.fullmatch(base_name(info.url)):
            note = decode_document(store.read_all(info.url), info.url)
            yield note, _locate_tar(root, str(note.get("path")), info.url)


def _remove_reserved(root: str, writer: str, is_named: Callable[[str], bool] | None) -> None:
    """Remove tars whose names were reserved: all that ``is_named`` does not know, or without it only empty ones."""
    for note, url in _reserved_tars(root, writer):
        is_unnamed = is_named is not None and not is_named(str(note.get("path")))
        if _is_ours(writer, note if is_unnamed else {}, url):
            store_for(root).delete(url)


def _remove_partial_tars(root: str, writer: str) -> None:
    """Remove what a writer that died had begun to write beside the tars that it reserved."""
    if scheme_of(root) != "file":
        return
    folders_of_tars: dict[str, set[str]] = {}
    for _, url in _reserved_tars(root, writer):
        folder, name = os.path.split(local_path(url))
        folders_of_tars.setdefault(folder, set()).add(name)
    for folder, names in folders_of_tars.items():
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            partial_tar = _PARTIAL_TAR.fullmatch(name)
            if partial_tar is not None and partial_tar[1] in names:
                os.unlink(os.path.join(folder, name))


def _discard_folder(root: str, writer: str) -> None:
    """Remove the folder of a writer: its head first, since without it the others are garbage."""
    store_for(root).delete(locate(root, f"{WRITING_FOLDER}/{writer}/head.json"))
    remove_folder(root, f"{WRITING_FOLDER}/{writer}")


# -------------------------------------------------------------------------------------------------------- who is alive


def _signed(head: WriteHead) -> WriteHead:
    pid, since = os.getpid(), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return replace(
        head,
        options=_as_json(head.options),
        host=socket.gethostname(),
        pid=pid,
        process=_process(pid) or "",
        user=_user(),
        since=since,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # in a container that has no name for it
        return "unknown"


def _process(pid: int) -> str | None:
    """Return what tells a process from any other: machine since its last start, namespace of pids, and start.

    Empty for one that has died and was not waited for; None where nothing is known.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot, open(f"/proc/{pid}/stat", "rb") as stat:
            status = stat.read().rpartition(b")")[2].split()
            machine = f"{boot.read().strip()}:{os.readlink('/proc/self/ns/pid')}"
    except (OSError, ValueError, IndexError):
        return None
    return "" if status[0] in b"ZX" else f"{machine}:{int(status[19])}"


def _is_alive(root: str, writer: str, head: WriteHead) -> bool | None:
    """Whether a writer is at work: by its lock, and where there are no locks by its process, if that was here."""
    if scheme_of(root) == "file":
        with contextlib.suppress(ObjectNotFoundError):
            lock = try_lock_file(local_path(locate(root, f"{WRITING_FOLDER}/{writer}/lock")), shared=True, create=False)
            if lock is None:
                return True
            with lock:
                if lock.is_real:
                    return False
    if writer in _OPEN:
        return True
    if head.pid == 0:
        return False
    machine, ours = (process.rpartition(":")[0] for process in (head.process, _process(os.getpid()) or ""))
    if head.host != socket.gethostname() or (machine and ours and machine != ours):
        return None
    if head.pid == os.getpid():
        return False
    return _is_running(head.pid) and _process(head.pid) in (head.process, None)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


# ------------------------------------------------------------------------------------------------------ names of tars


def _empty_tar(writer: str) -> bytes:
    """Return a tar without members, which says after its end who reserved its name."""
    return bytes(1024) + writer.encode().ljust(512, b"\0")


def _is_ours(writer: str, note: dict[str, Any], url: str) -> bool:
    """Whether what is at ``url`` is from this writer: by its note, or because it is the empty tar."""
    if note.get("reserved") is True:
        return True
    empty = _empty_tar(writer)
    data = read_optional(url) if 0 <= _size(url) <= len(empty) else None
    return data is not None and empty.startswith(data)  # local files may be half-written


def _locate_tar(root: str, path: str, url: str | None = None) -> str:
    """As `locate`, for a tar. Raises ManifestError also for what is no place for one."""
    if path.partition("/")[0].casefold() == ".shoal":
        raise ManifestError("A path of a tar leads into the index", found=repr(path[:80]), shard=url or root)
    return locate(root, path, url)


class _ExistsError(Exception):
    pass


def _create(url: str, data: bytes) -> bool:
    """Create an object unless there is one."""
    store = store_for(url)
    if scheme_of(url) == "file":
        return _create_file(local_path(url), data)
    if not isinstance(store, UpdatingStore):  # the only writer, or it could not have begun
        if _size(url) < 0:
            store.write_all(url, data)
            return True
        return False

    def check(now: bytes | None) -> bytes:
        if now not in (None, data):  # equal after a request whose answer was lost
            raise _ExistsError
        return data

    try:
        store.update(url, check)
    except _ExistsError:
        return False
    return True


def _create_file(path: str, data: bytes) -> bool:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreError(error.strerror or str(error), found=path) from error
    return True


def _size(url: str) -> int:
    """Return the size of an object, -1 where there is none."""
    try:
        return store_for(url).info(url).size
    except ObjectNotFoundError:
        return -1


# --------------------------------------------------------------------------------------------------------------- moves


@dataclass(frozen=True, slots=True)
class _Moves:
    moved: dict[str, tuple[int, str | None]]
    """The paths of new tars, their sizes, and the versions of what they replace; None where nothing is there."""
    removed: dict[str, str]
    """Tars that are no part of the dataset any more, as far as they still have this version."""


def stage_moves(writing: Writing, paths: Iterable[str], removed: Iterable[str] = ()) -> PendingMoves:
    """List the staged tars that are to take their places, and the tars that nobody will need then.

    The result is committed with the generation that has the new tars; then `finish_moves` moves them. Raises
    ObjectNotFoundError for a tar that is not staged.
    """
    root, moved = writing.root, list(dict.fromkeys(paths))
    gone = [path for path in dict.fromkeys(removed) if path not in set(moved)]
    store = store_for(root)
    sizes = run_all([partial(store.info, _staged(root, writing.id, path)) for path in moved])
    paths = [*moved, *gone]
    versions = dict(zip(paths, run_all([partial(_version, _locate_tar(root, path)) for path in paths]), strict=True))
    moves = _Moves(
        {path: (info.size, versions[path]) for path, info in zip(moved, sizes, strict=True)},
        {path: version for path in gone if (version := versions[path]) is not None},
    )
    data = encode_document(msgspec.to_builtins(moves))
    write_document(locate(root, f"{WRITING_FOLDER}/{writing.id}/moves.json"), data)
    return PendingMoves(writing.id, len(data), crc32(data))


def finish_moves(
    root: str, generation: Generation, *, writing: Writing | None = None, exclusive: bool = False
) -> Generation:
    """Finish the moves that this generation waits for, and commit that; return the newest generation.

    Moves of a writer that is alive are left to it, unless ``writing`` is that writer. Raises ManifestError where a list
    of moves is damaged, and ObjectNotFoundError where a new tar is lost.
    """
    if not generation.pending:
        return generation
    with contextlib.ExitStack() as stack:
        ours = [each for each in generation.pending if _take_over(root, each.writer, writing, stack)]
        newest = load_generation(root) or generation  # others may have finished them before we took over
        waiting = [each for each in ours if each in newest.pending]
        for each in waiting:
            _move_tars(root, each)

        def change(parent: Generation, _: int) -> Generation:
            pending = tuple(each for each in parent.pending if each not in waiting)
            return parent if pending == parent.pending else replace(parent, pending=pending)

        if waiting:
            newest = commit(root, change, exclusive=exclusive)
        for each in ours:
            if writing is None or writing.id != each.writer:
                _discard_folder(root, each.writer)
    return newest


def staged_url(root: str, generation: Generation, path: str) -> str | None:
    """Return where a tar of this generation waits for its move; None if it has its final place.

    It may be moved at any time: who does not find it there any more opens it at its final place.
    """
    for pending in generation.pending:
        try:
            is_moved = path in _load_moves(root, pending).moved
        except ObjectNotFoundError:  # they were finished since
            continue
        url = _staged(root, pending.writer, path) if is_moved else None
        if url is not None and _size(url) >= 0:
            return url
    return None


def _staged(root: str, writer: str, path: str) -> str:
    _locate_tar(root, path)
    return locate(root, f"{WRITING_FOLDER}/{check_id(writer)}/staging/{path}")


def _take_over(root: str, writer: str, writing: Writing | None, stack: contextlib.ExitStack) -> bool:
    """Whether the moves of a writer may be finished by us; its lock is held until the stack is closed."""
    if writing is not None and writing.id == writer:
        return True
    path, head_url = f"{WRITING_FOLDER}/{check_id(writer)}", locate(root, f"{WRITING_FOLDER}/{writer}/head.json")
    data = read_optional(head_url)
    if data is None:  # nobody is there: the moves were finished, or their list is lost
        return True
    if _is_alive(root, writer, _decode_head(data, head_url)) is True:
        return False
    if scheme_of(root) == "file":
        try:
            lock = lock_file(local_path(locate(root, f"{path}/lock")), timeout_s=_LOCK_TIMEOUT_S)
        except StoreTimeoutError:
            return False
        stack.enter_context(lock)
    return True


@lru_cache(maxsize=64)
def _load_moves(root: str, pending: PendingMoves) -> _Moves:
    """Raises ObjectNotFoundError where the list is not there, ManifestError where it is another."""
    url = locate(root, f"{WRITING_FOLDER}/{check_id(pending.writer)}/moves.json")
    data = store_for(url).read_all(url)
    if (len(data), crc32(data)) != (pending.size, pending.crc32):
        raise ManifestError("The list of moves is not the one that was committed", shard=url)
    try:
        moves = msgspec.convert(decode_document(data, url), _Moves)
    except msgspec.ValidationError as error:
        raise ManifestError("The document is not one that shoal wrote", found=str(error), shard=url) from error
    for path in (*moves.moved, *moves.removed):
        _locate_tar(root, path, url)
    return moves


def _move_tars(root: str, pending: PendingMoves) -> None:
    """Move the tars; what an earlier call has moved or removed is left alone."""
    moves = _load_moves(root, pending)
    _each(root, [partial(_move_tar, root, pending.writer, path, *facts) for path, facts in moves.moved.items()])
    _each(root, [partial(_remove_tar, root, path, version) for path, version in moves.removed.items()])


def _each(root: str, works: Sequence[Callable[[], None]]) -> None:
    if scheme_of(root) == "file":  # threads would not make it quicker
        for work in works:
            work()
    else:
        run_all(works)


def _move_tar(root: str, writer: str, path: str, size: int, before: str | None) -> None:
    source, target = _staged(root, writer, path), locate(root, path)
    try:
        store_for(source).move(source, target)
    except ObjectNotFoundError:
        if _size(target) != size or _version(target) == before:
            raise ObjectNotFoundError("A new tar is lost", found=source, shard=target) from None


def _remove_tar(root: str, path: str, version: str) -> None:
    """Remove a tar, unless somebody has written another one in its place."""
    url = locate(root, path)
    if _version(url) == version:
        store_for(url).delete(url)


def _version(url: str) -> str | None:
    try:
        return store_for(url).info(url).version
    except ObjectNotFoundError:
        return None
