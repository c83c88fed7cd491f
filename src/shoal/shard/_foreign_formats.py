"""Energon's indexes: ``X.tar.idx`` beside a shard, and ``.nv-meta/index.sqlite`` for the dataset.

``X.tar.idx`` holds where each sample starts, headers included, and where the last one ends: unsigned 64-bit numbers in
the machine's byte order. The database also knows the members (``sample_parts``), in its later versions; ``.info.json``
beside it lists the shards in the order of their numbers.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import ShardIndexError, StaleIndexError, WriteError
from shoal.shard._index import MemberColumns, ShardIndex
from shoal.shard._tar import BLOCK, WEBDATASET_RULE, Grouper, KeyRule, crc32
from shoal.store import ObjectReader, join_url, local_path, parent_url, relative_url, scheme_of, store_for

from ._foreign_index import SCAN_INSTEAD, Claim, Tar, Walked, import_claim, known_members, walk

__all__ = ["export_tar_idx", "import_energon"]

Int64 = npt.NDArray[np.int64]

_SQLITE = b"SQLite format 3\0"
_Place = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


def import_energon(index_url: str, shard_url: str, reader: ObjectReader, rule: KeyRule = WEBDATASET_RULE) -> ShardIndex:
    """The index of a shard from Energon's ``X.tar.idx`` or from its ``.nv-meta/index.sqlite``.

    Which of the two it is, its content tells. A database that lists the members needs only a few headers of the tar;
    otherwise all headers are read. Raises ShardIndexError when the file is not such an index or does not have this
    shard, and StaleIndexError when it does not fit the tar.

    Example:
        >>> from shoal.shard._tar._header import build_header
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
        bounds = _bounds(opened.read(0, opened.info.size), index_url, tar)
    return _from_bounds(bounds, tar)


# ------------------------------------------------------------------------------------------------------------ .tar.idx


def _bounds(data: bytes, index_url: str, tar: Tar) -> Int64:
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


def _from_bounds(bounds: Int64, tar: Tar) -> ShardIndex:
    """The tar's own headers say what is in each sample; its samples must be the ones stated."""
    walked = walk(tar)
    samples, first = _energon_samples(walked, tar.rule.encoding)
    actual = np.append(walked.starts[first], walked.stop)
    if len(actual) != len(bounds):
        raise _stale("other samples than the index says", f"{len(bounds) - 1} samples", str(len(first)), tar)
    if (actual != bounds).any():
        at = int((actual != bounds).argmax())
        what = f"sample {at}" if at < len(first) else "the end"
        raise _stale("other samples than the index says", f"{what} at {bounds[at]}", f"at {actual[at]}", tar)
    return import_claim(Claim(walked.names, samples, walked.offsets, walked.sizes), tar)


def _stale(problem: str, expected: str, found: str, tar: Tar) -> StaleIndexError:
    return StaleIndexError(f"the shard has {problem}", expected=expected, found=found, shard=tar.url, hint=SCAN_INSTEAD)


def _energon_samples(walked: Walked, encoding: str) -> tuple[Int64, Int64]:
    """The number of each member's sample as Energon counts, -1 for none; and where each sample's first member is."""
    grouped = Grouper(KeyRule(encoding=encoding)).add(walked.names)
    samples = np.full(len(walked.names), -1, np.int64)
    kept = np.arange(len(samples)) if grouped.kept is None else grouped.kept
    samples[kept] = grouped.rows
    return samples, kept[np.diff(grouped.rows, prepend=-1) != 0]


# -------------------------------------------------------------------------------------------------------- index.sqlite


class _Info(msgspec.Struct, frozen=True):
    """``.nv-meta/.info.json``."""

    shard_counts: dict[str, int]


def _from_database(sqlite_url: str, tar: Tar) -> ShardIndex:
    number, count = _shard_number(sqlite_url, tar.url)
    with _database(sqlite_url, tar) as connection:
        query = "SELECT sample_key, sample_index, byte_offset, byte_size FROM samples WHERE tar_file_id = ?"
        rows = connection.execute(f"{query} ORDER BY sample_index", (number,)).fetchall()
        samples = msgspec.convert(rows, list[tuple[str, int, _Place, _Place]])
        if len(samples) != count or [sample[1] for sample in samples] != list(range(count)):
            expected, found = f"{count} samples, as .info.json says", f"{len(samples)} in {sqlite_url}"
            problem = "the Energon database is not whole"
            raise ShardIndexError(problem, expected=expected, found=found, shard=tar.url, hint=SCAN_INSTEAD)
        bounds = np.array([[start, start + size] for _, _, start, size in samples], np.int64).reshape(-1, 2)
        if not _has_parts(connection):
            return _from_bounds(np.append(bounds[:, 0], bounds[-1:, 1]) if count else np.zeros(1, np.int64), tar)
        claim = _parts(connection, number, [sample[0] for sample in samples], tar)
    _check_inside(claim, bounds, tar)
    return import_claim(claim, tar)


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


def _parts(connection: sqlite3.Connection, number: int, keys: list[str], tar: Tar) -> Claim:
    query = "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts"
    rows = connection.execute(f"{query} WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset", (number,))
    parts = msgspec.convert(rows.fetchall(), list[tuple[int, str, _Place, _Place]])
    samples = np.array([part[0] for part in parts], np.int64)
    if not np.array_equal(np.unique(samples), np.arange(len(keys))):
        expected, found = f"members of {len(keys)} samples", f"of {len(np.unique(samples))}"
        problem = "the Energon database is not whole"
        raise ShardIndexError(problem, expected=expected, found=found, shard=tar.url, hint=SCAN_INSTEAD)
    names = [f"{keys[sample]}.{part}" for sample, part, _, _ in parts]
    return Claim(names, samples, *(np.array([part[at] for part in parts], np.int64) for at in (2, 3)))


def _check_inside(claim: Claim, bounds: Int64, tar: Tar) -> None:
    """A member lies inside its sample, as the other table has it."""
    outside = (claim.offsets < bounds[claim.samples, 0]) | (claim.offsets > bounds[claim.samples, 1] - claim.sizes)
    if outside.any():
        at = int(outside.argmax())
        start, stop = bounds[claim.samples[at]].tolist()
        problem, expected = "the Energon database contradicts itself", f"{claim.names[at]} between {start} and {stop}"
        raise ShardIndexError(
            problem, expected=expected, shard=tar.url, offset=int(claim.offsets[at]), hint=SCAN_INSTEAD
        )


# -------------------------------------------------------------------------------------------------------------- export


def export_tar_idx(index: ShardIndex, url: str, reader: ObjectReader) -> None:
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
    members = known_members(index)
    if facts.rule.dot != "first" or (np.diff(members.rows) < 0).any():
        problem, found = "Energon would see other samples than the index has", str(facts.rule)
        raise WriteError(problem, expected="runs of members, grouped at the first dot", found=found, shard=shard_url)
    bounds = _plain_bounds(members, reader)
    if bounds is None:
        bounds = _walked_bounds(members, Tar(shard_url, reader, facts.rule))
    store_for(url).write_all(url, bounds.astype("=u8").tobytes())


def _plain_bounds(members: MemberColumns, reader: ObjectReader) -> Int64 | None:
    """The bounds where each sample has one plain header before its first member; None where some has more than that."""
    first = np.diff(members.rows, prepend=-1) != 0
    stops = members.offsets + (members.sizes + BLOCK - 1) // BLOCK * BLOCK
    starts = members.offsets[first] - BLOCK
    before = np.concatenate((np.zeros(1, np.int64), stops))[:-1][first]
    stop = int(stops[-1]) if len(stops) else 0
    if (before != starts).any() or any(reader.read(stop, stop + BLOCK)):
        return None
    return np.append(starts, stop)


def _walked_bounds(members: MemberColumns, tar: Tar) -> Int64:
    walked = walk(tar)
    first = members.offsets[np.diff(members.rows, prepend=-1) != 0]
    at = np.searchsorted(walked.offsets, first)
    if not np.array_equal(walked.offsets[np.minimum(at, len(walked.offsets) - 1)] if len(at) else at, first):
        raise _stale("no members where the index says", f"{len(first)} samples", "others", tar)
    return np.append(walked.starts[at], walked.stop)
