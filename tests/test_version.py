"""Version, changelog, tag and package metadata say the same."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import shoal

ROOT = Path(__file__).parents[1]
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def test_the_changelog_begins_with_this_version():
    """A version under way is told as unreleased; a released one by its number and day."""
    if ".dev" in shoal.__version__:
        assert HEADINGS[0] == "Unreleased"
    else:
        assert re.fullmatch(rf"{re.escape(shoal.__version__)} - \d{{4}}-\d\d-\d\d", HEADINGS[0])


def test_what_is_installed_has_this_version():
    assert importlib.metadata.version("shoal") == shoal.__version__
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dynamic"] == ["version"]


def test_a_tag_on_this_commit_is_this_version():
    done = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    tags = [tag for tag in done.stdout.split() if re.fullmatch(r"v\d.*", tag)]
    assert tags in ([], [f"v{shoal.__version__}"])
