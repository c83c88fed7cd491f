"""Optional packages: imported where they are used, and named when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from shoal.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str) -> ModuleType:
    """Import ``module``, or raise `MissingExtraError` that says which extra brings it.

    Example:
        >>> require("zlib", extra="none").__name__
        'zlib'
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"the package {package} cannot be imported", found=error, hint=f"pip install 'shoal[{extra}]'"
        ) from error
