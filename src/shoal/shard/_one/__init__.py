"""One shard, read: by its index in any order, or from front to back without one."""

from ._bytes import CompressedBytes, PlainBytes, TarBytes
from ._cut import Cuts
from ._members import damaged
from ._pieced import PiecedBlocks
from ._plan import is_run, plan_reads, whole_spans
from ._policy import ErrorLog, ErrorPolicy, OnError
from ._raw import RawField, join_raw
from ._rows import Decoders, Sample, decode_rows, whole_rows
from ._salvage import salvaged_runs, streamed_runs
from ._shard import Shard
from ._stream import SampleStream, StreamOptions

__all__ = [
    "CompressedBytes",
    "Cuts",
    "Decoders",
    "ErrorLog",
    "ErrorPolicy",
    "OnError",
    "PiecedBlocks",
    "PlainBytes",
    "RawField",
    "Sample",
    "SampleStream",
    "Shard",
    "StreamOptions",
    "TarBytes",
    "damaged",
    "decode_rows",
    "is_run",
    "join_raw",
    "plan_reads",
    "salvaged_runs",
    "streamed_runs",
    "whole_rows",
    "whole_spans",
]
