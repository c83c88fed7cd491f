"""References such as ``name@version``."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from shoal.errors import CatalogKeyError, OptionError

__all__ = [
    "PREFIXES",
    "Reference",
    "check_artifact_name",
    "check_name",
    "check_version",
    "format_ref",
    "parse_artifact_ref",
    "parse_reference",
]

LATEST = "latest"
PREFIXES = ("@local/", "shoal://local/dataset/")
_MAX_NAME_LETTERS = 200  # what an AT Protocol record may have, so that any dataset here can be published under its name
# A letter or digit first, so that no part is "..", hidden, or an option of a command.
_PART = re.compile(r"[^\W_][\w.\-]*")
# Narrower than `shoal.schema`: versions are in keys of databases and of AT Protocol records.
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-[0-9A-Za-z.-]{{1,64}})?(?:\+[0-9A-Za-z.-]{{1,64}})?")


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

    Examples:
        >>> check_name("team/photos-2026")
        'team/photos-2026'
    """
    if not isinstance(name, str) or not name:
        raise OptionError("a dataset has a name", expected="a text", found=repr(name))
    spelled = unicodedata.normalize("NFC", name)
    if len(spelled) > _MAX_NAME_LETTERS:
        raise OptionError("the name is too long", expected=f"at most {_MAX_NAME_LETTERS} letters", found=len(spelled))
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

    Examples:
        >>> parse_reference("@local/photos@1.2.0")
        Reference(name='photos', version='1.2.0')
        >>> parse_reference("photos@latest")
        Reference(name='photos', version=None)
    """
    if not isinstance(text, str):
        raise OptionError("a reference is a text", expected="such as photos or photos@1.2.0", found=repr(text))
    bare = next((text.removeprefix(prefix) for prefix in PREFIXES if text.startswith(prefix)), text)
    if bare.startswith("@") or "://" in bare:
        hint = "shoal.load_dataset understands references of all kinds"
        raise CatalogKeyError("this is not a dataset of a local index", found=text, hint=hint)
    name, mark, version = bare.partition("@")
    if not mark or version == LATEST:
        return Reference(check_name(name))
    return Reference(check_name(name), check_version(version))


def format_ref(kind: str, name: str, version: str) -> str:
    """The reference of a schema or a lens.

    Examples:
        >>> format_ref("schema", "ImageSample", "1.0.0")
        'shoal://local/schema/ImageSample@1.0.0'
    """
    return f"shoal://local/{kind}/{name}@{version}"


def check_artifact_name(kind: str, name: object) -> str:
    """The name of a schema or a lens. Raises OptionError."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W\d][\w.]{0,199}", name):
        expected = "a Python name of at most 200 letters"
        raise OptionError(f"this is no name for a {kind}", expected=expected, found=repr(name)[:200])
    return name


def parse_artifact_ref(kind: str, text: object) -> Reference:
    """What a reference of a schema or a lens names: our own form, atdata's, or ``Name`` and ``Name@1.0.0``.

    Examples:
        >>> parse_artifact_ref("schema", "ImageSample@1.0.0")
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
    checked = check_artifact_name(kind, name)
    return Reference(checked) if not mark or version == LATEST else Reference(checked, check_version(version))


def check_version(version: object) -> str:
    """The version itself. Raises OptionError when it is none.

    Examples:
        >>> check_version("1.2.0")
        '1.2.0'
    """
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise OptionError("this is not a version", expected="MAJOR.MINOR.PATCH, such as 1.2.0", found=repr(version))
    return version
