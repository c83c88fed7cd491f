"""What is wrong with shards: all of it, not only the first thing."""

from ._compare import Problem
from ._verify import ShardReport, verify_dataset, verify_shard, with_hashes
from ._walk import VerifyOptions

__all__ = ["Problem", "ShardReport", "VerifyOptions", "verify_dataset", "verify_shard", "with_hashes"]
