"""NumPy's arrays as tensors, and tensors pinned."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from shoal.adapt import map_arrays, map_leaves
from shoal.errors import ShoalWarning

__all__ = ["as_tensors", "map_tensors", "pinned", "ranks"]


def as_tensors(batch: Any) -> Any:
    """The batch with its arrays, and its lists of numbers, as tensors; see :func:`shoal.adapt.map_arrays`.

    Example:
        >>> as_tensors({"x": np.zeros((2, 3), np.float32), "label": [1, 2], "name": ["a", "b"]})
        {'x': tensor([[0., 0., 0.],
            [0., 0., 0.]]), 'label': tensor([1, 2]), 'name': ['a', 'b']}
    """
    return map_arrays(batch, _tensor)


def _tensor(array: npt.NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        return _tensor(array.view(np.uint16)).view(torch.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def ranks() -> dict[str, int]:
    """This process among all as torch.distributed knows it; nothing before it is initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}


# --------------------------------------------------------------------------------------------------------- ours


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    return map_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def pinned(batch: Any) -> Any:
    if not torch.cuda.is_available():
        warnings.warn("pin_memory does nothing here: there is no CUDA device", ShoalWarning, stacklevel=2)
        return batch
    return map_tensors(batch, lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)
