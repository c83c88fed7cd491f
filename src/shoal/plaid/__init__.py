"""The ``webdataset`` storage backend for PLAID: physics datasets as indexed tar shards.

Importing this package registers the backend, and then ``plaid.storage`` saves, loads, pushes, downloads and streams
with ``backend="webdataset"``. The functions here are what PLAID calls; they may be called directly too. ``reader``,
``writer`` and ``bridge`` have the same functions, in the modules in which PLAID's own backends have theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._backend import WebDatasetBackend, register
from ._writer import SampleCallbackContext, save_to_disk
from .bridge import sample_to_var_sample_dict, to_var_sample_dict
from .reader import (
    WebDatasetDict,
    WebDatasetSample,
    WebDatasetWrapper,
    download_datasetdict_from_hub,
    init_datasetdict_from_disk,
    init_datasetdict_streaming_from_hub,
)
from .writer import configure_dataset_card, generate_datasetdict_to_disk, push_local_datasetdict_to_hub

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
    from .reader import WebDatasetPipeline  # on first use: it may import torch

    return WebDatasetPipeline


def __dir__() -> list[str]:
    return sorted([*globals(), "WebDatasetPipeline"])
