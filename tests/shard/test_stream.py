"""SampleStream: the samples of a tar as they come, whole, in bounded memory, and never half of one."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import (
    DuplicateFieldError,
    InterleavedKeyError,
    OptionError,
    ShoalWarning,
    TarError,
    TruncatedError,
)
from shoal.shard import (
    KeyRule,
    ReaderFeed,
    SampleStream,
    ShardRef,
    ShardSource,
    ShardWriter,
    StreamFeed,
    StreamOptions,
    decompressed,
)
from shoal.store import store_for

PAX, GNU, USTAR = tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT


def tar_of(members, layout=USTAR, mtime=0):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=layout) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), mtime
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def members_of(samples):
    return [(f"{row['__key__']}.{field}", data) for row in samples for field, data in row.items() if field != "__key__"]


def rows(count, size=300):
    return [
        {"__key__": f"k{n:04d}", "bin": bytes([n % 256]) * (n * 7 % size), "txt": b"text %d" % n} for n in range(count)
    ]


class Trickle:
    """A pipe that gives less than it is asked for, and cannot go back."""

    def __init__(self, data, most=777):
        self.data, self.most = io.BytesIO(data), most

    def read(self, size):
        return self.data.read(min(size, self.most))


def memory_reader(data):
    url = f"memory://stream/{os.urandom(6).hex()}.tar"
    store_for(url).write_all(url, data)
    return store_for(url).open(url)


FEEDS = {
    "object": lambda data: ReaderFeed(memory_reader(data)),
    "stream": lambda data: StreamFeed(io.BytesIO(data)),
    "trickle": lambda data: StreamFeed(Trickle(data)),
}


def bare(samples):
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


def stream(data, kind="object", **options):
    own = {name: options.pop(name) for name in ("start", "on_damage", "on_lost") if name in options}
    return SampleStream(FEEDS[kind](data), "test.tar", StreamOptions(**options), **own)


# ------------------------------------------------------------------------------------------------------------ the same


@pytest.mark.parametrize("kind", FEEDS)
@pytest.mark.parametrize("layout", [PAX, GNU, USTAR])
def test_every_sample_in_order(kind, layout):
    found = list(stream(tar_of(members_of(rows(500)), layout, mtime=1.5 if layout == PAX else 1), kind))
    assert bare(found) == rows(500)
    assert {sample["__url__"] for sample in found} == {"test.tar"}


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y.z", "txt", "w"]), st.binary(max_size=1200)),
        max_size=30,
    ),
    st.sampled_from(list(FEEDS)),
)
def test_a_stream_and_an_index_give_the_same(members, kind):
    """Fields may be missing or double: both agree, in samples and in what is wrong; keys that come back differ."""
    data = tar_of([(f"{key}.{field}", content) for key, field, content in members])
    reader = memory_reader(data)
    try:
        streamed = bare(stream(data, kind, refuse_returning=True))
    except InterleavedKeyError:
        return  # what an index makes of it: tests/everyday/test_unsorted_tars.py
    except DuplicateFieldError as error:
        if len(runs := [key for key, _ in itertools.groupby(members, lambda member: member[0])]) > len(set(runs)):
            return
        streamed = (error.key, error.field)
    try:
        source = ShardSource([ShardRef(reader.info.url)])
        indexed = bare(row for run in source.stream() for row in run)
    except DuplicateFieldError as error:
        indexed = (error.key, error.field)
    assert streamed == indexed


def test_samples_across_chunks_are_whole():
    """Members are larger than what is read at a time, and a sample's members far apart."""
    samples = [{"__key__": f"k{n}", "a": bytes([n]) * 1_500_000, "b": b"", "c": bytes([n]) * 900_000} for n in range(6)]
    for kind in ("object", "stream"):
        assert bare(stream(tar_of(members_of(samples)), kind)) == samples


@pytest.mark.parametrize("compression", ["gzip", "bz2", "xz", "zstd"])
def test_a_compressed_stream(tmp_path, compression):
    with ShardWriter(tmp_path / "s-%06d.tar", compression=compression) as writer:
        for row in rows(3000):
            writer.write(row)
    pipe = decompressed(Trickle((tmp_path / "s-000000.tar").read_bytes(), 5000), compression)
    assert bare(SampleStream(StreamFeed(pipe), "x")) == rows(3000)


@pytest.mark.parametrize("data", [bytes(1024), bytes(10240)])
@pytest.mark.parametrize("kind", FEEDS)
def test_nothing(data, kind):
    assert list(stream(data, kind)) == []


@pytest.mark.parametrize("kind", FEEDS)
def test_no_bytes_are_a_truncated_archive(kind):
    with pytest.raises(TruncatedError, match="0 bytes"):
        list(stream(b"", kind))


def test_members_that_are_no_samples_are_counted():
    walk = stream(tar_of([("__meta__", b"{}"), ("a.txt", b"1"), ("readme", b"2"), ("a.cls", b"3"), (".hidden", b"4")]))
    assert bare(walk) == [{"__key__": "a", "txt": b"1", "cls": b"3"}]
    assert sum(walk.skipped.values()) == 3


# -------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("kind", FEEDS)
def test_only_these_fields(kind):
    samples = [{"__key__": f"{n}", **({"a": b"1"} if n % 2 else {}), "b": bytes(n)} for n in range(20)]
    found = bare(stream(tar_of(members_of(samples)), kind, fields=frozenset(["a"])))
    assert found == [{"__key__": f"{n}", "a": b"1"} for n in range(1, 20, 2)]


def test_decoders_are_asked_for_the_fields_met():
    asked = []

    def decoders(fields):
        asked.append(tuple(fields))
        return {"txt": bytes.decode}

    found = bare(stream(tar_of([("a.txt", b"1"), ("b.txt", b"2"), ("c.cls", b"3")]), decoders=decoders))
    assert found == [{"__key__": "a", "txt": "1"}, {"__key__": "b", "txt": "2"}, {"__key__": "c", "cls": b"3"}]
    assert asked == [("txt",), ("cls",)]


def test_a_key_that_comes_back():
    data = tar_of([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")])
    assert [row["__key__"] for row in stream(data)] == ["a", "b", "a"]
    walk = stream(data, refuse_returning=True)
    with pytest.raises(InterleavedKeyError, match="group='archive'") as error:
        list(walk)
    assert (error.value.key, error.value.shard, error.value.offset) == ("a", "test.tar", 2048)
    with pytest.raises(OptionError, match="neighbours only"):
        stream(data, rule=KeyRule(group="archive"))


@pytest.mark.parametrize("kind", FEEDS)
def test_a_field_twice(kind):
    data = tar_of([("a.txt", b"0"), ("b.txt", b"1"), ("b.cls", b"2"), ("b.TXT", b"3"), ("c.txt", b"4")])
    walk, given_first = stream(data, kind), []
    with pytest.raises(DuplicateFieldError) as error:
        given_first.extend(walk)
    assert (error.value.key, error.value.field, error.value.shard) == ("b", "txt", "test.tar")
    damage = []
    assert [row["__key__"] for row in stream(data, kind, on_damage=damage.append)] == ["a", "c"]
    assert [type(found) for found in damage] == [DuplicateFieldError]


# ------------------------------------------------------------------------------------------------------------- position


@pytest.mark.parametrize("kind", ["object", "stream"])
def test_a_stream_goes_on_where_another_stopped(kind):
    samples = rows(200)
    data = tar_of(members_of(samples), PAX, mtime=0.5)
    for count in (0, 1, 57, 199, 200):
        walk = stream(data, kind)
        taken = [sample for _, sample in zip(range(count), walk, strict=False)]
        assert len(taken) == count
        assert bare(taken + list(stream(data, kind, start=walk.position))) == samples


# --------------------------------------------------------------------------------------------------------------- damage


def found_before(walk):
    """What was given before the error, and the error."""
    given_first = []
    try:
        for sample in walk:
            given_first.append(sample)  # noqa: PERF402 - what came before the error is kept
    except TarError as error:
        return bare(given_first), error
    return bare(given_first), None


def test_cut_anywhere_gives_whole_samples_and_an_error_or_a_word_of_warning():
    samples = rows(8, size=600)
    data = tar_of(members_of(samples))
    end = data.rindex(b"text 7") + 512
    for cut in range(1, end, 37):
        for kind in ("object", "stream"):
            with warned() as told:
                given_first, error = found_before(stream(data[:cut], kind))
            assert given_first == samples[: len(given_first)] or told  # an unmarked end may cut the last sample
            assert error is not None or told
            assert all(sample in samples for sample in given_first[:-1])
            if error is not None:
                assert error.shard == "test.tar"
                assert error.offset <= cut


class warned:  # noqa: N801 - reads as a phrase
    """Whether the archive's missing end was told of."""

    def __enter__(self):
        import warnings

        self.catch = warnings.catch_warnings(record=True)
        self.found = self.catch.__enter__()
        warnings.simplefilter("always")
        return self.found

    def __exit__(self, *facts):
        self.catch.__exit__(*facts)
        assert {kind.category for kind in self.found} <= {ShoalWarning}


@pytest.mark.parametrize("kind", FEEDS)
def test_behind_damage_no_half_sample_is_given(kind):
    samples = rows(40, size=900)
    data = tar_of(members_of(samples))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        headers = [member.offset for member in tar]
    for header in headers[2:-2]:
        damaged = data[:header] + bytes([data[header] ^ 0x40]) + data[header + 1 :]
        errors, missed = [], []
        found = bare(stream(damaged, kind, on_damage=errors.append, on_lost=missed.append))
        assert all(sample in samples for sample in found)
        assert len(found) >= 38
        assert len(errors) == 1
        assert (errors[0].shard, errors[0].offset) == ("test.tar", header)
        kept = {sample["__key__"] for sample in found}
        assert kept.isdisjoint(missed)


def test_a_policy_that_raises_stops_the_stream():
    data = bytearray(tar_of(members_of(rows(10))))
    data[data.index(b"k0005.txt")] ^= 0x40

    def stop(error):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        list(stream(bytes(data), on_damage=stop))


# --------------------------------------------------------------------------------------------------------------- memory


BOUNDED = """
import io, resource, sys, tarfile
from shoal.shard import SampleStream, StreamFeed

class Endless:
    "A tar of 600 MB that is made as it is read."
    def __init__(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for n in range(500):
                for field in "abc":
                    member = tarfile.TarInfo(f"k{n:04d}.{field}")
                    member.size = 4000
                    tar.addfile(member, io.BytesIO(bytes(4000)))
            self.part = out.getvalue()[: tar.offset]
        self.left, self.at, self.end = 90, 0, bytes(1024)
    def read(self, size):
        if not self.left:
            end, self.end = self.end[:size], self.end[size:]
            return end
        data = self.part[self.at : self.at + size]
        self.at += len(data)
        if self.at == len(self.part):
            self.at, self.left = 0, self.left - 1
        return data

walk = iter(SampleStream(StreamFeed(Endless()), "x"))
for _ in range(2000):
    next(walk)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(1 for _ in walk) + 2000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_where_it_was():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BOUNDED], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == 45_000
    assert grown < 20 << 10  # KiB
