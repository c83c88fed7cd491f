"""`@packable` and `PackableSample`, `pack` and `unpack`, unique keys, and the equality of samples."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import threading
import time
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, overload

import msgspec
import numpy as np

from shoal.codec._codec import Buffer
from shoal.errors import SchemaError
from shoal.schema._schema import Schema

from ._annotations import OPTIONS, Options, is_record, read_record, schema_of
from ._serializer import plan_of, stored_value
from ._stored_values import Encoded

__all__ = ["PackableSample", "as_wds", "pack", "packable", "same", "unique_key", "unpack"]

T = TypeVar("T")
_key_lock = threading.Lock()
_last_stamp = 0
_HASHED_TYPES = ("str", "int", "bool", "bytes")


def unique_key() -> str:
    """Return a key that is unique across processes and machines: a UUID of version 7 (RFC 9562).

    Keys sort by creation time; within one process, strictly. 62 bits come from the system's source of randomness at
    each call, so that forked processes do not repeat each other's keys.

    Examples:
        >>> first, second = unique_key(), unique_key()
        >>> first < second, len(first), "." in first
        (True, 36, False)
    """
    global _last_stamp  # noqa: PLW0603 - keys must increase from call to call
    with _key_lock:
        # In steps of 1/4096 ms: 48 bits of milliseconds, 12 bits of fraction.
        _last_stamp = max(_last_stamp + 1, time.time_ns() * 4096 // 1_000_000)
        stamp = _last_stamp
    random_bits = int.from_bytes(os.urandom(8), "big") >> 2 | 1 << 63  # 0b10, the variant, and 62 bits
    text = f"{stamp >> 12:012x}7{stamp & 0xFFF:03x}{random_bits:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def pack(sample: Any) -> bytes:
    r"""Encode a sample as one MessagePack map in field order, arrays as ``.npy``.

    Takes instances of packable classes, dataclasses, msgspec Structs and pydantic models.

    Raises:
        SchemaMismatchError: A field's value does not fit its type; ``field`` is the path.

    Examples:
        >>> @packable
        ... class Labelled:
        ...     label: str
        ...     score: float
        >>> pack(Labelled("cat", 1.0))
        b'\x82\xa5label\xa3cat\xa5score\xcb?\xf0\x00\x00\x00\x00\x00\x00'
    """
    return plan_of(type(sample)).pack(sample)


def unpack(cls: type[T], data: Buffer, *, writable: bool = False) -> T:
    """Decode a payload to a sample of ``cls``. Arrays are read-only views of ``data`` unless ``writable``.

    Raises:
        SchemaMismatchError: The data does not fit the class; ``field`` is the path.
        DecodeError: The data is not MessagePack, or an array or file in it is damaged.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Point:
        ...     x: float
        ...     y: float = 0.0
        >>> unpack(Point, pack(Point(1.5, 2.5)))
        Point(x=1.5, y=2.5)
    """
    sample: T = plan_of(cls, writable).unpack(data)
    return sample


def as_wds(sample: Any) -> dict[str, Any]:
    """Return the sample as a dict of fields, as WebDataset writers take it, with a new unique key.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Point:
        ...     x: float
        >>> sorted(as_wds(Point(1.0)))
        ['__key__', 'msgpack']
    """
    return {"__key__": unique_key(), "msgpack": pack(sample)}


class _SchemaAttribute:
    """``cls.__schema__``: computed when first read, so that annotations may name classes defined later."""

    def __get__(self, sample: object, owner: type) -> Schema:
        return schema_of(owner)


class _Methods:
    """The methods that `packable` adds to a class."""

    __schema__: ClassVar[_SchemaAttribute] = _SchemaAttribute()

    @property
    def packed(self) -> bytes:
        """The bytes of this sample; see `pack`."""
        return plan_of(type(self)).pack(self)

    @property
    def as_wds(self) -> dict[str, Any]:
        """``{"__key__": ..., "msgpack": ...}`` with a new, unique key at each access."""
        return as_wds(self)

    @classmethod
    def from_bytes(cls, data: Buffer, *, writable: bool = False) -> Self:
        """Return the sample in a payload; see `unpack`."""
        sample: Self = plan_of(cls, writable).unpack(data)
        return sample

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the sample with these values by field name, or their plain forms, such as ISO strings of datetimes.

        Names that the class does not have are ignored, as in stored data.
        """
        sample: Self = plan_of(cls).from_data(data)
        return sample


def _equal(self: Any, other: object) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    return all(_fields_equal(self, other, member.name) for member in read_record(type(self)).members)


def _fields_equal(left: Any, right: Any, name: str) -> bool:
    left_stored, right_stored = stored_value(left, name), stored_value(right, name)
    if isinstance(left_stored, Encoded) and isinstance(right_stored, Encoded) and left_stored == right_stored:
        return True  # the same file, compared without decoding it
    return same(getattr(left, name), getattr(right, name))


def _hash(self: Any) -> int:
    # Only fields of types whose equality and hash always agree; arrays have no hash.
    members = read_record(type(self)).members
    return hash((type(self), *(getattr(self, m.name) for m in members if str(m.node.type) in _HASHED_TYPES)))


@dataclass_transform(field_specifiers=(dataclasses.field,))
class PackableSample(_Methods):
    """Base class with the effect of `packable`, whose methods type checkers know.

    A type checker does not see methods that a decorator adds, but those that a class inherits. Options are keywords of
    the class: ``class Sample(PackableSample, version="1.1.0", frozen=True)``.

    Examples:
        >>> class Labelled(PackableSample):
        ...     label: str
        >>> Labelled.from_bytes(Labelled("cat").packed)
        Labelled(label='cat')
    """

    def __init_subclass__(
        cls,
        *,
        version: str = "1.0.0",
        aliases: Mapping[str, str | tuple[str, ...]] | None = None,
        frozen: bool = False,
        kw_only: bool = False,
        **others: Any,
    ) -> None:
        super().__init_subclass__(**others)
        _make_packable(cls, Options(version, _as_tuples(aliases), _visible_names(sys._getframe(1))), frozen, kw_only)  # noqa: SLF001


@overload
def packable(cls: type[T], /) -> type[T]: ...
@overload
def packable(
    *,
    version: str = ...,
    aliases: Mapping[str, str | tuple[str, ...]] | None = ...,
    frozen: bool = ...,
    kw_only: bool = ...,
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(dataclasses.field,))
def packable(
    cls: type[Any] | None = None,
    /,
    *,
    version: str = "1.0.0",
    aliases: Mapping[str, str | tuple[str, ...]] | None = None,
    frozen: bool = False,
    kw_only: bool = False,
) -> Any:
    """Make a sample type of an annotated class.

    A plain class becomes a dataclass. It, or an existing dataclass, msgspec Struct or pydantic model, gets ``packed``,
    ``as_wds``, ``from_bytes``, ``from_data`` and ``__schema__``, and an equality that works with arrays.

    Args:
        cls: The class, if the decorator is used without options.
        version: ``MAJOR.MINOR.PATCH`` of the schema.
        aliases: Former names of fields in older data, as ``{"label": "category"}`` or with a tuple of names.
        frozen: As for a dataclass; a frozen sample has a hash.
        kw_only: As for a dataclass.

    Raises:
        SchemaError: A field has a type that cannot be stored.

    Examples:
        >>> import numpy as np
        >>> from numpy.typing import NDArray
        >>> @packable
        ... class ImageSample:
        ...     image: NDArray[np.float32]
        ...     label: str
        >>> sample = ImageSample(np.zeros((2, 2), np.float32), label="cat")
        >>> ImageSample.from_bytes(sample.packed) == sample
        True
        >>> print(ImageSample.__schema__)
        ImageSample@1.0.0(image: array[float32], label: str)
    """
    options = Options(version, _as_tuples(aliases), _visible_names(sys._getframe(1)))  # noqa: SLF001

    def decorate(cls: type[Any]) -> type[Any]:
        return _make_packable(cls, options, frozen, kw_only)

    return decorate if cls is None else decorate(cls)


def _as_tuples(aliases: Mapping[str, str | tuple[str, ...]] | None) -> dict[str, tuple[str, ...]]:
    items = (aliases or {}).items()
    return {name: (former,) if isinstance(former, str) else tuple(former) for name, former in items}


def _visible_names(frame: types.FrameType) -> Mapping[str, Any]:
    """Return the names that a class's annotations may use: those of its module and of the enclosing function."""
    if frame.f_locals is frame.f_globals:
        return frame.f_globals
    return ChainMap(dict(frame.f_locals), frame.f_globals)


def _make_packable(cls: type[Any], options: Options, frozen: bool, kw_only: bool) -> type[Any]:
    plain = "__dataclass_fields__" not in cls.__dict__ and not _is_foreign(cls)
    if (frozen or kw_only) and not plain:
        raise SchemaError("this class has its constructor already", found=cls.__qualname__, hint="set its own options")
    has_own_equality = "__eq__" in cls.__dict__ and (plain or not _is_generated(cls.__dict__["__eq__"]))
    if plain:
        _evaluate_annotations(cls, options)
        cls = dataclasses.dataclass(eq=False, frozen=frozen, kw_only=kw_only)(cls)
    setattr(cls, OPTIONS, options)
    _add_methods(cls)
    if dataclasses.is_dataclass(cls) and not has_own_equality:
        frozen = getattr(cls, "__dataclass_params__").frozen  # noqa: B009 - not in the stubs
        type.__setattr__(cls, "__eq__", _equal)
        if cls.__dict__.get("__hash__") is None or not plain:
            type.__setattr__(cls, "__hash__", _hash if frozen else None)
    _check_annotations(cls)
    return cls


def _evaluate_annotations(cls: type[Any], options: Options) -> None:
    """Evaluate the annotations of a class outside any module (``exec``), which dataclasses cannot resolve."""
    if cls.__module__ not in sys.modules:
        hints = typing.get_type_hints(cls, localns=options.names, include_extras=True)
        cls.__annotations__ = {name: hints[name] for name in inspect.get_annotations(cls)}


def _is_foreign(cls: type[Any]) -> bool:
    return issubclass(cls, msgspec.Struct) or (is_record(cls) and not dataclasses.is_dataclass(cls))


def _is_generated(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == "<string>"  # compiled by dataclasses


def _add_methods(cls: type[Any]) -> None:
    for name in ("packed", "as_wds", "from_bytes", "from_data", "__schema__"):
        if name in getattr(cls, "__annotations__", {}):
            raise SchemaError("this name is one of a packable's own", found=name, field=f"{cls.__name__}.{name}")
        if name not in cls.__dict__ and not issubclass(cls, _Methods):
            setattr(cls, name, _Methods.__dict__[name])


def _check_annotations(cls: type[Any]) -> None:
    """Raise errors in annotations now instead of at the first sample, unless one names a class defined later."""
    try:
        read_record(cls)
    except SchemaError as error:
        if not isinstance(error.__cause__, NameError):
            raise


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal, including arrays and containers of arrays.

    Arrays are equal if dtype, shape and bytes are. Other values are compared by ``==``, except that NaN equals NaN.

    Examples:
        >>> same({"x": np.array([1.0, np.nan])}, {"x": np.array([1.0, np.nan])})
        True
        >>> same(np.zeros(3), np.zeros(3, np.float32))
        False
    """
    if one is two:
        return True
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(two, np.ndarray) and _arrays_equal(one, two)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        alike = isinstance(one, tuple) == isinstance(two, tuple) and len(one) == len(two)
        return alike and all(map(same, one, two))
    if isinstance(one, Mapping) and isinstance(two, Mapping) and type(one) is type(two):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, float) and isinstance(two, float) and one != one:  # noqa: PLR0124 - that is NaN
        return two != two  # noqa: PLR0124
    return bool(one == two)


def _arrays_equal(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
