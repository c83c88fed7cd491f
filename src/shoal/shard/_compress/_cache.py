"""Compressed tars that cannot be read from the middle, unpacked once into the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

from shoal.errors import ShoalError, StoreError, TarError
from shoal.shard._tar import SupportsRead
from shoal.store import LocalStore, ObjectReader, ObjectWriter, local_path, scheme_of

from ._stream import decompressed, reader_stream

__all__ = ["unpacked_cache"]

_PART = 1 << 20
_MOST_TIMES = 200
_MOST_AT_LEAST = 64 << 20
_ENDS = 64


def unpacked_cache(reader: ObjectReader, compression: str, cache_dir: str, *, most_bytes: int | None = None) -> str:
    """Return the path of the tar that ``reader`` holds compressed, unpacked into ``cache_dir`` unless it is there.

    The copy appears whole or not at all, and is found again as long as the object's URL, size and version stay.
    Raises TarError when the data is damaged, cut, or unpacks to more than ``most_bytes`` (else 200 times its own size,
    64 MiB at least), and StoreError when the disk has no room for it.
    """
    path = os.path.join(cache_dir, "unpacked", f"{_cache_key(reader)}.tar")
    if not os.path.exists(path):
        try:
            _unpack(reader, compression, path, most_bytes)
        except ShoalError as error:
            error.at(shard=reader.info.url)
            raise
    return path


def _cache_key(reader: ObjectReader) -> str:
    """URL, size and version, and the first and last bytes: a modification time or a memory store's count may repeat."""
    info = reader.info
    url = os.path.abspath(local_path(info.url)) if scheme_of(info.url) == "file" else info.url
    ends = reader.read(0, min(_ENDS, info.size)) + reader.read(max(0, info.size - _ENDS), info.size)
    return hashlib.sha256(json.dumps([url, info.size, info.version, ends.hex()]).encode()).hexdigest()


def _unpack(reader: ObjectReader, compression: str, path: str, most_bytes: int | None) -> None:
    stream = decompressed(reader_stream(reader), compression)
    writer = LocalStore().create(path)
    try:
        _copy(stream, writer, _most(reader.info.size, most_bytes), _room(os.path.dirname(path)))
        writer.commit(durable=True)  # a cut in the power must not leave half a copy that looks whole
    except BaseException:
        writer.abort()
        raise


def _most(stored: int, most_bytes: int | None) -> int:
    return max(_MOST_TIMES * stored, _MOST_AT_LEAST) if most_bytes is None else most_bytes


def _room(folder: str) -> int:
    try:
        os.makedirs(folder, exist_ok=True)
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(error.strerror or str(error), found=folder, hint=_ELSEWHERE) from error


_ELSEWHERE = "set SHOAL_CACHE to a folder on another disk"


def _copy(stream: SupportsRead, writer: ObjectWriter, most: int, room: int) -> None:
    copied = 0
    while part := stream.read(_PART):
        copied += len(part)
        if copied > most:
            hint = "if it is not a bomb, allow more with most_bytes="
            raise TarError(
                "the compressed tar unpacks to too much", expected=f"at most {most} bytes", found="more", hint=hint
            )
        if copied > room:
            raise StoreError(
                "the cache has no room to unpack a shard",
                expected=f"over {room} bytes",
                found=f"{room} free",
                hint=_ELSEWHERE,
            )
        writer.write(part)
