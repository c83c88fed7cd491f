"""Optional packages, imported where they are used and named when they are missing."""

from __future__ import annotations

import importlib
from importlib import import_module
from types import ModuleType
from typing import Any

from shoal.errors import MissingExtraError

__all__ = ["need", "require"]


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


def need(module: str) -> Any:
    """A module of the AT Protocol SDK, or of what it stands on. Raises MissingExtraError.

    Example:
        >>> need("atproto").__name__
        'atproto'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "the AT Protocol needs a package that is not installed",
            found=module,
            hint="pip install 'shoal[atmosphere]'",
        ) from error
