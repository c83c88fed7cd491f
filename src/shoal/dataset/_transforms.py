"""Methods that return another view of a dataset: select, where, map, filter, sort, and those on columns."""

from __future__ import annotations

import functools
import operator
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import ColumnError, FieldError, OptionError, QueryError
from shoal.load._loader import DataLoader
from shoal.load._options import Auto
from shoal.sample._lens import Lens, default_network
from shoal.shard._row_view import RowView
from shoal.shard._source import ShardSource, Source
from shoal.shard._table import refuse_unknown_column

from ._base import DatasetBase
from ._column_stages import Drop, Keep, Rename, names_after, origin_of
from ._columns import column_values, sorted_order
from ._decoding import PAYLOAD
from ._description import HasColumns, Stage, Step
from ._fingerprint import fingerprint_of
from ._metadata import former_names, matching_rows, metadata_table
from ._output_format import Formatting, format_named
from ._query import Column, Expression, Field, columns_of, resolve_columns
from ._query_executor import run_where
from ._query_parser import as_expression
from ._splits import DatasetDict, Keys, is_one_of, key_array, split_sizes, stratified_split

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["Transforms"]

T = TypeVar("T")
V = TypeVar("V")
_NULLS_FIRST = {"at_end": False, "last": False, "at_start": True, "first": True}


class Transforms(DatasetBase[T]):
    """Methods that return another dataset, without reading samples where the index is enough."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """What this dataset is, in 16 letters: equal for equal samples in an equal order, in every process.

        It is made of the shards' names, counts and sizes, the samples in view, the fields, the functions of ``map``
        and ``filter`` (their code and what they hold), and the type of the samples. Where the data lies is no part of
        it, and no tar is read for it.

        Examples:
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
        if lens is None:
            found = default_network().find(self.sample_type, kind)
        else:  # raises LensError unless the lens leads from the one type to the other
            found = Lens.identity(self.sample_type) | lens | Lens.identity(kind)
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

        Examples:
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
            loader = DataLoader(self, batch_size=None)
            return loader.map(function, num_parallel_calls, workers="thread" if workers is None else workers)
        _check_callable("map", function)
        return self._view(sample_type=object, stages=(*self._description.stages, Stage("map", function)))

    def filter(self, function: Callable[[T], object]) -> Dataset[T]:
        """The samples for which a function is true, found as they are read; ``materialize`` gives positions again."""
        _check_callable("filter", function)
        return self._view(
            sample_type=self._description.sample_type, stages=(*self._description.stages, Stage("filter", function))
        )

    def materialize(self) -> Dataset[T]:
        """A filtered dataset as a view with a length and positions: reads every sample once."""
        rows = (row for part in self.rows.chunks() for row in part.tolist())
        kept = [row for row in rows if self._finished(self._read(np.array([row])))]
        stages = tuple(stage for stage in self._description.stages if stage.kind == "map")
        chosen = RowView.from_rows(np.array(kept, np.int64))
        return self._view(rows=chosen, sample_type=self._description.sample_type, stages=stages)

    def columns(self, names: Sequence[str]) -> Dataset[dict[str, Any]]:
        """The same samples with only these fields; other fields' bytes are not read. Raises FieldError."""
        if self._description.stages:  # what comes before is not narrowed, and may have renamed them
            origin = [name for name in ("__key__", "__url__") if name in (self._columns() or ())]
            return cast("Dataset[Any]", self).select_columns([*origin, *names])
        self._refuse_unknown(names)
        return self._view(fields=tuple(names), stored_type=dict)

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Dataset[T]:
        """The samples at these positions, in this order."""
        return self._view(rows=self._selected(indices))

    def where(self, expression: str | Expression | Field) -> Dataset[T]:
        """The samples whose metadata fits, found in the index without opening a tar.

        ``json.width`` names a column, and a bare ``width`` will do where only one column ends so. Columns of typed
        samples have the names and the defaults of their class, whichever version of it was written. After ``map`` and
        ``as_type`` the condition is still about the stored samples.

        Raises QueryError: for a condition that is not one, and for a column that the index of some shard does not know
        of all its samples.
        """
        condition = as_expression(expression)
        resolved = self._resolve(condition)
        # A condition without a column, such as "true", still needs a table with one row per sample.
        try:
            found = matching_rows(self, resolved)
            if found is None:
                table = self.table(sorted(columns_of(resolved)) or ["__key__"])
                rows = self.rows.where(run_where(resolved, table))
            else:
                rows = found.within(self.rows) if self.rows.is_ascending else self.rows.within(found)
        except FieldError as error:
            raise query_error_of(error) from error
        return self._view(
            rows=rows,
            step=Step(f"where({condition})", again=operator.methodcaller("where", condition)),
        )

    def exclude(self, keys: Keys) -> Dataset[T]:
        """The samples without those that have one of these keys: a list, a set, an array, or another dataset's keys.

        A view of this dataset leaves out its samples and no others, even where keys repeat. Keys that no sample has are
        passed over. Raises OptionError for what are no keys.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/exclude/a-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/exclude")
            >>> ds.exclude(["k1", "k2"]).keys(), ds.exclude(ds.where("cls > 0")).keys()
            (['k0', 'k3'], ['k0'])
        """
        rows = self._rows_of(keys) if isinstance(keys, DatasetBase) else None
        if rows is not None:
            step = Step(f"exclude({len(rows):,} samples)", again=operator.methodcaller("exclude", keys))
            return self._view(rows=self.rows.without(rows), step=step)
        gone = key_array(keys)
        step = Step(f"exclude({len(gone):,} keys)", again=operator.methodcaller("exclude", gone))
        return self._view(rows=self.rows.where(~is_one_of(self.key_column(), gone)), step=step)

    def column(self, name: str | Field | Expression) -> pa.ChunkedArray:
        """One metadata column, named as ``where`` names it; ``"key"`` is the keys. Raises QueryError."""
        if isinstance(name, str) and name in ("key", "__key__"):
            return self.key_column()
        # A str is a name here and is not parsed, so that any name can be given.
        column = self._resolve(Column(name) if isinstance(name, str) else as_expression(name))
        if not isinstance(column, Column):
            raise QueryError("this is no column", expected="a name, or F.name", found=str(name))
        return self.table([column.name]).column(0)

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Metadata columns as an Arrow table, one row a sample; null where a sample has no such value.

        Raises FieldError for a column that there is not, and for one that is not known of all samples.
        """
        if names is None:
            return metadata_table(self, self.column_names)
        if isinstance(self.source, HasColumns):
            refuse_unknown_column(names, self.column_names)
        return metadata_table(self, names)

    @property
    def num_rows(self) -> int:
        """How many samples there are: ``len``."""
        return len(self)

    def select_columns(self, column_names: str | Sequence[str]) -> Dataset[dict[str, Any]]:
        """Samples with only these columns, ``__key__`` and ``__url__`` not among them unless named; no others are read.

        Typed samples become dicts. Raises ColumnError for a column that there is not: now where the columns are known,
        after a ``map`` as samples are read.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/select/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> shoal.Dataset("memory://doc/select").select_columns(["cls"])[0]
            {'cls': 7}
        """
        names = _column_tuple(column_names)
        keep = Keep(names, strict=not self._check_columns(names))
        return self._map_before_format(keep, lambda name: name if name in names else None, f"select_columns({names!r})")

    def remove_columns(self, column_names: str | Sequence[str]) -> Dataset[dict[str, Any]]:
        """Samples without these columns, whose bytes are not read. Raises ColumnError, as `select_columns` does.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/remove/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> shoal.Dataset("memory://doc/remove").remove_columns(["txt", "__url__"])[0]
            {'__key__': 'k', 'cls': 7}
        """
        names = _column_tuple(column_names)
        drop = Drop(frozenset(names), strict=not self._check_columns(names))
        return self._map_before_format(drop, lambda name: None if name in names else name, f"remove_columns({names!r})")

    def rename_column(self, original_column_name: str, new_column_name: str) -> Dataset[dict[str, Any]]:
        """One column under a new name: ``rename_columns({original_column_name: new_column_name})``."""
        return Transforms.rename_columns(self, {original_column_name: new_column_name})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> Dataset[dict[str, Any]]:
        """Columns under new names, ``{"txt": "text"}``, in their old places. Typed samples become dicts.

        Raises ColumnError for a column that there is not, and for a new name that is empty, given twice, or there
        already.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/renamed/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> ds = shoal.Dataset("memory://doc/renamed").rename_columns({"txt": "text"})
            >>> ds.fields, ds.select_columns("text")[0]
            (('text', 'cls'), {'text': 'a cat'})
        """
        known = self._check_columns(tuple(column_mapping))
        new: list[Any] = list(column_mapping.values())
        if not all(isinstance(name, str) and name for name in new):
            raise ColumnError("a new name is empty", found=", ".join(map(repr, new)))
        staying = set(self._unformatted_columns() or ()) - set(column_mapping)
        if len(set(new)) < len(new) or staying & set(new):
            taken = [name for name in new if name in staying or new.count(name) > 1]
            raise ColumnError("two columns would have one name", found=taken[0])
        rename = Rename(tuple(column_mapping.items()), strict=not known)
        return self._map_before_format(
            rename, lambda name: column_mapping.get(name, name), f"rename({column_mapping!r})"
        )

    def with_format(
        self,
        type: str | None = None,  # noqa: A002 - Hugging Face's name
        columns: str | Sequence[str] | None = None,
        output_all_columns: bool = False,
        **format_kwargs: Any,
    ) -> Dataset[Any]:
        """Samples handed out as ``"numpy"``, ``"torch"``, ``"jax"``, ``"tensorflow"``, ``"arrow"`` or ``"pandas"``.

        A sample is a dict of arrays or tensors, or a table of one row; a slice, a list of positions and each of
        ``ordered(batch_size)`` is one batch: a dict of stacked columns, or a table. Values of different shapes stay
        apart. Whole numbers become 64 bits wide and fractions 32, arrays of 8 bits, which are images, stay so; texts
        and bytes stay as they are. ``None`` takes the format away.

        Args:
            type: The format, or a short name of it: ``np``, ``pt``, ``tf``, ``pa``, ``pd``.
            columns: The columns to format; others are not read.
            output_all_columns: The other columns come too, as they are.
            **format_kwargs: For the function that makes an array or tensor: ``dtype=``, ``device=``.

        Raises:
            OptionError: There is no such format.
            ColumnError: There is no such column.
            MissingExtraError: The format's package is not installed.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/format/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/format").with_format("torch", columns=["cls"])
            >>> ds[1], ds[:2]
            ({'cls': tensor(1)}, {'cls': tensor([0, 1])})
        """
        kind = format_named(type)
        chosen = None if columns is None else _column_tuple(columns)
        self._check_columns(chosen or ())
        if output_all_columns and chosen is not None and kind in ("arrow", "pandas"):
            raise TypeError(f"a table has no place for columns that are not formatted, so {kind} cannot keep them")
        if kind is None and chosen is None:
            return self._set_format(None, "with_format(None)")
        form = Formatting(kind, chosen, output_all_columns, tuple(format_kwargs.items()))
        return self._set_format(form, f"with_format({kind!r})")

    def with_transform(
        self,
        transform: Callable[[dict[str, Any]], Any],
        columns: str | Sequence[str] | None = None,
        output_all_columns: bool = False,
    ) -> Dataset[Any]:
        """Samples handed out through a function of batches: it takes and gives a dict of columns.

        It gets a batch of one for a single sample, and the whole batch for a slice or a batch. ``columns`` are those it
        gets; with ``output_all_columns`` the others are added to what it gives. Raises ColumnError for a column that
        there is not, and TypeError, when a sample is read, if it gives no dict.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/transform/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "txt": f"text {number}"})
            >>> ds = shoal.Dataset("memory://doc/transform").with_transform(
            ...     lambda b: {"length": list(map(len, b["txt"]))}
            ... )
            >>> ds[0], ds[:3]
            ({'length': 6}, {'length': [6, 6, 6]})
        """
        if not callable(transform):
            raise OptionError("this is not a function", expected="a function of a dict", found=repr(transform))
        chosen = None if columns is None else _column_tuple(columns)
        self._check_columns(chosen or ())
        form = Formatting("custom", chosen, output_all_columns, transform=transform)
        return self._set_format(form, "with_transform(...)")

    def take(self, n: int) -> Dataset[T]:
        """The first ``n`` samples, or all where there are fewer."""
        return cast("Dataset[T]", self).slice(n)

    def skip(self, n: int) -> Dataset[T]:
        """All samples but the first ``n``."""
        return cast("Dataset[T]", self).slice(n, None)

    def shard(self, num_shards: int, index: int, contiguous: bool = True) -> Dataset[T]:
        """One of ``num_shards`` parts: neighbours, or every ``num_shards``-th sample where not ``contiguous``.

        The first parts have one sample more where they cannot all be equal. Raises OptionError for an ``index`` that is
        not below ``num_shards``.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/shard/a-%06d.tar") as writer:
            ...     for number in range(5):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/shard")
            >>> ds.shard(2, 0).keys(), ds.shard(2, 1, contiguous=False).keys()
            (['k0', 'k1', 'k2'], ['k1', 'k3'])
        """
        self._refuse_filtered("a length")
        rows = self.rows.shard(num_shards, index, contiguous=contiguous)
        return self._select_rows(rows, f"shard({num_shards}, {index})")

    def train_test_split(
        self,
        test_size: float | None = None,
        train_size: float | None = None,
        shuffle: bool = True,
        stratify_by_column: str | None = None,
        seed: int | None = None,
        generator: np.random.Generator | None = None,
    ) -> DatasetDict[T]:
        """Two datasets, ``"train"`` and ``"test"``, without a sample in both; a quarter tests where nothing is said.

        Sizes are fractions or numbers of samples. The same ``seed`` gives the same split, and the split that Hugging
        Face datasets makes of as many rows; a drawn one is kept as ``seed``. With ``stratify_by_column`` each value of
        that column has its share in both; a column of the index (``cls``, ``json.label``) costs no reading.

        Raises:
            OptionError: Sizes do not fit the number of samples, or a value occurs too seldom to be in both.
            ColumnError: There is no such column.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/train-test-split/a-%06d.tar") as writer:
            ...     for number in range(10):
            ...         writer.write({"__key__": f"k{number}", "cls": number % 2})
            >>> parts = shoal.Dataset("memory://doc/train-test-split").train_test_split(
            ...     0.4, seed=7, stratify_by_column="cls"
            ... )
            >>> parts.num_samples, parts["test"].unique("cls")
            ({'train': 6, 'test': 4}, [0, 1])
        """
        if len(self) == 0:
            return DatasetDict({"train": self._view(), "test": self._view()})
        train, test = split_sizes(len(self), test_size, train_size)
        if stratify_by_column is not None and not shuffle:
            raise OptionError("what is stratified is shuffled, too", expected="shuffle=True", found="shuffle=False")
        drawn = secrets.randbits(32) if seed is None else seed
        rng = np.random.default_rng(drawn) if generator is None else generator
        if not shuffle:
            first, second = self.rows.slice(0, train), self.rows.slice(train, train + test)
        elif stratify_by_column is not None:
            values = column_values(cast("Dataset[Any]", self), stratify_by_column)
            first, second = map(self.rows.take, stratified_split(values, train, test, rng))
        else:
            order = rng.permutation(len(self))
            first, second = self.rows.take(order[test : test + train]), self.rows.take(order[:test])
        parts = {
            "train": self._select_rows(first, "train_test_split['train']"),
            "test": self._select_rows(second, "train_test_split['test']"),
        }
        for part in parts.values():
            part.seed = drawn if shuffle and generator is None else None
        return DatasetDict(parts)

    def sort(
        self,
        column_names: str | Sequence[str],
        reverse: bool | Sequence[bool] = False,
        null_placement: str = "at_end",
    ) -> Dataset[T]:
        """Samples in the order of one column, or of several; equal ones stay in their order.

        A column of the index (``cls``, a short ``txt``, ``json.width`` or just ``width``) is sorted without opening a
        tar; for any other field that field of every sample is read.

        Args:
            column_names: The columns, the most important first.
            reverse: Whether the largest come first: for all columns, or one answer for each.
            null_placement: Where samples without a value come: ``"at_end"`` or ``"at_start"``, also ``"last"``,
                ``"first"``.

        Raises:
            ColumnError: There is no such column.
            OptionError: ``reverse`` has another length than the columns, or ``null_placement`` is none of these.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/sort/a-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "cls": number % 2, "json": {"width": 9 - number}})
            >>> shoal.Dataset("memory://doc/sort").sort(["cls", "width"], reverse=[True, False]).keys()
            ['k3', 'k1', 'k2', 'k0']
        """
        names = _column_tuple(column_names)
        downward = [reverse] * len(names) if isinstance(reverse, bool) else list(reverse)
        if len(downward) != len(names):
            raise OptionError("reverse has one answer a column", expected=len(names), found=len(downward))
        if null_placement not in _NULLS_FIRST:
            raise OptionError("no such null_placement", expected="at_end or at_start", found=repr(null_placement))
        if len(self) == 0:
            return self._view()
        columns = [column_values(cast("Dataset[Any]", self), name) for name in names]
        order = sorted_order(columns, downward, nulls_first=_NULLS_FIRST[null_placement])
        return self._select_rows(self.rows.take(order), f"sort({names!r})")

    def unique(self, column: str) -> list[Any]:
        """The values of a column, each once, in the order they first come; None where a sample has none.

        From the index where the column is there, as for `sort`; else that field of every sample is read. Raises
        ColumnError when there is no such column, and OptionError for one of values that are not compared, such as
        arrays.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/unique/a-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "cls": number // 2})
            >>> shoal.Dataset("memory://doc/unique").unique("cls")
            [0, 1]
        """
        values = column_values(cast("Dataset[Any]", self), column)
        try:
            found: list[Any] = values.unique().to_pylist()
        except pa.ArrowNotImplementedError as error:
            raise OptionError("these values are not compared", found=str(values.type), field=column) from error
        return found

    def _resolve(self, condition: Expression) -> Expression:
        """The condition with the names of columns. Raises QueryError."""
        columns = self.column_names
        try:
            resolved = resolve_columns(condition, ("__key__", *columns))
            self._refuse_renamed(columns_of(resolved))
            return resolved
        except QueryError:
            strange = sorted(columns_of(condition) - {"__key__", *columns})
            former = former_names(self)
            for name in strange:
                _refuse_former(name, former)
                reason = _reason_dropped(self.source, name)
                if reason is not None:
                    problem = f"Cannot query column {name!r}: {reason}"
                    raise QueryError(problem, hint="read the samples and choose with `filter`") from None
            unindexed = next((name for name in strange if name in self._field_names()), None)
            if unindexed is not None and columns:
                problem = f"Cannot query column {unindexed!r}: the values of this field are not in the index"
                raise QueryError(problem, hint="read the samples and choose with `filter`") from None
            if strange and not columns:
                what = "the dataset has" if isinstance(self.source, HasColumns) else "this format has"
                problem = f"Cannot query column {strange[0]!r}: {what} no indexed columns"
                raise QueryError(problem, hint="read the samples and choose with `filter`") from None
            raise

    def _field_names(self) -> set[str]:
        """The names of the fields, of typed samples those of the class."""
        return set(self.fields if self.schema is None else self.schema.names)

    def _refuse_renamed(self, columns: Iterable[str]) -> None:
        """Raise QueryError for a stored column whose name is another column of the samples in view."""
        stages = self._unformatted_stages()
        names = (self._unformatted_columns() or ()) if stages else ()
        for column in columns if names else ():
            parts = column.removeprefix(f"{PAYLOAD}.").split(".")
            fields = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
            renamed = next((field for field in fields if field in names and origin_of(field, stages) != field), None)
            if renamed is not None:
                problem = f"Cannot query column {column!r}: {renamed!r} is another column since it was renamed"
                raise QueryError(problem, hint="call `where` before the columns are renamed")

    def _select_rows(self, rows: RowView, shown: str) -> Dataset[T]:
        """The samples with these rows; ``shown`` is the method call for `repr`."""
        return self._view(rows=rows, sample_type=self._description.sample_type, step=Step(shown, rows=rows))

    def _unformatted_columns(self, *, complete: bool = False) -> tuple[str, ...] | None:
        """The columns before the format, where they are known."""
        return names_after(self._unformatted_stages(), self._stored_columns(complete=complete))

    def _unformatted_stages(self) -> tuple[Stage, ...]:
        stages = self._description.stages
        return stages if self._format is None else stages[:-1]

    def _check_columns(self, names: Sequence[str]) -> bool:
        """Whether it is known that all of these are columns. Raises ColumnError when one is known not to be."""
        first = self._unformatted_columns()
        if first is None:
            return False
        missing = [name for name in names if name not in first]
        known = self._unformatted_columns(complete=True) if missing else first
        unknown = [name for name in missing if name not in (known or ())]
        if unknown:
            raise ColumnError("no such column", expected=" or ".join(known or ()), found=unknown[0])
        return True

    def _map_before_format(
        self, step: Keep | Drop | Rename, renamed: Callable[[str], str | None], shown: str
    ) -> Dataset[dict[str, Any]]:
        """This dataset with a column stage added before its format, as in Hugging Face datasets."""
        form, stages = self._format, (*self._unformatted_stages(), Stage("map", step))
        if form is None:
            return self._view(sample_type=dict, stages=stages, step=Step(shown))
        after = None if form.columns is None else tuple(new for name in form.columns if (new := renamed(name)))
        stages = (*stages, Stage("map", replace(form, columns=after)))
        return self._view(sample_type=self._description.sample_type, stages=stages, step=Step(shown))

    def _set_format(self, form: Formatting | None, shown: str) -> Dataset[Any]:
        """This dataset with another format, or without one."""
        stages = self._unformatted_stages()
        if form is None:
            kind = self._description.sample_type if self._format is None else dict if stages else None
            return self._view(sample_type=kind, stages=stages, step=Step(shown))
        return self._view(sample_type=object, stages=(*stages, Stage("map", form)), step=Step(shown))


def _check_callable(verb: str, function: object) -> None:
    if not callable(function):
        raise OptionError(f"{verb} takes a function", expected="something to call", found=repr(function))


def query_error_of(error: FieldError) -> QueryError:
    """The same error as one of a query."""
    return QueryError(
        error.problem, expected=error.expected, found=error.found, shard=error.shard, key=error.key, hint=error.hint
    )


def _refuse_former(name: str, former: Mapping[str, str]) -> None:
    """Raise QueryError for a name that only older data has for a field."""
    for old, new in former.items():
        if name == old or old.endswith(f".{name}"):
            hint = f"write {new.rpartition('.')[2]}, which stands for both"
            raise QueryError(f"Cannot query column {name!r}: it is a former name of {new!r}", hint=hint) from None


def _reason_dropped(source: Source, name: str) -> str | None:
    """Why a column is not in the index of a shard, though its samples have it; None if they do not."""
    if not isinstance(source, ShardSource):
        return None
    return source.index.unanswerable(name)


def _column_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in found):
        raise OptionError("columns are named by texts", expected="a list of names", found=repr(names))
    return found
