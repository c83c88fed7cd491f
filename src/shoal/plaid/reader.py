"""Load PLAID datasets from disk and from the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._hub import download_datasetdict_from_hub, init_datasetdict_streaming_from_hub
from ._reader import (
    WebDatasetDict,
    WebDatasetSample,
    WebDatasetWrapper,
    create_webdataset_pipeline,
    init_datasetdict_from_disk,
)

if TYPE_CHECKING:
    from webdataset.compat import WebDataset as WebDatasetPipeline

__all__ = [
    "WebDatasetDict",
    "WebDatasetPipeline",
    "WebDatasetSample",
    "WebDatasetWrapper",
    "download_datasetdict_from_hub",
    "init_datasetdict_from_disk",
    "init_datasetdict_streaming_from_hub",
]

_create_webdataset_pipeline = create_webdataset_pipeline


def __getattr__(name: str) -> Any:
    if name != "WebDatasetPipeline":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    from webdataset.compat import WebDataset  # on first use: it may import torch

    return WebDataset


def __dir__() -> list[str]:
    return sorted([*globals(), "WebDatasetPipeline"])
