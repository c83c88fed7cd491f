"""Dataset: any number of shards as one sequence, by position, by key, by query."""

from ._combine import concat
from ._data_source import source_from_data_source
from ._dataset import Dataset
from ._describe import ColumnSummary, FieldSummary, Summary
from ._dict import DatasetDict
from ._load import load_shards
from ._load_dataset import load_dataset
from ._mix import mix
from ._open_parquet import from_parquet
from ._resolve import register_resolver, resolvers
from ._shard_work import FailedShard, ShardDone, ShardReport
from ._tombstones import Tombstone
from ._where import F
from ._write_samples import write_samples

__all__ = [
    "ColumnSummary",
    "Dataset",
    "DatasetDict",
    "F",
    "FailedShard",
    "FieldSummary",
    "ShardDone",
    "ShardReport",
    "Summary",
    "Tombstone",
    "concat",
    "from_parquet",
    "load_dataset",
    "load_shards",
    "mix",
    "register_resolver",
    "resolvers",
    "source_from_data_source",
    "write_samples",
]
