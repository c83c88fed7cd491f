"""What people may say of a dataset, and how much."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.errors import OptionError

__all__ = ["check_description", "check_metadata", "check_tags"]

_MOST_BYTES = 1 << 20
_MOST_DEEP = 64
_TAGS, _TAG_LETTERS, _DESCRIPTION_LETTERS = 30, 150, 5000  # as an AT Protocol record has them


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Metadata as JSON gives it back; None for none.

    Raises OptionError for what JSON cannot hold as it is, for more than 1 MiB, and for more than 64 levels.

    Example:
        >>> check_metadata({"source": "camera 3", "sizes": (1, 2)})
        {'source': 'camera 3', 'sizes': [1, 2]}
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise OptionError("metadata is a mapping", found=type(metadata).__name__)
    _check_node(dict(metadata), "metadata", _MOST_DEEP)
    text = json.dumps(dict(metadata), ensure_ascii=False)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise OptionError("metadata is not text that can be stored", found="half of a surrogate pair") from None
    if size > _MOST_BYTES:
        hint = "keep it in a file of the dataset, and its name here"
        raise OptionError("the metadata is too large", expected=f"at most {_MOST_BYTES} bytes", found=size, hint=hint)
    kept: dict[str, Any] = json.loads(text)
    return kept


def _check_node(node: Any, path: str, left: int) -> None:
    if not left:
        raise OptionError("the metadata is too deep, or contains itself", expected=f"{_MOST_DEEP} levels", field=path)
    if isinstance(node, dict):
        for name, inner in node.items():
            if not isinstance(name, str):
                raise OptionError("names in metadata are texts", found=repr(name)[:80], field=path)
            _check_node(inner, f"{path}.{name[:40]}", left - 1)
    elif isinstance(node, list | tuple):
        for inner in node:
            _check_node(inner, f"{path}[]", left - 1)
    elif not _is_plain(node):
        expected = "texts, finite numbers below 2**63, true, false, null, lists and mappings"
        raise OptionError("this cannot be metadata", expected=expected, found=repr(node)[:80], field=path)


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor NaN
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags in their one spelling, sorted, each once. Raises OptionError.

    Example:
        >>> check_tags(["vision", "animals", "vision"])
        ('animals', 'vision')
    """
    if isinstance(tags, str):
        raise OptionError("tags are a list", expected=f"[{tags!r}]", found=repr(tags))
    kept = sorted(set(map(_tag, tags)))
    if len(kept) > _TAGS:
        raise OptionError("there are too many tags", expected=f"at most {_TAGS}", found=len(kept))
    return tuple(kept)


def _tag(tag: object) -> str:
    text = tag.strip() if isinstance(tag, str) else ""
    if not text or len(text) > _TAG_LETTERS or not text.isprintable():
        raise OptionError("this is no tag", expected=f"1 to {_TAG_LETTERS} printable letters", found=repr(tag)[:200])
    return text


def check_description(text: object) -> str:
    """The text itself. Raises OptionError for one that is too long, or none."""
    if not isinstance(text, str) or len(text) > _DESCRIPTION_LETTERS:
        found = len(text) if isinstance(text, str) else repr(text)[:80]
        raise OptionError(
            "this is no description", expected=f"a text of at most {_DESCRIPTION_LETTERS} letters", found=found
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError("the description is not text that can be stored", found="half of a surrogate pair") from None
    return text
