"""Prometheus and OpenTelemetry report the loader's own statistics; the progress bar changes no batch."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shoal.errors import MissingExtraError, OptionError
from shoal.load import DataLoader, LoaderStats, opentelemetry_listener, prometheus_listener, with_progress

COUNTED = {"batches": 10, "samples": 100, "skipped": 0, "repeated": 0}


def run(*listeners: Any) -> LoaderStats:
    """A loader that was listened to, and the statistics it told last."""
    told: list[LoaderStats] = []
    loader = DataLoader(range(100), batch_size=10, num_workers=1)
    for listener in (*listeners, told.append):
        loader.on_batch(listener)
    assert len(list(loader)) == 10
    return told[-1]


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_prometheus_scrapes_what_the_loader_says():
    registry = CollectorRegistry()
    listener = prometheus_listener(registry, prefix="train")
    assert scraped(registry) == {}  # before the first batch there is nothing to say
    stats = run(listener)
    found = scraped(registry)
    assert {name: found[f"train_{name}_total"] for name in COUNTED} == COUNTED
    assert found["train_wait_seconds_total"] == stats.wait
    assert found["train_read_seconds_total"] == stats.fetch
    assert found["train_workers"] == 1
    assert found["train_first_batch_seconds"] == stats.first_batch
    assert "train_shuffle_quality" not in found  # one shard: there is nothing to mix


def test_prometheus_counts_what_went_over_the_wire():
    registry = CollectorRegistry()
    listener = prometheus_listener(registry)
    listener(LoaderStats(requests=5, downloaded=1000, retries=2, request_seconds=0.5))
    found = scraped(registry)
    names = ("requests", "downloaded_bytes", "retries", "request_seconds")
    assert [found[f"shoal_loader_{name}_total"] for name in names] == [5, 1000, 2, 0.5]


def test_prometheus_has_a_registry_of_its_own():
    run(prometheus_listener(prefix="of_a_test"))
    assert scraped(REGISTRY)["of_a_test_samples_total"] == 100


def test_two_loaders_need_two_prefixes():
    registry = CollectorRegistry()
    prometheus_listener(registry)
    with pytest.raises(OptionError, match="prefix="):
        prometheus_listener(registry)
    run(prometheus_listener(registry, prefix="other"))
    assert scraped(registry)["other_batches_total"] == 10


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: metric.data for metric in metrics if metric.data.data_points}


def test_opentelemetry_exports_what_the_loader_says():
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    listener = opentelemetry_listener(provider.get_meter("test"))
    assert exported(reader) == {}
    stats = run(listener)
    found = exported(reader)
    values = {name: data.data_points[0].value for name, data in found.items()}
    assert {name: values[f"shoal.loader.{name}"] for name in COUNTED} == COUNTED
    assert values["shoal.loader.wait_seconds"] == stats.wait
    assert values["shoal.loader.wait_ratio"] == stats.wait_share
    assert found["shoal.loader.samples"].is_monotonic
    assert not hasattr(found["shoal.loader.ready"], "is_monotonic")
    provider.shutdown()


def test_every_number_has_its_place():
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    provider = MeterProvider([reader])
    run(prometheus_listener(registry), opentelemetry_listener(provider.get_meter("test")))
    names = {name.removeprefix("shoal_loader_").removesuffix("_total") for name in scraped(registry)}
    assert names == {name.removeprefix("shoal.loader.") for name in exported(reader)}
    assert len(names) == 22
    provider.shutdown()


@pytest.mark.parametrize(
    "listener, package", [(prometheus_listener, "prometheus_client"), (opentelemetry_listener, "opentelemetry.metrics")]
)
def test_a_missing_package_is_named(monkeypatch, listener, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"shoal\[metrics\]"):
        listener()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_batches_pass_unchanged_and_the_bar_ends_full():
    terminal = Terminal()
    loader = DataLoader(range(100), batch_size=10, shuffle=True)
    expected = list(DataLoader(range(100), batch_size=10, shuffle=True))
    assert list(with_progress(loader, "training", file=terminal)) == expected
    shown = terminal.getvalue()
    assert "training" in shown
    assert "10/10" in shown
    assert "samples/s" in shown


def test_a_resumed_loader_begins_where_it_was():
    loader = DataLoader(range(100), batch_size=10)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    again = DataLoader(range(100), batch_size=10)
    again.load_state_dict(loader.state_dict())
    terminal = Terminal()
    assert len(list(with_progress(again, file=terminal))) == 3
    assert "10/10" in terminal.getvalue()
    assert " 3/10" not in terminal.getvalue()


def test_a_line_without_a_length_has_no_end():
    terminal = Terminal()
    loader = DataLoader(iter(range(25)), batch_size=10)
    assert len(list(with_progress(loader, file=terminal))) == 3
    assert "3/?" in terminal.getvalue()


def test_nothing_is_shown_where_nobody_looks():
    stream = io.StringIO()
    assert len(list(with_progress(DataLoader(range(100), batch_size=10), file=stream))) == 10
    assert stream.getvalue() == ""


def test_leaving_early_stops_the_loader_and_the_bar():
    terminal = Terminal()
    loader = DataLoader(range(100), batch_size=10, num_workers=1)
    batches = with_progress(loader, file=terminal)
    next(batches)
    batches.close()
    assert loader.stats().ready == 0
    with pytest.raises(StopIteration):
        next(batches)
