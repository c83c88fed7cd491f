"""Shard patterns: braces, globs, lists and ``::`` for reading, ``%06d`` and ``{:06d}`` for writing."""

from __future__ import annotations

import fnmatch
import os
import re
import string
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from shoal.errors import ObjectNotFoundError, PatternError

from ._registry import store_for
from ._url import join_url, parent_url

__all__ = ["expand_braces", "expand_pattern", "number_in_name", "numbered_name"]

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?")
_LETTERS = re.compile(r"([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d{1,18}))?")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_MAX_NAMES = 1_000_000
_NUMBER = re.compile(r"%0?\d*d|\{:0?\d*d?\}")


def expand_braces(pattern: str) -> list[str]:
    """Expand ``{00000..00099}``, ``{a..e}``, ``{0..10..5}`` and ``{train,val}``, nested too, as a shell does.

    Examples:
        >>> expand_braces("data-{000..002}.tar")
        ['data-000.tar', 'data-001.tar', 'data-002.tar']
    """
    span = _first_brace(pattern)
    if span is None:
        return [pattern]
    start, stop = span
    heads = [pattern[:start] + choice for choice in _choices(pattern[start + 1 : stop])]
    rests = expand_braces(pattern[stop + 1 :])
    if len(heads) * len(rests) > _MAX_NAMES:
        raise PatternError("the pattern names too many shards", expected=f"at most {_MAX_NAMES}", found=pattern)
    return [head + rest for head in heads for rest in rests]


def _first_brace(text: str) -> tuple[int, int] | None:
    """Return the positions of the first brace that is closed, and of its closing brace."""
    opened = [at for at, letter in enumerate(text) if letter == "{"]
    closing = ((start, _closing_brace(text, start)) for start in opened)
    return next(((start, stop) for start, stop in closing if stop is not None), None)


def _closing_brace(text: str, start: int) -> int | None:
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return None


def _choices(inside: str) -> list[str]:
    if numbers := _RANGE.fullmatch(inside):
        return _number_range(*numbers.groups())
    if letters := _LETTERS.fullmatch(inside):
        first, last = (_ALPHABET.index(letter) for letter in letters.groups()[:2])
        return [_ALPHABET[at] for at in _numbers(first, last, letters[3])]
    parts = _split_commas(inside)
    if len(parts) == 1:  # no alternatives: the braces are literal
        return ["{" + name + "}" for name in expand_braces(inside)]
    return [name for part in parts for name in expand_braces(part)]


def _split_commas(inside: str) -> list[str]:
    """Split at the commas outside inner braces."""
    parts, depth = [""], 0
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _number_range(first: str, last: str, step: str | None) -> list[str]:
    numbers = _numbers(int(first), int(last), step)
    if len(numbers) > _MAX_NAMES:
        raise PatternError(
            "the pattern names too many shards", expected=f"at most {_MAX_NAMES}", found=f"{{{first}..{last}}}"
        )
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]


def _numbers(first: int, last: int, step: str | None) -> range:
    jump = abs(int(step or 1)) or 1
    return range(first, last + 1, jump) if last >= first else range(first, last - 1, -jump)


def expand_pattern(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Every shard URL a pattern names, in order: braces and ``::`` as written, each glob sorted.

    A list is expanded item by item. A glob that matches nothing raises ObjectNotFoundError, so a typo is never an
    empty dataset.

    Examples:
        >>> expand_pattern("a-{0..1}.tar::b.tar")
        ['a-0.tar', 'a-1.tar', 'b.tar']
    """
    if isinstance(pattern, (str, os.PathLike)):
        return list(_expand_text(os.fspath(pattern)))
    return [url for item in pattern for url in _expand_text(os.fspath(item))]


def _expand_text(text: str) -> Iterator[str]:
    for part in text.split("::"):
        for name in expand_braces(part):
            yield from _expand_glob(name) if _is_glob(name) else (name,)


def _is_glob(name: str) -> bool:
    return any(mark in name for mark in "*?[") and not _exists(name)


def _exists(name: str) -> bool:
    try:
        store_for(name).info(name)
    except ObjectNotFoundError:
        return False
    return True


def _expand_glob(name: str) -> list[str]:
    root = parent_url(re.split(r"[*?\[]", name, maxsplit=1)[0] + "x")
    parts = name.split("/")
    depth = None if "**" in parts else len(parts) - _spell_like(join_url(root, "x"), name).count("/")
    urls = (info.url for info in store_for(root).list(root, depth))
    found = [url for url in urls if _matches(parts, _spell_like(url, name).split("/"))]
    if not found:
        raise ObjectNotFoundError("the pattern matches no file", found=name, hint="check the folder and the pattern")
    return found


def _spell_like(url: str, pattern: str) -> str:
    """Return ``url`` in the spelling of ``pattern``."""
    if pattern.startswith("./"):
        return url if url.startswith("./") else f"./{url}"
    return unquote(url) if pattern.startswith("file://") else url


def _matches(parts: list[str], names: list[str]) -> bool:
    """Whether names match: a part matches one folder, ``**`` any number; a leading dot has to be in the pattern."""
    if not parts or not names:
        return not parts and not names
    if parts[0] == "**":
        shown = next((at for at, name in enumerate(names) if name.startswith(".")), len(names))
        return any(_matches(parts[1:], names[at:]) for at in range(shown + 1))
    hidden = names[0].startswith(".") and not parts[0].startswith(".")
    return not hidden and fnmatch.fnmatchcase(names[0], parts[0]) and _matches(parts[1:], names[1:])


def numbered_name(pattern: str, number: int) -> str:
    """The name of shard ``number``: ``%06d`` or ``{:06d}`` in ``pattern`` is replaced.

    Raises PatternError when the pattern has more than one place for the number, or none and the number is not 0.

    Examples:
        >>> numbered_name("train-%06d.tar", 7), numbered_name("train-{:03d}.tar", 7)
        ('train-000007.tar', 'train-007.tar')
    """
    places = _NUMBER.findall(pattern)
    if len(places) > 1:
        raise PatternError("a shard pattern has one number", expected="one %06d or {:06d}", found=pattern)
    if not places and number:
        raise PatternError(
            "the shard is full and its name has no number",
            expected="%06d or {:06d} in the name",
            found=pattern,
            hint="or raise max_samples and max_bytes",
        )
    if not places:
        return pattern
    place = places[0]
    text = place % number if place.startswith("%") else place.format(number)
    return pattern.replace(place, text)


def number_in_name(pattern: str, name: str) -> int | None:
    """The number of the shard called ``name``; None when ``pattern`` never gives that name.

    Examples:
        >>> number_in_name("v2%04d.tar", "v20007.tar"), number_in_name("v2%04d.tar", "v3.tar")
        (7, None)
    """
    before, *after = _NUMBER.split(pattern, maxsplit=1)
    if not after:
        return 0 if name == pattern else None
    digits = name[len(before) : len(name) - len(after[0])]
    return int(digits) if digits.isdecimal() and numbered_name(pattern, int(digits)) == name else None
