"""Indexes of other loaders, in and out.

The foreign files are written here from what ``tarfile`` says of a tar, in the layouts that DALI's ``wds2idx``,
Energon's ``prepare`` and ``wids-index`` write: they are the oracle, and no line of shoal has a part in them.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import sqlite3
import struct
import tarfile

import numpy as np
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from shoal._crc32 import crc32
from shoal.errors import (
    DuplicateFieldError,
    HeaderError,
    ObjectNotFoundError,
    ShardIndexError,
    StaleIndexError,
    TruncatedError,
    WriteError,
)
from shoal.shard._foreign_formats import (
    WidsShard,
    check_wids,
    export_dali_idx,
    export_tar_idx,
    export_wids,
    import_dali,
    import_energon,
    import_wids,
)
from shoal.shard._index import decode_index, encode_index
from shoal.shard._index_build import build_index
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._shard_rows import IndexMetadata, LongExtents
from shoal.shard._tar_scan import ReaderFeed
from shoal.store import store_for

# -------------------------------------------------------------------------------------------------- tars and the oracle

LONG = "f" * 90 + "/" + "n" * 40
MEMBERS = [
    ("a/000.jpg", b"j" * 700),
    ("a/000.json", b'{"width": 3}'),
    ("a/000.cls", b"1"),
    ("a/001.json", b"{}"),  # another order, and no cls
    ("a/001.jpg", b""),
    ("b.c/002.seg.png", b"p" * 512),  # a dot in a folder, two in the name
    (f"{LONG}.jpg", b"long" * 400),  # needs a prefix, PAX or GNU headers
    (f"{LONG}.txt", b"caption"),
    ("003.txt", "é".encode()),
]
SHAPES = ("ustar", "pax", "pax-mtime", "gnu", "webdataset", "dressed")


def write_tar(path, members=MEMBERS, shape="ustar"):
    if shape == "webdataset":
        return write_with_webdataset(path, members)
    kind = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT}.get(shape, tarfile.PAX_FORMAT)
    shared = {"comment": "global"} if shape == "dressed" else None
    with tarfile.open(path, "w", format=kind, pax_headers=shared) as tar:
        for number, (name, data) in enumerate(members):
            if shape == "dressed" and number in (0, 3):
                add_bystanders(tar, number)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1.5 if shape == "pax-mtime" else 1
            tar.addfile(info, io.BytesIO(data))
        if shape == "dressed":
            add_bystanders(tar, len(members))
    return str(path)


def add_bystanders(tar, number):
    """Members that belong to no sample."""
    folder = tarfile.TarInfo(f"folder-{number}")
    folder.type = tarfile.DIRTYPE
    tar.addfile(folder)
    for name in (f"__meta__/{number}.json", f"README-{number}", f".hidden-{number}.jpg"):
        info = tarfile.TarInfo(name)
        info.size = 600
        tar.addfile(info, io.BytesIO(b"x" * 600))


def write_with_webdataset(path, members):
    samples = {}
    for name, data in members:
        key, field = split(name)
        samples.setdefault(key, {})[field] = data
    with webdataset.TarWriter(str(path), encoder=False) as writer:
        for key, fields in samples.items():
            writer.write({"__key__": key, **fields})
    return str(path)


def split(name):
    """The first dot of the base name, as all these loaders have it."""
    folder, slash, base = name.rpartition("/")
    stem, _, field = base.partition(".")
    return folder + slash + stem, field


def listing(path):
    """tarfile's own view: (sample number, member) for all that belongs to a sample, and where the members end."""
    found, last, number = [], None, -1
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            key, field = split(member.name)
            if not member.isreg() or not field or not key or member.name.startswith("__meta__/"):
                continue
            number += key != last
            last = key
            found.append((number, member))
        return found, tar.offset


def by_sample(path):
    groups = itertools.groupby(listing(path)[0], key=lambda each: each[0])
    return [[member for _, member in members] for _, members in groups]


def write_dali(path, version="v1.2"):
    lines = [f"{version} {len(by_sample(path))}"]
    for members in by_sample(path):
        words = []
        for member in members:
            words += [split(member.name)[1], str(member.offset_data), str(member.size)]
            words += [member.name] if version == "v1.2" else []
        lines.append(" ".join(words))
    return put(f"{path}.dali", "\n".join([*lines, ""]).encode())


def write_bounds(path):
    starts = [members[0].offset for members in by_sample(path)]
    return put(f"{path}.idx", struct.pack(f"{len(starts) + 1}Q", *starts, listing(path)[1]))


def write_database(root, paths, *, parts=True):
    """``.nv-meta/index.sqlite`` and ``.info.json`` of these tars."""
    os.makedirs(os.path.join(root, ".nv-meta"), exist_ok=True)
    url = os.path.join(root, ".nv-meta", "index.sqlite")
    connection = sqlite3.connect(url)
    connection.execute(
        "CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,"
        " sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)"
    )
    if parts:
        connection.execute(
            "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,"
            " content_byte_offset INTEGER, content_byte_size INTEGER)"
        )
    for number, path in enumerate(paths):
        fill_database(connection, number, path, parts=parts)
    connection.commit()
    connection.close()
    counts = {os.path.relpath(path, root): len(by_sample(path)) for path in paths}
    info = {"energon_version": "7.4.1", "shard_counts": counts}
    put(os.path.join(root, ".nv-meta", ".info.json"), json.dumps(info).encode())
    return url


def fill_database(connection, number, path, *, parts):
    samples, stop = by_sample(path), listing(path)[1]
    starts = [members[0].offset for members in samples]
    for at, (members, start, after) in enumerate(zip(samples, starts, [*starts[1:], stop], strict=True)):
        row = (number, split(members[0].name)[0], at, start, after - start)
        connection.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", row)
        for member in members if parts else ():
            row = (number, at, split(member.name)[1], member.offset_data, member.size)
            connection.execute("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", row)


def change(database, *statements):
    connection = sqlite3.connect(database)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def put(url, data):
    store_for(url).write_all(url, data)
    return url


def read(url):
    return store_for(str(url)).read_all(str(url))


def built(path, rule=WEBDATASET_RULE):
    reader = store_for(path).open(path)
    facts = IndexMetadata(reader.info.size, crc32(reader.read(0, 512)), rule)
    return build_index(ReaderFeed(reader), facts, path)


def opened(path):
    return store_for(path).open(path)


def from_dali(path, rule=WEBDATASET_RULE, *, version="v1.2"):
    return import_dali(write_dali(path, version), path, opened(path), rule)


def from_bounds(path, rule=WEBDATASET_RULE):
    return import_energon(write_bounds(path), path, opened(path), rule)


def from_database(path, rule=WEBDATASET_RULE, *, parts=True):
    return import_energon(write_database(os.path.dirname(path), [path], parts=parts), path, opened(path), rule)


IMPORTS = {
    "dali v1.2": from_dali,
    "dali v1.1": lambda path, rule=WEBDATASET_RULE: from_dali(path, rule, version="v1.1"),
    "tar.idx": from_bounds,
    "sqlite": from_database,
    "sqlite without parts": lambda path, rule=WEBDATASET_RULE: from_database(path, rule, parts=False),
}
every_import = pytest.mark.parametrize("how", IMPORTS)
every_shape = pytest.mark.parametrize("shape", SHAPES)


def assert_same_places(index, expected):
    assert index.keys.equals(expected.keys)
    assert list(index.fields) == list(expected.fields)
    for name, extents in index.fields.items():
        np.testing.assert_array_equal(extents.offset, expected.fields[name].offset)
        np.testing.assert_array_equal(extents.size, expected.fields[name].size)
    assert (index.facts.size, index.facts.head_crc) == (expected.facts.size, expected.facts.head_crc)
    assert index.facts.rule == expected.facts.rule


@pytest.fixture
def path(tmp_path):
    return write_tar(tmp_path / "a.tar")


# ------------------------------------------------------------------------------------------------------------ importing


@every_shape
@every_import
def test_an_imported_index_has_the_places_that_a_scan_finds(tmp_path, how, shape):
    path = write_tar(tmp_path / "a.tar", shape=shape)
    index = IMPORTS[how](path)
    assert len(index) == 5
    assert_same_places(index, built(path))


@every_import
def test_an_imported_index_says_what_it_does_not_know(path, how):
    index = IMPORTS[how](path)
    assert index.blocks is None
    assert index.columns == {}
    assert all(extents.crc is None for extents in index.fields.values())
    assert set(index.facts.dropped) == {"json", "cls", "txt"}
    assert "imported" in index.facts.dropped["json"]


@every_import
def test_an_imported_index_is_stored_and_loaded_as_any_other(path, how):
    index = IMPORTS[how](path)
    loaded = decode_index(encode_index(index), path)
    assert_same_places(loaded, built(path))
    assert loaded.facts == index.facts
    assert loaded.fields["jpg"].crc is None
    assert loaded.blocks is None


@every_import
@pytest.mark.parametrize(
    "rule",
    [
        KeyRule(case="keep"),
        KeyRule(dot="last"),
        KeyRule(folders="flatten"),
        KeyRule(group="archive"),
        KeyRule(dot="last", case="keep", folders="flatten", group="archive"),
    ],
    ids=str,
)
def test_another_key_rule_groups_as_a_scan_with_it(tmp_path, how, rule):
    names = ["x/1.seg.JPG", "x/1.JSON", "x/2.seg.jpg", "x/2.json"]
    path = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    assert_same_places(IMPORTS[how](path, rule), built(path, rule))


@every_import
def test_very_many_fields_take_the_long_layout(tmp_path, how):
    members = [(f"{row}.f{row * 100 + at}", b"v" * at) for row in range(3) for at in range(100)]
    path = write_tar(tmp_path / "a.tar", members)
    index = IMPORTS[how](path)
    assert isinstance(index.fields, LongExtents)
    assert index.fields.crc is None
    assert_same_places(index, built(path))


@every_import
def test_members_larger_than_a_read_are_passed_by(tmp_path, how):
    members = [("0.bin", b"x" * 700_000), ("0.txt", b"a"), ("1.bin", b"y" * 300_000), ("1.txt", b"b")]
    path = write_tar(tmp_path / "a.tar", members, "pax-mtime")
    assert_same_places(IMPORTS[how](path), built(path))


def test_headers_are_all_that_an_import_reads(tmp_path):
    path = write_tar(tmp_path / "a.tar", [(f"{at}.bin", bytes(1 << 20)) for at in range(32)])
    for index_url, run in ((write_dali(path), import_dali), (write_bounds(path), import_energon)):
        reader = CountingReader(opened(path))
        run(index_url, path, reader)
        assert reader.count < reader.info.size / 3


class CountingReader:
    def __init__(self, reader):
        self._reader = reader
        self.info = reader.info
        self.count = 0

    def read(self, start, stop):
        data = self._reader.read(start, stop)
        self.count += len(data)
        return data

    def close(self):
        self._reader.close()


@every_import
def test_an_index_of_another_tar_is_refused(tmp_path, how):
    """The tar is replaced by one with a sample more, one less, or other sizes, after the index was made."""
    for number, members in enumerate((MEMBERS[:-1], [*MEMBERS, ("z.txt", b"z")], [(n, d + b"+") for n, d in MEMBERS])):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = write_tar(folder / "a.tar")
        index_url = foreign_file(how, path)
        write_tar(path, members)
        with pytest.raises(StaleIndexError) as caught:
            run_import(how, index_url, path)
        assert caught.value.shard == path
        assert "shoal index" in str(caught.value)


@every_import
def test_a_tar_with_other_names_is_refused(tmp_path, how):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("a.cls", b"2"), ("b.txt", b"1")])
    index_url = foreign_file(how, path)
    write_tar(path, [("a.txt", b"1"), ("b.cls", b"2"), ("b.txt", b"1")])
    if how in ("dali v1.2", "sqlite"):  # the first member fits and so do all sizes: only a full scan could tell
        assert run_import(how, index_url, path).key_list(0, 2) == ["a", "b"]
    else:
        with pytest.raises(ShardIndexError, match="sample"):
            run_import(how, index_url, path)


@every_import
def test_a_first_member_of_another_name_is_refused(tmp_path, how):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"1")])
    index_url = foreign_file(how, path)
    write_tar(path, [("0.txt", b"1"), ("b.txt", b"1")])
    if how in ("dali v1.2", "sqlite"):
        with pytest.raises(StaleIndexError, match=r"expected a\.txt with 1 bytes at 512, found 0\.txt with 1 bytes"):
            run_import(how, index_url, path)
    else:  # these name no keys: the tar's own are right
        assert run_import(how, index_url, path).key_list(0, 2) == ["0", "b"]


@every_import
def test_a_file_that_is_no_tar_is_refused(path, how):
    index_url = foreign_file(how, path)
    put(path, b"not a tar".ljust(os.path.getsize(path), b"\n"))
    with pytest.raises(HeaderError, match="not a tar") as caught:
        run_import(how, index_url, path)
    assert caught.value.shard == path


@every_import
def test_a_cut_tar_is_refused(path, how):
    index_url = foreign_file(how, path)
    with open(path, "r+b") as file:
        file.truncate(listing(path)[0][-1][1].offset_data + 1)
    with pytest.raises((StaleIndexError, EOFError)) as caught:
        run_import(how, index_url, path)
    assert caught.value.shard == path


@every_import
def test_a_duplicate_field_is_refused(tmp_path, how):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.JPG", b"2")])
    with pytest.raises(DuplicateFieldError) as caught:
        IMPORTS[how](path)
    assert (caught.value.shard, caught.value.key, caught.value.field) == (path, "a", "jpg")


@every_import
def test_a_missing_index_is_said_to_be_missing(path, how):
    index_url = foreign_file(how, path)
    os.unlink(index_url)
    with pytest.raises(ObjectNotFoundError, match=re.escape(index_url)):
        run_import(how, index_url, path)


def test_a_tar_without_end_marker_is_imported_where_the_index_names_its_members(path):
    """An index that names only offsets needs a scan, which such a tar does not pass."""
    expected, index_url = built(path), write_dali(path)
    bounds_url = write_bounds(path)
    with open(path, "r+b") as file:
        file.truncate(listing(path)[1])
    assert import_dali(index_url, path, opened(path)).keys.equals(expected.keys)
    with pytest.raises(TruncatedError, match="without an end marker"):
        import_energon(bounds_url, path, opened(path))


def foreign_file(how, path):
    if how.startswith("dali"):
        return write_dali(path, how.split()[1])
    if how == "tar.idx":
        return write_bounds(path)
    return write_database(os.path.dirname(path), [path], parts=how == "sqlite")


def run_import(how, index_url, path):
    run = import_dali if how.startswith("dali") else import_energon
    return run(index_url, path, opened(path))


# ----------------------------------------------------------------------------------------------------------------- DALI


def test_dali_names_written_by_gnu_tar_with_backslashes_are_read_from_the_tar(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("café.txt", b"1"), ("x.txt", b"2")], "gnu")
    text = read(write_dali(path)).replace("é".encode(), rb"\303\251")
    index = import_dali(put(f"{path}.dali", text), path, opened(path))
    assert index.key_list(0, 2) == ["café", "x"]


@pytest.mark.parametrize(
    "text, problem",
    [
        (b"", "this is not a DALI index"),
        (b"\x00\x01\x02", "this is not a DALI index"),
        (b"v1.0 1\ntxt 512 1 a.txt\n", "expected 'v1.2 N' or 'v1.1 N' on the first line, found b'v1.0 1'"),
        (b"v1.3 1\ntxt 512 1 a.txt\n", "this is not a DALI index"),
        (b"v1.2\ntxt 512 1 a.txt\n", "this is not a DALI index"),
        (b"v1.2 x\ntxt 512 1 a.txt\n", "this is not a DALI index"),
        (b"v1.2 -1\n", "this is not a DALI index"),
        (b"v1.2 2\ntxt 512 1 a.txt\n", "not whole: expected 2 samples, found 1 lines"),
        (b"v1.2 1\ntxt 512 1 a.txt\ntxt 1536 1 b.txt\n", "not whole: expected 1 samples, found 2 lines"),
        (b"v1.2 2\ntxt 512 1 a.txt\n\n", "line 3 of a DALI index cannot be understood"),
        (b"v1.2 1\ntxt 512 1\n", "line 2 of a DALI index cannot be understood"),
        (b"v1.2 1\ntxt 512 one a.txt\n", "line 2 of a DALI index cannot be understood"),
        (b"v1.2 1\ntxt -512 1 a.txt\n", "line 2 of a DALI index cannot be understood"),
        (b"v1.2 1\ntxt 512 1 a b.txt\n", "a name with a space cannot be told apart"),
        (b"v1.2 1\ntxt 512 1 a.jpg\n", "line 2 of a DALI index cannot be understood"),
        (b"v1.2 1\ntxt 512 9999999999999999999999 a.txt\n", "line 2 of a DALI index cannot be understood"),
        (b"v1.2 1\ntxt 512 1 \xff.txt\n", "a name in the DALI index cannot be read"),
        (b"v1.2 1\ntxt 513 1 a.txt\n", "puts a member where none can be: expected a multiple of 512"),
        (b"v1.2 1\ntxt 0 1 a.txt\n", "puts a member where none can be"),
        (b"v1.2 1\ntxt 51200 1 a.txt\n", "points behind the end of the shard"),
        (b"v1.2 1\ntxt 512 999999999999999999 a.txt\n", "points behind the end of the shard"),
        (b"v1.2 2\ntxt 512 1 a.txt\ntxt 512 1 b.txt\n", "two members on the same bytes"),
        (b"v1.2 2\ntxt 512 1 a.txt\ntxt 1024 1 b.txt\n", "two members on the same bytes"),
        (b"v1.2 2\ntxt 512 1 a.txt\ntxt 2560 1 b.txt\n", "no such member where the index says: expected no member"),
        (b"v1.2 2\ntxt 512 1 a.txt\ntxt 1536 2 b.txt\n", "no such member where the index says: expected 1 bytes"),
        (b"v1.2 1\ntxt 512 2 a.txt\n", "the shard does not start as the index says"),
        (b"v1.2 1\ntxt 1536 1 b.txt\n", "the shard does not start as the index says"),
        (b"v1.2 1\ntxt 512 1 a.txt\n", "samples that the index does not have: found b.txt with 1 bytes at 1536"),
        (b"v1.2 1\ntxt 512 1 a.txt txt 1536 1 b.txt\n", "takes two samples for one"),
        (b"v1.2 2\ntxt 512 1 a.txt\ntxt 1536 1 a.txt\n", "takes one sample for two"),
        (b"v1.1 2\ntxt 512 1\ntxt 2048 1\n", "no such member where the index says"),
        (b"v1.1 2\ntxt 512 1\ntxt 1536 7\n", "no such member where the index says: expected 7 bytes"),
        (b"v1.1 1\ntxt 512 1 a.txt\n", "expected 'extension offset size' for each member"),
    ],
)
def test_a_dali_index_that_does_not_fit_is_refused(tmp_path, text, problem):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    index_url = put(f"{path}.dali", text)
    with pytest.raises(ShardIndexError, match=re.escape(problem)) as caught:
        import_dali(index_url, path, opened(path))
    assert caught.value.shard == path
    assert caught.value.hint


def test_dali_samples_in_another_order_keep_their_order(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3")])
    lines = read(write_dali(path)).decode().splitlines()
    index_url = put(f"{path}.dali", "\n".join([lines[0], *lines[:0:-1], ""]).encode())
    index = import_dali(index_url, path, opened(path))
    assert index.key_list(0, 3) == ["c", "b", "a"]
    assert index.fields["txt"].offset.tolist() == built(path).fields["txt"].offset[::-1].tolist()


def test_an_index_that_dali_s_tool_got_wrong_is_refused_with_the_reason(tmp_path):
    """wds2idx counts back from the next member's own header, and so by its PAX headers too far."""
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2")], "pax-mtime")
    (_, first), (_, second) = listing(path)[0]
    wrong = (second.offset_data - 512 - first.size) // 512 * 512
    text = f"v1.2 2\ntxt {wrong} 1 a.txt\ntxt {second.offset_data} 1 b.txt\n"
    with pytest.raises(StaleIndexError, match="wds2idx misplaces members that have PAX headers"):
        import_dali(put(f"{path}.dali", text.encode()), path, opened(path))


def test_hidden_files_in_folders_which_dali_does_not_see_are_no_reason_to_refuse(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("d/.h.txt", b"h"), ("a.txt", b"1"), ("d/.i.txt", b"i")])
    index = import_dali(put(f"{path}.dali", b"v1.2 1\ntxt 1536 1 a.txt\n"), path, opened(path))
    assert index.key_list(0, 1) == ["a"]
    assert built(path).key_list(0, 3) == ["d/", "a", "d/"]  # as webdataset and Energon have it


def test_dali_s_own_entries_for_members_that_belong_to_no_sample_are_counted(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("README", b"r"), ("a.txt", b"1"), ("__meta__/m.json", b"2")])
    text = b"v1.2 3\nREADME 512 1 README\ntxt 1536 1 a.txt\njson 2560 1 __meta__/m.json\n"  # as wds2idx has them
    index = import_dali(put(f"{path}.dali", text), path, opened(path))
    assert_same_places(index, built(path))
    assert index.facts.skipped == {"name without key and field": 2}


@every_shape
def test_what_is_exported_for_dali_is_what_its_tool_writes(tmp_path, shape):
    path = write_tar(tmp_path / "a.tar", shape=shape)
    export_dali_idx(built(path), str(tmp_path / "out.idx"))
    assert read(tmp_path / "out.idx") == read(write_dali(path))


@every_shape
def test_a_dali_round_trip_keeps_all_places(tmp_path, shape):
    path, url = write_tar(tmp_path / "a.tar", shape=shape), str(tmp_path / "out.idx")
    export_dali_idx(built(path), url)
    assert_same_places(import_dali(url, path, opened(path)), built(path))


@pytest.mark.parametrize(
    "rule", [KeyRule(dot="last"), KeyRule(folders="flatten"), KeyRule(group="archive"), KeyRule(case="keep")], ids=str
)
def test_a_dali_round_trip_keeps_other_groupings_under_their_rule(tmp_path, rule):
    names = (
        ["x/1.seg.JPG", "x/2.seg.JPG", "x/1.json", "x/2.json"] if rule.group == "archive" else ["x/1.a.B", "x/2.a.B"]
    )
    path, url = write_tar(tmp_path / "a.tar", [(name, b"1") for name in names]), str(tmp_path / "out.idx")
    export_dali_idx(built(path, rule), url)
    assert_same_places(import_dali(url, path, opened(path), rule), built(path, rule))


@pytest.mark.parametrize("name", ["a b.txt", "a.t t", "a\tb.txt", "a."])
def test_a_name_that_dali_would_misread_is_not_exported(tmp_path, name):
    path = write_tar(tmp_path / "a.tar", [(name, b"1")])
    with pytest.raises(WriteError, match="cannot hold this name"):
        export_dali_idx(built(path), str(tmp_path / "out.idx"))
    assert not os.path.exists(tmp_path / "out.idx")


def test_an_empty_shard_has_no_dali_index(tmp_path):
    path = write_tar(tmp_path / "a.tar", [])
    with pytest.raises(WriteError, match="without samples"):
        export_dali_idx(built(path), str(tmp_path / "out.idx"))


# -------------------------------------------------------------------------------------------------------------- Energon


@every_shape
def test_what_is_exported_for_energon_is_what_its_tool_writes(tmp_path, shape):
    path = write_tar(tmp_path / "a.tar", shape=shape)
    export_tar_idx(built(path), str(tmp_path / "out.idx"), opened(path))
    assert read(tmp_path / "out.idx") == read(write_bounds(path))


@every_shape
@every_import
def test_an_imported_index_exports_as_a_scanned_one(tmp_path, how, shape):
    path = write_tar(tmp_path / "a.tar", shape=shape)
    export_tar_idx(IMPORTS[how](path), str(tmp_path / "out.idx"), opened(path))
    assert_same_places(import_energon(str(tmp_path / "out.idx"), path, opened(path)), built(path))


def test_plain_headers_need_no_second_look_for_energon(tmp_path):
    path = write_tar(tmp_path / "a.tar", [(f"{at}.bin", bytes(1000)) for at in range(1000)])
    index, reader = built(path), CountingReader(opened(path))
    export_tar_idx(index, str(tmp_path / "out.idx"), reader)
    assert reader.count <= 1024
    assert read(tmp_path / "out.idx") == read(write_bounds(path))


def test_an_empty_shard_has_an_energon_index_of_one_number(tmp_path):
    path = write_tar(tmp_path / "a.tar", [])
    export_tar_idx(built(path), str(tmp_path / "out.idx"), opened(path))
    assert read(tmp_path / "out.idx") == bytes(8)
    assert len(import_energon(str(tmp_path / "out.idx"), path, opened(path))) == 0


def test_samples_that_energon_would_group_otherwise_are_not_exported(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("1.a", b"1"), ("2.a", b"1"), ("1.b", b"1"), ("2.b", b"1")])
    for rule in (KeyRule(group="archive"), KeyRule(dot="last")):
        with pytest.raises(WriteError, match="Energon would see other samples"):
            export_tar_idx(built(path, rule), str(tmp_path / "out.idx"), opened(path))
    assert not os.path.exists(tmp_path / "out.idx")


def test_nothing_is_exported_for_a_tar_that_changed(path, tmp_path):
    index = built(path)
    write_tar(path, [("other.txt", b"o")] * 40)
    with pytest.raises(StaleIndexError, match="the shard changed"):
        export_tar_idx(index, str(tmp_path / "out.idx"), opened(path))


def test_nothing_is_exported_when_headers_contradict_the_index(tmp_path):
    """Same size and same first header, so only the walk can tell."""
    members = [("a.txt", b"1"), (f"{'b' * 200}.txt", b"22"), ("c.txt", b"3"), ("d.txt", b"3" * 600)]
    path = write_tar(tmp_path / "a.tar", members, "pax")
    index = built(path)
    write_tar(path, [members[0], members[2], members[1], members[3]], "pax")
    with pytest.raises(StaleIndexError, match="no members where the index says"):
        export_tar_idx(index, str(tmp_path / "out.idx"), opened(path))


@pytest.mark.parametrize(
    "bounds, problem",
    [
        ([], "this is not an Energon index: expected 64-bit numbers, found 0 bytes"),
        ([0, 1024, 1024], "not one after the other"),
        ([1024, 0, 2048], "not one after the other"),
        ([0, 1024, 2**63 + 5], "points behind the end of the shard"),
        ([0], "expected 0 samples, found 2"),
        ([0, 2048], "expected 1 samples, found 2"),
        ([0, 512, 1024, 2048], "expected 3 samples, found 2"),
        ([0, 512, 2048], "expected sample 1 at 512, found at 1024"),
        ([0, 1024, 4096], "expected the end at 4096, found at 2048"),
        ([0, 1024, 10**12], "expected at most 10240 bytes, found 1000000000000"),
    ],
)
def test_an_energon_index_that_does_not_fit_is_refused(tmp_path, bounds, problem):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    index_url = put(f"{path}.idx", struct.pack(f"{len(bounds)}Q", *bounds))
    with pytest.raises(ShardIndexError, match=re.escape(problem)) as caught:
        import_energon(index_url, path, opened(path))
    assert caught.value.shard == path


def test_an_energon_index_of_odd_length_or_byte_order_is_refused(path):
    data = read(write_bounds(path))
    with pytest.raises(ShardIndexError, match="this is not an Energon index"):
        import_energon(put(f"{path}.idx", data[:-1]), path, opened(path))
    swapped = np.frombuffer(data, "=u8").byteswap().tobytes()
    with pytest.raises(ShardIndexError, match="byte order"):
        import_energon(put(f"{path}.idx", swapped), path, opened(path))


def test_a_database_has_many_shards_in_the_order_of_the_info(tmp_path):
    (tmp_path / "shards").mkdir()
    contents = ([("a.txt", b"1"), ("b.txt", b"2")], [("c.txt", b"3" * 600)], [("d.jpg", b"4"), ("e.txt", b"5")])
    paths = [write_tar(tmp_path / "shards" / name, each) for name, each in zip("zxy", contents, strict=True)]
    database = write_database(str(tmp_path), paths)
    for path in paths:
        assert_same_places(import_energon(database, path, opened(path)), built(path))


def test_a_database_in_another_store_is_read_whole(path):
    """Its bytes, because SQLite opens files only."""
    database = write_database(os.path.dirname(path), [path])
    for url in (database, os.path.join(os.path.dirname(database), ".info.json")):
        put(f"memory://energon-far/.nv-meta/{os.path.basename(url)}", read(url))
    far = put("memory://energon-far/a.tar", read(path))
    index = import_energon("memory://energon-far/.nv-meta/index.sqlite", far, opened(far))
    assert_same_places(index, built(path))


def test_a_database_is_found_by_relative_and_odd_paths(tmp_path, monkeypatch):
    folder = tmp_path / "odd ?#% name"
    folder.mkdir()
    path = write_tar(folder / "a.tar")
    write_database(str(folder), [path])
    monkeypatch.chdir(folder)
    assert_same_places(import_energon(".nv-meta/index.sqlite", "a.tar", opened("a.tar")), built("a.tar"))
    assert len(import_energon(".nv-meta/index.sqlite", path, opened(path))) == 5


@pytest.mark.parametrize(
    "statement, problem",
    [
        ("DELETE FROM samples WHERE sample_index = 1", "not whole: expected 5 samples, as .info.json says, found 4"),
        ("UPDATE samples SET sample_index = 9 WHERE sample_index = 1", "the Energon database is not whole"),
        ("DELETE FROM sample_parts WHERE sample_index = 1", "not whole: expected members of 5 samples, found of 4"),
        ("UPDATE sample_parts SET sample_index = 77 WHERE sample_index = 4", "the Energon database is not whole"),
        ("UPDATE sample_parts SET content_byte_offset = NULL", "this is not an Energon database"),
        ("UPDATE sample_parts SET part_name = NULL", "this is not an Energon database"),
        ("UPDATE sample_parts SET content_byte_size = -1", "this is not an Energon database"),
        ("UPDATE samples SET byte_offset = 9223372036854775807", "this is not an Energon database"),
        ("UPDATE samples SET byte_size = 'x'", "this is not an Energon database"),
        ("UPDATE samples SET byte_offset = byte_offset + 5120", "the Energon database contradicts itself"),
        (
            "UPDATE sample_parts SET content_byte_offset = content_byte_offset + 1 WHERE part_name = 'json'",
            "where none",
        ),
        ("UPDATE sample_parts SET content_byte_size = 1 WHERE sample_index = 4", "where the index says"),
        ("UPDATE sample_parts SET part_name = 'png' WHERE sample_index = 0 AND part_name = 'jpg'", "does not start"),
        ("DELETE FROM sample_parts WHERE sample_index = 0 AND part_name = 'jpg'", "does not start"),
        ("UPDATE samples SET sample_key = 'other' WHERE sample_index = 0", "does not start"),
        ("DROP TABLE samples", "this is not an Energon database"),
        ("ALTER TABLE sample_parts RENAME COLUMN part_name TO part", "this is not an Energon database"),
    ],
)
def test_a_database_that_does_not_fit_is_refused(path, statement, problem):
    database = write_database(os.path.dirname(path), [path])
    change(database, statement)
    with pytest.raises(ShardIndexError, match=re.escape(problem)) as caught:
        import_energon(database, path, opened(path))
    assert caught.value.shard == path
    assert caught.value.hint


def test_a_damaged_database_is_refused(path):
    database = write_database(os.path.dirname(path), [path])
    put(database, read(database)[:100] + bytes(5000))
    with pytest.raises(ShardIndexError, match="this is not an Energon database"):
        import_energon(database, path, opened(path))


def test_a_database_without_its_info_or_without_the_shard_is_refused(tmp_path, path):
    database = write_database(str(tmp_path), [path])
    other = write_tar(tmp_path / "other.tar")
    with pytest.raises(ShardIndexError, match=r"expected one of 1 shards, such as a\.tar, found other\.tar"):
        import_energon(database, other, opened(other))
    info = tmp_path / ".nv-meta" / ".info.json"
    info.write_text('{"energon_version": "7"}')
    with pytest.raises(ShardIndexError, match=r"not Energon's \.info\.json: found .*shard_counts"):
        import_energon(database, path, opened(path))
    info.unlink()
    with pytest.raises(ObjectNotFoundError, match=r"\.info\.json"):
        import_energon(database, path, opened(path))


# --------------------------------------------------------------------------------------------------- any archive at all

stems = st.text("ab.é", min_size=1, max_size=3)
names_of_members = st.builds(
    "{}{}.{}".format, st.sampled_from(["", "d/", "__x__/", "d.e/"]), stems, st.text("Tt.", max_size=2)
)
archives = st.lists(st.tuples(names_of_members, st.binary(max_size=3).map(lambda part: part * 300)), max_size=6)


@given(archives, st.sampled_from(["ustar", "pax", "pax-mtime", "gnu"]))
def test_energon_in_and_out_agrees_with_a_scan_for_any_archive(members, shape):
    url = "memory://interop-any/a.tar"
    buffer = io.BytesIO()
    kind = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT}.get(shape, tarfile.PAX_FORMAT)
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5 if shape == "pax-mtime" else 1
            tar.addfile(info, io.BytesIO(data))
    put(url, buffer.getvalue())
    try:
        expected = built(url)
    except DuplicateFieldError:
        return
    export_tar_idx(expected, f"{url}.idx", opened(url))
    imported = import_energon(f"{url}.idx", url, opened(url))
    assert_same_places(imported, expected)
    assert imported.facts.skipped == expected.facts.skipped


# ----------------------------------------------------------------------------------------------------------------- wids


def wids(url, **document):
    return put(url, json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, **document}).encode())


FULL = {"url": "a.tar", "md5sum": "d41d8cd9", "nsamples": 3, "filesize": 4096}


def test_a_wids_index_lists_its_shards(tmp_path):
    url = wids(str(tmp_path / "index.json"), name="n", info="i", shardlist=[FULL, {"url": "b.tar", "nsamples": 0}])
    assert import_wids(url) == [
        WidsShard(str(tmp_path / "a.tar"), 3, 4096, "d41d8cd9"),
        WidsShard(str(tmp_path / "b.tar"), 0),
    ]


@pytest.mark.parametrize(
    "folder, base, shard, expected",
    [
        ("/data/set", None, "a.tar", "/data/set/a.tar"),
        ("/data/set", None, "x/a.tar", "/data/set/x/a.tar"),
        ("/data/set", None, "../a.tar", "/data/a.tar"),
        ("/data/set", None, "/else/a.tar", "/else/a.tar"),
        ("/data/set", None, "s3://b/a.tar", "s3://b/a.tar"),
        ("/data/set", "s3://b/k", "a.tar", "s3://b/k/a.tar"),
        ("/data/set", "s3://b/k/", "../a.tar", "s3://b/a.tar"),
        ("/data/set", "/base", "a.tar", "/base/a.tar"),
        ("/data/set", "sub", "a.tar", "/data/set/sub/a.tar"),
        ("memory://w/k", None, "a.tar", "memory://w/k/a.tar"),
        ("memory://w/k", None, "../a.tar", "memory://w/a.tar"),
        ("memory://w/k", None, "../../../a.tar", "memory://w/a.tar"),
        ("memory://w/k", None, "/m/a.tar", "memory://w/m/a.tar"),
        ("memory://w/k", "http://h/p", "a.tar", "http://h/p/a.tar"),
        ("memory://w", None, "a.tar", "memory://w/a.tar"),
    ],
)
def test_relative_urls_count_from_base_or_from_the_json(tmp_path, folder, base, shard, expected):
    local = "://" not in folder
    url = f"{tmp_path}{folder}/index.json" if local else f"{folder}/index.json"
    wids(url, **({"base": base} if base else {}), shardlist=[{"url": shard, "nsamples": 1}])
    inside = local and expected.startswith("/data")
    assert import_wids(url)[0].url == (f"{tmp_path}{expected}" if inside else expected)


def test_a_wids_index_beside_one_is_found_by_its_bare_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wids("index.json", shardlist=[FULL])
    assert import_wids("index.json")[0].url == "a.tar"


def test_datasets_are_followed_one_level(tmp_path):
    wids(str(tmp_path / "sub" / "inner.json"), shardlist=[{"url": "i.tar", "nsamples": 2}])
    wids("memory://wids-far/inner.json", base="s3://bucket", shardlist=[{"url": "f.tar", "nsamples": 4}])
    url = wids(
        str(tmp_path / "index.json"),
        shardlist=[FULL],
        datasets=[
            {"source_url": "sub/inner.json", "weight": 0.5},
            {"source_url": "memory://wids-far/inner.json"},
            {"name": "inline", "base": "elsewhere", "shardlist": [{"url": "e.tar", "nsamples": 8}]},
            {"shardlist": [{"url": "h.tar", "nsamples": 16}]},
        ],
    )
    found = import_wids(url)
    expected = ["a.tar", "sub/i.tar", "elsewhere/e.tar", "h.tar"]
    assert [shard.url for shard in found if "://" not in shard.url] == [str(tmp_path / name) for name in expected]
    assert [shard.url for shard in found][2] == "s3://bucket/f.tar"
    assert [shard.nsamples for shard in found] == [3, 2, 4, 8, 16]


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "this is not a wids index"),
        ("[]", "this is not a wids index"),
        ("\xff", "this is not a wids index"),
        ("{}", "expected wids_version 1, found none"),
        ('{"shardlist": [{"url": "a", "nsamples": 1}]}', "expected wids_version 1, found none"),
        ('{"__kind__": "mds", "shardlist": []}', "expected wids-shard-index-v1, found mds"),
        ('{"wids_version": 2, "shardlist": []}', "expected wids_version 1, found 2"),
        ('{"wids_version": 1}', "lists no shards"),
        ('{"wids_version": 1, "shardlist": []}', "lists no shards"),
        ('{"wids_version": 1, "shardlist": [{"nsamples": 1}]}', "missing required field `url`"),
        ('{"wids_version": 1, "shardlist": [{"url": "a"}]}', "missing required field `nsamples`"),
        ('{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": "1"}]}', "Expected `int`, got `str`"),
        ('{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": -1}]}', "Expected `int` >= 0"),
        ('{"wids_version": 1, "shardlist": [{"url": "a", "nsamples": 1, "filesize": -1}]}', "Expected `int` >= 0"),
        ('{"wids_version": 1, "shardlist": [{"url": "pipe:cat x", "nsamples": 1}]}', "a command in place of a shard"),
        ('{"wids_version": 1, "datasets": [{"name": "x"}]}', "neither shardlist nor source_url"),
        ('{"wids_version": 1, "datasets": [{"datasets": [{"source_url": "x"}]}]}', "refers to another in turn"),
    ],
)
def test_a_json_that_is_no_wids_index_is_refused(tmp_path, text, problem):
    url = put(str(tmp_path / "index.json"), text.encode("latin-1"))
    with pytest.raises(ShardIndexError, match=re.escape(problem)) as caught:
        import_wids(url)
    assert caught.value.shard == url


def test_a_second_level_of_wids_datasets_is_refused(tmp_path):
    wids(str(tmp_path / "inner.json"), datasets=[{"source_url": "x.json"}], shardlist=[FULL])
    wids(str(tmp_path / "other.json"), __kind__="other", shardlist=[FULL])
    for name, problem in (("inner", "refers to another in turn"), ("other", "found other")):
        url = wids(str(tmp_path / "index.json"), datasets=[{"source_url": f"{name}.json"}])
        with pytest.raises(ShardIndexError, match=problem) as caught:
            import_wids(url)
        assert caught.value.shard == str(tmp_path / f"{name}.json")


@pytest.mark.parametrize("folder", ["memory://wids-out/set", "LOCAL"])
def test_what_is_exported_for_wids_is_what_its_tool_writes_and_comes_back(tmp_path, folder):
    folder = str(tmp_path) if folder == "LOCAL" else folder
    shards = [
        WidsShard(f"{folder}/b.tar", 2, 2048, "00ff"),
        WidsShard(f"{folder}/x/a.tar", 1),
        WidsShard("s3://elsewhere/c.tar", 0, 1024),
    ]
    url = f"{folder}/index.json"
    export_wids(shards, url, name="set")
    assert json.loads(store_for(url).read_all(url)) == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": "set",
        "shardlist": [
            {"url": "b.tar", "nsamples": 2, "filesize": 2048, "md5sum": "00ff"},
            {"url": "x/a.tar", "nsamples": 1},
            {"url": "s3://elsewhere/c.tar", "nsamples": 0, "filesize": 1024},
        ],
    }
    assert import_wids(url) == shards


@pytest.mark.parametrize(
    "url, shard",
    [
        ("index.json", "a.tar"),
        ("index.json", "x/a.tar"),
        ("meta/index.json", "x/a.tar"),
        ("meta/index.json", "a.tar"),
        ("meta/index.json", "/abs/a.tar"),
    ],
)
def test_a_shard_outside_the_folder_of_the_json_is_found_again(tmp_path, monkeypatch, url, shard):
    monkeypatch.chdir(tmp_path)
    export_wids([WidsShard(shard, 1)], url)
    assert import_wids(url) == [WidsShard(shard, 1)]


def test_a_moved_dataset_keeps_its_wids_index(tmp_path):
    export_wids([WidsShard(str(tmp_path / "one" / "a.tar"), 1)], str(tmp_path / "one" / "index.json"))
    os.rename(tmp_path / "one", tmp_path / "two")
    assert import_wids(str(tmp_path / "two" / "index.json")) == [WidsShard(str(tmp_path / "two" / "a.tar"), 1)]


def test_a_local_shard_in_a_far_json_stays_local(tmp_path):
    path = write_tar(tmp_path / "a b.tar")
    export_wids([WidsShard(path, 1)], "memory://wids-local/index.json")
    (shard,) = import_wids("memory://wids-local/index.json")
    assert opened(shard.url).info.size == os.path.getsize(path)


def test_a_shard_that_is_not_what_wids_says_is_refused(path):
    index = built(path)
    samples, size = len(index), index.facts.size
    check_wids(WidsShard(path, samples, size), samples, size)
    check_wids(WidsShard(path, samples), samples, size)
    with pytest.raises(StaleIndexError, match="expected 7 samples, found 5"):
        check_wids(WidsShard(path, 7), samples, size)
    with pytest.raises(StaleIndexError, match="expected 9 bytes"):
        check_wids(WidsShard(path, 5, 9), samples, size)
