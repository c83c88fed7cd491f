"""The on-disk cache of remote objects, shared by all processes of a machine.

<cache>/objects/<hash of URL, version and size>/
        object.json      URL, version and size of the object; marks the folder as part of the cache
        data             the bytes, with holes for chunks that were not fetched yet
        done-<chunk>     this chunk is complete; contains its checksum and the boot id when it was written
        claim-<chunk>    a process is fetching this chunk; contains that process
        whole            every chunk is complete; contains the boot id when that was found

Beside it are files that were made of objects: <cache>/unpacked, index, offsets and atmosphere; and folders of files
that belong together: <cache>/lists. All of them count towards ``cache_bytes``, and the least recently used of all
leave. A process reserves the bytes of a chunk before it writes them, and checks the total before it has added more than
a 64th of the limit. So the limit holds for any number of threads, and for several processes as long as few write at the
same time.

There are no locks. A chunk's bytes are written before its ``done`` file appears, by a rename; two processes that fetch
the same chunk write the same bytes. A power cut may lose bytes of chunks that are marked as done, so a ``done`` file of
another boot is valid only if the checksum is right. A folder is renamed before it is removed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from shoal._crc32 import crc32
from shoal.errors import StoreError

from ._base import ObjectInfo, ObjectReader, RemoteObjectReader, RemoteReader
from ._fork import register_after_fork
from ._local import LocalStore
from ._options import options_for, shown
from ._read_only import RenamedReader

__all__ = [
    "CacheEntry",
    "CachedObject",
    "CachedReader",
    "cache_dir",
    "cache_entries",
    "cached_reader",
    "clear_cache",
    "count_added",
    "mark_used",
]

CHUNK_BYTES = 1 << 20
_FOLDER = "objects"
_DESCRIPTION = "object.json"
_WHOLE = "whole"
_STALE_CLAIM_S = 120.0
"""A claim of a process on another machine, which cannot be checked, is ignored after this time."""
_TOUCH_EVERY_S = 60.0
_MAX_WAIT_S = 30.0
"""How long to wait for another process's download before the chunk is fetched here too."""
_POLL_S = 0.005, 0.1
_FILE_FOLDERS = ("unpacked", "index", "offsets", "atmosphere")
_GROUP_FOLDER = "lists"
"""Its folders leave as a whole."""
_MAX_UNCHECKED_BYTES = 64 << 20
"""The size of the cache is checked each time a process has added a 64th of the limit, but at most this many bytes."""
_BLOCK_BYTES = 4096
_STALE_PARTIAL_S = 86_400.0
"""A temporary file that nobody has written for this long was left behind by a process that died."""
_MAX_END_BYTES = 64 << 10
_MAX_CHUNKS_PER_DOWNLOAD = 16
"""Chunks that are claimed at a time; few, so that other readers wait only for chunks that are being fetched."""


def cache_dir() -> str:
    """The user's cache folder for shoal: ``$SHOAL_CACHE``, else the platform's own place for caches."""
    if chosen := os.environ.get("SHOAL_CACHE"):
        return chosen
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "shoal")
    if os.name == "nt":
        return os.path.join(os.environ.get("LOCALAPPDATA", home), "shoal", "cache")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "shoal")


def cached_reader(reader: ObjectReader, mode: str | None) -> ObjectReader:
    """Return a reader that uses the cache; the reader itself for mode None and for local objects.

    With mode ``"blocks"`` the chunks that are read are cached. With ``"shards"`` the complete object is cached before
    this returns. An object that is completely cached is read like any file. If the cache cannot be written, or the
    object alone is larger than the cache may be, bytes are requested each time; that is no error.
    """
    if mode is None or not isinstance(reader, RemoteReader):
        return reader
    if reader.info.size > options_for(reader.info.url).cache_bytes:
        return reader
    made = CachedReader(reader)
    if mode == "shards":
        made.fetch_all()
    whole = made.local()
    return made if whole is None else whole


class CachedReader:
    """Reads an object of which some chunks are on disk and the others remote."""

    def __init__(self, reader: RemoteObjectReader) -> None:
        self._reader = reader
        self._copy = CachedObject(reader.info)
        self._limit = options_for(reader.info.url).cache_bytes
        self._usable = False
        self._whole: ObjectReader | None = None
        try:
            self._copy.open()
            self._usable = True
        except OSError:
            pass

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    @property
    def is_remote(self) -> bool:
        """Whether some chunks are not on disk."""
        return self._whole is None

    def local(self) -> ObjectReader | None:
        """Return the copy as a file if it is complete, or lacks only its end, which is then fetched; else None."""
        if self._whole is None and self._usable:
            with contextlib.suppress(OSError, StoreError):  # a cache that fails is not used
                self._fetch_end()
                if self._copy.is_whole():
                    self._whole = _LocalCopy(LocalStore().open(self._copy.path), self.info)
        return self._whole

    def _fetch_end(self) -> None:
        """Readers never request the end-of-archive padding, so the cached copy would never be complete."""
        start, stop = self._copy.bounds(self._copy.chunks - 1)
        if 0 < stop - start <= _MAX_END_BYTES and self._copy.lacks_end():
            self.read(start, stop)

    def fetch_all(self) -> None:
        """Fetch all chunks."""
        for _ in self.stream(0, self.info.size):
            pass
        self.local()

    def read(self, start: int, stop: int) -> bytes:
        if self._whole is not None:
            return self._whole.read(start, stop)
        pieces = list(self.stream(start, stop))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        if self._whole is not None:
            return self._whole.read_many(starts, stops)
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """Yield the bytes ``[start, stop)``; chunks that have to be fetched are fetched completely."""
        stop = min(stop, self.info.size)
        if start >= stop:
            return
        if not self._usable:
            yield from self._reader.stream(start, stop)
            return
        at = start // CHUNK_BYTES * CHUNK_BYTES
        with contextlib.closing(self._chunks(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES))) as pieces:
            for piece in pieces:
                low, high = max(start - at, 0), min(stop - at, len(piece))
                at += len(piece)
                if low < high:
                    yield piece if high - low == len(piece) else piece[low:high]

    def _chunks(self, first: int, last: int) -> Generator[bytes]:
        """Yield chunks from disk or from the remote object, in order, in pieces."""
        while first < last:
            if self._has(first):
                yield self._from_disk(first)
                first += 1
                continue
            run = itertools.takewhile(
                lambda chunk: not self._has(chunk), range(first, min(last, first + _MAX_CHUNKS_PER_DOWNLOAD))
            )
            claims = ChunkLocks(self._copy, run)
            try:
                yield from self._download(claims) if claims.chunks else self._wait_for(first)
            finally:
                claims.close()
            first += max(1, len(claims.chunks))

    def _has(self, chunk: int) -> bool:
        try:
            return self._copy.has(chunk)
        except (OSError, ValueError):
            return False

    def _from_disk(self, chunk: int) -> bytes:
        low, high = self._copy.bounds(chunk)
        try:
            data = self._copy.read(low, high)
        except OSError:
            data = b""
        if len(data) == high - low:
            return data
        with contextlib.suppress(OSError):  # the file was truncated
            self._copy.forget(chunk)
        return self._reader.read(low, high)

    def _wait_for(self, chunk: int) -> Generator[bytes]:
        """Wait for a chunk that another thread or process is fetching; after a while fetch it here too."""
        ends, pause = time.monotonic() + _MAX_WAIT_S, _POLL_S[0]
        while not self._has(chunk) and time.monotonic() < ends and is_claimed(self._copy, chunk):
            threading.Event().wait(pause)
            pause = min(2 * pause, _POLL_S[1])
        if self._has(chunk):
            yield self._from_disk(chunk)
            return
        claims = ChunkLocks(self._copy, [chunk], force=True)
        try:
            yield from self._download(claims)
        finally:
            claims.close()

    def _download(self, claims: ChunkLocks) -> Generator[bytes]:
        chunks = claims.chunks
        at, stop = self._copy.bounds(chunks[0])[0], self._copy.bounds(chunks[-1])[1]
        crc, chunk = 0, chunks[0]
        reserved = 0
        pieces = self._reader.stream(at, stop)
        try:
            with contextlib.closing(pieces):
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        start, end = self._copy.bounds(chunk)
                        if at == start:
                            reserved = self._reserve(end - start)
                        part = rest[: end - at]
                        crc = crc32(part, crc)
                        if reserved:
                            self._keep(at, part)
                        at, rest = at + len(part), rest[len(part) :]
                        if at == end:
                            if reserved:
                                self._finish(chunk, crc)
                            cancel_reservation(reserved)
                            claims.release(chunk)
                            crc, chunk, reserved = 0, chunk + 1, 0
                    yield piece
        finally:
            cancel_reservation(reserved)
        self.local()

    def _reserve(self, size: int) -> int:
        """Reserve room for a chunk; return how many bytes, 0 if it is not to be cached."""
        size += 2 * _BLOCK_BYTES
        return size if self._usable and reserve(self._copy.folder, size, self._limit) else 0

    def _keep(self, at: int, part: memoryview) -> None:
        if self._usable:
            try:
                self._copy.write(at, part)
            except OSError:  # the disk is full, or gone
                self._usable = False

    def _finish(self, chunk: int, crc: int) -> None:
        if not self._usable:
            return
        try:
            self._copy.mark_done(chunk, crc)
        except OSError:
            self._usable = False

    def close(self) -> None:
        self._copy.close()
        self._reader.close()
        if self._whole is not None:
            self._whole.close()


class _LocalCopy(RenamedReader):
    """The file of a complete copy, under the URL and version of the object."""

    def __init__(self, reader: ObjectReader, info: ObjectInfo) -> None:
        super().__init__(reader, info)
        self.read_into = reader.read_into  # type: ignore[attr-defined]


class CachedObject:
    """The cache folder of one object. Every method may raise OSError, which callers treat as "not cached"."""

    def __init__(self, info: ObjectInfo, root: str | None = None) -> None:
        name = hashlib.sha256(repr((info.url, info.size, info.version)).encode()).hexdigest()
        self.folder = os.path.join(cache_dir() if root is None else root, _FOLDER, name)
        self.size = info.size
        self._info = info
        self._data = -1
        self._verified: set[int] = set()

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.size // CHUNK_BYTES)

    @property
    def path(self) -> str:
        """The file with the bytes."""
        return os.path.join(self.folder, "data")

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Where a chunk starts and stops in the object."""
        return chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, self.size)

    def open(self) -> None:
        """Create the folder if needed, and update its time of last use."""
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, _DESCRIPTION)
        try:
            if time.time() - os.stat(path).st_mtime > _TOUCH_EVERY_S:
                os.utime(path)
        except FileNotFoundError:
            description = {"shoal": 1, "url": shown(self._info.url), "version": self._info.version, "size": self.size}
            self._write_file(_DESCRIPTION, msgspec.json.encode(description))
        if self._data < 0:
            self._data = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)

    def has(self, chunk: int) -> bool:
        """Whether a chunk is complete; the checksum of one written before the last boot is verified."""
        if chunk in self._verified:
            return True
        try:
            with open(os.path.join(self.folder, f"done-{chunk}"), "rb") as file:
                crc, _, boot = file.read().partition(b" ")
        except FileNotFoundError:
            return False
        if boot != boot_id() and int(crc, 16) != crc32(self.read(*self.bounds(chunk))):
            self.forget(chunk)
            return False
        self._verified.add(chunk)
        return True

    @functools.cached_property
    def _is_whole(self) -> bool:
        if self._is_marked_whole():
            return True
        if not self._has_all(self.chunks):
            return False
        self._write_file(_WHOLE, boot_id())
        # `forget` removes this mark last, so one of the two sees what the other did.
        if not all(os.path.exists(os.path.join(self.folder, f"done-{chunk}")) for chunk in range(self.chunks)):
            self._unlink(_WHOLE)
            return False
        return True

    def _is_marked_whole(self) -> bool:
        """Whether it was found to be complete since the last boot: one file to read instead of one per chunk."""
        try:
            with open(os.path.join(self.folder, _WHOLE), "rb") as file:
                return file.read() == boot_id()
        except FileNotFoundError:
            return False

    def _has_all(self, count: int) -> bool:
        return all(map(self.has, range(count)))

    def is_whole(self) -> bool:
        """Whether every chunk is complete; not checked again once they are."""
        if not self._is_whole:
            del self._is_whole
            return False
        return True

    def lacks_end(self) -> bool:
        """Whether every chunk but the last is complete."""
        last = self.chunks - 1
        return not self.has(last) and self._has_all(last)

    def forget(self, chunk: int) -> None:
        """Mark a chunk as missing."""
        self._verified.discard(chunk)
        self._unlink(f"done-{chunk}")
        self._unlink(_WHOLE)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, name))

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes of chunks that are complete."""
        return os.pread(self._data, stop - start, start)

    def write(self, start: int, piece: bytes | memoryview) -> None:
        """Write bytes; nobody reads them before `mark_done`."""
        view = memoryview(piece)
        while view:
            written = os.pwrite(self._data, view, start)
            view, start = view[written:], start + written

    def mark_done(self, chunk: int, crc: int) -> None:
        """Mark a chunk as complete."""
        if os.fstat(self._data).st_nlink == 0:  # the folder was removed: the file is unlinked
            raise FileNotFoundError(errno.ENOENT, "the cache was cleared", self.folder)
        self._write_file(f"done-{chunk}", f"{crc:08x} ".encode() + boot_id())
        self._verified.add(chunk)

    def _write_file(self, name: str, data: bytes) -> None:
        temporary = os.path.join(self.folder, f".{name}.{secrets.token_hex(8)}.partial")
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, os.path.join(self.folder, name))

    def claim(self, chunk: int) -> bool:
        """Claim a chunk for this process; return False if another live process has claimed it."""
        path = os.path.join(self.folder, f"claim-{chunk}")
        for _ in range(3):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                if not self._is_abandoned(path):
                    return False
                continue
            with open(descriptor, "wb") as file:
                file.write(_this_process())
            return True
        return False

    def _is_abandoned(self, path: str) -> bool:
        """Whether the claiming process is gone; then its claim is removed."""
        try:
            with open(path, "rb") as file:
                owner = file.read()
            age = time.time() - os.stat(path).st_mtime
        except FileNotFoundError:
            return True
        if _is_alive(owner, age):
            return False
        aside = f"{path}.{secrets.token_hex(8)}.partial"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)
            os.unlink(aside)
        return True

    def is_claimed(self, chunk: int) -> bool:
        """Whether a live process has claimed a chunk."""
        path = os.path.join(self.folder, f"claim-{chunk}")
        return os.path.exists(path) and not self._is_abandoned(path)

    def unclaim(self, chunk: int) -> None:
        """Remove the claim of this process."""
        self._unlink(f"claim-{chunk}")

    def close(self) -> None:
        if self._data >= 0:
            os.close(self._data)
            self._data = -1

    def __del__(self) -> None:
        self.close()


_lock = threading.Lock()
_FETCHING: set[tuple[str, int]] = set()
"""Chunks that threads of this process are fetching; claims are per process."""


def _reset_after_fork() -> None:
    """The child has none of the threads."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    _FETCHING.clear()
    _added.clear()
    _reserved.clear()


register_after_fork(_reset_after_fork)


class ChunkLocks:
    """Locks that let one thread per machine download each chunk.

    Takes ``chunks`` in order up to the first that another thread or process has; with ``force`` all of them.
    """

    def __init__(self, copy: CachedObject, chunks: Iterable[int], *, force: bool = False) -> None:
        self._copy = copy
        self.chunks: list[int] = []
        self._left: set[int] = set()
        for chunk in chunks:
            if self._take(chunk):
                self._left.add(chunk)
            elif not force:
                break
            self.chunks.append(chunk)

    def _take(self, chunk: int) -> bool:
        with _lock:
            if (self._copy.folder, chunk) in _FETCHING:
                return False
            _FETCHING.add((self._copy.folder, chunk))
        try:
            taken = self._copy.claim(chunk)
        except OSError:  # nothing can be claimed: every process fetches for itself
            taken = True
        if not taken:
            with _lock:
                _FETCHING.discard((self._copy.folder, chunk))
        return taken

    def release(self, chunk: int) -> None:
        """Release a chunk that was downloaded or given up."""
        if chunk in self._left:
            self._left.discard(chunk)
            with contextlib.suppress(OSError):
                self._copy.unclaim(chunk)
            with _lock:
                _FETCHING.discard((self._copy.folder, chunk))

    def close(self) -> None:
        """Release all that are left."""
        for chunk in list(self._left):
            self.release(chunk)


def is_claimed(copy: CachedObject, chunk: int) -> bool:
    """Whether another thread or process is downloading a chunk."""
    with _lock:
        if (copy.folder, chunk) in _FETCHING:
            return True
    try:
        return copy.is_claimed(chunk)
    except OSError:
        return False


@functools.cache
def boot_id() -> bytes:
    """Return an id that changes with every boot; the host name where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        import platform

        return platform.node().encode()


def _this_process() -> bytes:
    pid = os.getpid()
    return b" ".join((str(pid).encode(), _start_time(pid), boot_id()))


def _start_time(pid: int) -> bytes:
    """Return when a process started, in ticks: process ids are reused."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19]
    except (OSError, IndexError):
        return b"-"


def _is_alive(owner: bytes, age: float) -> bool:
    """Whether the process that wrote a claim is alive; if that cannot be checked, whether the claim is recent."""
    parts = owner.split(b" ")
    if len(parts) != 3:  # the claim is incomplete: just being written, or abandoned
        return age < 1.0
    if parts[2] != boot_id():
        return age < _STALE_CLAIM_S
    pid = int(parts[0])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _start_time(pid) == parts[1]


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An object of which the cache has some bytes."""

    url: str
    version: str
    size: int
    held: int
    """Bytes of it on disk."""
    used: float
    """When it was last opened, in seconds since 1970."""
    folder: str


def cache_entries(root: str | None = None) -> list[CacheEntry]:
    """What is in the cache, the least lately used first.

    Examples:
        >>> cache_entries("no-such-folder")
        []
    """
    folder = os.path.join(cache_dir() if root is None else root, _FOLDER)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [entry for name in names if (entry := _entry(os.path.join(folder, name))) is not None]
    return sorted(found, key=lambda entry: entry.used)


def _entry(folder: str) -> CacheEntry | None:
    """Return the entry of a folder; None if it is not part of the cache."""
    path = os.path.join(folder, _DESCRIPTION)
    try:
        with open(path, "rb") as file:
            description = msgspec.json.decode(file.read())
        used, held = os.stat(path).st_mtime, _disk_bytes(os.stat(os.path.join(folder, "data")))
        return CacheEntry(description["url"], description["version"], description["size"], held, used, folder)
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return None


def clear_cache(prefix: str = "", root: str | None = None) -> int:
    """Remove the copies of objects whose URLs start with ``prefix``; return how many bytes they took.

    Processes that read from them go on, and fetch again what they need later. Nothing else in the folder is touched.

    Examples:
        >>> clear_cache(root="no-such-folder")
        0
    """
    gone = [entry for entry in cache_entries(root) if entry.url.startswith(prefix) and _remove(entry.folder)]
    return sum(entry.held for entry in gone)


_added: dict[str, int] = {}
"""Bytes that this process has added to each cache folder since it checked the size."""
_reserved: dict[str, int] = {}
"""Bytes that threads of this process are about to write to each cache folder."""


def count_added(path: str, size: int, limit: int) -> None:
    """Count bytes that were added to the cache, and make room when it is time to check.

    The first bytes that a process adds are checked at once: many short processes may add little each. ``path`` is the
    file or folder that was written, and is not removed. ``limit`` is the ``cache_bytes`` of what was added.
    """
    root, step = cache_dir(), _unchecked_bytes(limit)
    with _lock:
        due = _is_check_due(root, size, step)
    if due:
        make_room(max(limit - 2 * step, limit // 2), path, root)


def reserve(path: str, size: int, limit: int) -> bool:
    """Make room for bytes that are about to be written to ``path``; return False if too many are being written already.

    As `count_added`, but before the bytes are there. Call `cancel_reservation` when they are.
    """
    root, step = cache_dir(), _unchecked_bytes(limit)
    with _lock:
        others = _reserved.get(root, 0)
        if others and others + size > limit // 2 - step:
            return False
        _reserved[root] = others + size
        due = _is_check_due(root, size, step)
    if due:
        make_room(max(limit - 2 * step - others - size, limit // 2 - step), path, root)
    return True


def cancel_reservation(size: int) -> None:
    """Release bytes that were reserved, after they were written or given up."""
    with _lock:
        _reserved[cache_dir()] = max(0, _reserved.get(cache_dir(), 0) - size)


def _unchecked_bytes(limit: int) -> int:
    return min(max(limit // 64, CHUNK_BYTES), _MAX_UNCHECKED_BYTES)


def _is_check_due(root: str, size: int, step: int) -> bool:
    """Whether a process that adds so many bytes has to check the size of the cache now; `_lock` is held."""
    total = _added.get(root, step) + size
    _added[root] = 0 if total >= step else total
    return total >= step


def mark_used(path: str) -> None:
    """Update the time of last use of a file in the cache."""
    with contextlib.suppress(OSError):
        if time.time() - os.stat(path).st_mtime > _TOUCH_EVERY_S:
            os.utime(path)


def make_room(max_bytes: int, keep: str, root: str | None = None) -> None:
    """Where the cache takes more than ``max_bytes``, remove the least recently used until it takes an eighth less.

    ``keep`` is not removed.
    """
    folder = cache_dir() if root is None else root
    entries = sorted([*_object_usages(folder), *_file_usages(folder), *_group_usages(folder)])
    total = sum(size for _, size, _ in entries)
    if total <= max_bytes:
        return
    for _, size, path in entries:
        if total <= max_bytes - max_bytes // 8:
            return
        if os.path.abspath(path) != os.path.abspath(keep) and _discard(path):
            total -= size


def _object_usages(root: str) -> Generator[tuple[float, int, str]]:
    """Last use, bytes on disk and folder of each object; only ``stat`` is called, since there may be many."""
    for folder in _scan(os.path.join(root, _FOLDER)):
        with contextlib.suppress(OSError):
            used = os.stat(os.path.join(folder.path, _DESCRIPTION)).st_mtime
            size = _disk_bytes(os.stat(os.path.join(folder.path, "data")))
            yield used, size + _BLOCK_BYTES * (3 + -(-size // CHUNK_BYTES)), folder.path


def _file_usages(root: str) -> Generator[tuple[float, int, str]]:
    """Last use, bytes on disk and path of each file that was made of objects."""
    folders = [os.path.join(root, name) for name in _FILE_FOLDERS]
    while folders:
        for entry in _scan(folders.pop()):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                stat = entry.stat(follow_symlinks=False)
                yield stat.st_mtime, _disk_bytes(stat), entry.path


def _group_usages(root: str) -> Generator[tuple[float, int, str]]:
    """Last use, bytes on disk and path of each folder of files that belong together."""
    for group in _scan(os.path.join(root, _GROUP_FOLDER)):
        with contextlib.suppress(OSError):
            paths = (os.path.join(folder, name) for folder, _, names in os.walk(group.path) for name in names)
            yield group.stat().st_mtime, sum(_disk_bytes(os.stat(path)) for path in paths), group.path


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _disk_bytes(stat: os.stat_result) -> int:
    """Bytes on disk: files of the cache have holes."""
    return min(getattr(stat, "st_blocks", stat.st_size // 512) * 512, stat.st_size)


def _discard(path: str) -> bool:
    """Remove a folder or a file; one that is being written stays."""
    with contextlib.suppress(OSError):
        is_partial = os.path.basename(path).startswith(".")
        if is_partial and time.time() - os.stat(path).st_mtime < _STALE_PARTIAL_S:
            return False
        if os.path.isdir(path):
            return _remove(path)
        os.unlink(path)
        return True
    return False


def _remove(folder: str) -> bool:
    aside = f"{folder}.{secrets.token_hex(8)}.removed"
    try:
        os.rename(folder, aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True
