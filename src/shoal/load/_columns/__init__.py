"""Columns of many samples, straight from their payloads: walked with NumPy, read into place, kept."""

from ._buffers import BufferPool, shared_buffers
from ._ragged import Ragged, ragged_arrays
from ._reader import PayloadReader
from ._typed import Learnt, PayloadRun, TypedColumns
from ._window import window_run

__all__ = [
    "BufferPool",
    "Learnt",
    "PayloadReader",
    "PayloadRun",
    "Ragged",
    "TypedColumns",
    "ragged_arrays",
    "shared_buffers",
    "window_run",
]
