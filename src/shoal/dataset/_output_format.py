"""Values of samples as arrays and tensors, with the types that Hugging Face datasets gives them.

Whole numbers become 64 bits wide and fractions 32, but arrays of 8 bits stay so: they are images. Texts, bytes and None
stay as they are. Lists become arrays, dicts dicts of arrays. In a column, values of one shape become one array, and a
None among numbers is not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.codec import Framework, framework_of

__all__ = ["ARRAYS", "Tensors", "of_framework"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensors:
    """One kind of arrays, and how values become them."""

    number: Callable[[Any, dict[str, Any]], Any]
    """One number outside of any array."""
    array: Callable[[Array, dict[str, Any]], Any]
    together: Callable[[list[Any]], Any]
    """Several results as one column."""
    text: Callable[[Any], Any]
    texts: Callable[[list[Any]], Any]
    channels_first: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def value(self, value: Any) -> Any:
        """One value."""
        if value is None:
            return None
        if isinstance(value, (str, bytes)):
            return self.text(value)
        if isinstance(value, (bool, int, float, np.generic)):
            return self.number(value, self.options)
        if isinstance(value, Mapping):
            return {name: self.value(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return self.column(value)
        return self._whole(value)

    def column(self, values: Sequence[Any]) -> Any:
        """Several values: one array where they are of one shape, else what ``together`` makes of them."""
        held = list(values)
        if _are_numbers(held):
            return self.array(_numbers(held), self.options)
        if held and all(isinstance(value, (str, bytes)) for value in held):
            return self.texts(held)
        return self.together([self.value(value) for value in _typed_alike(held)])

    def _whole(self, value: Any) -> Any:
        """What is an array already, or can be one."""
        array = _as_array(value)
        if array is None:
            return value
        if array.dtype == object or array.dtype.kind in "US":
            return self.column(array.tolist())
        if self.channels_first and hasattr(value, "getbands"):  # a Pillow image; arrays are as their maker wanted them
            array = (array[:, :, np.newaxis] if array.ndim == 2 else array).transpose((2, 0, 1))
        return self.array(array, self.options)


def _are_numbers(values: list[Any]) -> bool:
    """Whether all are numbers, some perhaps None; True and False are numbers only among themselves."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {bool, np.bool_}:
        return bool(kinds) and None not in values
    return all(issubclass(kind, (int, float, np.number)) and kind is not bool for kind in kinds)


def _typed_alike(values: list[Any]) -> list[Any]:
    """The same, with lists of nothing as arrays of what the other lists hold."""
    if not all(isinstance(value, list) for value in values) or [] not in values:
        return values
    full = next((value for value in values if value and _are_numbers(value)), [0.0])
    return [value or _numbers(full)[:0] for value in values]


def _numbers(values: list[Any]) -> Array:
    return np.asarray([np.nan if value is None else value for value in values] if None in values else values)


def _as_array(value: Any) -> Array | None:
    if (of := framework_of(value)) is not None and of.name == "torch":
        return np.asarray(value.detach().cpu().numpy())
    # Pillow's images have the second only.
    return np.asarray(value) if hasattr(value, "__array__") or hasattr(value, "__array_interface__") else None


# --------------------------------------------------------------------------------------------------------------- numpy


def _usual(array: Array, options: dict[str, Any]) -> Array:
    dtype: Any = None
    if np.issubdtype(array.dtype, np.integer) and array.dtype != np.uint8:
        dtype = np.int64
    elif np.issubdtype(array.dtype, np.floating):
        dtype = np.float32
    return np.asarray(array, **{"dtype": dtype, **options})


def _stacked(values: list[Any]) -> Array:
    first: Any = values[0] if values else None
    arrays = bool(values) and all(isinstance(value, (np.ndarray, np.generic)) for value in values)
    if arrays and all(value.shape == first.shape and value.dtype == first.dtype for value in values):
        return np.stack(values)
    return _objects(values)


def _objects(values: list[Any]) -> Array:
    out: Array = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        out[at] = value
    return out


def _texts(values: list[Any]) -> Array:
    # An array of bytes would lose the zeros at their ends, so these stay objects.
    return np.asarray(values) if all(isinstance(value, str) for value in values) else _objects(values)


ARRAYS = Tensors(
    number=lambda value, options: np.asarray(value, **options)[()],
    array=_usual,
    together=_stacked,
    text=lambda text: text,
    texts=_texts,
)
"""NumPy's arrays."""

# ---------------------------------------------------------------------------------------------------------- frameworks


def of_framework(of: Framework) -> Tensors:
    """A framework's tensors."""

    def text(value: Any) -> Any:
        return of.tensor(value, {}) if of.takes_text else value

    def together(values: list[Any]) -> Any:
        return of.together(values)

    return Tensors(
        number=of.tensor,
        array=of.tensor,
        together=together,
        text=text,
        texts=lambda values: together([text(value) for value in values]),
        channels_first=of.channels_first,
    )
