"""Versions of datasets and lenses: ``MAJOR.MINOR.PATCH``, in the order that semver.org gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from shoal.errors import OptionError

__all__ = ["FIRST_VERSION", "Weight", "bumped", "check_version", "newest", "precedence"]

FIRST_VERSION = "1.0.0"
Weight = Literal["major", "minor", "patch"]

_VERSION = re.compile(
    r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})(?:-([0-9A-Za-z.-]{1,64}))?(?:\+[0-9A-Za-z.-]{1,64})?"
)


def check_version(version: object) -> str:
    """The version itself. Raises OptionError when it is none.

    Example:
        >>> check_version("1.2.0")
        '1.2.0'
    """
    _taken_apart(version)
    return str(version)


def _taken_apart(version: object) -> re.Match[str]:
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None:
        raise OptionError("this is not a version", expected="MAJOR.MINOR.PATCH, such as 1.2.0", found=repr(version))
    return found


def precedence(version: str) -> tuple[object, ...]:
    """What versions are sorted by: numbers by value, and a pre-release before its release.

    Example:
        >>> sorted(["1.10.0", "1.9.0", "1.10.0-rc.1"], key=precedence)
        ['1.9.0', '1.10.0-rc.1', '1.10.0']
    """
    found = _taken_apart(version)
    parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in (found[4] or "").split("."))
    return (int(found[1]), int(found[2]), int(found[3]), found[4] is None, parts, version)


def newest(versions: Iterable[str]) -> str:
    """The highest version; a pre-release only where there is nothing else.

    Example:
        >>> newest(["1.0.0", "2.0.0-rc.1"]), newest(["2.0.0-rc.1"])
        ('1.0.0', '2.0.0-rc.1')
    """
    return max(versions, key=lambda version: (_taken_apart(version)[4] is None, precedence(version)))


def bumped(version: str, weight: Weight) -> str:
    """The next version after a change of this weight.

    Example:
        >>> bumped("1.4.2", "minor")
        '1.5.0'
    """
    found = _taken_apart(version)
    major, minor, patch = int(found[1]), int(found[2]), int(found[3])
    if weight == "major":
        return f"{major + 1}.0.0"
    return f"{major}.{minor + 1}.0" if weight == "minor" else f"{major}.{minor}.{patch + 1}"
