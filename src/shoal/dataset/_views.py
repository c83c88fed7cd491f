"""Views: other samples, other fields, other types, without rewriting anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.sample import default_network

from ._core import Core
from ._description import Stage
from ._positions import positions_in
from ._where import Expression, Field, as_expression, columns_of, resolve_columns, run_where

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Views"]

T = TypeVar("T")
V = TypeVar("V")


class Views(Core[T]):
    """``map``, ``filter``, ``select``, ``where``, ``columns``, ``as_type``."""

    def as_type(self, kind: type[V]) -> Dataset[V]:
        """The same samples seen as another type, through the registered lens. Raises LensNotFoundError."""
        lens = default_network().find(self.sample_type, kind)
        return self._view(sample_type=kind, stages=(*self._description.stages, Stage("map", lens.get)))

    def map(self, function: Callable[[T], V]) -> Dataset[V]:
        """Each sample changed by a function, when it is read."""
        return self._view(sample_type=object, stages=(*self._description.stages, Stage("map", function)))

    def filter(self, function: Callable[[T], object]) -> Dataset[T]:
        """The samples for which a function is true, found as they are read; ``materialize`` gives positions again."""
        return self._view(
            sample_type=self._description.sample_type, stages=(*self._description.stages, Stage("filter", function))
        )

    def materialize(self) -> Dataset[T]:
        """A filtered dataset as a view with a length and positions: reads every sample once."""
        kept = [number for number in self.numbers.tolist() if self._finished(self._read(np.array([number])))]
        stages = tuple(stage for stage in self._description.stages if stage.kind == "map")
        return self._view(rows=np.array(kept, np.int64), sample_type=self._description.sample_type, stages=stages)

    def columns(self, names: Sequence[str]) -> Dataset[dict[str, Any]]:
        """The same samples with only these fields; other fields' bytes are not read. Raises FieldError."""
        self._refuse_unknown(names)
        return self._view(fields=tuple(names), stored_type=dict)

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Dataset[T]:
        """The samples at these positions, in this order."""
        return self._view(
            rows=self._numbers(positions_in(indices, len(self))), sample_type=self._description.sample_type
        )

    def where(self, expression: str | Expression | Field) -> Dataset[T]:
        """The samples whose metadata fits, found in the index without opening a tar.

        ``json.width`` names a column, and a bare ``width`` will do where only one column ends so. Raises QueryError.
        """
        resolved = resolve_columns(as_expression(expression), ("__key__", *self.column_names))
        # A condition without a column, such as "true", still needs one row a sample.
        keep = run_where(resolved, self.table(sorted(columns_of(resolved)) or ["__key__"]))
        rows = np.flatnonzero(keep) if self._rows is None else self._rows[keep]
        return self._view(rows=rows, sample_type=self._description.sample_type)

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Metadata columns as an Arrow table, one row a sample."""
        table = self.source.table(self.column_names if names is None else list(names))
        return table if self._rows is None else table.take(pa.array(self._rows))
