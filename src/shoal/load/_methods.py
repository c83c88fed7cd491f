"""`PipelineMethods`, the methods of a loader that add a stage or change an option."""

from __future__ import annotations

import abc
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import OptionError, ShoalWarning

from ._columns import Ragged
from ._options import Auto, LoaderOptions, ThreadingOptions, check_choice, check_int
from ._pipeline import PipelineSpec
from ._sources import CachedData
from ._stages import (
    Batch,
    Bucket,
    Enumerate,
    Filter,
    FlatMap,
    Interleave,
    Map,
    Pack,
    Shuffle,
    Skip,
    Stage,
    Take,
    TakeWhile,
    Unbatch,
    Window,
    WorkerKind,
    check_buckets,
    check_callable,
)

if TYPE_CHECKING:
    from ._loader import DataLoader

__all__ = ["PipelineMethods"]


class PipelineMethods(abc.ABC):
    """Methods that return a new loader with one more stage; stages apply in the order of the calls.

    A method reads nothing. Elements are samples until they are batched, and batches from then on. A loader with a given
    ``batch_size`` starts with batches, one without it is batched by the first method that makes batches.
    """

    _spec: PipelineSpec

    @abc.abstractmethod
    def _with(self, spec: PipelineSpec) -> DataLoader: ...

    def _then(self, stage: Stage) -> DataLoader:
        return self._with(self._spec.then(stage))

    def map(
        self,
        function: Callable[..., Any],
        num_parallel_calls: int | Auto | None = "auto",
        *,
        workers: WorkerKind = "thread",
    ) -> DataLoader:
        """Apply a function to each element, on worker threads, or with ``workers="process"`` if it holds the GIL.

        A function with a parameter ``rng`` receives a random generator for each sample, the same in every run with
        this seed. A number for ``num_parallel_calls`` sets the number of workers.
        """
        check_callable("map", function)
        check_choice("workers", workers, ("thread", "process"))
        loader = self._then(Map(function, workers))
        if num_parallel_calls is None or num_parallel_calls == "auto":
            return loader
        return loader.with_options(num_workers=check_int("num_parallel_calls", num_parallel_calls, 0))

    def filter(self, function: Callable[[Any], Any]) -> DataLoader:
        """Keep only elements for which the function is true."""
        check_callable("filter", function)
        return self._then(Filter(function))

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> DataLoader:
        """Replace each element by all elements that the function returns for it."""
        check_callable("flat_map", function)
        return self._then(FlatMap(function))

    def interleave(
        self, function: Callable[[Any], Iterable[Any]], cycle_length: int = 2, block_length: int = 1
    ) -> DataLoader:
        """Like ``flat_map``, for ``cycle_length`` elements at a time, in turns of ``block_length``."""
        check_callable("interleave", function)
        return self._then(
            Interleave(function, check_int("cycle_length", cycle_length), check_int("block_length", block_length))
        )

    def batch(
        self,
        batch_size: int,
        drop_last: bool = False,
        *,
        ragged: Ragged = "list",
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader:
        """Combine every ``batch_size`` elements into a batch.

        Warns if the loader was given a ``batch_size``: its elements are batches already.

        Examples:
            >>> import shoal
            >>> [len(batch) for batch in shoal.DataLoader(range(300)).shuffle(100).batch(128)]
            [128, 128, 44]
        """
        check_batch(drop_last, ragged, collate_fn)
        return self._then_batch(Batch(check_int("batch_size", batch_size), drop_last, ragged, collate_fn))

    def _then_batch(self, stage: Batch | Bucket) -> DataLoader:
        """Add a stage that makes batches: of samples, unless the user gave the loader a batch size."""
        spec = self._spec
        if not spec.is_of_batches:
            return self._then(stage)
        if spec.is_size_given:
            warnings.warn(
                f"this loader makes batches of {spec.options.batch_size} samples itself, and a verb makes batches of "
                "those; for batches of samples leave batch_size= out, for batches of batches call batch() twice",
                ShoalWarning,
                stacklevel=3,
            )
            return self._then(stage)
        # Options for the loader's own batches apply to these.
        options = spec.options
        ragged = options.ragged if stage.ragged == "list" else stage.ragged
        drop_last, collate = stage.drop_last or options.drop_last, stage.collate or spec.collate_fn
        unbatched = replace(spec, options=options.with_options(batch_size=None, drop_last=False), collate_fn=None)
        return self._with(unbatched.then(replace(stage, drop_last=drop_last, ragged=ragged, collate=collate)))

    def padded_batch(self, batch_size: int, drop_last: bool = False) -> DataLoader:
        """Like ``batch``, with arrays of different shapes padded with zeros to the largest."""
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
        """Batch elements of similar length: those below the first boundary, those from there to the second, ...

        ``batch_sizes`` is one number, or one for each bucket.
        """
        sizes = [batch_sizes] * (len(boundaries) + 1) if isinstance(batch_sizes, int) else list(batch_sizes)
        check_buckets(boundaries, [check_int("batch_sizes", size) for size in sizes])
        check_callable("length_of", length_of)
        check_batch(drop_last, ragged, collate_fn)
        return self._then_batch(Bucket(tuple(boundaries), tuple(sizes), length_of, drop_last, ragged, collate_fn))

    def pack(
        self,
        length: int,
        field: str,
        how: Literal["first_fit", "concat"] = "first_fit",
        *,
        open_rows: int = 64,
        pad: int = 0,
    ) -> DataLoader:
        """Pack token sequences into rows of ``length`` tokens.

        ``first_fit`` never splits samples, ``concat`` splits them at the end of a row. A row has the tokens under
        ``field``, ``segment_ids`` (1 for the first sample, 0 for padding) and ``position_ids``.
        """
        check_choice("how", how, ("first_fit", "concat"))
        check_choice("field", type(field), (str,))
        return self._then(Pack(check_int("length", length), field, how, check_int("open_rows", open_rows), pad))

    def unbatch(self) -> DataLoader:
        """Split batches into samples."""
        return self._then(Unbatch())

    def window(self, size: int, shift: int | None = None, *, drop_last: bool = False) -> DataLoader:
        """Make lists of ``size`` consecutive elements, each starting ``shift`` after the one before."""
        check_choice("drop_last", drop_last, (True, False))
        return self._then(
            Window(check_int("size", size), check_int("shift", size if shift is None else shift), drop_last)
        )

    def shuffle(self, buffer_size: int | None = None, seed: int | None = None) -> DataLoader:
        """Shuffle samples, in a new order each epoch.

        With an index the order is exact, and at least ``buffer_size`` samples are mixed at a time; None uses what
        ``memory_budget`` allows, which is often all. Streams, and samples after a filter or ``flat_map``, go through a
        buffer of ``buffer_size``, which is then required. As the first method, ``shuffle`` applies to samples even if
        the loader makes batches itself; after another method it applies to those batches.
        """
        size = None if buffer_size is None else check_int("buffer_size", buffer_size)
        return self._then(Shuffle(size, check_int("seed", self._spec.options.seed if seed is None else seed, 0)))

    def take(self, count: int) -> DataLoader:
        """Keep the first ``count`` elements of each epoch."""
        self._warn_if_repeated("take")
        return self._then(Take(check_int("count", count, 0)))

    def skip(self, count: int) -> DataLoader:
        """Leave out the first ``count`` elements of each epoch."""
        self._warn_if_repeated("skip")
        return self._then(Skip(check_int("count", count, 0)))

    def _warn_if_repeated(self, method: str) -> None:
        if self._spec.epochs != 1:
            warnings.warn(
                f"{method} is about each epoch, and this loader was told to repeat them before; write {method} before "
                "repeat, or say with steps_per_epoch= where epochs end",
                ShoalWarning,
                stacklevel=3,
            )

    def take_while(self, function: Callable[[Any], Any]) -> DataLoader:
        """End each epoch at the first element for which the function is false."""
        check_callable("take_while", function)
        return self._then(TakeWhile(function))

    def enumerate(self, start: int = 0) -> DataLoader:
        """Replace each element by a pair of its number and itself."""
        return self._then(Enumerate(check_int("start", start, -sys.maxsize)))

    def repeat(self, count: int | None = None) -> DataLoader:
        """Iterate over ``count`` epochs, or without end. Each has its own order; no batch is from two epochs."""
        return self._with(replace(self._spec, epochs=None if count is None else check_int("count", count)))

    def cache(self) -> DataLoader:
        """Keep samples in memory after they were first read and mapped, for later epochs.

        Raises OptionError after a batch or a filter: call ``cache`` first.
        """
        maps = tuple(stage for stage in self._spec.steps if isinstance(stage, Map))
        if self._spec.options.batch_size is not None or len(maps) < len(self._spec.steps):
            raise OptionError("only samples are kept", expected="cache() before batch() and filter()")
        return self._with(
            replace(self._spec, data=CachedData(self._spec.data, maps, self._spec.options.seed), steps=())
        )

    def prefetch(self, buffer_size: int | Auto = "auto") -> DataLoader:
        """Set how many batches are prefetched."""
        return self.with_options(prefetch=buffer_size)

    def with_options(self, **changes: Any) -> DataLoader:
        """Return the same loader with some options changed; see LoaderOptions."""
        given = self._spec.is_size_given or "batch_size" in changes
        return self._with(replace(self._spec, options=self._spec.options.with_options(**changes), is_size_given=given))

    def options(self, options: ThreadingOptions | LoaderOptions | None = None, **changes: Any) -> DataLoader:
        """Return the same loader with other threading options or loader options, or single ones of either."""
        if isinstance(options, LoaderOptions):
            return self._with(replace(self._spec, options=options.with_options(**changes), is_size_given=True))
        if options is not None and not isinstance(options, ThreadingOptions):
            raise OptionError("these are no options", expected="ThreadingOptions or LoaderOptions", found=repr(options))
        names = ThreadingOptions.__dataclass_fields__
        threading = replace(options or self._spec.threading, **{k: v for k, v in changes.items() if k in names})
        rest = {name: value for name, value in changes.items() if name not in names}
        return self._with(replace(self._spec, threading=threading)).with_options(**rest)


def check_batch(drop_last: object, ragged: object, collate_fn: object) -> None:
    """Raise OptionError for wrong options of batches."""
    check_choice("drop_last", drop_last, (True, False))
    check_choice("ragged", ragged, ("list", "pad", "error"))
    if collate_fn is not None:
        check_callable("collate_fn", collate_fn)
