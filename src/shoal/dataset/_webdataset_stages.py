"""The stages behind webdataset's methods: batches, epochs, slices, and its default collation.

Each is a recipe, a value that holds the dataset it is made of, and a source, which reads that dataset. So what is made
of a dataset is a dataset: with positions where the other has them, in order where it has not.
"""

# ruff: noqa: SLF001 - one dataset reads another

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.codec import framework_of
from shoal.errors import ColumnError, FieldError, OptionError, PositionError, SampleKeyError
from shoal.load import SampleBatch
from shoal.sample import is_record
from shoal.shard import Decoders, ErrorLog, Source

from ._description import digest_of
from ._fingerprint import value_mark

if TYPE_CHECKING:
    from ._base import Core
    from ._dataset import Dataset

__all__ = ["Batched", "Counted", "Epoch", "Sliced", "Unbatched", "collate", "dataset_of", "has_positions"]

Int64 = npt.NDArray[np.int64]
_NO_DECODERS: Decoders = {}


class _Elements:
    """A source of the elements of another dataset, in order; those with positions say more."""

    fields: tuple[str, ...] = ()
    positional = False

    def __init__(self, parent: Core[Any], recipe: object) -> None:
        self.parent = parent
        self._recipe = recipe

    @property
    def identity(self) -> str:
        """What it is made of, and how."""
        how = {name: value for name, value in vars(self._recipe).items() if name != "parent"}
        return digest_of([type(self).__name__, cast("Dataset[Any]", self.parent).fingerprint, value_mark(how)])

    def __len__(self) -> int:
        raise TypeError("how many elements there are is not known before they are read; with_length says it")

    def read(self, rows: Int64, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
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

    def keys(self, rows: Int64) -> list[str]:
        """No element has a key."""
        raise SampleKeyError("what was made of samples has no keys", found=f"{len(rows)} elements")

    def table(self, columns: Sequence[str]) -> pa.Table:
        """No element has metadata."""
        raise FieldError("what was made of samples has no metadata columns", found=", ".join(columns))


def has_positions(dataset: Core[Any]) -> bool:
    """Whether the elements of a dataset can be read by position."""
    filtered = any(stage.kind == "filter" for stage in dataset._description.stages)
    return not filtered and getattr(dataset.source, "positional", True)


def dataset_of(recipe: Batched | Unbatched | Epoch | Sliced | Counted) -> Dataset[Any]:
    """The dataset that a recipe describes. Nothing is opened."""
    parent = recipe.parent
    same_elements = isinstance(recipe, (Epoch, Sliced, Counted))
    described = replace(
        parent._description,
        path=recipe,
        format=None,
        fields=None,
        stored_type=object,
        sample_type=parent._description.sample_type or parent._asked_type if same_elements else object,
        stages=(),
        steps=(),
    )
    made: Core[Any] = object.__new__(type(parent))
    made._begin(described)
    return cast("Dataset[Any]", made)


def _runs_of(dataset: Core[Any], log: ErrorLog) -> Iterator[list[Any]]:
    return (dataset._finished(run) for run in dataset._stored_runs(dataset._rows, log))


def _elements_at(dataset: Core[Any], positions: Int64) -> list[Any]:
    return dataset._finished(dataset._read(dataset._numbers(positions)))


def _out_of(rows: Int64, length: int) -> NoReturn:
    raise PositionError("no element at this position", expected=f"0 to {length - 1}", found=int(rows.max()))


# ------------------------------------------------------------------------------------------------------------- batches


@dataclass(frozen=True)
class Batched:
    """Batches of a dataset's samples; ``collation`` None leaves them lists."""

    parent: Core[Any]
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

    def read(self, rows: Int64, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
        """The batches with these numbers."""
        if len(rows) and rows.max() >= len(self):
            _out_of(rows, len(self))
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
        if self._recipe.collation is not collate or parent._raw_source() is None:
            return None
        return parent.ordered(self._recipe.size, drop_last=not self._recipe.partial)

    def _cut(self, log: ErrorLog) -> Iterator[list[Any]]:
        held: list[Any] = []
        size = self._recipe.size
        for run in self.parent._stored_runs(self.parent._rows, log):
            held += self.parent._before_format(run)
            whole = len(held) // size * size
            yield from ([self._made(held[at : at + size])] for at in range(0, whole, size))
            held = held[whole:]
        if held and self._recipe.partial:
            yield [self._made(held)]


@dataclass(frozen=True)
class Unbatched:
    """The samples of a dataset of batches; of lists of samples where ``lists``."""

    parent: Core[Any]
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


# -------------------------------------------------------------------------------------------------------------- streams


@dataclass(frozen=True)
class Epoch:
    """A dataset's elements again and again, so many in all; None for ever."""

    parent: Core[Any]
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

    def read(self, rows: Int64, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
        """The elements with these numbers."""
        if not self.positional:
            return super().read(rows)
        if len(rows) and rows.max() >= len(self):
            _out_of(rows, len(self))
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

    parent: Core[Any]
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

    parent: Core[Any]
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

    def read(self, rows: Int64, fields: Sequence[str] | None = None, decoders: Decoders = _NO_DECODERS) -> list[Any]:
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

    Example:
        >>> collate([("a", 1), ("b", 2)])
        (['a', 'b'], array([1, 2]))
    """
    first = samples[0]
    if isinstance(first, dict):
        _refuse_different(next((sample for sample in samples if sample.keys() != first.keys()), first), first)
        return {name: _combined([sample[name] for sample in samples], name) for name in first}
    if isinstance(first, (list, tuple)):
        other = next((sample for sample in samples if len(sample) != len(first)), first)
        _refuse_different(range(len(other)), range(len(first)))
        return tuple(_combined(list(column), str(at)) for at, column in enumerate(zip(*samples, strict=True)))
    if is_record(type(first)):
        return SampleBatch.of(samples)
    raise OptionError(
        "these samples are not put together by themselves",
        expected="dicts, tuples or typed samples",
        found=type(first).__name__,
        hint="give batched a collation_fn, or None for lists",
    )


def _refuse_different(found: Iterable[Any], expected: Iterable[Any]) -> None:
    if set(found) != set(expected):
        names = [", ".join(map(str, columns)) for columns in (expected, found)]
        raise ColumnError("samples of one batch differ in their columns", expected=names[0], found=names[1])


def _combined(values: list[Any], name: str) -> Any:
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

    Example:
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
