"""Where this user's own files of the network are: what was followed, and a session that was to be kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

__all__ = ["home_file", "session_file"]


def home_file(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """A file in ``$SHOAL_HOME``, else in the platform's place for data.

    Example:
        >>> home_file("followed.db", {"SHOAL_HOME": "/data"})
        '/data/followed.db'
    """
    if chosen := environ.get("SHOAL_HOME"):
        return os.path.join(chosen, name)
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Application Support", "shoal", name)
    if os.name == "nt":
        return os.path.join(environ.get("LOCALAPPDATA", home), "shoal", name)
    return os.path.join(environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "shoal", name)


def session_file() -> str:
    """Where `shoal login --save` keeps a session.

    Example:
        >>> session_file().endswith("atmosphere-session")
        True
    """
    return home_file("atmosphere-session")
