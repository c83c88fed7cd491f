"""Versions of schemas: ``MAJOR.MINOR.PATCH``."""

from __future__ import annotations

import re
from typing import Literal

from shoal.errors import SchemaError

__all__ = ["FIRST_VERSION", "Part", "bumped", "check_version"]

FIRST_VERSION = "1.0.0"

Part = Literal["major", "minor", "patch"]

# semver.org's grammar; what follows the three numbers is kept as written and dropped by the next bump.
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)


def check_version(version: object) -> tuple[int, int, int]:
    """The three numbers of a version."""
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None:
        raise SchemaError("this is not a version", expected="MAJOR.MINOR.PATCH, such as 1.2.0", found=repr(version))
    return int(found[1]), int(found[2]), int(found[3])


def bumped(version: str, part: Part) -> str:
    """The next version after a change of the given weight."""
    major, minor, patch = check_version(version)
    if part == "major":
        return f"{major + 1}.0.0"
    return f"{major}.{minor + 1}.0" if part == "minor" else f"{major}.{minor}.{patch + 1}"
