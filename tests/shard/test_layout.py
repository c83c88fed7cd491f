"""A segment as a value: it survives JSON, and says which files are its own."""

from __future__ import annotations

import msgspec
import pytest

from shoal.shard._layout import IndexFile, RecordLayout, Segment

SEGMENT = Segment(
    id="a1",
    rows=10,
    shards=2,
    bytes=20480,
    layout=RecordLayout(("jpg", "cls"), 12),
    files=(IndexFile("extents.rec", 4096, 10), IndexFile("shards.parquet", 900, 2, 500, 7)),
    columns={"cls": "int64", "json.name": "string", "json.score": "double", "json.ok": "bool"},
    bounds={"cls": (0, 9), "json.name": ("a", "b"), "json.score": (0.5, 2.0), "json.ok": (False, True)},
    left_out={"json.mixed": "mixed types"},
    deleted=IndexFile("deleted-b2.rec", 4096, 3),
)


def test_a_segment_survives_json():
    again = msgspec.json.decode(msgspec.json.encode(SEGMENT), type=Segment)

    assert again == SEGMENT
    assert repr(again) == repr(SEGMENT)  # True is not 1, and 2.0 not 2


def test_its_files_are_below_its_folder():
    folder = ".shoal/index/a1"
    names = ["extents.rec", "shards.parquet", "deleted-b2.rec"]
    assert SEGMENT.paths() == [f"{folder}/{name}" for name in names]


def test_a_file_that_is_not_there_has_no_records():
    assert SEGMENT.file("shards.parquet").footer_start == 500
    assert SEGMENT.file("rare.rec") == IndexFile("rare.rec", 0, 0)


def test_deleted_rows_are_not_live():
    assert SEGMENT.live_rows == 7


@pytest.mark.parametrize("fields, words", [((), 4), (("jpg",), 7), (("jpg", "json", "cls"), 13)])
def test_a_record_has_the_key_a_number_and_three_words_for_each_field(fields, words):
    assert RecordLayout(fields, 12).words == words
