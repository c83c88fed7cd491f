"""Dataset: any number of shards as one sequence, by position, by key, by query."""

from ._data_source import source_from_data_source
from ._dataset import Dataset
from ._dict import DatasetDict
from ._load import load_shards
from ._load_dataset import load_dataset
from ._resolve import register_resolver, resolvers
from ._where import F
from ._write_samples import write_samples

__all__ = [
    "Dataset",
    "DatasetDict",
    "F",
    "load_dataset",
    "load_shards",
    "register_resolver",
    "resolvers",
    "source_from_data_source",
    "write_samples",
]
