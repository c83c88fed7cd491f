"""`DataLoader`: a pipeline of stages over a source, run on threads, that yields batches in an exact order.

How a batch is made: ``DataLoader.__iter__`` (`_loader`) starts an `EpochRun` (`_executor`). `_tasks` lists the tasks of
the epoch; a `PrefetchQueue` of `shoal.store` runs them on threads and returns their results in order. For each task the
order gives the samples, the source reads them, `_sample_stages` applies ``map`` and its like, and `_collate` makes a
batch.
`_stream_stages` has the stages that look at more than one element, and `_cursor` the position to resume from.

Modules, lowest first; each imports only modules named before it, which a test checks:

- options and statistics: ``_options``, ``_stats``, ``_autotune``
- batches from bytes: ``_buffers``, ``_msgpack_scan``, ``_columns``, ``_collate``
- stages: ``_stages``, ``_sources``, ``_stream_stages``, ``_sample_stages``
- pipelines: ``_pipeline``, ``_cursor``
- running them: ``_tasks``, ``_executor``
- for users: ``_methods``, ``_loader``, ``_estimate``, ``_monitoring``
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
