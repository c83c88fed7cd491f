"""Names of array types: one NumPy type (``float32``, ``<U5``), or a family of them (``floating``, ``str``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from shoal.errors import SchemaError

__all__ = ["dtype_family", "dtype_fits", "dtype_name"]

# Types without a size or unit of their own, and NumPy's abstract ones: any type of the family fits.
_FAMILIES: dict[str, Any] = {
    "number": np.number,
    "integer": np.integer,
    "signedinteger": np.signedinteger,
    "unsignedinteger": np.unsignedinteger,
    "inexact": np.inexact,
    "floating": np.floating,
    "complexfloating": np.complexfloating,
    "flexible": np.flexible,
    "character": np.character,
    "str": np.str_,
    "bytes": np.bytes_,
    "void": np.void,
    "datetime64": np.datetime64,
    "timedelta64": np.timedelta64,
}
_FAMILY_NAMES = {family: name for name, family in _FAMILIES.items()}


def dtype_name(dtype: object) -> str | None:
    """The one name of a dtype, however it was given; None for none.

    Raises:
        SchemaError: NumPy knows no such type, or it holds Python objects.

    Example:
        >>> dtype_name(np.float32), dtype_name("<f4"), dtype_name(">f4"), dtype_name(np.floating)
        ('float32', 'float32', '>f4', 'floating')
    """
    if dtype is None or dtype is Any or dtype is np.generic:
        return None
    if isinstance(dtype, str) and dtype in _FAMILIES:
        return dtype
    if isinstance(dtype, type) and dtype in _FAMILY_NAMES:
        return _FAMILY_NAMES[dtype]
    return _exact_name(dtype)


def _exact_name(dtype: object) -> str:
    try:
        exact: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError) as error:
        raise SchemaError("this is not the type of an array", expected="a NumPy dtype", found=repr(dtype)) from error
    if exact.hasobject or exact.fields:
        expected = "numbers, text, bytes or times; np.void for structures"
        raise SchemaError("an array of this type has no schema", expected=expected, found=str(exact))
    return exact.name if exact.kind in "biufc" and exact.isnative else exact.str


@lru_cache(maxsize=1024)
def dtype_fits(name: str | None) -> Callable[[np.dtype[Any]], bool]:
    """Whether an array's dtype is the named one, or of the named family.

    Example:
        >>> dtype_fits("floating")(np.dtype("float16")), dtype_fits("float32")(np.dtype("float64"))
        (True, False)
    """
    if name is None:
        return lambda dtype: True
    if name in _FAMILIES:
        family = _FAMILIES[name]
        return lambda dtype: issubclass(dtype.type, family)
    return np.dtype(name).__eq__


def dtype_family(name: str) -> type[np.generic] | None:
    """The NumPy class that a family's name stands for, or None for the name of one type."""
    family: type[np.generic] | None = _FAMILIES.get(name)
    return family
