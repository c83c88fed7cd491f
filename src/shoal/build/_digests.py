"""Digests by which a rerun notices that the source, the function or the samples have changed."""

from __future__ import annotations

import functools
import hashlib
import types
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["checksum_sample", "digest_function", "digest_values", "update_digest"]


def digest_values(*values: Any) -> str:
    """Return a digest of plain values, equal for equal values in every process.

    Examples:
        >>> digest_values({"a": 1}, "x") == digest_values({"a": 1}, "x"), digest_values(1) == digest_values("1")
        (True, False)
    """
    digest = hashlib.sha256()
    for value in values:
        update_digest(digest.update, value)
    return digest.hexdigest()[:32]


def checksum_sample(sample: Any, before: int = 0) -> int:
    """Return a crc32 of a sample, continued from ``before``, that of the samples before it."""
    crc = before

    def update(data: Any) -> None:
        nonlocal crc
        crc = zlib.crc32(data, crc)

    update_digest(update, sample)
    return crc


def update_digest(update: Any, value: Any) -> None:
    """Call ``update`` with bytes that identify a value. Of an object of an unknown type, only the type counts."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        update(b"b%d:" % len(value))
        update(value)
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        update(b"s%d:" % len(text))
        update(text)
    elif value is None or isinstance(value, (bool, int, float, complex, np.generic)):
        update(f"{type(value).__name__} {value!r};".encode())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        update(f"{value.dtype} {value.shape};".encode())
        update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        update(b"d%d:" % len(value))
        for name, inner in value.items():
            update_digest(update, name)
            update_digest(update, inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        update(b"l%d:" % len(value))
        for inner in sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value:
            update_digest(update, inner)
    else:
        update(f"{type(value).__module__}.{type(value).__qualname__};".encode())


def digest_function(function: Any) -> str | None:
    """Return a digest of a function's code, defaults and closure; None without a function.

    Functions that it calls are not followed, so a change in one of them is not noticed.

    Examples:
        >>> digest_function(lambda x: x + 1) == digest_function(lambda x: x + 1)
        True
        >>> digest_function(lambda x: x + 1) == digest_function(lambda x: x + 2)
        False
    """
    return None if function is None else digest_values(_function_facts(function))


def _function_facts(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return ["partial", _function_facts(function.func), function.args, function.keywords]
    if isinstance(function, types.MethodType):
        return ["method", _function_facts(function.__func__), getattr(function.__self__, "__dict__", None)]
    code = getattr(function, "__code__", None)
    if code is None:
        kind = function if isinstance(function, type) else type(function)
        return [getattr(function, "__qualname__", kind.__qualname__), getattr(function, "__dict__", None)]
    values = [cell.cell_contents for cell in function.__closure__ or () if cell is not None]
    closure = [_function_facts(value) if callable(value) else value for value in values]
    return [_code_facts(code), function.__defaults__, function.__kwdefaults__, closure]


def _code_facts(code: types.CodeType) -> list[Any]:
    constants = [_code_facts(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
    return [code.co_code, constants, code.co_names, code.co_varnames]
