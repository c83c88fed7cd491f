"""PyTorch: a DataLoader that yields tensors, a loader as IterableDataset, and a dataset as map-style Dataset.

Writable arrays become tensors without a copy; others are copied, since PyTorch has no read-only tensors.
``DataLoader`` uses threads. ``TorchIterableDataset`` is for programs that need PyTorch's own
``torch.utils.data.DataLoader``: with any number of workers, batches and their order are the same.
"""

from __future__ import annotations

from shoal._optional import require

require("torch", extra="torch")  # first, so that a missing PyTorch is reported by the name of its extra

from ._datasets import TorchIterableDataset, TorchMapDataset  # noqa: E402
from ._loader import DataLoader, as_tensors, decode_jpegs  # noqa: E402

__all__ = ["DataLoader", "TorchIterableDataset", "TorchMapDataset", "as_tensors", "decode_jpegs"]
