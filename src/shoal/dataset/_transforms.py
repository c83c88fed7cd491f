"""The verbs that users of Hugging Face datasets know, with its meaning; each gives another dataset."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from shoal.dataset._core import Core
from shoal.dataset._description import Stage, Step
from shoal.dataset._dict import DatasetDict
from shoal.errors import ColumnError, OptionError

from ._column_steps import Drop, Keep, Rename, names_after
from ._column_values import column_values, sorted_order
from ._formats_out import Formatting, format_named
from ._train_test import split_sizes, stratified

if TYPE_CHECKING:
    from shoal.dataset._dataset import Dataset

__all__ = ["HuggingFaceVerbs"]

T = TypeVar("T")
_NULLS_FIRST = {"at_end": False, "last": False, "at_start": True, "first": True}


class HuggingFaceVerbs(Core[T]):
    """``select_columns``, ``sort``, ``train_test_split``, ``with_format`` and their neighbours."""

    @property
    def num_rows(self) -> int:
        """How many samples there are: ``len``."""
        return len(self)

    def select_columns(self, column_names: str | Sequence[str]) -> Dataset[dict[str, Any]]:
        """Samples with only these columns, ``__key__`` and ``__url__`` not among them unless named; no others are read.

        Typed samples become dicts. Raises ColumnError for a column that there is not: now where the columns are known,
        after a ``map`` as samples are read.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/select/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> shoal.Dataset("memory://doc/select").select_columns(["cls"])[0]
            {'cls': 7}
        """
        names = _names(column_names)
        keep = Keep(names, strict=not self._know(names))
        return self._beneath_format(keep, lambda name: name if name in names else None, f"select_columns({names!r})")

    def remove_columns(self, column_names: str | Sequence[str]) -> Dataset[dict[str, Any]]:
        """Samples without these columns, whose bytes are not read. Raises ColumnError, as `select_columns` does.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/remove/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> shoal.Dataset("memory://doc/remove").remove_columns(["txt", "__url__"])[0]
            {'__key__': 'k', 'cls': 7}
        """
        names = _names(column_names)
        drop = Drop(frozenset(names), strict=not self._know(names))
        return self._beneath_format(drop, lambda name: None if name in names else name, f"remove_columns({names!r})")

    def rename_column(self, original_column_name: str, new_column_name: str) -> Dataset[dict[str, Any]]:
        """One column under a new name: ``rename_columns({original_column_name: new_column_name})``."""
        return HuggingFaceVerbs.rename_columns(self, {original_column_name: new_column_name})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> Dataset[dict[str, Any]]:
        """Columns under new names, ``{"txt": "text"}``, in their old places. Typed samples become dicts.

        Raises ColumnError for a column that there is not, and for a new name that is empty, given twice, or there
        already.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/renamed/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> ds = shoal.Dataset("memory://doc/renamed").rename_columns({"txt": "text"})
            >>> ds.fields, ds.select_columns("text")[0]
            (('text', 'cls'), {'text': 'a cat'})
        """
        known = self._know(tuple(column_mapping))
        new: list[Any] = list(column_mapping.values())
        if not all(isinstance(name, str) and name for name in new):
            raise ColumnError("a new name is empty", found=", ".join(map(repr, new)))
        staying = set(self._beneath_columns() or ()) - set(column_mapping)
        if len(set(new)) < len(new) or staying & set(new):
            taken = [name for name in new if name in staying or new.count(name) > 1]
            raise ColumnError("two columns would have one name", found=taken[0])
        rename = Rename(tuple(column_mapping.items()), strict=not known)
        return self._beneath_format(rename, lambda name: column_mapping.get(name, name), f"rename({column_mapping!r})")

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

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/format/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/format").with_format("torch", columns=["cls"])
            >>> ds[1], ds[:2]
            ({'cls': tensor(1)}, {'cls': tensor([0, 1])})
        """
        kind = format_named(type)
        chosen = None if columns is None else _names(columns)
        self._know(chosen or ())
        if output_all_columns and chosen is not None and kind in ("arrow", "pandas"):
            raise TypeError(f"a table has no place for columns that are not formatted, so {kind} cannot keep them")
        if kind is None and chosen is None:
            return self._formatted(None, "with_format(None)")
        form = Formatting(kind, chosen, output_all_columns, tuple(format_kwargs.items()))
        return self._formatted(form, f"with_format({kind!r})")

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

        Example:
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
        chosen = None if columns is None else _names(columns)
        self._know(chosen or ())
        form = Formatting("custom", chosen, output_all_columns, transform=transform)
        return self._formatted(form, "with_transform(...)")

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

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/shard/a-%06d.tar") as writer:
            ...     for number in range(5):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/shard")
            >>> ds.shard(2, 0).keys(), ds.shard(2, 1, contiguous=False).keys()
            (['k0', 'k1', 'k2'], ['k1', 'k3'])
        """
        if not 0 <= index < num_shards:
            raise OptionError("no such part", expected=f"an index of 0 to {num_shards - 1}", found=index)
        size, more = divmod(len(self), num_shards)
        start = size * index + min(index, more)
        stop = start + size + (index < more)
        positions = np.arange(start, stop) if contiguous else np.arange(index, len(self), num_shards)
        return self._chosen_by(positions, f"shard({num_shards}, {index})")

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

        Example:
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
            first, second = np.arange(train), np.arange(train, train + test)
        elif stratify_by_column is not None:
            values = column_values(cast("Dataset[Any]", self), stratify_by_column)
            first, second = stratified(values, train, test, rng)
        else:
            order = rng.permutation(len(self))
            first, second = order[test : test + train], order[:test]
        parts = {
            "train": self._chosen_by(first, "train_test_split['train']"),
            "test": self._chosen_by(second, "train_test_split['test']"),
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

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/sort/a-%06d.tar") as writer:
            ...     for number in range(4):
            ...         writer.write({"__key__": f"k{number}", "cls": number % 2, "json": {"width": 9 - number}})
            >>> shoal.Dataset("memory://doc/sort").sort(["cls", "width"], reverse=[True, False]).keys()
            ['k3', 'k1', 'k2', 'k0']
        """
        names = _names(column_names)
        downward = [reverse] * len(names) if isinstance(reverse, bool) else list(reverse)
        if len(downward) != len(names):
            raise OptionError("reverse has one answer a column", expected=len(names), found=len(downward))
        if null_placement not in _NULLS_FIRST:
            raise OptionError("no such null_placement", expected="at_end or at_start", found=repr(null_placement))
        if len(self) == 0:
            return self._view()
        columns = [column_values(cast("Dataset[Any]", self), name) for name in names]
        order = sorted_order(columns, downward, nulls_first=_NULLS_FIRST[null_placement])
        return self._chosen_by(order, f"sort({names!r})")

    def unique(self, column: str) -> list[Any]:
        """The values of a column, each once, in the order they first come; None where a sample has none.

        From the index where the column is there, as for `sort`; else that field of every sample is read. Raises
        ColumnError when there is no such column, and OptionError for one of values that are not compared, such as
        arrays.

        Example:
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

    def _chosen_by(self, positions: Any, shown: str) -> Dataset[T]:
        """The samples at these positions; a verb that did it is noted."""
        rows = self._numbers(np.asarray(positions, np.int64))
        return self._view(rows=rows, sample_type=self._description.sample_type, step=Step(shown, rows=rows))

    def _beneath_columns(self, *, complete: bool = False) -> tuple[str, ...] | None:
        """The columns before the format, where they are known."""
        return names_after(self._without_format(), self._stored_columns(complete=complete))

    def _without_format(self) -> tuple[Stage, ...]:
        stages = self._description.stages
        return stages if self._format is None else stages[:-1]

    def _know(self, names: Sequence[str]) -> bool:
        """Whether it is known that all of these are columns. Raises ColumnError when one is known not to be."""
        first = self._beneath_columns()
        if first is None:
            return False
        missing = [name for name in names if name not in first]
        known = self._beneath_columns(complete=True) if missing else first
        unknown = [name for name in missing if name not in (known or ())]
        if unknown:
            raise ColumnError("no such column", expected=" or ".join(known or ()), found=unknown[0])
        return True

    def _beneath_format(
        self, step: Keep | Drop | Rename, renamed: Callable[[str], str | None], shown: str
    ) -> Dataset[dict[str, Any]]:
        """This dataset with its columns changed before they are formatted, as in Hugging Face."""
        form, stages = self._format, (*self._without_format(), Stage("map", step))
        if form is None:
            return self._view(sample_type=dict, stages=stages, step=Step(shown))
        after = None if form.columns is None else tuple(new for name in form.columns if (new := renamed(name)))
        stages = (*stages, Stage("map", replace(form, columns=after)))
        return self._view(sample_type=self._description.sample_type, stages=stages, step=Step(shown))

    def _formatted(self, form: Formatting | None, shown: str) -> Dataset[Any]:
        """This dataset with another format, or without one."""
        stages = self._without_format()
        if form is None:
            kind = self._description.sample_type if self._format is None else dict if stages else None
            return self._view(sample_type=kind, stages=stages, step=Step(shown))
        return self._view(sample_type=object, stages=(*stages, Stage("map", form)), step=Step(shown))


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in found):
        raise OptionError("columns are named by texts", expected="a list of names", found=repr(names))
    return found
