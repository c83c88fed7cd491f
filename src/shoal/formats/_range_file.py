"""A stored object as a file, for libraries that read files."""

from __future__ import annotations

import io
import os
from typing import Any

from shoal.store import ObjectReader, local_path, scheme_of

__all__ = ["RangeFile", "file_for"]


class RangeFile(io.RawIOBase):
    """An open object, read by ranges; each has a place of its own, so it belongs to one thread at a time."""

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__()
        self._reader = reader
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.info.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._reader.read(self._at, self._at + len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def file_for(reader: ObjectReader) -> Any:
    """What a library can open: the path of a local file, else a file over its ranges."""
    if scheme_of(reader.info.url) == "file":
        return local_path(reader.info.url)
    return io.BufferedReader(RangeFile(reader), 1 << 18)
