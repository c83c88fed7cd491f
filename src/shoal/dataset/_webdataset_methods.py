"""The methods of webdataset, on datasets and on the loaders that `shuffle` and the like return.

Each stage is a frozen description, which has the parent dataset, and a source, which reads the parent. The result is a
dataset again: it has positions if the parent has them, else it is read in order.
"""

# ruff: noqa: SLF001 - one dataset reads another

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, cast

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.codec._dispatch import decode_spec
from shoal.codec._frameworks import framework_of
from shoal.errors import ColumnError, FieldError, OptionError, PositionError, SampleKeyError, ShoalWarning
from shoal.load._collate import SampleBatch
from shoal.load._loader import DataLoader
from shoal.load._stages import Filter, Map, Shuffle, takes_rng
from shoal.order._epoch_plan import launched_rank
from shoal.sample._annotations import is_record
from shoal.shard._shard import Decoders
from shoal.shard._source import Source
from shoal.shard._stream import ErrorLog

from ._base import DatasetBase
from ._batches import check_batch_size
from ._column_stages import DecodeColumns, Drop, Keep, MapColumns, PickTuple, Relabel, RelabelMatching
from ._description import Stage, Step, digest_of
from ._fingerprint import digest_value

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["SampleLoader", "WebDatasetMethods"]

T = TypeVar("T")
Function = Callable[[Any], Any]

_NO_DECODERS: Decoders = {}


class _Elements:
    """A source of the elements of another dataset, in order; those with positions say more."""

    fields: tuple[str, ...] = ()
    positional = False

    def __init__(self, parent: DatasetBase[Any], recipe: object) -> None:
        self.parent = parent
        self._recipe = recipe

    @property
    def identity(self) -> str:
        """What it is made of, and how."""
        how = {name: value for name, value in vars(self._recipe).items() if name != "parent"}
        return digest_of([type(self).__name__, cast("Dataset[Any]", self.parent).fingerprint, digest_value(how)])

    def __len__(self) -> int:
        raise TypeError("how many elements there are is not known before they are read; with_length says it")

    def read(self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
        """The elements with these numbers."""
        raise TypeError(
            "these elements have no positions, because those they are made of have none; read them in order"
        )

    def stream(
        self, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS, log: ErrorLog | None = None
    ) -> Iterator[list[Any]]:
        """All elements in order."""
        return self._runs(ErrorLog() if log is None else log)

    def _runs(self, log: ErrorLog) -> Iterator[list[Any]]:
        raise NotImplementedError

    def find(self, key: str) -> int:
        """No element has a key."""
        raise SampleKeyError("what was made of samples has no keys", found=repr(key))

    def keys(self, rows: IntArray) -> list[str]:
        """No element has a key."""
        raise SampleKeyError("what was made of samples has no keys", found=f"{len(rows)} elements")

    def table(self, columns: Sequence[str]) -> pa.Table:
        """No element has metadata."""
        raise FieldError("what was made of samples has no metadata columns", found=", ".join(columns))


def has_positions(dataset: DatasetBase[Any]) -> bool:
    """Whether the elements of a dataset can be read by position."""
    filtered = any(stage.kind == "filter" for stage in dataset._description.stages)
    return not filtered and getattr(dataset.source, "positional", True)


def dataset_from(recipe: Batched | Unbatched | Epoch | Sliced | Counted) -> Dataset[Any]:
    """The dataset that a recipe describes. Nothing is opened."""
    parent = recipe.parent
    same_elements = isinstance(recipe, (Epoch, Sliced, Counted))
    described = replace(
        parent._description,
        path=recipe,
        format=None,
        fields=None,
        stored_type=object,
        sample_type=parent._description.sample_type or parent._requested_type if same_elements else object,
        stages=(),
        steps=(),
    )
    made: DatasetBase[Any] = object.__new__(type(parent))
    made._begin(described)
    return cast("Dataset[Any]", made)


def _runs_of(dataset: DatasetBase[Any], log: ErrorLog) -> Iterator[list[Any]]:
    return (dataset._finished_valid(run, log) for run in dataset._stored_runs(dataset._rows, log))


def _elements_at(dataset: DatasetBase[Any], positions: IntArray) -> list[Any]:
    return dataset._finished(dataset._read(dataset._numbers(positions)))


def _raise_out_of_range(rows: IntArray, length: int) -> NoReturn:
    raise PositionError("no element at this position", expected=f"0 to {length - 1}", found=int(rows.max()))


@dataclass(frozen=True)
class Batched:
    """Batches of a dataset's samples; ``collation`` None leaves them lists."""

    parent: DatasetBase[Any]
    size: int
    collation: Callable[[list[Any]], Any] | None
    partial: bool

    def __repr__(self) -> str:
        return f"{self.parent!r}.batched({self.size})"

    def open_source(self) -> Source:
        """The batches."""
        return _Batches(self.parent, self)


class _Batches(_Elements):
    """Batches: the last one may be short, or is left out."""

    _recipe: Batched

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Whether batch i can be read alone."""
        return has_positions(self.parent)

    def __len__(self) -> int:
        full = len(self.parent) / self._recipe.size
        return math.ceil(full) if self._recipe.partial else math.floor(full)

    def read(self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
        """The batches with these numbers."""
        if len(rows) and rows.max() >= len(self):
            _raise_out_of_range(rows, len(self))
        return [self._one(number) for number in rows.tolist()]

    def _one(self, number: int) -> Any:
        size, length = self._recipe.size, len(self.parent)
        positions = np.arange(number * size, min((number + 1) * size, length))
        return self._made(self.parent._before_format(self.parent._read(self.parent._numbers(positions))))

    def _made(self, samples: list[Any]) -> Any:
        """One batch of samples that were not formatted yet, since a format has a form for batches."""
        made, form = self._recipe.collation, self.parent._format
        if made is collate and form is not None:
            return form.batch(samples, None)
        values = samples if form is None else [form(sample) for sample in samples]
        return values if made is None else made(values)

    def _runs(self, log: ErrorLog) -> Iterator[list[Any]]:
        fast = self._typed_batches()
        return self._cut(log) if fast is None else ([batch] for batch in fast)

    def _typed_batches(self) -> Iterator[Any] | None:
        """Batches gathered from payloads without unpacking a sample, where that can be done."""
        parent = cast("Dataset[Any]", self.parent)
        if self._recipe.collation is not collate or parent.raw_source is None:
            return None
        return parent._all_batches(self._recipe.size, drop_last=not self._recipe.partial)

    def _cut(self, log: ErrorLog) -> Iterator[list[Any]]:
        held: list[Any] = []
        size = self._recipe.size
        for run in self.parent._stored_runs(self.parent._rows, log):
            held += self.parent._before_format_valid(run, log)
            whole = len(held) // size * size
            yield from ([self._made(held[at : at + size])] for at in range(0, whole, size))
            held = held[whole:]
        if held and self._recipe.partial:
            yield [self._made(held)]


@dataclass(frozen=True)
class Unbatched:
    """The samples of a dataset of batches; of lists of samples where ``lists``."""

    parent: DatasetBase[Any]
    lists: bool = False

    def __repr__(self) -> str:
        return f"{self.parent!r}.{'unlisted' if self.lists else 'unbatched'}()"

    def open_source(self) -> Source:
        """The samples."""
        return _Parts(self.parent, self)


class _Parts(_Elements):
    _recipe: Unbatched

    def _runs(self, log: ErrorLog) -> Iterator[list[Any]]:
        for run in _runs_of(self.parent, log):
            for batch in run:
                yield list(batch) if self._recipe.lists else split_batch(batch)


@dataclass(frozen=True)
class Epoch:
    """A dataset's elements again and again, so many in all; None for ever."""

    parent: DatasetBase[Any]
    length: int | None

    def __repr__(self) -> str:
        return f"{self.parent!r}.with_epoch({'' if self.length is None else self.length})"

    def open_source(self) -> Source:
        """The epoch."""
        return _Rounds(self.parent, self)


class _Rounds(_Elements):
    """Rounds over a dataset; each begins at the start, and each epoch, too."""

    _recipe: Epoch

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Whether an element can be read alone."""
        return self._recipe.length is not None and has_positions(self.parent)

    def __len__(self) -> int:
        if self._recipe.length is None:
            raise TypeError("this dataset has no end, so it has no length; with_epoch(n) gives it one")
        return self._recipe.length if not has_positions(self.parent) or len(self.parent) else 0

    def read(self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
        """The elements with these numbers."""
        if not self.positional:
            return super().read(rows)
        if len(rows) and rows.max() >= len(self):
            _raise_out_of_range(rows, len(self))
        return _elements_at(self.parent, rows % max(len(self.parent), 1))

    def _runs(self, log: ErrorLog) -> Iterator[list[Any]]:
        left = self._recipe.length
        while left is None or left > 0:
            count = 0
            for run in _runs_of(self.parent, log):
                part = run if left is None else run[: left - count]
                yield part
                count += len(part)
                if count == left:
                    return
            if not count:  # nothing comes from an empty dataset, however often
                return
            left = None if left is None else left - count


@dataclass(frozen=True)
class Sliced:
    """Every ``step``-th element from ``start`` to before ``stop``, of a dataset without positions."""

    parent: DatasetBase[Any]
    start: int
    stop: int | None
    step: int

    def __repr__(self) -> str:
        return f"{self.parent!r}.slice({self.start}, {self.stop}, {self.step})"

    def open_source(self) -> Source:
        """The elements."""
        return _Slice(self.parent, self)


class _Slice(_Elements):
    _recipe: Sliced

    def _runs(self, log: ErrorLog) -> Iterator[list[Any]]:
        runs = _runs_of(self.parent, log)
        elements = itertools.chain.from_iterable(runs)
        for element in itertools.islice(elements, self._recipe.start, self._recipe.stop, self._recipe.step):
            yield [element]


@dataclass(frozen=True)
class Counted:
    """A dataset that says it has so many elements; what it gives is the same."""

    parent: DatasetBase[Any]
    length: int

    def __repr__(self) -> str:
        return f"{self.parent!r}.with_length({self.length})"

    def open_source(self) -> Source:
        """The same elements."""
        return _Same(self.parent, self)


class _Same(_Elements):
    _recipe: Counted

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Whether an element can be read alone."""
        return has_positions(self.parent)

    def __len__(self) -> int:
        return self._recipe.length

    def read(self, rows: IntArray, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
        """The elements with these numbers."""
        return _elements_at(self.parent, rows)

    def _runs(self, log: ErrorLog) -> Iterator[list[Any]]:
        return _runs_of(self.parent, log)


def collate(samples: list[Any]) -> Any:
    """Tuples become a tuple of columns, dicts a dict of columns, typed samples a ``SampleBatch``.

    A column of numbers is one array, arrays and tensors are stacked, anything else is a list.

    Raises:
        ColumnError: Samples of one batch have different columns, or tuples different lengths.
        OptionError: Arrays of one column have different shapes, or the samples are of another kind.

    Examples:
        >>> collate([("a", 1), ("b", 2)])
        (['a', 'b'], array([1, 2]))
    """
    first = samples[0]
    if isinstance(first, dict):
        _check_same_columns(next((sample for sample in samples if sample.keys() != first.keys()), first), first)
        return {name: _combine_column([sample[name] for sample in samples], name) for name in first}
    if isinstance(first, (list, tuple)):
        other = next((sample for sample in samples if len(sample) != len(first)), first)
        _check_same_columns(range(len(other)), range(len(first)))
        return tuple(_combine_column(list(column), str(at)) for at, column in enumerate(zip(*samples, strict=True)))
    if is_record(type(first)):
        return SampleBatch.of(samples)
    raise OptionError(
        "these samples are not put together by themselves",
        expected="dicts, tuples or typed samples",
        found=type(first).__name__,
        hint="give batched a collation_fn, or None for lists",
    )


def _check_same_columns(found: Iterable[Any], expected: Iterable[Any]) -> None:
    if set(found) != set(expected):
        names = [", ".join(map(str, columns)) for columns in (expected, found)]
        raise ColumnError("samples of one batch differ in their columns", expected=names[0], found=names[1])


def _combine_column(values: list[Any], name: str) -> Any:
    first = values[0]
    if isinstance(first, (int, float)):
        return np.array(values)
    if not hasattr(first, "shape") or not hasattr(first, "dtype"):
        return values
    if len(shapes := {tuple(value.shape) for value in values}) > 1:
        found = " and ".join(map(str, sorted(shapes)))
        hint = "make them alike first, or give batched a collation_fn"
        raise OptionError("arrays of one batch have different shapes", found=found, field=name, hint=hint)
    if isinstance(first, (np.ndarray, np.generic)):
        return np.stack(values)
    of = framework_of(first)
    return values if of is None else of.together(values)


def split_batch(batch: Any) -> list[Any]:
    """The samples of a batch: tuples from a tuple of columns, dicts from a dict of columns.

    Raises:
        OptionError: It is no batch, or its columns have different lengths.

    Examples:
        >>> split_batch((["a", "b"], [1, 2]))
        [('a', 1), ('b', 2)]
    """
    if isinstance(batch, SampleBatch):
        return batch.samples
    columns = list(batch.values()) if isinstance(batch, dict) else batch
    if not isinstance(columns, (list, tuple)):
        raise OptionError("this is no batch", expected="a tuple, list or dict of columns", found=type(batch).__name__)
    if len(lengths := {len(column) for column in columns}) > 1:
        raise OptionError("columns of one batch have different lengths", found=", ".join(map(str, sorted(lengths))))
    rows = zip(*columns, strict=True)
    return [dict(zip(batch, row, strict=True)) for row in rows] if isinstance(batch, dict) else list(rows)


class WebDatasetMethods(DatasetBase[T]):
    """Methods of webdataset's fluid interface, with its names and defaults."""

    @property
    def gives_batches(self) -> bool:
        """Whether the elements are batches, as `batched` makes them."""
        recipe = self._description.path
        if isinstance(recipe, (Epoch, Sliced, Counted)):
            return cast("Dataset[Any]", recipe.parent).gives_batches
        return isinstance(recipe, Batched)

    def __iter__(self) -> Iterator[T]:
        """All samples in order; of a dataset of batches, those of this rank."""
        ranks = launched_rank()[1] if self.gives_batches else 1
        if ranks == 1:
            return super().__iter__()
        if not has_positions(self):
            raise OptionError(
                f"{ranks} ranks may get different numbers of batches: how many there are is not known",
                expected="samples with positions before batched()",
                hint="materialize() a filtered dataset, select its samples with where(), or use "
                "shoal.DataLoader with steps_per_epoch= or tail='uneven'",
            )
        return iter(DataLoader(self, batch_size=None, num_workers=0))

    def decode(
        self,
        *specs: Any,
        only: str | Iterable[str] | None = None,
        on_decode_error: Literal["raise", "keep"] | None = None,
        allow_pickle: bool | None = None,
    ) -> Dataset[T]:
        """The same samples decoded in another way, as the option ``decode`` of `Dataset` says; without specs, ``True``.

        What was said before about decoding is replaced. After a ``map``, ``filter`` or ``rename`` it is another step:
        columns that are still bytes are decoded by the names they have then.

        Args:
            *specs: Forms (``"rgb8"``, ``"pil"``), extensions, mappings and functions ``(name, bytes)``, tried in order.
            only: The fields to decode, as a list or as names with spaces between; all others stay bytes.
            on_decode_error: What a field that does not decode becomes: an error, or its bytes (``"keep"``).
            allow_pickle: Whether pickles are decoded. As it was, where it is not said.

        Raises:
            OptionError: A spec is none of these. It is a ValueError, as in webdataset.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/decode/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> raw = shoal.Dataset("memory://doc/decode", decode=False)
            >>> raw[0]["txt"], raw.decode()[0]["txt"], raw.decode(only="cls")[0]["txt"]
            (b'a cat', 'a cat', b'a cat')
        """
        before = self._description.spec
        spec = decode_spec(
            specs or True,
            allow_pickle=before.limits.allow_pickle if allow_pickle is None else allow_pickle,
            on_decode_error=on_decode_error or before.on_decode_error,
            max_bytes=before.limits.max_bytes,
        )
        names = only.split() if isinstance(only, str) else only
        spec = replace(spec, only=None if names is None else frozenset(names))
        step = Step(f"decode({', '.join(map(repr, specs))})")
        stages = self._description.stages if self._format is None else self._description.stages[:-1]
        if all(isinstance(stage.function, (Keep, Drop)) for stage in stages):
            return self._view(spec=spec, step=step)
        return self._then(DecodeColumns(spec), self._description.sample_type, step)

    def to_tuple(
        self, *columns: str | Sequence[str], missing_is_error: bool = True, none_is_error: bool | None = None
    ) -> Dataset[tuple[Any, ...]]:
        """Samples as tuples of these columns, ``__key__`` among them; no other field is read.

        ``"jpg;png"`` is the first of both that a sample has; one text with spaces, ``"jpg;png cls"``, names several. Of
        typed samples, columns are the type's fields.

        Raises:
            OptionError: No column is named.
            ColumnError: As samples are read: one has none of the alternatives, or None there. With
                ``missing_is_error=False`` it gives None; ``none_is_error`` is the same unless said otherwise.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/tuple/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "txt": f"text {number}", "cls": number})
            >>> list(shoal.Dataset("memory://doc/tuple").to_tuple("caption;txt", "cls"))
            [('text 0', 0), ('text 1', 1), ('text 2', 2)]
        """
        if len(columns) == 1 and isinstance(columns[0], str) and " " in columns[0]:
            columns = tuple(columns[0].split())
        if not columns:
            raise OptionError("a tuple has columns", expected='to_tuple("jpg;png", "cls")', found="to_tuple()")
        choices = tuple(_alternatives(column) for column in columns)
        pick = PickTuple(choices, missing_is_error, missing_is_error if none_is_error is None else none_is_error)
        return self._then(pick, tuple, Step(f"to_tuple({', '.join(map(repr, columns))})"))

    def rename(self, *, keep: bool = True, **columns: str | Sequence[str]) -> Dataset[dict[str, Any]]:
        """Columns under new names: ``rename(image="jpg;png")`` calls the first of these that a sample has ``image``.

        The other columns stay, unless ``keep`` is false. Raises ColumnError, as samples are read, for one that has none
        of the alternatives.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/rename/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> shoal.Dataset("memory://doc/rename").rename(label="cls", keep=False)[0]
            {'label': 7}
        """
        choices = tuple((new, _alternatives(names)) for new, names in columns.items())
        shown = ", ".join(f"{new}={';'.join(names)!r}" for new, names in choices)
        return self._then(Relabel(choices, keep), dict, Step(f"rename({shown})"))

    def rename_keys(
        self,
        *pairs: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        **patterns: str,
    ) -> Dataset[dict[str, Any]]:
        """Columns that match a pattern under new names: ``rename_keys(image="*.jpg")``, or pairs of name and pattern.

        Columns that match none are left out, unless ``keep_unselected``. Of several patterns that match, the last one
        counts. Raises ColumnError, as samples are read, for a pattern that matches nothing (``must_match``) and for two
        columns of one new name (``duplicate_is_error``; else the first stays).

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/keys/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "left.txt": "a", "cls": 7})
            >>> shoal.Dataset("memory://doc/keys").rename_keys(text="*.txt")[0]
            {'text': 'a'}
        """
        given = (*((pattern, new) for new, pattern in pairs), *((pattern, new) for new, pattern in patterns.items()))
        step = RelabelMatching(given, keep_unselected, must_match, duplicate_is_error)
        return self._then(step, dict, Step(f"rename_keys({', '.join(new for _, new in given)})"))

    def map_dict(self, **functions: Function) -> Dataset[dict[str, Any]]:
        """A function for each of some columns: ``map_dict(jpg=augment, cls=int)``; the others stay.

        Raises OptionError without functions, and ColumnError, which is a KeyError, as a sample without such a column is
        read.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/mapdict/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> shoal.Dataset("memory://doc/mapdict").map_dict(txt=str.upper).to_tuple("txt", "cls")[0]
            ('A CAT', 7)
        """
        _check_functions(functions.values())
        if not functions:
            raise OptionError("map_dict maps columns", expected="map_dict(column=function)", found="map_dict()")
        return self._then(MapColumns(tuple(functions.items())), dict, Step(f"map_dict({', '.join(functions)})"))

    def map_tuple(self, *functions: Function | None) -> Dataset[tuple[Any, ...]]:
        """A function for each place of a tuple, None for a place that stays; places without one stay, too.

        Raises OptionError for what is no function, and, as they are read, for samples that are no tuples.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/maptuple/a-%06d.tar") as writer:
            ...     writer.write({"__key__": "k", "txt": "a cat", "cls": 7})
            >>> shoal.Dataset("memory://doc/maptuple").to_tuple("txt", "cls").map_tuple(None, lambda n: n + 1)[0]
            ('a cat', 8)
        """
        _check_functions(function for function in functions if function is not None)
        return self._then(_TupleMap(functions), tuple, Step("map_tuple(...)"))

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = collate,
        partial: bool = True,
    ) -> Dataset[Any]:
        """A dataset of batches. It has a length and batches by position where the samples have positions.

        Without a ``collation_fn`` of your own, tuples become a tuple of columns, dicts a dict of columns: numbers as
        one array, arrays and tensors stacked, anything else as a list. Typed samples become a ``SampleBatch``, and
        samples with a format (`with_format`) a batch of it. With None a batch is the list of its samples. The last
        batch may be short, and is left out unless ``partial``. In a program of several ranks, iterating gives each of
        them every so many-th batch; positions are those of all batches.

        Raises OptionError for a size below 1 and, as a batch is read, for arrays of different shapes.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/batched/a-%06d.tar") as writer:
            ...     for number in range(5):
            ...         writer.write({"__key__": f"k{number}", "txt": f"text {number}", "cls": number})
            >>> batches = shoal.Dataset("memory://doc/batched").to_tuple("txt", "cls").batched(2)
            >>> len(batches), batches[1], batches[-1]
            (3, (['text 2', 'text 3'], array([2, 3])), (['text 4'], array([4])))
        """
        if collation_fn is not None:
            _check_functions([collation_fn])
        return dataset_from(Batched(self, check_batch_size(batchsize), collation_fn, bool(partial)))

    def listed(self, batchsize: int, partial: bool = True) -> Dataset[list[T]]:
        """Lists of samples: ``batched(batchsize, None, partial)``."""
        return WebDatasetMethods.batched(self, batchsize, None, partial)

    def unbatched(self) -> Dataset[Any]:
        """The samples of a dataset of batches, in order. They have no positions, since batches may differ in size.

        Raises OptionError, as batches are read, for what is no batch, and for columns of different lengths.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/unbatched/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "txt": f"text {number}"})
            >>> batches = shoal.Dataset("memory://doc/unbatched").to_tuple("__key__", "txt").batched(2)
            >>> list(batches.unbatched())
            [('k0', 'text 0'), ('k1', 'text 1'), ('k2', 'text 2')]
        """
        return dataset_from(Unbatched(self))

    def unlisted(self) -> Dataset[Any]:
        """The samples of a dataset of lists, in order."""
        return dataset_from(Unbatched(self, lists=True))

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Dataset[T]:
        """As many elements as are said, whatever the dataset holds: it ends earlier, or begins again from the start.

        Each epoch, too, begins at the start, as in webdataset. Without a number above 0 it never ends. ``nbatches`` is
        another name for the same number, for a dataset of batches. Verbs apply in the order written, so a ``batched``
        after it makes batches of these elements; webdataset would count batches there, too.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/epoch/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> ds = shoal.Dataset("memory://doc/epoch").map(lambda sample: sample["cls"])
            >>> list(ds.with_epoch(2)), list(ds.with_epoch(5)), len(ds.with_epoch(5))
            ([0, 1], [0, 1, 2, 0, 1], 5)
        """
        count = max(nsamples, nbatches)
        if type(count) is not int:
            raise OptionError("an epoch counts elements", expected="int", found=repr(count))
        return dataset_from(Epoch(self, count if count > 0 else None))

    def with_length(self, n: int, *, silent: bool = False) -> Dataset[T]:
        """The same elements under another ``len``, for programs that need one where it is not known: after ``filter``.

        How many elements come is not changed by it. Where the length is known and another, a ShoalWarning says so,
        unless ``silent``.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/length/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> odd = shoal.Dataset("memory://doc/length").filter(lambda sample: sample["cls"] % 2)
            >>> len(odd.with_length(1))
            1
        """
        if type(n) is not int or n < 0:
            raise OptionError("a length counts elements", expected="0 or more", found=repr(n))
        known = len(self) if has_positions(self) else n
        if known != n and not silent:
            told = f"with_length({n}) of {known} elements changes only what len() says; with_epoch({n}) gives so many"
            warnings.warn(told, ShoalWarning, stacklevel=2)
        return dataset_from(Counted(self, n))

    def slice(self, *args: int | None) -> Dataset[T]:
        """Some elements in order: ``slice(stop)`` or ``slice(start, stop, step)``, as ``itertools.islice`` counts.

        Raises OptionError for numbers below 0, a step below 1, and other than one to three arguments.

        Examples:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/slice/a-%06d.tar") as writer:
            ...     for number in range(6):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> [sample["cls"] for sample in shoal.Dataset("memory://doc/slice").slice(1, 6, 2)]
            [1, 3, 5]
        """
        start, stop, step = _check_slice(args)
        if not has_positions(self):
            return dataset_from(Sliced(self, start, stop, step))
        chosen = slice(start, stop, step).indices(len(self))
        return self._view(rows=self.rows.slice(*chosen), sample_type=self._description.sample_type)

    def _then(self, function: Function, sample_type: type[Any] | None, step: Step) -> Dataset[Any]:
        """This dataset with one more stage."""
        return self._view(
            sample_type=sample_type, stages=(*self._description.stages, Stage("map", function)), step=step
        )


class _TupleMap:
    """A function for each place of a tuple."""

    def __init__(self, functions: tuple[Function | None, ...]) -> None:
        self.functions = functions

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, (tuple, list)):
            hint = "to_tuple comes before map_tuple"
            raise OptionError("map_tuple maps tuples", expected="a tuple", found=type(sample).__name__, hint=hint)
        functions = (*self.functions, *[None] * len(sample))
        return tuple(value if f is None else f(value) for f, value in zip(functions, sample, strict=False))


def _alternatives(names: str | Sequence[str]) -> tuple[str, ...]:
    """The columns that ``"jpg;png"``, or a list, names."""
    found: tuple[Any, ...] = tuple(names.split(";") if isinstance(names, str) else names)
    if not found or not all(isinstance(name, str) and name and " " not in name for name in found):
        raise OptionError("this names no column", expected='a name, or "jpg;png" for several', found=repr(names))
    return found


def _check_functions(functions: Iterable[Any]) -> None:
    for function in functions:
        if not callable(function):
            raise OptionError("this is not a function", expected="a function", found=repr(function))


def _check_slice(args: tuple[int | None, ...]) -> tuple[int, int | None, int]:
    if not 1 <= len(args) <= 3:
        raise OptionError("a slice has one to three numbers", expected="stop, or start, stop, step", found=len(args))
    start, stop, step = (None, args[0], None) if len(args) == 1 else (*args, None)[:3]
    for number, least in ((start, 0), (stop, 0), (step, 1)):
        if number is not None and (type(number) is not int or number < least):
            raise OptionError("a slice counts elements from the start", expected=f"{least} or more", found=repr(number))
    return start or 0, stop, step or 1


class SampleLoader(DataLoader):
    """What a dataset's ``shuffle`` and its like give. Verbs about single samples are done by the dataset.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/shuffle-first/a-%06d.tar") as writer:
        ...     for number in range(6):
        ...         writer.write({"__key__": f"k{number}", "txt": f"text {number}", "cls": number})
        >>> batches = shoal.Dataset("memory://doc/shuffle-first").shuffle(1000).to_tuple("txt", "cls").batched(4)
        >>> [len(texts) for texts, labels in batches]
        [4, 2]
    """

    def decode(self, *specs: Any, **options: Any) -> Self:
        """``Dataset.decode``."""
        return self._with_dataset_method("decode", specs, options)

    def to_tuple(self, *columns: Any, **options: Any) -> Self:
        """``Dataset.to_tuple``."""
        return self._with_dataset_method("to_tuple", columns, options)

    def rename(self, **columns: Any) -> Self:
        """``Dataset.rename``."""
        return self._with_dataset_method("rename", (), columns)

    def rename_keys(self, *pairs: Any, **patterns: Any) -> Self:
        """``Dataset.rename_keys``."""
        return self._with_dataset_method("rename_keys", pairs, patterns)

    def map_dict(self, **functions: Callable[[Any], Any]) -> Self:
        """``Dataset.map_dict``."""
        return self._with_dataset_method("map_dict", (), functions)

    def map_tuple(self, *functions: Callable[[Any], Any] | None) -> Self:
        """``Dataset.map_tuple``."""
        return self._with_dataset_method("map_tuple", functions, {})

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = collate,
        partial: bool = True,
    ) -> DataLoader:
        """Batches put together as ``Dataset.batched`` does it, which is as webdataset does."""
        return self.batch(batchsize, not partial, collate_fn=list if collation_fn is None else collation_fn)

    def listed(self, batchsize: int, partial: bool = True) -> DataLoader:
        """Lists of samples."""
        return self.batched(batchsize, None, partial)

    def _with_dataset_method(self, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Self:
        """The same loader over a dataset that does this, and what was said before it, by itself."""
        data, shuffles = self._spec.data, []
        for step in self._spec.steps:
            if isinstance(step, Shuffle):  # an order, which samples do not know of
                shuffles.append(step)
            elif isinstance(step, Map) and step.workers == "thread" and not takes_rng(step.function):
                data = data.map(step.function)
            elif isinstance(step, Filter):
                data = data.filter(step.function)
            else:
                found = type(step).__name__.lower()
                raise OptionError(f"{verb} is about the samples of a dataset", expected=f"{verb} before {found}")
        changed = getattr(data, verb)(*arguments, **options)
        return cast(Self, self._with(replace(self._spec, data=changed, steps=tuple(shuffles))))
