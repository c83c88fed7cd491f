"""Commits: nothing is lost in races and by kills, nothing that is read is removed, and nothing outside is touched."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scale import times
from tests.shard.children import die_at_each_step, reach, run_children, run_if_child, started, tell
from tests.store.servers import BUCKET, Fault, fault_proxy

from shoal.errors import ManifestError, ObjectNotFoundError, ShoalError, StoreError, WriteError
from shoal.shard import _file_lock
from shoal.shard._commit import (
    MANIFEST,
    WRITING_FOLDER,
    collect_garbage,
    commit,
    is_committed,
    kept_generations,
    load_and_pin,
    load_generation,
    load_kept_generation,
    pin,
    protect_new_files,
)
from shoal.shard._file_lock import try_lock_file
from shoal.shard._generation import NO_GENERATION, PendingMoves, Split, encode_generation, new_id, with_split
from shoal.shard._layout import SEGMENT_FOLDER, IndexFile, RecordLayout, Segment
from shoal.store import MemoryStore, configure, register_store, store_for
from shoal.store._snapshot import StoreSnapshot

KEPT = 8
WEEK_S = 7 * 24 * 3600
LAYOUT = RecordLayout(("bin",), 12)
_NUMBERS = itertools.count()


# ---------------------------------------------------------------------------------------------------- small datasets


def write_segment(root):
    """A segment with a file of its own; what is in it matters to nobody here."""
    segment = Segment(new_id(), 1, 1, 10, LAYOUT, (IndexFile("keys.rec", 4, 1),))
    for path in segment.paths():
        store_for(root).write_all(f"{root}/{path}", b"keys")
    return segment


def append(root, **options):
    """Commit one more segment; return its id, and the generation."""
    segments = []

    def change(parent, _):
        if not segments:
            segments.append(write_segment(root))
        return with_split(parent, "train", (*segments_of(parent), *segments))

    generation = commit(root, change, **options)
    return segments[0].id if segments else None, generation


def keep_last(root, count=1):
    """Commit that only the last segments stay."""
    return commit(root, lambda parent, _: with_split(parent, "train", segments_of(parent)[-count:]))


def segments_of(generation):
    return generation.splits.get("train", Split()).segments


def ids_of(root):
    generation = load_generation(root)
    return [] if generation is None else [segment.id for segment in segments_of(generation)]


def index_files(root):
    """The files in the folder of segments, without the lock."""
    folder = f"{root}/{SEGMENT_FOLDER}"
    urls = (info.url for info in store_for(root).list(folder))
    return {url.removeprefix(f"{root}/") for url in urls if not url.endswith("/lock")}


def document_ids(root):
    """The ids of generations whose documents are there."""
    urls = [info.url for info in store_for(root).list(f"{root}/.shoal/generations")]
    return {url.rpartition("/")[2].removesuffix(".json") for url in urls}


def check_whole(root, *held):
    """All kept generations, and these, have all their files."""
    files = index_files(root)
    for each in [*kept_generations(root), *held]:
        missing = set(load_kept_generation(root, each).files()) - files
        assert not missing, (each, missing)


def check_clean(root, *held):
    """There is nothing but the files of the last generations, and of these."""
    ids = {*kept_generations(root)[:KEPT], *held}
    assert document_ids(root) == ids
    assert index_files(root) == {path for each in ids for path in load_kept_generation(root, each).files()}


def new_memory():
    return f"memory://commit/{next(_NUMBERS)}"


@pytest.fixture(params=["disk", "memory", "s3"])
def root(request, shm_path):
    """The URL of a new folder in each kind of store."""
    if request.param == "memory":
        return new_memory()
    return str(shm_path / "data") if request.param == "disk" else request.getfixturevalue("s3")


# ------------------------------------------------------------------------------------------------------------ commits


def test_a_generation_names_its_parent_and_lineage_and_can_be_loaded_by_its_id(root):
    assert load_generation(root) is None
    assert load_and_pin(root) is None
    assert kept_generations(root) == []
    assert collect_garbage(root) == 0
    first = commit(root, lambda parent, _: replace(parent, metadata={"n": 1}))
    second = commit(root, lambda parent, _: replace(parent, metadata={"n": 2}))
    third = commit(root, lambda parent, _: parent, new_lineage=True)
    assert [each.parent for each in (first, second, third)] == [None, first.id, second.id]
    assert [each.lineage for each in (first, second, third)] == [first.id, first.id, third.id]
    assert third.metadata == {"n": 2}
    assert kept_generations(root) == [third.id, second.id, first.id]
    assert load_generation(root) == third
    assert [load_kept_generation(root, each.id) for each in (first, second, third)] == [first, second, third]


def test_where_nothing_is_changed_nothing_is_committed(root):
    _, before = append(root)
    assert commit(root, lambda parent, _: parent) == before
    assert kept_generations(root) == [before.id]


def test_what_a_change_raises_leaves_the_dataset_as_it_was(root):
    _, before = append(root)

    def fail(parent, attempt):
        raise KeyError(attempt)

    with pytest.raises(KeyError):
        commit(root, fail)
    with pytest.raises(ManifestError):  # nothing is committed that cannot be read
        commit(root, lambda parent, _: with_split(parent, "", ()))
    assert load_generation(root) == before
    assert document_ids(root) == {before.id}


def test_a_write_is_committed_once(root):
    writer = new_id()
    segment, first = append(root, writer=writer)
    append(root)
    assert is_committed(root, load_generation(root), writer)
    _, again = append(root, writer=writer)
    assert again == load_generation(root)
    assert ids_of(root).count(segment) == 1
    assert len(kept_generations(root)) == 2
    assert first.writer == writer
    assert not is_committed(root, again, new_id())


def test_a_write_whose_tars_are_not_moved_is_committed_however_many_generations_followed(shm_path):
    root, writer = str(shm_path), new_id()
    append(root, writer=writer, pending=PendingMoves(writer, 1, 1))
    for _ in range(KEPT + 1):
        append(root)
    newest = load_generation(root)
    load_uncached()
    assert [moves.writer for moves in newest.pending] == [writer]
    assert is_committed(root, newest, writer)
    with pytest.raises(WriteError) as error:
        append(root, pending=PendingMoves(new_id(), 1, 1))
    assert error.value.found == writer


@given(st.lists(st.integers(0, 2), max_size=4))
def test_a_change_is_applied_again_to_whatever_others_committed_meanwhile(interferences):
    root = new_memory()
    expected = [append(root)[0]]
    segment, attempts = write_segment(root), []

    def change(parent, attempt):
        attempts.append(attempt)
        if attempt < len(interferences):
            expected.extend(append(root)[0] for _ in range(interferences[attempt]))
        return with_split(parent, "train", (*segments_of(parent), segment))

    commit(root, change)
    assert ids_of(root) == [*expected, segment.id]
    lost = next((n for n, count in enumerate(interferences) if not count), len(interferences))
    assert attempts == list(range(lost + 1))
    assert document_ids(root) == set(kept_generations(root))  # those of lost races are gone


def test_on_a_disk_nobody_can_be_faster_a_third_time(shm_path):
    root, attempts = str(shm_path), []

    def change(parent, attempt):
        attempts.append(attempt)
        lock = try_lock_file(f"{root}/.shoal/lock")
        assert (lock is None) == (attempt == 2)
        if lock is not None:
            lock.close()
            append(root)
        return replace(parent, metadata={"attempt": attempt})

    assert commit(root, change).metadata == {"attempt": 2}
    assert attempts == [0, 1, 2]


def test_a_snapshot_of_the_store_does_not_hide_the_newest_generation(s3):
    with StoreSnapshot().active():
        append(s3)
        assert load_generation(s3) is not None
        append(s3)
        append(s3)
    assert len(ids_of(s3)) == 3


# -------------------------------------------------------------------------------------------------------------- races


def append_many(root, count, endpoint=""):
    if endpoint:
        reach(endpoint)
    tell(" ".join(append(root)[0] for _ in range(int(count))))


def check_race(root, outputs):
    """Every segment of all writers is there once, those of each writer in its order."""
    ids = ids_of(root)
    assert Counter(ids) == Counter(" ".join(outputs).split())
    for output in outputs:
        assert sorted(output.split(), key=ids.index) == output.split()
    check_whole(root)


@pytest.mark.parametrize("writers", [2, 4])
def test_processes_that_commit_to_a_disk_lose_nothing(shm_path, writers):
    outputs = run_children(__file__, [("append_many", shm_path, times(12, 100))] * writers)
    check_race(str(shm_path), outputs)
    collect_garbage(str(shm_path))
    check_clean(str(shm_path))


def test_processes_that_commit_to_an_object_store_lose_nothing(s3, s3_endpoint):
    check_race(s3, run_children(__file__, [("append_many", s3, times(6, 50), s3_endpoint)] * 4))


def test_threads_that_commit_to_memory_lose_nothing():
    root, outputs = new_memory(), [""] * 4

    def work(number):
        outputs[number] = " ".join(append(root)[0] for _ in range(10))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_race(root, outputs)


# ---------------------------------------------------------------------------------------- stores that cannot be trusted


class PlainStore(MemoryStore):
    """A store that cannot replace an object only if it is unchanged."""

    update = None


class CarelessStore(MemoryStore):
    """A store whose server ignores some conditions: that there is no object, or that it is still the same."""

    def __init__(self, *ignored):
        super().__init__()
        self.ignored = ignored

    def update(self, url, change):
        while True:
            before = self._objects.get(url)
            data = change(None if before is None else before[0])
            is_ignored = ("none" if before is None else "same") in self.ignored
            if is_ignored or self._objects.get(url) is before:
                self.write_all(url, data)
                return


@contextlib.contextmanager
def registered(store):
    """Yield the URL of a folder in a store."""
    scheme = f"commit{next(_NUMBERS)}"
    register_store(scheme, store)
    yield f"{scheme}://bucket/data"


@pytest.mark.parametrize(
    "store", [PlainStore(), CarelessStore("none"), CarelessStore("same"), CarelessStore("none", "same")]
)
def test_a_store_where_writers_could_replace_each_other_needs_exclusive(store):
    with registered(store) as root:
        for _ in range(2):
            with pytest.raises(StoreError) as error:
                append_nothing(root)
            assert "exclusive=True" in error.value.hint
        assert list(store.list(root)) == []
        segment, _ = append(root, exclusive=True)
        assert ids_of(root) == [segment]


def append_nothing(root, **options):
    return commit(root, lambda parent, _: replace(parent, metadata={"n": next(_NUMBERS)}), **options)


def test_a_store_with_conditions_is_tried_once_and_nothing_is_left_of_it():
    store = CarelessStore()
    with registered(store) as root:
        append(root)
        append(f"{root}-2")
        assert {url.rpartition("/")[2] for url in store._objects} >= {"manifest.json"}
        assert not [url for url in store._objects if url.endswith(".probe")]


def test_a_disk_without_locks_needs_exclusive(shm_path, monkeypatch):
    monkeypatch.setattr(_file_lock, "_is_local_only", lambda device: True)
    root = str(shm_path)
    with pytest.raises(StoreError) as error:
        append_nothing(root)
    assert "exclusive=True" in error.value.hint
    assert load_generation(root) is None
    append_nothing(root, exclusive=True)
    append_nothing(root, exclusive=True)
    assert len(kept_generations(root)) == 2


class DeafStore(MemoryStore):
    """A store whose answers get lost after the work was done; then it is asked again, as clients do, or gives up."""

    def __init__(self):
        super().__init__()
        self.lost, self.meanwhile, self.gives_up = 0, lambda: None, False

    def update(self, url, change):
        super().update(url, change)
        if self.lost and url.endswith("manifest.json"):
            self.lost -= 1
            self.meanwhile()
            if self.gives_up:
                raise StoreError("The connection was reset", found=url)
            self.update(url, change)


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_commit_whose_answer_is_lost_is_not_made_twice(others):
    store = DeafStore()
    with registered(store) as root:
        append(root)
        expected = ids_of(root)
        store.lost, store.meanwhile = 1, lambda: [append(root) for _ in range(others)]
        segment, generation = append(root)
        assert ids_of(root)[:2] == [*expected, segment]
        assert len(ids_of(root)) == 2 + others
        assert generation.id in kept_generations(root)
        check_whole(root)


def test_a_commit_that_failed_without_an_answer_is_found_by_the_next_try():
    store, writer = DeafStore(), new_id()
    with registered(store) as root:
        append(root)
        store.lost, store.gives_up = 1, True
        with pytest.raises(StoreError, match="reset"):
            append(root, writer=writer)
        assert len(ids_of(root)) == 2
        append(root, writer=writer)
        assert len(ids_of(root)) == 2
        check_whole(root)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_requests_to_a_real_store_that_are_done_but_not_answered(s3, s3_endpoint, method):
    with fault_proxy(s3_endpoint) as proxy:
        configure(f"s3://{BUCKET}", endpoint=proxy.url)
        segments = [append(s3)[0]]
        for after in (0, 3):
            proxy.faults[:] = [Fault("reset", method, MANIFEST, after=after, times=1)]
            segments.append(append(s3)[0])
        assert proxy.happened["reset"] == 2
        assert ids_of(s3) == segments
        check_whole(s3)


def test_a_manifest_that_is_replaced_while_it_is_read_is_read_again(s3, s3_endpoint):
    segments = [append(s3)[0] for _ in range(9)]  # more than a reader gets with the first request
    with fault_proxy(s3_endpoint) as proxy:
        configure(f"s3://{BUCKET}", endpoint=proxy.url)
        proxy.faults[:] = [Fault("other-etag", "GET", MANIFEST)]  # what comes next is of another version
        segments.append(append(s3)[0])
        assert proxy.happened["other-etag"] == 1
        configure(f"s3://{BUCKET}", part_size=5 << 20)
        commit(s3, lambda parent, _: replace(parent, metadata={"large": "x" * (6 << 20)}))
        proxy.faults[:] = [Fault("other-etag", "GET", MANIFEST)]
        assert ids_of(s3) == segments
        assert proxy.happened["other-etag"] == 2


# -------------------------------------------------------------------------------------------------------------- kills


def die_in_commits(base, before):
    append("memory://warm")
    tell(die_at_each_step(base, before, append))


@pytest.mark.parametrize("generations", [0, KEPT + 1])
def test_a_commit_that_is_killed_leaves_the_old_or_the_new_and_the_next_one_cleans_up(shm_path, generations):
    before = shm_path / "before"
    before.mkdir()
    for _ in range(generations):
        append(str(before))
    if generations:
        keep_last(str(before))  # so that the next commit collects files of segments
    old = ids_of(str(before))
    [output] = run_children(__file__, [("die_in_commits", shm_path / "runs", before)])
    count, seen = int(output), []
    assert count > times(8, 16)
    for number in range(count + 1):
        root = str(shm_path / "runs" / str(number))
        ids = ids_of(root)
        assert ids[: len(old)] == old
        assert len(ids) - len(old) in (0, 1)
        seen.append(len(ids) - len(old))
        check_whole(root)
        segment, _ = append(root)
        assert ids_of(root) == [*ids, segment]
        check_clean(root)
        assert not list(Path(root).rglob("*.partial"))
    assert seen == sorted(seen)
    assert set(seen) == {0, 1}


def commit_forever(root):
    tell()
    while True:
        append(root)
        keep_last(root, 3)


def test_commits_that_are_killed_at_any_moment(shm_path):
    root = str(shm_path)
    for number in range(times(4, 100)):
        with started(__file__, "commit_forever", root) as child:
            before = load_generation(root)
            while number % 2 and load_generation(root) == before:
                pass
            child.send_signal(signal.SIGKILL)
            child.wait()
        check_whole(root)
        append(root)
        check_clean(root)
        assert not [path for path in shm_path.rglob("*.partial") if "generations" in path.parts]


# ------------------------------------------------------------------------------------------------------------- garbage


def test_the_last_generations_and_those_that_are_held_are_kept(shm_path):
    root = str(shm_path)
    append(root)
    with contextlib.ExitStack() as stack:
        first, pinned = load_and_pin(root)
        stack.enter_context(pinned)
        for _ in range(3 * KEPT):
            append(root)
            keep_last(root, 2)
        check_whole(root, first.id)
        check_clean(root, first.id)
        assert len(kept_generations(root)) == KEPT
        assert first.id not in kept_generations(root)
        with pin(root, first.id):  # by others too, as long as somebody holds it
            pass
    assert collect_garbage(root) == 1 + len(set(first.files()) - index_files_of_kept(root))
    check_clean(root)
    with pytest.raises(ObjectNotFoundError):
        pin(root, first.id)
    with pytest.raises(ObjectNotFoundError):
        load_kept_generation(root, first.id)
    assert collect_garbage(root) == 0


def index_files_of_kept(root):
    return {path for each in kept_generations(root) for path in load_kept_generation(root, each).files()}


@given(st.lists(st.sampled_from(["append", "append", "keep", "pin", "close", "write", "collect"]), max_size=40))
def test_whatever_happens_kept_and_held_generations_are_whole_and_all_else_is_removed(shm_folder, steps):
    root = tempfile.mkdtemp(dir=shm_folder)
    append(root)
    held = []
    for step in steps:
        if step == "append":
            append(root)
        elif step == "keep":
            keep_last(root)
        elif step == "pin":
            held.append(load_and_pin(root))
        elif step == "close" and held:
            held.pop(0)[1].close()
        elif step == "write":
            write_segment(root)  # by somebody who died
        elif step == "collect":
            collect_garbage(root)
        check_whole(root, *{generation.id for generation, _ in held})
    collect_garbage(root)
    check_clean(root, *{generation.id for generation, _ in held})
    for _, pinned in held:
        pinned.close()


def hold_newest(root):
    """Hold the newest generation in a fork, whose parent lets go of it."""
    generation, pinned = load_and_pin(root)
    if os.fork() == 0:
        tell(generation.id)
        signal.pause()
        os._exit(0)
    pinned.close()
    signal.pause()


def test_a_forked_reader_keeps_what_its_parent_let_go_of(shm_path):
    root = str(shm_path)
    append(root)
    with started(__file__, "hold_newest", root) as reader:
        for _ in range(2 * KEPT):
            append(root)
            keep_last(root)
        check_whole(root, reader.told)
        check_clean(root, reader.told)
        os.kill(forks_of(reader.pid)[0], signal.SIGKILL)


def forks_of(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def read_forever(root, count):
    """Hold the newest generation, and the oldest that is kept, again and again: their files must be there."""
    tell()
    for _ in range(int(count)):
        generation, pinned = load_and_pin(root)
        with pinned:
            assert all(os.path.exists(f"{root}/{path}") for path in generation.files()), "newest"
        with contextlib.suppress(ObjectNotFoundError):
            oldest = load_kept_generation(root, kept_generations(root)[-1])
            with pin(root, oldest.id):
                assert all(os.path.exists(f"{root}/{path}") for path in oldest.files()), "oldest"


def change_often(root, count):
    for _ in range(int(count)):
        append(root)
        keep_last(root)


def test_readers_that_hold_a_generation_have_all_its_files_while_others_commit(shm_path):
    root = str(shm_path)
    append(root)
    count = times(40, 2000)
    run_children(__file__, [("read_forever", root, 3 * count)] * 2 + [("change_often", root, count)] * 2)
    collect_garbage(root)
    check_clean(root)


def test_a_reader_that_comes_while_garbage_is_collected_has_all_files_or_is_told(shm_path, monkeypatch):
    from shoal.shard import _commit

    root = str(shm_path)
    append(root)
    held, pinned = load_and_pin(root)
    with pinned:
        with contextlib.ExitStack() as pins:
            for _ in range(KEPT + 3):
                append(root)
                pins.enter_context(load_and_pin(root)[1])
                keep_last(root)
            readers = []

            def come(root, generation_id):
                if not readers and generation_id == held.id:
                    for each in document_ids(root) - set(kept_generations(root)[:KEPT]):
                        with contextlib.suppress(ObjectNotFoundError):
                            readers.append((each, pin(root, each)))
                return load_kept_generation(root, generation_id)

            monkeypatch.setattr(_commit, "_load_known", come)
        keep_last(root)
        assert held.id in {each for each, _ in readers}
        check_whole(root, *{each for each, _ in readers})
        for _, pinned_late in readers:
            pinned_late.close()


def test_files_that_are_written_are_left_alone_until_their_writer_has_ended(shm_path):
    root = str(shm_path)
    append(root)
    with protect_new_files(root), protect_new_files(root):
        segment = write_segment(root)
        for _ in range(2 * KEPT):
            append(root)
        assert set(segment.paths()) <= index_files(root)
        assert len(kept_generations(root)) == KEPT  # what others have removed is removed all the same
        commit(root, lambda parent, _: with_split(parent, "train", [*segments_of(parent), segment]))
    collect_garbage(root)
    check_clean(root)
    assert segment.id in ids_of(root)


def test_a_parent_is_kept_while_something_is_made_of_it(shm_path):
    root = str(shm_path)
    append(root)

    def change(parent, attempt):
        if attempt == 0:
            for _ in range(2 * KEPT):
                append(root)
                keep_last(root)
            check_whole(root, parent.id)
        return replace(parent, metadata={"attempt": attempt})

    assert commit(root, change).metadata == {"attempt": 1}
    check_clean(root)


def test_a_damaged_generation_that_is_kept_stops_garbage_collection_but_no_commit(shm_path):
    root = str(shm_path)
    for _ in range(KEPT):
        append(root)
    write_segment(root)
    damaged = shm_path / ".shoal" / "generations" / f"{kept_generations(root)[3]}.json"
    damaged.write_bytes(damaged.read_bytes()[:-5] + b"#####")
    load_uncached()
    before = (index_files(root), document_ids(root))
    with pytest.raises(ManifestError):
        collect_garbage(root)
    assert (index_files(root), document_ids(root)) == before
    for _ in range(KEPT):  # until it is not one of the last any more
        append(root)
    check_clean(root)


def load_uncached():
    """As in a new process: documents that were read before are read again."""
    from shoal.shard import _commit

    _commit._load_known.cache_clear()


@pytest.mark.parametrize("data", [b"", b"{}", encode_generation(replace(NO_GENERATION, id="0" * 16, lineage="0" * 16))])
def test_a_document_that_is_not_of_its_generation_is_refused(shm_path, data):
    root = str(shm_path)
    _, generation = append(root)
    (shm_path / ".shoal" / "generations" / f"{generation.id}.json").write_bytes(data)
    with pytest.raises(ManifestError):
        load_kept_generation(root, generation.id)
    assert load_generation(root) == generation
    with pytest.raises(ShoalError):
        load_kept_generation(root, "../../manifest")


def test_parents_that_lead_in_a_circle_end(shm_path):
    root = str(shm_path)
    _, first = append(root)
    _, second = append(root)
    circle = replace(first, parent=second.id)
    (shm_path / ".shoal" / "generations" / f"{first.id}.json").write_bytes(encode_generation(circle))
    load_uncached()
    assert kept_generations(root) == [second.id, first.id]
    assert not is_committed(root, second, new_id())
    append(root)
    check_whole(root)


def test_without_a_manifest_nothing_is_removed(shm_path):
    root = str(shm_path)
    _, generation = append(root)
    (shm_path / MANIFEST).unlink()
    assert collect_garbage(root) == 0
    assert set(generation.files()) == index_files(root)
    assert document_ids(root) == {generation.id}


def test_a_generation_whose_document_is_missing_can_still_be_read(shm_path):
    root = str(shm_path)
    append(root)
    _, generation = append(root)
    (shm_path / ".shoal" / "generations" / f"{generation.id}.json").unlink()
    newest, pinned = load_and_pin(root)
    with pinned:
        assert newest == generation
        assert len(append(root)[1].files()) == 3


def test_what_cannot_be_removed_does_not_stop_a_commit(shm_path):
    root = str(shm_path)
    append(root)
    odd = shm_path / SEGMENT_FOLDER / new_id() / "keys.rec"
    odd.mkdir(parents=True)  # unlink fails, as in a folder of another user
    write_segment(root)
    append(root)
    assert collect_garbage(root) == 0
    assert odd.is_dir()
    odd.rmdir()
    odd.parent.rmdir()
    check_clean(root)


def test_writers_that_ended_leave_no_folder_and_others_do(shm_path):
    root = str(shm_path)
    ended, waiting, lost, busy = (new_id() for _ in range(4))
    for writer in (ended, waiting, lost, busy):
        (shm_path / WRITING_FOLDER / writer / "staging").mkdir(parents=True)
        (shm_path / WRITING_FOLDER / writer / "staging" / "a.tar").write_bytes(b"tar")
        if writer in (ended, busy):
            (shm_path / WRITING_FOLDER / writer / "head.json").write_bytes(b"{}")
    with protect_new_files(root):
        append(root, writer=waiting, pending=PendingMoves(waiting, 1, 1))
        append(root, writer=ended)
        assert set(os.listdir(shm_path / WRITING_FOLDER)) == {waiting, lost, busy}
    collect_garbage(root)
    assert set(os.listdir(shm_path / WRITING_FOLDER)) == {waiting, busy}
    assert (shm_path / WRITING_FOLDER / waiting / "staging" / "a.tar").exists()


# ------------------------------------------------------------------------------------------------------- garbage by age


class AgingStore(MemoryStore):
    """Objects in memory that know when they were written, by a clock that the test sets."""

    def __init__(self):
        super().__init__()
        self.now, self.times = 1e9, {}

    def write_all(self, url, data):
        info = super().write_all(url, data)
        self.times[url] = self.now
        return info

    def update(self, url, change):
        super().update(url, change)
        self.times[url] = self.now

    def list(self, url, depth=None):
        return (replace(info, modified=self.times[info.url]) for info in super().list(url, depth))

    def days(self, count):
        self.now += 24 * 3600 * count


@pytest.fixture
def aging():
    store = AgingStore()
    with registered(store) as root:
        yield store, root


def test_remote_generations_are_kept_for_a_week_after_they_were_replaced(aging):
    store, root = aging
    segment, first = append(root)
    store.days(30)  # the newest for a month
    for _ in range(2 * KEPT):
        append(root)
        keep_last(root)
    store.days(6.9)
    collect_garbage(root)
    check_whole(root, first.id)
    store.days(0.2)
    assert collect_garbage(root) > KEPT
    assert segment not in {path.split("/")[2] for path in index_files(root)}
    check_clean(root)
    assert collect_garbage(root) == 0


def test_a_lost_race_long_ago_does_not_hide_a_generation_that_was_the_newest(aging):
    store, root = aging
    _, first = append(root)
    store.days(20)
    orphan = encode_generation(replace(first, id=new_id(), parent=first.id))
    store.write_all(f"{root}/.shoal/generations/{new_id()}.json", orphan)
    store.days(10)
    keep_last(root, 1)
    for _ in range(2 * KEPT):
        append(root)
        keep_last(root)
    collect_garbage(root)
    check_whole(root, first.id)  # it was replaced today


def test_new_files_of_slow_writers_are_left_alone_for_a_week(aging):
    store, root = aging
    append(root)
    segment = write_segment(root)
    store.days(6.9)
    collect_garbage(root)
    assert set(segment.paths()) <= index_files(root)
    store.days(0.2)
    collect_garbage(root)
    assert not set(segment.paths()) & index_files(root)
    check_whole(root)


def test_the_clock_of_the_client_does_not_matter(aging, monkeypatch):
    store, root = aging
    append(root)
    segment = write_segment(root)
    monkeypatch.setattr("time.time", lambda: store.now + 10 * WEEK_S)
    for _ in range(2 * KEPT):
        append(root)
        keep_last(root)
    before = index_files(root)
    assert collect_garbage(root) == 0
    assert index_files(root) == before > set(segment.paths())


def test_remote_folders_of_writers_that_ended_or_never_began_are_removed(aging):
    store, root = aging
    ended, waiting, lost, busy = (new_id() for _ in range(4))
    for writer in (ended, waiting, lost, busy):
        store.write_all(f"{root}/{WRITING_FOLDER}/{writer}/staging/a.tar", b"tar")
        if writer in (ended, busy):
            store.write_all(f"{root}/{WRITING_FOLDER}/{writer}/head.json", b"{}")
    append(root, writer=waiting, pending=PendingMoves(waiting, 1, 1))
    append(root, writer=ended)
    collect_garbage(root)
    assert writers_of(store, root) == {waiting, lost, busy}
    store.days(8)
    collect_garbage(root)
    assert writers_of(store, root) == {waiting, busy}


def writers_of(store, root):
    return {info.url.split("/writing/")[1].split("/")[0] for info in store.list(f"{root}/{WRITING_FOLDER}")}


def test_a_disk_without_locks_collects_by_age(shm_path, monkeypatch):
    monkeypatch.setattr(_file_lock, "_is_local_only", lambda device: True)
    root = str(shm_path)
    for _ in range(2 * KEPT):
        append(root, exclusive=True)
        commit(root, lambda parent, _: with_split(parent, "train", segments_of(parent)[-1:]), exclusive=True)
    assert collect_garbage(root) == 0
    for path in [*shm_path.rglob("*.json"), *shm_path.rglob("*.rec")]:
        os.utime(path, (1e9, 1e9))
    assert collect_garbage(root) > KEPT
    check_clean(root)


def test_a_real_object_store_keeps_young_generations(s3):
    for _ in range(KEPT + 2):
        append(s3)
        keep_last(s3)
    before = index_files(s3)
    assert collect_garbage(s3) == 0
    assert index_files(s3) == before
    assert len(kept_generations(s3)) == 2 * (KEPT + 2)


# ------------------------------------------------------------------------------------------------------ symbolic links


LINKS = [
    ".shoal",
    ".shoal/generations",
    ".shoal/index",
    ".shoal/index/00112233aabbccdd",
    ".shoal/lock",
    ".shoal/index/lock",
    ".shoal/writing",
    ".shoal/writing/00112233aabbccdd",
]


@pytest.mark.parametrize("has_locks", [True, False])
@pytest.mark.parametrize("link", LINKS)
def test_nothing_behind_a_symbolic_link_is_written_or_removed(shm_path, monkeypatch, link, has_locks):
    """A folder that looks like that part of a dataset, with things that would be garbage there."""
    monkeypatch.setattr(_file_lock, "_is_local_only", lambda device: not has_locks)
    root, outside = shm_path / "data", shm_path / "outside"
    for _ in range(0 if link == ".shoal/generations" else KEPT + 2):  # with parents it would be refused at once
        append(str(root), exclusive=True)
    commit(str(root), lambda parent, _: replace(with_split(parent, "train", ()), metadata={"n": 1}), exclusive=True)
    make_garbage(outside)
    target = outside / "nowhere" if link.endswith("lock") else outside.joinpath(*link.split("/"))
    place = root / link
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    make_old(shm_path)
    load_uncached()
    before = contents(outside)
    for act in (
        lambda: collect_garbage(str(root)),
        lambda: append(str(root), exclusive=True),
        lambda: append_nothing(str(root), exclusive=True, writer="00112233aabbccdd"),
        lambda: collect_garbage(str(root)),
    ):
        with contextlib.suppress(ShoalError):
            act()
        found = contents(outside)
        assert {name: data for name, data in found.items() if not is_segment_of_test(name, before)} == before


def is_segment_of_test(name, before):
    """What `write_segment` of this test, and not shoal, wrote through the link."""
    return name not in before and name.endswith("keys.rec")


def make_garbage(root):
    for _ in range(KEPT + 2):
        append(str(root), exclusive=True)
    generations = root / ".shoal" / "generations"
    (generations / f"{new_id()}.json").write_bytes(b"{}")
    (generations / f".{new_id()}.json.{new_id()}.partial").write_bytes(b"{")
    (root / ".shoal" / f".manifest.json.{new_id()}.partial").write_bytes(b"{")
    for folder in (".shoal/index/00112233aabbccdd", ".shoal/writing/00112233aabbccdd", ".shoal/writing/" + new_id()):
        (root / folder).mkdir(parents=True)
        (root / folder / "keys.rec").write_bytes(b"keys")


def make_old(folder):
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (1e9, 1e9))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


run_if_child(globals())
