"""`DataLoader`: iterate over batches, save and resume, statistics."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from shoal.errors import LoaderStateError, LoaderTimeoutError, OptionError, ShoalError, ShoalWarning
from shoal.order._epoch_plan import Split
from shoal.order._orders import Order
from shoal.order._state import State

from ._autotune import Tuner
from ._cursor import (
    Cursor,
    cursor_after,
    cursor_at_epoch,
    cursor_from_state,
    next_plan,
    rebind_cursor,
    replay_warning,
    restart_epoch,
)
from ._executor import EpochRun, RunRegistry
from ._methods import PipelineMethods
from ._options import LoaderOptions, check_int
from ._pipeline import BoundPipeline, PipelineSpec, build, over_fetch_factor
from ._sources import (
    SourceDescription,
    StreamSource,
    SupportsGenerations,
    ZippedSource,
    describe_source,
    zip_streams,
)
from ._stages import check_callable
from ._stats import LoaderStats, Meter

__all__ = ["DataLoader"]

_DEFAULTS = LoaderOptions()


class DataLoader(PipelineMethods):
    """Batches of a dataset.

    ``dataset`` is a :class:`shoal.Dataset`, anything with a length and indices, or any iterable. Options are a
    :class:`LoaderOptions`, or keywords with the names of its fields. Iterating yields one epoch; iterating again yields
    the next one, in another order if shuffled. ``sampler`` yields indices, ``batch_sampler`` lists of indices; ranks
    split what they draw, so all ranks must draw the same (unless it is a ``DistributedSampler``, which splits itself);
    ``collate_fn`` combines a list of samples into a batch; ``timeout`` limits the wait for a batch, in seconds.

    Training resumes exactly from ``state_dict()``: the samples that follow are the same on any number of ranks, with
    any number of workers and any prefetch.

    Examples:
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
        merged = (options or _DEFAULTS).with_options(**changes)
        _check_samplers(sampler, batch_sampler, merged)
        if collate_fn is not None:
            check_callable("collate_fn", collate_fn)
        self._set_up(
            PipelineSpec(
                dataset,
                (),
                merged,
                sampler=sampler,
                batch_sampler=batch_sampler,
                collate_fn=collate_fn,
                timeout=_check_timeout(timeout),
                is_size_given=options is not None or "batch_size" in changes or batch_sampler is not None,
            )
        )

    def _set_up(self, spec: PipelineSpec) -> None:
        self._spec = spec
        self._meter = Meter()
        self._listeners: list[Callable[[LoaderStats], None]] = []
        self._current_iteration: object | None = None
        """The newest iteration, whose position is the loader's."""
        self._cursor: Cursor | None = None
        self._earlier: Any = None
        """The data in the generation of a loaded state, until the epoch of the state ends; None for the data itself."""
        self._is_loaded = False
        """Whether the next iteration starts at the cursor, even in the middle of an epoch."""
        self._first_epoch = 0
        """The epoch that the newest iteration began with."""
        self._own_iterator: Iterator[Any] | None = None
        workers, prefetch = spec.threading.workers(spec.options.num_workers), spec.options.prefetch
        limit = spec.threading.max_inter_op_parallelism
        if not spec.options.auto_tune:
            count = min(4, os.cpu_count() or 1, limit or 4) if workers == "auto" else workers
            workers, prefetch = count, (max(2, 2 * count) if prefetch == "auto" else prefetch)
        self._tuner = Tuner(None if workers == "auto" else workers, None if prefetch == "auto" else prefetch, limit)
        self._runs = RunRegistry(self, self._meter, self._tuner)

    def _with(self, spec: PipelineSpec) -> DataLoader:
        loader = object.__new__(type(self))
        loader._set_up(spec)
        return loader

    def zip(self, *others: Any) -> DataLoader:
        """Make tuples of an element of this loader and one of each other; the shortest ends an epoch."""
        # Options about batches, order and epochs apply to this loader before it is zipped.
        options = self._spec.options.with_options(batch_size=None, drop_last=False, shuffle=False, steps_per_epoch=None)
        data = ZippedData([self, *others])
        return self._with(PipelineSpec(data, (), options, self._spec.threading, timeout=self._spec.timeout))

    @property
    def settings(self) -> LoaderOptions:
        """The loader's options."""
        return self._spec.options

    @functools.cached_property
    def _pipeline(self) -> BoundPipeline:
        return build(self._spec if self._earlier is None else replace(self._spec, data=self._earlier))

    def _leave_earlier(self) -> None:
        """Read the data itself from now on."""
        if self._earlier is not None:
            self._earlier = None
            vars(self).pop("_pipeline", None)  # built again on next access

    @property
    def gives_batches(self) -> bool:
        """Whether iterating yields batches, not samples."""
        return self._spec.gives_batches

    @property
    def dataset(self) -> Any:
        """The data that is read."""
        return self._spec.data

    @property
    def order(self) -> Order:
        """The order of samples. Raises TypeError for a stream, which has none."""
        if self._pipeline.order is None:
            raise TypeError("a line without positions has no order")
        return self._pipeline.order

    @property
    def split(self) -> Split:
        """Rank of this process and number of processes that share the data."""
        return self._pipeline.split

    def __len__(self) -> int:
        """Number of batches in the current or next epoch. Raises TypeError if unknown."""
        pipeline = self._pipeline
        epochs = self._spec.epochs
        if epochs is None:
            raise TypeError("a loader that repeats without end has no length")
        if self._spec.options.steps_per_epoch is not None:
            return self._spec.options.steps_per_epoch * epochs
        if pipeline.skips_groups:
            return pipeline.sampler_steps * epochs
        if pipeline.elements(0) is None:
            reason = pipeline.no_length_reason
            raise TypeError(
                f"the number of elements is not known before they are made: {reason}; give steps_per_epoch="
            )
        cursor = cursor_at_epoch(pipeline, 0) if self._cursor is None else restart_epoch(pipeline, self._cursor)
        plan, total = cursor.plan, 0
        for _ in range(epochs):
            assert plan is not None  # noqa: S101 - pipelines with a length have one
            total += pipeline.elements(plan.steps) or 0
            plan = next_plan(pipeline, plan)
        return total

    def __repr__(self) -> str:
        """Return the data, the options that differ from their defaults, and the stages."""
        options = "".join(f", {name}={value!r}" for name, value in self._spec.options.said().items())
        stages = "".join(f".{type(stage).__name__.lower()}(...)" for stage in self._spec.steps)
        return f"DataLoader({self._spec.data!r}{options}){stages}"

    def __load__(self) -> SourceDescription:
        """Describe the loader as data of another loader: samples by number if possible, else a stream of elements."""
        spec, described = self._spec, describe_source(self._spec.data)
        is_plain = spec.options.batch_size is None and spec.sampler is None and spec.batch_sampler is None
        is_plain = is_plain and not spec.options.shuffle and spec.options.steps_per_epoch is None and spec.epochs == 1
        if is_plain and not isinstance(described.source, StreamSource):
            return SourceDescription(
                described.source, (*described.steps, *spec.steps), described.collate, described.errors
            )
        return SourceDescription(self.as_line())

    def as_line(self) -> StreamSource:
        """Return the elements of all ranks as a stream that another loader reads and divides among ranks.

        It is read by a copy, so the position of this loader does not change.
        """
        copy = self.with_options(rank=0, world_size=1, replication=1)
        name = f"DataLoader({type(self._spec.data).__name__})"
        return StreamSource(lambda: iter(copy), name, set_epoch=copy.set_epoch, close=copy.close)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch, from its beginning or from a loaded state.

        Iterations are independent, each with its own threads; ``state_dict`` is that of the newest.
        """
        return self._epochs()

    def __next__(self) -> Any:
        """Return the next batch of an iteration that the loader keeps, which ends with its epoch."""
        if self._own_iterator is None:
            self._own_iterator = iter(self)
        try:
            return next(self._own_iterator)
        except BaseException:
            self._own_iterator = None
            raise

    def _epochs(self) -> Generator[Any, None, None]:
        self._pipeline.check_equal_steps()
        iteration = self._current_iteration = object()
        cursor, epochs = self._start_cursor(), self._spec.epochs
        if not self._is_loaded:
            self._first_epoch = cursor.epoch
        done = 0 if epochs is None else (cursor.epoch - self._first_epoch) % epochs
        while epochs is None or done < epochs:
            count, cursor = yield from self._one_epoch(iteration, cursor)
            done += 1
            if epochs is None and not count:
                return  # repeating nothing would never end
            if not count and cursor.epoch > 1:
                self._warn_if_exhausted()

    def _warn_if_exhausted(self) -> None:
        source = self._pipeline.source
        if isinstance(source, StreamSource) and source.once:
            problem = f"{source.name} can be read once, and nothing was left of it for this epoch"
            warnings.warn(f"{problem}; give the function that makes it instead", ShoalWarning, stacklevel=3)

    def _one_epoch(self, iteration: object, cursor: Cursor) -> Generator[Any, None, tuple[int, Cursor]]:
        """Yield the batches of an epoch; return their number and where the next epoch begins."""
        run: EpochRun | None = None
        count = 0
        if iteration is self._current_iteration:
            self._cursor = cursor
        self._meter.batch_requested()
        self._tuner.resume()
        try:
            run = self._runs.at(self._pipeline, cursor)
            elements = run.epoch(cursor.epoch, cursor.count)
            while True:
                is_resized = run.pipeline is not self._pipeline and iteration is self._current_iteration
                if is_resized or not run.workers.is_usable:
                    # Closed, forked, or the batch size has changed: continue from here with a new run.
                    moved = rebind_cursor(run.pipeline, self._pipeline, cursor)
                    if moved is None:
                        break
                    self._runs.end(run)
                    cursor, run = moved, self._runs.start(self._pipeline, moved)
                    elements = run.epoch(cursor.epoch, cursor.count)
                run.tune()
                element = next(elements, None)
                if element is None:
                    break
                count, cursor = count + 1, cursor.after(element)
                if iteration is self._current_iteration:
                    self._cursor, self._is_loaded = cursor, False
                self._meter.batch_delivered(element.samples, element.repeated, element.size)
                waited = self._meter.last_wait
                yield element.value
                del element  # only the caller keeps the batch alive
                self._batch_requested(waited)
        except BaseException as error:  # the caller left, or something failed: stop threads now
            if run is not None:
                if isinstance(error, GeneratorExit):
                    run.report_skipped()
                self._runs.end(run, *((0.5,) if isinstance(error, (LoaderTimeoutError, KeyboardInterrupt)) else ()))
            raise
        finally:
            self._meter.pause()
        run.report_skipped()
        return count, self._end_epoch(iteration, run, cursor)

    def _batch_requested(self, waited: float) -> None:
        """Update statistics, tuning and listeners when the caller requests the next batch."""
        self._meter.batch_requested()
        if not self._tuner.is_fixed:
            self._tuner.record_batch(waited)
        if self._listeners:
            stats = self.stats()
            for listener in self._listeners:
                listener(stats)

    def _end_epoch(self, iteration: object, run: EpochRun, cursor: Cursor) -> Cursor:
        """Return where the next epoch begins, and keep the run for it."""
        if self._is_at_end_of_earlier(iteration):
            self._leave_earlier()
            self._cursor, self._is_loaded = cursor_at_epoch(self._pipeline, cursor.epoch + 1), False
            self._runs.end(run)
            return self._cursor
        begin = cursor_after(run.pipeline, cursor)
        is_same = run.pipeline is self._pipeline
        after = begin if is_same else rebind_cursor(run.pipeline, self._pipeline, begin)
        assert after is not None  # noqa: S101 - the beginning of an epoch is not its end
        if iteration is self._current_iteration:
            self._cursor, self._is_loaded = after, False
        self._runs.keep(run, after)
        return after

    def _is_at_end_of_earlier(self, iteration: object) -> bool:
        """Whether the next epoch has the samples that were added since the loaded state was saved.

        Not where epochs are cut from a sequence that goes on through all of them.
        """
        options = self._spec.options
        is_cut = options.steps_per_epoch is not None or options.tail == "carry"
        return self._earlier is not None and iteration is self._current_iteration and not is_cut

    def _start_cursor(self) -> Cursor:
        """Return where the next iteration begins: at the next epoch, or at a loaded state."""
        cursor = self._cursor
        if cursor is None:
            return cursor_at_epoch(self._pipeline, 0)
        if self._is_loaded and cursor.resume_point is not None:  # the loader was pickled in the middle of an epoch
            return rebind_cursor(self._pipeline, self._pipeline, cursor) or cursor_after(self._pipeline, cursor)
        if self._is_loaded or cursor.is_fresh:
            return cursor
        return restart_epoch(self._pipeline, cursor)  # an epoch that was left before its end starts again

    def close(self) -> None:
        """Stop all threads and processes now; iterating again starts new ones."""
        own_iterator, self._own_iterator = self._own_iterator, None
        if isinstance(own_iterator, Generator):
            own_iterator.close()
        self._runs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    @property
    def epoch(self) -> int:
        """The current or next epoch."""
        return 0 if self._cursor is None else self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of this epoch."""
        check_int("epoch", epoch, 0)
        cursor = self._cursor
        if cursor is None or cursor.epoch != epoch or not (cursor.is_fresh or self._is_loaded):
            if cursor is not None and cursor.epoch != epoch:
                self._leave_earlier()
            self._current_iteration, self._is_loaded = None, False
            self._cursor, self._first_epoch = cursor_at_epoch(self._pipeline, epoch), epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last delivered batch: plain values, about 300 bytes as JSON.

        Prefetched batches do not count. The state is the same on every rank, except after a filter and its like: there
        ``State.merge`` combines the states of all ranks.
        """
        cursor = cursor_at_epoch(self._pipeline, 0) if self._cursor is None else self._cursor
        data = self._spec.data if self._earlier is None else self._earlier
        generation = data.generation if isinstance(data, SupportsGenerations) else None
        first = self._first_epoch % (self._spec.epochs or 1)
        added = {"generation": generation, "first_epoch": first}
        return {**cursor.to_dict(self._pipeline), **{name: value for name, value in added.items() if value}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next iteration from a state.

        If samples were added to the dataset since then, or deleted, the epoch ends without that: it is read from the
        generation that the state names. Warns if the batches that were delivered in the epoch have to be made again and
        skipped. Raises LoaderStateError if the state is of other data, or of another order, or if the dataset was
        replaced or does not keep the generation any more.
        """
        self._leave_earlier()
        self._cursor = self._cursor_from_state(state)
        self._current_iteration, self._is_loaded, self._first_epoch = None, True, state.get("first_epoch", 0)
        if self._cursor.replayed:
            warnings.warn(replay_warning(self._pipeline, self._cursor), ShoalWarning, stacklevel=2)

    def _cursor_from_state(self, state: Mapping[str, Any]) -> Cursor:
        """Return the position of a state. The pipeline is then that of the generation that the state names."""
        data = self._spec.data
        try:
            return cursor_from_state(self._pipeline, state)
        except LoaderStateError:
            generation = State.from_dict(state).generation
            if not generation or not isinstance(data, SupportsGenerations) or generation == data.generation:
                raise
        try:
            earlier = data.at_generation(generation)
        except ShoalError as error:
            message = f"the loader state is of generation {generation} of the dataset, which cannot be read: {error}"
            raise LoaderStateError(message, hint="start a new run") from error
        pipeline = build(replace(self._spec, data=earlier))
        cursor = cursor_from_state(pipeline, state)
        if cursor.is_fresh:  # nothing of this epoch was delivered
            return cursor_at_epoch(self._pipeline, cursor.epoch)
        self._earlier, self._pipeline = earlier, pipeline
        return cursor

    def set_batch_size(self, batch_size: int) -> None:
        """Change the batch size from the next batch on; the order of samples stays the same."""
        if self._spec.options.batch_size is None:
            raise OptionError("this loader has no batch size of its own", hint="give batch_size= to DataLoader")
        before = self._pipeline
        options = self._spec.options.with_options(batch_size=batch_size)
        self._spec = replace(self._spec, options=options, is_size_given=True)
        del self._pipeline  # built again on next access
        if self._cursor is not None and (self._cursor.is_fresh or self._is_loaded):
            self._cursor = rebind_cursor(before, self._pipeline, self._cursor)

    def stats(self) -> LoaderStats:
        """Return counts and times so far, and what limits the speed."""
        self._runs.check_process()
        pipeline = self._pipeline
        order = pipeline.order
        return self._meter.stats(
            epoch=self.epoch,
            workers=self._tuner.workers,
            prefetch=self._tuner.prefetch,
            ready=self._runs.ready,
            over_fetch=1.0 if order is None else over_fetch_factor(order, pipeline.split),
            shuffle_quality=pipeline.shuffle_quality,
            tuning=self._tuner.history(),
        )

    @property
    def generator_signature(self) -> Callable[[], Iterator[Any]]:
        """The function for ``tf.data.Dataset.from_generator``: each call starts an iteration; see ``shoal.tf``."""
        return self.__iter__

    def on_batch(self, listener: Callable[[LoaderStats], None]) -> None:
        """Call a function with the statistics after each batch; see ``shoal.load.prometheus_listener``."""
        self._listeners.append(listener)

    def __getstate__(self) -> dict[str, Any]:
        state = {"spec": self._spec, "cursor": self._cursor, "first_epoch": self._first_epoch}
        return state if self._earlier is None else {**state, "earlier": self._earlier}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the pipeline and its position, without threads."""
        self._set_up(state["spec"])
        self._cursor, self._first_epoch, self._earlier = state["cursor"], state["first_epoch"], state.get("earlier")
        self._is_loaded = self._cursor is not None


def _check_samplers(sampler: object, batch_sampler: object, options: LoaderOptions) -> None:
    if sampler is not None and batch_sampler is not None:
        raise OptionError("positions come from one place", expected="sampler or batch_sampler", found="both")
    if (sampler is not None or batch_sampler is not None) and options.shuffle:
        raise OptionError("a sampler has its own order", expected="shuffle=False", found="shuffle=True")
    if batch_sampler is not None and (options.drop_last or options.batch_size is None):
        found = "drop_last=True" if options.drop_last else "batch_size=None"
        raise OptionError("a batch sampler makes the batches", expected="a sampler, or no such option", found=found)
    if (sampler is not None or batch_sampler is not None) and options.tail == "carry":
        raise OptionError("a sampler draws each epoch anew", expected="tail= pad, drop or uneven", found="carry")
    for value in (sampler, batch_sampler):
        if value is not None and not isinstance(value, Iterable):
            raise OptionError("a sampler gives positions", expected="an iterable", found=repr(value))


def _check_timeout(timeout: Any) -> float | None:
    """Return seconds; None, and 0 as in PyTorch, for no limit."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout < 0):
        raise OptionError("timeout is out of range", expected="seconds, or None", found=repr(timeout))
    return timeout or None


class ZippedData:
    """Data whose samples are tuples, with one part of each: by number if all parts are, else a stream."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __load__(self) -> SourceDescription:
        described = [describe_source(part) for part in self._parts]
        indexed = [each.source for each in described if not isinstance(each.source, StreamSource) and not each.steps]
        if len(indexed) == len(described):
            return SourceDescription(ZippedSource(indexed))
        streams = [_stream_of(part, each) for part, each in zip(self._parts, described, strict=True)]
        return SourceDescription(zip_streams(streams))


def _stream_of(part: Any, described: SourceDescription) -> StreamSource:
    """Return a part as a stream for all ranks: the zipped elements are divided among them."""
    if isinstance(described.source, StreamSource) and not described.steps:
        return described.source
    loader = part if isinstance(part, DataLoader) else DataLoader(part, batch_size=None)
    return loader.as_line()
