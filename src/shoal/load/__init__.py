"""The engine: a described pipeline over numbered samples -> batches, made ahead on threads, in an exact order.

A batch goes this way: ``DataLoader.__iter__`` (`_loader`) asks its `Run` (`_executor`) for an epoch; `_tasks` names
units of work, which `_workers` does on threads and gives back in order; for each unit the order says which samples, the
source reads them, `_sample_stages` maps them and `_collate` makes a batch of them; `_stream_stages` does what looks at
more than one element. `_cursor` knows where the caller is, so that it can be gone on with.

Modules have an order, and each uses only those before it (a test sees to it): first ``_msgpack_scan`` and ``_columns``,
which make columns of typed samples from their bytes, then what may be done to samples, then what does it.
"""

from ._buffers import BufferPool, shared_buffers
from ._collate import SampleBatch, collate, stacked
from ._columns import PayloadLayoutCache, PayloadReader, PayloadRun, Ragged, TypedColumns, window_run
from ._estimate import Prediction, predict
from ._loader import DataLoader
from ._monitoring import Listener, opentelemetry_listener, prometheus_listener, with_progress
from ._options import Auto, LoaderOptions, ThreadingOptions
from ._pipeline import BoundPipeline, PipelineSpec, build
from ._sources import (
    IndexedSource,
    PrefetchedSource,
    SourceDescription,
    SourceLayout,
    StreamSource,
    SupportsLoading,
    SupportsPrefetch,
    describe_source,
)
from ._stages import Filter, FlatMap, Map, Shuffle, takes_rng
from ._stats import LoaderStats

__all__ = [
    "Auto",
    "BoundPipeline",
    "BufferPool",
    "DataLoader",
    "Filter",
    "FlatMap",
    "IndexedSource",
    "Listener",
    "LoaderOptions",
    "LoaderStats",
    "Map",
    "PayloadLayoutCache",
    "PayloadReader",
    "PayloadRun",
    "PipelineSpec",
    "Prediction",
    "PrefetchedSource",
    "Ragged",
    "SampleBatch",
    "Shuffle",
    "SourceDescription",
    "SourceLayout",
    "StreamSource",
    "SupportsLoading",
    "SupportsPrefetch",
    "ThreadingOptions",
    "TypedColumns",
    "build",
    "collate",
    "describe_source",
    "opentelemetry_listener",
    "predict",
    "prometheus_listener",
    "shared_buffers",
    "stacked",
    "takes_rng",
    "window_run",
    "with_progress",
]
