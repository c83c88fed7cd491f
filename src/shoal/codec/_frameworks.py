"""Which framework a name, or a tensor, belongs to."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from shoal.codec import _jax, _tf, _torch
from shoal.codec._framework import Framework

__all__ = ["FrameworkName", "framework", "framework_of"]

FrameworkName: TypeAlias = Literal["torch", "jax", "tensorflow"]
_MAKERS = {"torch": _torch.framework, "jax": _jax.framework, "tensorflow": _tf.framework}
_PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "tensorflow": "tensorflow"}


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
