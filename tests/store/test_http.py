"""Large ranges over HTTP: responses that break, hang or are refused, and servers of many kinds."""

from __future__ import annotations

import random
import time

import pytest
from tests.store.servers import Fault, RangedHandler, serving

from shoal.errors import ObjectChangedError, ObjectNotFoundError, StoreTimeoutError
from shoal.store import configure, put, statistics, store_for
from shoal.store._http import parse_retry_after

DATA = random.Random(11).randbytes(3_000_000)


def paths_asked(proxy):
    return [path for method, path, _, _ in proxy.requests if method == "GET"]


def read_twice(url):
    reader = store_for(url).open(url)
    same = [reader.read(7, len(DATA)) == DATA[7:], b"".join(reader.stream(0, len(DATA))) == DATA]
    reader.close()
    return same


@pytest.mark.parametrize("kind", ["reset", "cut", "fewer-bytes"])
@pytest.mark.parametrize("after", [0, 1, 1_700_000, len(DATA) - 1])
def test_a_body_that_breaks_is_taken_up_where_it_broke(proxy, url, kind, after):
    reader = store_for(url).open(url)
    proxy.requests.clear()
    proxy.faults.append(Fault(kind, after=after))
    same = b"".join(reader.stream(0, len(DATA))) == DATA
    assert same
    first, second = [asked for method, _, asked, _ in proxy.requests if method == "GET"]
    begin = int(second.removeprefix("bytes=").partition("-")[0])
    assert first == f"bytes=0-{len(DATA) - 1}"
    assert begin <= after
    assert begin > 0 or after < 2 or kind == "reset"  # a reset takes those along that were not read yet
    reader.close()


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_a_server_that_does_not_go_on_is_given_up(proxy, url, kind):
    configure(url, timeout=0.4, retries=0)
    reader = store_for(url).open(url)
    proxy.faults.append(Fault(kind, after=1000, seconds=0.05 if kind == "drip" else 60))
    start = time.monotonic()
    with pytest.raises(StoreTimeoutError):
        reader.read(0, len(DATA))
    assert time.monotonic() - start < 10
    reader.close()


def test_an_object_replaced_meanwhile_is_an_error(proxy, url):
    reader = store_for(url).open(url)
    put(url, DATA[::-1])
    with pytest.raises(ObjectChangedError):
        reader.read(0, len(DATA))
    reader.close()
    reader = store_for(url).open(url)
    proxy.faults.append(Fault("other-etag"))
    with pytest.raises(ObjectChangedError):
        reader.read(0, len(DATA))
    reader.close()


def test_what_came_is_counted(url):
    reader = store_for(url).open(url)
    before = statistics()
    pieces = list(reader.stream(0, 2_000_000))
    since = statistics() - before
    assert len(pieces) > 1
    assert (since.requests, since.bytes_read, since.retries) == ({"GET": 1}, 2_000_000, 0)
    reader.close()


def test_a_stream_that_is_left_leaves_nothing_open(url):
    reader = store_for(url).open(url)
    stream = reader.stream(0, len(DATA))
    next(stream)
    stream.close()
    assert statistics().in_flight == 0
    same = reader.read(0, len(DATA)) == DATA
    assert same
    reader.close()


def test_an_object_that_is_not_there_is_not_asked_for_twice(proxy, url):
    reader = store_for(url).open(url)
    store_for(url).delete(url)
    proxy.requests.clear()
    with pytest.raises(ObjectNotFoundError):
        reader.read(0, len(DATA))
    assert len(paths_asked(proxy)) == 1
    reader.close()


class _Closing(RangedHandler):
    """Closes every connection and does not say so."""

    def answer(self, *args, **options):
        super().answer(*args, **options)
        self.close_connection = True


class _Sending(RangedHandler):
    """Sends everybody on."""

    def do_GET(self):
        if self.path.startswith("/here"):
            return self.answer(307, {"Location": self.path.removeprefix("/here")})
        return super().do_GET()


@pytest.mark.parametrize("handler", [_Closing, _Sending, RangedHandler])
@pytest.mark.parametrize("quirks", [set(), {"no-ranges"}, {"no-etag"}])
def test_servers_of_many_kinds_are_read(handler, quirks):
    name = "/here/a.bin" if handler is _Sending else "/a.bin"
    with serving(handler, objects={"/a.bin": DATA}, requests=[], quirks=quirks, secret=None) as server:
        before = statistics()
        assert read_twice(f"{server.url}{name}") == [True, True]
        assert (statistics() - before).retries <= 2 * (handler is _Closing)  # obstore uses a closed connection again


def test_a_name_that_would_have_to_be_quoted_is_read():
    objects = {"/ä b.bin": DATA}
    with serving(RangedHandler, objects=objects, requests=[], quirks=set(), secret=None) as server:
        assert read_twice(f"{server.url}/ä b.bin") == [True, True]


def test_one_connection_serves_many_requests():
    class _Counting(RangedHandler):
        def setup(self):
            super().setup()
            self.server.connections.append(self.client_address)

    facts = {"objects": {"/a.bin": DATA}, "requests": [], "quirks": set(), "secret": None, "connections": []}
    with serving(_Counting, **facts) as server:
        reader = store_for(f"{server.url}/a.bin").open(f"{server.url}/a.bin")
        for _ in range(10):
            same = reader.read(0, len(DATA)) == DATA
            assert same
        assert len(server.requests) == 11
        assert len(server.connections) <= 4  # the HEAD, the ranges, and on a busy machine one or two that overlap
        reader.close()


def test_retry_after_is_seconds_or_a_date():
    from datetime import UTC, datetime

    now = datetime(2026, 1, 1, 0, 0, 0, tzinfo=UTC)
    assert parse_retry_after("Thu, 01 Jan 2026 00:00:07 GMT", now) == 7
    assert parse_retry_after("Thu, 01 Jan 2020 00:00:00 GMT", now) == 0
    assert (parse_retry_after("3"), parse_retry_after(None), parse_retry_after("soon")) == (3, None, None)
