"""DALI's index: one text file a shard, a line a sample.

``v1.2 N``, then on each line, for every member, ``extension offset size name``; v1.1 has no names. Offsets are those of
the data. Parts are separated by spaces, so names and extensions with spaces have no place in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import ShardIndexError, StaleIndexError, WriteError
from shoal.shard._index import ShardIndex
from shoal.shard._tar import WEBDATASET_RULE, KeyRule
from shoal.store import ObjectReader, store_for

from ._foreign_index import SCAN_INSTEAD, Claim, Tar, import_claim, known_members, walk

__all__ = ["export_dali_idx", "import_dali"]

_PARTS = {b"v1.2": 4, b"v1.1": 3}
_WHITE = frozenset(" \t\n\v\f\r")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class _Component:
    """One member, as a line states it."""

    line: int
    extension: bytes
    offset: int
    size: int
    name: bytes | None


def import_dali(idx_url: str, shard_url: str, reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE) -> ShardIndex:
    r"""The index of a shard from DALI's ``.idx`` file, versions 1.1 and 1.2.

    Version 1.2 needs only a few headers of the tar; version 1.1 has no names, so all headers are read. Raises
    ShardIndexError when the file is not such an index, and StaleIndexError when it does not fit the tar.

    Example:
        >>> from shoal.shard._tar._header import build_header
        >>> store = store_for("memory://dali")
        >>> _ = store.write_all("memory://dali/a.tar", build_header(b"a.txt", 5) + b"hello" + bytes(507 + 1024))
        >>> _ = store.write_all("memory://dali/a.idx", b"v1.2 1\ntxt 512 5 a.txt\n")
        >>> index = import_dali("memory://dali/a.idx", "memory://dali/a.tar", store.open("memory://dali/a.tar"))
        >>> index.key_list(0, 1), int(index.fields["txt"].offset[0])
        (['a'], 512)
    """
    tar = Tar(shard_url, reader, rule)
    components = _parsed(store_for(idx_url).read_all(idx_url), idx_url, shard_url)
    offsets, sizes = _column(components, "offset"), _column(components, "size")
    if any(part.name is None or b"\\" in part.name for part in components):
        # GNU tar, which DALI's tool asks for names, writes unusual ones with backslashes
        names = _names_in_tar(tar, offsets, sizes)
    else:
        names = [_decoded(part, tar) for part in components]
    try:
        return import_claim(Claim(names, _column(components, "line"), offsets, sizes), tar)
    except StaleIndexError as error:
        if reader.read(156, 157) == b"x":
            error.hint = f"DALI's wds2idx misplaces members that have PAX headers; {SCAN_INSTEAD}"
        raise


def _column(components: list[_Component], name: str) -> npt.NDArray[np.int64]:
    return np.array([getattr(part, name) for part in components], np.int64)


def _parsed(data: bytes, idx_url: str, shard_url: str) -> list[_Component]:
    lines = data.removesuffix(b"\n").split(b"\n")
    head = lines[0].split()
    if len(head) != 2 or head[0] not in _PARTS or not _is_number(head[1]):
        expected, found = "'v1.2 N' or 'v1.1 N' on the first line", f"{lines[0][:40]!r} in {idx_url}"
        raise ShardIndexError(
            "this is not a DALI index", expected=expected, found=found, shard=shard_url, hint=SCAN_INSTEAD
        )
    if int(head[1]) != len(lines) - 1:
        problem, expected = "the DALI index is not whole", f"{int(head[1])} samples"
        found = f"{len(lines) - 1} lines in {idx_url}"
        raise ShardIndexError(problem, expected=expected, found=found, shard=shard_url, hint=SCAN_INSTEAD)
    found_parts: list[_Component] = []
    for number, line in enumerate(lines[1:], 1):
        components = _line(line.split(), number, _PARTS[head[0]])
        if not components:
            raise _bad_line(line, number, _PARTS[head[0]], idx_url, shard_url)
        found_parts += components
    return found_parts


def _line(words: list[bytes], number: int, step: int) -> list[_Component]:
    """The members of one line; none when it cannot be understood."""
    if len(words) % step:
        return []
    groups = [words[at : at + step] for at in range(0, len(words), step)]
    if not all(_is_number(group[1]) and _is_number(group[2]) and _fits(group) for group in groups):
        return []
    return [
        _Component(number, extension, int(offset), int(size), name[0] if name else None)
        for extension, offset, size, *name in groups
    ]


def _is_number(word: bytes) -> bool:
    return word.isdigit() and len(word) <= _MOST_DIGITS


def _fits(group: list[bytes]) -> bool:
    """Whether extension and name agree: where they do not, a space in a name has shifted the parts."""
    base = group[-1].rpartition(b"/")[2]
    return len(group) == 3 or b"." not in base or base.endswith(b"." + group[0])


def _bad_line(line: bytes, number: int, step: int, idx_url: str, shard_url: str) -> ShardIndexError:
    expected = (
        "'extension offset size name' for each member" if step == 4 else "'extension offset size' for each member"
    )
    return ShardIndexError(
        f"line {number + 1} of a DALI index cannot be understood",
        expected=expected,
        found=f"{line[:60]!r} in {idx_url}",
        shard=shard_url,
        hint=f"a name with a space cannot be told apart in this layout; {SCAN_INSTEAD}",
    )


def _decoded(part: _Component, tar: Tar) -> str:
    name = part.name or b""
    try:
        return name.decode(tar.rule.encoding)
    except UnicodeDecodeError:
        problem, expected = "a name in the DALI index cannot be read", f"{tar.rule.encoding} text"
        hint = "name the encoding: KeyRule(encoding='latin-1')"
        raise ShardIndexError(
            problem, expected=expected, found=repr(name), shard=tar.url, offset=part.offset, hint=hint
        ) from None


def _names_in_tar(tar: Tar, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> list[str]:
    """The names of the members at these places, from the tar's own headers."""
    walked = walk(tar)
    at = np.searchsorted(walked.offsets, offsets)
    inside = np.minimum(at, len(walked.offsets) - 1)
    wrong = np.ones(len(offsets), bool)
    if len(walked.offsets):
        wrong = (walked.offsets[inside] != offsets) | (walked.sizes[inside] != sizes)
    if wrong.any():
        first = int(wrong.argmax())
        problem, expected = "the shard has no such member where the index says", f"{int(sizes[first])} bytes"
        raise StaleIndexError(problem, expected=expected, shard=tar.url, offset=int(offsets[first]), hint=SCAN_INSTEAD)
    return [walked.names[position] for position in inside.tolist()]


def export_dali_idx(index: ShardIndex, url: str) -> None:
    """Write DALI's ``.idx`` (version 1.2) of a shard to ``url``.

    Names are made of key and field, as the index has them. Raises WriteError for what the layout cannot hold: no
    samples at all, names with spaces, members without an extension, compressed shards.
    """
    if index.facts.compression is not None:
        raise WriteError("DALI reads plain tars only", found=f"a shard compressed with {index.facts.compression}")
    if not len(index):
        raise WriteError("DALI has no index of a shard without samples")
    keys, fields = index.key_list(0, len(index)), list(index.fields)
    lines: list[list[str]] = [[] for _ in keys]
    members = known_members(index)
    columns = (members.rows.tolist(), members.fields.tolist(), members.offsets.tolist(), members.sizes.tolist())
    for row, code, offset, size in zip(*columns, strict=True):
        lines[row].append(_words(keys[row], fields[code], offset, size))
    text = "\n".join([f"v1.2 {len(keys)}", *map(" ".join, lines), ""])
    store_for(url).write_all(url, text.encode(index.facts.rule.encoding))


def _words(key: str, field: str, offset: int, size: int) -> str:
    name = f"{key}.{field}"
    if not field or not _WHITE.isdisjoint(name):
        problem, expected = "DALI's index cannot hold this name", "an extension, and no spaces"
        raise WriteError(problem, expected=expected, found=repr(name), key=key, field=field)
    return f"{field} {offset} {size} {name}"
