"""``load_dataset("at://...")`` and ``load_dataset("@handle/name")``."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

from shoal.errors import OptionError
from shoal.protocols import DataFiles, Resolved

from ._client import AtmosphereClient

__all__ = ["AtmosphereResolver", "default_client", "resolver", "set_default_client"]

_REFERENCE = re.compile(r"at://|@(?!local/)(?:did:[a-z]+:[^/]+|[^/@\s]+\.[^/@\s]+)/")
_lock = threading.Lock()
_default: AtmosphereClient | None = None


def default_client() -> AtmosphereClient:
    """The client that ``load_dataset`` asks: the one that was set, else the one that the environment says.

    Example:
        >>> default_client() is default_client()
        True
    """
    global _default  # noqa: PLW0603 - one for the process
    with _lock:
        if _default is None:
            _default = AtmosphereClient.from_env()
        return _default


def set_default_client(client: AtmosphereClient | None) -> None:
    """Let ``load_dataset`` ask this client; None for the one that the environment says.

    Example:
        >>> set_default_client(AtmosphereClient())
        >>> set_default_client(None)
    """
    global _default  # noqa: PLW0603 - one for the process
    with _lock:
        _default = client


class AtmosphereResolver:
    """Lets ``load_dataset`` understand ``at://...``, ``@handle/name`` and ``@handle/name@version``.

    Example:
        >>> AtmosphereResolver().matches("@alice.test/pets"), AtmosphereResolver().matches("@local/pets")
        (True, False)
    """

    def matches(self, reference: str, /) -> bool:
        """Whether a reference names something on the network."""
        return _REFERENCE.match(reference) is not None

    def resolve(
        self,
        reference: str,
        /,
        *,
        split: str | None = None,
        data_files: DataFiles | Mapping[str, DataFiles] | None = None,
    ) -> Resolved:
        """The shards that the record names, and the class that its schema makes."""
        if data_files is not None:
            raise OptionError("a published dataset names its own files", expected="no data_files", found=data_files)
        return default_client().resolve(reference)


resolver = AtmosphereResolver()
"""What the entry point names."""
