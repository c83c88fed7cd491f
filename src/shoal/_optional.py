"""Import of optional packages, with an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from shoal.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str) -> ModuleType:
    """Import ``module``, or raise `MissingExtraError` that names the extra which installs it.

    Examples:
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
