"""Locks on local files: ``flock``, which the system releases when a process dies, however it dies.

A lock belongs to the open file, so it must never be taken on a file that is replaced by a rename: whoever opens the new
file would not see it. Processes that were forked while it was held have that open file, too: if the one that locked it
dies, the lock stays until they have ended.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from shoal.errors import AccessDeniedError, ObjectNotFoundError, StoreError, StoreTimeoutError

__all__ = ["FileLock", "lock_file", "try_lock_file"]

_TIMEOUT_S = 60.0
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_MAX_PAUSE_S = 0.05
_LOCK_OPTIONS = {
    "nfs": ("nolock", "local_lock=flock", "local_lock=all"),
    "nfs4": ("nolock", "local_lock=flock", "local_lock=all"),
    "lustre": ("localflock",),
}
"""Options with which these file systems are mounted when other machines do not see a lock, although taking it works."""


class FileLock:
    """A lock until it is closed. ``is_real`` is False where the file system has no locks: then nothing is locked."""

    def __init__(self, descriptor: int, *, is_real: bool) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        self.is_real = is_real

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self, *, in_children: bool = True) -> None:
        """Release the lock; unless ``in_children``, processes that were forked while it was held keep it.

        In such a process it stays locked for the others.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if in_children and self.is_real and self._process == os.getpid():
            with contextlib.suppress(OSError):
                _flock(descriptor, "unlock")
        os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def lock_file(path: str, *, shared: bool = False, timeout_s: float = _TIMEOUT_S) -> FileLock:
    """Lock a file, which is created, and wait for others. Raises StoreTimeoutError, by default after a minute."""
    deadline, pause = time.monotonic() + timeout_s, 0.001
    while (lock := try_lock_file(path, shared=shared)) is None:
        if time.monotonic() > deadline:
            raise StoreTimeoutError(
                "Another process is changing the dataset, and does not come to an end",
                found=path,
                hint="When that process has ended, run this again",
            )
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_S)
    return lock


def try_lock_file(path: str, *, shared: bool = False, create: bool = True) -> FileLock | None:
    """Lock a file; None where others hold it. Without ``create`` it must exist. Raises StoreError.

    A file that may have to be created is never a symbolic link: it would be created somewhere else.
    """
    descriptor = _open(path, create=create)
    try:
        is_locked = _flock(descriptor, "shared" if shared else "alone")
    except BaseException:
        os.close(descriptor)
        raise
    if is_locked is False:
        os.close(descriptor)
        return None
    return FileLock(descriptor, is_real=is_locked is True)


def _open(path: str, *, create: bool) -> int:
    try:
        if create:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        no_follow = _NO_FOLLOW if create else 0
        try:
            return os.open(path, os.O_RDWR | no_follow | (os.O_CREAT if create else 0), 0o666)
        except OSError as error:
            try:  # on a local disk a lock needs no permission to write; on NFS it does
                return os.open(path, os.O_RDONLY | no_follow)
            except FileNotFoundError:
                raise error from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ObjectNotFoundError("File not found", found=path) from error
    except PermissionError as error:
        raise AccessDeniedError("Permission denied", found=path) from error
    except OSError as error:
        raise StoreError(error.strerror or str(error), found=path) from error


def _flock(descriptor: int, operation: str) -> bool | None:
    """Lock or unlock without waiting: False where others hold it, None where there are no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    operations = {"alone": fcntl.LOCK_EX | fcntl.LOCK_NB, "shared": fcntl.LOCK_SH | fcntl.LOCK_NB}
    try:
        fcntl.flock(descriptor, operations.get(operation, fcntl.LOCK_UN))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return None if _is_local_only(os.fstat(descriptor).st_dev) else True


@functools.lru_cache(maxsize=64)
def _is_local_only(device: int) -> bool:
    """Whether other machines that mount this file system do not see its locks."""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        return f"{os.major(device)}:{os.minor(device)}" in _devices_without_locks(mounts)
    return False


def _devices_without_locks(mounts: Iterable[str]) -> set[str]:
    """Return the devices in lines of ``/proc/self/mountinfo`` that are mounted with local locks only."""
    devices = set()
    for line in mounts:
        mount, _, system = line.partition(" - ")
        kind, *_, options = system.strip().split(" ")
        if not set(_LOCK_OPTIONS.get(kind, ())).isdisjoint(options.split(",")):
            devices.add(mount.split(" ")[2])
    return devices
