"""Listeners that report statistics to Prometheus and OpenTelemetry, and a progress bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TextIO

from shoal.errors import MissingExtraError, OptionError

from ._loader import DataLoader
from ._stats import LoaderStats

__all__ = ["Listener", "opentelemetry_listener", "prometheus_listener", "with_progress"]

Listener = Callable[[LoaderStats], None]
"""A function for ``loader.on_batch``."""


@dataclass(frozen=True, slots=True)
class _Metric:
    """One number of the statistics. A counted one only grows, a measured one goes up and down."""

    name: str
    kind: Literal["counted", "measured"]
    unit: str
    text: str
    value: Callable[[LoaderStats], float | None]


_METRICS = (
    _Metric("batches", "counted", "", "Batches delivered", lambda stats: stats.batches),
    _Metric("samples", "counted", "", "Samples delivered", lambda stats: stats.samples),
    _Metric("bytes", "counted", "", "Bytes of the batches delivered", lambda stats: stats.bytes),
    _Metric("skipped", "counted", "", "Samples passed over because of errors", lambda stats: stats.skipped),
    _Metric("repeated", "counted", "", "Samples that came twice in an epoch", lambda stats: stats.repeated),
    _Metric("wait_seconds", "counted", "s", "Time the caller waited for batches", lambda stats: stats.wait),
    _Metric("busy_seconds", "counted", "s", "Time the caller did something else", lambda stats: stats.busy),
    _Metric("read_seconds", "counted", "s", "Work of all threads: reading", lambda stats: stats.fetch),
    _Metric("decode_seconds", "counted", "s", "Work of all threads: decoding", lambda stats: stats.decode),
    _Metric("map_seconds", "counted", "s", "Work of all threads: the user's functions", lambda stats: stats.map),
    _Metric("collate_seconds", "counted", "s", "Work of all threads: making batches", lambda stats: stats.collate),
    _Metric("requests", "counted", "", "Requests to object stores", lambda stats: stats.requests),
    _Metric("downloaded_bytes", "counted", "", "Bytes that requests brought", lambda stats: stats.downloaded),
    _Metric("retries", "counted", "", "Requests that repeated one that failed", lambda stats: stats.retries),
    _Metric("request_seconds", "counted", "s", "Time of all requests, added up", lambda stats: stats.request_seconds),
    _Metric("epoch", "measured", "", "The epoch under way", lambda stats: stats.epoch),
    _Metric("workers", "measured", "", "Threads at work", lambda stats: stats.workers),
    _Metric("prefetch", "measured", "", "Batches that may be under way", lambda stats: stats.prefetch),
    _Metric("ready", "measured", "", "Batches that are ready", lambda stats: stats.ready),
    _Metric("wait_ratio", "measured", "", "How much of its time the caller waited", lambda stats: stats.wait_share),
    _Metric("first_batch_seconds", "measured", "s", "Time to the first batch", lambda stats: stats.first_batch),
    _Metric("over_fetch", "measured", "", "How many ranks read each block", lambda stats: stats.over_fetch),
    _Metric("shuffle_quality", "measured", "", "1 is mixed as at random", lambda stats: stats.shuffle_quality),
)


def prometheus_listener(registry: Any = None, prefix: str = "shoal_loader") -> Listener:
    """Return a listener for ``loader.on_batch`` that reports the loader's statistics to a Prometheus ``registry``.

    The default registry is that of ``prometheus_client``. Names begin with ``prefix``; each loader needs its own.

    Raises:
        MissingExtraError: prometheus_client is not installed.
        OptionError: the registry has metrics of these names.

    Examples:
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> from shoal.load import DataLoader
        >>> registry = CollectorRegistry()
        >>> loader = DataLoader(range(100), batch_size=10)
        >>> loader.on_batch(prometheus_listener(registry))
        >>> batches = list(loader)
        >>> "shoal_loader_samples_total 100.0" in generate_latest(registry).decode()
        True
    """
    client = _require("prometheus_client")
    newest = _Newest()
    try:
        (client.REGISTRY if registry is None else registry).register(_Collector(newest, prefix))
    except ValueError as error:
        raise OptionError(
            "the registry has these metrics already", found=error, hint="give each loader another prefix="
        ) from error
    return newest


def opentelemetry_listener(meter: Any = None, prefix: str = "shoal.loader") -> Listener:
    """Return a listener for ``loader.on_batch`` that reports the loader's statistics to an OpenTelemetry ``meter``.

    The default meter is ``shoal`` of the global provider. Values are read when metrics are exported, so the cost per
    batch is negligible.

    Raises:
        MissingExtraError: opentelemetry-api is not installed.

    Examples:
        >>> from shoal.load import DataLoader
        >>> loader = DataLoader(range(100), batch_size=10)
        >>> loader.on_batch(opentelemetry_listener())
        >>> len(list(loader))
        10
    """
    metrics = _require("opentelemetry.metrics")
    meter = metrics.get_meter("shoal") if meter is None else meter
    newest = _Newest()
    for metric in _METRICS:
        make = meter.create_observable_counter if metric.kind == "counted" else meter.create_observable_gauge
        observe = _observer(newest, metric, metrics.Observation)
        make(f"{prefix}.{metric.name}", callbacks=[observe], unit=metric.unit, description=metric.text)
    return newest


class _Newest:
    """Keeps the newest statistics."""

    def __init__(self) -> None:
        self._stats: LoaderStats | None = None

    def __call__(self, stats: LoaderStats) -> None:
        self._stats = stats

    def value(self, metric: _Metric) -> float | None:
        """Return the value of a metric; None before the first batch, and if unknown."""
        return None if self._stats is None else metric.value(self._stats)


class _Collector:
    """Collector for a Prometheus registry, read on every scrape."""

    def __init__(self, newest: _Newest, prefix: str) -> None:
        self._newest = newest
        self._prefix = prefix
        self._families = _require("prometheus_client.core")

    def describe(self) -> Iterator[Any]:
        """Return the metrics without values."""
        return (self._family(metric, None) for metric in _METRICS)

    def collect(self) -> Iterator[Any]:
        """Return the metrics with their newest values."""
        values = ((metric, self._newest.value(metric)) for metric in _METRICS)
        return (self._family(metric, value) for metric, value in values if value is not None)

    def _family(self, metric: _Metric, value: float | None) -> Any:
        core = self._families
        make = core.CounterMetricFamily if metric.kind == "counted" else core.GaugeMetricFamily
        return make(f"{self._prefix}_{metric.name}", metric.text, value=value)


def _observer(newest: _Newest, metric: _Metric, observation: Any) -> Callable[[Any], Iterable[Any]]:
    def observe(_: Any) -> Iterable[Any]:
        value = newest.value(metric)
        return () if value is None else (observation(value),)

    return observe


def _require(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"the package {package} cannot be imported", found=error, hint="pip install 'shoal[metrics]'"
        ) from error


def with_progress(loader: DataLoader, description: str | None = None, *, file: TextIO | None = None) -> Iterator[Any]:
    """Iterate over the loader with a progress bar: batches, samples per second, bottleneck.

    The bar is written to stderr, or to ``file``, if that is a terminal. It has an end if the loader has a length, and
    starts at the position of a loaded state.

    Examples:
        >>> loader = DataLoader(range(100), batch_size=10)
        >>> sum(len(batch) for batch in with_progress(loader, "training"))
        100
    """
    stream = sys.stderr if file is None else file
    if not stream.isatty():
        yield from loader
        return
    with _bar(stream) as bar:
        task = bar.add_task(description or "batches", total=_total(loader), rate="")
        for number, batch in enumerate(loader):
            stats = loader.stats()
            if number == 0:  # some batches of this epoch may be from before the state was saved
                bar.update(task, completed=loader.state_dict()["steps"] - 1)
            bar.update(task, advance=1, rate=f"{stats.rate:,.0f} samples/s, {stats.bound_by}")
            yield batch


def _bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    description, rate = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[rate]}", markup=False)
    columns = (description, BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream))


def _total(loader: DataLoader) -> int | None:
    with contextlib.suppress(TypeError):
        return len(loader)
    return None
