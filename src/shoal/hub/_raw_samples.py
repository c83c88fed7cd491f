"""Samples as they are stored: bytes, without decoding and encoding them on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.shard import Source

__all__ = ["raw_rows"]

_RUN_BYTES = 64 << 20
_MOST_ROWS = 4096


def raw_rows(
    source: Source, rows: npt.NDArray[np.int64], fields: Sequence[str] | None, mean_bytes: float
) -> Iterator[dict[str, Any]]:
    """These samples with these fields, as bytes; so many are read at once as fit in memory."""
    step = int(min(max(_RUN_BYTES / max(mean_bytes, 1), 1), _MOST_ROWS))
    for start in range(0, len(rows), step):
        for sample in source.read(rows[start : start + step], fields):
            yield {name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")}
