"""How shards are cut and stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.errors import OptionError
from shoal.shard._compress import check_compression

__all__ = ["FieldOrder", "WriteOptions"]

FieldOrder = Literal["given", "sorted"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How shards are cut and stored. Raises OptionError for what cannot be."""

    max_samples: int = 10_000
    max_bytes: int = 1 << 30
    compression: str | None = None
    level: int | None = None
    field_order: FieldOrder = "given"
    mtime: int = 0
    hashed: bool = False
    """Whether to keep each shard's sha256. It costs a third of the disk's speed, so only when asked."""
    durable: bool = False
    """Whether to wait until each shard would survive a power cut."""
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if self.max_samples < 1 or self.max_bytes < 1:
            raise OptionError(
                "a shard holds something",
                expected="max_samples and max_bytes of at least 1",
                found=(self.max_samples, self.max_bytes),
            )
        if self.compression is not None:
            check_compression(self.compression, self.level)
        elif self.level is not None:
            raise OptionError("a level needs a compression", expected="compression='gzip' or another", found=self.level)
        if self.field_order not in ("given", "sorted"):
            raise OptionError("no such field_order", expected="'given' or 'sorted'", found=repr(self.field_order))
        # Not `in range(...)`: for a float that looks at every number of it.
        if type(self.mtime) is not int or not 0 <= self.mtime < 8**11:
            raise OptionError("mtime is a whole number of seconds", expected=f"0 to {8**11 - 1}", found=self.mtime)
