"""Marks: short digests by which a rerun knows whether the source, the function or the samples are those of before."""

from __future__ import annotations

import functools
import hashlib
import types
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["crc_of", "feed", "function_mark", "mark_of"]


def mark_of(*values: Any) -> str:
    """A digest of plain values: equal for equal ones, in every process.

    Example:
        >>> mark_of({"a": 1}, "x") == mark_of({"a": 1}, "x"), mark_of(1) == mark_of("1")
        (True, False)
    """
    digest = hashlib.sha256()
    for value in values:
        feed(digest.update, value)
    return digest.hexdigest()[:32]


def crc_of(sample: Any, before: int = 0) -> int:
    """A quick checksum of a sample, carried on from the one ``before`` it."""
    crc = before

    def update(data: Any) -> None:
        nonlocal crc
        crc = zlib.crc32(data, crc)

    feed(update, sample)
    return crc


def feed(update: Any, value: Any) -> None:
    """A value as bytes that tell it from others. Of a strange object only its type counts: it has no lasting name."""
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
            feed(update, name)
            feed(update, inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        update(b"l%d:" % len(value))
        for inner in sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value:
            feed(update, inner)
    else:
        update(f"{type(value).__module__}.{type(value).__qualname__};".encode())


def function_mark(function: Any) -> str | None:
    """A digest of a function's code and of the plain values it holds; None without a function.

    A function that calls others is not followed: what those do may change unseen.

    Example:
        >>> function_mark(lambda x: x + 1) == function_mark(lambda x: x + 1)
        True
        >>> function_mark(lambda x: x + 1) == function_mark(lambda x: x + 2)
        False
    """
    return None if function is None else mark_of(_facts_of(function))


def _facts_of(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return ["partial", _facts_of(function.func), function.args, function.keywords]
    if isinstance(function, types.MethodType):
        return ["method", _facts_of(function.__func__), getattr(function.__self__, "__dict__", None)]
    code = getattr(function, "__code__", None)
    if code is None:
        kind = function if isinstance(function, type) else type(function)
        return [getattr(function, "__qualname__", kind.__qualname__), getattr(function, "__dict__", None)]
    held = [cell.cell_contents for cell in function.__closure__ or () if cell is not None]
    return [_code_facts(code), function.__defaults__, function.__kwdefaults__, [_plain(value) for value in held]]


def _plain(value: Any) -> Any:
    return _facts_of(value) if callable(value) else value


def _code_facts(code: types.CodeType) -> list[Any]:
    constants = [_code_facts(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
    return [code.co_code, constants, code.co_names, code.co_varnames]
