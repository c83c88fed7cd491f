"""How fields are decoded to see that they are what their extension says."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from shoal.codec import decode_spec, decoders
from shoal.shard import Decoders

__all__ = ["every_decoder"]


def every_decoder() -> Callable[[Sequence[str]], Decoders]:
    """What ``decode=True`` decodes, and pictures where a decoder for them is installed."""
    spec = decode_spec("numpy" if importlib.util.find_spec("PIL") else True)
    return lambda fields: decoders(spec, fields)
