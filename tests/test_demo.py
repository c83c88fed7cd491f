"""The demo shows what it says: it runs to its end, and what it counts is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_runs_to_its_end():
    # In a process of its own, as a user runs it: its peers leave files and threads behind.
    done = subprocess.run([sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2000 samples came, 2000 of them different, of 2000" in done.stdout
    assert "x webdataset" in done.stdout
    assert re.search(r"^shoal\.DataLoader +[\d,]+", done.stdout, re.MULTILINE)
    assert "bound by" in done.stdout  # of `shoal dataload`
    assert "What to type next" in done.stdout
