"""Damaged archives: never a silent loss, never a half sample, never two halves made one."""

from __future__ import annotations

import io
import json
import tarfile
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.tars import PACKERS, SMALL, make_tar, numbered, write_tar

from shoal.errors import (
    DuplicateFieldError,
    ErrorBudgetExceeded,
    InterleavedKeyError,
    ObjectNotFoundError,
    ShoalWarning,
    StoreError,
    TarError,
    TruncatedError,
)
from shoal.formats import webdataset
from shoal.shard import ErrorLog, ErrorPolicy, KeyRule
from shoal.store import store_for

ARCHIVE = make_tar(SMALL)
WHOLE = webdataset.parse(io.BytesIO(ARCHIVE))
TINY = make_tar(SMALL[:2] + SMALL[3:5])
TINY_WHOLE = webdataset.parse(io.BytesIO(TINY))
TINY_END = 4 * 1024
HEADERS = range(0, len(SMALL) * 1024 + 1, 1024)  # every member is a header and one block


def outcome(source, read, **options):
    """What was given, what was raised, and what was told on the way."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        samples, error = [], None
        try:
            samples.extend(read(source, **options))
        except (TarError, StoreError) as raised:
            error = raised
    return samples, error, [str(warning.message) for warning in told]


def stored(data):
    url = "memory://damaged/a.tar"
    store_for(url).write_all(url, data)
    return url


READERS = {"parse": webdataset.parse, "stream": webdataset.stream}


@pytest.fixture(params=READERS)
def read(request):
    return READERS[request.param]


class TestTruncation:
    """At every byte of an archive of two samples with two fields each, and of three with three, compressed."""

    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    @pytest.mark.parametrize("reader, kind", [("parse", "object"), ("stream", "object"), ("stream", "pipe")])
    def test_no_silent_loss_and_no_half_sample(self, reader, kind, on_error):
        for length in range(len(TINY)):
            source = io.BytesIO(TINY[:length]) if kind == "pipe" else stored(TINY[:length])
            samples, error, told = outcome(source, READERS[reader], on_error=on_error)
            if length == 0 or length >= TINY_END + 512:  # an empty file, or an end marker, which one block is
                assert (samples, error, told) == (TINY_WHOLE if length else [], None, [])
                continue
            assert error is not None or told, f"silent at byte {length}"
            assert on_error == "raise" or error is None
            assert samples == TINY_WHOLE[: len(samples)], f"a half sample at byte {length}"
            if reader == "stream":  # all that is known to be whole: the next sample's first member is
                assert len(samples) >= (length - 1024) // 2048

    @pytest.mark.parametrize("ending", [ending for ending in PACKERS if ending != ".tar"])
    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    def test_of_compressed_data(self, read, ending, on_error, tmp_path):
        packed = PACKERS[ending](ARCHIVE)
        path = tmp_path / "cut"
        for length in range(1, len(packed)):
            path.write_bytes(packed[:length])
            samples, error, told = outcome(path, read, on_error=on_error)
            assert samples == WHOLE[: len(samples)]
            assert (error is not None) if on_error == "raise" else (error is None and told), f"silent at byte {length}"

    def test_the_cause_is_named_not_what_it_looks_like(self):
        packed = PACKERS[".tar.gz"](make_tar(numbered(200)))
        _, error, _ = outcome(io.BytesIO(packed[: len(packed) // 2]), webdataset.stream)
        assert isinstance(error, TruncatedError)
        assert "gzip data is cut short" in str(error)
        assert error.shard == "<stream>"

    def test_samples_before_a_cut_in_compressed_data_are_given(self):
        noise = [(f"{n:03d}.jpg", bytes((n * m) % 251 for m in range(700))) for n in range(200)]
        packed = PACKERS[".tar.gz"](make_tar(noise))
        samples, error, _ = outcome(io.BytesIO(packed[:-100]), webdataset.stream)
        assert error is not None
        assert len(samples) > 100

    def test_a_file_that_shrinks_while_it_is_read(self, tmp_path):
        path = tmp_path / "a.tar"
        path.write_bytes(make_tar((f"{n:02d}.jpg", bytes(1 << 20)) for n in range(20)))
        samples = webdataset.stream(path)
        assert next(samples)["__key__"] == "00"
        with path.open("r+b") as file:
            file.truncate(10 << 20)
        with pytest.raises(TruncatedError):
            list(samples)

    def test_a_large_wanted_member_that_shrinks_away(self, tmp_path):
        path = tmp_path / "a.tar"
        path.write_bytes(make_tar([("a.txt", b"x"), ("b.mp4", bytes(4 << 20)), ("c.txt", b"")]))
        with path.open("r+b") as file:
            file.truncate(2 << 20)
        with pytest.raises(TruncatedError):
            list(webdataset.stream(path, extensions=["mp4"]))
        with pytest.raises(TruncatedError):
            list(webdataset.stream(path, extensions=["txt"]))


class TestDamage:
    @pytest.mark.parametrize("at", range(len(SMALL)))
    def test_going_on_never_merges_halves(self, read, at):
        damaged = bytearray(ARCHIVE)
        damaged[at * 1024 + 20] ^= 0x55  # in a header
        samples, error, told = outcome(io.BytesIO(damaged), read, on_error="skip")
        assert error is None
        assert len(told) == 1
        assert all(sample in WHOLE for sample in samples)
        assert SMALL[at][0][0] not in {sample["__key__"] for sample in samples}
        assert len(samples) >= 3 - 2  # at most the sample and one neighbour are lost

    @given(
        st.dictionaries(
            st.integers(0, len(SMALL) - 1), st.tuples(st.integers(0, 511), st.integers(1, 255)), max_size=4
        ),
        st.sampled_from(sorted(READERS)),
    )
    def test_a_byte_changed_in_any_headers(self, changes, reader):
        """One in each: the checksum is a sum, so two changes can cancel. Changed data is seen only with an index."""
        damaged = bytearray(ARCHIVE)
        for member, (at, flip) in changes.items():
            damaged[member * 1024 + at] ^= flip
        samples, error, told = outcome(io.BytesIO(damaged), READERS[reader], on_error="skip")
        assert error is None
        assert all(sample in WHOLE for sample in samples)
        assert samples == WHOLE or told

    def test_interleaved_halves_are_not_given(self):
        """All the jpgs, then all the txts: what is lost belongs to nobody in sight."""
        members = [(f"{key}.{field}", b"x") for field in ("jpg", "txt", "json") for key in "abcd"]
        clean = make_tar(members)
        whole = webdataset.parse(io.BytesIO(clean))
        for at in range(len(members)):
            damaged = bytearray(clean)
            damaged[at * 1024 + 20] ^= 0x55
            samples, error, told = outcome(io.BytesIO(damaged), webdataset.parse, on_error="skip")
            assert error is None
            assert told
            assert all(sample in whole for sample in samples)

    def test_a_duplicate_field_costs_one_sample(self, read):
        members = [("a.txt", b"1"), ("b.txt", b"2"), ("b.txt", b"3"), ("c.txt", b"4")]
        log = ErrorLog(ErrorPolicy("skip"))
        samples, _, told = outcome(io.BytesIO(make_tar(members)), read, log=log)
        assert [sample["__key__"] for sample in samples] == ["a", "c"]
        assert [type(error) for error in log.errors] == [DuplicateFieldError]
        assert len(told) == 1

    def test_a_duplicate_raises_in_its_place(self):
        samples = webdataset.stream(io.BytesIO(make_tar([("a.txt", b"1"), ("b.txt", b"2"), ("b.txt", b"3")])))
        assert next(samples)["__key__"] == "a"
        with pytest.raises(DuplicateFieldError, match="key b, field txt"):
            next(samples)

    def test_a_key_that_returns_is_left_out_the_second_time(self):
        members = [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("c.txt", b"4")]
        samples = webdataset.stream(io.BytesIO(make_tar(members)), on_error="skip")
        with pytest.warns(ShoalWarning, match="InterleavedKeyError"):
            assert [sample["__key__"] for sample in samples] == ["a", "b", "c"]
        assert [type(error) for error in samples.errors.errors] == [InterleavedKeyError]

    def test_flattening_two_samples_into_one_costs_the_second(self, read):
        members = [("d/a.txt", b"1"), ("e/a.cls", b"2"), ("e/b.txt", b"3")]
        flat = KeyRule(folders="flatten")
        samples, _, told = outcome(io.BytesIO(make_tar(members)), read, on_error="skip", rule=flat)
        assert samples == [{"__key__": "a", "txt": "1"}, {"__key__": "b", "txt": "3"}]
        assert len(told) == 1

    def test_max_samples_counts_only_what_is_given(self, read):
        damaged = bytearray(make_tar(numbered(10)))
        damaged[20] ^= 0x55
        samples, _, _ = outcome(io.BytesIO(damaged), read, on_error="skip", max_samples=5)
        assert len(samples) == 5

    def test_two_tars_in_one_file_are_not_cut_at_the_first(self, read):
        two = make_tar(numbered(2)) + make_tar(numbered(2, 2))
        with pytest.raises(TarError, match="follows the end"):
            list(read(io.BytesIO(two)))

    def test_a_stream_that_fails(self, read):
        class Failing(io.BytesIO):
            def read(self, size=-1):
                if self.tell() > 4096:
                    raise ConnectionResetError(104, "Connection reset by peer")
                return super().read(min(size, 1024))

        samples, error, _ = outcome(Failing(make_tar(numbered(10))), webdataset.stream)
        assert isinstance(error, StoreError)
        assert "Connection reset" in str(error)
        assert [sample["__key__"] for sample in samples] == ["0000"]  # the next one may go on behind the failure
        assert outcome(Failing(make_tar(numbered(10))), read, on_error="skip")[1] is None


class TestShards:
    @pytest.fixture
    def paths(self, tmp_path):
        """Five shards of three: the second is missing, the third cut, the fourth no tar."""
        paths = [write_tar(tmp_path / f"{n}.tar", numbered(3, 3 * n)) for n in range(5)]
        (tmp_path / "1.tar").unlink()
        (tmp_path / "2.tar").write_bytes((tmp_path / "2.tar").read_bytes()[: 4 * 1024 + 100])
        (tmp_path / "3.tar").write_bytes(b"not a tar at all" * 100)
        return paths

    def test_strict_by_default(self, paths):
        with pytest.raises(FileNotFoundError, match=r"1\.tar"):
            webdataset.parse_shards(paths)
        with pytest.raises(TruncatedError, match=r"2\.tar"):
            webdataset.parse_shards(paths[2:])
        with pytest.raises(TarError, match=r"3\.tar"):
            webdataset.parse_shards(paths[3:])

    @pytest.mark.parametrize("workers", [1, 2, 5])
    def test_skip_goes_on_and_reports(self, paths, workers):
        log = ErrorLog(ErrorPolicy("skip"))
        with pytest.warns(ShoalWarning, match="passed over 3"):
            samples = webdataset.parse_shards(paths, log=log, workers=workers)
        assert [sample["__key__"] for sample in samples] == ["0000", "0001", "0002", "0006", "0012", "0013", "0014"]
        assert [error.shard for error in log.errors] == paths[1:4]
        assert isinstance(log.errors[0], ObjectNotFoundError)
        assert isinstance(log.errors[1], TruncatedError)
        assert log.count == 3

    @pytest.mark.parametrize("workers", [1, 3])
    def test_the_report_is_on_the_stream(self, paths, workers):
        stream = webdataset.stream_shards(paths, on_error="skip", workers=workers)
        with pytest.warns(ShoalWarning):
            assert len(list(stream)) == 7
        assert stream.errors.count == 3
        assert stream.errors.kinds["ObjectNotFoundError"] == 1

    @pytest.mark.parametrize("workers", [1, 3])
    def test_a_budget_ends_it_in_its_place(self, paths, workers):
        stream = webdataset.stream_shards(paths, on_error="skip", error_budget=1, workers=workers)
        keys = []
        with pytest.raises(ErrorBudgetExceeded) as raised:
            keys.extend(sample["__key__"] for sample in stream)
        assert keys == ["0000", "0001", "0002", "0006"]
        assert isinstance(raised.value.__cause__, TruncatedError)
        with pytest.warns(ShoalWarning, match="passed over"):
            stream.close()

    def test_quarantine_writes_each_error_down(self, paths, tmp_path):
        target = str(tmp_path / "lost.jsonl")
        with pytest.warns(ShoalWarning):
            webdataset.parse_shards(paths, on_error="quarantine", quarantine=target)
        lines = [json.loads(line) for line in open_text(target).splitlines()]
        assert [line["shard"] for line in lines] == paths[1:4]
        assert lines[1]["error"] == "TruncatedError"

    def test_a_half_sample_never_merges_with_the_next_shards(self, tmp_path):
        """webdataset's `ignore_and_continue` makes one sample of the two halves."""
        cut = make_tar([("a.jpg", b"1"), ("a.txt", bytes(600))])
        (tmp_path / "0.tar").write_bytes(cut[: 2 * 1024 + 200])
        paths = [str(tmp_path / "0.tar"), write_tar(tmp_path / "1.tar", [("a.cls", b"2")])]
        for workers in (1, 2):
            with pytest.warns(ShoalWarning):
                assert webdataset.parse_shards(paths, on_error="skip", workers=workers) == [
                    {"__key__": "a", "cls": "2"}
                ]

    def test_samples_that_do_not_decode_are_left_out(self, tmp_path):
        path = write_tar(tmp_path / "a.tar", [("a.json", b"{"), ("b.json", b"{}")])
        with pytest.raises(ValueError, match="field json"):
            webdataset.parse(path, on_decode_error="raise")
        with pytest.warns(ShoalWarning, match="1 DecodeError"):
            samples = webdataset.parse(path, on_error="skip", on_decode_error="raise")
        assert samples == [{"__key__": "b", "json": {}}]


def open_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_sparse_members_are_refused_or_passed_over(read, tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in [("a.txt", tarfile.REGTYPE), ("b.txt", tarfile.GNUTYPE_SPARSE), ("c.txt", tarfile.REGTYPE)]:
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
    with pytest.raises(TarError, match="sparse"):
        list(read(path))
    samples, error, told = outcome(path, read, on_error="skip")
    assert error is None
    assert len(told) == 1
    assert "b" not in {sample["__key__"] for sample in samples}
