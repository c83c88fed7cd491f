"""Dataset: any number of shards as one sequence, by position, by key, by query."""

from ._dataset import Dataset
from ._load import load_shards
from ._where import F

__all__ = ["Dataset", "F", "load_shards"]
