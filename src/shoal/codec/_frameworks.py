"""Tensors of torch, JAX and TensorFlow, each imported when it is first asked for."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from shoal._optional import require
from shoal.errors import UnsafeCodecError

from ._arrays import Array
from ._codec import Buffer, Codec, Decoder, Limits

__all__ = ["TORCH_CODECS", "Framework", "framework", "framework_of", "tensor"]

Width = Literal["integer", "floating"]
FrameworkName: TypeAlias = Literal["torch", "jax", "tensorflow"]
_PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "tensorflow": "tensorflow"}


@dataclass(frozen=True, slots=True)
class Framework:
    """What is needed of a framework to hand its tensors out.

    Attributes:
        name: Its name.
        kind: The class of its tensors.
        tensor: A tensor of an array or a number. Integers become the framework's usual ones and fractions 32 bits wide,
            as in Hugging Face datasets; arrays of 8 bits stay so, since they are images. Options go to its constructor.
        together: Tensors of one shape and type as one tensor; any other values as they are.
        takes_text: Whether texts and bytes become tensors too.
        channels_first: Whether images have their channels first.
    """

    name: str
    kind: type[Any]
    tensor: Callable[[Any, dict[str, Any]], Any]
    together: Callable[[list[Any]], Any]
    takes_text: bool = False
    channels_first: bool = False


def width_of(value: Any) -> Width | None:
    """Whether a value's numbers are given the usual width, and which; None where their type says what it is."""
    dtype = np.asarray(value).dtype
    if np.issubdtype(dtype, np.integer):
        return None if dtype == np.uint8 and np.ndim(value) else "integer"
    return "floating" if np.issubdtype(dtype, np.floating) else None


def tensor(array: Array) -> Any:
    """A torch tensor over ``array``, copied only where torch cannot share it."""
    return require("torch", extra="torch").from_numpy(np.ascontiguousarray(array))


def torch_framework() -> Framework:
    """Torch, for values that are not fields' bytes."""
    torch = require("torch", extra="torch")

    def to_tensor(value: Any, options: dict[str, Any]) -> Any:
        # Torch has no arithmetic for these two; their values fit the next signed type.
        if getattr(value, "dtype", None) in (np.uint16, np.uint32):
            value = value.astype(np.int64)
        usual = {"integer": torch.int64, "floating": torch.float32, None: None}[width_of(value)]
        return torch.tensor(value, **{"dtype": usual, **options})

    def together(values: list[Any]) -> Any:
        first: Any = values[0] if values else None
        alike = all(
            isinstance(value, torch.Tensor) and value.shape == first.shape and value.dtype == first.dtype
            for value in values
        )
        return torch.stack(values) if values and alike else values

    return Framework("torch", torch.Tensor, to_tensor, together, channels_first=True)


def _decoder(limits: Limits) -> Decoder:
    load = require("torch", extra="torch").load

    def decode(data: Buffer) -> Any:
        try:
            return load(io.BytesIO(data), weights_only=True, map_location="cpu")
        except pickle.UnpicklingError as error:
            raise UnsafeCodecError(
                "the pth holds more than weights",
                found=str(error).splitlines()[0],
                hint="only tensors and plain values are read",
            ) from error

    return decode


def _encode_pth(value: Any) -> bytes:
    stream = io.BytesIO()
    require("torch", extra="torch").save(value, stream)
    return stream.getvalue()


TORCH_CODECS = (
    # Not automatic: decode=True must not start a framework.
    Codec("pth", ("pth",), "a torch file of weights", _decoder, lambda options: _encode_pth),
)


def jax_framework() -> Framework:
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


def tensorflow_framework() -> Framework:
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


_MAKERS = {"torch": torch_framework, "jax": jax_framework, "tensorflow": tensorflow_framework}


def framework(name: FrameworkName) -> Framework:
    """A framework's tensors by the same verbs; the framework is imported now.

    Raises:
        MissingExtraError: It is not installed.

    Example:
        >>> torch = framework("torch")
        >>> torch.together([torch.tensor(1, {}), torch.tensor(2, {})])
        tensor([1, 2])
    """
    return _MAKERS[name]()


def framework_of(value: Any) -> Framework | None:
    """The framework that a tensor is of; None for anything else. What is not imported yet made no tensor.

    Example:
        >>> framework_of("a text") is None
        True
    """
    package = _PACKAGES.get(type(value).__module__.partition(".")[0])
    found = None if package is None else _MAKERS[package]()
    return found if found is not None and isinstance(value, found.kind) else None
