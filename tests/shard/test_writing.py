"""Folders of writers and moves of tars: who may write, what a rerun finds again, and what a dead writer leaves."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scale import times
from tests.shard.children import die_at_each_step, reach, run_children, run_if_child, started, tell

from shoal.errors import ManifestError, ObjectExistsError, ObjectNotFoundError, ShoalError, StoreError, WriteError
from shoal.shard import _file_lock
from shoal.shard._commit import WRITING_FOLDER, collect_garbage, commit, is_committed, load_generation
from shoal.shard._generation import NO_GENERATION, encode_document, new_id
from shoal.shard._manifest import ShardRecord
from shoal.shard._rows_file import write_rows_file
from shoal.shard._shard_rows import FieldExtents, IndexMetadata, ShardRows
from shoal.shard._writing import (
    UnfinishedWrite,
    WriteHead,
    Writing,
    finish_moves,
    stage_moves,
    staged_url,
    unfinished_writes,
)
from shoal.store import store_for

WRITE = WriteHead("write", "a-%06d.tar", "train")
APPEND = WriteHead("append", "a-%06d.tar", "train")
OVERWRITE = WriteHead("overwrite", "a-%06d.tar", "train", staged=True)
OTHER_MACHINE = {"host": "elsewhere", "pid": os.getpid(), "process": "boot:pid:[1]:5"}
_NUMBERS = itertools.count()


# ------------------------------------------------------------------------------------------------------- small writes


def record_of(path, keys=("k",)):
    """A record and the rows of a shard with one field."""
    words = np.arange(1, len(keys) + 1, dtype=np.uint64)
    facts = IndexMetadata(1024, 0)
    fields = {"bin": FieldExtents(words * 512, words, words.astype(np.uint32))}
    rows = ShardRows(facts, pa.array(keys, pa.string()), fields, {}, None)
    return ShardRecord(path, len(keys), 1024, fields={"bin": (len(keys), int(words.sum()))}), rows


def put(url, data):
    store_for(url).write_all(url, data)


def get(url):
    try:
        return store_for(url).read_all(url)
    except ObjectNotFoundError:
        return None


def tars(root):
    """The tars below a root, outside of writers' folders, by their paths."""
    urls = [info.url for info in store_for(root).list(root) if info.url.endswith(".tar")]
    return {url.removeprefix(f"{root}/"): get(url) for url in urls if "/.shoal/" not in url}


def writers(root):
    infos = store_for(root).list(f"{root}/{WRITING_FOLDER}")
    return {info.url.split(f"{WRITING_FOLDER}/")[1].split("/")[0] for info in infos}


def change_head(root, writer, **changes):
    """Make the head of a write look as another process wrote it."""
    url = f"{root}/{WRITING_FOLDER}/{writer}/head.json"
    head = json.loads(get(url))
    head.pop("crc32")
    put(url, encode_document({**head, **changes}))


def name_tars(root, paths, **options):
    """Commit that the dataset has these tars."""

    def change(parent, _):
        return replace(parent, metadata={"tars": sorted({*parent.metadata.get("tars", []), *paths})})

    return commit(root, change, **options)


def named(root):
    generation = load_generation(root)
    return [] if generation is None else generation.metadata["tars"]


@pytest.fixture(params=["disk", "memory", "s3"])
def root(request, shm_path):
    """The URL of a new folder in each kind of store."""
    if request.param == "memory":
        return f"memory://writing/{next(_NUMBERS)}"
    return str(shm_path) if request.param == "disk" else request.getfixturevalue("s3")


@pytest.fixture(params=["memory", "s3"])
def lockless(request):
    """The URL of a new folder in a store without locks."""
    return f"memory://writing/{next(_NUMBERS)}" if request.param == "memory" else request.getfixturevalue("s3")


def die(writing):
    """End a write as a process that dies: its locks are gone, and nothing else."""
    if writing._lock is not None:
        writing._lock.close()
    writing._protection.close()
    writing._state = "closed"
    writing.close()


# ------------------------------------------------------------------------------------------------------------- writes


def test_a_write_is_listed_until_it_is_discarded(root):
    assert unfinished_writes(root) == ()
    with Writing.begin(root, replace(WRITE, options={"size": (1, 2)})) as writing:
        writing.add(*record_of("a-000000.tar"))
        writing.add(*record_of("a-000001.tar", ("x", "y")))
        [write] = unfinished_writes(root)
        assert write == UnfinishedWrite(writing.id, writing.head, tuple(writing.finished()), True)
        assert write.head.options == {"size": [1, 2]}
        assert [record.path for record in write.shards] == ["a-000000.tar", "a-000001.tar"]
        assert str(os.getpid()) in write.head.writer
        writing.discard()
        assert unfinished_writes(root) == ()
    assert writers(root) == set()


def test_a_write_that_is_closed_can_be_resumed_and_goes_on_with_its_numbers(root):
    with Writing.begin(root, WRITE) as writing:
        writing.add(*record_of("a-000000.tar"))
    [write] = unfinished_writes(root)
    assert write.is_alive is False
    with Writing.resume(root, WRITE) as again:
        assert again.id == writing.id
        assert [record.path for record in again.finished()] == ["a-000000.tar"]
        again.add(*record_of("a-000001.tar"))
        assert len(again.finished()) == 2
        again.discard()
    with Writing.resume(root, WRITE) as fresh:
        assert fresh.id != writing.id
        assert fresh.finished() == []


@given(st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)))
def test_shards_are_finished_up_to_the_first_that_is_missing_or_damaged(written, damaged):
    root = f"memory://writing/{next(_NUMBERS)}"
    with Writing.begin(root, WRITE) as writing:
        for number in written:
            write_rows_file(writing.rows_url(number), *record_of(f"a-{number:06d}.tar"))
        for number in written & damaged:
            put(writing.rows_url(number), get(writing.rows_url(number))[:50])
        whole = sorted(written - damaged)
        assert [record.path for record in writing.finished(gaps=True)] == [f"a-{number:06d}.tar" for number in whole]
        first = next(number for number in itertools.count() if number not in whole)
        assert len(writing.finished()) == first
        writing.add(*record_of("b.tar"))
        assert get(writing.rows_url(max(written, default=-1) + 1)) is not None


@pytest.mark.parametrize(
    "first, second, is_refused",
    [
        (WRITE, WRITE, True),
        (WRITE, replace(WRITE, pattern="b-%06d.tar"), True),
        (WRITE, replace(WRITE, split="test"), True),
        (WRITE, replace(WRITE, pattern="b-%06d.tar", split="test"), False),
        (replace(WRITE, split=None), replace(WRITE, pattern="b-%06d.tar", split=None), False),
        (WRITE, APPEND, True),
        (APPEND, OVERWRITE, True),
        (APPEND, APPEND, False),
    ],
)
def test_a_second_writer_of_a_split_is_refused_by_name(root, first, second, is_refused):
    with Writing.begin(root, first) as writing:
        for make in (Writing.begin, Writing.resume):
            if is_refused:
                with pytest.raises(ObjectExistsError) as error:
                    make(root, second)
                assert writing.head.writer in error.value.found
            else:
                with make(root, second) as other:
                    other.discard()
        assert writers(root) == {writing.id}
    with Writing.begin(root, second) as other:  # the first has ended
        other.discard()


def test_resuming_something_else_is_refused_and_leaves_it_as_it_was(root):
    with Writing.begin(root, replace(WRITE, options={"level": 1})) as writing:
        writing.add(*record_of("a-000000.tar"))
    with pytest.raises(WriteError) as error:
        Writing.resume(root, replace(WRITE, options={"level": 2}))
    assert error.value.expected == {"options": {"level": 1}}
    assert len(unfinished_writes(root)[0].shards) == 1


def test_of_several_dead_writes_the_one_that_was_asked_the_same_is_resumed(shm_path):
    root, ids = str(shm_path), {}
    for source in ("x", "y", "z"):
        writing = Writing.begin(root, replace(APPEND, options={"source": source}), is_named=lambda path: True)
        ids[source] = writing
    for writing in ids.values():
        die(writing)
    for source in ("z", "x", "y"):
        with Writing.resume(root, replace(APPEND, options={"source": source})) as again:
            assert again.id == ids[source].id


def test_a_write_that_was_committed_does_not_hide_a_later_one(shm_path):
    for _ in range(8):  # ids are random, and so is their order
        root = str(shm_path / new_id())
        first = Writing.begin(root, APPEND)
        second = Writing.begin(root, APPEND)
        with contextlib.ExitStack() as stack:
            stack.enter_context(Writing.begin(root, replace(WRITE, pattern="b", split="b")))
            name_tars(root, ["a"], writer=first.id)
            put(f"{root}/{WRITING_FOLDER}/{first.id}/head.json", get(f"{root}/{WRITING_FOLDER}/{second.id}/head.json"))
        die(first)
        die(second)
        assert is_committed(root, load_generation(root), first.id)
        with Writing.resume(root, APPEND) as again:
            assert again.id == second.id


def test_the_options_of_a_write_must_be_json(shm_path):
    with pytest.raises(WriteError, match="JSON"):
        Writing.begin(str(shm_path), replace(WRITE, options={"x": object()}))
    assert writers(str(shm_path)) == set()


# ----------------------------------------------------------------------------------------------------- who is alive


def run_writer(root, endpoint="", end=""):
    if endpoint:
        reach(endpoint)
    writing = Writing.begin(root, WRITE)
    writing.add(*record_of("a-000000.tar"))
    if end:
        writing.close()
    tell(writing.id)
    signal.pause()


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_a_writer_that_is_killed_is_dead_and_its_work_is_found(request, shm_path, kind):
    root = str(shm_path) if kind == "disk" else request.getfixturevalue("s3")
    endpoint = request.getfixturevalue("s3_endpoint") if kind == "s3" else ""
    with started(__file__, "run_writer", root, endpoint) as child:
        [write] = unfinished_writes(root)
        assert (write.id, write.is_alive, write.head.pid) == (child.told, True, child.pid)
        with pytest.raises(ObjectExistsError):
            Writing.resume(root, WRITE)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # nobody has waited for it yet
        assert unfinished_writes(root)[0].is_alive is False
    with Writing.resume(root, WRITE) as writing:
        assert writing.id == child.told
        assert len(writing.finished()) == 1


def test_a_write_that_a_living_process_has_closed_can_be_resumed_by_others(s3, s3_endpoint):
    with started(__file__, "run_writer", s3, s3_endpoint, "close") as child, Writing.resume(s3, WRITE) as writing:
        assert writing.id == child.told
        writing.discard()


@pytest.mark.parametrize(
    "changes, is_alive",
    [
        ({}, True),
        ({"pid": 0}, False),
        ({"process": "other"}, False),
        (OTHER_MACHINE, None),
        ({"host": "elsewhere"}, None),
        ({"process": "other-boot:pid:[1]:5"}, None),
        ({**OTHER_MACHINE, "pid": 0}, False),
    ],
)
def test_where_there_are_no_locks_the_process_tells_who_is_alive(lockless, changes, is_alive):
    """The writer is another process of this machine, unless its head says otherwise."""
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        writing = Writing.begin(lockless, WRITE)
        die_remotely(writing, pid=sleeper.pid, process=process_of(sleeper.pid))
        change_head(lockless, writing.id, **changes)
        assert unfinished_writes(lockless)[0].is_alive is is_alive
    finally:
        sleeper.communicate()
    if is_alive:
        assert unfinished_writes(lockless)[0].is_alive is False


def process_of(pid):
    from shoal.shard import _writing

    return _writing._process(pid)


def die_remotely(writing, **changes):
    """End a write, and let its head say that another process wrote it."""
    writing.close()
    change_head(writing.root, writing.id, **{"pid": os.getpid(), **changes})


@pytest.mark.parametrize("make", [Writing.begin, Writing.resume])
def test_a_writer_of_another_machine_is_not_taken_for_dead(lockless, make):
    writing = Writing.begin(lockless, WRITE)
    writing.reserve("a-000000.tar")
    die_remotely(writing, **OTHER_MACHINE)
    other = replace(WRITE, pattern="b-%06d.tar")
    with pytest.raises(ObjectExistsError) as error:
        make(lockless, other)
    assert "elsewhere" in error.value.found
    assert "exclusive=True" in error.value.hint
    with pytest.raises(ObjectExistsError):
        Writing.begin(lockless, WRITE, is_named=lambda path: False)
    assert len(tars(lockless)) == 1
    with Writing.begin(lockless, APPEND if make == Writing.begin else WRITE, exclusive=True) as new:
        assert writers(lockless) == {new.id}


def test_an_appender_does_not_discard_one_of_another_machine(lockless):
    writing = Writing.begin(lockless, APPEND)
    die_remotely(writing, **OTHER_MACHINE)
    with Writing.begin(lockless, APPEND) as other:
        assert writers(lockless) == {writing.id, other.id}
        other.discard()
    with Writing.resume(lockless, APPEND) as again:  # whoever resumes says that it was interrupted
        assert again.id == writing.id


def meet(folder):
    """Wait until four processes have come."""
    put(f"{folder}/{new_id()}", b".")
    while len(list(store_for(folder).list(folder))) < 4:
        pass


def begin_and_wait(root, start, endpoint=""):
    """Begin a write when all others are about to, and tell whether it was refused; stay alive."""
    if endpoint:
        reach(endpoint)
    meet(f"{root}/{start}")
    try:
        writing = Writing.begin(root, WRITE)
    except ObjectExistsError:
        tell("refused")
        meet(f"{root}/{start}-done")
    else:
        tell("begun")
        meet(f"{root}/{start}-done")
        writing.discard()


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_of_four_writers_that_begin_at_once_at_most_one_writes(request, shm_path, kind):
    root = str(shm_path) if kind == "disk" else request.getfixturevalue("s3")
    endpoint = request.getfixturevalue("s3_endpoint") if kind == "s3" else ""
    for number in range(times(1, 20)):
        outputs = run_children(__file__, [("begin_and_wait", root, f"start-{number}", endpoint)] * 4)
        begun = outputs.count("begun\n")
        assert begun + outputs.count("refused\n") == 4
        assert begun == 1 if kind == "disk" else begun <= 1
    assert writers(root) == set()


def fork_in_write(root):
    """Fork while a write is open; the child leaves the block, discards the write and dies."""
    writing = Writing.begin(root, WRITE)
    writing.add(*record_of("a-000000.tar"))
    if os.fork() == 0:
        with writing:
            pass
        writing.discard()
        os._exit(0)
    os.wait()
    tell(writing.id)
    signal.pause()


def test_a_forked_process_does_not_end_the_write_of_its_parent(shm_path):
    root = str(shm_path)
    with started(__file__, "fork_in_write", root) as child:
        [write] = unfinished_writes(root)
        assert (write.id, write.is_alive, len(write.shards)) == (child.told, True, 1)


def test_a_copy_of_a_folder_with_a_write_is_not_locked(shm_path):
    root = str(shm_path / "data")
    with Writing.begin(root, WRITE):
        shutil.copytree(root, shm_path / "copy")
        assert [write.is_alive for write in unfinished_writes(str(shm_path / "copy"))] == [False]
        (shm_path / "copy" / WRITING_FOLDER / os.listdir(shm_path / "copy" / WRITING_FOLDER)[0] / "lock").unlink()
        assert [write.is_alive for write in unfinished_writes(str(shm_path / "copy"))] == [True]


def test_a_disk_without_locks_has_writers_only_with_exclusive(shm_path, monkeypatch):
    monkeypatch.setattr(_file_lock, "_is_local_only", lambda device: True)
    root = str(shm_path)
    with pytest.raises(StoreError, match="no locks"):
        Writing.begin(root, WRITE)
    with Writing.begin(root, WRITE, exclusive=True) as writing:
        assert unfinished_writes(root)[0].is_alive is True
        with pytest.raises(ObjectExistsError):
            Writing.begin(root, WRITE, exclusive=True)
    assert unfinished_writes(root)[0].is_alive is False
    with Writing.resume(root, WRITE, exclusive=True) as again:
        assert again.id == writing.id


# ------------------------------------------------------------------------------------------------------ names of tars


def test_a_reserved_name_is_taken_and_vanishes_with_the_write(root):
    put(f"{root}/a-000001.tar", b"of somebody")
    with Writing.begin(root, APPEND) as one, Writing.begin(root, APPEND) as two:
        assert one.reserve("a-000000.tar")
        assert not two.reserve("a-000000.tar")
        assert not one.reserve("a-000001.tar")
        assert two.reserve("b/a-000002.tar")
        assert one.reserve("a-000000.tar")  # it has it already
        put(f"{root}/b/a-000002.tar", b"written")
        one.discard()
        two.discard()
    assert tars(root) == {"a-000001.tar": b"of somebody", "b/a-000002.tar": b"written"}


def test_a_dead_writer_leaves_no_tar_that_no_generation_names(root):
    writing = Writing.begin(root, APPEND)
    for number in range(4):
        assert writing.reserve(f"a-{number:06d}.tar")
    for number in range(1, 4):
        put(f"{root}/a-{number:06d}.tar", b"written")
    for number in range(2, 4):
        writing.add(*record_of(f"a-{number:06d}.tar"))
    put(f"{root}/a-000004.tar", b"of somebody")
    assert not writing.reserve("a-000004.tar")
    writing.close()
    with Writing.begin(root, APPEND, is_named=["a-000003.tar"].__contains__) as other:
        assert set(tars(root)) == {"a-000003.tar", "a-000004.tar"}
        assert other.reserve("a-000002.tar")


def test_a_resumed_write_keeps_the_names_it_had(root):
    writing = Writing.begin(root, APPEND)
    writing.reserve("a-000000.tar")
    writing.reserve("a-000001.tar")
    put(f"{root}/a-000001.tar", b"written, but not noted")
    writing.close()
    with Writing.resume(root, APPEND) as again:
        assert again.reserve("a-000000.tar")
        assert again.reserve("a-000001.tar")
        put(f"{root}/a-000002.tar", b"of somebody")
        assert not again.reserve("a-000002.tar")


def reserve_many(root, count, endpoint=""):
    if endpoint:
        reach(endpoint)
    with Writing.begin(root, APPEND) as writing:
        for number in range(int(count)):
            if writing.reserve(f"a-{number:06d}.tar"):
                tell(str(number))
        meet(f"{root}/done")


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_each_name_is_reserved_by_one_of_four_processes(request, shm_path, kind):
    root = str(shm_path) if kind == "disk" else request.getfixturevalue("s3")
    endpoint = request.getfixturevalue("s3_endpoint") if kind == "s3" else ""
    count = times(20 if kind == "disk" else 4, 200)
    outputs = run_children(__file__, [("reserve_many", root, count, endpoint)] * 4)
    assert sorted(int(number) for output in outputs for number in output.split()) == list(range(count))


BAD_PATHS = [
    "../x.tar",
    "/etc/x.tar",
    "a/../../x.tar",
    "",
    ".",
    "a//b",
    "..\\\\x",
    ".shoal/lock",
    ".SHOAL/manifest.json",
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_no_tar_can_have_are_refused(shm_path, path):
    root = str(shm_path / "data")
    with Writing.begin(root, WRITE) as writing:
        with pytest.raises(ManifestError):
            writing.reserve(path)
        with pytest.raises(ShoalError):
            stage_moves(writing, [path])
        with pytest.raises(ManifestError):
            stage_moves(writing, [], [path])
    assert os.listdir(shm_path) == ["data"]


def test_a_percent_in_a_path_is_only_a_percent(shm_path):
    for root in (str(shm_path / "plain"), f"file://{shm_path}/url"):
        with Writing.begin(root, APPEND) as writing:
            assert writing.reserve("%2e%2e/x.tar")
            writing.discard()
    assert sorted(os.listdir(shm_path)) == ["plain", "url"]


@pytest.mark.parametrize("path", [".shoal/manifest.json", "../outside", "%2e%2e/outside"])
@pytest.mark.parametrize("kind", ["note", "rows", "moves"])
def test_documents_that_name_other_files_remove_nothing(shm_path, kind, path):
    root, outside = str(shm_path / "data"), shm_path / "outside"
    outside.write_bytes(b"")
    writing = Writing.begin(root, OVERWRITE if kind == "moves" else WRITE)
    if kind == "note":
        put(f"{writing.folder}/name-{0:016x}", encode_document({"path": path, "reserved": True}))
    elif kind == "rows":
        writing.add(*record_of(path))
    else:
        info = store_for(root).info(str(outside)) if "outside" in path else None
        moves = {"moved": {}, "removed": {path: info.version if info else "x"}}
        data = encode_document(moves)
        put(f"{writing.folder}/moves.json", data)
        commit_moves(writing, data)
    writing.close()
    generation = name_tars(root, [])
    with contextlib.suppress(ManifestError):
        Writing.begin(root, WRITE, is_named=lambda path: False).discard()
    with contextlib.suppress(ManifestError):
        finish_moves(root, generation)
    assert outside.exists()
    assert load_generation(root).metadata == generation.metadata


def commit_moves(writing, data):
    from shoal._crc32 import crc32
    from shoal.shard._generation import PendingMoves

    pending = PendingMoves(writing.id, len(data), crc32(data))
    return name_tars(writing.root, [], writer=writing.id, pending=pending)


@pytest.mark.parametrize("data", [b"", b"{}", encode_document({"kind": 1}), encode_document({})])
def test_a_damaged_head_is_an_error(shm_path, data):
    root = str(shm_path)
    with Writing.begin(root, WRITE) as writing:
        pass
    put(f"{root}/{WRITING_FOLDER}/{writing.id}/head.json", data)
    for act in (unfinished_writes, lambda root: Writing.begin(root, WRITE), lambda root: Writing.resume(root, WRITE)):
        with pytest.raises(ManifestError):
            act(root)


# -------------------------------------------------------------------------------------------------------------- moves


def old_dataset(root, count=3):
    paths = [f"a-{number:06d}.tar" for number in range(count)]
    for path in paths:
        put(f"{root}/{path}", f"old {path}".encode())
    name_tars(root, paths)
    return paths


def stage(writing, count=2):
    paths = [f"a-{number:06d}.tar" for number in range(count)]
    for path in paths:
        put(f"{writing.staging}/{path}", f"new {path}".encode())
        writing.add(*record_of(path))
    return paths


def replace_tars(root, count=2, **options):
    """Replace the tars of a dataset by fewer, as an overwrite does."""
    with Writing.resume(root, OVERWRITE, **options) as writing:
        generation = load_generation(root)
        if not is_committed(root, generation, writing.id):
            generation = finish_moves(root, generation, **options)
            paths, before = stage(writing, count), generation.metadata["tars"]
            pending = stage_moves(writing, paths, before)

            def change(parent, _):
                return replace(parent, metadata={"tars": paths})

            generation = commit(root, change, new_lineage=True, writer=writing.id, pending=pending, **options)
        finish_moves(root, generation, writing=writing, **options)
        writing.discard()


def read(root):
    """What a reader has: each named tar, from where it waits or from its place."""
    generation = load_generation(root)
    return {path: get(staged_url(root, generation, path) or f"{root}/{path}") for path in generation.metadata["tars"]}


def versions(count, word):
    return {f"a-{number:06d}.tar": f"{word} a-{number:06d}.tar".encode() for number in range(count)}


def test_tars_are_replaced_and_others_removed(root):
    old_dataset(root)
    lineage = load_generation(root).lineage
    replace_tars(root)
    assert read(root) == tars(root) == versions(2, "new")
    assert load_generation(root).lineage != lineage
    assert load_generation(root).pending == ()
    assert writers(root) == set()
    assert finish_moves(root, load_generation(root)) == load_generation(root)


def test_between_the_commit_and_the_moves_readers_look_in_the_folder_of_the_writer(root):
    old_dataset(root)
    with Writing.begin(root, OVERWRITE) as writing:
        paths = stage(writing)
        pending = stage_moves(writing, paths, ["a-000002.tar", "a-000000.tar", "missing.tar"])
        assert read(root) == versions(3, "old")
        commit(root, lambda parent, _: replace(parent, metadata={"tars": paths}), writer=writing.id, pending=pending)
        assert read(root) == versions(2, "new")
        assert tars(root) == versions(3, "old")
        assert unfinished_writes(root) == ()
        store_for(root).move(f"{writing.staging}/a-000000.tar", f"{root}/a-000000.tar")  # one is moved already
        assert read(root) == versions(2, "new")
        with pytest.raises(WriteError, match="not all moved"):
            writing.discard()
    assert read(root) == versions(2, "new")
    newest = finish_moves(root, load_generation(root))  # by anybody, when the writer has ended
    assert newest.pending == ()
    assert read(root) == tars(root) == versions(2, "new")
    assert writers(root) == set()


def test_moves_of_a_writer_that_is_alive_are_left_to_it(shm_path):
    root = str(shm_path)
    old_dataset(root)
    with Writing.begin(root, OVERWRITE) as writing:
        pending = stage_moves(writing, stage(writing))
        generation = name_tars(root, [], writer=writing.id, pending=pending)
        assert finish_moves(root, generation) == generation
        assert tars(root) == versions(3, "old")
        assert finish_moves(root, generation, writing=writing).pending == ()
        assert finish_moves(root, generation, writing=writing).pending == ()
        writing.discard()


def test_a_new_write_of_the_pattern_does_not_discard_tars_that_are_to_be_moved(shm_path):
    root = str(shm_path)
    old_dataset(root)
    writing = Writing.begin(root, OVERWRITE)
    name_tars(root, [], writer=writing.id, pending=stage_moves(writing, stage(writing)))
    die(writing)
    for _ in range(9):  # until the generation of that write is not kept
        name_tars(root, [f"b-{next(_NUMBERS)}.tar"])
    from shoal.shard import _commit

    _commit._load_known.cache_clear()
    os.unlink(f"{root}/{WRITING_FOLDER}/{writing.id}/rows-00000000")
    with Writing.begin(root, OVERWRITE, is_named=lambda path: False) as other:
        assert writers(root) == {writing.id, other.id}
        finish_moves(root, load_generation(root))
        assert {path: data for path, data in tars(root).items() if data.startswith(b"new")} == versions(2, "new")


def test_a_tar_that_somebody_wrote_meanwhile_is_not_removed(root):
    old_dataset(root)
    with Writing.begin(root, OVERWRITE) as writing:
        pending = stage_moves(writing, stage(writing), ["a-000002.tar"])
        put(f"{root}/a-000002.tar", b"of somebody")
        generation = name_tars(root, [], writer=writing.id, pending=pending)
        finish_moves(root, generation, writing=writing)
        assert tars(root) == {**versions(2, "new"), "a-000002.tar": b"of somebody"}


def test_lost_tars_and_damaged_lists_are_errors(shm_path):
    root = str(shm_path)
    old_dataset(root)
    with Writing.begin(root, OVERWRITE) as writing:
        with pytest.raises(ObjectNotFoundError):
            stage_moves(writing, ["a-000009.tar"])
        pending = stage_moves(writing, stage(writing))
        generation = name_tars(root, [], writer=writing.id, pending=pending)
        os.unlink(f"{root}/{WRITING_FOLDER}/{writing.id}/staging/a-000001.tar")
        with pytest.raises(ObjectNotFoundError, match="lost"):
            finish_moves(root, generation, writing=writing)
        moves = f"{root}/{WRITING_FOLDER}/{writing.id}/moves.json"
        data = get(moves)
        from shoal.shard import _writing

        other = encode_document({"moved": {}, "removed": {}})
        for bad in (data[:-1], data.replace(b"000000", b"000009"), encode_document({}), other):
            put(moves, bad)
            _writing._load_moves.cache_clear()
            for act in (
                lambda: finish_moves(root, generation, writing=writing),
                lambda: staged_url(root, generation, "a"),
            ):
                with pytest.raises(ManifestError):
                    act()
        assert load_generation(root).pending == generation.pending


def finish_all(root, endpoint=""):
    if endpoint:
        reach(endpoint)
    newest = finish_moves(root, load_generation(root))
    tell(str(len(newest.pending)))


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_several_processes_take_over_one_dead_writer(request, shm_path, kind):
    root = str(shm_path) if kind == "disk" else request.getfixturevalue("s3")
    endpoint = request.getfixturevalue("s3_endpoint") if kind == "s3" else ""
    old_dataset(root, 12)
    writing = Writing.begin(root, OVERWRITE)
    paths = stage(writing, 8)
    pending = stage_moves(writing, paths, [f"a-{number:06d}.tar" for number in range(12)])
    commit(root, lambda parent, _: replace(parent, metadata={"tars": paths}), writer=writing.id, pending=pending)
    writing.close()
    outputs = run_children(__file__, [("finish_all", root, endpoint)] * 4)
    assert "0\n" in outputs
    assert read(root) == tars(root) == versions(8, "new")
    assert load_generation(root).pending == ()
    assert writers(root) == set()


# -------------------------------------------------------------------------------------------------------------- kills


def warm():
    old_dataset("memory://warm")
    replace_tars("memory://warm")
    append_tar("memory://warm")


def die_in_overwrites(base, before):
    warm()
    tell(die_at_each_step(base, before, replace_tars))


def test_an_overwrite_that_is_killed_leaves_the_old_or_the_new_and_a_rerun_finishes_it(shm_path):
    (shm_path / "before").mkdir()
    old_dataset(str(shm_path / "before"))
    count = int(run_children(__file__, [("die_in_overwrites", shm_path / "runs", shm_path / "before")])[0])
    assert count > times(25, 50)
    seen = []
    for number in range(count + 1):
        root = str(shm_path / "runs" / str(number))
        found = read(root)
        assert found in (versions(3, "old"), versions(2, "new"))
        seen.append(len(found))
        if number % 2:
            finish_moves(root, load_generation(root))
        replace_tars(root)
        assert read(root) == tars(root) == versions(2, "new")
        assert writers(root) == set()
        assert unfinished_writes(root) == ()
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {2, 3}


def append_tar(root):
    """Add a tar to a dataset, as an append does; resumed where one was interrupted."""
    with Writing.resume(root, APPEND) as writing:
        if not is_committed(root, load_generation(root) or NO_GENERATION, writing.id):
            records = writing.finished()
            if not records:
                path = next(path for path in map("a-{:06d}.tar".format, itertools.count()) if writing.reserve(path))
                put(f"{root}/{path}", b"appended")
                writing.add(*record_of(path))
                records = writing.finished()
            name_tars(root, [record.path for record in records], writer=writing.id)
        writing.discard()


def die_in_appends(base, before):
    warm()
    tell(die_at_each_step(base, before, append_tar))


def test_an_append_that_is_killed_leaves_no_tar_that_no_generation_names(shm_path):
    (shm_path / "before").mkdir()
    paths = old_dataset(str(shm_path / "before"))
    count = int(run_children(__file__, [("die_in_appends", shm_path / "runs", shm_path / "before")])[0])
    assert count > times(15, 30)
    for number in range(count + 1):
        root = str(shm_path / "runs" / str(number))
        for is_discarded in (True, False):
            copy = f"{root}-{is_discarded}"
            shutil.copytree(root, copy)
            if is_discarded:
                Writing.begin(copy, APPEND, is_named=named(copy).__contains__).discard()
                assert named(copy) in (paths, [*paths, "a-000003.tar"])
                assert sorted(tars(copy)) == named(copy)
            append_tar(copy)
            assert sorted(tars(copy)) == named(copy)
            assert all(data in (b"appended", f"old {path}".encode()) for path, data in tars(copy).items())
            assert set(paths) < set(named(copy))
            assert writers(copy) == set()


# ------------------------------------------------------------------------------------------------------ symbolic links


@pytest.mark.parametrize("link", ["", "/{id}", "/{id}/staging", "/{id}/lock"])
def test_nothing_behind_a_symbolic_link_is_written_moved_or_removed(shm_path, link):
    root, outside = shm_path / "data", shm_path / "outside"
    old_dataset(str(root))
    writing = Writing.begin(str(root), OVERWRITE)
    pending = stage_moves(writing, stage(writing), ["a-000002.tar"])
    generation = name_tars(str(root), [], writer=writing.id, pending=pending)
    die(writing)
    place = root / (WRITING_FOLDER + link.format(id=writing.id))
    place.unlink() if link.endswith("lock") else place.rename(outside)
    target = shm_path / "nowhere" if link.endswith("lock") else outside
    place.symlink_to(target)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    for act in (
        lambda: finish_moves(str(root), generation),
        lambda: put(f"{writing.staging}/b.tar", b"new"),
        lambda: Writing.resume(str(root), OVERWRITE).discard(),
        lambda: Writing.begin(str(root), WRITE, is_named=lambda path: False).discard(),
        lambda: collect_garbage(str(root)),
    ):
        with contextlib.suppress(ShoalError):
            act()
        assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
        assert not (shm_path / "nowhere").exists()


run_if_child(globals())
