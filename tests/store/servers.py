"""Servers on loopback that the stores are tested against: a real S3, a plain HTTP one, a proxy that breaks things."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
import struct
import subprocess
import sysconfig
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from obstore.store import S3Store
from tests.ports import free_ports

ACCESS_KEY, SECRET_KEY, BUCKET = "shoal-access", "shoal-secret-9137", "shoal-tests"


# ------------------------------------------------------------------------------------------------------------ SeaweedFS


@contextlib.contextmanager
def seaweed():
    """A SeaweedFS of our own: yields its S3 endpoint."""
    folder = tempfile.mkdtemp(prefix="weed-", dir=_where_there_is_room())
    names = ["master", "volume", "filer", "s3", "admin"]
    ports = free_ports(2 * len(names))
    command = [os.path.join(sysconfig.get_path("scripts"), "weed"), "-logtostderr=true", "mini", f"-dir={folder}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false"]
    command += ["-master.telemetry=false", "-admin.ui=false", f"-bucket={BUCKET}"]
    for number, name in enumerate(names):
        command += [f"-{name}.port={ports[2 * number]}", f"-{name}.port.grpc={ports[2 * number + 1]}"]
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    # Its sockets go into the temporary folder, and SIGKILL leaves them there.
    environment = {**os.environ, **keys, "GOMEMLIMIT": "512MiB", "TMPDIR": folder}
    endpoint = f"http://127.0.0.1:{ports[2 * names.index('s3')]}"
    with open(os.path.join(folder, "log"), "w+b") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            _wait_until_healthy(endpoint, server, log)
            _make_bucket(endpoint)
            yield endpoint
        finally:
            server.kill()
            server.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _where_there_is_room():
    """Memory, where there is enough of it; else the folder for temporary files.

    When less than a hundredth of its disk is free, SeaweedFS starts all the same, is healthy, and answers the first
    object with status 500, after 30 seconds.
    """
    if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 3 << 30:
        return "/dev/shm"
    disk = shutil.disk_usage(tempfile.gettempdir())
    if disk.free < 0.01 * disk.total:
        raise RuntimeError(f"SeaweedFS takes no objects when the disk is this full: {disk}; free some, or set TMPDIR")
    return None


def _make_bucket(endpoint):
    """It is made some time after the server is up, or by the first object in it."""
    facts = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
    S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True}, **facts).put("ready", b"!")


def _wait_until_healthy(endpoint, server, log):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    ends = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < ends:
        with contextlib.suppress(OSError), opener.open(f"{endpoint}/healthz", timeout=1):
            return
        threading.Event().wait(0.05)
    log.seek(0)
    raise RuntimeError(log.read()[-2000:].decode(errors="replace"))


# ----------------------------------------------------------------------------------------------------------------- HTTP


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A client that hangs up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    wbufsize = 1 << 16  # headers and body in one packet: two would wait for each other

    def log_message(self, *args):
        """Tests look at `requests`, not at stderr."""

    def answer(self, status, headers, body=b"", length=None):
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body) if length is None else length)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def serving(handler, **attributes):
    """Serve until the block ends; yields the server, which has the attributes and a `url`."""
    server = _Server(("127.0.0.1", 0), handler)
    for name, value in attributes.items():
        setattr(server, name, value)
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class RangedHandler(_Handler):
    """Serves ``server.objects`` by path, with ranges and conditions; ``server.quirks`` says what it cannot do."""

    def do_HEAD(self):
        if "no-head" in self.server.quirks:
            self.answer(405, {})
        else:
            self.do_GET()

    def do_GET(self):
        parts = urlsplit(self.path)
        wanted = self.server.secret
        if wanted is not None and parts.query != wanted and self.headers.get("Authorization") != wanted:
            return self.answer(401, {})
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))
        data = self.server.objects.get(unquote(parts.path))
        if data is None:
            return self.answer(404, {})
        return self.send_object(data)

    def send_object(self, data):
        headers = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if "no-etag" not in self.server.quirks:
            weak = "W/" if "weak-etag" in self.server.quirks else ""
            headers["ETag"] = f'{weak}"{hashlib.md5(data).hexdigest()}"'
        if self.headers.get("If-Match") not in (None, headers.get("ETag")):
            return self.answer(412, {})
        asked = self.headers.get("Range")
        if asked is None or "no-ranges" in self.server.quirks:
            return self.answer(200, headers, data)
        low, _, high = asked.removeprefix("bytes=").partition("-")
        start, stop = int(low), min(int(high or len(data)) + 1, len(data))
        if start >= len(data):
            return self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return self.answer(206, headers, data[start:stop])


def ranged_server():
    return serving(RangedHandler, objects={}, requests=[], quirks=set(), secret=None)


# --------------------------------------------------------------------------------------------------------------- faults


@dataclass
class Fault:
    """What goes wrong with the next ``times`` requests of a method whose path has ``path`` in it."""

    kind: str
    method: str = "GET"
    path: str = ""
    times: int = 1
    after: int = 0
    """How many bytes of the body still come."""
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class ProxyHandler(_Handler):
    """Passes requests on to ``server.upstream``, unless a fault of ``server.faults`` is due."""

    def handle_any(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with server.lock:
            server.requests.append((self.command, self.path, self.headers.get("Range"), time.monotonic()))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            fault = self.due()
        self.is_counted = True
        try:
            self.serve(fault, body)
        finally:
            self.count_out()

    def count_out(self):
        """The client may ask again as soon as it has the last byte, so a request ends just before its answer."""
        with self.server.lock:
            self.server.at_once -= self.is_counted
            self.is_counted = False

    def answer(self, *args):
        self.count_out()
        super().answer(*args)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def due(self):
        for fault in self.server.faults:
            if fault.times > 0 and fault.method == self.command and fault.path in self.path:
                fault.times -= 1
                self.server.happened[fault.kind] += 1
                return fault
        return None

    def serve(self, fault, body):
        if fault is not None and fault.kind == "status":
            return self.answer(fault.status, fault.headers, b"<Error><Code>SlowDown</Code></Error>")
        if fault is not None and fault.kind == "hang":
            self.server.over.wait(fault.seconds)
            return self.hang_up()
        if fault is not None and fault.kind == "latency":
            self.server.over.wait(fault.seconds)
        status, headers, data, length = self.ask_upstream(body)
        if fault is None or fault.kind == "latency":
            return self.answer(status, headers, data, length)
        return self.spoil(fault, status, headers, data)

    def ask_upstream(self, body):
        connection = http.client.HTTPConnection(self.server.upstream, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            hop = {"connection", "transfer-encoding", "content-length", "keep-alive"}
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in hop}
            length = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
            return answer.status, headers, data, length or 0
        finally:
            connection.close()

    def spoil(self, fault, status, headers, data):
        if fault.kind == "other-etag":
            others = {name: value for name, value in headers.items() if name.lower() != "etag"}
            return self.answer(status, {**others, "ETag": '"0123456789abcdef"'}, data)
        if fault.kind == "fewer-bytes":  # the headers agree with the body, but it is not what was asked for
            return self.answer(status, headers, data[: fault.after])
        if fault.kind == "drip":
            return self.drip(fault, status, headers, data)
        self.answer(status, headers, data[: fault.after], len(data))
        self.wfile.flush()
        return self.hang_up(reset=fault.kind == "reset")

    def drip(self, fault, status, headers, data):
        self.answer(status, headers, data[: fault.after], len(data))
        for at in range(fault.after, len(data)):
            if self.server.over.wait(fault.seconds):
                break
            self.wfile.write(data[at : at + 1])
            self.wfile.flush()
        return self.hang_up()

    def hang_up(self, reset=False):
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        if reset:
            self.connection.close()


@contextlib.contextmanager
def fault_proxy(endpoint, handler=ProxyHandler, **more):
    """A proxy before an endpoint: yields the server, whose `faults` happen to the requests that pass."""
    over = threading.Event()
    facts = {"upstream": endpoint.removeprefix("http://"), "faults": [], "requests": [], "happened": Counter(), **more}
    with serving(handler, lock=threading.Lock(), at_once=0, most_at_once=0, over=over, **facts) as server:
        try:
            yield server
        finally:
            over.set()  # whoever drips or hangs stops
