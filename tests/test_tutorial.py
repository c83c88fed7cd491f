"""The tutorial, followed as somebody does who has only the page: its files, its commands, in new processes."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "tutorial" / "train-and-resume.md"
FENCE = re.compile(r"^```(?P<head>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_HERE = ("python3 -m venv", ". venv", "pip install")
"""`make dist` and the smoke tests install; here the environment is the one of the tests."""


def test_the_page_works_with_nothing_but_the_page(tmp_path):
    environment = {**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"}
    said = []
    for fence in FENCE.finditer(PAGE.read_text("utf-8")):
        if named := re.fullmatch(r'python title="([\w.]+)"', fence["head"]):
            (tmp_path / named[1]).write_text(fence["text"])
        elif fence["head"] == "sh":
            lines = [line for line in fence["text"].splitlines() if not line.startswith(NOT_HERE)]
            said += [_run(line, tmp_path, environment) for line in lines]
        elif fence["head"] == "text":
            _compare(said, fence["text"])
    steps = [line for line in said if "steps" in line]
    assert [line.split()[0] for line in steps] == ["39", "20", "39"]
    assert steps[0] == steps[2]  # the resumed run ends as the one that was never stopped


def _run(line: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def _compare(said: list[str], page: str) -> None:
    """What the page prints is what came; digits of a loss belong to the machine."""
    found = re.sub(r"(\.\d{2})\d+", r"\1", "".join(said))
    for line in re.sub(r"(\.\d{2})\d+", r"\1", page).splitlines():
        assert line == "..." or line in found, line
