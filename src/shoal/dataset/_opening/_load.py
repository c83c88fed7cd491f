"""Ways to a Dataset."""

from __future__ import annotations

import os
from typing import Any

from shoal.dataset._dataset import Dataset

__all__ = ["load_shards"]


def load_shards(dir_or_url: str | os.PathLike[str], split: str | None = None, **options: Any) -> Dataset[Any]:
    """Load the shards of a folder or URL, as ``ShardingService`` wrote them, or any tars.

    ``options`` are those of :class:`Dataset`.

    Example:
        >>> import shoal
        >>> paths = shoal.ShardingService("memory://doc/load").create_shards_from_data([{"txt": "hello"}])
        >>> shoal.load_shards("memory://doc/load")[0]["txt"]
        'hello'
    """
    return Dataset(dir_or_url, split=split, **options)
