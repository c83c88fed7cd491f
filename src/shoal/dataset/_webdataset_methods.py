"""The methods that users of webdataset know, on datasets and on loaders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

import numpy as np

from shoal.codec import decode_spec
from shoal.errors import OptionError, ShoalWarning
from shoal.load import DataLoader, Filter, Map, Shuffle, takes_rng

from ._base import Core
from ._batches import check_batch_size
from ._columns import DecodeColumns, Drop, Keep, MapColumns, PickTuple, Relabel, RelabelMatching
from ._description import Stage, Step
from ._webdataset_stages import Batched, Counted, Epoch, Sliced, Unbatched, collate, dataset_of, has_positions

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["SampleLoader", "WebDatasetVerbs"]

T = TypeVar("T")
Function = Callable[[Any], Any]


class WebDatasetVerbs(Core[T]):
    """``decode``, ``to_tuple``, ``rename``, ``map_dict``, ``batched``, ``with_epoch`` and their neighbours."""

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

        Example:
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

        Example:
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

        Example:
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

        Example:
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

        Example:
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

        Example:
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
        batch may be short, and is left out unless ``partial``.

        Raises OptionError for a size below 1 and, as a batch is read, for arrays of different shapes.

        Example:
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
        return dataset_of(Batched(self, check_batch_size(batchsize), collation_fn, bool(partial)))

    def listed(self, batchsize: int, partial: bool = True) -> Dataset[list[T]]:
        """Lists of samples: ``batched(batchsize, None, partial)``."""
        return WebDatasetVerbs.batched(self, batchsize, None, partial)

    def unbatched(self) -> Dataset[Any]:
        """The samples of a dataset of batches, in order. They have no positions, since batches may differ in size.

        Raises OptionError, as batches are read, for what is no batch, and for columns of different lengths.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/unbatched/a-%06d.tar") as writer:
            ...     for number in range(3):
            ...         writer.write({"__key__": f"k{number}", "txt": f"text {number}"})
            >>> batches = shoal.Dataset("memory://doc/unbatched").to_tuple("__key__", "txt").batched(2)
            >>> list(batches.unbatched())
            [('k0', 'text 0'), ('k1', 'text 1'), ('k2', 'text 2')]
        """
        return dataset_of(Unbatched(self))

    def unlisted(self) -> Dataset[Any]:
        """The samples of a dataset of lists, in order."""
        return dataset_of(Unbatched(self, lists=True))

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Dataset[T]:
        """As many elements as are said, whatever the dataset holds: it ends earlier, or begins again from the start.

        Each epoch, too, begins at the start, as in webdataset. Without a number above 0 it never ends. ``nbatches`` is
        another name for the same number, for a dataset of batches. Verbs apply in the order written, so a ``batched``
        after it makes batches of these elements; webdataset would count batches there, too.

        Example:
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
        return dataset_of(Epoch(self, count if count > 0 else None))

    def with_length(self, n: int, *, silent: bool = False) -> Dataset[T]:
        """The same elements under another ``len``, for programs that need one where it is not known: after ``filter``.

        How many elements come is not changed by it. Where the length is known and another, a ShoalWarning says so,
        unless ``silent``.

        Example:
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
        return dataset_of(Counted(self, n))

    def slice(self, *args: int | None) -> Dataset[T]:
        """Some elements in order: ``slice(stop)`` or ``slice(start, stop, step)``, as ``itertools.islice`` counts.

        Raises OptionError for numbers below 0, a step below 1, and other than one to three arguments.

        Example:
            >>> import shoal
            >>> with shoal.ShardWriter("memory://doc/slice/a-%06d.tar") as writer:
            ...     for number in range(6):
            ...         writer.write({"__key__": f"k{number}", "cls": number})
            >>> [sample["cls"] for sample in shoal.Dataset("memory://doc/slice").slice(1, 6, 2)]
            [1, 3, 5]
        """
        start, stop, step = _slice_of(args)
        if not has_positions(self):
            return dataset_of(Sliced(self, start, stop, step))
        positions = np.arange(len(self))[start:stop:step]
        return self._view(rows=self._numbers(positions), sample_type=self._description.sample_type)

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


def _slice_of(args: tuple[int | None, ...]) -> tuple[int, int | None, int]:
    if not 1 <= len(args) <= 3:
        raise OptionError("a slice has one to three numbers", expected="stop, or start, stop, step", found=len(args))
    start, stop, step = (None, args[0], None) if len(args) == 1 else (*args, None)[:3]
    for number, least in ((start, 0), (stop, 0), (step, 1)):
        if number is not None and (type(number) is not int or number < least):
            raise OptionError("a slice counts elements from the start", expected=f"{least} or more", found=repr(number))
    return start or 0, stop, step or 1


class SampleLoader(DataLoader):
    """What a dataset's ``shuffle`` and its like give. Verbs about single samples are done by the dataset.

    Example:
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
        return self._of_data("decode", specs, options)

    def to_tuple(self, *columns: Any, **options: Any) -> Self:
        """``Dataset.to_tuple``."""
        return self._of_data("to_tuple", columns, options)

    def rename(self, **columns: Any) -> Self:
        """``Dataset.rename``."""
        return self._of_data("rename", (), columns)

    def rename_keys(self, *pairs: Any, **patterns: Any) -> Self:
        """``Dataset.rename_keys``."""
        return self._of_data("rename_keys", pairs, patterns)

    def map_dict(self, **functions: Callable[[Any], Any]) -> Self:
        """``Dataset.map_dict``."""
        return self._of_data("map_dict", (), functions)

    def map_tuple(self, *functions: Callable[[Any], Any] | None) -> Self:
        """``Dataset.map_tuple``."""
        return self._of_data("map_tuple", functions, {})

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

    def _of_data(self, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Self:
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
