"""Compressed shards: told by their content, read from any block of ours, streamed otherwise."""

from ._cache import unpacked_cache
from ._formats import (
    COMPRESSIONS,
    BlockCompressor,
    Compression,
    check_compression,
    decompress_block,
    fitting_compression,
    sniff,
)
from ._stream import decompressed, reader_stream

__all__ = [
    "COMPRESSIONS",
    "BlockCompressor",
    "Compression",
    "check_compression",
    "decompress_block",
    "decompressed",
    "fitting_compression",
    "reader_stream",
    "sniff",
    "unpacked_cache",
]
