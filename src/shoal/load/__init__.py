"""The engine: a described pipeline over numbered samples -> batches, made ahead on threads, in an exact order.

A batch goes this way: ``DataLoader.__iter__`` (`_loader`) asks its `Run` (`_engine._run`) for an epoch; the head
(`_engine._head`) names units of work, which `_engine._work` does on threads and gives back in order; for each unit the
order says which samples, the source reads them, `_steps._apply` maps them and `_steps._collate` makes a batch of them;
`_steps._line_steps` does what looks at more than one element. `_engine._place` knows where the caller is, so that it
can be gone on with.

A folder a stage, and each uses only those before it: ``_columns`` makes columns of typed samples from their bytes,
``_steps`` is what may be done to samples, ``_engine`` does it.
"""

from ._columns import BufferPool, Learnt, PayloadReader, PayloadRun, Ragged, TypedColumns, shared_buffers, window_run
from ._engine import Auto, Built, LoaderOptions, LoaderStats, PipelineSpec, ThreadingOptions, build
from ._hooks import Listener, opentelemetry_listener, prometheus_listener
from ._loader import DataLoader
from ._predict import Prediction, predict
from ._progress import with_progress
from ._steps import (
    Described,
    Filter,
    FlatMap,
    Foreseeing,
    Foreseen,
    Geometry,
    Loadable,
    Map,
    Numbered,
    SampleBatch,
    Shuffle,
    StreamSource,
    collate,
    describe_source,
    stacked,
    takes_rng,
)

__all__ = [
    "Auto",
    "BufferPool",
    "Built",
    "DataLoader",
    "Described",
    "Filter",
    "FlatMap",
    "Foreseeing",
    "Foreseen",
    "Geometry",
    "Learnt",
    "Listener",
    "Loadable",
    "LoaderOptions",
    "LoaderStats",
    "Map",
    "Numbered",
    "PayloadReader",
    "PayloadRun",
    "PipelineSpec",
    "Prediction",
    "Ragged",
    "SampleBatch",
    "Shuffle",
    "StreamSource",
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
