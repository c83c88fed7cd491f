"""A real S3 server on loopback, data on it, and a place for each contender: a process of its own, so that its processor
time and its memory are its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, seaweed

import shoal
from shoal import store

__all__ = ["Turn", "reach", "served", "turn", "write_data"]

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
