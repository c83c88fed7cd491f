"""Dataset: any number of shards as one sequence, by position, by key, by query."""

from ._combine import concat
from ._data_source import source_from_data_source
from ._dataset import Dataset
from ._deletion import Tombstone
from ._format_datasets import (
    ArrowDataset,
    CsvDataset,
    Hdf5Dataset,
    ImageFolderDataset,
    JsonlDataset,
    LitdataDataset,
    MdsDataset,
    NpzDataset,
    ParquetDataset,
    RawDataset,
    TFRecordDataset,
)
from ._load import load_dataset, load_shards
from ._mixture import mix
from ._query import F
from ._resolvers import register_resolver, resolvers
from ._shard_processing import FailedShard, ShardDone, ShardReport
from ._splits import DatasetDict
from ._tabular import ColumnSummary, FieldSummary, Summary
from ._write import from_parquet, write_samples

__all__ = [
    "ArrowDataset",
    "ColumnSummary",
    "CsvDataset",
    "Dataset",
    "DatasetDict",
    "F",
    "FailedShard",
    "FieldSummary",
    "Hdf5Dataset",
    "ImageFolderDataset",
    "JsonlDataset",
    "LitdataDataset",
    "MdsDataset",
    "NpzDataset",
    "ParquetDataset",
    "RawDataset",
    "ShardDone",
    "ShardReport",
    "Summary",
    "TFRecordDataset",
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
