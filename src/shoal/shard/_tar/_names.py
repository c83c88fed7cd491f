"""Keys and fields that are safe to write: every reader must give back what was written."""

from __future__ import annotations

import re

from shoal.errors import UnsafeNameError

from ._keys import split_name

__all__ = ["check_field", "check_key"]

_PLAIN_KEY = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> None:
    """Raise UnsafeNameError, with the reason, unless every reader would find the sample under this key."""
    if _PLAIN_KEY.fullmatch(key):
        return
    reason = _key_problem(key)
    if reason:
        raise UnsafeNameError(f"a key {reason}", found=repr(key), hint="choose another key, such as a number")


def _key_problem(key: str) -> str | None:
    base = key.rpartition("/")[2]
    if not base:
        return "must not be empty or end in a slash"
    if "." in base:
        return "must have no dot in its last part: the first dot starts the field's name"
    if _CONTROL.search(key) or not _is_utf8(key):
        return "must be plain text without control characters"
    if key.startswith("/") or ".." in key.split("/"):
        return "must not be absolute or climb out of its folder"
    if "" in key.split("/"):
        return "must have no empty part: two slashes are one where it is unpacked"
    if base.startswith("__"):
        return "must not start with two underscores: readers take such members for metadata"
    return None if split_name(f"{key}.x") == (key, "x") else "would be read back as another one"


def check_field(key: str, field: object) -> None:
    """Raise UnsafeNameError, with the reason, unless every reader would give the field back under this name."""
    reason = _field_problem(field)
    if reason:
        raise UnsafeNameError(f"a field {reason}", found=repr(field), key=key)


def _field_problem(field: object) -> str | None:
    if not isinstance(field, str):
        return "must be text"
    if not field or field.startswith(".") or field.endswith("."):
        return "must not be empty, nor start or end with a dot"
    if "/" in field or _CONTROL.search(field) or not _is_utf8(field):
        return "must be plain text without slashes or control characters"
    if field != field.lower():
        return "must be lower case: readers lower it, and would not give this name back"
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
