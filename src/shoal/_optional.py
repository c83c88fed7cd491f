"""The packages that the extra ``atmosphere`` brings."""

from __future__ import annotations

import importlib
from typing import Any

from shoal.errors import MissingExtraError

__all__ = ["need"]


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
