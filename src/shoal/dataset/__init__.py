"""Dataset: any number of shards as one sequence, by position, by key, by query."""

from ._combined._mix import mix
from ._combined._verbs import concat
from ._dataset import Dataset
from ._dict import DatasetDict
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
from ._growing._tombstones import Tombstone
from ._opening._data_source import source_from_data_source
from ._opening._load import load_shards
from ._opening._load_dataset import load_dataset
from ._opening._resolve import register_resolver, resolvers
from ._opening._write_samples import write_samples
from ._shard_work import FailedShard, ShardDone, ShardReport
from ._table._describe import ColumnSummary, FieldSummary, Summary
from ._table._open_parquet import from_parquet
from ._where import F

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
