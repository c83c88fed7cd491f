"""A real S3 server on loopback, data on it, and a place for each contender: a process of its own, so that its processor
time and its memory are its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, seaweed, serving
from tests.store.servers import ProxyHandler as _Proxy

import shoal
from shoal import store

__all__ = ["Turn", "delayed", "reach", "served", "turn", "write_data"]

PREFIX = f"s3://{BUCKET}/bench"


def keys() -> dict[str, str]:
    """The server's own."""
    return {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}


def reach(endpoint: str) -> None:
    """Have this process reach the server."""
    store.configure(f"s3://{BUCKET}", endpoint=endpoint, region="us-east-1", credential_provider=keys, timeout=120)


@contextlib.contextmanager
def served(megabytes: int) -> Iterator[str]:
    """A server with a dataset of this size: yields its endpoint."""
    with seaweed() as endpoint:
        reach(endpoint)
        write_data(megabytes)
        yield endpoint


def write_data(megabytes: int, shard_bytes: int = 256 << 20) -> None:
    """Samples of about 22 KB: a picture's worth of bytes, a JSON, a class."""
    draw = random.Random(0)
    pool = draw.randbytes(40 << 20)
    with shoal.ShardWriter(f"{PREFIX}/train-%06d.tar", max_bytes=shard_bytes, max_samples=1 << 30) as writer:
        written, number = 0, 0
        while written < megabytes << 20:
            start, size = draw.randrange(0, 39 << 20), draw.randrange(10_000, 35_000)
            sample = {"jpg": pool[start : start + size], "json": {"number": number}, "cls": number % 10}
            writer.write({"__key__": f"{number:08d}", **sample})
            written, number = written + size, number + 1


class _Delaying(_Proxy):
    """Adds latency to each response, and passes the body on as it comes."""

    def handle_any(self) -> None:
        """One request."""
        threading.Event().wait(self.server.delay)  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.pass_on(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def pass_on(self, body: bytes) -> None:
        """Ask upstream and hand its answer over, piece by piece."""
        import http.client

        connection = http.client.HTTPConnection(self.server.upstream, timeout=120)  # type: ignore[attr-defined]
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"connection", "transfer-encoding", "keep-alive"}:
                    self.send_header(name, value)
            self.end_headers()
            while self.command != "HEAD" and (piece := answer.read(1 << 20)):
                self.wfile.write(piece)
        finally:
            connection.close()


@contextlib.contextmanager
def delayed(endpoint: str, seconds: float) -> Iterator[str]:
    """The same server, each response of which begins so much later: yields its endpoint."""
    facts: dict[str, Any] = {"upstream": endpoint.removeprefix("http://"), "delay": seconds}
    with serving(_Delaying, **facts) as server:
        assert isinstance(server, ThreadingHTTPServer)
        yield server.url  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Turn:
    """What one contender did, once."""

    seconds: float
    samples: int
    bytes: int
    """Of the samples."""
    downloaded: int | None
    """Over the wire, where the contender knows."""
    processor: float
    """Seconds."""
    memory: float
    """Megabytes above the start, at most."""


def turn(module: str, name: str, endpoint: str, *arguments: str) -> Turn:
    """Run a contender of a module in a process of its own, started and imported before the clock is."""
    names = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    paths = {"AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**os.environ, **names, **paths, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, "--turn", name, endpoint, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return Turn(**json.loads(done.stdout.strip().splitlines()[-1]))
