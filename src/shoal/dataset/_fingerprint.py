"""What a dataset is, as a short text: equal for equal samples in an equal order, across processes and machines."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import os
import pickle
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.sample import is_record, schema_of
from shoal.schema import schema_hash
from shoal.shard import ShardSource, Source
from shoal.store import base_name

from ._description import Description, SupportsIdentity, digest_of, source_identity

__all__ = ["fingerprint_of", "value_mark"]

Int64 = npt.NDArray[np.int64]
_LENGTH = 16
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range)


def fingerprint_of(description: Description, source: Source, rows: Int64 | None, sample_type: type[Any]) -> str:
    """A digest over all that says which samples come, in which order, and what is made of them."""
    parts = [
        source_identity(source),
        _path_mark(description, source),
        _rows_mark(source, rows),
        repr(description.fields),
        value_mark(description.spec),
        _type_mark(sample_type),
        *(f"{stage.kind} {value_mark(stage.function)}" for stage in description.stages),
    ]
    return digest_of(parts)[:_LENGTH]


def _path_mark(description: Description, source: Source) -> str:
    """The names of files of other formats; sources of ours tell more than that themselves."""
    path: Any = description.path
    if isinstance(source, (ShardSource, SupportsIdentity)):
        return ""
    names = [path] if isinstance(path, (str, os.PathLike)) else path if isinstance(path, tuple) else []
    return repr([base_name(os.fspath(name)) for name in names])


def _rows_mark(source: Source, rows: Int64 | None) -> str:
    """The same whether all samples are shown because none was chosen or because all were."""
    if rows is None or (len(rows) == len(source) and np.array_equal(rows, np.arange(len(rows)))):
        return "all"
    return hashlib.sha256(np.ascontiguousarray(rows, "<i8").tobytes()).hexdigest()


def _type_mark(kind: type[Any]) -> str:
    return f"schema {schema_hash(schema_of(kind))}" if is_record(kind) else _name(kind)


def _name(thing: Any) -> str:
    # A spawned process calls the module of the script by another name.
    module = str(getattr(thing, "__module__", "")).replace("__mp_main__", "__main__")
    return f"{module}.{getattr(thing, '__qualname__', None) or getattr(thing, '__name__', type(thing).__qualname__)}"


def value_mark(value: Any) -> str:
    """A text that is equal for equal values in every process: for functions, their code and what they hold.

    What cannot be told apart by what it holds is told by its type.

    Example:
        >>> def adder(n):
        ...     return lambda x: x + n
        >>> value_mark(adder(1)) == value_mark(adder(1)), value_mark(adder(1)) == value_mark(adder(2))
        (True, False)
    """
    return _Marks().of(value)


class _Marks:
    """The marks of a value and of all it holds; each is made once, and a value inside itself is not entered again."""

    def __init__(self) -> None:
        self._entered: set[int] = set()
        self._made: dict[int, tuple[Any, str]] = {}
        """By identity, with the value, which so lives on and keeps its identity for itself."""

    def of(self, value: Any) -> str:
        """The mark of one value."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        made = self._made.get(id(value))
        if made is not None:
            return made[1]
        if id(value) in self._entered:
            return "inside itself"
        self._entered.add(id(value))
        mark = digest_of([type(value).__name__, *self._inside(value)])
        self._entered.remove(id(value))
        self._made[id(value)] = (value, mark)
        return mark

    def _each(self, values: Iterable[Any]) -> Iterator[str]:
        held = list(values)
        yield str(len(held))
        yield from map(self.of, held)

    def _inside(self, value: Any) -> Iterator[str]:
        match value:
            case types.FunctionType():
                yield from self._function(value)
            case types.CodeType():
                yield from self._code(value)
            case types.MethodType():
                yield from self._each((value.__func__, value.__self__))
            case functools.partial():
                yield from self._each((value.func, value.args, value.keywords))
            case type() | types.BuiltinFunctionType() | types.ModuleType():
                yield _name(value)
            case enum.Enum():
                yield f"{_name(type(value))}.{value.name}"
            case np.ndarray() if value.dtype != object:
                yield f"{value.dtype.str} {value.shape}"
                yield hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            case np.generic():
                yield f"{value.dtype.str} {value!r}"
            case list() | tuple():
                yield from self._each(value)
            case set() | frozenset():
                yield from sorted(self._each(value))
            case dict():
                yield from self._each(item for pair in value.items() for item in pair)
            case _:
                yield from self._object(value)

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        yield _name(function)
        yield from self._each((function.__code__, function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield self.of(cell.cell_contents)
            except ValueError:  # not filled yet
                yield "empty"
        yield from self._globals(function)

    def _globals(self, function: types.FunctionType) -> Iterator[str]:
        """The functions and constants of the same module that a function uses: with them it does something else."""
        for name in _names(function.__code__):
            value = function.__globals__.get(name, _Marks)
            own = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
            if own or isinstance(value, (*_PLAIN, tuple, frozenset)):
                yield name
                yield self.of(value)

    def _code(self, code: types.CodeType) -> Iterator[str]:
        """What code does, without where it was written."""
        yield code.co_code.hex()
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount))
        yield from self._each(code.co_consts)

    def _object(self, value: Any) -> Iterator[str]:
        """An object by its class and what it holds, as it would be sent to another process."""
        kind = type(value)
        yield _name(kind)
        if isinstance(getattr(kind, "fingerprint", None), (property, functools.cached_property)):
            yield str(value.fingerprint)
            return
        call = vars(kind).get("__call__")
        if isinstance(call, types.FunctionType):
            yield self.of(call.__code__)
        try:
            state = _state(value)
            yield self.of(state) if state is not None else hashlib.sha256(pickle.dumps(value, 4)).hexdigest()
        except Exception:  # noqa: BLE001 - whatever its class raises: then it is told by its type alone
            return


def _state(value: Any) -> Any:
    """What an object holds; None where only its pickle tells."""
    kind: Any = type(value)
    if dataclasses.is_dataclass(value):
        return {part.name: getattr(value, part.name, None) for part in dataclasses.fields(value)}
    if kind.__getstate__ is not object.__getstate__:
        return value.__getstate__()
    held = {**{name: getattr(value, name, None) for name in _slots(kind)}, **getattr(value, "__dict__", {})}
    # What is kept only to be quick, such as a cached property, would differ between a fresh object and a used one.
    return {name: held[name] for name in sorted(held) if not _is_cached(kind, name)} or None


def _names(code: types.CodeType) -> list[str]:
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _slots(kind: type) -> list[str]:
    return [
        name
        for base in kind.__mro__
        for name in _as_tuple(base.__dict__.get("__slots__", ()))
        if name not in ("__dict__", "__weakref__")
    ]


def _as_tuple(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), functools.cached_property)
