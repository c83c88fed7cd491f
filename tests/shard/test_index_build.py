"""The index of a foreign tar: rows, extents, checksums, blocks and metadata columns, stored and read back."""

from __future__ import annotations

import itertools
import json
import tracemalloc
import zlib

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shard.archives import (
    END,
    FEEDS,
    archives,
    by_tarfile,
    data_of,
    end_of_members,
    header,
    oracle_members,
    pax_header,
    plain,
    reader_feed,
    thirty_members,
)
from webdataset.tariterators import group_by_keys

from shoal.errors import (
    DuplicateFieldError,
    ObjectNotFoundError,
    ShardIndexError,
    StaleIndexError,
    StoreError,
    TarError,
)
from shoal.shard import _index_build
from shoal.shard._index import decode_index, encode_index, load_index, save_index
from shoal.shard._index_build import MOST_WIDE_FIELDS, BlockCutter, build_index
from shoal.shard._member_names import KeyRule
from shoal.shard._metadata_columns import LARGEST_SOURCE, LONGEST_TEXT, MOST_COLUMNS
from shoal.shard._shard_rows import IndexMetadata, LongExtents
from shoal.store import store_for

URL = "memory://shard.tar"


def _index(archive, rule=KeyRule(), feed=None):  # noqa: B008 - a frozen value
    return build_index(feed or reader_feed(archive), IndexMetadata(len(archive), zlib.crc32(archive[:512]), rule), URL)


def _samples(index, archive):
    """Every sample as the index says, checksums verified."""
    samples = [{} for _ in range(len(index))]
    for name, extents in index.fields.items():
        for row, (offset, size, crc) in enumerate(
            zip(extents.offset.tolist(), extents.size.tolist(), extents.crc.tolist(), strict=True)
        ):
            if offset:
                data = archive[offset : offset + size]
                assert zlib.crc32(data) == crc
                samples[row][name] = data
            else:
                assert size == crc == 0
    return list(zip(index.keys.to_pylist(), samples, strict=True))


def _samples_of_webdataset(archive):
    parts = [
        {"fname": name, "data": data, "__url__": ""} for name, data in oracle_members(archive) if not _reserved(name)
    ]
    return [(sample.pop("__key__"), sample) for sample in group_by_keys(parts) if sample.pop("__url__") == ""]


def _reserved(name):
    first = name.split("/")[0].removesuffix("\n")
    return len(first) > 3 and first.startswith("__") and first.endswith("__")


def _check_blocks(index, archive):
    """Blocks tile the archive up to its end marker, start at samples, and carry their checksum."""
    blocks = index.blocks
    offsets, rows = blocks.offsets.tolist(), blocks.rows.tolist()
    assert len(offsets) == len(rows) == len(blocks) + 1
    assert offsets[0] == rows[0] == 0
    assert rows[-1] == len(index)
    assert offsets == sorted(set(offsets))
    assert [zlib.crc32(archive[a:b]) for a, b in itertools.pairwise(offsets)] == blocks.crcs.tolist()
    starts = np.full(len(index), 1 << 62)
    for extents in index.fields.values():
        here = extents.offset > 0
        starts[here] = np.minimum(starts[here], extents.offset[here].astype(np.int64))
        block = np.searchsorted(blocks.rows, np.flatnonzero(here), "right") - 1
        assert (extents.offset[here] >= blocks.offsets[block]).all()
        assert (extents.offset[here] + extents.size[here] <= blocks.offsets[block + 1]).all()
    return offsets


# ----------------------------------------------------------------------------------------------------------------- rows


@settings(max_examples=700)
@given(archives(max_size=6), st.sampled_from(sorted(FEEDS)))
def test_an_index_holds_the_samples_that_webdataset_reads(archive, feed):
    try:
        expected = _samples_of_webdataset(archive)
    except ValueError:
        with pytest.raises(DuplicateFieldError):
            _index(archive)
        return
    index = _index(archive, feed=FEEDS[feed](archive))
    assert _samples(index, archive) == expected
    _check_blocks(index, archive)


@settings(max_examples=200)
@given(archives(max_size=6), st.sampled_from([1, 1000, 4000]))
def test_an_index_does_not_depend_on_what_counts_as_large(archive, large):
    try:
        expected = _index(archive)
    except DuplicateFieldError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_index_build, "_LARGE_BYTES", large)
        found = _index(archive)
    assert _samples(found, archive) == _samples(expected, archive)
    assert found.blocks.crcs.tolist() == expected.blocks.crcs.tolist()
    assert set(found.columns) <= set(expected.columns)
    assert {name: found.columns[name].to_pylist() for name in found.columns} == {
        name: expected.columns[name].to_pylist() for name in found.columns
    }


def test_members_left_out_are_counted_in_the_facts():
    archive = (
        header(b"folder/", 0, b"5") + plain("README", b"1") + plain("a.txt", b"1") + plain("__meta__", b"{}") + END
    )
    assert _index(archive).facts.skipped == {"folder": 1, "name without key and field": 1, "metadata of the shard": 1}
    assert _index(plain("a.txt", b"1") + END).facts.skipped == {}


@pytest.mark.parametrize(
    "archive", [END, bytes(512), header(b"folder/", 0, b"5") + END, pax_header({b"comment": b"x"}, b"g") + END]
)
def test_an_archive_without_samples_has_an_empty_index(archive):
    index = decode_index(encode_index(_index(archive)), URL)
    assert len(index) == len(index.fields) == len(index.columns) == 0
    assert index.blocks.rows[-1] == 0
    assert index.find("a") is None


def test_a_duplicate_field_names_its_place():
    archive = plain("a.txt", b"1") + plain("b.txt", b"1") + plain("b.cls", b"1") + plain("b.txt", b"2") + END
    with pytest.raises(DuplicateFieldError) as caught:
        _index(archive)
    assert (caught.value.shard, caught.value.key, caught.value.field, caught.value.offset) == (URL, "b", "txt", 3072)


def test_a_duplicate_over_the_whole_archive_is_one_too():
    archive = plain("a.txt", b"1") + plain("b.txt", b"1") + plain("a.txt", b"2") + END
    assert len(_index(archive)) == 3
    with pytest.raises(DuplicateFieldError):
        _index(archive, KeyRule(group="archive"))


def test_grouping_over_the_archive_has_no_blocks_where_samples_are_in_pieces():
    pieces = by_tarfile([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("b.cls", b"4")])
    index = _index(pieces, KeyRule(group="archive"))
    assert _samples(index, pieces) == [("a", {"txt": b"1", "cls": b"3"}), ("b", {"txt": b"2", "cls": b"4"})]
    assert index.blocks is None
    assert index.columns["cls"].to_pylist() == [3, 4]
    assert decode_index(encode_index(index), URL).blocks is None
    whole = by_tarfile([("a.txt", b"1"), ("a.cls", b"3"), ("b.txt", b"2")])
    assert _index(whole, KeyRule(group="archive")).blocks is not None


def test_errors_of_keys_name_the_shard():
    archive = plain("x/a.txt", b"1") + plain("y/a.txt", b"1") + END
    with pytest.raises(TarError) as caught:
        _index(archive, KeyRule(folders="flatten"))
    assert caught.value.shard == URL


# --------------------------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("size", [100, 20_000, 700_000, 1 << 20, 3 << 20])
def test_blocks_are_about_a_mebibyte_of_whole_samples(size):
    members = [
        (f"{number:05d}.{field}", data_of(size))
        for number in range(max(3, 6_000_000 // size // 2))
        for field in ("bin", "txt2")
    ]
    archive = by_tarfile(members)
    index = _index(archive)
    offsets = _check_blocks(index, archive)
    lengths = np.diff(offsets)
    assert offsets[-1] == end_of_members(archive)
    assert (lengths[:-1] >= _index_build.BLOCK_BYTES).all()
    assert (lengths <= _index_build.BLOCK_BYTES + 2 * (size + 1024)).all()


def test_members_of_no_sample_belong_to_blocks_too():
    archive = plain("README", data_of(5000)) + plain("a.txt", b"1") + plain("LICENSE", data_of(5000)) + END
    index = _index(archive)
    assert _check_blocks(index, archive) == [0, len(archive) - len(END)]


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(1, 60),
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_the_cutter_cuts_alike_however_the_bytes_come(sizes, block_bytes, steps):
    """Pieces need not end where samples do."""
    starts = np.cumsum([0, *sizes])
    data = data_of(int(starts[-1]))
    cutter, at = BlockCutter(block_bytes), 0
    while at < len(data):
        step = steps[at % len(steps)]
        inside = (starts[:-1] >= at) & (starts[:-1] < at + step)
        cutter.add(memoryview(data)[at : at + step], at, starts[:-1][inside], np.flatnonzero(inside))
        at += step
    blocks = cutter.finish(len(sizes))
    offsets = blocks.offsets.tolist()
    assert offsets[-1] == len(data)
    assert set(offsets) <= set(starts.tolist())
    assert blocks.rows.tolist() == np.searchsorted(starts, offsets).tolist()
    assert [zlib.crc32(data[a:b]) for a, b in itertools.pairwise(offsets)] == blocks.crcs.tolist()
    assert all(length >= block_bytes for length in np.diff(offsets)[:-1])


# -------------------------------------------------------------------------------------------------------------- columns


def _columns(documents, field="json"):
    """The index of samples with one JSON (or raw bytes, or no field where None) each."""
    members = []
    for number, document in enumerate(documents):
        members.append((f"{number:06d}.bin", b"x"))
        if document is not None:
            members.append(
                (f"{number:06d}.{field}", document if isinstance(document, bytes) else json.dumps(document).encode())
            )
    return _index(by_tarfile(members))


def test_the_scalars_of_json_are_columns():
    index = _columns(
        [
            {"width": 3, "name": "x", "ok": True, "at": 0.5, "in": {"deep": {"er": 1}}, "list": [1, 2]},
            {"width": 4, "name": "y", "ok": False, "at": 1.5, "in": {"deep": {"er": 2}}, "list": []},
        ]
    )
    assert {name: column.to_pylist() for name, column in index.columns.items()} == {
        "json.width": [3, 4],
        "json.name": ["x", "y"],
        "json.ok": [True, False],
        "json.at": [0.5, 1.5],
        "json.in.deep.er": [1, 2],
    }
    assert [str(column.type) for column in index.columns.values()] == ["int64", "string", "bool", "double", "int64"]
    assert index.facts.dropped == {}


def test_samples_without_a_value_are_null():
    index = _columns([None, {"a": 1}, None, None, {"b": "x"}, {"a": None}, {"a": 6}, None])
    assert index.columns["json.a"].to_pylist() == [None, 1, None, None, None, None, 6, None]
    assert index.columns["json.b"].to_pylist() == [None, None, None, None, "x", None, None, None]


@pytest.mark.parametrize("field", ["cls", "class", "index", "id", "seg.cls"])
def test_integers_are_a_column(field):
    index = _columns([b"3", b" 4\n", b"-5", b"x", None, b""], field)
    assert index.columns[field].to_pylist() == [3, 4, -5, None, None, None]
    assert index.columns[field].type == pa.int64()


def test_integers_with_much_around_them_are_a_column_and_what_is_none_is_null():
    values = [b"7", b" " * 2000 + b"8", b"x" * 2000, b"9"]
    assert _columns(values, "cls").columns["cls"].to_pylist() == [7, 8, None, 9]


def test_short_texts_are_a_column():
    index = _columns([b"hello", "h\u00e9".encode(), b"\xff", b"", b"x" * LONGEST_TEXT], "txt")
    assert index.columns["txt"].to_pylist() == ["hello", "h\u00e9", None, "", "x" * LONGEST_TEXT]


def test_long_texts_are_no_column_and_the_index_says_so():
    index = _columns([b"x", b"x" * (LONGEST_TEXT + 1), b"y"], "txt")
    assert index.columns == {}
    assert index.facts.dropped == {"txt": f"a text over {LONGEST_TEXT} characters"}


def test_long_texts_are_not_kept_in_memory():
    archive = by_tarfile([(f"{number:04d}.txt", bytes([97 + number % 26]) * 60_000) for number in range(600)])
    tracemalloc.start()
    _index(archive)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize(
    "values",
    [
        [1, "x"],
        [True, 1],
        [True, 0.5],
        [1, True, None],
        ["x", 0.5],
        [1, [2]],
        [[2], 1],
        [1, {"b": 2}],
        [{"b": 2}, {"c": 1}, "x"],
    ],
)
def test_mixed_types_are_no_column_and_the_index_says_so(values):
    index = _columns([{"a": value, "good": 1} for value in values])
    assert "json.a" not in index.columns
    assert index.facts.dropped["json.a"] == "mixed types"
    assert index.columns["json.good"].to_pylist() == [1] * len(values)


def test_mixed_types_are_found_across_chunks():
    documents = [{"a": 1}] * 3000 + [{"a": "x"}] + [{"a": 2}] * 3000
    assert _columns(documents).facts.dropped == {"json.a": "mixed types"}


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, 10**30])
def test_numbers_over_64_bits_are_no_column(number):
    index = _columns([{"a": 1}, {"a": number}])
    assert "json.a" not in index.columns or index.columns["json.a"].to_pylist() == [1, number]
    assert len(index.columns) + len(index.facts.dropped) == 1


def test_integers_and_floats_are_floats():
    index = _columns([{"a": 1}, {"a": 0.5}, {"a": None}])
    assert index.columns["json.a"].to_pylist() == [1.0, 0.5, None]
    assert index.columns["json.a"].type == pa.float64()


@pytest.mark.parametrize("bad", [b"", b"{", b"not json", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"{'a': 1}"])
def test_what_is_no_json_is_null_and_harms_no_other_row(bad):
    index = _columns([{"a": 1}, bad, {"a": 3}])
    assert index.columns["json.a"].to_pylist() == [1, None, 3]


def test_a_json_that_is_one_scalar_or_a_list():
    assert _columns([b"5", b"6"]).columns["json"].to_pylist() == [5, 6]
    assert _columns([b"[1, 2]", b"[3]"]).columns == {}


def test_nesting_is_followed_alike_whether_rows_look_alike_or_not():
    deep = {"a": {"b": {"c": {"d": {"e": {"f": 1}}}, "x": 2}}}
    alike, unlike = _columns([deep] * 3), _columns([deep, {**deep, "z": 1}, deep])
    assert set(alike.columns) == set(unlike.columns) - {"json.z"}
    assert alike.columns["json.a.b.x"].to_pylist() == [2, 2, 2]


def test_many_columns_are_cut_and_the_index_says_so():
    index = _columns([{f"c{number:04d}": number for number in range(400)}] * 2)
    assert len(index.columns) == MOST_COLUMNS
    assert len(index.facts.dropped) == 400 - MOST_COLUMNS
    assert set(index.facts.dropped.values()) == {f"over {MOST_COLUMNS} columns"}


def test_a_mapping_from_ids_does_not_fill_the_index():
    index = _columns([{f"id{number}-{at}": [at] if at % 2 else at for at in range(50)} for number in range(400)])
    assert len(index.columns) == MOST_COLUMNS
    assert len(index.facts.dropped) < 5000
    assert encode_index(index).size < 2 << 20


def test_two_values_under_one_name_are_no_column():
    index = _columns([{"a.b": 1, "a": {"b": 2}, "c": 3}, {"a.b": 1, "a": {"b": 2}, "c": 4}])
    assert list(index.columns) == ["json.c"]
    assert list(index.facts.dropped) == ["json.a.b"]


def test_two_fields_that_give_one_column_give_none():
    members = [
        ("a.json", b'{"id": 1, "x": 5}'),
        ("a.json.id", b"2"),
        ("b.json", b'{"id": 3, "x": 6}'),
        ("b.json.id", b"4"),
    ]
    index = _index(by_tarfile(members))
    assert {name: column.to_pylist() for name, column in index.columns.items()} == {"json.x": [5, 6]}
    assert list(index.facts.dropped) == ["json.id"]


@pytest.mark.parametrize("large", [1 << 30, 100_000])
def test_a_member_too_large_to_be_metadata_drops_all_columns_of_its_field(large, monkeypatch):
    monkeypatch.setattr(_index_build, "_LARGE_BYTES", large)
    big = json.dumps({"a": 2, "pad": ["x" * LARGEST_SOURCE]}).encode()
    members = [
        ("0.json", b'{"a": 1}'),
        ("0.cls", b"1"),
        ("1.json", big),
        ("1.cls", b"2"),
        ("2.json", b'{"a": 3}'),
        ("2.cls", b"3"),
    ]
    index = _index(by_tarfile(members))
    assert {name: column.to_pylist() for name, column in index.columns.items()} == {"cls": [1, 2, 3]}
    assert index.facts.dropped == {"json": f"a member over {LARGEST_SOURCE} bytes"}


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
_DOCUMENTS = st.dictionaries(
    st.sampled_from(["a", "b", "c.d", "é"]),
    st.one_of(
        _SCALARS, st.lists(_SCALARS, max_size=1), st.dictionaries(st.sampled_from(["a", "d"]), _SCALARS, max_size=2)
    ),
    max_size=3,
)


@settings(max_examples=400)
@given(st.lists(st.one_of(st.none(), _DOCUMENTS), min_size=1, max_size=6))
def test_a_column_is_right_or_it_is_not_there(documents):
    """Each value of each column is the one its sample has under that name; every other name is accounted for."""
    index = _columns(documents)
    flat = [_flat(document) for document in documents]
    names = {
        name
        for row in flat
        for name, values in row.items()
        if any(not isinstance(value, (list, dict)) for value in values)
    }
    assert set(index.columns) | set(index.facts.dropped) == names
    for name, column in index.columns.items():
        expected = [row.get(name, [None]) for row in flat]
        assert all(len({json.dumps(value) for value in values if value is not None}) <= 1 for values in expected)
        assert column.to_pylist() == [
            next((value for value in values if value is not None), None) for values in expected
        ]


def _flat(document, prefix="json"):
    found = {}
    for key, value in (document or {}).items():
        found.setdefault(f"{prefix}.{key}", []).append(value)
        if isinstance(value, dict):
            for name, inner in _flat(value, f"{prefix}.{key}").items():
                found.setdefault(name, []).extend(inner)
    return found


# --------------------------------------------------------------------------------------------------------------- stored


def _same(left, right):
    assert left.facts == right.facts
    assert left.keys.to_pylist() == right.keys.to_pylist()
    assert list(left.fields) == list(right.fields)
    for name, extents in left.fields.items():
        other = right.fields[name]
        assert extents.offset.tolist() == other.offset.tolist()
        assert extents.size.tolist() == other.size.tolist()
        assert extents.crc.tolist() == other.crc.tolist()
        assert (extents.offset.dtype, extents.size.dtype, extents.crc.dtype) == (np.uint64, np.uint64, np.uint32)
    assert list(left.columns) == list(right.columns)
    assert all(left.columns[name].equals(right.columns[name]) for name in left.columns)
    for part in ("rows", "offsets", "crcs"):
        assert getattr(left.blocks, part).tolist() == getattr(right.blocks, part).tolist()


@settings(max_examples=300)
@given(archives(max_size=6))
def test_an_index_is_read_back_as_it_was(archive):
    try:
        index = _index(archive)
    except DuplicateFieldError:
        return
    _same(index, decode_index(encode_index(index), URL))


def test_the_same_archive_gives_the_same_bytes():
    _, archive = thirty_members()
    assert encode_index(_index(archive)).equals(encode_index(_index(archive)))


@pytest.mark.parametrize("where", ["file", "file url", "memory"])
def test_an_index_is_stored_and_loaded(where, tmp_path):
    url = {
        "file": str(tmp_path / "a" / "x.arrow"),
        "file url": (tmp_path / "x.arrow").as_uri(),
        "memory": f"memory://{tmp_path.name}/x.arrow",
    }[where]
    with pytest.raises(ObjectNotFoundError):
        load_index(url)
    _, archive = thirty_members()
    index = _index(archive)
    save_index(index, url)
    _same(index, load_index(url))
    replaced = _index(plain("a.txt", b"1") + END)
    save_index(replaced, url)
    _same(replaced, load_index(url))


def test_a_local_index_is_mapped_and_not_copied(tmp_path):
    members = [(f"{number:05d}.{field}", b"") for number in range(20_000) for field in ("jpg", "txt")]
    save_index(_index(by_tarfile(members)), str(tmp_path / "x.arrow"))
    load_index(str(tmp_path / "x.arrow"))
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    index = load_index(str(tmp_path / "x.arrow"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert index.find("19999") == 19_999
    assert pa.total_allocated_bytes() - before < 1 << 16
    assert peak < 1 << 18


@pytest.mark.parametrize("count", [MOST_WIDE_FIELDS, MOST_WIDE_FIELDS + 1, 3 * MOST_WIDE_FIELDS])
def test_very_many_fields_take_the_long_layout(count):
    members = [(f"{row}.f{(row * 7 + at) % count}", b"%d" % at) for row in range(10) for at in range(count // 8)]
    members += [(f"last.f{at}", b"z") for at in range(count)]
    archive = by_tarfile(members)
    index = _index(archive)
    assert isinstance(index.fields, LongExtents) == (count > MOST_WIDE_FIELDS)
    back = decode_index(encode_index(index), URL)
    _same(index, back)
    assert dict(_samples(back, archive)) == dict(_samples_of_webdataset(archive))
    with pytest.raises(KeyError):
        back.fields["nothing"]
    if isinstance(back.fields, LongExtents):
        span = back.fields.span(3, 5)
        assert set(back.fields.entry_rows[span].tolist()) == {3, 4}


def test_fields_and_columns_may_have_any_name():
    members = [
        ("k.offset", b"1"),
        ("k.json", b'{"offset": 1, "crc": 2, "key": 3, "": 4}'),
        ("k.", b"2"),
        ("k.a b\u00e9", b"3"),
        ("k..x", b"4"),
    ]
    archive = by_tarfile(members)
    index = _index(archive)
    back = decode_index(encode_index(index), URL)
    _same(index, back)
    assert list(back.fields) == ["offset", "json", "", "a b\u00e9", ".x"]
    assert set(back.columns) == {"json.offset", "json.crc", "json.key", "json."}


def test_keys_are_found():
    _, archive = thirty_members()
    index = _index(archive)
    assert [index.find(f"{number:04d}") for number in range(10)] == list(range(10))
    assert index.find("nobody") is None
    assert index.key_list(3, 6) == ["0003", "0004", "0005"]
    assert index.key_list(10, 10) == []


def _with_facts(index, **changes):
    """The index stored with other facts."""
    batch = pa.ipc.open_file(encode_index(index)).get_batch(0)
    facts = {**msgspec.json.decode(batch.schema.metadata[b"shoal.facts"]), **changes}
    facts = {name: value for name, value in facts.items() if value is not ...}
    schema = batch.schema.with_metadata({**batch.schema.metadata, b"shoal.facts": msgspec.json.encode(facts)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    return sink.getvalue()


def test_an_index_of_another_version_is_refused():
    for version, word in ((1, "older"), (3, "newer")):
        buffer = _with_facts(_index(plain("a.txt", b"1") + END), version=version)
        with pytest.raises(ShardIndexError, match=word) as caught:
            decode_index(buffer, URL)
        assert caught.value.shard == URL


@pytest.mark.parametrize(
    "changes",
    [
        {"version": ...},
        {"version": "x"},
        {"rule": {"dot": "x"}},
        {"rule": {"spot": "x"}},
        {"rule": ...},
        {"fields": ...},
        {"fields": ["nothing"]},
        {"extra": 1},
        {"fields": 7},
    ],
)
def test_an_index_with_facts_that_do_not_fit_is_refused(changes):
    with pytest.raises(ShardIndexError, match="not a shard index"):
        decode_index(_with_facts(_index(plain("a.txt", b"1") + END), **changes), URL)


def _arrow_file(**columns):
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"ARROW1",
        b"ARROW1\0\0" + bytes(100) + b"ARROW1",
        bytes(1000),
        _arrow_file(key=["a"]),
        _arrow_file(),
        b"{}",
    ],
)
def test_garbage_is_refused(data, tmp_path):
    with pytest.raises(ShardIndexError, match="not a shard index"):
        decode_index(pa.py_buffer(data), URL)
    path = tmp_path / "x.arrow"
    path.write_bytes(data)
    with pytest.raises(ShardIndexError, match="not a shard index") as caught:
        load_index(str(path))
    assert caught.value.shard == str(path)


def test_a_folder_in_place_of_an_index_is_refused(tmp_path):
    with pytest.raises((ShardIndexError, StoreError)):
        load_index(str(tmp_path))


def test_every_truncation_of_an_index_is_refused():
    data = encode_index(_index(plain("a.txt", b"1") + END)).to_pybytes()
    for cut in range(0, len(data), 7):
        with pytest.raises(ShardIndexError):
            decode_index(pa.py_buffer(data[:cut]), URL)


def test_any_bit_flip_in_an_index_is_refused_or_harmless():
    """Arrow itself would follow a text's offset out of the buffer, and end the process."""
    _, archive = thirty_members()
    data = bytearray(encode_index(_index(archive)).to_pybytes())
    refused = 0
    for bit in range(0, 8 * len(data), 11):
        data[bit >> 3] ^= 1 << (bit & 7)
        try:
            index = decode_index(pa.py_buffer(bytes(data)), URL)
            assert len(index.keys.to_pylist()) == len(index)
            assert all(len(column.to_pylist()) == len(index) for column in index.columns.values())
        except ShardIndexError:
            refused += 1
        data[bit >> 3] ^= 1 << (bit & 7)
    assert refused > 500


def test_an_index_of_another_tar_is_stale():
    _, archive = thirty_members()
    index = _index(archive)
    index.check_object(URL, len(archive), archive[:512], zlib.crc32(archive[:512]))
    with pytest.raises(StaleIndexError, match="bytes"):
        index.check_object(URL, len(archive) + 1, archive[:512], zlib.crc32(archive[:512]))
    with pytest.raises(StaleIndexError, match="header"):
        index.check_object(URL, len(archive), b"x" * 512, zlib.crc32(b"x" * 512))


def test_a_store_without_the_index_says_so():
    with pytest.raises(ObjectNotFoundError):
        load_index("memory://nowhere/x.arrow")
    assert not list(store_for("memory://nowhere").list("memory://nowhere"))
