"""The local copy of far objects: cells of a mebibyte, each there or not, shared by all processes of the machine.

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
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ._base import ObjectInfo
from ._cache import cache_dir
from ._options import shown

__all__ = ["CELL", "CacheEntry", "CachedObject", "cache_entries", "clear_cache", "make_room"]

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
