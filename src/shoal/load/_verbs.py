"""The verbs of a pipeline: each gives a new loader that does one thing more."""

from __future__ import annotations

import abc
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import OptionError, ShoalWarning

from ._columns import Ragged
from ._engine import Auto, LoaderOptions, PipelineSpec, ThreadingOptions, whole_number
from ._steps import (
    Batch,
    Bucket,
    CachedData,
    Enumerate,
    Filter,
    FlatMap,
    Interleave,
    Map,
    Pack,
    Shuffle,
    Skip,
    Step,
    Take,
    TakeWhile,
    Unbatch,
    Window,
    WorkerKind,
    check_buckets,
    check_callable,
)
from ._zip import Zipped

if TYPE_CHECKING:
    from ._loader import DataLoader

__all__ = ["Verbs", "least"]


class Verbs(abc.ABC):
    """What can be done to the elements of a loader, in the order written.

    Nothing is read by a verb. Elements are samples until they are batched, and batches from then on. A loader that was
    given a ``batch_size`` is batched from the start, one that was given none by the first verb that makes batches.
    """

    _spec: PipelineSpec

    @abc.abstractmethod
    def _with(self, spec: PipelineSpec) -> DataLoader: ...

    def _then(self, step: Step) -> DataLoader:
        return self._with(self._spec.then(step))

    def map(
        self,
        function: Callable[..., Any],
        num_parallel_calls: int | Auto | None = "auto",
        *,
        workers: WorkerKind = "thread",
    ) -> DataLoader:
        """Each element changed by a function, on the worker threads, or in other processes if it holds the GIL.

        A function with a parameter ``rng`` gets a random generator of its sample's own, the same in every run with
        this seed. A number for ``num_parallel_calls`` fixes the number of workers.
        """
        check_callable("map", function)
        check_choice("workers", workers, ("thread", "process"))
        made = self._then(Map(function, workers))
        if num_parallel_calls is None or num_parallel_calls == "auto":
            return made
        return made.with_options(num_workers=least("num_parallel_calls", num_parallel_calls, 0))

    def filter(self, function: Callable[[Any], Any]) -> DataLoader:
        """Only the elements for which the function is true."""
        check_callable("filter", function)
        return self._then(Filter(function))

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> DataLoader:
        """All that the function gives for each element, one after the other."""
        check_callable("flat_map", function)
        return self._then(FlatMap(function))

    def interleave(
        self, function: Callable[[Any], Iterable[Any]], cycle_length: int = 2, block_length: int = 1
    ) -> DataLoader:
        """What the function gives for ``cycle_length`` elements at a time, in turns of ``block_length``."""
        check_callable("interleave", function)
        return self._then(
            Interleave(function, least("cycle_length", cycle_length), least("block_length", block_length))
        )

    def batch(
        self,
        batch_size: int,
        drop_last: bool = False,
        *,
        ragged: Ragged = "list",
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader:
        """Elements gathered ``batch_size`` at a time.

        Those of a loader that was given a ``batch_size`` are batches already: gathering those is worth a warning.

        Example:
            >>> import shoal
            >>> [len(batch) for batch in shoal.DataLoader(range(300)).shuffle(100).batch(128)]
            [128, 128, 44]
        """
        check_batch(drop_last, ragged, collate_fn)
        return self._gathered(Batch(least("batch_size", batch_size), drop_last, ragged, collate_fn))

    def _gathered(self, step: Batch | Bucket) -> DataLoader:
        """Batches made by a verb: of samples, unless the loader was told to make batches by itself."""
        spec = self._spec
        if not spec.is_of_batches:
            return self._then(step)
        if spec.is_size_given:
            warnings.warn(
                f"this loader makes batches of {spec.options.batch_size} samples itself, and a verb makes batches of "
                "those; for batches of samples leave batch_size= out, for batches of batches call batch() twice",
                ShoalWarning,
                stacklevel=3,
            )
            return self._then(step)
        # What was said about the batches that the loader would have made is about these.
        told = spec.options
        ragged = told.ragged if step.ragged == "list" else step.ragged
        drop_last, collate = step.drop_last or told.drop_last, step.collate or spec.collate_fn
        unbatched = replace(spec, options=told.with_options(batch_size=None, drop_last=False), collate_fn=None)
        return self._with(unbatched.then(replace(step, drop_last=drop_last, ragged=ragged, collate=collate)))

    def padded_batch(self, batch_size: int, drop_last: bool = False) -> DataLoader:
        """Batches in which arrays of different shapes are padded with zeros to the largest."""
        return self.batch(batch_size, drop_last, ragged="pad")

    def bucket(
        self,
        boundaries: Sequence[int],
        batch_sizes: Sequence[int] | int,
        length_of: Callable[[Any], int],
        *,
        drop_last: bool = False,
        ragged: Ragged = "pad",
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader:
        """Batches of elements of about one length: those below the first boundary, those from there to the next...

        ``batch_sizes`` is one number, or one for each bucket.
        """
        sizes = [batch_sizes] * (len(boundaries) + 1) if isinstance(batch_sizes, int) else list(batch_sizes)
        check_buckets(boundaries, [least("batch_sizes", size) for size in sizes])
        check_callable("length_of", length_of)
        check_batch(drop_last, ragged, collate_fn)
        return self._gathered(Bucket(tuple(boundaries), tuple(sizes), length_of, drop_last, ragged, collate_fn))

    def pack(
        self,
        length: int,
        field: str,
        how: Literal["first_fit", "concat"] = "first_fit",
        *,
        open_rows: int = 64,
        pad: int = 0,
    ) -> DataLoader:
        """Token sequences put together into rows of ``length`` tokens.

        ``first_fit`` keeps samples whole, ``concat`` cuts them where a row is full. A row has the tokens under
        ``field``, ``segment_ids`` (1 for the first sample, 0 for padding) and ``position_ids``.
        """
        check_choice("how", how, ("first_fit", "concat"))
        check_choice("field", type(field), (str,))
        return self._then(Pack(least("length", length), field, how, least("open_rows", open_rows), pad))

    def unbatch(self) -> DataLoader:
        """Batches taken apart into samples."""
        return self._then(Unbatch())

    def window(self, size: int, shift: int | None = None, *, drop_last: bool = False) -> DataLoader:
        """Lists of ``size`` neighbours, each beginning ``shift`` after the one before."""
        check_choice("drop_last", drop_last, (True, False))
        return self._then(Window(least("size", size), least("shift", size if shift is None else shift), drop_last))

    def shuffle(self, buffer_size: int | None = None, seed: int | None = None) -> DataLoader:
        """Samples in a random order, a new one each epoch.

        With an index it is exact, and at least ``buffer_size`` samples are mixed at a time; None takes what
        ``memory_budget`` allows, which is often all. A line without positions, or one whose samples were changed in
        number before, goes through a buffer of that many, and needs the number. As the first verb it is about samples
        also where the loader makes batches by itself; after another it is about those batches.
        """
        chosen = self._spec.options.seed if seed is None else seed
        size = None if buffer_size is None else least("buffer_size", buffer_size)
        return self._then(Shuffle(size, least("seed", chosen, 0)))

    def take(self, count: int) -> DataLoader:
        """The first ``count`` elements of each epoch."""
        self._tell_if_repeated("take")
        return self._then(Take(least("count", count, 0)))

    def skip(self, count: int) -> DataLoader:
        """Each epoch without its first ``count`` elements."""
        self._tell_if_repeated("skip")
        return self._then(Skip(least("count", count, 0)))

    def _tell_if_repeated(self, verb: str) -> None:
        if self._spec.epochs != 1:
            warnings.warn(
                f"{verb} is about each epoch, and this loader was told to repeat them before; write {verb} before "
                "repeat, or say with steps_per_epoch= where epochs end",
                ShoalWarning,
                stacklevel=3,
            )

    def take_while(self, function: Callable[[Any], Any]) -> DataLoader:
        """Elements until the function is first false."""
        check_callable("take_while", function)
        return self._then(TakeWhile(function))

    def enumerate(self, start: int = 0) -> DataLoader:
        """Pairs of a number and an element."""
        return self._then(Enumerate(least("start", start, -sys.maxsize)))

    def zip(self, *others: Any) -> DataLoader:
        """Tuples of an element of this and one of each other; the shortest ends it."""
        # What this loader was told about batches, order and epochs is its own, and part of what is zipped.
        options = self._spec.options.with_options(batch_size=None, drop_last=False, shuffle=False, steps_per_epoch=None)
        made = PipelineSpec(Zipped([self, *others]), (), options, self._spec.threading, timeout=self._spec.timeout)
        return self._with(made)

    def repeat(self, count: int | None = None) -> DataLoader:
        """``count`` epochs in one iteration, or no end of them. Each has its own order; no batch is of two epochs."""
        return self._with(replace(self._spec, epochs=None if count is None else least("count", count)))

    def cache(self) -> DataLoader:
        """Samples kept in memory after they were first read and mapped, for later epochs.

        Raises OptionError after a batch, or a filter: cache first.
        """
        maps = tuple(step for step in self._spec.steps if isinstance(step, Map))
        if self._spec.options.batch_size is not None or len(maps) < len(self._spec.steps):
            raise OptionError("only samples are kept", expected="cache() before batch() and filter()")
        return self._with(
            replace(self._spec, data=CachedData(self._spec.data, maps, self._spec.options.seed), steps=())
        )

    def prefetch(self, buffer_size: int | Auto = "auto") -> DataLoader:
        """How many batches are made ready ahead."""
        return self.with_options(prefetch=buffer_size)

    def with_options(self, **changes: Any) -> DataLoader:
        """The same loader with other settings; see LoaderOptions."""
        given = self._spec.is_size_given or "batch_size" in changes
        return self._with(replace(self._spec, options=self._spec.options.with_options(**changes), is_size_given=given))

    def options(self, options: ThreadingOptions | LoaderOptions | None = None, **changes: Any) -> DataLoader:
        """The same with threading options, with other loader options, or with single settings of either."""
        if isinstance(options, LoaderOptions):
            return self._with(replace(self._spec, options=options.with_options(**changes), is_size_given=True))
        if options is not None and not isinstance(options, ThreadingOptions):
            raise OptionError("these are no options", expected="ThreadingOptions or LoaderOptions", found=repr(options))
        names = ThreadingOptions.__dataclass_fields__
        threading = replace(options or self._spec.threading, **{k: v for k, v in changes.items() if k in names})
        rest = {name: value for name, value in changes.items() if name not in names}
        return self._with(replace(self._spec, threading=threading)).with_options(**rest)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise OptionError unless the value is one of these."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        raise OptionError(
            f"{name} is not one of its values", expected=" or ".join(map(repr, choices)), found=repr(value)
        )


def check_batch(drop_last: object, ragged: object, collate_fn: object) -> None:
    """Raise OptionError for what makes no batch."""
    check_choice("drop_last", drop_last, (True, False))
    check_choice("ragged", ragged, ("list", "pad", "error"))
    if collate_fn is not None:
        check_callable("collate_fn", collate_fn)


def least(name: str, value: Any, bound: int = 1) -> int:
    """The number, if it is one and not below the bound. Raises OptionError."""
    number = whole_number(value)
    if number is None or number < bound:
        raise OptionError(f"{name} is out of range", expected=f"a whole number of at least {bound}", found=repr(value))
    return number
