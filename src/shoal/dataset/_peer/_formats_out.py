"""What a dataset hands out: samples as arrays, tensors or tables, or through a function of batches, as in Hugging Face.

A format is the last step of a dataset, so that a slice can be formatted as one batch; see ``format_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.codec import framework
from shoal.dataset._description import Stage
from shoal.errors import OptionError

from ._column_steps import Wanted, columns_of_sample
from ._format_tables import arrow_table, data_frame
from ._tensors import ARRAYS, Tensors, of_framework

__all__ = ["FORMATS", "Formatting", "format_named", "format_of"]

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

Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Formatting:
    """The last step of a formatted dataset: one sample as a row, or several as a batch."""

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
        columns = _gathered([columns_of_sample(sample) for sample in samples], names)
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
        made = ARRAYS if self.kind == "numpy" else of_framework(framework(self.kind))  # type: ignore[arg-type]
        return replace(made, options=dict(self.options)) if self.options else made

    def needs(self, wanted: Wanted) -> Wanted:
        """The formatted columns, or all."""
        return wanted if self.columns is None or self.output_all_columns else Wanted(frozenset(self.columns))

    def names(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that come out."""
        if self.columns is None:
            return before
        rest = [name for name in before if name not in self.columns] if self.output_all_columns else []
        return (*(name for name in before if name in self.columns), *rest)


def format_of(stages: tuple[Stage, ...]) -> Formatting | None:
    """The format that these stages end in."""
    last = stages[-1].function if stages else None
    return last if isinstance(last, Formatting) else None


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


def _gathered(samples: list[dict[str, Any]], names: tuple[str, ...] | None) -> Columns:
    """Samples column by column; None where a sample lacks one."""
    found = dict.fromkeys(names or ()) if not samples else dict.fromkeys(name for one in samples for name in one)
    return {name: [sample.get(name) for sample in samples] for name in found}


def _first_row(batch: Any) -> dict[str, Any]:
    if not isinstance(batch, Mapping):
        raise TypeError(f"a transform gives a dict of columns, so that a sample can be taken out of it, not {batch!r}")
    return {name: values[0] for name, values in batch.items()}
