"""References such as ``name@version``."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shoal.errors import CatalogKeyError, OptionError

__all__ = [
    "FIRST_VERSION",
    "Reference",
    "Weight",
    "bumped",
    "check_name",
    "check_thing",
    "check_version",
    "newest",
    "parse_reference",
    "parse_thing",
    "precedence",
    "thing_ref",
]

Weight = Literal["major", "minor", "patch"]
LATEST = "latest"
_PREFIXES = ("@local/", "shoal://local/dataset/")
_LONGEST = 200  # what an AT Protocol record may have, so that any dataset here can be published under its name
# A letter or digit first, so that no part is "..", hidden, or an option of a command.
_PART = re.compile(r"[^\W_][\w.\-]*")
FIRST_VERSION = "1.0.0"
_VERSION = re.compile(
    r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})(?:-([0-9A-Za-z.-]{1,64}))?(?:\+[0-9A-Za-z.-]{1,64})?"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A dataset's name, and its version where one was asked for; None for the newest."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def check_name(name: object) -> str:
    """A dataset's name in its one spelling. Raises OptionError for one that is none.

    Letters and digits of any language, ``.``, ``_`` and ``-``, in parts with ``/`` between; each part begins with a
    letter or digit. So a name is good in a path, a URL and a command.

    Example:
        >>> check_name("team/photos-2026")
        'team/photos-2026'
    """
    if not isinstance(name, str) or not name:
        raise OptionError("a dataset has a name", expected="a text", found=repr(name))
    spelled = unicodedata.normalize("NFC", name)
    if len(spelled) > _LONGEST:
        raise OptionError("the name is too long", expected=f"at most {_LONGEST} letters", found=len(spelled))
    if not all(_PART.fullmatch(part) for part in spelled.split("/")):
        raise OptionError(
            "this is no name for a dataset",
            expected="letters, digits, '.', '_' and '-', in parts with '/' between that begin with a letter or digit",
            found=repr(name),
            hint=_proposal(spelled),
        )
    return spelled


def _proposal(name: str) -> str | None:
    parts = ["-".join(_PART.findall(part)) for part in re.split(r"[/\\]", name)]
    proposed = "/".join(part for part in parts if part)
    return f"how about {proposed}" if proposed else None


def parse_reference(text: object) -> Reference:
    """What a reference names. Raises OptionError when it names nothing, CatalogKeyError when that is not kept here.

    Example:
        >>> parse_reference("@local/photos@1.2.0")
        Reference(name='photos', version='1.2.0')
        >>> parse_reference("photos@latest")
        Reference(name='photos', version=None)
    """
    if not isinstance(text, str):
        raise OptionError("a reference is a text", expected="such as photos or photos@1.2.0", found=repr(text))
    bare = next((text.removeprefix(prefix) for prefix in _PREFIXES if text.startswith(prefix)), text)
    if bare.startswith("@") or "://" in bare:
        hint = "shoal.load_dataset understands references of all kinds"
        raise CatalogKeyError("this is not a dataset of a local index", found=text, hint=hint)
    name, mark, version = bare.partition("@")
    if not mark or version == LATEST:
        return Reference(check_name(name))
    return Reference(check_name(name), check_version(version))


# ------------------------------------------------------------------------------------------------- schemas and lenses


def thing_ref(kind: str, name: str, version: str) -> str:
    """The reference of a schema or a lens.

    Example:
        >>> thing_ref("schema", "ImageSample", "1.0.0")
        'shoal://local/schema/ImageSample@1.0.0'
    """
    return f"shoal://local/{kind}/{name}@{version}"


def check_thing(kind: str, name: object) -> str:
    """The name of a schema or a lens. Raises OptionError."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W\d][\w.]{0,199}", name):
        expected = "a Python name of at most 200 letters"
        raise OptionError(f"this is no name for a {kind}", expected=expected, found=repr(name)[:200])
    return name


def parse_thing(kind: str, text: object) -> Reference:
    """What a reference of a schema or a lens names: our own form, atdata's, or ``Name`` and ``Name@1.0.0``.

    Example:
        >>> parse_thing("schema", "ImageSample@1.0.0")
        Reference(name='ImageSample', version='1.0.0')
    """
    if not isinstance(text, str):
        raise OptionError(
            "a reference is a text", expected=f"such as shoal://local/{kind}/Name@1.0.0", found=repr(text)
        )
    prefixes = (f"shoal://local/{kind}/", f"atdata://local/{kind}/", f"@local/{kind}/")
    bare = next((text.removeprefix(prefix) for prefix in prefixes if text.startswith(prefix)), text)
    name, mark, version = bare.partition("@")
    if "://" in bare or not name:
        raise CatalogKeyError(f"this is not a {kind} of a local index", found=text)
    checked = check_thing(kind, name)
    return Reference(checked) if not mark or version == LATEST else Reference(checked, check_version(version))


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
