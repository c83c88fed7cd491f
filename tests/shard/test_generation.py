"""The document of a generation: nothing is lost in it, and no damage to it is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scale import times

from shoal.errors import ManifestError, ShoalError, WriteError
from shoal.shard import KeyRule
from shoal.shard._generation import (
    FORMAT_VERSION,
    NO_GENERATION,
    Generation,
    PendingMoves,
    Split,
    check_path,
    decode_document,
    decode_generation,
    encode_document,
    encode_generation,
    new_id,
    with_split,
)
from shoal.shard._layout import IndexFile, RecordLayout, Segment

FILES = ["shards.parquet", "extents.rec", "keys.rec", "blocks.rec"]
IDS = st.integers(0, (1 << 64) - 1).map("{:016x}".format)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
SIZES = st.integers(0, 1 << 50)
RECORDS = st.integers(0, (1 << 32) - 1)
SCALARS = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
SIMPLE = st.none() | st.booleans() | st.integers(-9, 9) | NAMES
JSON = SIMPLE | st.lists(SIMPLE, max_size=2) | st.dictionaries(NAMES, SIMPLE, max_size=2)
DOCUMENTS = st.dictionaries(NAMES, JSON, max_size=2)
UNKNOWN = st.dictionaries(NAMES.map("later_{}".format), JSON, max_size=2)


@st.composite
def index_files(draw, name):
    size = draw(SIZES)
    if name.endswith(".parquet"):
        return IndexFile(name, size, draw(RECORDS), draw(st.integers(0, size)), draw(RECORDS))
    return IndexFile(name, size, draw(RECORDS))


@st.composite
def segments(draw, layout):
    rows = draw(st.integers(1, (1 << 32) - 1))
    present = draw(st.tuples(*[st.booleans()] * len(FILES)))
    names = [name for name, is_there in zip(FILES, present, strict=True) if is_there]
    columns = draw(st.dictionaries(NAMES, st.sampled_from(["int64", "double"]), max_size=2))
    pair = st.tuples(SCALARS, SCALARS).map(lambda both: tuple(sorted(both)))
    return Segment(
        id=draw(IDS),
        rows=rows,
        shards=draw(RECORDS),
        bytes=draw(SIZES),
        layout=layout,
        files=tuple(draw(index_files(name)) for name in names),
        columns=columns,
        bounds={name: draw(pair) for name in columns},
        left_out=draw(st.dictionaries(NAMES, NAMES, max_size=1)),
        deleted=draw(st.none() | st.builds(IndexFile, st.just("deleted-0a.rec"), SIZES, st.integers(1, rows))),
        digest=draw(st.integers(0, (1 << 127) - 1).map("{:032x}".format)),
    )


@st.composite
def splits(draw):
    layout = RecordLayout(tuple(draw(st.lists(NAMES, unique=True, max_size=3))), draw(st.sampled_from([12, 16, 64])))
    return Split(tuple(draw(st.lists(segments(layout), max_size=2, unique_by=lambda s: s.id))), draw(UNKNOWN))


GENERATIONS = st.builds(
    Generation,
    id=IDS,
    parent=st.none() | IDS,
    lineage=IDS,
    created=st.just("2030-01-01T00:00:00Z"),
    splits=st.dictionaries(NAMES, splits(), max_size=2),
    metadata=DOCUMENTS,
    schema=st.none() | st.dictionaries(NAMES, JSON, min_size=1, max_size=2),
    rule=st.sampled_from([KeyRule(), KeyRule(dot="last", case="keep")]),
    writer=st.none() | IDS,
    pending=st.lists(st.builds(PendingMoves, IDS, SIZES, RECORDS), max_size=2).map(tuple),
    unknown=UNKNOWN,
).filter(lambda g: len({s.id for s in g.segments}) == len(list(g.segments)))


def segment(**values):
    files = (IndexFile("extents.rec", 4096, 10), IndexFile("shards.parquet", 900, 2, 500, 7))
    known = {"id": "0" * 16, "rows": 10, "shards": 2, "bytes": 9, "layout": RecordLayout(("jpg",), 12), "files": files}
    return Segment(**{**known, **values})


def generation(*listed, **values):
    known = {"id": new_id(), "parent": None, "lineage": "1" * 16, "created": "2030-01-01T00:00:00Z"}
    return with_split(Generation(**{**known, **values}), "train", listed or [segment()])


@given(GENERATIONS)
def test_a_generation_survives_its_document(value):
    assert decode_generation(encode_generation(value), "m.json") == value


def test_every_file_is_named_with_its_size():
    deleted = IndexFile("deleted-0a.rec", 8192, 3)
    folders = [f".shoal/index/{number * 16}" for number in "01"]
    assert generation(segment(), segment(id="1" * 16, deleted=deleted)).files() == {
        f"{folders[0]}/extents.rec": 4096,
        f"{folders[0]}/shards.parquet": 900,
        f"{folders[1]}/extents.rec": 4096,
        f"{folders[1]}/shards.parquet": 900,
        f"{folders[1]}/deleted-0a.rec": 8192,
    }


def test_the_document_is_json_that_names_its_crc32_first():
    data = encode_generation(generation())
    assert json.loads(data)["shoal"] == FORMAT_VERSION
    first, body = data.split(b"\n", 1)
    assert len(first) == 21
    assert json.loads(body.join([b"{", b""]))["id"]


def test_every_flipped_byte_is_noticed():
    data = encode_generation(generation(segment(deleted=IndexFile("deleted-0a.rec", 4096, 3))))
    for start in range(len(data)):
        for mask in (1, 32, 128)[:: times(2, 1)]:
            damaged = bytearray(data)
            damaged[start] ^= mask
            with pytest.raises(ManifestError):
                decode_generation(bytes(damaged), "m.json")


def test_every_shorter_document_is_noticed():
    data = encode_generation(generation())
    for size in range(len(data)):
        with pytest.raises(ManifestError, match="damaged"):
            decode_generation(data[:size], "m.json")
    with pytest.raises(ManifestError, match="damaged"):
        decode_generation(data + b" ", "m.json")


def nodes(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from nodes(each, (*path, key))


@given(GENERATIONS, st.data())
def test_a_signed_document_with_any_other_value_in_it_is_read_or_refused(value, data):
    document = decode_document(encode_generation(value), "m.json")
    path = data.draw(st.sampled_from(list(nodes(document))[1:]))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = data.draw(JSON | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False))
    try:
        decoded = decode_generation(encode_document(document), "m.json")
    except ManifestError:
        return
    assert decode_generation(encode_generation(decoded), "m.json") == decoded


FILE = IndexFile("extents.rec", 4096, 10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../../etc/passwd"},
        {"id": "0" * 15},
        {"rows": -1},
        {"rows": 1 << 32},
        {"shards": -1},
        {"bytes": 1 << 63},
        {"layout": RecordLayout(("jpg",), 8)},
        {"layout": RecordLayout(("jpg",), 14)},
        {"layout": RecordLayout(("jpg",), 68)},
        {"layout": RecordLayout(("jpg", "jpg"), 12)},
        {"layout": RecordLayout(("",), 12)},
        {"files": (FILE, FILE)},
        {"files": (replace(FILE, name="../extents.rec"),)},
        {"files": (replace(FILE, name="/etc/passwd"),)},
        {"files": (replace(FILE, name=""),)},
        {"files": (replace(FILE, size=-1),)},
        {"files": (replace(FILE, records=1 << 32),)},
        {"files": (replace(FILE, footer_start=5, footer_crc32=5),)},
        {"files": (IndexFile("shards.parquet", 9, 1),)},
        {"files": (IndexFile("shards.parquet", 9, 1, 10, 0),)},
        {"files": (IndexFile("shards.parquet", 9, 1, 9, 1 << 32),)},
        {"files": (IndexFile("shards.parquet", 9, 1, 9),)},
        {"deleted": IndexFile("deleted-0a.rec", 4096, 11)},
        {"deleted": IndexFile("deleted-0a.rec", 4096, 0)},
        {"columns": {"n": "int64"}, "bounds": {"n": (2, 1)}},
        {"columns": {"n": "int64"}, "bounds": {"n": (1, "2")}},
        {"bounds": {"n": (1, 2)}},
    ],
)
def test_values_out_of_bounds_are_refused(wrong):
    with pytest.raises(ManifestError):
        decode_generation(encode_generation(generation(segment(**wrong))), "m.json")


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "x"},
        {"parent": "../x"},
        {"lineage": ""},
        {"writer": "a/b"},
        {"pending": (PendingMoves("..", 1, 1),)},
        {"pending": (PendingMoves("0" * 16, -1, 1),)},
        {"pending": (PendingMoves("0" * 16, 1, 1 << 32),)},
        {"unknown": {"shoal": 1}},
        {"unknown": {"shoal": True}},
    ],
)
def test_a_generation_out_of_bounds_is_refused(wrong):
    with pytest.raises(ManifestError):
        decode_generation(encode_generation(generation(**wrong)), "m.json")


def test_segments_of_a_split_have_one_layout_and_different_ids():
    other = segment(id="2" * 16, layout=RecordLayout(("png",), 12))
    for listed in ([segment(), other], [segment(), segment()]):
        with pytest.raises(ManifestError):
            decode_generation(encode_generation(generation(*listed)), "m.json")


def test_a_newer_version_is_refused_by_its_number():
    data = encode_generation(generation(unknown={"shoal": FORMAT_VERSION + 7}))
    with pytest.raises(ManifestError, match=f"version {FORMAT_VERSION + 7} is newer than version {FORMAT_VERSION}"):
        decode_generation(data, "m.json")


def test_changes_keep_what_they_do_not_know():
    document = decode_document(encode_generation(generation()), "m.json")
    document["tags"] = {"v1": "0" * 16}
    document["splits"]["train"]["colour"] = "red"
    before = decode_generation(encode_document(document), "m.json")
    after = with_split(replace(before, id=new_id()), "train", [segment(), segment(id="3" * 16)])
    written = decode_document(encode_generation(after), "m.json")
    assert written["tags"] == {"v1": "0" * 16}
    assert written["splits"]["train"]["colour"] == "red"


def test_infinite_bounds_are_left_out():
    endless = segment(columns={"n": "double", "m": "double"}, bounds={"n": (0.0, float("inf")), "m": (0.5, 1.5)})
    (read,) = decode_generation(encode_generation(generation(endless)), "m.json").segments
    assert read.bounds == {"m": (0.5, 1.5)}


def test_metadata_that_is_not_json_cannot_be_written():
    with pytest.raises(WriteError):
        encode_generation(replace(NO_GENERATION, metadata={"x": object()}))


@pytest.mark.parametrize("path", ["../a.tar", "/a.tar", "a/../../b.tar", "a\\..\\b.tar", "", "a//b.tar", "./a", "a\0b"])
def test_paths_stay_below_the_root(path):
    with pytest.raises(ShoalError):
        check_path(path, "m.json")
    assert check_path("train/a.tar", "m.json") == "train/a.tar"
