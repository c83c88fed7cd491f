"""Versions ``MAJOR.MINOR.PATCH`` and their order, as in Semantic Versioning 2.0.0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from shoal.errors import SchemaError

__all__ = ["FIRST_VERSION", "VersionPart", "bump_version", "check_version", "newest_version", "version_precedence"]

VersionPart = Literal["major", "minor", "patch"]
FIRST_VERSION = "1.0.0"
_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_VERSION = re.compile(rf"({_NUMBER}\.{_NUMBER}\.{_NUMBER})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


def check_version(version: object) -> str:
    """Return the version itself. Raises SchemaError if it is not ``MAJOR.MINOR.PATCH``.

    Examples:
        >>> check_version("1.2.0-rc.1")
        '1.2.0-rc.1'
    """
    return _match_version(version).string


def _match_version(version: object) -> re.Match[str]:
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None:
        raise SchemaError("this is not a version", expected="MAJOR.MINOR.PATCH, such as 1.2.0", found=repr(version))
    return match


def version_precedence(version: str) -> tuple[object, ...]:
    """Return the sort key of a version: numbers by value, a pre-release before its release, no build metadata.

    A name that is not such a version, as labels of other programs may have, comes before all versions.

    Examples:
        >>> sorted(["1.10.0", "1.9.0", "1.10.0-rc.10", "1.10.0-rc.2"], key=version_precedence)
        ['1.9.0', '1.10.0-rc.2', '1.10.0-rc.10', '1.10.0']
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        return (0, _identifiers(version))
    return (1, _identifiers(match[1]), match[2] is None, _identifiers(match[2] or ""))


def _identifiers(text: str) -> tuple[tuple[int, int, str], ...]:
    """The parts between dots: numbers by value and before words."""
    return tuple(_identifier(part) for part in text.split("."))


def _identifier(part: str) -> tuple[int, int, str]:
    if not (part.isascii() and part.isdigit()):
        return 1, 0, part
    digits = part.lstrip("0")
    return 0, len(digits), digits  # in the order of the numbers, however long they are


def newest_version(versions: Iterable[str]) -> str:
    """Return the highest version; a pre-release only where there is no release.

    Examples:
        >>> newest_version(["1.0.0", "2.0.0-rc.1"]), newest_version(["2.0.0-rc.2", "2.0.0-rc.10"])
        ('1.0.0', '2.0.0-rc.10')
    """
    return max(versions, key=lambda version: (_is_release(version), version_precedence(version), version))


def _is_release(version: str) -> bool:
    match = _VERSION.fullmatch(version)
    return match is not None and match[2] is None


def bump_version(version: str, part: VersionPart) -> str:
    """Return the next version after a change of this part. Raises SchemaError.

    Examples:
        >>> bump_version("1.4.2", "minor")
        '1.5.0'
    """
    major, minor, patch = map(int, _match_version(version)[1].split("."))
    if part == "major":
        return f"{major + 1}.0.0"
    return f"{major}.{minor + 1}.0" if part == "minor" else f"{major}.{minor}.{patch + 1}"
