"""The names that shards get from the path a user gives."""

from __future__ import annotations

__all__ = ["is_numbered", "shard_pattern"]


def shard_pattern(path: str, max_samples: int | None, max_bytes: int | None) -> str:
    """The pattern of shards: of a folder, of one tar, or of numbered ones where shards have a limit.

    Example:
        >>> shard_pattern("data", None, None), shard_pattern("data.tar", 100, None), shard_pattern("x.tar", None, None)
        ('data/shard-%06d.tar', 'data-%06d.tar', 'x.tar')
    """
    if not path.endswith(".tar"):
        return f"{path.rstrip('/')}/shard-%06d.tar"
    if is_numbered(path) or (max_samples is None and max_bytes is None):
        return path
    return path.removesuffix(".tar") + "-%06d.tar"


def is_numbered(pattern: str) -> bool:
    """Whether a pattern names more than one shard."""
    return "%" in pattern or "{" in pattern
