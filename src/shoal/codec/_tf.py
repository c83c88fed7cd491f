"""TensorFlow: the only file here that imports it, and only when something asks for its tensors."""

from __future__ import annotations

from typing import Any

from shoal._optional import require
from shoal.codec._framework import Framework, width_of

__all__ = ["framework"]


def framework() -> Framework:
    """TensorFlow, for values that are not fields' bytes."""
    tensorflow = require("tensorflow", extra="tf")

    def to_tensor(value: Any, options: dict[str, Any]) -> Any:
        usual = {"integer": tensorflow.int64, "floating": tensorflow.float32, None: None}[width_of(value)]
        return tensorflow.convert_to_tensor(value, **{"dtype": usual, **options})

    def together(values: list[Any]) -> Any:
        tensors = bool(values) and all(isinstance(value, tensorflow.Tensor) for value in values)
        if not tensors or any(value.dtype != values[0].dtype for value in values):
            return values
        if all(value.shape == values[0].shape for value in values):
            return tensorflow.stack(values)
        # Only rows of numbers: of others, dimensions that are alike would become ragged, too.
        return tensorflow.ragged.stack(values) if all(value.ndim == 1 for value in values) else values

    return Framework("tensorflow", tensorflow.Tensor, to_tensor, together, takes_text=True)
