"""What is wrong with shards: all of it, not only the first thing."""

from ._verify import Problem, ShardReport, VerifyOptions, verify_dataset, verify_shard, with_hashes

__all__ = ["Problem", "ShardReport", "VerifyOptions", "verify_dataset", "verify_shard", "with_hashes"]
