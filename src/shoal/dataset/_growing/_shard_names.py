"""The names that shards get from the path a user gives."""

from __future__ import annotations

from shoal.shard import SHARD_ENDINGS

__all__ = ["is_numbered", "shard_pattern"]


def shard_pattern(path: str, max_samples: int | None, max_bytes: int | None) -> str:
    """The pattern of shards: of a folder, of one tar, or of numbered ones where shards have a limit.

    Example:
        >>> shard_pattern("data", None, None), shard_pattern("x.tar", None, None), shard_pattern("x.tar.gz", 100, None)
        ('data/shard-%06d.tar', 'x.tar', 'x-%06d.tar.gz')
    """
    ending = max((ending for ending in SHARD_ENDINGS if path.lower().endswith(ending)), key=len, default=None)
    if ending is None:
        return f"{path.rstrip('/')}/shard-%06d.tar"
    if is_numbered(path) or (max_samples is None and max_bytes is None):
        return path
    return f"{path[: -len(ending)]}-%06d{path[-len(ending) :]}"


def is_numbered(pattern: str) -> bool:
    """Whether a pattern names more than one shard."""
    return "%" in pattern or "{" in pattern
