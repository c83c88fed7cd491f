"""The checkers are part of the suite, so that a green `make test` means a clean tree. `make check` runs the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "command",
    [
        "ruff check",
        "ruff format --check",
        "mypy --strict",
        f"pyright --pythonpath {sys.executable}",
    ],
    ids=lambda command: " ".join(command.split()[:2]),
)
def test_a_checker_has_nothing_to_say(command):
    program, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
