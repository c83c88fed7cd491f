"""PyTorch: a loader as an IterableDataset, a dataset as a Dataset, and a loader of our own that gives tensors.

Arrays become tensors without a copy where they may be written to; PyTorch has no read-only tensors, so others are
copied. ``DataLoader`` here works on threads. ``TorchIterableDataset`` is for programs that want PyTorch's own
``torch.utils.data.DataLoader`` around it: with any number of workers the batches, and their order, are the same.
"""

from __future__ import annotations

import importlib

from shoal.errors import MissingExtraError

try:
    importlib.import_module("torch")  # to say what is missing before anything else does
except ImportError as error:
    raise MissingExtraError(
        "the package torch cannot be imported", found=error, hint="pip install 'shoal[torch]'"
    ) from error

from ._datasets import TorchIterableDataset, TorchMapDataset
from ._loader import DataLoader, as_tensors, decode_jpegs

__all__ = ["DataLoader", "TorchIterableDataset", "TorchMapDataset", "as_tensors", "decode_jpegs"]
