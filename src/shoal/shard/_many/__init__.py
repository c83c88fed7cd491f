"""Many shards as one sequence of samples: found, opened, read in order, here and there, and ahead."""

from ._foresee import Reads, foresee, foresee_held
from ._locate import (
    SHARD_ENDINGS,
    Located,
    is_dataset_folder,
    locate_existing,
    locate_shards,
    shards_by_split,
    tars_below,
)
from ._resident import Resident
from ._source import Pick, ShardRef, ShardSource, Source, checked_rows
from ._window import Foresight, SampleWindow

__all__ = [
    "SHARD_ENDINGS",
    "Foresight",
    "Located",
    "Pick",
    "Reads",
    "Resident",
    "SampleWindow",
    "ShardRef",
    "ShardSource",
    "Source",
    "checked_rows",
    "foresee",
    "foresee_held",
    "is_dataset_folder",
    "locate_existing",
    "locate_shards",
    "shards_by_split",
    "tars_below",
]
