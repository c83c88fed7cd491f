"""The names of many members as one table of letters, split into keys and fields without an object a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["NameTable", "SplitNames", "as_texts", "name_table", "split_names"]

UInt8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_DOT, _SLASH, _UNDERSCORE, _FIRST_CAPITAL = b"./_A"
_WORD = 8
_MOST_FIELDS = 32  # in one table; each is looked for in all of it


@dataclass(frozen=True, slots=True)
class NameTable:
    """ASCII names, a row each, filled up with NULs at their ends."""

    letters: UInt8

    def __len__(self) -> int:
        return len(self.letters)

    def texts(self) -> list[str]:
        """The names one by one."""
        return _texts(self.letters)


Names = list[str] | NameTable


def as_texts(parts: Sequence[Names]) -> list[str]:
    """Runs of names as one list."""
    return [name for part in parts for name in (part.texts() if isinstance(part, NameTable) else part)]


def name_table(fields: UInt8) -> NameTable | None:
    """The table of a column of name fields; None where a name is not ASCII, or has letters behind a NUL."""
    used = np.flatnonzero(fields.any(axis=0))  # NumPy looks at every NUL behind a name
    letters = np.ascontiguousarray(fields[:, : int(used[-1]) + 1 if len(used) else 1])
    if letters.max(initial=0) > 127 or ((letters[:, :-1] == 0) & (letters[:, 1:] != 0)).any():
        return None
    return NameTable(letters)


@dataclass(frozen=True, slots=True)
class SplitNames:
    """Names split as WebDataset splits them. All of them belong to samples."""

    is_new: Bools
    """Whether a member's key differs from that of the member before it; it does for the first."""
    keys: list[str]
    """The key of each member that is new."""
    fields: list[str]
    """Every field there is, as they come up."""
    codes: npt.NDArray[np.int64]
    """Each member's place in ``fields``."""


def split_names(table: NameTable) -> SplitNames | None:
    """Split names whose first dots stand below each other, as those of numbers with leading zeros do.

    None where they do not, or where a name has what needs a closer look: folders, capitals in a field, ``__``.
    """
    dot = _dot_of(table.letters)
    if dot is None:
        return None
    before, behind = table.letters[:, :dot], table.letters[:, dot + 1 :]
    coded = _coded(behind)
    if coded is None:
        return None
    codes, firsts = coded
    is_new = _differ_from_last(before)
    return SplitNames(is_new, _texts(before[is_new]), _texts(behind[firsts]), codes)


def _dot_of(letters: UInt8) -> int | None:
    """Where the first dot of every name stands, if splitting the names there is all of the rule."""
    dot = letters[0].tobytes().find(b".") if len(letters) else -1
    if not 0 < dot < letters.shape[1] - 1 or (letters[:, dot] != _DOT).any() or (letters[:, 0] == _UNDERSCORE).any():
        return None
    before, behind = letters[:, :dot], letters[:, dot + 1 :]
    # Letters are without sign: what is below the first wraps, so that one comparison checks both ends.
    dots_or_slashes = before - np.uint8(_DOT) <= _SLASH - _DOT
    capitals = behind - np.uint8(_FIRST_CAPITAL) < 26
    return None if dots_or_slashes.any() or capitals.any() or (behind == _SLASH).any() else dot


def _differ_from_last(letters: UInt8) -> Bools:
    words = _words(letters)
    differ = np.ones(len(words), bool)
    np.not_equal(words[1:, 0], words[:-1, 0], out=differ[1:])
    for at in range(1, words.shape[1]):
        differ[1:] |= words[1:, at] != words[:-1, at]
    return differ


def _coded(letters: UInt8) -> tuple[npt.NDArray[np.int64], list[int]] | None:
    """A number for each row, the same for the same letters, and the first row of each number; None for too many."""
    words = _words(letters)
    codes = np.full(len(words), -1, np.int64)
    firsts: list[int] = []
    left = codes < 0
    while (first := int(left.argmax())) or left[0]:
        if len(firsts) == _MOST_FIELDS:
            return None
        same = words[:, 0] == words[first, 0]
        for at in range(1, words.shape[1]):
            same &= words[:, at] == words[first, at]
        codes[same] = len(firsts)
        firsts.append(first)
        left &= ~same
    return codes, firsts


def _words(letters: UInt8) -> Words:
    """Eight letters a number, so that one comparison looks at eight."""
    rows, width = letters.shape
    filled = np.zeros((rows, (width + _WORD - 1) // _WORD * _WORD), np.uint8)
    filled[:, :width] = letters
    return filled.view(np.uint64)


def _texts(letters: UInt8) -> list[str]:
    names: list[bytes] = np.ascontiguousarray(letters).view(f"S{letters.shape[1]}").ravel().tolist()
    return b"\0".join(names).decode("ascii").split("\0") if names else []
