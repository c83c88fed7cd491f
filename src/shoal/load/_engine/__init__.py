"""A described pipeline at work: built, run on threads, an epoch at a time, from any place."""

from ._autotune import Tuner
from ._build import Built, build
from ._options import Auto, LoaderOptions, ThreadingOptions, whole_number
from ._ordering import over_fetch_of
from ._place import Place, following, place_after, place_from, place_of_epoch, replaying, restarted, resumed
from ._run import Run
from ._runs import Runs
from ._spec import PipelineSpec
from ._stats import LoaderStats, Meter

__all__ = [
    "Auto",
    "Built",
    "LoaderOptions",
    "LoaderStats",
    "Meter",
    "PipelineSpec",
    "Place",
    "Run",
    "Runs",
    "ThreadingOptions",
    "Tuner",
    "build",
    "following",
    "over_fetch_of",
    "place_after",
    "place_from",
    "place_of_epoch",
    "replaying",
    "restarted",
    "resumed",
    "whole_number",
]
