"""Datasets on one machine or for a team: an index that finds and versions them, repositories that keep their bytes.

::

    _index       LocalIndex: what users call          _repo       Repo: insert, verify, gc
    _datasets    names, versions, data                _write      samples and shards into a folder
    _schemas     the schema registry                  _owner      who writes a folder
    _lenses      lenses by code reference             _describe   what lies somewhere: hashes, sizes
    _search      what a dataset is found by           _verify     recorded checksums against bytes
    _backend     what a database has to do            _memory _sqlite _redis _postgres   the databases
    _refs _version _cid _checks _credentials _records   values and their checks
    _connect _default _resolver   which index is meant, also by ``load_dataset("@local/name")``
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
