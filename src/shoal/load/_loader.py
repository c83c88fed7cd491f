"""DataLoader: batches of a dataset, in an exact order, made ahead on threads, resumable anywhere."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from shoal.errors import OptionError
from shoal.order import Order, Split

from ._autotune import Tuner
from ._build import Built, build
from ._elements import Element
from ._options import LoaderOptions
from ._ordering import over_fetch_of
from ._place import Place, following, place_after, place_from, place_of_epoch, restarted
from ._run import Run, start_run
from ._source import Described, StreamSource, describe_source
from ._spec import PipelineSpec
from ._stats import LoaderStats, Meter
from ._steps import Batch
from ._verbs import Verbs, least

__all__ = ["DataLoader"]


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
        spec = PipelineSpec(dataset, (), chosen, sampler=sampler, batch_sampler=batch_sampler, timeout=timeout)
        if collate_fn is not None and chosen.batch_size is not None:
            batch = Batch(chosen.batch_size, chosen.drop_last, chosen.ragged, collate_fn)
            spec = replace(spec, steps=(batch,), options=chosen.with_options(batch_size=None))
        self._begin(spec)

    def _begin(self, spec: PipelineSpec) -> None:
        self._spec = spec
        self._meter = Meter()
        self._run: Run | None = None
        self._run_place: Place | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._pid = os.getpid()
        self._place: Place | None = None
        self._own: Iterator[Any] | None = None
        options = spec.options
        workers = spec.threading.workers(options.num_workers)
        most = spec.threading.max_inter_op_parallelism
        self._tuner = Tuner(
            (None if options.auto_tune else min(4, os.cpu_count() or 1)) if workers == "auto" else workers,
            None if options.prefetch == "auto" else options.prefetch,
            most,
        )

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
    def _built(self) -> Built:
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
        if not built.laid.has_length:
            why = built.laid.why_no_length
            raise TypeError(f"the number of elements is not known before they are made: {why}; give steps_per_epoch=")
        place = place_of_epoch(built, 0) if self._place is None else restarted(built, self._place)
        plan, total = place.plan, 0
        for _ in range(epochs):
            assert plan is not None  # noqa: S101 - what has a length has a plan
            total += plan.steps
            plan = following(built, plan)
        return total

    def __repr__(self) -> str:
        return f"DataLoader({self._spec.data!r}, {self._spec.options!r})"

    def __load__(self) -> Described:
        """As data of another loader: its samples by number while they are samples, else the line of its elements."""
        spec = self._spec
        plain = spec.options.batch_size is None and spec.sampler is None and spec.batch_sampler is None
        below = describe_source(spec.data)
        if plain and not spec.options.shuffle and spec.epochs == 1 and not isinstance(below.source, StreamSource):
            return Described(below.source, (*below.steps, *spec.steps))
        return Described(StreamSource(lambda: iter(self), repr(self)))

    # ------------------------------------------------------------------------------------------------- iterating

    def __iter__(self) -> Iterator[Any]:
        """One epoch, from its beginning, or from where a loaded state says."""
        return self._epochs()

    def __next__(self) -> Any:
        """The next batch of an iteration of the loader's own, which ends with its epoch."""
        if self._own is None:
            self._own = iter(self)
        try:
            return next(self._own)
        except StopIteration:
            self._own = None
            raise

    def _epochs(self) -> Iterator[Any]:
        done = 0
        while self._spec.epochs is None or done < self._spec.epochs:
            yield from self._one_epoch()
            done += 1

    def _one_epoch(self) -> Iterator[Any]:
        place = self._resuming()
        try:
            yield from self._delivered(place)
        except BaseException:  # the caller left, or something failed: nothing goes on behind its back
            self._stop()
            self._meter.paused()
            raise
        self._place = place_after(self._built, place)
        self._run_place = self._place if self._run is not None and self._run.is_at_end else None
        self._meter.paused()

    def _delivered(self, place: Place) -> Iterator[Any]:
        self._place = place
        meter, tuner = self._meter, self._tuner
        meter.asked()
        tuner.resume()
        for element in self._elements(place):
            self._place = place = place.after(element)
            meter.count("repeated", element.repeated)
            meter.given(element.samples, element.size)
            waited = meter.last_wait
            yield element.value
            meter.asked()
            tuner.step(waited)
            self._tell()
            if self._place is not place:  # the caller changed something: go on from here under new settings
                yield from self._delivered(self._place)
                return

    def _elements(self, place: Place) -> Iterator[Element]:
        run = self._running(place)
        elements = run.epoch(place.epoch)
        skipped = place.replayed
        for number, element in enumerate(elements):
            if number >= skipped:
                yield element
            run.tune()

    def _resuming(self) -> Place:
        """Where the next iteration begins: the start of the next epoch, or where a loaded state says."""
        place = self._place
        if place is None:
            return place_of_epoch(self._built, 0)
        if place.is_loaded or place.is_fresh:
            return replace(place, is_loaded=False)
        return restarted(self._built, place)  # an epoch that was left before its end is begun anew

    def _running(self, place: Place) -> Run:
        """Work that stands at this place: the one that goes on from the last epoch, or a new one."""
        if self._pid != os.getpid():  # threads do not live through a fork
            self._run, self._pid = None, os.getpid()
        if self._run is not None and self._run_place is not None and self._run_place.is_at(place):
            self._run_place = None
            return self._run
        self._stop()
        self._run = start_run(self._built, place, self._meter, self._tuner)
        self._finalizer = weakref.finalize(self, self._run.close, 5.0)
        return self._run

    def _stop(self) -> None:
        run, self._run, self._run_place = self._run, None, None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if run is not None:
            run.close()

    def close(self) -> None:
        """Stop all threads and processes now; iterating starts new ones."""
        if isinstance(self._own, Generator):
            self._own.close()
        self._own = None
        self._stop()

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
        if place is None or place.epoch != epoch or not (place.is_fresh or place.is_loaded):
            self._place = place_of_epoch(self._built, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the caller is: what was delivered, not what was made ahead. Plain values, about 300 bytes as JSON.

        The same on every rank, except after a filter and its like, where the states of all ranks are put together with
        ``State.merge``.
        """
        place = place_of_epoch(self._built, 0) if self._place is None else self._place
        return place.to_dict(self._built)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on after what was delivered when the state was taken.

        Raises LoaderStateError when it was taken of other data, or in another order.
        """
        self._place = place_from(self._built, state)

    def set_batch_size(self, batch_size: int) -> None:
        """Have batches of another size from the next one on; the samples come in the same order."""
        if self._spec.options.batch_size is None:
            raise OptionError("this loader has no batch size of its own", hint="give batch_size= to DataLoader")
        state = None if self._place is None else self.state_dict()
        self._spec = replace(self._spec, options=self._spec.options.with_options(batch_size=batch_size))
        self.__dict__.pop("_built", None)
        if state is not None:
            self.load_state_dict(state)

    # ------------------------------------------------------------------------------------------------- what it does

    def stats(self) -> LoaderStats:
        """Counts and times so far, and what the loader is bound by."""
        built = self._built
        order = built.order
        return self._meter.stats(
            epoch=self.epoch,
            workers=self._tuner.workers,
            prefetch=self._tuner.prefetch,
            ready=0 if self._run is None else self._run.ready,
            over_fetch=1.0 if order is None else over_fetch_of(order, built.split),
            shuffle_quality=built.shuffle_quality,
            tuning=self._tuner.steps(),
        )

    def on_batch(self, listener: Callable[[LoaderStats], None]) -> None:
        """Have a function called with the statistics after each batch; see ``shoal.load.prometheus_listener``."""
        self._meter.listeners.append(listener)

    def _tell(self) -> None:
        if self._meter.listeners:
            stats = self.stats()
            for listener in self._meter.listeners:
                listener(stats)

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self._spec, "state": None if self._place is None else self.state_dict()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self._begin(kept["spec"])
        if kept["state"] is not None:
            self.load_state_dict(kept["state"])


def _check_samplers(sampler: object, batch_sampler: object, options: LoaderOptions) -> None:
    if sampler is not None and batch_sampler is not None:
        raise OptionError("positions come from one place", expected="sampler or batch_sampler", found="both")
    if (sampler is not None or batch_sampler is not None) and options.shuffle:
        raise OptionError("a sampler has its own order", expected="shuffle=False", found="shuffle=True")
    for given in (sampler, batch_sampler):
        if given is not None and not isinstance(given, Iterable):
            raise OptionError("a sampler gives positions", expected="an iterable", found=repr(given))
