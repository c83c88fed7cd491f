"""`Schema`, and its `Field` and `Default` values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from shoal.errors import FieldError, SchemaError

from ._types import FieldType
from ._version import FIRST_VERSION, check_version

__all__ = ["Default", "Field", "Schema"]


@dataclass(frozen=True, slots=True)
class Default:
    """The value of a field that the data does not have.

    ``json`` is the value as JSON text, in which arrays and bytes are base64. It is None where only the class knows, as
    with a ``default_factory`` that computes: such a field is not required, but in a class made from the schema it is.

    Examples:
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
    """One field of a sample: its name, its type, and its default.

    Args:
        name: What the class and the stored map call it.
        type: One of the types of this package.
        default: None for a field that must be there.
        aliases: Names that older data has for it, tried in this order.
        doc: What it means.

    Examples:
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

    Examples:
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
