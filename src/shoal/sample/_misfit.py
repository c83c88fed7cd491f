"""`Misfit`: a value that does not fit its type, and the path to it, found only once something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from shoal.errors import CodecError, SchemaMismatchError, ShoalError

__all__ = ["Misfit", "each", "found_type", "keyed", "mismatch", "placed", "rooted"]


class Misfit(Exception):  # noqa: N818 - never leaves the package; `mismatch` makes an error of it
    """What was expected and what was found, with the steps that lead there, innermost first."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
        self.steps: list[str] = []


def found_type(value: Any) -> str:
    """A value's type, and for an array its dtype and shape, as messages show it."""
    if isinstance(value, np.ndarray):
        return f"array[{value.dtype}, {value.shape}]"
    return "None" if value is None else type(value).__qualname__


def each(convert: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """Every value converted; where one does not fit, its number is the step to it."""
    try:
        return [convert(value) for value in values]
    except (Misfit, CodecError):
        for number, value in enumerate(values):  # again, and slower, to learn which
            placed(convert, value, f"[{number}]")
        raise


def keyed(key: Callable[[Any], Any], convert: Callable[[Any], Any], values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Every key and value of a map converted; where one does not fit, its key is the step to it."""
    try:
        return {key(name): convert(value) for name, value in values.items()}
    except (Misfit, CodecError):
        for name, value in values.items():
            placed(key, name, f"[{name!r}]")
            placed(convert, value, f"[{name!r}]")
        raise


def placed(convert: Callable[[Any], Any], value: Any, step: str) -> Any:
    """Convert, and note the step on what does not fit."""
    try:
        return convert(value)
    except Misfit as misfit:
        misfit.steps.append(step)
        raise
    except CodecError as error:
        error.field = f"{step}{error.field or ''}"
        raise


def rooted(error: CodecError) -> CodecError:
    """An error whose path was collected by `placed`, as a path from the sample."""
    error.field = (error.field or "").lstrip(".") or None
    return error


def mismatch(misfit: Misfit, problem: str) -> ShoalError:
    """The error that users see."""
    path = "".join(reversed(misfit.steps)).lstrip(".")
    return SchemaMismatchError(problem, expected=misfit.expected, found=misfit.found, field=path or None)
