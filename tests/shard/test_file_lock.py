"""Locks on files: who has one, who is refused, and what is left of them when processes die, fork or may not write."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scale import times
from tests.shard.children import run_children, run_if_child, started, tell

from shoal.errors import AccessDeniedError, ObjectNotFoundError, StoreError, StoreTimeoutError
from shoal.shard import _file_lock
from shoal.shard._file_lock import lock_file, try_lock_file

PROCESSES = 4
INCREMENTS = times(50, 2000)


def is_free(path, **options):
    lock = try_lock_file(str(path), **options)
    if lock is not None:
        lock.close()
    return lock is not None


# ------------------------------------------------------------------------------------------------- who has the lock


@pytest.mark.parametrize(
    "first, second, both",
    [(False, False, False), (False, True, False), (True, False, False), (True, True, True)],
)
def test_only_shared_locks_are_held_by_several(tmp_path, first, second, both):
    path = str(tmp_path / "deep" / "lock")
    with lock_file(path, shared=first) as lock:
        assert lock.is_real
        assert is_free(path, shared=second) is both
    assert is_free(path)


@given(st.lists(st.tuples(st.sampled_from(["share", "take", "close"]), st.integers(0, 3)), max_size=30))
def test_any_sequence_of_locks_is_that_of_a_lock_for_readers_and_writers(tmp_path_factory, steps):
    path = str(tmp_path_factory.mktemp("lock") / "lock")
    locks = {}
    with contextlib.ExitStack() as stack:
        for action, owner in steps:
            if owner in locks:
                locks.pop(owner)[1].close()
            elif action != "close":
                others = [kind for kind, _ in locks.values()]
                lock = try_lock_file(path, shared=action == "share")
                assert (lock is not None) == (not others or (action == "share" and "take" not in others))
                if lock is not None:
                    locks[owner] = action, stack.enter_context(lock)
    assert is_free(path)


def increment(path, count):
    for _ in range(int(count)):
        with lock_file(f"{path}.lock"):
            with open(path, encoding="ascii") as file:
                number = int(file.read())
            with open(path, "w", encoding="ascii") as file:
                file.write(str(number + 1))


def test_processes_that_wait_for_a_lock_have_it_one_after_the_other(tmp_path):
    (tmp_path / "number").write_text("0", "ascii")
    run_children(__file__, [("increment", tmp_path / "number", INCREMENTS)] * PROCESSES)
    assert (tmp_path / "number").read_text("ascii") == str(PROCESSES * INCREMENTS)


def test_waiting_ends_with_an_error_that_names_the_file(tmp_path):
    path = str(tmp_path / "lock")
    with lock_file(path, shared=True), pytest.raises(StoreTimeoutError) as error:
        lock_file(path, timeout_s=0.01)
    assert error.value.found == path
    assert is_free(path)


# ------------------------------------------------------------------------------------------------- death and children


def hold(path, shared):
    with lock_file(path, shared=shared == "shared"):
        tell()
        signal.pause()


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_the_lock_of_a_process_that_is_killed_is_free(tmp_path, kind):
    path = str(tmp_path / "lock")
    with started(__file__, "hold", path, kind) as child:
        assert not is_free(path)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert is_free(path)


def fork_and_close(path, who, in_children):
    """Lock a file, fork, and close the lock in the parent, in the child, or in neither; both live on."""
    lock, (ready, is_ready) = lock_file(path), os.pipe()
    if (child := os.fork()) == 0:
        if who == "child":
            lock.close(in_children=in_children == "yes")
        os.write(is_ready, b".")
        signal.pause()
    os.read(ready, 1)
    if who == "parent":
        lock.close(in_children=in_children == "yes")
    tell(child)
    signal.pause()


@pytest.mark.parametrize(
    "who, in_children, is_released",
    [("parent", "yes", True), ("parent", "no", False), ("child", "yes", False), ("child", "no", False)],
)
def test_only_who_locked_a_file_unlocks_it_for_forked_processes(tmp_path, who, in_children, is_released):
    path = str(tmp_path / "lock")
    with started(__file__, "fork_and_close", path, who, in_children) as child:
        assert is_free(path) is is_released
        os.kill(int(child.told), signal.SIGKILL)


def test_a_forked_process_keeps_the_lock_of_a_parent_that_is_killed(tmp_path):
    path = str(tmp_path / "lock")
    with started(__file__, "fork_and_close", path, "nobody", "no") as child:
        forked = int(child.told)
        child.kill()
        child.wait()
        assert not is_free(path)
        os.kill(forked, signal.SIGKILL)
        with lock_file(path):  # once the system has ended it
            pass


# -------------------------------------------------------------------------------------- what cannot be opened or locked


def test_a_file_that_is_not_created_must_exist(tmp_path):
    for path in (tmp_path / "none", tmp_path / "none" / "lock"):
        with pytest.raises(ObjectNotFoundError):
            try_lock_file(str(path), create=False)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectNotFoundError):
        try_lock_file(str(tmp_path / "file" / "lock"), create=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_locking_does_not_change_a_file(tmp_path):
    (tmp_path / "document").write_bytes(b"{}")
    before = (tmp_path / "document").stat()
    assert is_free(tmp_path / "document")
    assert is_free(tmp_path / "document", create=False)
    after = (tmp_path / "document").stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)


def test_a_lock_is_never_created_behind_a_symbolic_link(tmp_path):
    (tmp_path / "there").write_bytes(b"")
    for name in ("there", "nowhere"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
        with pytest.raises(StoreError):
            try_lock_file(str(tmp_path / f"to-{name}"))
    assert not (tmp_path / "nowhere").exists()
    # But caches keep documents elsewhere, and readers lock those.
    with try_lock_file(str(tmp_path / "to-there"), shared=True, create=False):
        assert not is_free(tmp_path / "there")


def lock_as_another_user(path):
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    with try_lock_file(f"{path}/document", shared=True, create=False) as lock:
        tell(f"{lock.is_real}")
    try:
        lock_file(f"{path}/lock")
    except AccessDeniedError as error:
        tell(f"denied {error.found}")


def test_a_reader_who_may_not_write_locks_documents_and_is_told_what_it_may_not_do():
    with tempfile.TemporaryDirectory() as name:  # whose parents others may enter, unlike those of tmp_path
        folder = pathlib.Path(name)
        (folder / "document").write_bytes(b"{}")
        (folder / "document").chmod(0o444)
        folder.chmod(0o555)
        try:
            output = run_children(__file__, [("lock_as_another_user", folder)])
        finally:
            folder.chmod(0o755)
    assert output == [f"True\ndenied {folder}/lock\n"]


def test_a_lock_knows_that_its_file_was_deleted(tmp_path):
    with lock_file(str(tmp_path / "lock")) as lock:
        assert not lock.is_deleted
        (tmp_path / "lock").unlink()
        assert lock.is_deleted


def test_where_other_machines_do_not_see_a_lock_it_is_not_real(tmp_path, monkeypatch):
    monkeypatch.setattr(_file_lock, "_is_local_only", lambda device: True)
    with lock_file(str(tmp_path / "lock")) as lock:
        assert not lock.is_real


@pytest.mark.parametrize(
    "line, is_local_only",
    [
        ("36 35 98:0 / / rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro", False),
        ("90 35 0:52 / /mnt rw,relatime shared:9 - nfs4 host:/data rw,vers=4.2,hard,proto=tcp,local_lock=none", False),
        ("90 35 0:52 / /mnt rw,relatime - nfs4 host:/data rw,vers=4.2,local_lock=none,addr=10.0.0.1", False),
        ("90 35 0:52 / /mnt rw,relatime shared:9 - nfs host:/data rw,vers=3,nolock,local_lock=all", True),
        ("90 35 0:52 / /mnt rw,relatime - nfs host:/data rw,vers=3,local_lock=flock", True),
        ("90 35 0:52 / /mnt rw,relatime - nfs host:/data rw,vers=3,local_lock=posix", False),
        ("90 35 0:52 / /scratch rw - lustre 10.0.0.1@tcp:/fs rw,flock,lazystatfs", False),
        ("90 35 0:52 / /scratch rw - lustre 10.0.0.1@tcp:/fs rw,localflock,lazystatfs", True),
        ("90 35 0:52 / /a\\040-\\040b rw shared:2 master:1 - tmpfs  rw,nolock", False),
    ],
)
def test_mount_options_say_whether_other_machines_see_locks(line, is_local_only):
    other = "22 1 8:1 / /other rw - ext4 /dev/sdb rw"
    device = line.split(" ")[2]
    assert _file_lock._devices_without_locks([other, f"{line}\n", other]) == ({device} if is_local_only else set())


run_if_child(globals())
