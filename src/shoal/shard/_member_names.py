"""Keys and fields from member names, grouping of members into samples, and checks for names that are written."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal._typing import BoolArray, IntArray, UInt8Array, UInt64Array
from shoal.errors import DuplicateFieldError, OptionError, TarError, UnsafeNameError

__all__ = [
    "META_MEMBER",
    "OF_THE_SHARD",
    "WEBDATASET_RULE",
    "Grouped",
    "Grouper",
    "KeyRule",
    "as_texts",
    "check_field",
    "check_key",
    "key_hint",
    "name_table",
    "split_name",
    "split_names",
]


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

    Examples:
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
    """Which members of one key make a sample: ``neighbours`` are streamed in one pass, and only an index joins others;
    with ``archive``, all members of the archive are read before the first sample."""
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

    rows: IntArray
    fields: IntArray
    """Codes: positions in ``Grouper.fields``."""
    kept: IntArray | None
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

    def _rows(self, keys: Sequence[str]) -> IntArray:
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

    def _archive_rows(self, keys: Sequence[str]) -> IntArray:
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
    """A hint for a key that was not found, given some keys that exist.

    Examples:
        >>> key_hint("00123", ["000123", "777"]), key_hint("cat", ["000123"])
        ("did you mean '000123'?", "keys look like '000123'")
    """
    near = difflib.get_close_matches(key, some, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"keys look like {some[0]!r}" if some else None


_DOT, _SLASH, _UNDERSCORE, _FIRST_CAPITAL = b"./_A"
_WORD = 8
_MOST_FIELDS = 32  # in one table; each is looked for in all of it


@dataclass(frozen=True, slots=True)
class NameTable:
    """ASCII names, a row each, filled up with NULs at their ends."""

    letters: UInt8Array

    def __len__(self) -> int:
        return len(self.letters)

    def texts(self) -> list[str]:
        """The names one by one."""
        return _texts(self.letters)


Names = list[str] | NameTable


def as_texts(parts: Sequence[Names]) -> list[str]:
    """Runs of names as one list."""
    return [name for part in parts for name in (part.texts() if isinstance(part, NameTable) else part)]


def name_table(fields: UInt8Array) -> NameTable | None:
    """The table of a column of name fields; None where a name is not ASCII, or has letters behind a NUL."""
    used = np.flatnonzero(fields.any(axis=0))  # NumPy looks at every NUL behind a name
    letters = np.ascontiguousarray(fields[:, : int(used[-1]) + 1 if len(used) else 1])
    if letters.max(initial=0) > 127 or ((letters[:, :-1] == 0) & (letters[:, 1:] != 0)).any():
        return None
    return NameTable(letters)


@dataclass(frozen=True, slots=True)
class SplitNames:
    """Names split as WebDataset splits them. All of them belong to samples."""

    is_new: BoolArray
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


def _dot_of(letters: UInt8Array) -> int | None:
    """Where the first dot of every name stands, if splitting the names there is all of the rule."""
    dot = letters[0].tobytes().find(b".") if len(letters) else -1
    if not 0 < dot < letters.shape[1] - 1 or (letters[:, dot] != _DOT).any() or (letters[:, 0] == _UNDERSCORE).any():
        return None
    before, behind = letters[:, :dot], letters[:, dot + 1 :]
    # Letters are without sign: what is below the first wraps, so that one comparison checks both ends.
    dots_or_slashes = before - np.uint8(_DOT) <= _SLASH - _DOT
    capitals = behind - np.uint8(_FIRST_CAPITAL) < 26
    return None if dots_or_slashes.any() or capitals.any() or (behind == _SLASH).any() else dot


def _differ_from_last(letters: UInt8Array) -> BoolArray:
    words = _words(letters)
    differ = np.ones(len(words), bool)
    np.not_equal(words[1:, 0], words[:-1, 0], out=differ[1:])
    for at in range(1, words.shape[1]):
        differ[1:] |= words[1:, at] != words[:-1, at]
    return differ


def _coded(letters: UInt8Array) -> tuple[npt.NDArray[np.int64], list[int]] | None:
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


def _words(letters: UInt8Array) -> UInt64Array:
    """Eight letters a number, so that one comparison looks at eight."""
    rows, width = letters.shape
    filled = np.zeros((rows, (width + _WORD - 1) // _WORD * _WORD), np.uint8)
    filled[:, :width] = letters
    return filled.view(np.uint64)


def _texts(letters: UInt8Array) -> list[str]:
    names: list[bytes] = np.ascontiguousarray(letters).view(f"S{letters.shape[1]}").ravel().tolist()
    return b"\0".join(names).decode("ascii").split("\0") if names else []


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
