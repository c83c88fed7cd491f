"""What to say of a path where nothing is."""

from __future__ import annotations

import contextlib
import difflib
import os

from shoal.errors import ObjectNotFoundError

from ._options import shown
from ._url import local_path, scheme_of

__all__ = ["no_such_path"]

_MOST_NAMES = 3


def no_such_path(url: str) -> ObjectNotFoundError:
    """The error for a file or folder that a user named and that is not there, with the names that are near it.

    Example:
        >>> import os
        >>> os.makedirs("pets-tar")
        >>> print(no_such_path("pets-tars"))
        no such file or folder: found pets-tars; did you mean pets-tar?
    """
    near = _near(url) if scheme_of(url) == "file" else []
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    return ObjectNotFoundError("no such file or folder", found=shown(url), hint=hint)


def _near(url: str) -> list[str]:
    """What lies in the same folder under a name like it."""
    folder, name = os.path.split(local_path(url).rstrip("/"))
    names: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        names = os.listdir(folder or os.curdir)
    lower: dict[str, str] = {each.lower(): each for each in sorted(names)}
    found = difflib.get_close_matches(name.lower(), lower, _MOST_NAMES)
    return [os.path.join(folder, lower[each]) for each in found]
