"""A catalog of datasets on one machine or for a team.

`LocalIndex` keeps names, versions, schemas and lenses in a database. `Repo` keeps the bytes of datasets in a folder or
a bucket, with entries in an index.
"""

from ._entry import Entry, Storage, StoredShard
from ._index import LocalIndex, LocalResolver, default_index, set_default_index
from ._repo import Garbage, Repo, ShardCheck, verify_entry
from ._schemas_lenses import LensRecord

__all__ = [
    "Entry",
    "Garbage",
    "LensRecord",
    "LocalIndex",
    "LocalResolver",
    "Repo",
    "ShardCheck",
    "Storage",
    "StoredShard",
    "default_index",
    "set_default_index",
    "verify_entry",
]
