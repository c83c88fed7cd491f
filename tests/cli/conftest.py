"""The command, run in this process, and datasets for it to work on."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

import shoal
from shoal.cli import main


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        return self.data.decode()

    @property
    def json(self):
        return json.loads(self.data)


@pytest.fixture
def run():
    """Run the command as a shell would, but for the process."""

    def call(*args: object) -> Done:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(arg) for arg in args])
            sys.stdout.flush()
        return Done(code, out.buffer.getvalue(), err.getvalue())

    return call


@pytest.fixture
def dataset(tmp_path) -> Path:
    """Ten samples in three shards and two splits, with a manifest."""
    root = tmp_path / "data"
    for split, first, count in (("train", 0, 7), ("validation", 7, 3)):
        with shoal.ShardWriter(root / f"{split}-%06d.tar", max_samples=4, metadata={"made by": "a test"}) as writer:
            for number in range(first, first + count):
                writer.write(sample(number))
    return root


@pytest.fixture
def foreign(tmp_path) -> Path:
    """A folder with one tar that nobody has indexed."""
    root = tmp_path / "foreign"
    with shoal.ShardWriter(root / "x-%06d.tar") as writer:
        for number in range(4):
            writer.write(sample(number))
    for path in sorted((root / ".shoal").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / ".shoal").rmdir()
    return root


def sample(number: int) -> dict[str, object]:
    width = {"width": 100 * number, "label": "cat" if number % 2 else "dog"}
    return {"__key__": f"k{number:02d}", "bin": bytes(range(number)) * 50, "json": width, "txt": f"number {number}"}
