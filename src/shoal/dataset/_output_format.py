"""`with_format` and `with_transform`: samples as arrays, tensors or tables.

Integers become int64 and floats float32, except that uint8 arrays, which are images, stay uint8. Strings, bytes and
None stay as they are. Lists become arrays, dicts become dicts of arrays. In a column, values of one shape become one
array, and None among numbers becomes NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal._typing import AnyArray
from shoal.codec._frameworks import Framework, framework, framework_of
from shoal.errors import OptionError

from ._column_stages import ColumnSelection, columns_of_sample
from ._columns import arrow_table, data_frame

__all__ = ["Formatting", "format_named"]

Columns = dict[str, list[Any]]
FORMATS: dict[str | None, str | None] = {
    **dict.fromkeys((None, "python"), None),
    **dict.fromkeys(("arrow", "pa", "pyarrow"), "arrow"),
    **dict.fromkeys(("numpy", "np"), "numpy"),
    **dict.fromkeys(("pandas", "pd"), "pandas"),
    **dict.fromkeys(("torch", "pt", "pytorch"), "torch"),
    **dict.fromkeys(("tensorflow", "tf"), "tensorflow"),
    "jax": "jax",
}
"""Every name of a format, and the format it means; None stands for plain Python values."""
_TABLES = {"arrow": arrow_table, "pandas": data_frame}


@dataclass(frozen=True, slots=True)
class Formatting:
    """The last stage of a formatted dataset: one sample as a row, or several as a batch.

    It is always the last one, so that a slice can be formatted as one batch.
    """

    kind: str | None = None
    columns: tuple[str, ...] | None = None
    output_all_columns: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    transform: Callable[[dict[str, Any]], Any] | None = None

    def __call__(self, sample: Any) -> Any:
        """One sample in this format."""
        found = columns_of_sample(sample)
        chosen = {name: value for name, value in found.items() if self._is_formatted(name)}
        rest = {name: value for name, value in found.items() if name not in chosen}
        return self._with_rest(self._row(chosen), rest)

    def batch(self, samples: list[Any], names: tuple[str, ...] | None) -> Any:
        """Several samples as one batch; ``names`` are the columns, where they are known."""
        columns = _to_columns([columns_of_sample(sample) for sample in samples], names)
        chosen = {name: values for name, values in columns.items() if self._is_formatted(name)}
        rest = {name: values for name, values in columns.items() if name not in chosen}
        return self._with_rest(self._columns(chosen), rest)

    def _is_formatted(self, name: str) -> bool:
        return self.columns is None or name in self.columns

    def _with_rest(self, formatted: Any, rest: dict[str, Any]) -> Any:
        if not self.output_all_columns or self.columns is None:
            return formatted
        if not isinstance(formatted, dict):
            raise TypeError(f"output_all_columns needs a dict to add the other columns to, not {type(formatted)}")
        return formatted | rest

    def _row(self, values: dict[str, Any]) -> Any:
        if self.transform is not None:
            return _first_row(self.transform({name: [value] for name, value in values.items()}))
        if self.kind in _TABLES:
            return _TABLES[self.kind]({name: [value] for name, value in values.items()})
        tensors = self._tensors()
        return values if tensors is None else {name: tensors.value(value) for name, value in values.items()}

    def _columns(self, columns: Columns) -> Any:
        if self.transform is not None:
            return self.transform(columns)
        if self.kind in _TABLES:
            return _TABLES[self.kind](columns)
        tensors = self._tensors()
        return columns if tensors is None else {name: tensors.column(values) for name, values in columns.items()}

    def _tensors(self) -> Tensors | None:
        if self.kind is None:
            return None
        made = NUMPY_TENSORS if self.kind == "numpy" else framework_tensors(framework(self.kind))  # type: ignore[arg-type]
        return replace(made, options=dict(self.options)) if self.options else made

    def needs(self, wanted: ColumnSelection) -> ColumnSelection:
        """The formatted columns, or all."""
        return wanted if self.columns is None or self.output_all_columns else ColumnSelection(frozenset(self.columns))

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that come out."""
        if self.columns is None:
            return before
        rest = [name for name in before if name not in self.columns] if self.output_all_columns else []
        return (*(name for name in before if name in self.columns), *rest)


def format_named(name: str | None) -> str | None:
    """The format that a name means, with its package imported. Raises OptionError and MissingExtraError."""
    if name not in FORMATS:
        known = " or ".join(sorted(str(kind) for kind in set(FORMATS.values())))
        raise OptionError("no format has this name", expected=known, found=repr(name))
    kind = FORMATS[name]
    if kind == "pandas":
        data_frame({})
    elif kind in ("torch", "jax", "tensorflow"):
        framework(kind)  # type: ignore[arg-type]
    return kind


def _to_columns(samples: list[dict[str, Any]], names: tuple[str, ...] | None) -> Columns:
    """Samples column by column; None where a sample lacks one."""
    found = dict.fromkeys(names or ()) if not samples else dict.fromkeys(name for one in samples for name in one)
    return {name: [sample.get(name) for sample in samples] for name in found}


def _first_row(batch: Any) -> dict[str, Any]:
    if not isinstance(batch, Mapping):
        raise TypeError(f"a transform gives a dict of columns, so that a sample can be taken out of it, not {batch!r}")
    return {name: values[0] for name, values in batch.items()}


@dataclass(frozen=True, slots=True)
class Tensors:
    """One kind of arrays, and how values become them."""

    number: Callable[[Any, dict[str, Any]], Any]
    """One number outside of any array."""
    array: Callable[[AnyArray, dict[str, Any]], Any]
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
        return self._from_array(value)

    def column(self, values: Sequence[Any]) -> Any:
        """Several values: one array where they are of one shape, else what ``together`` makes of them."""
        held = list(values)
        if _are_numbers(held):
            return self.array(_number_array(held), self.options)
        if held and all(isinstance(value, (str, bytes)) for value in held):
            return self.texts(held)
        return self.together([self.value(value) for value in _type_empty_lists(held)])

    def _from_array(self, value: Any) -> Any:
        """A value that is an array, or can be converted to one."""
        array = _as_array(value)
        if array is None:
            return value
        if array.dtype == object or array.dtype.kind in "US":
            return self.column(array.tolist())
        if self.channels_first and hasattr(value, "getbands"):  # a Pillow image; arrays keep their layout
            array = (array[:, :, np.newaxis] if array.ndim == 2 else array).transpose((2, 0, 1))
        return self.array(array, self.options)


def _are_numbers(values: list[Any]) -> bool:
    """Whether all are numbers, some perhaps None; True and False are numbers only among themselves."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {bool, np.bool_}:
        return bool(kinds) and None not in values
    return all(issubclass(kind, (int, float, np.number)) and kind is not bool for kind in kinds)


def _type_empty_lists(values: list[Any]) -> list[Any]:
    """The values, with empty lists as arrays of the dtype of the others."""
    if not all(isinstance(value, list) for value in values) or [] not in values:
        return values
    full = next((value for value in values if value and _are_numbers(value)), [0.0])
    return [value or _number_array(full)[:0] for value in values]


def _number_array(values: list[Any]) -> AnyArray:
    array = np.asarray([np.nan if value is None else value for value in values] if None in values else values)
    is_exact = (
        array.dtype.kind != "f" or None in values or any(isinstance(value, float | np.floating) for value in values)
    )
    return array if is_exact else np.asarray(values, dtype=object)  # ints that no integer type holds


def _as_array(value: Any) -> AnyArray | None:
    if (of := framework_of(value)) is not None and of.name == "torch":
        return np.asarray(value.detach().cpu().numpy())
    # Pillow's images have the second only.
    return np.asarray(value) if hasattr(value, "__array__") or hasattr(value, "__array_interface__") else None


def _with_default_dtype(array: AnyArray, options: dict[str, Any]) -> AnyArray:
    dtype: Any = None
    if np.issubdtype(array.dtype, np.integer) and array.dtype != np.uint8:
        has_wide = array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max
        dtype = np.uint64 if has_wide else np.int64
    elif np.issubdtype(array.dtype, np.floating):
        dtype = np.float32
    return np.asarray(array, **{"dtype": dtype, **options})


def _stack_or_objects(values: list[Any]) -> AnyArray:
    first: Any = values[0] if values else None
    arrays = bool(values) and all(isinstance(value, (np.ndarray, np.generic)) for value in values)
    if arrays and all(value.shape == first.shape and value.dtype == first.dtype for value in values):
        return np.stack(values)
    return _object_array(values)


def _object_array(values: list[Any]) -> AnyArray:
    out: AnyArray = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        out[at] = value
    return out


def _string_array(values: list[Any]) -> AnyArray:
    # An array of bytes would lose the zeros at their ends, so these stay objects.
    return np.asarray(values) if all(isinstance(value, str) for value in values) else _object_array(values)


NUMPY_TENSORS = Tensors(
    number=lambda value, options: np.asarray(value, **options)[()],
    array=_with_default_dtype,
    together=_stack_or_objects,
    text=lambda text: text,
    texts=_string_array,
)
"""NumPy's arrays."""


def framework_tensors(of: Framework) -> Tensors:
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
