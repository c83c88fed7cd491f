"""Streaming: lazy, in bounded memory, from anywhere, on threads, and from where it was stopped."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.tars import PACKERS, make_tar, numbered, write_tar

from shoal.errors import DecodeError, OptionError, ShoalWarning, StoreError, TarError
from shoal.formats import webdataset
from shoal.formats._webdataset_reader import ArchivePosition, ArchiveStep
from shoal.formats._webdataset_stream import ReadAhead, shard_order
from shoal.shard._stream import _SeenKeys
from shoal.store import store_for


@pytest.fixture
def shards(tmp_path):
    """Six shards of one to six samples."""
    first, paths = 0, []
    for n in range(6):
        paths.append(write_tar(tmp_path / f"s-{n}.tar", numbered(n + 1, first)))
        first += n + 1
    return paths


class TestLaziness:
    def test_nothing_is_opened_before_the_first_sample(self, tmp_path):
        stream = webdataset.stream(tmp_path / "later.tar")
        write_tar(tmp_path / "later.tar", numbered(1))
        assert len(list(stream)) == 1

    def test_what_is_not_asked_for_is_not_read(self):
        class Counted(io.BytesIO):
            taken = 0

            def read(self, size=-1):
                part = super().read(size)
                Counted.taken += len(part)
                return part

        archive = Counted(make_tar((f"{n:03d}.jpg", bytes(100_000)) for n in range(200)))
        stream = webdataset.stream(archive)
        assert next(stream)["__key__"] == "000"
        assert Counted.taken < 3 << 20

    def test_a_stream_is_its_own_iterator_and_ends(self, shards):
        stream = webdataset.stream(shards[1])
        assert iter(stream) is stream
        assert len(list(stream)) == 2
        assert list(stream) == []
        assert next(stream, None) is None

    def test_closing_ends_it_and_gives_the_file_back(self, shards):
        process = psutil.Process()
        before = process.num_fds()
        with webdataset.stream(shards[5]) as stream:
            next(stream)
            assert process.num_fds() == before + 1
        assert process.num_fds() == before
        assert list(stream) == []
        stream.close()

    def test_what_the_caller_opened_stays_open(self, shards):
        with open(shards[5], "rb") as file:
            list(webdataset.stream(file))
            assert not file.closed

    def test_a_stream_nobody_starts_costs_nothing(self, shards):
        webdataset.stream_shards(shards, workers=4).close()


class TestSources:
    @pytest.mark.parametrize("ending", PACKERS)
    def test_stdin(self, ending):
        code = (
            "from shoal.formats import webdataset\n"
            "for sample in webdataset.stream('-'): print(sample['__key__'], sample['txt'])"
        )
        packed = PACKERS[ending](make_tar(numbered(3)))
        done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=False)
        assert done.stderr == b""
        assert done.stdout.decode().splitlines() == ["0000 txt 0", "0001 txt 1", "0002 txt 2"]

    def test_stdin_by_its_path(self):
        code = "from shoal.formats import webdataset; print(len(webdataset.parse('/dev/stdin')))"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            out, _ = process.communicate(make_tar(numbered(3)))
        assert out == b"3\n"

    def test_a_named_pipe(self, tmp_path):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(make_tar(numbered(500)),))
        writer.start()
        assert len(list(webdataset.stream(path))) == 500
        writer.join()

    def test_an_anonymous_pipe_in_small_pieces(self):
        ours, theirs = os.pipe()

        def feed():
            with open(theirs, "wb", buffering=0) as out:
                data = make_tar(numbered(20))
                out.writelines(data[start : start + 333] for start in range(0, len(data), 333))

        writer = threading.Thread(target=feed)
        writer.start()
        with open(ours, "rb", buffering=0) as file:
            assert len(list(webdataset.stream(file))) == 20
        writer.join()

    def test_any_object_with_read(self):
        class Reader:
            def __init__(self, data):
                self.left = memoryview(data)

            def read(self, size):
                part, self.left = self.left[: min(size, 700)], self.left[min(size, 700) :]
                return bytearray(part)

        for pack in PACKERS.values():
            assert len(list(webdataset.stream(Reader(pack(make_tar(numbered(4))))))) == 4

    def test_text_is_refused(self):
        with pytest.raises(OptionError, match="'rb'"):
            next(webdataset.stream(io.StringIO("text")))

    def test_a_stream_that_would_not_wait_is_refused(self):
        class Impatient:
            def read(self, size):
                return None

        with pytest.raises(StoreError, match="blocking"):
            next(webdataset.stream(Impatient()))

    def test_streams_and_paths_together(self, shards):
        mixed = [io.BytesIO(make_tar(numbered(1, 90))), shards[0], io.BytesIO(make_tar(numbered(1, 91)))]
        assert [s["__key__"] for s in webdataset.stream_shards(mixed)] == ["0090", "0000", "0091"]
        mixed = [io.BytesIO(make_tar(numbered(1, 90))), shards[0], io.BytesIO(make_tar(numbered(1, 91)))]
        assert len(list(webdataset.stream_shards(mixed, workers=3))) == 3


class TestMemory:
    def sparse_archive(self, path, members, size):
        """A large archive of zeros that takes no room on the disk."""
        with path.open("wb") as file:
            for n in range(members):
                info = tarfile.TarInfo(f"{n:06d}.bin")
                info.size = size
                file.write(info.tobuf(tarfile.USTAR_FORMAT))
                file.seek(-(-size // 512) * 512, os.SEEK_CUR)
            file.truncate(file.tell() + 1024)
        return str(path)

    def peak(self, make):
        count = 0
        gc.collect()
        tracemalloc.start()
        try:
            for _ in make():
                count += 1
            return count, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("members, size", [(200, 1 << 20), (20_000, 9_500)])
    def test_stays_bounded_over_200_mb(self, tmp_path, members, size):
        path = self.sparse_archive(tmp_path / "a.tar", members, size)
        assert os.path.getsize(path) > 190e6
        count, peak = self.peak(lambda: webdataset.stream(path))
        assert count == members
        assert peak < 16 << 20

    def test_stays_bounded_through_a_pipe(self, tmp_path):
        path = self.sparse_archive(tmp_path / "a.tar", 200, 1 << 20)
        with open(path, "rb") as file:
            count, peak = self.peak(lambda: webdataset.stream(file))
        assert count == 200
        assert peak < 16 << 20

    def test_stays_bounded_with_workers(self, tmp_path):
        paths = [self.sparse_archive(tmp_path / f"{n}.tar", 50, 1 << 20) for n in range(4)]
        options = {"workers": 4, "buffer_bytes": 2 << 20}
        count, peak = self.peak(lambda: webdataset.stream_shards(paths, **options))
        assert count == 200
        assert peak < 64 << 20

    def test_keys_that_were_there_cost_eight_bytes_each(self):
        seen = _SeenKeys()
        gc.collect()
        tracemalloc.start()
        try:
            for chunk in range(300):
                assert seen.add([f"{'k' * 80}{chunk}-{n}" for n in range(1000)]) == []
            assert tracemalloc.get_traced_memory()[0] < 300_000 * 10
        finally:
            tracemalloc.stop()
        assert seen.add(["new", f"{'k' * 80}7-7", "new", f"{'k' * 80}299-999"]) == [1, 2, 3]


class TestWorkers:
    @pytest.mark.parametrize("workers", [1, 2, 3, 6, 20])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_the_same_order_as_one(self, shards, workers, shuffle):
        alone = list(webdataset.stream_shards(shards, shuffle=shuffle))
        assert list(webdataset.stream_shards(shards, workers=workers, shuffle=shuffle)) == alone

    def test_zero_is_refused(self, shards):
        with pytest.raises(OptionError):
            webdataset.stream_shards(shards, workers=0)
        with pytest.raises(OptionError):
            webdataset.stream_shards(shards, workers=2, buffer_bytes=0)

    @pytest.mark.parametrize("workers", [1, 2, 6])
    def test_an_error_comes_in_its_place(self, shards, workers):
        with open(shards[3], "r+b") as file:
            file.truncate(2 * 1024 + 700)  # one whole sample and the beginning of another
        keys = []
        stream = webdataset.stream_shards(shards, workers=workers)
        with pytest.raises(TarError, match=r"s-3\.tar"):
            keys.extend(sample["__key__"] for sample in stream)
        assert keys == [f"{n:04d}" for n in range(6)]
        assert list(stream) == []

    def test_errors_of_decoding_too(self, shards, tmp_path):
        bad = write_tar(tmp_path / "bad.tar", [("x.json", b"{}"), ("y.json", b"{")])
        stream = webdataset.stream_shards([shards[0], bad, shards[1]], workers=3, on_decode_error="raise")
        assert [next(stream)["__key__"], next(stream)["__key__"]] == ["0000", "x"]
        with pytest.raises(DecodeError, match="key y"):
            next(stream)

    def test_closing_ends_the_threads(self, tmp_path):
        paths = [write_tar(tmp_path / f"{n}.tar", numbered(500, 500 * n)) for n in range(8)]
        before = threading.active_count()
        with webdataset.stream_shards(paths, workers=4, buffer_bytes=1) as stream:
            next(stream)
            assert threading.active_count() == before + 4
        assert threading.active_count() == before

    def test_a_stream_that_is_dropped_ends_its_threads(self, tmp_path):
        paths = [write_tar(tmp_path / f"{n}.tar", numbered(500, 500 * n)) for n in range(8)]
        before = set(threading.enumerate())
        stream = webdataset.stream_shards(paths, workers=4, buffer_bytes=1)
        next(stream)
        threads = set(threading.enumerate()) - before
        del stream
        gc.collect()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)

    def test_an_interpreter_with_an_open_stream_exits(self, tmp_path):
        for n in range(4):
            write_tar(tmp_path / f"{n}.tar", numbered(500, 500 * n))
        code = (
            "from shoal.formats import webdataset\n"
            f"stream = webdataset.stream_shards('{tmp_path}/*.tar', workers=4, buffer_bytes=1)\n"
            "print(next(stream)['__key__'])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"0000\n", b"")

    def test_shards_far_ahead_are_not_begun(self):
        begun = []

        def read(number):
            begun.append(number)
            yield ArchiveStep(ArchivePosition(512), {"__key__": str(number)})

        ahead = ReadAhead(read, 0, 100, workers=3, max_bytes=1 << 20)
        assert [step.sample["__key__"] for step in ahead.steps(0)] == ["0"]
        assert [step.sample["__key__"] for step in ahead.steps(1)] == ["1"]
        ahead.stop()
        assert sorted(begun) == list(range(len(begun)))
        assert max(begun) <= 4

    def test_no_more_than_the_buffer_is_read_ahead(self):
        given = []

        def read(number):
            for n in range(1, 1000):
                given.append(n)
                yield ArchiveStep(ArchivePosition(n << 20), {"__key__": str(n)})

        ahead = ReadAhead(read, 0, 1, workers=1, max_bytes=4 << 20)
        for taken, _ in enumerate(ahead.steps(0), 1):
            assert len(given) <= taken + 6  # four held, one waiting, one being read
        ahead.stop()
        assert len(given) == 999


class TestShuffle:
    def test_golden_orders(self):
        """For ever: a run that is resumed after an upgrade must find its shards where they were."""
        assert shard_order(8, seed=0, epoch=0) == [7, 0, 5, 1, 2, 3, 6, 4]
        assert shard_order(8, seed=0, epoch=1) == [5, 6, 1, 4, 7, 3, 0, 2]
        assert shard_order(8, seed=1, epoch=0) == [6, 2, 3, 5, 7, 4, 0, 1]

    @given(st.integers(0, 200), st.integers(), st.integers(0, 100))
    def test_is_a_permutation(self, count, seed, epoch):
        assert sorted(shard_order(count, seed, epoch)) == list(range(count))

    def test_every_place_is_as_likely_as_any_other(self):
        counts = [[0] * 5 for _ in range(5)]
        for epoch in range(5000):
            for place, shard in enumerate(shard_order(5, 42, epoch)):
                counts[shard][place] += 1
        assert all(850 < count < 1150 for row in counts for count in row)

    def test_shards_stay_whole_and_epochs_differ(self, shards):
        plain = [s["__key__"] for s in webdataset.stream_shards(shards)]
        epochs = [[s["__key__"] for s in webdataset.stream_shards(shards, shuffle=True, epoch=e)] for e in range(4)]
        assert all(sorted(keys) == plain for keys in epochs)
        assert len({tuple(keys) for keys in epochs}) == 4
        again = [s["__key__"] for s in webdataset.parse_shards(shards, shuffle=True, epoch=2)]
        assert again == epochs[2]
        assert again != [s["__key__"] for s in webdataset.parse_shards(shards, shuffle=True, epoch=2, seed=1)]


@st.composite
def archives(draw):
    """Members of a few shards: samples of any number of fields, members that are none, sizes around the block's."""
    found = []
    for shard in range(draw(st.integers(1, 4))):
        members = []
        for n in range(draw(st.integers(0, 5))):
            fields = draw(st.lists(st.sampled_from(["txt", "jpg", "json", "b.cls"]), unique=True, max_size=3))
            sizes = [draw(st.sampled_from([0, 1, 511, 512, 513, 5000])) for _ in fields]
            members += [(f"d/{shard}{n}.{field}", b"7" * size) for field, size in zip(fields, sizes, strict=True)]
            if draw(st.booleans()):
                members.append((draw(st.sampled_from(["README", "__meta__", "d/noext"])), b"x"))
        found.append(make_tar(members, kind=draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT]))))
    return found


class TestResume:
    @settings(max_examples=60)
    @given(data=st.data(), archives=archives())
    def test_stop_anywhere_and_go_on(self, data, archives):
        pack = PACKERS[data.draw(st.sampled_from(sorted(PACKERS)))]
        urls = []
        for n, archive in enumerate(archives):
            urls.append(f"memory://resume/{n}.tar")
            store_for(urls[-1]).write_all(urls[-1], pack(archive))
        options = {
            "group": data.draw(st.sampled_from(["neighbours", "archive"])),
            "extensions": data.draw(st.sampled_from([None, ["txt", "b.cls"]])),
            "shuffle": data.draw(st.booleans()),
            "seed": data.draw(st.integers(0, 9)),
            "epoch": data.draw(st.integers(0, 9)),
            "max_samples": data.draw(st.none() | st.integers(0, 20)),
        }
        whole = list(webdataset.stream_shards(urls, **options))
        given_so_far, position = [], None
        while True:
            workers = data.draw(st.sampled_from([1, 3]))
            with webdataset.stream_shards(urls, **options, resume_from=position, workers=workers) as stream:
                stop = data.draw(st.integers(1, 4))
                taken = [sample for _, sample in zip(range(stop), stream, strict=False)]
                position = json.loads(json.dumps(stream.position))
            given_so_far += taken
            if len(taken) < stop:
                break
        assert given_so_far == whole

    def test_of_one_archive_at_every_sample(self, tmp_path):
        path = write_tar(tmp_path / "a.tar", [("README", b""), *numbered(10), ("NOTES", b"")])
        whole = webdataset.parse(path)
        stream = webdataset.stream(path)
        positions = [stream.position, *(stream.position for _ in stream)]
        for count, position in enumerate(positions):
            assert position["samples"] == count
            rest = webdataset.stream(path, resume_from=json.loads(json.dumps(position)))
            assert list(rest) == whole[count:]
            assert rest.position == positions[-1]

    @pytest.mark.parametrize("ending", PACKERS)
    def test_of_a_stream_given_anew(self, ending):
        packed = PACKERS[ending](make_tar(numbered(300)))
        stream = webdataset.stream(io.BytesIO(packed))
        first = [next(stream)["__key__"] for _ in range(123)]
        rest = webdataset.stream(io.BytesIO(packed), resume_from=stream.position)
        assert first + [sample["__key__"] for sample in rest] == [f"{n:04d}" for n in range(300)]

    def test_a_resumed_plain_archive_is_not_read_from_its_start(self, tmp_path):
        path = tmp_path / "a.tar"
        path.write_bytes(make_tar((f"{n:02d}.jpg", bytes(1 << 20)) for n in range(10)))
        stream = webdataset.stream(path)
        for _ in range(9):
            next(stream)
        with path.open("r+b") as file:
            file.write(b"damage" * 1000)
        [last] = webdataset.stream(path, resume_from=stream.position)
        assert last["__key__"] == "09"

    def test_the_position_counts_what_was_taken_not_what_was_read_ahead(self, shards):
        stream = webdataset.stream_shards(shards, workers=6)
        next(stream)
        next(stream)
        assert stream.position["samples"] == 2
        assert next(webdataset.stream_shards(shards, resume_from=stream.position))["__key__"] == "0002"
        stream.close()

    def test_folders_may_move(self, shards, tmp_path):
        stream = webdataset.stream_shards(shards)
        next(stream)
        position = stream.position
        stream.close()
        (tmp_path / "moved").mkdir()
        moved = [str(tmp_path / "moved" / os.path.basename(path)) for path in shards]
        for old, new in zip(shards, moved, strict=True):
            os.rename(old, new)
        assert len(list(webdataset.stream_shards(moved, resume_from=position))) == 20

    @pytest.mark.parametrize(
        "change, named",
        [
            ({"shuffle": True}, "shuffle"),
            ({"extensions": ["txt"]}, "extensions"),
            ({"group": "archive"}, "rule"),
        ],
    )
    def test_another_stream_is_refused_with_what_differs(self, shards, change, named):
        position = webdataset.stream_shards(shards).position
        with pytest.raises(OptionError, match=f"another stream.*{named}"):
            next(webdataset.stream_shards(shards, resume_from=position, **change))

    def test_other_shards_are_refused(self, shards):
        position = webdataset.stream_shards(shards).position
        with pytest.raises(OptionError, match="shards 5"):
            next(webdataset.stream_shards(shards[:5], resume_from=position))
        with pytest.raises(OptionError, match="names"):
            next(webdataset.stream_shards(shards[::-1], resume_from=position))

    def test_a_shard_that_changed_is_refused(self, shards):
        stream = webdataset.stream(shards[5])
        next(stream)
        with open(shards[5], "ab") as file:
            file.write(bytes(512))
        with pytest.raises(OptionError, match="not the one"):
            next(webdataset.stream(shards[5], resume_from=stream.position, on_error="skip"))

    @pytest.mark.parametrize("wrong", [{}, {"shard": "x"}, {"version": 99}, {"offset": -1}, {"made": None}])
    def test_what_is_no_position_is_refused(self, shards, wrong):
        position = webdataset.stream(shards[0]).position
        with pytest.raises(OptionError, match="position"):
            next(webdataset.stream(shards[0], resume_from={**position, **wrong} if wrong else {}))

    def test_after_damage_that_was_passed_over(self, tmp_path):
        archive = bytearray(make_tar(numbered(10)))
        archive[4 * 1024 + 20] ^= 0x55
        (tmp_path / "a.tar").write_bytes(archive)

        def stopped_after(count):
            with webdataset.stream(tmp_path / "a.tar", on_error="skip") as stream:
                first = [next(stream) for _ in range(count)]
                position = stream.position
            return first + list(webdataset.stream(tmp_path / "a.tar", on_error="skip", resume_from=position))

        with pytest.warns(ShoalWarning):
            whole = webdataset.parse(tmp_path / "a.tar", on_error="skip")
        for count in range(len(whole) + 1):
            with pytest.warns(ShoalWarning, match="passed over 1"):  # on one side or the other
                assert stopped_after(count) == whole
