"""Frameworks' tensors by the same verbs: what a framework is here; each is made in the module that imports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Framework", "Width", "width_of"]

Width = Literal["integer", "floating"]


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
