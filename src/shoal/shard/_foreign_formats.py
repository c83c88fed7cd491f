"""Import and export the indexes of wids, Energon and DALI.

A wids index lists shards and knows nothing of their members, so it becomes a list of shards, not a shard index.

Energon's ``X.tar.idx`` holds where each sample starts, headers included, and where the last one ends: unsigned 64-bit
numbers in the machine's byte order. Its database also knows the members (``sample_parts``), in its later versions;
``.info.json`` beside it lists the shards in the order of their numbers.

DALI's index has a line ``v1.2 N``, then for each sample a line with ``extension offset size name`` of every member;
v1.1 has no names. Offsets are those of the data. Values are separated by spaces, so names and extensions with spaces
cannot be stored.
"""

from __future__ import annotations

import os
import posixpath
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import ShardIndexError, StaleIndexError, WriteError
from shoal.store._base import ObjectReader
from shoal.store._operations import exists
from shoal.store._registry import store_for
from shoal.store._url import join_url, local_path, parent_url, relative_url, scheme_of

from ._foreign_index import SCAN_INSTEAD, ForeignIndex, Tar, TarMembers, import_foreign, walk_headers
from ._index_build import MemberColumns, member_columns
from ._member_names import WEBDATASET_RULE, Grouper, KeyRule
from ._shard_rows import ShardRows
from ._tar_header import BLOCK

__all__ = [
    "Loader",
    "WidsShard",
    "check_wids",
    "dali_url",
    "export_dali_idx",
    "export_tar_idx",
    "export_wids",
    "import_dali",
    "import_energon",
    "import_rows",
    "import_wids",
]

Loader = Literal["energon", "dali"]
"""Loaders whose indexes know the members of a tar, or where its samples are."""

Count = Annotated[int, msgspec.Meta(ge=0)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


_KIND = "wids-shard-index-v1"
_VERSION = 1


def import_rows(loader: Loader, reader: ObjectReader, rule: KeyRule, root: str | None = None) -> ShardRows:
    """The index of an open shard from that of another loader, where that loader keeps it.

    Energon's is beside the shard, else below ``root``, the folder of the dataset. Raises as `import_energon` and
    `import_dali`.
    """
    url = reader.info.url
    if loader == "dali":
        return import_dali(dali_url(url), url, reader, rule)
    beside, database = f"{url}.idx", join_url(root or parent_url(url), ".nv-meta", "index.sqlite")
    return import_energon(beside if exists(beside) else database, url, reader, rule)


def dali_url(url: str) -> str:
    """Where DALI's index of a shard is kept."""
    return f"{url.removesuffix('.tar')}.idx"


@dataclass(frozen=True, slots=True)
class WidsShard:
    """One shard as a wids index lists it."""

    url: str
    """Whole: a relative one has been resolved."""
    nsamples: int
    filesize: int | None = None
    md5sum: str | None = None


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    url: str
    nsamples: Count
    filesize: Count | None = None
    md5sum: str | None = None


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole document, or one of the ``datasets`` in it."""

    kind: str | None = msgspec.field(default=None, name="__kind__")
    wids_version: int | None = None
    name: str | None = None
    base: str | None = None
    source_url: str | None = None
    shardlist: tuple[_Entry, ...] | None = None
    datasets: tuple[_Document, ...] = ()


def import_wids(json_url: str) -> list[WidsShard]:
    """Every shard that a wids JSON lists, in its order, those of its ``datasets`` after its own.

    Relative URLs count from ``base``, else from the folder of the JSON they stand in. A dataset may be in a JSON of its
    own (``source_url``), which may not refer to others in turn. Raises ShardIndexError when it is not such a JSON.

    Examples:
        >>> url = "memory://wids/index.json"
        >>> text = b'{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 7}]}'
        >>> _ = store_for(url).write_all(url, text)
        >>> import_wids(url)
        [WidsShard(url='memory://wids/a.tar', nsamples=7, filesize=None, md5sum=None)]
    """
    document = _read(json_url)
    if document.kind is None and document.wids_version is None:
        raise ShardIndexError("this is not a wids index", expected="wids_version 1", found="none", shard=json_url)
    folder = _base(document, parent_url(json_url))
    shards = _resolve_shards(document, folder, json_url)
    for dataset in document.datasets:
        shards += _dataset(dataset, folder, json_url)
    if not shards:
        raise ShardIndexError("the wids index lists no shards", shard=json_url)
    return shards


def _read(url: str) -> _Document:
    data = store_for(url).read_all(url)
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ShardIndexError("this is not a wids index", found=str(error), shard=url) from error
    if document.kind not in (None, _KIND):
        raise ShardIndexError("this is not a wids index", expected=_KIND, found=document.kind, shard=url)
    if document.wids_version not in (None, _VERSION):
        problem, expected = "the wids index is of another version", f"wids_version {_VERSION}"
        raise ShardIndexError(problem, expected=expected, found=document.wids_version, shard=url)
    return document


def _dataset(dataset: _Document, folder: str, json_url: str) -> list[WidsShard]:
    if dataset.source_url is None:
        return _listed(dataset, _base(dataset, folder), json_url)
    url = _resolve_url(folder, dataset.source_url, json_url)
    return _listed(found := _read(url), _base(found, parent_url(url)), url)


def _listed(dataset: _Document, folder: str, json_url: str) -> list[WidsShard]:
    if dataset.datasets or dataset.source_url is not None:
        problem, hint = "a dataset of a wids index refers to another in turn", "list its shards there"
        raise ShardIndexError(problem, found=dataset.source_url or "datasets", shard=json_url, hint=hint)
    if dataset.shardlist is None:
        raise ShardIndexError("a dataset of a wids index has neither shardlist nor source_url", shard=json_url)
    return _resolve_shards(dataset, folder, json_url)


def _resolve_shards(document: _Document, folder: str, json_url: str) -> list[WidsShard]:
    return [
        WidsShard(_resolve_url(folder, entry.url, json_url), entry.nsamples, entry.filesize, entry.md5sum)
        for entry in document.shardlist or ()
    ]


def _base(document: _Document, folder: str) -> str:
    return folder if document.base is None else _resolve_url(folder, document.base, folder)


def _resolve_url(folder: str, url: str, json_url: str) -> str:
    """``url`` as seen from ``folder``."""
    if url.startswith("pipe:"):
        raise ShardIndexError("a wids index names a command in place of a shard", found=url, shard=json_url)
    if "://" in url:
        return url
    root, path = _split_root(folder)
    if not root:
        return os.path.normpath(os.path.join(path, url))
    return root + posixpath.normpath(posixpath.join(path or "/", url)).lstrip("/")


def _split_root(url: str) -> tuple[str, str]:
    """``s3://bucket/`` and the path in it; no root for a plain path."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "", url
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}/", f"/{path}"


def check_wids(shard: WidsShard, samples: int, size: int) -> None:
    """Raise StaleIndexError when a shard, by its own index, is not what the wids index says of it."""
    facts = (("bytes", shard.filesize, size), ("samples", shard.nsamples, samples))
    for what, stated, found in facts:
        if stated is not None and stated != found:
            problem, expected = "the shard is not what the wids index says", f"{stated} {what}"
            raise StaleIndexError(problem, expected=expected, found=found, shard=shard.url, hint=SCAN_INSTEAD)


def export_wids(shards: Sequence[WidsShard], url: str, *, name: str | None = None) -> None:
    """Write a wids JSON of these shards to ``url``, in their order, so that sample ``i`` is the same one there.

    Shards in the JSON's folder or below are named relative to it, so that the dataset can be moved as a whole.
    """
    folder = parent_url(url)
    entries = tuple(
        _Entry(_relative_to(folder, shard.url), shard.nsamples, shard.filesize, shard.md5sum) for shard in shards
    )
    document = _Document(kind=_KIND, wids_version=_VERSION, name=name, shardlist=entries)
    store_for(url).write_all(url, msgspec.json.format(msgspec.json.encode(document), indent=2))


def _relative_to(folder: str, url: str) -> str:
    """How a JSON in ``folder`` names ``url``."""
    if "://" in url:
        return url.removeprefix(folder.rstrip("/") + "/") if "://" in folder else url
    if scheme_of(folder) != "file":
        return "file://" + quote(os.path.abspath(local_path(url)))
    if os.path.isabs(url) and not os.path.isabs(local_path(folder)):
        return url
    relative = os.path.relpath(local_path(url), local_path(folder)).replace(os.sep, "/")
    return url if os.path.isabs(url) and relative.startswith("../") else relative


_SQLITE = b"SQLite format 3\0"


def import_energon(index_url: str, shard_url: str, reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE) -> ShardRows:
    """The index of a shard from Energon's ``X.tar.idx`` or from its ``.nv-meta/index.sqlite``.

    Which of the two it is, its content tells. A database that lists the members needs only a few headers of the tar;
    otherwise all headers are read. Raises ShardIndexError when the file is not such an index or does not have this
    shard, and StaleIndexError when it does not fit the tar.

    Examples:
        >>> from shoal.shard._tar_header import build_header
        >>> store, url = store_for("memory://energon"), "memory://energon/a.tar"
        >>> _ = store.write_all(url, build_header(b"a.txt", 5) + b"hello" + bytes(507 + 1024))
        >>> _ = store.write_all(f"{url}.idx", np.array([0, 1024], "=u8").tobytes())
        >>> import_energon(f"{url}.idx", url, store.open(url)).key_list(0, 1)
        ['a']
    """
    tar = Tar(shard_url, reader, rule)
    with closing(store_for(index_url).open(index_url)) as opened:
        if opened.read(0, len(_SQLITE)) == _SQLITE:
            return _from_database(index_url, tar)
        bounds = _parse_bounds(opened.read(0, opened.info.size), index_url, tar)
    return _from_bounds(bounds, tar)


def _parse_bounds(data: bytes, index_url: str, tar: Tar) -> IntArray:
    if not data or len(data) % 8:
        expected, found = "64-bit numbers", f"{len(data)} bytes in {index_url}"
        raise ShardIndexError(
            "this is not an Energon index", expected=expected, found=found, shard=tar.url, hint=SCAN_INSTEAD
        )
    bounds = np.frombuffer(data, "=u8")
    hint = f"was it written on a machine of the other byte order? {SCAN_INSTEAD}"
    if (bounds[1:] <= bounds[:-1]).any():
        problem = "the samples of an Energon index are not one after the other"
        raise ShardIndexError(problem, found=index_url, shard=tar.url, hint=hint)
    stop, size = int(bounds[-1]), tar.reader.info.size
    if stop > size:
        problem, expected = "the index points behind the end of the shard", f"at most {size} bytes"
        raise StaleIndexError(problem, expected=expected, found=stop, shard=tar.url, hint=hint)
    return bounds.astype(np.int64)


def _from_bounds(bounds: IntArray, tar: Tar) -> ShardRows:
    """The tar's own headers say what is in each sample; its samples must be the ones stated."""
    walked = walk_headers(tar)
    samples, first = _energon_samples(walked, tar.rule.encoding)
    actual = np.append(walked.starts[first], walked.stop)
    if len(actual) != len(bounds):
        raise _stale_error("other samples than the index says", f"{len(bounds) - 1} samples", str(len(first)), tar)
    if (actual != bounds).any():
        at = int((actual != bounds).argmax())
        what = f"sample {at}" if at < len(first) else "the end"
        raise _stale_error("other samples than the index says", f"{what} at {bounds[at]}", f"at {actual[at]}", tar)
    return import_foreign(ForeignIndex(walked.names, samples, walked.offsets, walked.sizes), tar)


def _stale_error(problem: str, expected: str, found: str, tar: Tar) -> StaleIndexError:
    return StaleIndexError(f"the shard has {problem}", expected=expected, found=found, shard=tar.url, hint=SCAN_INSTEAD)


def _energon_samples(walked: TarMembers, encoding: str) -> tuple[IntArray, IntArray]:
    """The number of each member's sample as Energon counts, -1 for none; and where each sample's first member is."""
    grouped = Grouper(KeyRule(encoding=encoding)).add(walked.names)
    samples = np.full(len(walked.names), -1, np.int64)
    kept = np.arange(len(samples)) if grouped.kept is None else grouped.kept
    samples[kept] = grouped.rows
    return samples, kept[np.diff(grouped.rows, prepend=-1) != 0]


class _Info(msgspec.Struct, frozen=True):
    """``.nv-meta/.info.json``."""

    shard_counts: dict[str, int]


def _from_database(sqlite_url: str, tar: Tar) -> ShardRows:
    number, count = _shard_number(sqlite_url, tar.url)
    with _database(sqlite_url, tar) as connection:
        query = "SELECT sample_key, sample_index, byte_offset, byte_size FROM samples WHERE tar_file_id = ?"
        rows = connection.execute(f"{query} ORDER BY sample_index", (number,)).fetchall()
        samples = msgspec.convert(rows, list[tuple[str, int, _Offset, _Offset]])
        if len(samples) != count or [sample[1] for sample in samples] != list(range(count)):
            expected, found = f"{count} samples, as .info.json says", f"{len(samples)} in {sqlite_url}"
            problem = "the Energon database is not whole"
            raise ShardIndexError(problem, expected=expected, found=found, shard=tar.url, hint=SCAN_INSTEAD)
        bounds = np.array([[start, start + size] for _, _, start, size in samples], np.int64).reshape(-1, 2)
        if not _has_parts(connection):
            return _from_bounds(np.append(bounds[:, 0], bounds[-1:, 1]) if count else np.zeros(1, np.int64), tar)
        foreign = _database_members(connection, number, [sample[0] for sample in samples], tar)
    _check_inside(foreign, bounds, tar)
    return import_foreign(foreign, tar)


def _shard_number(sqlite_url: str, shard_url: str) -> tuple[int, int]:
    """The shard's number in the database, and how many samples it has."""
    folder = parent_url(sqlite_url)
    info_url = join_url(folder, ".info.json")
    try:
        counts = msgspec.json.decode(store_for(info_url).read_all(info_url), type=_Info).shard_counts
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem, found = "this is not Energon's .info.json", f"{error} in {info_url}"
        raise ShardIndexError(problem, found=found, shard=shard_url, hint=SCAN_INSTEAD) from error
    name = _relative(shard_url, parent_url(folder))
    if name not in counts:
        expected = f"one of {len(counts)} shards, such as {next(iter(counts), 'none')}"
        problem = "Energon's .info.json does not have this shard"
        raise ShardIndexError(problem, expected=expected, found=name, shard=shard_url, hint=SCAN_INSTEAD)
    return list(counts).index(name), counts[name]


def _relative(shard_url: str, root: str) -> str:
    if scheme_of(shard_url) != "file" or scheme_of(root) != "file":
        return relative_url(shard_url, root)
    return os.path.relpath(local_path(shard_url), local_path(root)).replace(os.sep, "/")


@contextmanager
def _database(url: str, tar: Tar) -> Iterator[sqlite3.Connection]:
    """An open database. The one place where SQLite's errors become ours."""
    try:
        with closing(_connected(url)) as connection:
            yield connection
    except (sqlite3.Error, msgspec.ValidationError) as error:
        problem, found = "this is not an Energon database", f"{error} in {url}"
        raise ShardIndexError(problem, found=found, shard=tar.url, hint=SCAN_INSTEAD) from error


def _connected(url: str) -> sqlite3.Connection:
    if scheme_of(url) == "file":
        path = quote(os.path.abspath(local_path(url)))
        return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection = sqlite3.connect(":memory:")
    connection.deserialize(store_for(url).read_all(url))
    return connection


def _has_parts(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sample_parts'"
    return connection.execute(query).fetchone() is not None


def _database_members(connection: sqlite3.Connection, number: int, keys: list[str], tar: Tar) -> ForeignIndex:
    query = "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts"
    rows = connection.execute(f"{query} WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset", (number,))
    parts = msgspec.convert(rows.fetchall(), list[tuple[int, str, _Offset, _Offset]])
    samples = np.array([part[0] for part in parts], np.int64)
    if not np.array_equal(np.unique(samples), np.arange(len(keys))):
        expected, found = f"members of {len(keys)} samples", f"of {len(np.unique(samples))}"
        problem = "the Energon database is not whole"
        raise ShardIndexError(problem, expected=expected, found=found, shard=tar.url, hint=SCAN_INSTEAD)
    names = [f"{keys[sample]}.{part}" for sample, part, _, _ in parts]
    return ForeignIndex(names, samples, *(np.array([part[at] for part in parts], np.int64) for at in (2, 3)))


def _check_inside(foreign: ForeignIndex, bounds: IntArray, tar: Tar) -> None:
    """A member lies inside its sample, as the other table has it."""
    outside = (foreign.offsets < bounds[foreign.samples, 0]) | (
        foreign.offsets > bounds[foreign.samples, 1] - foreign.sizes
    )
    if outside.any():
        at = int(outside.argmax())
        start, stop = bounds[foreign.samples[at]].tolist()
        problem, expected = "the Energon database contradicts itself", f"{foreign.names[at]} between {start} and {stop}"
        raise ShardIndexError(
            problem, expected=expected, shard=tar.url, offset=int(foreign.offsets[at]), hint=SCAN_INSTEAD
        )


def export_tar_idx(index: ShardRows, url: str, reader: ObjectReader) -> None:
    """Write Energon's ``X.tar.idx`` of the shard open in ``reader`` to ``url``.

    Headers are read only where the index does not tell how long they are (PAX, GNU). Raises WriteError when Energon
    would see other samples than the index has, or cannot read the shard; StaleIndexError when the tar has changed.

    Energon wants the file beside the tar. The Hugging Face loader takes a file of this name for data, so keep it out of
    a dataset that is published there.
    """
    facts, shard_url = index.facts, reader.info.url
    if facts.compression is not None:
        raise WriteError(
            "Energon reads plain tars only", found=f"a shard compressed with {facts.compression}", shard=shard_url
        )
    head = reader.read(0, BLOCK)
    index.check_object(shard_url, reader.info.size, head, crc32(head))
    members = member_columns(index)
    if facts.rule.dot != "first" or (np.diff(members.rows) < 0).any():
        problem, found = "Energon would see other samples than the index has", str(facts.rule)
        raise WriteError(problem, expected="runs of members, grouped at the first dot", found=found, shard=shard_url)
    bounds = _plain_bounds(members, reader)
    if bounds is None:
        bounds = _walked_bounds(members, Tar(shard_url, reader, facts.rule))
    store_for(url).write_all(url, bounds.astype("=u8").tobytes())


def _plain_bounds(members: MemberColumns, reader: ObjectReader) -> IntArray | None:
    """The bounds where each sample has one plain header before its first member; None where some has more than that."""
    first = np.diff(members.rows, prepend=-1) != 0
    stops = members.offsets + (members.sizes + BLOCK - 1) // BLOCK * BLOCK
    starts = members.offsets[first] - BLOCK
    before = np.concatenate((np.zeros(1, np.int64), stops))[:-1][first]
    stop = int(stops[-1]) if len(stops) else 0
    if (before != starts).any() or any(reader.read(stop, stop + BLOCK)):
        return None
    return np.append(starts, stop)


def _walked_bounds(members: MemberColumns, tar: Tar) -> IntArray:
    walked = walk_headers(tar)
    first = members.offsets[np.diff(members.rows, prepend=-1) != 0]
    at = np.searchsorted(walked.offsets, first)
    if not np.array_equal(walked.offsets[np.minimum(at, len(walked.offsets) - 1)] if len(at) else at, first):
        raise _stale_error("no members where the index says", f"{len(first)} samples", "others", tar)
    return np.append(walked.starts[at], walked.stop)


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


def import_dali(idx_url: str, shard_url: str, reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE) -> ShardRows:
    r"""The index of a shard from DALI's ``.idx`` file, versions 1.1 and 1.2.

    Version 1.2 needs only a few headers of the tar; version 1.1 has no names, so all headers are read. Raises
    ShardIndexError when the file is not such an index, and StaleIndexError when it does not fit the tar.

    Examples:
        >>> from shoal.shard._tar_header import build_header
        >>> store = store_for("memory://dali")
        >>> _ = store.write_all("memory://dali/a.tar", build_header(b"a.txt", 5) + b"hello" + bytes(507 + 1024))
        >>> _ = store.write_all("memory://dali/a.idx", b"v1.2 1\ntxt 512 5 a.txt\n")
        >>> index = import_dali("memory://dali/a.idx", "memory://dali/a.tar", store.open("memory://dali/a.tar"))
        >>> index.key_list(0, 1), int(index.fields["txt"].offset[0])
        (['a'], 512)
    """
    tar = Tar(shard_url, reader, rule)
    components = _parse_lines(store_for(idx_url).read_all(idx_url), idx_url, shard_url)
    offsets, sizes = _column(components, "offset"), _column(components, "size")
    if any(part.name is None or b"\\" in part.name for part in components):
        # GNU tar, which DALI's tool asks for names, writes unusual ones with backslashes
        names = _names_in_tar(tar, offsets, sizes)
    else:
        names = [_decoded(part, tar) for part in components]
    try:
        return import_foreign(ForeignIndex(names, _column(components, "line"), offsets, sizes), tar)
    except StaleIndexError as error:
        if reader.read(156, 157) == b"x":
            error.hint = f"DALI's wds2idx misplaces members that have PAX headers; {SCAN_INSTEAD}"
        raise


def _column(components: list[_Component], name: str) -> npt.NDArray[np.int64]:
    return np.array([getattr(part, name) for part in components], np.int64)


def _parse_lines(data: bytes, idx_url: str, shard_url: str) -> list[_Component]:
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
    walked = walk_headers(tar)
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


def export_dali_idx(index: ShardRows, url: str) -> None:
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
    members = member_columns(index)
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
