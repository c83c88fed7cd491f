"""The engine: a described pipeline over numbered samples -> batches, made ahead on threads, in an exact order.

A batch goes this way: ``DataLoader.__iter__`` (`_loader`) asks its `Run` (`_run`) for an epoch; the head (`_head`)
names units of work, which `_work` does on threads and gives back in order; for each unit the order says which samples,
the source reads them, `_apply` maps them and `_collate` makes a batch of them; `_line_steps` does what looks at more
than one element. `_place` knows where the caller is, so that it can be gone on with.
"""

from ._batch import SampleBatch
from ._buffers import BufferPool, shared_buffers
from ._collate import collate, stacked
from ._hooks import Listener, opentelemetry_listener, prometheus_listener
from ._loader import DataLoader
from ._options import Auto, LoaderOptions, ThreadingOptions
from ._predict import Prediction, predict
from ._progress import with_progress
from ._ragged import Ragged
from ._reader import PayloadReader
from ._source import Described, Foreseeing, Foreseen, Geometry, Loadable, Numbered, StreamSource
from ._stats import LoaderStats
from ._steps import Filter, FlatMap, Map, Shuffle, takes_rng
from ._typed import Learnt, PayloadRun, TypedColumns
from ._window import window_run

__all__ = [
    "Auto",
    "BufferPool",
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
    "Prediction",
    "Ragged",
    "SampleBatch",
    "Shuffle",
    "StreamSource",
    "ThreadingOptions",
    "TypedColumns",
    "collate",
    "opentelemetry_listener",
    "predict",
    "prometheus_listener",
    "shared_buffers",
    "stacked",
    "takes_rng",
    "window_run",
    "with_progress",
]
