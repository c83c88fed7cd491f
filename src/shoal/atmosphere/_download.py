"""A published shard's bytes: fetched once, checked against what the record says, then read from the cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from typing import Any, BinaryIO

from shoal._optional import need
from shoal.errors import AtmosphereError, ChecksumError, RecordNotFoundError, ShoalError, TooLargeError
from shoal.store import cache_dir, store_for

from ._guard import Guard
from ._service import Patience
from ._storage import Checksum

__all__ = ["RemoteShard", "cached_path", "fetch_shard"]

_PIECE = 1 << 20
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s"})
"""Those that nobody can forge a shard for; md5 and sha1 are checked too, but mean less."""
_WEAK = frozenset({"md5", "sha1"})


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """Where a published shard is, and what its bytes must be."""

    name: str
    url: str
    checksum: Checksum
    size: int | None = None
    through_store: bool = False
    """Whether a store of this process reads it, with its own credentials, rather than anybody's HTTP."""


def cached_path(shard: RemoteShard) -> str:
    """Where the shard is kept once it was fetched: by its hash, so equal shards are kept once."""
    algorithm, digest = _checked(shard.checksum)
    return os.path.join(cache_dir(), "atmosphere", algorithm, f"{digest}.tar")


def _checked(checksum: Checksum) -> tuple[str, str]:
    algorithm, digest = checksum.algorithm.lower().replace("-", ""), checksum.digest.lower()
    known = algorithm in _ALGORITHMS | _WEAK
    if not known or not digest or set(digest) - set("0123456789abcdef"):
        raise ChecksumError("a shard's checksum cannot be computed", expected="sha256", found=checksum.algorithm)
    return algorithm, digest


def fetch_shard(shard: RemoteShard, guard: Guard, patience: Patience, *, most: int) -> str:
    """The path of a local copy whose hash is the record's.

    Raises ChecksumError when the bytes are others, TooLargeError for more than ``most`` bytes, or than the record says.
    """
    path = cached_path(shard)
    if os.path.exists(path):
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".fetching-")
    try:
        with open(descriptor, "w+b") as file:
            digest = _Fetch(shard, file, min(most, shard.size or most)).run(guard, patience)
        if digest != _checked(shard.checksum)[1]:
            raise ChecksumError(
                "a shard's bytes are not those that were published",
                expected=f"{shard.checksum.algorithm} {shard.checksum.digest}",
                found=digest,
                shard=shard.url,
                hint="tell its publisher; nothing of it was read",
            )
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return path


class _Fetch:
    """One shard on its way; what came stays when a connection breaks, and the next goes on behind it."""

    def __init__(self, shard: RemoteShard, file: BinaryIO, most: int) -> None:
        self._shard = shard
        self._file = file
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._digest = hashlib.new(_checked(self._shard.checksum)[0], usedforsecurity=False)
        self._done = 0
        self._file.seek(0)
        self._file.truncate()

    def _add(self, piece: bytes) -> None:
        self._done += len(piece)
        if self._done > self._most:
            raise TooLargeError(
                "a shard is larger than it may be", expected=f"at most {self._most} bytes", shard=self._shard.url
            )
        self._digest.update(piece)
        self._file.write(piece)

    def run(self, guard: Guard, patience: Patience) -> str:
        if self._shard.through_store:
            self._from_store()
        else:
            self._from_http(guard, patience)
        return self._digest.hexdigest()

    def _from_store(self) -> None:
        reader = store_for(self._shard.url).open(self._shard.url)
        try:
            for start in range(0, reader.info.size, 8 * _PIECE):
                self._add(reader.read(start, start + 8 * _PIECE))
        finally:
            reader.close()

    def _from_http(self, guard: Guard, patience: Patience) -> None:
        need("httpx")
        import httpx

        from ._http import http_client

        problem = "not asked"
        with http_client(guard, most=None) as client:
            for attempt in range(patience.tries):
                before = self._done
                try:
                    if self._once(client):
                        return
                    problem = "the server has no time"
                except ShoalError:
                    raise
                except httpx.HTTPError as error:
                    problem = str(error) or type(error).__name__
                if attempt + 1 < patience.tries and self._done == before:
                    time.sleep(patience.wait_after(attempt))
        raise AtmosphereError("a shard could not be fetched", found=problem, shard=self._shard.url)

    def _once(self, client: Any) -> bool:
        """Fetch what is missing; False when the server said to come back later."""
        headers = {"Range": f"bytes={self._done}-"} if self._done else {}
        with client.stream("GET", self._shard.url, headers={**headers, "Accept-Encoding": "identity"}) as response:
            status = response.status_code
            if status in (429, 500, 502, 503, 504):
                return False
            if status in (404, 410) or (status == 400 and "getBlob" in self._shard.url):
                raise RecordNotFoundError("a published shard is gone", found=status, shard=self._shard.url)
            if status not in (200, 206):
                raise AtmosphereError("a shard could not be fetched", found=f"status {status}", shard=self._shard.url)
            if status == 200 and self._done:
                self._begin()
            for piece in response.iter_raw():  # as it comes, so that nothing is lost when it breaks
                self._add(piece)
        return True
