"""Which members make a sample: member names -> (key, field), and rows."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import DuplicateFieldError, OptionError, TarError

from ._name_table import Names, NameTable, SplitNames, split_names

__all__ = ["META_MEMBER", "OF_THE_SHARD", "WEBDATASET_RULE", "Grouped", "Grouper", "KeyRule", "key_hint", "split_name"]

Int64 = npt.NDArray[np.int64]

# WebDataset's own rule: the key keeps its folders, the field is all that follows the first dot of the base name.
_FIRST_DOT = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_LAST_DOT = re.compile(r"(.*[^/])[.]([^/.]*)", re.DOTALL)
META_MEMBER = "__meta__"
"""The member that holds the dataset's metadata in each shard. WebDataset and Hugging Face pass such names by."""
OF_THE_SHARD = "metadata of the shard"
"""Why that member belongs to no sample."""
_OWN_FIELDS = ("__key__", "__url__")  # webdataset puts them into every sample before its fields
_NO_SEPARATORS = bytes(set(range(256)) - set(b".\n"))
_RESERVED = re.compile(r"__[^/]*__(?:$|/)")


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How a member's name becomes a sample's key and a field. The default is exactly WebDataset's rule.

    Example:
        >>> split_name("a/b.seg.JPG")
        ('a/b', 'seg.jpg')
        >>> split_name("a/b.seg.JPG", KeyRule(dot="last", case="keep", folders="flatten"))
        ('b.seg', 'JPG')
    """

    dot: Literal["first", "last"] = "first"
    """Which dot of the base name ends the key."""
    folders: Literal["keep", "flatten"] = "keep"
    """Whether folders belong to the key. When flattened, one name from two folders is an error."""
    case: Literal["lower", "keep"] = "lower"
    """Whether fields are lower-cased."""
    group: Literal["neighbours", "archive"] = "neighbours"
    """Whether only neighbouring members make a sample, or all of the archive with the same key."""
    encoding: str = "utf-8"
    """How names are stored."""

    def __post_init__(self) -> None:
        choices = {
            "dot": ("first", "last"),
            "folders": ("keep", "flatten"),
            "case": ("lower", "keep"),
            "group": ("neighbours", "archive"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"KeyRule has no such {name}", expected=" or ".join(allowed), found=repr(getattr(self, name))
                )
        try:
            "a".encode(self.encoding)
        except LookupError:
            raise OptionError(
                "KeyRule has no such encoding", expected="one that Python knows", found=repr(self.encoding)
            ) from None


WEBDATASET_RULE = KeyRule()


def split_name(name: str, rule: KeyRule = WEBDATASET_RULE) -> tuple[str, str] | None:
    """The key and field a member's name stands for; None for a name that belongs to no sample.

    Names such as ``__meta__`` and ``__meta__/x.json`` belong to no sample; neither do names without a dot.
    """
    if _RESERVED.match(name):
        return None
    found = (_FIRST_DOT if rule.dot == "first" else _LAST_DOT).fullmatch(name)
    if found is None:
        return None
    key, field = found.groups()
    if rule.folders == "flatten":
        key = key.rpartition("/")[2]
    return (key, field.lower() if rule.case == "lower" else field) if key else None


@dataclass(frozen=True, slots=True)
class Grouped:
    """Members with the row and field each belongs to; ``kept`` are their positions among the names given."""

    rows: Int64
    fields: Int64
    """Codes: positions in ``Grouper.fields``."""
    kept: Int64 | None
    """None when every name belongs to a sample."""


class Grouper:
    """Gives members their rows, name list by name list, in the archive's order."""

    def __init__(self, rule: KeyRule = WEBDATASET_RULE, skipped: Counter[str] | None = None) -> None:
        self.rule = rule
        self.keys: list[str] = []
        self.fields: dict[str, int] = {}
        self._skipped: Counter[str] = Counter() if skipped is None else skipped
        self._row_of: dict[str, int] = {}
        self._folder_of: dict[str, str] = {}

    def add(self, names: Names) -> Grouped:
        """Group the next members.

        Raises TarError when flattening folders makes two keys one, DuplicateFieldError for a field every sample has.
        """
        if isinstance(names, NameTable):
            split = split_names(names) if self.rule == WEBDATASET_RULE else None
            if split is not None and not any(own in split.fields for own in _OWN_FIELDS):
                return self._add_split(split)
            names = names.texts()
        keys, fields, kept = self._split(names)
        rows = self._rows(keys)
        codes = self.fields
        numbers = [codes[field] if field in codes else codes.setdefault(field, len(codes)) for field in fields]
        for own in _OWN_FIELDS:
            if own in codes:
                raise DuplicateFieldError(
                    "a field has the name of a fact that every sample has", key=keys[fields.index(own)], field=own
                )
        return Grouped(rows, np.array(numbers, np.int64), None if kept is None else np.array(kept, np.int64))

    def _add_split(self, split: SplitNames) -> Grouped:
        known, new = self.keys, split.keys
        goes_on = bool(known) and known[-1] == new[0]
        rows = np.cumsum(split.is_new) + (len(known) - 1 - goes_on)
        known += new[1:] if goes_on else new
        codes = [self.fields.setdefault(field, len(self.fields)) for field in split.fields]
        return Grouped(rows, np.array(codes, np.int64)[split.codes], None)

    def _split(self, names: list[str]) -> tuple[Sequence[str], Sequence[str], list[int] | None]:
        if self.rule == WEBDATASET_RULE and _are_simple(names):
            before, behind = _halves(names)
            if before:
                return before, behind, None
        pairs = [split_name(name, self.rule) for name in names]
        kept = [at for at, pair in enumerate(pairs) if pair is not None]
        own = names.count(META_MEMBER)
        for reason, count in ((OF_THE_SHARD, own), ("name without key and field", len(names) - len(kept) - own)):
            if count:
                self._skipped[reason] += count
        found = [pair for pair in pairs if pair is not None]
        keys = [key for key, _ in found]
        if self.rule.folders == "flatten":
            self._refuse_merged([names[at] for at in kept], keys)
        return keys, [field for _, field in found], kept

    def _refuse_merged(self, names: list[str], keys: list[str]) -> None:
        for name, key in zip(names, keys, strict=True):
            folder = name.rpartition("/")[0]
            if self._folder_of.setdefault(key, folder) != folder:
                both = f"{self._folder_of[key]}/ and {folder}/"
                raise TarError(
                    "flattening folders makes two samples one",
                    found=both,
                    key=key,
                    hint="keep folders: KeyRule(folders='keep')",
                )

    def _rows(self, keys: Sequence[str]) -> Int64:
        if self.rule.group == "archive":
            return self._archive_rows(keys)
        rows, known = [], self.keys
        last, row = (known[-1] if known else None), len(known) - 1
        for key in keys:
            if key != last:
                known.append(key)
                last = key
                row += 1
            rows.append(row)
        return np.array(rows, np.int64)

    def _archive_rows(self, keys: Sequence[str]) -> Int64:
        rows = self._row_of
        for key in keys:
            if key not in rows:
                rows[key] = len(self.keys)
                self.keys.append(key)
        return np.array([rows[key] for key in keys], np.int64)


def _are_simple(names: list[str]) -> bool:
    """Whether every name is plain and lower-case: then splitting it at the first dot, if it has one, is the rule."""
    joined = "\n" + "\n".join(names)
    return bool(names) and not (
        "/" in joined
        or "\n__" in joined
        or "\n." in joined
        or joined != joined.lower()
        or joined.count("\n") != len(names)
    )


def _halves(names: list[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What stands before and behind the first dot of simple names; nothing where one has no dot."""
    joined = "\n".join(names)
    if joined.count(".") == len(names):
        separators = joined.encode("utf-8", "surrogatepass").translate(None, _NO_SEPARATORS)
        if separators == (b".\n" * len(names))[:-1]:  # one dot each, so all at once
            halves = joined.replace(".", "\n").split("\n")
            return halves[::2], halves[1::2]
    before, dots, behind = zip(*[name.partition(".") for name in names], strict=True)
    return ((), ()) if "" in dots else (before, behind)


def key_hint(key: str, some: list[str]) -> str | None:
    """What to say to who asked for a key that is not there, knowing some that are.

    Example:
        >>> key_hint("00123", ["000123", "777"]), key_hint("cat", ["000123"])
        ("did you mean '000123'?", "keys look like '000123'")
    """
    near = difflib.get_close_matches(key, some, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"keys look like {some[0]!r}" if some else None
