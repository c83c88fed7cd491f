"""Generations of a dataset: load them, commit a new one, hold one while reading, and remove what none needs any more.

A commit is a function of its parent. It writes ``.shoal/generations/<id>.json`` and replaces ``.shoal/manifest.json``
if that is still the parent; otherwise it is applied again, to the new parent. On a local disk both happen under a lock,
so whatever else is in the folder of generations comes from processes that died. Object stores replace an object only if
it is still the one that was read. Where neither works, ``exclusive=True`` says that nobody else writes.

Garbage is what no kept generation names. Readers of a local disk lock the document of their generation, and writers
lock ``.shoal/index/lock`` while there are files that no generation names yet. Elsewhere they cannot be seen, and age
decides.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Self

from shoal.errors import (
    ManifestError,
    ObjectChangedError,
    ObjectNotFoundError,
    ShoalError,
    StoreError,
    StoreTimeoutError,
    WriteError,
)
from shoal.store._base import ObjectInfo, UpdatingStore
from shoal.store._concurrency import run_all
from shoal.store._operations import folders
from shoal.store._registry import store_for
from shoal.store._snapshot import StoreSnapshot
from shoal.store._url import base_name, join_url, local_path, parent_url, relative_url, scheme_of

from ._file_lock import FileLock, lock_file, try_lock_file
from ._generation import (
    NO_GENERATION,
    Generation,
    PendingMoves,
    check_id,
    decode_generation,
    encode_generation,
    locate,
    new_id,
)
from ._layout import SEGMENT_FOLDER

__all__ = [
    "MANIFEST",
    "WRITING_FOLDER",
    "Guard",
    "Pin",
    "collect_garbage",
    "commit",
    "is_committed",
    "kept_generations",
    "load_and_pin",
    "load_generation",
    "load_kept_generation",
    "locate_folder",
    "lock_dataset",
    "pin",
    "protect_new_files",
    "read_optional",
    "remove_folder",
    "write_document",
]

MANIFEST = ".shoal/manifest.json"
WRITING_FOLDER = ".shoal/writing"
"""Each writer has a folder in it while it writes, or until somebody finishes its moves."""
_GENERATION_FOLDER = ".shoal/generations"
_LOCK = ".shoal/lock"
_INDEX_LOCK = f"{SEGMENT_FOLDER}/lock"
_KEPT_GENERATIONS = 8
_KEPT_AGE_S = 7 * 24 * 3600.0
_MAX_ATTEMPTS = 100
_MAX_PAUSE_S = 1.0
_MAX_UNLOCKED_ATTEMPTS = 2
_MAX_REREADS = 20
_MAX_REMOVED_GENERATIONS = 256
_ID = re.compile(r"[0-9a-f]{16}")
_PARTIAL_DOCUMENT = re.compile(r"\.(manifest|[0-9a-f]{16})\.json\.[0-9a-f]{16}\.partial")
_Change = Callable[[Generation, int], Generation]


class Guard(Enum):
    """What keeps two writers from replacing each other's manifest."""

    LOCK = "lock"
    CONDITION = "condition"
    """The store replaces the manifest only if it is still the one that was read."""
    NOTHING = "nothing"
    """The caller said that there is only one writer."""


# --------------------------------------------------------------------------------------------------------- documents


def load_generation(root: str) -> Generation | None:
    """Return the newest generation of a dataset, None where there is none. Raises ManifestError if it is damaged."""
    data = read_optional(locate(root, MANIFEST))
    return None if data is None else _decode(root, data)


def load_kept_generation(root: str, generation_id: str) -> Generation:
    """Return a generation by its id. Raises ObjectNotFoundError if it is not kept, ManifestError if it is damaged."""
    url = _document_url(root, generation_id)
    data = read_optional(url)
    if data is None:
        raise ObjectNotFoundError("The generation is not kept", found=generation_id, shard=root)
    generation = decode_generation(data, url)
    if generation.id != generation_id:
        raise ManifestError("The document is of another generation", found=generation.id, shard=url)
    return generation


def kept_generations(root: str) -> list[str]:
    """Return the ids of the generations that are kept, the newest first."""
    newest = load_generation(root)
    return [] if newest is None else [generation.id for generation in _chain(root, newest, load_kept_generation)]


def is_committed(root: str, newest: Generation, writer: str) -> bool:
    """Whether the write is part of the newest generation, as far as its parents are kept."""
    is_moving = any(moves.writer == writer for moves in newest.pending)
    return is_moving or any(generation.writer == writer for generation in _chain(root, newest))


@functools.lru_cache(maxsize=64)
def _load_known(root: str, generation_id: str) -> Generation:
    """As `load_kept_generation`: a document never changes, and its id is never used again."""
    return load_kept_generation(root, generation_id)


def _chain(root: str, newest: Generation, load: Callable[[str, str], Generation] = _load_known) -> Iterator[Generation]:
    """Yield a generation and its parents, as far as they are kept."""
    seen, generation = set[str](), newest
    while generation.id not in seen:  # parents cannot lead in a circle, unless somebody changed the files
        seen.add(generation.id)
        yield generation
        if generation.parent is None:
            return
        try:
            generation = load(root, generation.parent)
        except ObjectNotFoundError:
            return


def _document_url(root: str, generation_id: str) -> str:
    return locate(root, f"{_GENERATION_FOLDER}/{check_id(generation_id)}.json")


def _decode(root: str, data: bytes | None) -> Generation:
    return NO_GENERATION if data is None else decode_generation(data, locate(root, MANIFEST))


def read_optional(url: str) -> bytes | None:
    """Return the bytes of an object, None where there is none."""
    store = store_for(url)
    with contextlib.suppress(ObjectNotFoundError):
        for _ in range(_MAX_REREADS):
            with contextlib.suppress(ObjectChangedError):  # it was replaced between two requests
                return store.read_all(url)
        return store.read_all(url)
    return None


def write_document(url: str, data: bytes) -> None:
    """Replace a document in one step, and wait until it would survive a power cut."""
    writer = store_for(url).create(url)
    try:
        writer.write(data)
        writer.commit(durable=True)
    except BaseException:
        writer.abort()
        raise


# ------------------------------------------------------------------------------------------------------------- locks


def _is_local(root: str) -> bool:
    return scheme_of(root) == "file"


def _path(root: str, path: str) -> str:
    return local_path(locate(root, path))


def locate_folder(root: str, path: str) -> str:
    """As `locate`, for a folder, which may not be a symbolic link that leads out of the dataset itself."""
    return parent_url(locate(root, f"{path}/file"))


def lock_dataset(root: str) -> FileLock | contextlib.nullcontext[None]:
    """Lock a dataset on a local disk until the result is closed, which is short. It is not reentrant.

    Elsewhere nothing is locked. Raises StoreTimeoutError after waiting for a minute.
    """
    return lock_file(_path(root, _LOCK)) if _is_local(root) else contextlib.nullcontext()


@contextlib.contextmanager
def protect_new_files(root: str, *, exclusive: bool = False) -> Iterator[Guard]:
    """Keep garbage collection away from files of the index that no generation names yet, while they are written.

    It may be entered again inside. Raises StoreError where two writers could replace each other's commits, unless
    ``exclusive`` says that there is only one.
    """
    if not _is_local(root):
        yield _guard_of_store(root, exclusive=exclusive)
        return
    with lock_file(_path(root, _INDEX_LOCK), shared=True) as lock:
        if not lock.is_real and not exclusive:
            raise StoreError(
                "The file system has no locks, so that writers could replace each other's changes",
                found=local_path(root),
                hint="Pass exclusive=True if nobody else writes to this dataset",
            )
        yield Guard.LOCK if lock.is_real else Guard.NOTHING


def _guard_of_store(root: str, *, exclusive: bool) -> Guard:
    if exclusive:
        return Guard.NOTHING
    bucket = re.match(r"[^/]*//[^/]*", root)
    if not _has_conditions(root if bucket is None else bucket[0], root):
        raise StoreError(
            "The store cannot replace an object only if nobody has changed it, so that writers could replace each "
            "other's changes",
            found=root,
            hint="Pass exclusive=True if nobody else writes to this dataset",
        )
    return Guard.CONDITION


_KNOWN_CONDITIONS: dict[str, bool] = {}


def _has_conditions(bucket: str, root: str) -> bool:
    """Whether the store replaces an object only if it is unchanged. Some servers ignore the condition: try it once."""
    store = store_for(root)
    if not isinstance(store, UpdatingStore):
        return False
    if scheme_of(root) == "memory":
        return True
    if bucket not in _KNOWN_CONDITIONS:
        url = locate(root, f"{_GENERATION_FOLDER}/{new_id()}.probe")
        calls = itertools.count()

        def change(_: bytes | None) -> bytes:
            if next(calls) < 2:  # be the other writer: once where there is no object, once where there is one
                store.write_all(url, new_id().encode())
            return b"probe"

        try:
            store.update(url, change)
        finally:
            store.delete(url)
        _KNOWN_CONDITIONS[bucket] = next(calls) >= 3
    return _KNOWN_CONDITIONS[bucket]


# ------------------------------------------------------------------------------------------------------------ commit


class _LostRaceError(Exception):
    def __init__(self, data: bytes | None) -> None:
        super().__init__()
        self.data = data


def commit(
    root: str,
    change: _Change,
    *,
    new_lineage: bool = False,
    writer: str | None = None,
    pending: PendingMoves | None = None,
    exclusive: bool = False,
) -> Generation:
    """Make a new generation of what ``change`` makes of the newest, `NO_GENERATION` where there is none; return it.

    ``change(parent, attempt)`` is called again, with the next number, when somebody else was faster; it may write
    files of the index, and returns its argument where nothing is to change. A ``writer`` whose write was committed
    before is not committed again: then the newest generation is returned. ``pending`` are the moves that make the tars
    of this generation available; those of an earlier generation must be finished first.

    Raises what ``change`` raises, StoreError where only ``exclusive=True`` allows it, and StoreTimeoutError when others
    keep the dataset locked or changing. After any error that ``change`` did not raise the generation may have been
    committed: then the files that it names must be left to garbage collection.

    Examples:
        >>> first = commit("memory://doc/commit", lambda parent, attempt: replace(parent, metadata={"by": "me"}))
        >>> load_generation("memory://doc/commit") == first
        True
    """
    with protect_new_files(root, exclusive=exclusive) as guard:
        generation = _commit(root, change, guard, new_lineage=new_lineage, writer=writer, pending=pending)
    # Listing an object store after every commit would cost more than it saves.
    if guard is Guard.LOCK or generation.id.endswith("0"):
        with contextlib.suppress(ShoalError):  # the commit is made; the next one collects what this one left
            collect_garbage(root)
    return generation


def _commit(
    root: str, change: _Change, guard: Guard, *, new_lineage: bool, writer: str | None, pending: PendingMoves | None
) -> Generation:
    url = locate(root, MANIFEST)
    before = _read_current(url)
    for attempt in range(_MAX_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            if guard is Guard.LOCK and attempt >= _MAX_UNLOCKED_ATTEMPTS:  # now nobody can be faster
                stack.enter_context(lock_dataset(root))
                before = _read_current(url)
            parent = _decode(root, before)
            if writer is not None and is_committed(root, parent, writer):
                return parent
            if pending is not None and parent.pending:
                raise WriteError(
                    "The tars of an earlier write are not all moved to their places yet",
                    found=parent.pending[0].writer,
                    shard=root,
                    hint="Wait for that write, or run it again if it was interrupted",
                )
            with _pin_parent(root, parent):
                made = change(parent, attempt)
            if made is parent and writer is None and pending is None and not new_lineage:
                return parent
            generation = _next(parent, made, new_lineage=new_lineage, writer=writer, pending=pending)
            data = encode_generation(generation)
            decode_generation(data, url)  # nothing is committed that cannot be read
            if guard is Guard.LOCK and attempt < _MAX_UNLOCKED_ATTEMPTS:
                stack.enter_context(lock_dataset(root))
            replace_manifest = _replace_conditionally if guard is Guard.CONDITION else _replace
            now = replace_manifest(root, generation, before, data)
            if now == data:
                return generation
            before = now
        if guard is Guard.CONDITION:
            time.sleep(random.uniform(0, min(0.01 * 2**attempt, _MAX_PAUSE_S)))  # noqa: S311 - nothing secret
    raise StoreTimeoutError("Other writers keep changing the dataset", found=root, hint="Run this again")


def _next(
    parent: Generation, made: Generation, *, new_lineage: bool, writer: str | None, pending: PendingMoves | None
) -> Generation:
    generation_id = new_id()
    return replace(
        made,
        id=generation_id,
        parent=parent.id or None,
        lineage=generation_id if new_lineage or not parent.id else parent.lineage,
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        writer=writer,
        pending=made.pending if pending is None else (*made.pending, pending),
    )


def _read_current(url: str) -> bytes | None:
    """As `read_optional`, but never from a snapshot of the store that is active."""
    with StoreSnapshot().active():
        return read_optional(url)


def _replace(root: str, generation: Generation, before: bytes | None, data: bytes) -> bytes | None:
    """Replace the manifest if it is still the parent's; return its bytes afterwards. The caller holds the lock."""
    url = locate(root, MANIFEST)
    now = _read_current(url)
    if now == before:
        write_document(_document_url(root, generation.id), data)
        write_document(url, data)
        return data
    return now


def _replace_conditionally(root: str, generation: Generation, before: bytes | None, data: bytes) -> bytes | None:
    url, document = locate(root, MANIFEST), _document_url(root, generation.id)
    store = store_for(url)
    if not isinstance(store, UpdatingStore):
        raise TypeError(type(store).__name__)  # `_guard_of_store` has looked
    write_document(document, data)

    def check(now: bytes | None) -> bytes:
        if now != before:
            raise _LostRaceError(now)
        return data

    try:
        store.update(url, check)
    except _LostRaceError as lost:
        # A request whose answer was lost is sent again, and then our own manifest, or one made of it, is in the way.
        if _follows(root, lost.data, generation):
            return data
        store.delete(document)
        return lost.data
    return data


def _follows(root: str, data: bytes | None, generation: Generation) -> bool:
    """Whether a manifest was made of this generation."""
    newest = _decode(root, data)
    until_parent = itertools.takewhile(lambda each: each.id != generation.parent, _chain(root, newest))
    return any(each.id == generation.id for each in until_parent)


# -------------------------------------------------------------------------------------------------------------- pins


class Pin:
    """Keeps a generation from being removed, until it is closed. Processes that are forked meanwhile keep it, too."""

    def __init__(self, lock: FileLock | None) -> None:
        self._lock = lock

    def close(self) -> None:
        """Let go of the generation."""
        if self._lock is not None:
            self._lock.close(in_children=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pin(root: str, generation_id: str) -> Pin:
    """Keep a generation while it is read. Raises ObjectNotFoundError if it was removed before.

    Nothing is written: the document of the generation is locked, where it is on a local disk with locks. Elsewhere a
    generation is kept for a week after the next one was committed.
    """
    if not _is_local(root):
        return Pin(None)
    try:
        lock = try_lock_file(
            _path(root, f"{_GENERATION_FOLDER}/{check_id(generation_id)}.json"), shared=True, create=False
        )
    except ObjectNotFoundError:
        raise _not_kept(root, generation_id) from None
    except StoreError:  # it may not be opened by us
        return Pin(None)
    if lock is None or lock.is_deleted:  # it is being removed
        if lock is not None:
            lock.close()
        raise _not_kept(root, generation_id)
    return Pin(lock)


def _not_kept(root: str, generation_id: str) -> ObjectNotFoundError:
    return ObjectNotFoundError("The generation is not kept", found=generation_id, shard=root)


def load_and_pin(root: str) -> tuple[Generation, Pin] | None:
    """Return the newest generation, and what keeps it; None where there is none. Raises ManifestError."""
    generation = load_generation(root)
    while generation is not None:
        try:
            return generation, pin(root, generation.id)
        except ObjectNotFoundError:
            newest = load_generation(root)
            if newest is not None and newest.id == generation.id:  # only its document is missing
                return generation, Pin(None)
            generation = newest
    return None


def _pin_parent(root: str, parent: Generation) -> Pin:
    """A parent that was removed since it was read, is not the newest any more: the commit is made again."""
    try:
        return pin(root, parent.id) if parent.id else Pin(None)
    except ObjectNotFoundError:
        return Pin(None)


# ----------------------------------------------------------------------------------------------------------- garbage


def collect_garbage(root: str) -> int:
    """Remove files of the index that no kept generation names; return how many. Commits call it.

    Kept are the last 8 generations and those that readers of this disk hold; on object stores, and on disks without
    locks, also those that were the newest at any time in the last week. What may not be removed stays. Raises
    ManifestError, and removes nothing, where a kept generation is damaged, and StoreError.
    """
    try:
        if not _is_local(root):
            return _collect_by_age(root)
        if not os.path.isdir(local_path(locate_folder(root, _GENERATION_FOLDER))):
            return 0
        with lock_file(_path(root, _LOCK)) as lock:
            return _collect_unlocked(root) if lock.is_real else _collect_by_age(root)
    except ShoalError:
        raise
    except OSError as error:
        raise StoreError(error.strerror or str(error), found=error.filename) from error


def _collect_unlocked(root: str) -> int:
    """Collect what nobody has locked. The caller holds the lock of the dataset."""
    newest = load_generation(root)
    if newest is None:  # then nothing is known of the others
        return 0
    kept = list(itertools.islice(_chain(root, newest), _KEPT_GENERATIONS))
    folder = local_path(locate_folder(root, _GENERATION_FOLDER))
    stems = {name.removesuffix(".json") for name in os.listdir(folder) if name.endswith(".json")}
    others = sorted(filter(_ID.fullmatch, stems - {generation.id for generation in kept}))
    with contextlib.ExitStack() as locks:
        # Locked until it is removed: a reader that asks for it now is told that it is not kept.
        free = [each for each in others[:_MAX_REMOVED_GENERATIONS] if _lock_document(folder, each, locks)]
        held = [_load_known(root, each) for each in sorted(set(others) - set(free))]
        named = {path for generation in (*kept, *held) for path in generation.files()}
        removed = _remove_partial_documents(os.path.dirname(folder)) + _remove_partial_documents(folder)
        for each in free:
            files = _files_of(root, each) - named
            if _unlink(os.path.join(folder, f"{each}.json")):  # before its files: a kept document has all of them
                removed += 1 + sum(_unlink(_path(root, path)) for path in files)
            else:
                named |= files
    _remove_ended_writers(root, kept)
    return removed + _sweep_index(root, newest, named)


def _lock_document(folder: str, generation_id: str, locks: contextlib.ExitStack) -> bool:
    """Lock the document of a generation until the stack is closed; False where others hold it."""
    try:
        lock = try_lock_file(os.path.join(folder, f"{generation_id}.json"), create=False)
    except StoreError:  # it may not be opened by us
        return False
    if lock is not None:
        locks.enter_context(lock)
    return lock is not None


def _remove_partial_documents(folder: str) -> int:
    """Whoever writes these documents holds the lock, so a half-written one comes from a process that died."""
    names = [name for name in os.listdir(folder) if _PARTIAL_DOCUMENT.fullmatch(name)]
    return sum(_unlink(os.path.join(folder, name)) for name in names)


def _files_of(root: str, generation_id: str) -> set[str]:
    """The files that a generation names that is not kept; a damaged one names none, and they are swept."""
    try:
        return set(load_kept_generation(root, generation_id).files())
    except (ManifestError, ObjectNotFoundError):
        return set()


def _unlink(path: str) -> bool:
    """Remove a file; False if it is not there, or may not be removed."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _sweep_index(root: str, newest: Generation, named: set[str]) -> int:
    """Remove what no generation names or ever named, unless somebody is writing such files."""
    top = local_path(locate_folder(root, SEGMENT_FOLDER))
    lock = try_lock_file(_path(root, _INDEX_LOCK))
    if lock is None:
        return 0
    removed = 0
    with lock:
        for segment in filter(_ID.fullmatch, os.listdir(top)):
            folder = os.path.join(top, segment)
            if os.path.islink(folder) or not os.path.isdir(folder):
                removed += _unlink(folder)
                continue
            names = os.listdir(folder)
            extra = [name for name in names if f"{SEGMENT_FOLDER}/{segment}/{name}" not in named]
            removed += sum(_unlink(os.path.join(folder, name)) for name in extra)
            if len(extra) == len(names):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        for writer in _writers_without_head(root, newest):
            remove_folder(root, f"{WRITING_FOLDER}/{writer}")
    return removed


def _writers(root: str) -> list[str]:
    return [name for name in map(base_name, folders(locate_folder(root, WRITING_FOLDER))) if _ID.fullmatch(name)]


def _writers_without_head(root: str, newest: Generation) -> list[str]:
    """Return writers that died before they had begun, or when they had ended; not those whose tars are to be moved."""
    moving = {moves.writer for moves in newest.pending}
    return [writer for writer in _writers(root) if writer not in moving and not _has_head(root, writer)]


def _has_head(root: str, writer: str) -> bool:
    try:
        url = join_url(locate(root, f"{WRITING_FOLDER}/{writer}"), "head.json")
        store_for(url).info(url)
    except ObjectNotFoundError:
        return False
    return True


def _remove_ended_writers(root: str, kept: Sequence[Generation]) -> None:
    """Remove folders of writers that died after their write was committed and its tars were moved.

    The head goes first: where it is, all that the writer had finished is there, too.
    """
    ended = {generation.writer for generation in kept} - {moves.writer for moves in kept[0].pending}
    for writer in _writers(root):
        if writer in ended:
            store_for(root).delete(locate(root, f"{WRITING_FOLDER}/{writer}/head.json"))
            remove_folder(root, f"{WRITING_FOLDER}/{writer}")


def remove_folder(root: str, path: str) -> None:
    """Remove a folder below the root, with everything in it."""
    url = locate(root, path)
    if not _is_local(root):
        _delete_all([info.url for info in store_for(url).list(url)])
    elif os.path.islink(local_path(url)):
        _unlink(local_path(url))
    else:
        shutil.rmtree(local_path(url), ignore_errors=True)  # it follows no links


def _collect_by_age(root: str) -> int:
    """Collect what was not needed for a week, by the clock of the store: those of its clients may be wrong."""
    newest = load_generation(root)
    if newest is None:
        return 0
    store = store_for(root)
    documents, now = _list_documents(root)

    def is_young(info: ObjectInfo | None) -> bool:
        return info is None or info.modified is None or now is None or info.modified > now - _KEPT_AGE_S

    by_id = {_stem(info): info for info in documents}
    young = [each for each in by_id if _ID.fullmatch(each) and is_young(by_id[each])]
    loaded = _load_all(root, young)
    kept = []
    for generation in _chain(root, newest, lambda root, each: loaded.get(each) or _load_known(root, each)):
        kept.append(generation)
        if len(kept) >= _KEPT_GENERATIONS and not is_young(by_id.get(generation.id)):
            break  # its parent has not been the newest for a week
    named = {path for generation in (*kept, *loaded.values()) for path in generation.files()}
    kept_ids = {generation.id for generation in kept}
    extra = [info for info in documents if not is_young(info) and _stem(info) not in kept_ids]
    ids = filter(_ID.fullmatch, map(_stem, extra))
    old = set().union(*run_all([functools.partial(_files_of, root, each) for each in ids])) - named
    known = named | old
    orphans = [
        info.url
        for info in store.list(locate_folder(root, SEGMENT_FOLDER))
        if _is_of_segment(info, root) and relative_url(info.url, root) not in known and not is_young(info)
    ]
    files = [*[locate(root, path) for path in sorted(old)], *orphans]
    _delete_all([info.url for info in extra])  # before their files: a kept document has all of them
    _delete_all(files)
    _remove_ended_writers(root, kept)
    for writer in _writers_without_head(root, newest):
        if not any(is_young(info) for info in store.list(locate_folder(root, f"{WRITING_FOLDER}/{writer}"))):
            remove_folder(root, f"{WRITING_FOLDER}/{writer}")
    return len(files) + len(extra)


def _list_documents(root: str) -> tuple[list[ObjectInfo], float | None]:
    """Return what is in the folder of generations, and the time by the clock of the store."""
    folder = locate_folder(root, _GENERATION_FOLDER)
    probe, store = join_url(folder, f"{new_id()}.probe"), store_for(folder)
    store.write_all(probe, b"probe")
    try:
        infos = list(store.list(folder))
    finally:
        store.delete(probe)
    times = [info.modified for info in infos if base_name(info.url) == base_name(probe)]
    return [info for info in infos if base_name(info.url) != base_name(probe)], times[0] if times else None


def _load_all(root: str, ids: Iterable[str]) -> dict[str, Generation]:
    """Load generations in parallel, except those that are removed at this moment."""

    def load(generation_id: str) -> Generation | None:
        with contextlib.suppress(ObjectNotFoundError):
            return load_kept_generation(root, generation_id)
        return None

    generations = run_all([functools.partial(load, each) for each in ids])
    return {generation.id: generation for generation in generations if generation is not None}


def _delete_all(urls: Iterable[str]) -> None:
    run_all([functools.partial(store_for(url).delete, url) for url in urls])


def _stem(info: ObjectInfo) -> str:
    name = base_name(info.url)
    return name.removesuffix(".json") if name.endswith(".json") else ""


def _is_of_segment(info: ObjectInfo, root: str) -> bool:
    parts = relative_url(info.url, join_url(root, SEGMENT_FOLDER)).split("/")
    return len(parts) == 2 and _ID.fullmatch(parts[0]) is not None
