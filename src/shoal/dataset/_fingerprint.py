"""Fingerprints of datasets: equal for equal samples in equal order, across processes and machines."""

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

from shoal.sample._annotations import is_record, schema_of
from shoal.schema._json_schema import schema_hash
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource, Source
from shoal.store._url import base_name

from ._description import Description, SupportsIdentity, digest_of, source_identity

__all__ = ["digest_value", "fingerprint_of", "setting_digests"]

_FINGERPRINT_CHARS, _SETTING_CHARS = 16, 6
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range)


def fingerprint_of(description: Description, source: Source, rows: RowView | None, sample_type: type[Any]) -> str:
    """Return a digest of the samples in view, their order, and the stages applied to them."""
    parts = [
        *_settings(description, source, rows, sample_type).values(),
        *(f"{stage.kind} {digest_value(stage.function)}" for stage in description.stages),
    ]
    return digest_of(parts)[:_FINGERPRINT_CHARS]


def setting_digests(
    description: Description, source: Source, rows: RowView | None, sample_type: type[Any]
) -> dict[str, str]:
    """Return a short digest of each setting of a dataset without stages, so that two of them tell which one differs."""
    settings = _settings(description, source, rows, sample_type)
    data = digest_of([settings.pop("data")])[:_FINGERPRINT_CHARS]
    return {"data": data, **{name: digest_of([value])[:_SETTING_CHARS] for name, value in settings.items()}}


def _settings(description: Description, source: Source, rows: RowView | None, sample_type: type[Any]) -> dict[str, str]:
    """Return what tells two datasets apart, by the name of the setting; without settings that choose everything."""
    settings = {
        "data": f"{source_identity(source)} {_digest_path(description, source)}",
        "view": _digest_rows(source, rows),
        "fields": "all" if description.fields is None else repr(description.fields),
        "decode": digest_value(description.spec),
        "type": _digest_type(sample_type),
    }
    return {name: value for name, value in settings.items() if value != "all"}


def _digest_path(description: Description, source: Source) -> str:
    """The names of the files of other formats; tar shards and composite sources have their own identity."""
    path: Any = description.path
    if isinstance(source, (ShardSource, SupportsIdentity)):
        return ""
    names = [path] if isinstance(path, (str, os.PathLike)) else path if isinstance(path, tuple) else []
    return repr([base_name(os.fspath(name)) for name in names])


def _digest_rows(source: Source, rows: RowView | None) -> str:
    """The same whether all samples are shown because none was chosen or because all were."""
    return "all" if rows is None or rows.is_whole(len(source)) else rows.digest


def _digest_type(kind: type[Any]) -> str:
    return f"schema {schema_hash(schema_of(kind))}" if is_record(kind) else _name(kind)


def _name(thing: Any) -> str:
    # A spawned process calls the module of the script by another name.
    module = str(getattr(thing, "__module__", "")).replace("__mp_main__", "__main__")
    return f"{module}.{getattr(thing, '__qualname__', None) or getattr(thing, '__name__', type(thing).__qualname__)}"


def digest_value(value: Any) -> str:
    """A text that is equal for equal values in every process: for functions, their code and what they hold.

    What cannot be told apart by what it holds is told by its type.

    Examples:
        >>> def adder(n):
        ...     return lambda x: x + n
        >>> digest_value(adder(1)) == digest_value(adder(1)), digest_value(adder(1)) == digest_value(adder(2))
        (True, False)
    """
    return _ValueDigests().of(value)


class _ValueDigests:
    """Digests of a value and of everything in it. Each is computed once; cycles are cut."""

    def __init__(self) -> None:
        self._entered: set[int] = set()
        self._made: dict[int, tuple[Any, str]] = {}
        """By id, with the value, so that the id is not reused."""

    def of(self, value: Any) -> str:
        """The digest of one value."""
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
            value = function.__globals__.get(name, _ValueDigests)
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
