"""Child processes for tests of locks and commits: they work at the same time, or are killed at each step in turn.

A test's file is also the program that its children run: ``run_if_child(globals())`` at its end calls the function that
they are given by name, with arguments that are text.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.scale import times
from tests.store.settings import keys

__all__ = ["die_at_each_step", "kill_at_step", "reach", "run_children", "run_if_child", "started", "tell"]

_ROOT = Path(__file__).parents[2]
_STEPS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "fcntl.flock"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _start(file, function, *arguments, **pipes):
    """Start the program, with the same modules as this process."""
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", ""), str(_ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-W", "ignore", file, function, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **pipes)


@contextlib.contextmanager
def started(file, function, *arguments):
    """Run a function in a process, from the moment at which it calls `tell`; it is killed at the end of the block."""
    child = _start(file, function, *arguments)
    try:
        with child.stdout:
            child.told = child.stdout.readline().strip()
            assert child.told, f"{function} ended with status {child.wait()}"
            yield child
            child.kill()
    finally:
        child.kill()
        child.wait()


def tell(line="ready"):
    print(line, flush=True)


def run_children(file, calls):
    """Run functions, each with its arguments, at the same time; return what they told. All must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        child = _start(file, "fork_all", folder, json.dumps([list(map(str, call)) for call in calls]))
        child.communicate()
        assert child.returncode == 0
        return [(Path(folder) / str(number)).read_text("utf-8") for number in range(len(calls))]


def _fork_all(functions, folder, calls):
    """Call each function in a fork, which takes less time than a program for each."""
    children = []
    for number, (function, *arguments) in enumerate(json.loads(calls)):
        child = os.fork()
        if child == 0:
            with open(os.path.join(folder, str(number)), "w", encoding="utf-8") as sys.stdout:
                functions[function](*arguments)
            sys.exit()
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def kill_at_step(number):
    """Kill this process before the n-th file that it opens for writing, renames or removes, folder or lock."""
    steps = itertools.count()

    def look(event, arguments):
        is_step = event in _STEPS or (event == "open" and arguments[2] & _WRITING)
        if is_step and next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def die_at_each_step(base, before, action, *, every=2):
    """Call ``action`` on copies ``base/0``, ``base/1`` ... of a folder, in forks that die later each time.

    They die at each step in ``make soak``, else at some. Returns how many died. Another end than by the
    signal, or at last in success, is an error.
    """
    os.makedirs(base)
    for count in itertools.count():
        root = os.path.join(base, str(count))
        shutil.copytree(before, root, symlinks=True)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                kill_at_step(count * times(every, 1))
                action(root)
                status = 0
            except BaseException as error:  # noqa: BLE001 - the parent must see it
                print("unexpected:", repr(error), file=sys.stderr, flush=True)
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            assert status == 0, status
            return count
    return None


def reach(endpoint):
    """Let this process use the S3 server of the tests."""
    from tests.store.servers import BUCKET

    from shoal.store import configure

    configure(f"s3://{BUCKET}", endpoint=endpoint, region="us-east-1", credential_provider=keys, timeout=30)


def run_if_child(functions):
    if functions["__name__"] == "__main__" and sys.argv[1] == "fork_all":
        _fork_all(functions, *sys.argv[2:])
    elif functions["__name__"] == "__main__":
        functions[sys.argv[1]](*sys.argv[2:])
