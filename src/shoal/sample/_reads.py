"""Which attributes of its argument a function reads, from its code: without running it, and for all its branches."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from shoal.schema import Schema

__all__ = ["attributes_read"]

_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_LOADS = ("LOAD_", "STORE_FAST_LOAD_FAST")
# With these a function gets at its variables behind the back of its code.
_ESCAPES = {"locals", "vars", "eval", "exec", "dir"}


class _UnknownError(Exception):
    """The argument is used in a way that says nothing about what is read of it."""


def attributes_read(function: Callable[..., Any], schema: Schema) -> frozenset[str] | None:
    """The fields of ``schema`` that a function reads of its first argument; None where that cannot be known."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_argcount < 1:
        return None
    code = function.__code__
    try:
        read = frozenset(_attributes(code, code.co_varnames[0]))
    except _UnknownError:
        return None
    # A method, or a property, may read anything.
    return read if all(name in schema for name in read) else None


def _attributes(code: types.CodeType, name: str) -> Iterator[str]:
    if _ESCAPES & set(code.co_names):
        raise _UnknownError
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE")]
    for step, following in pairwise([*steps, None]):
        if step is None or not _touches(step, name):
            continue
        if step.opname in ("LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS") or _makes_closure(step, code, name):
            continue  # the inner functions that get it are looked into below
        if following is None or not _is_read(step, following, name):
            raise _UnknownError
        yield following.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and name in inner.co_freevars:
            yield from _attributes(inner, name)


def _touches(step: dis.Instruction, name: str) -> bool:
    """Whether an instruction loads or stores the variable; since Python 3.13 one may do so with two variables."""
    if not any(word in step.opname for word in ("FAST", "DEREF", "CLOSURE", "CELL")):
        return False
    return name in step.argval if isinstance(step.argval, tuple) else name == step.argval


def _makes_closure(step: dis.Instruction, code: types.CodeType, name: str) -> bool:
    # Since Python 3.13 a cell is loaded as a fast variable to build a closure; its content is loaded with DEREF.
    return name in (*code.co_cellvars, *code.co_freevars) and step.opname.startswith("LOAD_FAST")


def _is_read(step: dis.Instruction, following: dis.Instruction, name: str) -> bool:
    if not step.opname.startswith(_LOADS) or following.opname not in _ATTRIBUTES:
        return False
    # Of two variables in one instruction, the second is the one whose attribute is read.
    return step.argval[-1] == name and step.argval[0] != name if isinstance(step.argval, tuple) else True
