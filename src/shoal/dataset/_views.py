"""Views: other samples, other fields, other types, without rewriting anything."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import OptionError, QueryError
from shoal.load import Auto, DataLoader
from shoal.sample import Lens, default_network
from shoal.shard import ShardSource, Source

from ._combined._key_sets import Keys, is_one_of, key_array
from ._core import Core
from ._description import Stage, Step
from ._fingerprint import fingerprint_of
from ._positions import positions_in
from ._where import Expression, Field, as_expression, columns_of, resolve_columns, run_where
from ._where._tree import Column

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Views"]

T = TypeVar("T")
V = TypeVar("V")


class Views(Core[T]):
    """``map``, ``filter``, ``select``, ``where``, ``exclude``, ``columns``, ``as_type``."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """What this dataset is, in 16 letters: equal for equal samples in an equal order, in every process.

        It is made of the shards' names, counts and sizes, the samples in view, the fields, the functions of ``map``
        and ``filter`` (their code and what they hold), and the type of the samples. Where the data lies is no part of
        it, and no tar is read for it.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/fingerprint/a-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> one, two = shoal.Dataset("memory://doc/fingerprint"), shoal.Dataset("memory://doc/fingerprint")
            >>> one.fingerprint == two.fingerprint, one.fingerprint == two.select([1, 2]).fingerprint
            (True, False)
        """
        return fingerprint_of(self._description, self.source, self._rows, self.sample_type)

    def as_type(self, kind: type[V], *, lens: Lens[T, V] | None = None) -> Dataset[V]:
        """The same samples seen as another type, through the registered lens, or several, or the one given.

        Fields that the lens does not look at are not decoded, nor read where they are members of their own. Raises
        LensNotFoundError, and LensError where several ways lead there or ``lens`` does not.
        """
        if not isinstance(kind, type):
            raise OptionError(
                "this is no type", expected="a class; as_type(V, lens=...) takes the lens", found=repr(kind)
            )
        found = (
            default_network().find(self.sample_type, kind) if lens is None else _fitting(lens, self.sample_type, kind)
        )
        stages = (*self._description.stages, Stage("map", found))
        return self._view(sample_type=kind, stages=stages, step=Step(f"as_type({kind.__name__})"))

    @overload
    def map(self, function: Callable[[T], V]) -> Dataset[V]: ...
    @overload
    def map(
        self,
        function: Callable[..., Any],
        num_parallel_calls: int | Auto,
        *,
        workers: Literal["thread", "process"] | None = None,
    ) -> DataLoader: ...
    @overload
    def map(
        self, function: Callable[..., Any], num_parallel_calls: None = None, *, workers: Literal["thread", "process"]
    ) -> DataLoader: ...
    def map(
        self,
        function: Callable[..., Any],
        num_parallel_calls: int | Auto | None = None,
        *,
        workers: Literal["thread", "process"] | None = None,
    ) -> Dataset[Any] | DataLoader:
        """Each sample changed by a function, when it is read.

        Told how many calls run at a time, or on what, it gives a loader of samples, which does the work there: see
        ``DataLoader.map``. Raises OptionError.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/map/a-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/map")
            >>> ds.map(lambda sample: sample["cls"] * 2)[3]
            6
            >>> list(ds.map(lambda sample: sample["cls"], num_parallel_calls="auto").batch(3))
            [[0, 1, 2], [3]]
        """
        if num_parallel_calls is not None or workers is not None:
            line = DataLoader(self, batch_size=None)
            return line.map(function, num_parallel_calls, workers="thread" if workers is None else workers)
        _refuse_uncallable("map", function)
        return self._view(sample_type=object, stages=(*self._description.stages, Stage("map", function)))

    def filter(self, function: Callable[[T], object]) -> Dataset[T]:
        """The samples for which a function is true, found as they are read; ``materialize`` gives positions again."""
        _refuse_uncallable("filter", function)
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
        if self._description.stages:  # what comes before is not narrowed, and may have renamed them
            origin = [name for name in ("__key__", "__url__") if name in (self._columns() or ())]
            return cast("Dataset[Any]", self).select_columns([*origin, *names])
        self._refuse_unknown(names)
        return self._view(fields=tuple(names), stored_type=dict)

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Dataset[T]:
        """The samples at these positions, in this order."""
        return self._view(rows=self._numbers(positions_in(indices, len(self))))

    def where(self, expression: str | Expression | Field) -> Dataset[T]:
        """The samples whose metadata fits, found in the index without opening a tar.

        ``json.width`` names a column, and a bare ``width`` will do where only one column ends so. Raises QueryError,
        which says why where a column was left out of the index.
        """
        condition = as_expression(expression)
        resolved = self._resolved(condition)
        # A condition without a column, such as "true", still needs one row a sample.
        keep = run_where(resolved, self.table(sorted(columns_of(resolved)) or ["__key__"]))
        return self._view(
            rows=self._kept(keep), step=Step(f"where({condition})", again=operator.methodcaller("where", condition))
        )

    def exclude(self, keys: Keys) -> Dataset[T]:
        """The samples without those that have one of these keys: a list, a set, an array, or another dataset's keys.

        Keys that no sample has are passed over. Raises OptionError for what are no keys.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/exclude/a-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/exclude")
            >>> ds.exclude(["k1", "k2"]).keys(), ds.exclude(ds.where("cls > 0")).keys()
            (['k0', 'k3'], ['k0'])
        """
        gone = key_array(keys)
        step = Step(f"exclude({len(gone):,} keys)", again=operator.methodcaller("exclude", gone))
        return self._view(rows=self._kept(~is_one_of(self.key_column(), gone)), step=step)

    def column(self, name: str | Field | Expression) -> pa.ChunkedArray:
        """One metadata column, named as ``where`` names it; ``"key"`` is the keys. Raises QueryError."""
        if isinstance(name, str) and name in ("key", "__key__"):
            return self.key_column()
        # Text is a name here, so that any name can be written; as a condition it would be read.
        column = self._resolved(Column(name) if isinstance(name, str) else as_expression(name))
        if not isinstance(column, Column):
            raise QueryError("this is no column", expected="a name, or F.name", found=str(name))
        return self.table([column.name]).column(0)

    def _kept(self, keep: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """The numbers of the samples in view for which this is true."""
        return np.flatnonzero(keep) if self._rows is None else self._rows[keep]

    def _resolved(self, condition: Expression) -> Expression:
        """The condition with the names of columns. Raises QueryError."""
        try:
            return resolve_columns(condition, ("__key__", *self.column_names))
        except QueryError:
            for name in sorted(columns_of(condition)):
                reason = _why_dropped(self.source, name)
                if reason is not None:
                    raise QueryError("the column is not in the index", found=reason, hint=_DROPPED) from None
            raise

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Metadata columns as an Arrow table, one row a sample."""
        table = self.source.table(self.column_names if names is None else list(names))
        return table if self._rows is None else table.take(pa.array(self._rows))


def _refuse_uncallable(verb: str, function: object) -> None:
    if not callable(function):
        raise OptionError(f"{verb} takes a function", expected="something to call", found=repr(function))


_DROPPED = "read the samples and choose with `filter`"


def _why_dropped(source: Source, name: str) -> str | None:
    """Why a column that a user names was left out of the index, where it was."""
    if not isinstance(source, ShardSource):
        return None
    for number in range(len(source.shards)):
        for dropped, reason in source.shard(number).index.facts.dropped.items():
            if name == dropped or dropped.endswith(f".{name}") or name.startswith(f"{dropped}."):
                return f"{dropped}: {reason}"
    return None


def _fitting(lens: Lens[T, V], source: type[T], view: type[V]) -> Lens[T, V]:
    """A lens that the user chose, if it leads from what there is to what was asked for. Raises LensError."""
    return Lens.identity(source) | lens | Lens.identity(view)
