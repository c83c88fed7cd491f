"""Data and programs for the tests of all adapters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shoal

ROOT = Path(__file__).parents[2]
COUNT = 50


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> str:
    """Fifty samples in four shards: a number, an array that says the number too, a text."""
    folder = tmp_path_factory.mktemp("shards")
    with shoal.ShardWriter(str(folder / "data-%06d.tar"), max_samples=13) as writer:
        for number in range(COUNT):
            writer.write({
                "__key__": f"k{number:03d}",
                "x.npy": np.full((3, 2), number, np.float32),
                "cls": number,
                "txt": f"text {number}",
            })  # fmt: skip
    return str(folder)


@pytest.fixture
def program(tmp_path):
    """Run Python code, or a file, in an interpreter of its own; gives what it printed."""

    def run(code: str | Path, *words: str, env: dict[str, str] | None = None, timeout: float = 120) -> str:
        start = [str(code)] if isinstance(code, Path) else ["-c", code]
        # No `-W error`: what frameworks warn about among themselves is theirs.
        done = subprocess.run(
            [sys.executable, *start, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
