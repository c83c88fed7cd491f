"""The on-disk cache of remote objects, shared by all processes of a machine.

<cache>/objects/<hash of URL, version and size>/
        object.json     which object this is: what makes the folder ours
        data            the bytes, with holes where nothing was fetched yet
        done-<cell>     this cell is there; holds its checksum and the boot in which it was written
        claim-<cell>    some process is fetching it; holds who
        whole           every cell is there; holds the boot in which that was found

Nothing is locked. A cell's bytes are written before its ``done`` appears, by a rename; two processes that fetch the
same cell write the same bytes. After the machine was switched off bytes may be lost that were said to be there, so a
``done`` of another boot is believed only when the checksum is right. A folder leaves by being renamed first.
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
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from shoal.errors import StoreError

from ._base import ObjectInfo, ObjectReader, RemoteReader, anew_in_child
from ._local import LocalStore
from ._options import options_for, shown

if TYPE_CHECKING:
    from typing import Protocol

    class _Far(RemoteReader, ObjectReader, Protocol): ...


__all__ = ["CacheEntry", "CachedObject", "CachedReader", "cache_dir", "cache_entries", "cached_reader", "clear_cache"]


# ------------------------------------------------------------------------------- where things go that can be made again


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


# ----------------------------------------------------------------------------- a far object read through its local copy


_LONGEST_WAIT = 30.0
"""Seconds that another process's download is waited for; then the cell is fetched here too."""
_POLL = 0.005, 0.1
_CHECK_EVERY = 64 << 20
"""Bytes written after which the size of the cache is looked at."""
_LONGEST_END = 64 << 10
_MOST_RUN = 16
"""Cells that are claimed at a time: what others wait for is being fetched, not only planned."""


def cached_reader(reader: ObjectReader, mode: str | None) -> ObjectReader:
    """The reader through the cache, as ``mode`` says: ``"blocks"`` or ``"shards"``; as it is for None, or if near.

    With ``"shards"`` the whole object is here when this returns. An object that is here wholly is read like any file. A
    cache that cannot be written costs requests, nothing else.
    """
    if mode is None or not isinstance(reader, RemoteReader):
        return reader
    made = CachedReader(reader)
    if mode == "shards":
        made.fetch_all()
    whole = made.local()
    return made if whole is None else whole


class CachedReader:
    """Some cells on disk, the others far away; both are one object."""

    def __init__(self, reader: _Far) -> None:
        self._reader = reader
        self._copy = CachedObject(reader.info)
        self._usable = False
        self._written = 0
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
    def is_far(self) -> bool:
        """Whether some of it is still to be fetched."""
        return self._whole is None

    def local(self) -> ObjectReader | None:
        """The copy as a file, where it is whole, or lacks only its end, which is then fetched."""
        if self._whole is None and self._usable:
            with contextlib.suppress(OSError, StoreError):  # a cache that fails is none
                self._fetch_end()
                if self._copy.is_whole():
                    self._whole = _Renamed(LocalStore().open(self._copy.path), self.info)
        return self._whole

    def _fetch_end(self) -> None:
        """A tar ends with some kilobytes that who reads samples never comes to: it would never be whole."""
        start, stop = self._copy.bounds(self._copy.cells - 1)
        if 0 < stop - start <= _LONGEST_END and self._copy.lacks_end():
            self.read(start, stop)

    def fetch_all(self) -> None:
        """Have all of it on disk."""
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
        """The bytes, whole cells at a time where they have to be fetched."""
        stop = min(stop, self.info.size)
        if start >= stop:
            return
        if not self._usable:
            yield from self._reader.stream(start, stop)
            return
        at = start // CELL * CELL
        with contextlib.closing(self._cells(start // CELL, -(-stop // CELL))) as pieces:
            for piece in pieces:
                low, high = max(start - at, 0), min(stop - at, len(piece))
                at += len(piece)
                if low < high:
                    yield piece if high - low == len(piece) else piece[low:high]

    def _cells(self, first: int, last: int) -> Generator[bytes]:
        """Cells from disk or from afar, in order, in pieces."""
        while first < last:
            if self._has(first):
                yield self._from_disk(first)
                first += 1
                continue
            run = itertools.takewhile(lambda cell: not self._has(cell), range(first, min(last, first + _MOST_RUN)))
            claims = ChunkLocks(self._copy, run)
            try:
                yield from self._download(claims) if claims.cells else self._awaited(first)
            finally:
                claims.close()
            first += max(1, len(claims.cells))

    def _has(self, cell: int) -> bool:
        try:
            return self._copy.has(cell)
        except (OSError, ValueError):
            return False

    def _from_disk(self, cell: int) -> bytes:
        low, high = self._copy.bounds(cell)
        try:
            data = self._copy.read(low, high)
        except OSError:
            data = b""
        if len(data) == high - low:
            return data
        with contextlib.suppress(OSError):  # the file was cut: a cache never says what is not so
            self._copy.forget(cell)
        return self._reader.read(low, high)

    # ----------------------------------------------------------------------------------------------------- fetching

    def _awaited(self, cell: int) -> Generator[bytes]:
        """A cell that another thread or process is fetching; after a while it is fetched here too."""
        ends, pause = time.monotonic() + _LONGEST_WAIT, _POLL[0]
        while not self._has(cell) and time.monotonic() < ends and is_claimed(self._copy, cell):
            threading.Event().wait(pause)
            pause = min(2 * pause, _POLL[1])
        if self._has(cell):
            yield self._from_disk(cell)
            return
        claims = ChunkLocks(self._copy, [cell], force=True)
        try:
            yield from self._download(claims)
        finally:
            claims.close()

    def _download(self, claims: ChunkLocks) -> Generator[bytes]:
        cells = claims.cells
        at, stop = self._copy.bounds(cells[0])[0], self._copy.bounds(cells[-1])[1]
        crc, cell = 0, cells[0]
        pieces = self._reader.stream(at, stop)
        with contextlib.closing(pieces):
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    end = self._copy.bounds(cell)[1]
                    part = rest[: end - at]
                    crc = crc32(part, crc)
                    self._keep(at, part)
                    at, rest = at + len(part), rest[len(part) :]
                    if at == end:
                        self._finish(cell, crc)
                        claims.give(cell)
                        crc, cell = 0, cell + 1
                yield piece
        self.local()

    def _keep(self, at: int, part: memoryview) -> None:
        if self._usable:
            try:
                self._copy.write(at, part)
            except OSError:  # the disk is full, or gone
                self._usable = False

    def _finish(self, cell: int, crc: int) -> None:
        if not self._usable:
            return
        try:
            self._copy.done(cell, crc)
        except OSError:
            self._usable = False
            return
        self._written += CELL
        if self._written >= _CHECK_EVERY:
            self._written = 0
            make_room(options_for(self.info.url).cache_bytes, self._copy.folder)

    def close(self) -> None:
        self._copy.close()
        self._reader.close()
        if self._whole is not None:
            self._whole.close()


class _Renamed:
    """A file under the URL and version of the object it is a copy of."""

    def __init__(self, reader: ObjectReader, info: ObjectInfo) -> None:
        self.info = info
        self._reader = reader
        self.read = reader.read
        self.read_many = reader.read_many
        self.read_into = reader.read_into  # type: ignore[attr-defined]
        self.close = reader.close


# ---------------------------------------------------------------------------------------- the local copy of far objects


CELL = 1 << 20
_FOLDER = "objects"
_FACTS = "object.json"
_WHOLE = "whole"
_STALE_CLAIM = 120.0
"""Seconds after which a claim of another machine, which cannot be asked, is not believed."""
_TOUCH_EVERY = 60.0


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


class CachedObject:
    """One object's folder. Every method may fail with OSError, which whoever calls it takes for «not cached»."""

    def __init__(self, info: ObjectInfo, root: str | None = None) -> None:
        name = hashlib.sha256(repr((info.url, info.size, info.version)).encode()).hexdigest()
        self.folder = os.path.join(cache_dir() if root is None else root, _FOLDER, name)
        self.size = info.size
        self._info = info
        self._data = -1
        self._believed: set[int] = set()

    @property
    def cells(self) -> int:
        """How many there are."""
        return -(-self.size // CELL)

    @property
    def path(self) -> str:
        """The file with the bytes."""
        return os.path.join(self.folder, "data")

    def bounds(self, cell: int) -> tuple[int, int]:
        """Where a cell starts and stops in the object."""
        return cell * CELL, min((cell + 1) * CELL, self.size)

    def open(self) -> None:
        """Make the folder if need be, and note that it is used."""
        os.makedirs(self.folder, exist_ok=True)
        facts = os.path.join(self.folder, _FACTS)
        try:
            if time.time() - os.stat(facts).st_mtime > _TOUCH_EVERY:
                os.utime(facts)
        except FileNotFoundError:
            told = {"shoal": 1, "url": shown(self._info.url), "version": self._info.version, "size": self.size}
            self._appear(_FACTS, msgspec.json.encode(told))
        if self._data < 0:
            self._data = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)

    def has(self, cell: int) -> bool:
        """Whether a cell is there, and right if it is of another boot."""
        if cell in self._believed:
            return True
        try:
            with open(os.path.join(self.folder, f"done-{cell}"), "rb") as file:
                crc, _, boot = file.read().partition(b" ")
        except FileNotFoundError:
            return False
        if boot != boot_id() and int(crc, 16) != _crc(self.read(*self.bounds(cell))):
            self.forget(cell)
            return False
        self._believed.add(cell)
        return True

    @functools.cached_property
    def _is_whole(self) -> bool:
        if self._is_noted_whole():
            return True
        if not self._has_all(self.cells):
            return False
        self._appear(_WHOLE, boot_id())
        # Who forgets a cell takes the note away last: one of the two looks after the other.
        if not all(os.path.exists(os.path.join(self.folder, f"done-{cell}")) for cell in range(self.cells)):
            self._unlink(_WHOLE)
            return False
        return True

    def _is_noted_whole(self) -> bool:
        """Whether it was found to be whole in this boot: one look in place of one for each cell."""
        try:
            with open(os.path.join(self.folder, _WHOLE), "rb") as file:
                return file.read() == boot_id()
        except FileNotFoundError:
            return False

    def _has_all(self, count: int) -> bool:
        return all(map(self.has, range(count)))

    def is_whole(self) -> bool:
        """Whether every cell is there; once they are, that is not looked for again."""
        if not self._is_whole:
            del self._is_whole
            return False
        return True

    def lacks_end(self) -> bool:
        """Whether every cell is there but the last."""
        last = self.cells - 1
        return not self.has(last) and self._has_all(last)

    def forget(self, cell: int) -> None:
        """Say that a cell is not there."""
        self._believed.discard(cell)
        self._unlink(f"done-{cell}")
        self._unlink(_WHOLE)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, name))

    def read(self, start: int, stop: int) -> bytes:
        """Bytes that are there."""
        return os.pread(self._data, stop - start, start)

    def write(self, start: int, piece: bytes | memoryview) -> None:
        """Put bytes where they belong; nobody sees them before `done`."""
        view = memoryview(piece)
        while view:
            written = os.pwrite(self._data, view, start)
            view, start = view[written:], start + written

    def done(self, cell: int, crc: int) -> None:
        """A cell's bytes are all written."""
        if os.fstat(self._data).st_nlink == 0:  # the folder was cleared: what we wrote is in nobody's sight
            raise FileNotFoundError(errno.ENOENT, "the cache was cleared", self.folder)
        self._appear(f"done-{cell}", f"{crc:08x} ".encode() + boot_id())
        self._believed.add(cell)

    def _appear(self, name: str, data: bytes) -> None:
        temporary = os.path.join(self.folder, f".{name}.{secrets.token_hex(8)}.partial")
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, os.path.join(self.folder, name))

    # ------------------------------------------------------------------------------------------------------- claims

    def claim(self, cell: int) -> bool:
        """Whether this process is the one to fetch a cell: it is, unless another that lives has said so."""
        path = os.path.join(self.folder, f"claim-{cell}")
        for _ in range(3):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                if not self._is_abandoned(path):
                    return False
                continue
            with open(descriptor, "wb") as file:
                file.write(_self_id())
            return True
        return False

    def _is_abandoned(self, path: str) -> bool:
        """Whether who claimed is gone; then the claim is taken away, by one of those who find it so."""
        try:
            with open(path, "rb") as file:
                owner = file.read()
            age = time.time() - os.stat(path).st_mtime
        except FileNotFoundError:
            return True
        if _lives(owner, age):
            return False
        aside = f"{path}.{secrets.token_hex(8)}.partial"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)
            os.unlink(aside)
        return True

    def is_claimed(self, cell: int) -> bool:
        """Whether a process that lives is fetching a cell."""
        path = os.path.join(self.folder, f"claim-{cell}")
        return os.path.exists(path) and not self._is_abandoned(path)

    def unclaim(self, cell: int) -> None:
        """Let others fetch it."""
        self._unlink(f"claim-{cell}")

    def close(self) -> None:
        if self._data >= 0:
            os.close(self._data)
            self._data = -1

    def __del__(self) -> None:
        self.close()


@functools.cache
def boot_id() -> bytes:
    """What changes when the machine is switched on; the machine's name where nothing tells."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        import platform

        return platform.node().encode()


def _self_id() -> bytes:
    pid = os.getpid()
    return b" ".join((str(pid).encode(), _born(pid), boot_id()))


def _born(pid: int) -> bytes:
    """When a process began, in ticks: numbers of processes are used again."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19]
    except (OSError, IndexError):
        return b"-"


def _lives(owner: bytes, age: float) -> bool:
    """Whether who wrote a claim is still at work; where that cannot be asked, whether it was lately."""
    parts = owner.split(b" ")
    if len(parts) != 3:  # it is being written, or never will be
        return age < 1.0
    if parts[2] != boot_id():
        return age < _STALE_CLAIM
    pid = int(parts[0])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _born(pid) == parts[1]


def _crc(data: bytes) -> int:
    from zlib import crc32

    return crc32(data)


# ----------------------------------------------------------------------------------------------------------- the whole


def cache_entries(root: str | None = None) -> list[CacheEntry]:
    """What is in the cache, the least lately used first.

    Example:
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
    """None for what is not ours."""
    facts = os.path.join(folder, _FACTS)
    try:
        with open(facts, "rb") as file:
            told = msgspec.json.decode(file.read())
        used, data = os.stat(facts).st_mtime, os.stat(os.path.join(folder, "data"))
        held = min(getattr(data, "st_blocks", data.st_size // 512) * 512, data.st_size)
        return CacheEntry(told["url"], told["version"], told["size"], held, used, folder)
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return None


def clear_cache(prefix: str = "", root: str | None = None) -> int:
    """Remove the copies of objects whose URLs start with ``prefix``; return how many bytes they took.

    Processes that read from them go on, and fetch again what they need later. Nothing else in the folder is touched.

    Example:
        >>> clear_cache(root="no-such-folder")
        0
    """
    gone = [entry for entry in cache_entries(root) if entry.url.startswith(prefix) and _remove(entry.folder)]
    return sum(entry.held for entry in gone)


def make_room(most_bytes: int, keep: str, root: str | None = None) -> None:
    """Remove what was not used for longest until the cache takes at most this; ``keep`` is a folder that stays."""
    entries = cache_entries(root)
    total = sum(entry.held for entry in entries)
    for entry in _removable(entries, keep):
        if total <= most_bytes:
            return
        if _remove(entry.folder):
            total -= entry.held


def _removable(entries: list[CacheEntry], keep: str) -> Iterator[CacheEntry]:
    return (entry for entry in entries if entry.folder != keep)


def _remove(folder: str) -> bool:
    aside = f"{folder}.{secrets.token_hex(8)}.removed"
    try:
        os.rename(folder, aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


# --------------------------------------------------------------------------- who fetches which cells of a cached object


_lock = threading.Lock()
_HERE: set[tuple[str, int]] = set()
"""What threads of this process are fetching: files tell it of other processes only."""


def _renew() -> None:
    """The child has none of the threads."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    _HERE.clear()


anew_in_child(_renew)


class ChunkLocks:
    """Cells that this thread fetches: those of ``cells``, from the first on, that nobody else does.

    With ``force`` all of them, whoever else does.
    """

    def __init__(self, copy: CachedObject, cells: Iterable[int], *, force: bool = False) -> None:
        self._copy = copy
        self.cells: list[int] = []
        self._left: set[int] = set()
        for cell in cells:
            if self._take(cell):
                self._left.add(cell)
            elif not force:
                break
            self.cells.append(cell)

    def _take(self, cell: int) -> bool:
        with _lock:
            if (self._copy.folder, cell) in _HERE:
                return False
            _HERE.add((self._copy.folder, cell))
        try:
            taken = self._copy.claim(cell)
        except OSError:  # nothing can be claimed: everybody fetches for itself
            taken = True
        if not taken:
            with _lock:
                _HERE.discard((self._copy.folder, cell))
        return taken

    def give(self, cell: int) -> None:
        """It is there, or will not be."""
        if cell in self._left:
            self._left.discard(cell)
            with contextlib.suppress(OSError):
                self._copy.unclaim(cell)
            with _lock:
                _HERE.discard((self._copy.folder, cell))

    def close(self) -> None:
        """Let go of those that are left."""
        for cell in list(self._left):
            self.give(cell)


def is_claimed(copy: CachedObject, cell: int) -> bool:
    """Whether another thread or process is fetching a cell."""
    with _lock:
        if (copy.folder, cell) in _HERE:
            return True
    try:
        return copy.is_claimed(cell)
    except OSError:
        return False
