"""``shoal.formats.webdataset``: what seed 001 describes, ported one for one, and what its gaps became."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.tars import PACKERS, make_tar, numbered, write_tar

from shoal.errors import (
    DecodeError,
    DuplicateFieldError,
    InterleavedKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
    TarError,
)
from shoal.formats import webdataset
from shoal.shard import KeyRule
from shoal.store import cache_dir, store_for

# ------------------------------------------------------------------------------------------- the seed's tests, in order

FILES = [
    ("sample001.txt", b"Hello world"),
    ("sample001.json", b'{"label": "cat", "score": 0.95}'),
    ("sample002.txt", b"Goodbye world"),
    ("sample002.json", b'{"label": "dog", "score": 0.87}'),
]


@pytest.fixture
def tar_path(tmp_path):
    path = tmp_path / "test.tar"
    path.write_bytes(
        gzip.compress(make_tar(FILES))
    )  # the seed's archive is compressed, under a name that does not say so
    return str(path)


class TestParse:
    def test_parses_tar_archive_into_samples(self, tar_path):
        items = webdataset.parse(tar_path)

        assert len(items) == 2

        sample1 = next(item for item in items if item["__key__"] == "sample001")
        assert sample1["txt"] == "Hello world"
        assert sample1["json"]["label"] == "cat"
        assert sample1["json"]["score"] == 0.95

    def test_groups_files_by_key(self, tar_path):
        for item in webdataset.parse(tar_path):
            assert "__key__" in item
            assert "txt" in item
            assert "json" in item

    def test_decodes_json_by_default(self, tar_path):
        item, *_ = webdataset.parse(tar_path)
        assert isinstance(item["json"], dict)

    def test_skips_json_decoding_when_decode_false(self, tar_path):
        item, *_ = webdataset.parse(tar_path, decode=False)
        assert isinstance(item["json"], bytes)

    def test_handles_missing_file(self):
        with pytest.raises(FileNotFoundError, match=r"nonexistent\.tar"):
            webdataset.parse("nonexistent.tar")


class TestStream:
    def test_returns_a_stream_of_samples(self, tar_path):
        stream = webdataset.stream(tar_path)

        items = list(stream)
        assert len(items) == 2

    def test_stream_is_lazy(self, tar_path):
        with webdataset.stream(tar_path) as stream:
            [first] = itertools.islice(stream, 1)
        assert "__key__" in first


class TestWithBinaryContent:
    def test_loads_binary_files_as_is(self, tmp_path):
        binary_tar = write_tar(tmp_path / "binary.tar", [("sample.jpg", b"\xff\xd8\xff\xe0")])

        [item] = webdataset.parse(binary_tar)
        assert item["jpg"] == b"\xff\xd8\xff\xe0"


class TestExamples:
    """The seed's documentation."""

    def test_each_group_of_files_with_the_same_prefix_becomes_one_item(self, tmp_path):
        members = [
            ("sample000001.jpg", b"\xff\xd8"),
            ("sample000001.json", b'{"width": 512, "height": 512}'),
            ("sample000001.txt", b"A photo of a cat"),
        ]
        assert webdataset.parse(write_tar(tmp_path / "archive.tar", members)) == [
            {
                "__key__": "sample000001",
                "jpg": b"\xff\xd8",
                "json": {"width": 512, "height": 512},
                "txt": "A photo of a cat",
            }
        ]

    def test_load_all_samples(self, tar_path):
        assert [item["__key__"] for item in webdataset.parse(tar_path)] == ["sample001", "sample002"]

    def test_stream_for_large_archives(self, tar_path):
        assert [sample["txt"] for sample in webdataset.stream(tar_path)] == ["Hello world", "Goodbye world"]

    def test_shards(self, tmp_path):
        paths = [write_tar(tmp_path / f"{n}.tar", numbered(2, 2 * n)) for n in range(3)]
        items = webdataset.parse_shards(paths)
        assert [item["__key__"] for item in items] == [f"{n:04d}" for n in range(6)]
        assert list(webdataset.stream_shards(paths)) == items


# ------------------------------------------------------------------------------------------------ the seed's edge cases

READERS = {
    "parse": webdataset.parse,
    "stream": lambda path, **options: list(webdataset.stream(path, **options)),
    "parse_shards": lambda path, **options: webdataset.parse_shards([path], **options),
    "stream_shards": lambda path, **options: list(webdataset.stream_shards([path], **options)),
}


@pytest.fixture(params=READERS)
def read(request):
    return READERS[request.param]


class TestEdgeCases:
    @pytest.mark.parametrize("content", [b"", bytes(1024), bytes(10240)], ids=["0 bytes", "two zero blocks", "padded"])
    def test_1_an_empty_archive_gives_an_empty_list(self, read, content):
        assert read(io.BytesIO(content)) == []

    def test_1_an_empty_archive_by_path(self, read, tmp_path):
        (tmp_path / "empty.tar").write_bytes(b"")
        assert read(str(tmp_path / "empty.tar")) == []

    def test_2_a_corrupted_archive_raises_with_its_place(self, read, tmp_path):
        data = bytearray(make_tar(FILES))
        data[1024 + 100] ^= 0xFF  # inside the second header
        (tmp_path / "bad.tar").write_bytes(data)
        with pytest.raises(TarError) as raised:
            read(str(tmp_path / "bad.tar"))
        assert raised.value.shard == str(tmp_path / "bad.tar")
        assert raised.value.offset == 1024

    @pytest.mark.parametrize("content", [b"this is a text file, not a tar\n" * 40, b"short"], ids=["long", "short"])
    def test_2_a_text_file_is_no_archive(self, read, content):
        with pytest.raises(TarError):
            read(io.BytesIO(content))

    def test_3_files_without_extensions_are_skipped_and_counted(self, tmp_path):
        members = [("README", b"x"), ("d/.hidden-dir-less", b"x"), ("a.txt", b"1"), ("Makefile", b"x"), (".git", b"x")]
        stream = webdataset.stream(write_tar(tmp_path / "a.tar", members))
        keys = [sample["__key__"] for sample in stream]
        assert keys == ["d/", "a"]  # webdataset takes d/.hidden for a sample as well
        assert stream.skipped == {"name without key and field": 3}

    def test_3_other_members_are_counted_by_kind(self, tmp_path):
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as tar:
            for name, kind in [("d", tarfile.DIRTYPE), ("l.txt", tarfile.SYMTYPE)]:
                info = tarfile.TarInfo(name)
                info.type = kind
                tar.addfile(info)
        stream = webdataset.stream(path, group="archive")
        assert list(stream) == []
        assert stream.skipped == {"folder": 1, "symbolic link": 1}

    def test_4_nested_directories_are_kept(self, read):
        members = [("train/x.jpg", b"1"), ("train/x.txt", b"2"), ("test/x.jpg", b"3")]
        keys = [sample["__key__"] for sample in read(io.BytesIO(make_tar(members)))]
        assert keys == ["train/x", "test/x"]

    def test_4_nested_directories_can_be_flattened(self, read):
        members = [("train/x.jpg", b"1"), ("train/x.txt", b"2"), ("test/y.jpg", b"3"), ("d/.hidden", b"")]
        flat = KeyRule(folders="flatten")
        assert read(io.BytesIO(make_tar(members)), rule=flat) == [
            {"__key__": "x", "jpg": b"1", "txt": "2"},
            {"__key__": "y", "jpg": b"3"},
        ]

    @pytest.mark.parametrize("between", [[], [("train/y.jpg", b"")]], ids=["neighbours", "apart"])
    def test_4_flattening_never_makes_two_samples_one(self, read, between):
        members = [("train/x.jpg", b"1"), *between, ("test/x.txt", b"2")]
        with pytest.raises(TarError, match=r"flattening|comes back") as raised:
            read(io.BytesIO(make_tar(members)), rule=KeyRule(folders="flatten"))
        assert raised.value.key == "x"

    def test_4_flattening_is_refused_across_chunks_too(self):
        members = [("train/x.jpg", bytes(3 << 20)), ("test/x.txt", b"2")]
        with pytest.raises(TarError, match="flattening"):
            list(webdataset.stream(io.BytesIO(make_tar(members)), rule=KeyRule(folders="flatten")))

    @pytest.mark.parametrize("ending", PACKERS)
    def test_6_compressed_archives(self, read, tmp_path, ending):
        (tmp_path / f"a{ending}").write_bytes(PACKERS[ending](make_tar(FILES)))
        assert [s["txt"] for s in read(str(tmp_path / f"a{ending}"))] == ["Hello world", "Goodbye world"]

    @pytest.mark.parametrize("ending", PACKERS)
    def test_6_compression_is_told_by_content(self, read, ending):
        assert len(read(io.BytesIO(PACKERS[ending](make_tar(FILES))))) == 2

    @pytest.mark.parametrize(
        "stored, kept",
        [
            (b'{"broken": ', '{"broken": '),
            (b" not json \n", " not json \n"),
            (b"", ""),
            (b"\xff\xfe{", b"\xff\xfe{"),
            ("{ä".encode(), "{ä"),
        ],
    )
    @pytest.mark.parametrize("field", ["json", "meta.json", "jsonl"])
    def test_7_invalid_json_is_kept(self, read, stored, kept, field):
        if field == "jsonl" and stored == b"":
            kept = []  # no lines are valid JSON lines
        assert read(io.BytesIO(make_tar([(f"a.{field}", stored)]))) == [{"__key__": "a", field: kept}]

    def test_7_or_raises_when_asked(self, read):
        with pytest.raises(DecodeError) as raised:
            read(io.BytesIO(make_tar([("a.json", b"{}"), ("b.json", b"{")])), on_decode_error="raise")
        assert (raised.value.key, raised.value.field) == ("b", "json")
        assert raised.value.shard == "<stream>"


# ------------------------------------------------------------------------------------------------------------- values

IMAGES = ["jpg", "jpeg", "png", "webp", "mp3", "wav", "flac", "bin", "pkl", "msgpack", "transcript"]


class TestValues:
    @pytest.mark.parametrize("field", ["txt", "text", "caption", "cls", "title.txt"])
    @pytest.mark.parametrize("decode", [True, False, None])
    def test_text_is_stripped_whatever_decode_is(self, read, field, decode):
        archive = make_tar([(f"a.{field}", " \tgrün 7\r\n".encode())])
        assert read(io.BytesIO(archive), decode=decode) == [{"__key__": "a", field: "grün 7"}]

    @pytest.mark.parametrize("field", IMAGES)
    def test_all_else_stays_bytes(self, read, field):
        assert read(io.BytesIO(make_tar([(f"a.{field}", b" 7 ")]))) == [{"__key__": "a", field: b" 7 "}]

    def test_text_that_is_no_utf_8_is_kept(self, read):
        archive = make_tar([("a.txt", b"\xff "), ("a.cls", b"1")])
        assert read(io.BytesIO(archive)) == [{"__key__": "a", "txt": b"\xff ", "cls": "1"}]
        with pytest.raises(DecodeError, match="field txt") as raised:
            read(io.BytesIO(archive), on_decode_error="raise")
        assert raised.value.key == "a"

    def test_json_lines_are_a_list(self, read):
        archive = make_tar([("a.jsonl", b'{"x": 1}\n[2]\n')])
        assert read(io.BytesIO(archive)) == [{"__key__": "a", "jsonl": [{"x": 1}, [2]]}]
        assert read(io.BytesIO(archive), decode=False) == [{"__key__": "a", "jsonl": b'{"x": 1}\n[2]\n'}]

    def test_npy_is_an_array(self, read):
        out = io.BytesIO()
        np.save(out, np.arange(6).reshape(2, 3))
        archive = make_tar([("a.npy", out.getvalue()), ("b.npy", b"damaged")])
        first, second = read(io.BytesIO(archive))
        assert np.array_equal(first["npy"], np.arange(6).reshape(2, 3))
        assert second["npy"] == b"damaged"
        assert read(io.BytesIO(archive), decode=False)[0]["npy"] == out.getvalue()
        with pytest.raises(DecodeError):
            read(io.BytesIO(archive), on_decode_error="raise")

    def test_arrays_of_objects_need_permission(self, read):
        out = io.BytesIO()
        np.save(out, np.array([{"x": 1}], object), allow_pickle=True)
        archive = make_tar([("a.npy", out.getvalue())])
        assert read(io.BytesIO(archive))[0]["npy"] == out.getvalue()
        assert read(io.BytesIO(archive), allow_pickle=True)[0]["npy"][0] == {"x": 1}

    def test_a_spec_decodes_what_it_names_and_nothing_more(self, read):
        archive = make_tar([("a.cls", b"7"), ("a.json", b"{}"), ("a.ref.msgpack", b"\x07"), ("a.raw", b"ab")])
        [sample] = read(io.BytesIO(archive), decode={"msgpack": True, "raw": bytes.hex})
        assert sample == {"__key__": "a", "cls": "7", "json": {}, "ref.msgpack": 7, "raw": "6162"}

    def test_extensions_are_lower_cased_unless_the_rule_keeps_them(self, read):
        archive = make_tar([("a.TXT", b" x "), ("a.JSON", b"[]")])
        assert read(io.BytesIO(archive)) == [{"__key__": "a", "txt": "x", "json": []}]
        keep = KeyRule(case="keep")
        assert read(io.BytesIO(archive), rule=keep, extensions=["TXT"]) == [{"__key__": "a", "TXT": "x"}]

    def test_the_last_dot_as_in_the_seed(self, read):
        archive = make_tar([("a.b.txt", b"1"), ("a.b.jpg", b"2"), ("a.c.txt", b"3")])
        samples = read(io.BytesIO(archive), rule=KeyRule(dot="last"))
        assert samples == [{"__key__": "a.b", "txt": "1", "jpg": b"2"}, {"__key__": "a.c", "txt": "3"}]

    @pytest.mark.parametrize("options", [{"on_decode_error": "ignore"}, {"decode": 7}, {"on_error": "ignore"}])
    def test_options_that_make_no_sense(self, read, options):
        with pytest.raises(OptionError):
            read(io.BytesIO(b""), **options)

    def test_an_unknown_option_is_a_type_error(self, read):
        with pytest.raises(TypeError, match="extension"):
            read(io.BytesIO(b""), extension=["txt"])


# ----------------------------------------------------------------------------------------- extensions and max_samples


class CountingStore:
    """One archive, and how many of its bytes were asked for."""

    def __init__(self, data):
        self.data, self.bytes_read, self.opened = data, 0, 0

    def __getattr__(self, name):
        return getattr(store_for("memory://x"), name)

    def info(self, url):
        return store_for("memory://x").write_all("memory://counted", self.data)

    def is_folder(self, url):
        return False

    def open(self, url):
        self.opened += 1
        reader = store_for("memory://x").open(self.info(url).url)
        read = reader.read

        def counted(start, stop):
            part = read(start, stop)
            self.bytes_read += len(part)
            return part

        reader.read = counted
        return reader


@pytest.fixture
def counting(monkeypatch):
    def register(data):
        from shoal.store import _registry

        store = CountingStore(data)
        monkeypatch.setitem(_registry._STORES, "counted", store)
        return store

    return register


class TestExtensions:
    ARCHIVE = make_tar([("a.jpg", b"1"), ("a.txt", b"2"), ("b.seg.jpg", b"3"), ("c.txt", b"4"), ("c.cls", b"5")])

    @pytest.mark.parametrize("wanted", [["txt"], [".txt"], ["TXT"], iter([".Txt"]), {"txt"}])
    def test_only_these_and_no_empty_samples(self, wanted):
        samples = webdataset.parse(io.BytesIO(self.ARCHIVE), extensions=wanted)
        assert samples == [{"__key__": "a", "txt": "2"}, {"__key__": "c", "txt": "4"}]

    def test_whole_fields_only(self, read):
        assert [s["__key__"] for s in read(io.BytesIO(self.ARCHIVE), extensions=["jpg"])] == ["a"]
        assert [s["__key__"] for s in read(io.BytesIO(self.ARCHIVE), extensions=["seg.jpg"])] == ["b"]

    def test_none_wanted_gives_nothing(self, read):
        assert read(io.BytesIO(self.ARCHIVE), extensions=[]) == []

    def test_a_string_is_a_mistake(self, read):
        with pytest.raises(OptionError, match=r"\['jpg', 'txt'\]"):
            read(io.BytesIO(self.ARCHIVE), extensions="txt")

    def test_large_members_that_are_not_wanted_are_not_read(self, read, counting):
        large = bytes(8 << 20)
        store = counting(
            make_tar([(f"{n}.{f}", large if f == "mp4" else b"x") for n in range(4) for f in ("txt", "mp4")])
        )
        assert [s["txt"] for s in read("counted://a.tar", extensions=["txt"])] == ["x"] * 4
        assert store.bytes_read < 4 << 20
        assert [len(s["mp4"]) for s in read("counted://a.tar", extensions=["mp4"])] == [8 << 20] * 4

    @given(st.data())
    def test_the_same_as_filtering_afterwards(self, data):
        sizes = st.sampled_from([0, 1, 511, 512, 513, 300_000, 1 << 20, (1 << 20) + 1])
        fields = st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1)
        samples = data.draw(st.lists(st.lists(st.tuples(fields, sizes), max_size=1), max_size=6))
        members = [
            (f"{n}.{field}", bytes([n]) * size) for n, parts in enumerate(samples) for fs, size in parts for field in fs
        ]
        wanted = set(data.draw(fields))
        archive = make_tar(members)
        whole = [
            {k: v for k, v in s.items() if k == "__key__" or k in wanted} for s in webdataset.parse(io.BytesIO(archive))
        ]
        store_for("memory://x").write_all("memory://projected.tar", archive)
        for source in ("memory://projected.tar", io.BytesIO(archive)):
            assert list(webdataset.stream(source, extensions=wanted)) == [s for s in whole if len(s) > 1]


class TestMaxSamples:
    @pytest.mark.parametrize("most", [0, 1, 3, 5, 6, 100, None])
    def test_is_a_total_in_all_four(self, tmp_path, most):
        paths = [write_tar(tmp_path / f"{n}.tar", numbered(3, 3 * n)) for n in range(2)]
        keys = [f"{n:04d}" for n in range(6)][:most]
        one = keys[:3]
        assert [s["__key__"] for s in webdataset.parse(paths[0], max_samples=most)] == one
        assert [s["__key__"] for s in webdataset.stream(paths[0], max_samples=most)] == one
        assert [s["__key__"] for s in webdataset.parse_shards(paths, max_samples=most)] == keys
        for workers in (1, 2):
            assert [s["__key__"] for s in webdataset.stream_shards(paths, max_samples=most, workers=workers)] == keys

    def test_negative_is_refused(self, read):
        with pytest.raises(OptionError):
            read(io.BytesIO(b""), max_samples=-1)

    def test_reading_stops_early(self, counting):
        store = counting(make_tar([(f"{n:02d}.jpg", bytes(1 << 20)) for n in range(30)]))
        assert len(list(webdataset.stream("counted://a.tar", max_samples=2))) == 2
        assert store.bytes_read < 9 << 20  # two members, the header behind them, and what was read ahead: not 30 MB
        store.bytes_read = 0
        assert len(webdataset.parse("counted://a.tar", max_samples=2, group="neighbours")) == 2
        assert store.bytes_read < 9 << 20

    def test_shards_that_are_not_needed_are_not_opened(self, tmp_path):
        path = write_tar(tmp_path / "a.tar", numbered(3))
        assert len(webdataset.parse_shards([path, str(tmp_path / "missing.tar")], max_samples=3)) == 3
        assert len(list(webdataset.stream_shards([path, str(tmp_path / "missing.tar")], max_samples=3))) == 3
        assert webdataset.parse(str(tmp_path / "missing.tar"), max_samples=0) == []

    def test_members_at_the_archives_end_still_belong_to_the_first_samples(self):
        archive = make_tar([("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3"), ("a.cls", b"4")])
        assert webdataset.parse(io.BytesIO(archive), max_samples=1) == [{"__key__": "a", "txt": "1", "cls": "4"}]


# ------------------------------------------------------------------------------------------------------------ grouping

INTERLEAVED = [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("b.cls", b"4")]


class TestGrouping:
    def test_parse_groups_the_whole_archive(self):
        whole = [{"__key__": "a", "txt": "1", "cls": "3"}, {"__key__": "b", "txt": "2", "cls": "4"}]
        assert webdataset.parse(io.BytesIO(make_tar(INTERLEAVED))) == whole
        assert webdataset.parse_shards([io.BytesIO(make_tar(INTERLEAVED))]) == whole
        assert list(webdataset.stream(io.BytesIO(make_tar(INTERLEAVED)), group="archive")) == whole
        rule = KeyRule(group="archive")
        assert list(webdataset.stream_shards(io.BytesIO(make_tar(INTERLEAVED)), rule=rule)) == whole

    def test_stream_refuses_a_key_that_returns_and_says_what_to_do(self):
        samples = webdataset.stream(io.BytesIO(make_tar(INTERLEAVED)))
        assert next(samples) == {"__key__": "a", "txt": "1"}
        assert next(samples) == {"__key__": "b", "txt": "2"}
        with pytest.raises(InterleavedKeyError, match="group='archive'") as raised:
            next(samples)
        assert (raised.value.key, raised.value.offset) == ("a", 2048)
        assert list(samples) == []

    def test_however_far_apart(self):
        members = [*numbered(20_000, fields=["txt"]), ("0003.cls", b"")]
        with pytest.raises(InterleavedKeyError, match="key 0003"):
            list(webdataset.stream(io.BytesIO(make_tar(members))))
        assert webdataset.parse(io.BytesIO(make_tar(members)))[3]["cls"] == ""

    def test_keys_of_different_shards_never_meet(self, tmp_path):
        paths = [write_tar(tmp_path / "0.tar", [("a.txt", b"1")]), write_tar(tmp_path / "1.tar", [("a.cls", b"2")])]
        two = [{"__key__": "a", "txt": "1"}, {"__key__": "a", "cls": "2"}]
        assert webdataset.parse_shards(paths) == two
        assert list(webdataset.stream_shards(paths)) == two

    @pytest.mark.parametrize(
        "members",
        [
            [("a.txt", b""), ("a.txt", b"")],
            [("a.txt", b""), ("a.TXT", b"")],
            [("a.jpg", b""), ("a.txt", bytes(3 << 20)), ("a.jpg", b"")],
            [("a.txt", b""), ("a.__key__", b"b")],
            [("a.__url__", b"b")],
        ],
        ids=["same", "case", "far", "key", "url"],
    )
    def test_the_same_field_twice_is_an_error(self, read, members):
        with pytest.raises(DuplicateFieldError) as raised:
            read(io.BytesIO(make_tar([("0.txt", b""), *members])))
        assert raised.value.key == "a"

    def test_the_same_field_twice_in_two_places(self):
        members = [("a.txt", b""), ("b.txt", b""), ("a.txt", b"")]
        with pytest.raises(DuplicateFieldError, match="key a, field txt"):
            webdataset.parse(io.BytesIO(make_tar(members)))

    @given(
        st.lists(
            st.tuples(st.sampled_from(["a", "b", "c/a", "__m__"]), st.sampled_from(["txt", "cls", "jpg", "x.json"])),
            unique=True,
        )
    )
    def test_parse_is_a_dict_of_dicts(self, names):
        whole: dict[str, dict] = {}
        for key, field in names:
            whole.setdefault(key, {"__key__": key})[field] = b"7"
        archive = make_tar([(f"{key}.{field}", b"7") for key, field in names])
        assert webdataset.parse(io.BytesIO(archive), decode={"txt cls json": bytes}) == list(whole.values())


# ------------------------------------------------------------------------------------------- the seed's enhancements


class TestEnhancements:
    def test_1_shard_patterns(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for n in range(12):
            write_tar(tmp_path / f"data-{n:05d}.tar", numbered(1, n))
        keys = [f"{n:04d}" for n in range(12)]
        for pattern in ("data-{00000..00011}.tar", "data-*.tar", "data-0000?.tar::data-{00010,00011}.tar", "."):
            assert [s["__key__"] for s in webdataset.parse_shards(pattern)] == keys
            assert [s["__key__"] for s in webdataset.stream_shards(pattern)] == keys
        listed = ["data-{00000..00010}.tar", tmp_path / "data-00011.tar"]
        assert [s["__key__"] for s in webdataset.stream_shards(iter(listed))] == keys

    def test_1_a_pattern_that_matches_nothing_is_an_error(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            webdataset.parse_shards(f"{tmp_path}/data-*.tar")
        with pytest.raises(FileNotFoundError, match=r"data-0\.tar"):
            webdataset.parse_shards(f"{tmp_path}/data-{{0..3}}.tar")

    def test_1_a_file_is_meant_before_a_pattern(self, tmp_path):
        write_tar(tmp_path / "a1.tar", [("pattern.txt", b"")])
        name = write_tar(tmp_path / "a[1].tar", [("literal.txt", b"")])
        braces = write_tar(tmp_path / "a{0,1}.tar", [("braces.txt", b"")])
        assert [s["__key__"] for s in webdataset.parse(name)] == ["literal"]
        assert [s["__key__"] for s in webdataset.parse_shards([name, braces])] == ["literal", "braces"]

    def test_1_no_shards_give_no_samples(self):
        assert webdataset.parse_shards([]) == []
        assert list(webdataset.stream_shards([], workers=3, shuffle=True)) == []

    @pytest.mark.parametrize("paths", [7, [7], None])
    def test_1_what_names_no_archive(self, paths):
        with pytest.raises(OptionError, match="names no archive"):
            webdataset.parse_shards(paths)

    def test_4_write_support(self, tmp_path):
        samples = [
            {"__key__": f"{n:03d}", "jpg": b"\xff\xd8", "txt": f"caption {n}", "json": {"n": n}, "cls": str(n)}
            for n in range(10)
        ]
        assert webdataset.write(tmp_path / "out.tar", iter(samples)) == [str(tmp_path / "out.tar")]
        assert webdataset.parse(tmp_path / "out.tar") == samples

    def test_4_write_shards(self, tmp_path):
        paths = webdataset.write(f"{tmp_path}/out-%06d.tar", ({"txt": str(n)} for n in range(7)), max_samples=3)
        assert [os.path.basename(path) for path in paths] == [f"out-{n:06d}.tar" for n in range(3)]
        assert [s["txt"] for s in webdataset.parse_shards(paths)] == [str(n) for n in range(7)]

    @pytest.mark.parametrize(
        "ending, magic",
        [
            ("tar.gz", b"\x1f\x8b"),
            ("tgz", b"\x1f\x8b"),
            ("tar.bz2", b"BZh"),
            ("tar.xz", b"\xfd7zXZ"),
            ("tar.zst", b"\x28\xb5"),
        ],
    )
    def test_4_write_compressed_by_name(self, tmp_path, ending, magic):
        [path] = webdataset.write(f"{tmp_path}/a.{ending}", [{"txt": "x"}])
        assert Path(path).read_bytes().startswith(magic)
        assert webdataset.parse(path) == [{"__key__": "000000000", "txt": "x"}]

    def test_4_write_takes_the_writers_options(self, tmp_path):
        [path] = webdataset.write(f"{tmp_path}/a.tar", [{"txt": "x"}], compression="gzip")
        with tarfile.open(path, "r:gz") as tar:
            assert tar.getnames() == ["000000000.txt"]
        with pytest.raises(ObjectExistsError):
            webdataset.write(path, [{"txt": "y"}])
        webdataset.write(path, [{"txt": "y"}], overwrite=True)
        assert webdataset.parse(path)[0]["txt"] == "y"

    def test_4_a_failure_while_writing_leaves_no_archive(self, tmp_path):
        def samples():
            yield {"txt": "x"}
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            webdataset.write(f"{tmp_path}/a.tar", samples())
        assert not (tmp_path / "a.tar").exists()

    @pytest.mark.parametrize("ending", PACKERS)
    def test_5_remote_archives(self, read, ending):
        url = f"memory://remote/{ending}/a{ending}"
        store_for(url).write_all(url, PACKERS[ending](make_tar(FILES)))
        assert len(read(url)) == 2

    def test_5_remote_patterns_and_missing_ones(self):
        for n in range(3):
            url = f"memory://remote-shards/a-{n}.tar"
            store_for(url).write_all(url, make_tar(numbered(1, n)))
        assert len(webdataset.parse_shards("memory://remote-shards/a-{0..2}.tar")) == 3
        assert len(webdataset.parse_shards("memory://remote-shards/*.tar")) == 3
        assert len(webdataset.parse_shards("memory://remote-shards")) == 3
        with pytest.raises(FileNotFoundError):
            webdataset.parse("memory://remote-shards/a-3.tar")

    def test_5_a_scheme_nobody_serves(self, read):
        with pytest.raises(StoreError, match="gopher"):
            read("gopher://host/a.tar")

    def test_6_parallel_extraction(self, tmp_path):
        paths = [write_tar(tmp_path / f"{n}.tar", numbered(50, 50 * n)) for n in range(5)]
        alone = webdataset.parse_shards(paths)
        assert webdataset.parse_shards(paths, workers=4) == alone
        assert list(webdataset.stream_shards(paths, workers=3)) == alone


# ---------------------------------------------------------------------------------------------------------------- peers


def as_webdataset(paths):
    """What webdataset gives, undecoded, without what it adds about where a sample came from."""
    found = wds.WebDataset(paths, shardshuffle=False, empty_check=False)
    return [{k: v for k, v in s.items() if k not in ("__url__", "__local_path__")} for s in found]


NAMES = st.one_of(
    st.sampled_from(["a", "d/a", ".hidden", "d/.hidden", "a.", "a..b", "..a.b", "./a.jpg", "d.x/a.b.c", "__meta__"]),
    st.sampled_from(["__meta__/x.json", "__index__.json", "d/__b__/c.txt", "A.TXT", "x.seg.PNG", "ü.txt"]),
    st.builds("{}.{}".format, st.text("ab/._-", min_size=1, max_size=4), st.sampled_from(["txt", "jpg", "c.json"])),
)


class TestPeers:
    @pytest.mark.usefixtures("leaky_peer")
    @given(
        names=st.lists(NAMES, unique=True, max_size=12),
        kind=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT]),
    )
    def test_names_and_groups_as_webdataset(self, names, kind, tmp_path_factory):
        names = [name for name in names if not name.endswith("/")]
        path = tmp_path_factory.mktemp("wds") / "a.tar"
        path.write_bytes(make_tar([(name, name.encode()) for name in names], kind=kind))
        expected, error = None, None
        try:
            expected = as_webdataset(str(path))
        except ValueError as raised:
            error = raised
        raw = {"decode": lambda name, data: data}
        if error is not None:
            with pytest.raises(DuplicateFieldError):
                webdataset.parse(path, group="neighbours", **raw)
            return
        keys = [sample["__key__"] for sample in expected]
        if len(set(keys)) == len(keys):
            assert list(webdataset.stream(path, **raw)) == expected
            assert webdataset.parse(path, **raw) == expected
        else:
            with pytest.raises(InterleavedKeyError):
                list(webdataset.stream(path, **raw))

    @pytest.mark.usefixtures("leaky_peer")
    @pytest.mark.parametrize("compress", [False, "gz", "bz2", "xz"])
    def test_what_webdataset_writes(self, tmp_path, compress):
        path = str(tmp_path / "a.tar")
        with wds.TarWriter(path, compress=compress) as writer:
            for n in range(30):
                writer.write({"__key__": f"d/{n:03d}", "jpg": bytes([n]) * 700, "json": {"n": n}, "cls": n, "txt": "é"})
        samples = [
            {"__key__": f"d/{n:03d}", "cls": str(n), "jpg": bytes([n]) * 700, "json": {"n": n}, "txt": "é"}
            for n in range(30)
        ]
        assert webdataset.parse(path) == samples
        assert list(webdataset.stream(path)) == samples

    @pytest.mark.usefixtures("leaky_peer")
    @pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
    def test_what_webdataset_reads(self, tmp_path, ending):
        samples = [{"__key__": f"{n:03d}", "txt": f"t{n}", "json": {"n": n}} for n in range(300)]
        [path] = webdataset.write(f"{tmp_path}/a.{ending}", samples, metadata={"by": "shoal"})
        expected = [
            {"__key__": s["__key__"], "txt": s["txt"].encode(), "json": json.dumps(s["json"]).replace(" ", "").encode()}
            for s in samples
        ]
        assert as_webdataset(path) == expected
        assert webdataset.parse(path) == samples


def test_no_cache_is_filled(tmp_path):
    for ending, pack in PACKERS.items():
        path = tmp_path / f"a{ending}"
        path.write_bytes(pack(make_tar(FILES)))
        webdataset.parse(path)
        list(webdataset.stream(path))
    assert not os.path.isdir(cache_dir()) or os.listdir(cache_dir()) == []
    assert sorted(os.listdir(tmp_path)) == sorted(f"a{ending}" for ending in PACKERS)


def test_no_thread_is_left(tmp_path):
    paths = [write_tar(tmp_path / f"{n}.tar", numbered(5, n)) for n in range(4)]
    before = threading.active_count()
    webdataset.parse_shards(paths, workers=4)
    assert threading.active_count() == before


def test_the_error_of_a_missing_file_is_ours_too(tmp_path):
    with pytest.raises(ObjectNotFoundError):
        webdataset.parse(tmp_path / "missing.tar")
    with pytest.raises(StoreError, match="no tar shards"):
        webdataset.parse(tmp_path)


@pytest.mark.parametrize(
    "read", [webdataset.parse, webdataset.stream, webdataset.parse_shards, webdataset.stream_shards]
)
def test_an_option_that_there_is_not_is_named_with_those_there_are(read):
    with pytest.raises(TypeError, match=r"no option 'extension'.*on_error"):
        read("a.tar", extension=["jpg"])
