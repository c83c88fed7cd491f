"""A sample as a writer takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.dataset._reading import PAYLOAD
from shoal.errors import SchemaMismatchError, ShoalError, WriteError
from shoal.sample import DictSample, is_record, pack

__all__ = ["stored_form"]


def stored_form(number: int, sample: Any, kind: type[Any]) -> tuple[str, Any]:
    """The key and the fields of a sample: of a dict its own, of a typed one its number and its payload.

    A pair of a key and a sample is under that key. Raises SchemaMismatchError for a sample of another type.
    """
    key, value = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, sample)
    if not is_record(kind) and not issubclass(kind, DictSample):
        return _plain(number, key, value)
    key = f"{number:09d}" if key is None else key
    if type(value) is not kind:
        found = type(value).__name__
        raise SchemaMismatchError(f"sample {number} is of another type", expected=kind.__name__, found=found, key=key)
    try:
        return key, {PAYLOAD: value.packed if isinstance(value, DictSample) else pack(value)}
    except ShoalError as error:
        raise error.at(key=key) from error.__cause__


def _plain(number: int, key: Any, value: Any) -> tuple[str, Any]:
    fields = value if isinstance(value, Mapping) else getattr(value, "as_wds", None)
    if not isinstance(fields, Mapping):
        raise WriteError("this is no sample", expected="a mapping or a typed sample", found=type(value).__name__)
    key = fields.get("__key__") if key is None else key
    key = f"{number:09d}" if key is None else key
    if not isinstance(key, str):
        raise WriteError("a key is text", expected="str", found=f"{type(key).__name__} {key!r}")
    return key, fields
