"""The same start for everybody: nothing waits to be written, and files that are read lie freshly in memory."""

from __future__ import annotations

import os
import pathlib
import subprocess

__all__ = ["FOLDER", "freshly_cached", "settle"]

FOLDER = pathlib.Path(".bench")
"""Where everything lies that is made once and kept."""

_PIECE = bytes(256 << 10)


def settle(folder: pathlib.Path, size: int) -> None:
    """Let nothing wait to be written, and have memory at hand for ``size`` bytes of files.

    What the turn before left to be written is not this one's. And a virtual machine hands free memory back to its
    host: to get it again took six times as long as writing, and hit whoever came after a pause.
    """
    subprocess.run(["sync"], check=True)
    scratch = folder / "settle.scratch"
    with scratch.open("wb", buffering=0) as file:
        for _ in range(-(-size // len(_PIECE))):
            file.write(_PIECE)
    scratch.unlink()


def freshly_cached(path: pathlib.Path | str) -> None:
    """Have a file, or all files below a folder, in the system's cache as one reading in order leaves them there.

    A file that lay in the cache for hours, was pushed out in parts and came back page by page, is copied from it at a
    third of the speed: what was measured depended on what else the machine had done since the file was made.
    """
    root = pathlib.Path(path)
    subprocess.run(["sync"], check=True)  # what waits to be written cannot be dropped
    for file in [root] if root.is_file() else sorted(one for one in root.rglob("*") if one.is_file()):
        with file.open("rb", buffering=0) as reader:
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while reader.read(1 << 20):
                pass
