"""Real servers for tests, bound to 127.0.0.1 at free ports, always stopped."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass

from tests.ports import free_port


def _wait_for(port, process, log, is_ready=lambda _: True):
    ends = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < ends:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            if is_ready(connection):
                return
        threading.Event().wait(0.01)
    log.seek(0)
    raise RuntimeError(log.read()[-2000:].decode(errors="replace"))


def _has_loaded(connection):
    """A Redis that was started again listens before it has read its data, and until then answers with an error."""
    connection.sendall(b"PING\r\n")
    return connection.recv(64).startswith(b"+PONG")


@dataclass
class RedisServer:
    """A Redis that can be stopped and started again on the same data."""

    folder: str
    port: int
    options: tuple[str, ...]
    process: subprocess.Popen | None = None

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder]
        with open(os.path.join(self.folder, "log"), "w+b") as log:
            self.process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log)
            _wait_for(self.port, self.process, log, _has_loaded)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def redis_server(*options):
    """By default one that writes every change down, as ours should."""
    with tempfile.TemporaryDirectory(prefix="shoal-redis-") as folder:
        server = RedisServer(folder, free_port(), options or ("--save", "", "--appendonly", "yes"))
        try:
            server.start()
            yield server
        finally:
            server.kill()


def _postgres_program(name):
    found = shutil.which(name) or max(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), default=None, key=_version_in)
    if found is None:
        raise RuntimeError(f"PostgreSQL's {name} is not installed; on Debian: apt-get install postgresql")
    return found


def _version_in(path):
    return int("".join(filter(str.isdigit, path.split("/")[4])) or 0)


@contextlib.contextmanager
def postgres_server():
    """Yields the URL of a new, empty database."""
    folder = tempfile.mkdtemp(prefix="shoal-postgres-")
    user = None
    if os.getuid() == 0:  # which PostgreSQL refuses to run as
        user = "postgres"
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    data, port = os.path.join(folder, "data"), free_port()
    run = {"user": user, "cwd": folder, "env": {**os.environ, "LC_ALL": "C.UTF-8"}}
    try:
        command = [_postgres_program("initdb"), "-D", data, "-A", "trust", "-U", "shoal", "--no-sync", "-E", "UTF8"]
        subprocess.run(command, check=True, capture_output=True, **run)
        settings = ("listen_addresses=127.0.0.1", f"port={port}", f"unix_socket_directories={folder}", "fsync=off")
        options = [word for setting in settings for word in ("-c", setting)]
        with open(os.path.join(folder, "log"), "w+b") as log:
            server = subprocess.Popen(
                [_postgres_program("postgres"), "-D", data, *options], stdout=log, stderr=log, **run
            )
            try:
                _wait_for(port, server, log)
                _wait_until_ready(port, run)
                yield f"postgresql://shoal@127.0.0.1:{port}/postgres"
            finally:
                server.send_signal(signal.SIGQUIT)  # at once, and its children with it
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(port, run):
    command = [_postgres_program("pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    for _ in range(600):
        if subprocess.run(command, capture_output=True, check=False, **run).returncode == 0:
            return
        threading.Event().wait(0.05)
    raise RuntimeError("PostgreSQL does not answer")
