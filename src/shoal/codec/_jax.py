"""JAX: the only file here that imports it, and only when something asks for its arrays."""

from __future__ import annotations

from typing import Any

from shoal._optional import require
from shoal.codec._framework import Framework, width_of

__all__ = ["framework"]


def framework() -> Framework:
    """JAX, for values that are not fields' bytes."""
    jax = require("jax", extra="jax")
    numpy = require("jax.numpy", extra="jax")

    def to_array(value: Any, options: dict[str, Any]) -> Any:
        # How wide JAX's usual integers are depends on jax_enable_x64.
        whole = numpy.int64 if jax.config.jax_enable_x64 else numpy.int32
        usual = {"integer": whole, "floating": numpy.float32, None: None}[width_of(value)]
        return numpy.array(value, **{"dtype": usual, **options})

    def together(values: list[Any]) -> Any:
        first: Any = values[0] if values else None
        alike = all(
            isinstance(value, jax.Array) and value.shape == first.shape and value.dtype == first.dtype
            for value in values
        )
        return numpy.stack(values) if values and alike else values

    return Framework("jax", jax.Array, to_array, together)
