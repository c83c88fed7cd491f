"""Tensors of torch, JAX and TensorFlow, and the codec of ``.pth``. A framework is imported at its first use."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from shoal._optional import require
from shoal._typing import AnyArray
from shoal.errors import OptionError, UnsafeCodecError

from ._codec import Buffer, Codec, Decoder, Limits

__all__ = ["TORCH_CODECS", "Framework", "framework", "framework_of", "refuse_wide_ints", "tensor"]

Width = Literal["integer", "floating"]
FrameworkName: TypeAlias = Literal["torch", "jax", "tensorflow"]
_PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "tensorflow": "tensorflow"}


@dataclass(frozen=True, slots=True)
class Framework:
    """The functions of a framework that make tensors.

    Attributes:
        name: Its name.
        kind: The class of its tensors.
        tensor: Makes a tensor of an array or a number. Integers get the framework's default dtype and floats 32 bits,
            as in Hugging Face datasets; uint8 arrays keep their dtype, since they are images. Options are passed to the
            tensor's constructor.
        together: Stacks tensors of one shape and dtype; returns other values unchanged.
        takes_text: Whether str and bytes become tensors too.
        channels_first: Whether images are channels-first.
    """

    name: str
    kind: type[Any]
    tensor: Callable[[Any, dict[str, Any]], Any]
    together: Callable[[list[Any]], Any]
    takes_text: bool = False
    channels_first: bool = False


def _usual_width(value: Any) -> Width | None:
    """Return which default dtype a value gets in a tensor; None for values that keep their dtype."""
    dtype = np.asarray(value).dtype
    if np.issubdtype(dtype, np.integer):
        return None if dtype == np.uint8 and np.ndim(value) else "integer"
    return "floating" if np.issubdtype(dtype, np.floating) else None


def refuse_wide_ints(value: Any, dtype: Any, name: str, hint: str | None = None) -> None:
    """Raise OptionError for integers, in an array or one alone, that ``dtype`` would cut off.

    Examples:
        >>> refuse_wide_ints(np.array([2**31]), np.int64, "torch")
        >>> refuse_wide_ints(2**40, np.int8, "torch")
        Traceback (most recent call last):
        shoal.errors.OptionError: torch keeps 8 bits of each int, too few: expected -128 to 127, found 1099511627776
    """
    array, dtype = np.asarray(value), np.dtype(dtype)
    limits = np.iinfo(dtype)
    if array.dtype.kind not in "iuO" or np.can_cast(array.dtype, dtype, "safe") or not array.size:
        return
    low, high = array.min(), array.max()
    if low < limits.min or high > limits.max:
        raise OptionError(
            f"{name} keeps {limits.bits} bits of each int, too few",
            expected=f"{limits.min} to {limits.max}",
            found=str(low) if low == high else f"{low} to {high}",
            hint=hint,
        )


def tensor(array: AnyArray) -> Any:
    """Return a torch tensor over ``array``, copied only if torch cannot share its memory."""
    return require("torch", extra="torch").from_numpy(np.ascontiguousarray(array))


def _stack_alike(kind: type[Any], stack: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """Stack tensors of one shape and dtype; return other values unchanged."""
    first: Any = values[0] if values else None
    alike = all(
        isinstance(value, kind) and value.shape == first.shape and value.dtype == first.dtype for value in values
    )
    return stack(values) if values and alike else values


def _torch_framework() -> Framework:
    torch = require("torch", extra="torch")

    def to_tensor(value: Any, options: dict[str, Any]) -> Any:
        # Torch has no arithmetic for these two; their values fit int64.
        if getattr(value, "dtype", None) in (np.uint16, np.uint32):
            value = value.astype(np.int64)
        usual = {"integer": torch.int64, "floating": torch.float32, None: None}[_usual_width(value)]
        if "dtype" not in options:
            refuse_wide_ints(value, np.int64, "torch")
        return torch.tensor(value, **{"dtype": usual, **options})

    together = partial(_stack_alike, torch.Tensor, torch.stack)
    return Framework("torch", torch.Tensor, to_tensor, together, channels_first=True)


def _pth_decoder(limits: Limits) -> Decoder:
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
    # Not automatic: decode=True must not import a framework.
    Codec("pth", ("pth",), "a torch file of weights", _pth_decoder, lambda options: _encode_pth),
)


def _jax_framework() -> Framework:
    jax = require("jax", extra="jax")
    numpy = require("jax.numpy", extra="jax")

    def to_array(value: Any, options: dict[str, Any]) -> Any:
        integer = numpy.int64 if jax.config.jax_enable_x64 else numpy.int32
        usual = {"integer": integer, "floating": numpy.float32, None: None}[_usual_width(value)]
        if "dtype" not in options:
            refuse_wide_ints(value, integer, "JAX", 'call jax.config.update("jax_enable_x64", True) first')
        return numpy.array(value, **{"dtype": usual, **options})

    return Framework("jax", jax.Array, to_array, partial(_stack_alike, jax.Array, numpy.stack))


def _tensorflow_framework() -> Framework:
    tensorflow = require("tensorflow", extra="tf")

    def to_tensor(value: Any, options: dict[str, Any]) -> Any:
        usual = {"integer": tensorflow.int64, "floating": tensorflow.float32, None: None}[_usual_width(value)]
        if "dtype" not in options:
            refuse_wide_ints(value, np.int64, "TensorFlow")
        return tensorflow.convert_to_tensor(value, **{"dtype": usual, **options})

    def together(values: list[Any]) -> Any:
        tensors = bool(values) and all(isinstance(value, tensorflow.Tensor) for value in values)
        if not tensors or any(value.dtype != values[0].dtype for value in values):
            return values
        if all(value.shape == values[0].shape for value in values):
            return tensorflow.stack(values)
        # Only 1-D tensors: with more dimensions, those that are equal would become ragged too.
        return tensorflow.ragged.stack(values) if all(value.ndim == 1 for value in values) else values

    return Framework("tensorflow", tensorflow.Tensor, to_tensor, together, takes_text=True)


_MAKERS = {"torch": _torch_framework, "jax": _jax_framework, "tensorflow": _tensorflow_framework}


def framework(name: FrameworkName) -> Framework:
    """Import a framework and return the functions that make its tensors.

    Raises:
        MissingExtraError: The framework is not installed.

    Examples:
        >>> torch = framework("torch")
        >>> torch.together([torch.tensor(1, {}), torch.tensor(2, {})])
        tensor([1, 2])
    """
    return _MAKERS[name]()


def framework_of(value: Any) -> Framework | None:
    """Return the framework that a tensor belongs to; None for other values. No framework is imported for this.

    Examples:
        >>> framework_of("a text") is None
        True
    """
    package = _PACKAGES.get(type(value).__module__.partition(".")[0])
    candidate = None if package is None else _MAKERS[package]()
    return candidate if candidate is not None and isinstance(value, candidate.kind) else None
