"""Who is writing, or has written, a folder of a repository: so that garbage is told from work in progress.

Each folder of a repository has a small document that is written before anything else in it. It names the index that
the data is for, and the process that writes it. Data that no entry stands for is garbage when its writer is gone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from shoal.errors import ObjectNotFoundError, StoreError
from shoal.store import join_url, store_for

__all__ = [
    "OWNER",
    "Owner",
    "begin",
    "condemn",
    "end",
    "is_writing",
    "mark_done",
    "owner_url",
    "read_owner",
    "renew",
    "write_owner",
]

OWNER = ".shoal/owner.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who wrote a folder, for which index."""

    index: str
    host: str
    process: int
    started: str
    """When the process began: a number may be given to another one later."""
    renewed_at: float
    state: Literal["writing", "done", "condemned"] = "writing"


def owner_url(folder: str) -> str:
    """Where a folder's owner is written."""
    return join_url(folder, OWNER)


def this_owner(index: str) -> Owner:
    """This process, as an owner."""
    return Owner(index, this_host(), os.getpid(), _started(os.getpid()) or "", time.time())


def write_owner(folder: str, index: str) -> None:
    """Say that this process writes the folder."""
    _put(folder, this_owner(index))


def _put(folder: str, owner: Owner) -> None:
    url = owner_url(folder)
    store_for(url).write_all(url, msgspec.json.encode(owner))


def mark_done(folder: str, index: str) -> None:
    """Say that the folder is whole and recorded: from now on it is garbage when no entry stands for it."""
    with contextlib.suppress(StoreError):  # it is then taken for unfinished, until this process ends
        _put(folder, replace(this_owner(index), state="done"))


def condemn(folder: str, owner: Owner) -> None:
    """Say that a folder is being removed, so that nobody finishes it."""
    _put(folder, replace(owner, state="condemned"))


def read_owner(folder: str) -> Owner | None:
    """Who wrote a folder; None where nobody says so."""
    url = owner_url(folder)
    try:
        return msgspec.json.decode(store_for(url).read_all(url), type=Owner)
    except (ObjectNotFoundError, msgspec.DecodeError):
        return None


@functools.cache
def this_host() -> str:
    """This machine since it was last started; a container with processes of its own is another machine."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        facts.append(file.read().strip())
    with contextlib.suppress(OSError):
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _started(process: int) -> str | None:
    """When a process began, in the kernel's own ticks; None when there is no such process, "" when nobody knows."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _alive(process)
    except OSError:
        return ""
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()  # a zombie writes nothing


def _alive(process: int) -> str | None:
    if os.name == "nt":
        return ""  # to ask there is to end the process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""


_writing: set[str] = set()
_lock = threading.Lock()


def begin(folder: str, index: str) -> None:
    """Say, here and in the folder, that this process writes it."""
    with _lock:
        _writing.add(folder)
    write_owner(folder, index)


def end(folder: str) -> None:
    """This process is done with the folder. Not to be said while the last word to the database may still arrive."""
    with _lock:
        _writing.discard(folder)


def is_writing(folder: str, owner: Owner, patience: float) -> bool:
    """Whether the writer of a folder may still be at work; one on another machine for ``patience`` seconds more."""
    if owner.state != "writing":
        return False
    if owner.host != this_host():
        return time.time() - owner.renewed_at < patience
    if owner.process == os.getpid():
        with _lock:
            return folder in _writing
    started = _started(owner.process)
    return started is not None and started in ("", owner.started)


def renew(folder: str, index: str) -> None:
    """Say that the writer is still at work. Raises StoreError when the folder was taken for garbage meanwhile."""
    owner = read_owner(folder)
    if owner is None or owner.state == "condemned":
        raise StoreError(
            "the folder was removed while it was written",
            found=folder,
            hint="run gc with more patience: its writer took longer than that",
        )
    write_owner(folder, index)
