"""The same start for every turn of contenders that write much."""

from __future__ import annotations

import pathlib
import subprocess

__all__ = ["settle"]

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
