"""One process at a time changes what a dataset's manifest says.

A manifest is read, changed and written again: two writers that end at the same time in one folder would each write one
without the other's shards. On a local disk they take turns, by a lock that the system holds on the folder of sidecars
and gives back when a process dies, however it does; nobody waits for longer than a minute, and no file is left. An
object store has no such lock: there the manifest is replaced on condition that it is still the one that was read (see
`update_manifest`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from shoal.errors import StoreTimeoutError
from shoal.store import join_url, local_path, scheme_of

from ._open import SIDECAR_FOLDER

__all__ = ["turn"]

_LONGEST_WAIT = 60.0
_LONGEST_PAUSE = 0.05


@contextlib.contextmanager
def turn(root: str) -> Iterator[None]:
    """Wait until no other process or thread changes the dataset at ``root``, and keep them waiting meanwhile.

    It cannot be taken twice by one thread. Where there are no such locks (an object store, some network disks) it does
    nothing. Raises StoreTimeoutError when it is not our turn within a minute: who holds it was stopped in the middle.
    """
    folder = local_path(join_url(root, SIDECAR_FOLDER)) if scheme_of(root) == "file" else None
    descriptor = None if folder is None else _opened(folder)
    if folder is None or descriptor is None:
        yield
        return
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _opened(folder: str) -> int | None:
    """None where it cannot be: nothing can be changed there either, and the store says so in its own words."""
    try:
        os.makedirs(folder, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None


def _lock(descriptor: int, folder: str) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    deadline, pause = time.monotonic() + _LONGEST_WAIT, 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _too_long(folder) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        except OSError:  # the file system has none
            return
        else:
            return


def _too_long(folder: str) -> StoreTimeoutError:
    return StoreTimeoutError(
        "another process is changing the dataset, and does not come to an end",
        found=folder,
        hint="see what became of it; when it has ended, run this again",
    )
