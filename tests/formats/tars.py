"""Archives for the tests of formats, made by ``tarfile`` so that ours are not their own proof."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Iterable
from pathlib import Path

import zstandard

Members = Iterable[tuple[str, bytes]]

PACKERS = {
    ".tar": bytes,
    ".tar.gz": lambda data: gzip.compress(data, mtime=0),
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
    ".tar.zst": lambda data: zstandard.ZstdCompressor().compress(data),
}

SMALL: list[tuple[str, bytes]] = [
    (f"{key}.{field}", f"{field} of {key}".encode()) for key in ("a", "b", "c") for field in ("jpg", "txt", "json")
]


def make_tar(members: Members, *, kind: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar of these members, padded only to its end marker, so that a test of every byte stays short."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        end = tar.offset
    return out.getvalue()[: end + 1024]


def write_tar(path: Path, members: Members) -> str:
    path.write_bytes(make_tar(members))
    return str(path)


def numbered(count: int, first: int = 0, fields: Iterable[str] = ("txt", "cls")) -> list[tuple[str, bytes]]:
    return [(f"{n:04d}.{field}", f"{field} {n}".encode()) for n in range(first, first + count) for field in fields]
