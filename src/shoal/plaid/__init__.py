"""The ``webdataset`` storage backend for PLAID: physics datasets as indexed tar shards.

Importing this package registers the backend, and then ``plaid.storage`` saves, loads, pushes, downloads and streams
with ``backend="webdataset"``. The functions here are what PLAID calls; they may be called directly too.

::

    _record   keys, member names, a sample's JSON     _layout   where files are, the manifest
    _flatten  a PLAID sample as arrays                _splits   which splits and shards are there
    _run      a run of samples into shards            _arrays   the arrays of a shard, _map its file, _indexers parts
    _write    all splits, by several processes        _dataset  splits as PLAID knows them, _decode as webdataset does
    _ahead    what comes next is checked meanwhile    _bridge   what PLAID's converters take
    _hub      push, download, stream                  _backend  PLAID's protocol, and the registration
    _card     the dataset's card                      _save     what PLAID calls saving, faster
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._backend import WebDatasetBackend, register
from ._bridge import sample_to_var_sample_dict, to_var_sample_dict
from ._card import configure_dataset_card
from ._dataset import WebDatasetDict, WebDatasetSample, WebDatasetWrapper
from ._hub import (
    download_datasetdict_from_hub,
    init_datasetdict_streaming_from_hub,
    push_local_datasetdict_to_hub,
)
from ._run import SampleCallbackContext
from ._save import save_to_disk
from ._splits import init_datasetdict_from_disk
from ._write import generate_datasetdict_to_disk

if TYPE_CHECKING:
    from webdataset.compat import WebDataset as WebDatasetPipeline

__all__ = [
    "SampleCallbackContext",
    "WebDatasetBackend",
    "WebDatasetDict",
    "WebDatasetPipeline",
    "WebDatasetSample",
    "WebDatasetWrapper",
    "configure_dataset_card",
    "download_datasetdict_from_hub",
    "generate_datasetdict_to_disk",
    "init_datasetdict_from_disk",
    "init_datasetdict_streaming_from_hub",
    "push_local_datasetdict_to_hub",
    "register",
    "sample_to_var_sample_dict",
    "save_to_disk",
    "to_var_sample_dict",
]

register()


def __getattr__(name: str) -> Any:
    if name != "WebDatasetPipeline":
        raise AttributeError(f"module 'shoal.plaid' has no attribute {name!r}", name=name)
    from webdataset.compat import WebDataset  # loaded when asked for: it may bring torch along

    return WebDataset


def __dir__() -> list[str]:
    return sorted([*globals(), "WebDatasetPipeline"])
