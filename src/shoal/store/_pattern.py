"""Shard patterns: braces, globs, lists and ``::`` for reading, ``%06d`` and ``{:06d}`` for writing."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator

from shoal.errors import ObjectNotFoundError, PatternError

from ._route import store_for
from ._url import join_url, parent_url

__all__ = ["expand_braces", "expand_pattern", "numbered_name"]

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([a-zA-Z])\.\.([a-zA-Z])")
_MOST_NAMES = 10_000_000


def expand_braces(pattern: str) -> list[str]:
    """Expand ``{00000..00099}``, ``{a..e}``, ``{0..10..5}`` and ``{train,val}``, nested too, as a shell does.

    Example:
        >>> expand_braces("data-{000..002}.tar")
        ['data-000.tar', 'data-001.tar', 'data-002.tar']
    """
    span = _first_brace(pattern)
    if span is None:
        return [pattern]
    start, stop = span
    heads = [pattern[:start] + choice for choice in _choices(pattern[start + 1 : stop])]
    rests = expand_braces(pattern[stop + 1 :])
    if len(heads) * len(rests) > _MOST_NAMES:
        raise PatternError("the pattern names too many shards", expected=f"at most {_MOST_NAMES}", found=pattern)
    return [head + rest for head in heads for rest in rests]


def _first_brace(text: str) -> tuple[int, int] | None:
    """Where the first balanced brace opens and closes."""
    depth, start = 0, -1
    for at, letter in enumerate(text):
        if letter == "{":
            start = at if depth == 0 else start
            depth += 1
        elif letter == "}" and depth:
            depth -= 1
            if depth == 0:
                return start, at
    return None


def _choices(inside: str) -> list[str]:
    if numbers := _RANGE.fullmatch(inside):
        return _number_range(*numbers.groups())
    if letters := _LETTERS.fullmatch(inside):
        first, last = (ord(letter) for letter in letters.groups())
        step = 1 if last >= first else -1
        return [chr(code) for code in range(first, last + step, step)]
    parts = _split_commas(inside)
    if len(parts) == 1:  # no choice in it: the braces stand for themselves
        return ["{" + name + "}" for name in expand_braces(inside)]
    return [name for part in parts for name in expand_braces(part)]


def _split_commas(inside: str) -> list[str]:
    """Split at the commas that no inner brace holds."""
    parts, depth = [""], 0
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _number_range(first: str, last: str, step: str | None) -> list[str]:
    low, high = int(first), int(last)
    jump = abs(int(step)) if step and int(step) else 1
    if abs(high - low) // jump >= _MOST_NAMES:
        raise PatternError("the pattern names too many shards", expected=f"at most {_MOST_NAMES}", found=f"{{{first}..{last}}}")
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    numbers = range(low, high + 1, jump) if high >= low else range(low, high - 1, -jump)
    return [f"{number:0{width}d}" for number in numbers]


def expand_pattern(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Every shard URL a pattern names, in order: braces and ``::`` as written, each glob sorted.

    A list is expanded item by item. A glob that matches nothing raises ObjectNotFoundError, so a typo is never an
    empty dataset.

    Example:
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
    matches = _glob_regex(name)
    found = sorted(info.url for info in store_for(root).list(root) if matches.fullmatch(_seen_from(info.url, root, name)))
    if not found:
        raise ObjectNotFoundError("the pattern matches no file", found=name, hint="check the folder and the pattern")
    return found


def _seen_from(url: str, root: str, pattern: str) -> str:
    return join_url(root, url) if root == "." and pattern.startswith("./") else url


def _glob_regex(name: str) -> re.Pattern[str]:
    """``*`` and ``?`` stay inside one folder, ``**`` crosses them; names that start with a dot need it spelled out."""
    parts = []
    for part in name.split("/"):
        if part == "**":
            parts.append(r"(?:(?!\.)[^/]+/)*")
            continue
        hidden = "" if not part.startswith(("*", "?", "[")) else r"(?!\.)"
        inner = fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^/]*")
        parts.append(f"{hidden}{inner}/")
    return re.compile("".join(parts).removesuffix("/"))


def numbered_name(pattern: str, number: int) -> str:
    """The name of shard ``number``: ``%06d`` or ``{:06d}`` in ``pattern`` is replaced.

    Raises PatternError when the pattern has more than one place for the number, or none and the number is not 0.

    Example:
        >>> numbered_name("train-%06d.tar", 7), numbered_name("train-{:03d}.tar", 7)
        ('train-000007.tar', 'train-007.tar')
    """
    places = re.findall(r"%0?\d*d|\{:0?\d*d?\}", pattern)
    if len(places) > 1:
        raise PatternError("a shard pattern has one number", expected="one %06d or {:06d}", found=pattern)
    if not places and number:
        raise PatternError(
            "the shard is full and its name has no number", expected="%06d or {:06d} in the name", found=pattern, hint="or raise max_samples and max_bytes"
        )
    if not places:
        return pattern
    place = places[0]
    text = place % number if place.startswith("%") else place.format(number)
    return pattern.replace(place, text)
