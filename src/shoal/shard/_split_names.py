"""Which split a path or a word names, by the rules of Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shoal.errors import FieldError

__all__ = ["find_split", "same_split", "split_alias", "split_of"]

# The words that name a split, as Hugging Face reads them: delimited by anything but letters.
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_SPLIT_WORD = re.compile(r"(?<![a-z])(" + "|".join(sorted(_SPLIT_NAMES, key=len, reverse=True)) + r")(?![a-z])")


def split_of(path: str) -> str:
    """The split a shard's path names; ``train`` when it names none.

    Examples:
        >>> split_of("val-000001.tar"), split_of("test/a.tar"), split_of("shard-000000.tar")
        ('validation', 'test', 'train')
    """
    words = _SPLIT_WORD.findall(path.lower())
    return _SPLIT_NAMES[words[-1]] if words else "train"


def split_alias(word: str) -> str | None:
    """The split that a single word stands for; None when it names none.

    Examples:
        >>> split_alias("val"), split_alias("testing"), split_alias("gold")
        ('validation', 'test', None)
    """
    return _SPLIT_NAMES.get(word.lower())


def find_split(name: str, present: Iterable[str]) -> str:
    """The split called ``name``, or the only one whose name means the same. Raises FieldError, which lists all splits.

    Examples:
        >>> find_split("val", ["train", "validation"])
        'validation'
    """
    names = list(present)
    if name in names:
        return name
    meant = split_alias(name)
    fitting = [other for other in names if meant is not None and split_alias(other) == meant]
    if len(fitting) != 1:
        raise FieldError("no such split", expected=" or ".join(names) or "none: it is empty", found=name)
    return fitting[0]


def same_split(name: str, present: Iterable[str]) -> str:
    """The one of ``present`` that is the split ``name``, perhaps by another word; ``name`` where none is.

    Examples:
        >>> same_split("val", ["train", "validation"]), same_split("val", ["train"])
        ('validation', 'val')
    """
    try:
        return find_split(name, present)
    except FieldError:
        return name
