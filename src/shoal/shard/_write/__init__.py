"""Samples in, shards out: encoded, laid out, sent on their way, or copied as the bytes they are."""

from ._copy import copy_samples
from ._held import HeldShard, can_copy, hold_shard, sample_spans
from ._sample_encoder import EncodedSample, SampleEncoder
from ._service import ShardingService
from ._shard_file import ShardFile, WrittenShard
from ._write import ShardWriter
from ._write_options import WriteOptions

__all__ = [
    "EncodedSample",
    "HeldShard",
    "SampleEncoder",
    "ShardFile",
    "ShardWriter",
    "ShardingService",
    "WriteOptions",
    "WrittenShard",
    "can_copy",
    "copy_samples",
    "hold_shard",
    "sample_spans",
]
