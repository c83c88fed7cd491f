"""`Schema` and its version."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shoal.errors import FieldError, SchemaError

from ._types import FieldType

__all__ = ["FIRST_VERSION", "Default", "Field", "Schema", "bumped"]

Part = Literal["major", "minor", "patch"]
FIRST_VERSION = "1.0.0"
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


@dataclass(frozen=True, slots=True)
class Default:
    """What a field is where the data lacks it.

    ``json`` is the value as JSON text, in which arrays and bytes are base64. It is None where only the class knows, as
    with a ``default_factory`` that computes: such a field is not required, but in a class made from the schema it is.

    Example:
        >>> Default("[]").is_known, Default(None).is_known
        (True, False)
    """

    json: str | None

    def __post_init__(self) -> None:
        if self.json is not None:
            object.__setattr__(self, "json", _canonical(self.json))

    @property
    def is_known(self) -> bool:
        """Whether the value is in the schema."""
        return self.json is not None


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise SchemaError("a default is not JSON", found=text[:80]) from error


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a sample: its name, its type, and what is done where the data lacks it.

    Args:
        name: What the class and the stored map call it.
        type: One of the types of this package.
        default: None for a field that must be there.
        aliases: Names that older data has for it, tried in this order.
        doc: What it means.

    Example:
        >>> from shoal.schema import IntType
        >>> Field("width", IntType()).required
        True
    """

    name: str
    type: FieldType
    default: Default | None = None
    aliases: tuple[str, ...] = ()
    doc: str = ""

    @property
    def required(self) -> bool:
        """Whether data without this field is refused."""
        return self.default is None


@dataclass(frozen=True)
class Schema:
    """A sample type: its name, its fields in order, its version.

    Raises:
        SchemaError: The name is empty, a field or alias is named twice, or the version is not ``MAJOR.MINOR.PATCH``.

    Example:
        >>> from shoal.schema import Array, FloatType, StrType
        >>> schema = Schema("ImageSample", (Field("image", Array("uint8")), Field("label", StrType())))
        >>> schema.names, str(schema["image"].type)
        (('image', 'label'), 'array[uint8]')
        >>> print(schema)
        ImageSample@1.0.0(image: array[uint8], label: str)
    """

    name: str
    fields: tuple[Field, ...]
    version: str = FIRST_VERSION
    description: str = ""

    def __post_init__(self) -> None:
        check_version(self.version)
        if not self.name:
            raise SchemaError("a schema has a name")
        seen: set[str] = set()
        for name in (name for field in self.fields for name in (field.name, *field.aliases)):
            if not name or name in seen:
                raise SchemaError("a field's name or alias comes twice, or is empty", found=repr(name), field=name)
            seen.add(name)

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    @property
    def names(self) -> tuple[str, ...]:
        """The fields' names, in order."""
        return tuple(self._by_name)

    def __getitem__(self, name: str) -> Field:
        try:
            return self._by_name[name]
        except KeyError:
            expected = ", ".join(self.names)
            raise FieldError(f"{self.name} has no such field", expected=expected, found=name, field=name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __str__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.type}" for field in self.fields)
        return f"{self.name}@{self.version}({fields})"
