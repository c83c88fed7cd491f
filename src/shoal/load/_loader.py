"""`DataLoader` and its methods."""

from __future__ import annotations

import abc
import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from shoal.errors import LoaderTimeoutError, OptionError, ShoalWarning
from shoal.order import Order, Split

from ._autotune import Tuner
from ._columns import Ragged
from ._cursor import Cursor, following, place_after, place_from, place_of_epoch, replaying, restarted, resumed
from ._executor import Run, Runs
from ._options import Auto, LoaderOptions, ThreadingOptions, whole_number
from ._pipeline import BoundPipeline, PipelineSpec, build, over_fetch_of
from ._sources import CachedData, IndexedSource, SourceDescription, SourceLayout, StreamSource, describe_source
from ._stages import (
    Batch,
    Bucket,
    Element,
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
from ._stats import LoaderStats, Meter

__all__ = ["DataLoader"]

Int64 = npt.NDArray[np.int64]


# ---------------------------------------------------------------------------------------------- the verbs of a pipeline


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


# ----------------------------------------------------------------------------------------- several loaders side by side


class Zipped:
    """Data whose samples are tuples, one part of each: by number where all have numbers, else as a line."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __load__(self) -> SourceDescription:
        found = [describe_source(part) for part in self._parts]
        numbered = [each.source for each in found if not isinstance(each.source, StreamSource) and not each.steps]
        if len(numbered) == len(found):
            return SourceDescription(_ZippedSource(numbered))
        return SourceDescription(
            _side_by_side([_line(part, each) for part, each in zip(self._parts, found, strict=True)])
        )


def _line(part: Any, described: SourceDescription) -> StreamSource:
    """One part as a line of its elements, whole: ranks share out what the lines give together."""
    if isinstance(described.source, StreamSource) and not described.steps:
        return described.source
    loader = part if isinstance(part, DataLoader) else DataLoader(part, batch_size=None)
    return loader.as_line()


def _side_by_side(lines: list[StreamSource]) -> StreamSource:
    def set_epoch(epoch: int) -> None:
        for line in lines:
            if line.set_epoch is not None:
                line.set_epoch(epoch)

    def begin() -> Iterator[Any]:
        return zip(*(line.begin() for line in lines), strict=False)  # the shortest ends it, as in Python

    def close() -> None:
        for line in lines:
            if line.close is not None:
                line.close()

    name = "zip of " + ", ".join(line.name for line in lines)
    return StreamSource(begin, name, any(line.once for line in lines), set_epoch, close)


class _ZippedSource:
    """Numbered samples of several sources as tuples."""

    def __init__(self, sources: list[IndexedSource]) -> None:
        self._sources = sources

    def __len__(self) -> int:
        return min(map(len, self._sources))

    @property
    def fingerprint(self) -> str:
        """That of all of them."""
        return hashlib.sha256(" ".join(source.fingerprint for source in self._sources).encode()).hexdigest()[:16]

    def read(self, numbers: Int64) -> list[Any]:
        """The same number of each."""
        return list(zip(*(source.read(numbers) for source in self._sources), strict=True))

    def read_batch(self, numbers: Int64, ragged: Ragged) -> Any | None:
        """Batches of all, where all can be gathered."""
        parts = [source.read_batch(numbers, ragged) for source in self._sources]
        return None if any(part is None for part in parts) else tuple(parts)

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """Where the first part is stored."""
        return self._sources[0].locate(number)

    def geometry(self) -> SourceLayout:
        """How the first part lies."""
        found = self._sources[0].geometry()
        return SourceLayout(np.minimum(found.shard_starts, len(self)), found.mean_bytes, found.local)


# ----------------------------------------------------------------------------------------------------------- DataLoader


class DataLoader(Verbs):
    """Batches of a dataset.

    ``dataset`` is a :class:`shoal.Dataset`, anything with a length and positions, or any iterable. Options are given as
    a :class:`LoaderOptions`, or one by one by their names. Iterating gives one epoch; iterating again the next one,
    which has another order if it is shuffled. ``sampler`` gives positions in an order of its own, ``batch_sampler``
    lists of them; ``collate_fn`` makes a batch of a list of samples; ``timeout`` bounds the wait for a batch.

    A loader that was stopped goes on from ``state_dict()``: on as many ranks as there are then, with other workers and
    another prefetch, the samples that follow are the same.

    Example:
        >>> loader = DataLoader(range(10), batch_size=4, shuffle=True, seed=1)
        >>> len(loader), sorted(sample for batch in loader for sample in batch)
        (3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
        >>> batches = iter(loader)
        >>> first = next(batches)
        >>> state = loader.state_dict()
        >>> again = DataLoader(range(10), batch_size=4, shuffle=True, seed=1)
        >>> again.load_state_dict(state)
        >>> list(again) == list(batches)
        True
    """

    def __init__(
        self,
        dataset: Any,
        options: LoaderOptions | None = None,
        *,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Iterable[int]] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        timeout: float | None = None,
        **changes: Any,
    ) -> None:
        if options is not None and not isinstance(options, LoaderOptions):
            raise OptionError("these are no loader options", expected="LoaderOptions", found=repr(options))
        chosen = (options or LoaderOptions()).with_options(**changes)
        _check_samplers(sampler, batch_sampler, chosen)
        if collate_fn is not None:
            check_callable("collate_fn", collate_fn)
        self._begin(
            PipelineSpec(
                dataset,
                (),
                chosen,
                sampler=sampler,
                batch_sampler=batch_sampler,
                collate_fn=collate_fn,
                timeout=_checked_timeout(timeout),
                is_size_given=options is not None or "batch_size" in changes or batch_sampler is not None,
            )
        )

    def _begin(self, spec: PipelineSpec) -> None:
        self._spec = spec
        self._meter = Meter()
        self._listeners: list[Callable[[LoaderStats], None]] = []
        self._newest: object | None = None
        """The iteration whose place is the loader's."""
        self._place: Cursor | None = None
        self._is_loaded = False
        """Whether the place is to be begun at, though it is in the middle of an epoch."""
        self._first_epoch = 0
        """The epoch that the newest iteration began with."""
        self._own: Iterator[Any] | None = None
        options = spec.options
        workers = spec.threading.workers(options.num_workers)
        most = spec.threading.max_inter_op_parallelism
        self._tuner = Tuner(
            (None if options.auto_tune else min(4, os.cpu_count() or 1)) if workers == "auto" else workers,
            None if options.prefetch == "auto" else options.prefetch,
            most,
        )
        self._runs = Runs(self, self._meter, self._tuner)

    def _with(self, spec: PipelineSpec) -> DataLoader:
        made = object.__new__(type(self))
        made._begin(spec)
        return made

    # ------------------------------------------------------------------------------------------------- what it is

    @property
    def settings(self) -> LoaderOptions:
        """The options it was given."""
        return self._spec.options

    @functools.cached_property
    def _built(self) -> BoundPipeline:
        return build(self._spec)

    @property
    def dataset(self) -> Any:
        """What it reads."""
        return self._spec.data

    @property
    def order(self) -> Order:
        """The order samples come in. Raises TypeError for a line that has none."""
        if self._built.order is None:
            raise TypeError("a line without positions has no order")
        return self._built.order

    @property
    def split(self) -> Split:
        """This process among those that share the data."""
        return self._built.split

    def __len__(self) -> int:
        """Batches in the epoch that is under way or comes next. Raises TypeError where that is unknown."""
        built = self._built
        epochs = self._spec.epochs
        if epochs is None:
            raise TypeError("a loader that repeats without end has no length")
        if self._spec.options.steps_per_epoch is not None:
            return self._spec.options.steps_per_epoch * epochs
        if built.laid.sampled and built.skips_groups:
            return built.sampler_steps * epochs
        if built.laid.elements(0) is None:
            why = built.laid.why_no_length
            raise TypeError(f"the number of elements is not known before they are made: {why}; give steps_per_epoch=")
        place = place_of_epoch(built, 0) if self._place is None else restarted(built, self._place)
        plan, total = place.plan, 0
        for _ in range(epochs):
            assert plan is not None  # noqa: S101 - what has a length has a plan
            total += built.laid.elements(plan.steps) or 0
            plan = following(built, plan)
        return total

    def __repr__(self) -> str:
        """What it reads, the options that are not as they are by default, and its verbs."""
        told = "".join(f", {name}={value!r}" for name, value in self._spec.options.said().items())
        verbs = "".join(f".{type(step).__name__.lower()}(...)" for step in self._spec.steps)
        return f"DataLoader({self._spec.data!r}{told}){verbs}"

    def __load__(self) -> SourceDescription:
        """As data of another loader: its samples by number while they are samples, else the line of its elements."""
        spec = self._spec
        plain = spec.options.batch_size is None and spec.sampler is None and spec.batch_sampler is None
        below = describe_source(spec.data)
        plain = plain and not spec.options.shuffle and spec.options.steps_per_epoch is None and spec.epochs == 1
        if plain and not isinstance(below.source, StreamSource):
            return SourceDescription(below.source, (*below.steps, *spec.steps), below.collate)
        return SourceDescription(self.as_line())

    def as_line(self) -> StreamSource:
        """Its elements as a line that another loader reads, and shares out among ranks.

        Of a loader of its own, so that this one stays where it is.
        """
        whole = self.with_options(rank=0, world_size=1, replication=1)
        name = f"DataLoader({type(self._spec.data).__name__})"
        return StreamSource(lambda: iter(whole), name, set_epoch=whole.set_epoch, close=whole.close)

    # ------------------------------------------------------------------------------------------------- iterating

    def __iter__(self) -> Iterator[Any]:
        """One epoch, from its beginning, or from where a loaded state says.

        Iterations are independent of each other, each with threads of its own; ``state_dict`` tells of the newest.
        """
        return self._epochs()

    def __next__(self) -> Any:
        """The next batch of an iteration of the loader's own, which ends with its epoch."""
        if self._own is None:
            self._own = iter(self)
        try:
            return next(self._own)
        except BaseException:
            self._own = None
            raise

    def _epochs(self) -> Generator[Any, None, None]:
        me = self._newest = object()
        place, epochs = self._resuming(), self._spec.epochs
        if not self._is_loaded:
            self._first_epoch = place.epoch
        done = 0 if epochs is None else (place.epoch - self._first_epoch) % epochs
        while epochs is None or done < epochs:
            given, place = yield from self._one_epoch(me, place)
            done += 1
            if epochs is None and not given:
                return  # without end there would be nothing for ever
            if not given and place.epoch > 1:
                self._tell_what_is_used_up()

    def _tell_what_is_used_up(self) -> None:
        source = self._built.laid.source
        if isinstance(source, StreamSource) and source.once:
            told = f"{source.name} can be read once, and nothing was left of it for this epoch"
            warnings.warn(f"{told}; give the function that makes it instead", ShoalWarning, stacklevel=3)

    def _one_epoch(self, me: object, place: Cursor) -> Generator[Any, None, tuple[int, Cursor]]:
        """The batches of an epoch; returns how many there were and where the next epoch begins."""
        run: Run | None = None
        given = 0
        if me is self._newest:
            self._place = place
        self._meter.asked()
        self._tuner.resume()
        try:
            run = self._runs.at(self._built, place)
            elements = run.epoch(place.epoch, place.count)
            while True:
                if not run.is_usable or (run.built is not self._built and me is self._newest):
                    # Closed, or forked, or under other settings: go on from here with new work.
                    moved = resumed(run.built, self._built, place)
                    if moved is None:
                        break
                    self._runs.end(run)
                    place, run = moved, self._runs.start(self._built, moved)
                    elements = run.epoch(place.epoch, place.count)
                element = next(elements, None)
                if element is None:
                    break
                given, place = given + 1, place.after(element)
                self._delivered(me, place, element)
                waited = self._meter.last_wait
                yield element.value
                del element  # what the caller lets go of is gone
                self._taken(run, waited)
        except BaseException as error:  # the caller left, or something failed: nothing goes on behind its back
            if run is not None:
                self._runs.end(run, *((0.5,) if isinstance(error, (LoaderTimeoutError, KeyboardInterrupt)) else ()))
            raise
        finally:
            self._meter.paused()
        return given, self._after(me, run, place)

    def _delivered(self, me: object, place: Cursor, element: Element) -> None:
        if me is self._newest:
            self._place, self._is_loaded = place, False
        self._meter.count("repeated", element.repeated)
        self._meter.given(element.samples, element.size)

    def _taken(self, run: Run, waited: float) -> None:
        """The caller is back for more."""
        self._meter.asked()
        self._tuner.step(waited)
        run.tune()
        if self._listeners:
            stats = self.stats()
            for listener in self._listeners:
                listener(stats)

    def _after(self, me: object, run: Run, place: Cursor) -> Cursor:
        """Where the next epoch begins; work that stands there is kept for it."""
        after: Cursor | None = place_after(run.built, place)
        if run.built is not self._built:
            after = resumed(run.built, self._built, place_after(run.built, place))
        assert after is not None  # noqa: S101 - a place where nothing was delivered is not at an end
        if me is self._newest:
            self._place, self._is_loaded = after, False
        self._runs.keep(run, after)
        return after

    def _resuming(self) -> Cursor:
        """Where the next iteration begins: the start of the next epoch, or where a loaded state says."""
        place = self._place
        if place is None:
            return place_of_epoch(self._built, 0)
        if self._is_loaded and place.mark is not None:  # of a loader that was copied in the middle of an epoch
            return resumed(self._built, self._built, place) or place_after(self._built, place)
        if self._is_loaded or place.is_fresh:
            return place
        return restarted(self._built, place)  # an epoch that was left before its end is begun anew

    def close(self) -> None:
        """Stop all threads and processes now; iterating on starts new ones."""
        own, self._own = self._own, None
        if isinstance(own, Generator):
            own.close()
        self._runs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------- where it stands

    @property
    def epoch(self) -> int:
        """The epoch that is under way or comes next."""
        return 0 if self._place is None else self._place.epoch

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be this epoch, from its beginning."""
        least("epoch", epoch, 0)
        place = self._place
        if place is None or place.epoch != epoch or not (place.is_fresh or self._is_loaded):
            self._newest, self._is_loaded = None, False
            self._place, self._first_epoch = place_of_epoch(self._built, epoch), epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the caller is: what was delivered, not what was made ahead. Plain values, about 300 bytes as JSON.

        The same on every rank, except after a filter and its like, where the states of all ranks are put together with
        ``State.merge``.
        """
        place = place_of_epoch(self._built, 0) if self._place is None else self._place
        first = self._first_epoch % (self._spec.epochs or 1)
        return {**place.to_dict(self._built), **({"first_epoch": first} if first else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on after what was delivered when the state was taken.

        Warns when that means to make again, and pass over, what was delivered of the epoch already. Raises
        LoaderStateError when it was taken of other data, or in another order.
        """
        self._place = place_from(self._built, state)
        self._newest, self._is_loaded, self._first_epoch = None, True, state.get("first_epoch", 0)
        if self._place.replayed and not self._built.skips_groups:
            warnings.warn(replaying(self._built, self._place), ShoalWarning, stacklevel=2)

    def set_batch_size(self, batch_size: int) -> None:
        """Have batches of another size from the next one on; the samples come in the same order."""
        if self._spec.options.batch_size is None:
            raise OptionError("this loader has no batch size of its own", hint="give batch_size= to DataLoader")
        before = self._built
        options = self._spec.options.with_options(batch_size=batch_size)
        self._spec = replace(self._spec, options=options, is_size_given=True)
        del self._built  # worked out anew when it is asked for
        if self._place is not None and (self._place.is_fresh or self._is_loaded):
            self._place = resumed(before, self._built, self._place)

    # ------------------------------------------------------------------------------------------------- what it does

    def stats(self) -> LoaderStats:
        """Counts and times so far, and what the loader is bound by."""
        self._runs.check_process()
        built = self._built
        order = built.order
        return self._meter.stats(
            epoch=self.epoch,
            workers=self._tuner.workers,
            prefetch=self._tuner.prefetch,
            ready=self._runs.ready,
            over_fetch=1.0 if order is None else over_fetch_of(order, built.split),
            shuffle_quality=built.shuffle_quality,
            tuning=self._tuner.steps(),
        )

    @property
    def generator_signature(self) -> Callable[[], Iterator[Any]]:
        """What ``tf.data.Dataset.from_generator`` takes: each call begins the next iteration; see ``shoal.tf``."""
        return self.__iter__

    def on_batch(self, listener: Callable[[LoaderStats], None]) -> None:
        """Have a function called with the statistics after each batch; see ``shoal.load.prometheus_listener``."""
        self._listeners.append(listener)

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self._spec, "place": self._place, "first_epoch": self._first_epoch}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """The same pipeline, at the same place, with no work under way."""
        self._begin(kept["spec"])
        self._place, self._first_epoch = kept["place"], kept["first_epoch"]
        self._is_loaded = self._place is not None


def _check_samplers(sampler: object, batch_sampler: object, options: LoaderOptions) -> None:
    if sampler is not None and batch_sampler is not None:
        raise OptionError("positions come from one place", expected="sampler or batch_sampler", found="both")
    if (sampler is not None or batch_sampler is not None) and options.shuffle:
        raise OptionError("a sampler has its own order", expected="shuffle=False", found="shuffle=True")
    if batch_sampler is not None and (options.drop_last or options.batch_size is None):
        found = "drop_last=True" if options.drop_last else "batch_size=None"
        raise OptionError("a batch sampler makes the batches", expected="a sampler, or no such option", found=found)
    for given in (sampler, batch_sampler):
        if given is not None and not isinstance(given, Iterable):
            raise OptionError("a sampler gives positions", expected="an iterable", found=repr(given))


def _checked_timeout(timeout: Any) -> float | None:
    """Seconds; None, or 0 as in PyTorch, for no bound."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout < 0):
        raise OptionError("timeout is out of range", expected="seconds, or None", found=repr(timeout))
    return timeout or None
