"""The ``webdataset`` storage backend for PLAID: physics datasets as indexed tar shards.

Importing this package registers the backend, and then ``plaid.storage`` saves, loads, pushes, downloads and streams
with ``backend="webdataset"``. The functions here are what PLAID calls; they may be called directly too. ``_reader`` and
``_writer`` read and write, ``_bridge`` gives PLAID's converters what they take, ``_arrays`` and ``_layout`` know how
arrays and files lie in shards, ``_hub`` is about the Hugging Face Hub, and ``_backend`` is PLAID's protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._backend import WebDatasetBackend, register
from ._bridge import sample_to_var_sample_dict, to_var_sample_dict
from ._hub import (
    configure_dataset_card,
    download_datasetdict_from_hub,
    init_datasetdict_streaming_from_hub,
    push_local_datasetdict_to_hub,
)
from ._reader import WebDatasetDict, WebDatasetSample, WebDatasetWrapper, init_datasetdict_from_disk
from ._writer import SampleCallbackContext, generate_datasetdict_to_disk, save_to_disk

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
