"""Opening a remote dataset: independent requests are made in parallel, and none is made twice."""

from __future__ import annotations

import os
import threading

import pytest
from tests.store.servers import BUCKET, ProxyHandler, fault_proxy
from tests.store.test_remote_reading import SHARDS, difference, same, samples, write

import shoal
from shoal import store
from shoal.errors import ObjectNotFoundError
from shoal.store import StoreSnapshot, configure, prefetch_small_object, store_for


class _Together(ProxyHandler):
    """Answers to a folder and to the beginning of a shard when the manifest and an index have been asked for too."""

    def serve(self, fault, body):
        server = self.server
        for name, event in server.asked.items():
            if name in self.path:
                event.set()
        if "list-type" in self.path:
            server.came.append(server.asked["manifest.json"].wait(20))
        elif self.headers.get("Range") == "bytes=0-511":
            server.came.append(server.asked[".arrow"].wait(20))
        return super().serve(fault, body)


def test_what_does_not_need_each_other_is_asked_for_at_once(s3, s3_endpoint):
    write(s3)
    asked = {"manifest.json": threading.Event(), ".arrow": threading.Event()}
    with fault_proxy(s3_endpoint, _Together, asked=asked, came=[]) as proxy:
        configure(f"s3://{BUCKET}", endpoint=proxy.url)
        found, done = difference(lambda: list(shoal.Dataset(s3)))
    assert same(found, samples())
    assert proxy.came == [True] * (1 + SHARDS)
    assert dict(done.requests) == {"LIST": 1, "GET": 1 + 3 * SHARDS}


def test_one_request_at_a_time_is_enough(s3):
    write(s3)
    configure(max_in_flight=1)
    assert same(list(shoal.Dataset(s3)), samples())


def test_an_object_that_is_asked_for_early_is_read_once(s3):
    store.put(f"{s3}/a", b"0123")

    def read():
        with prefetch_small_object(f"{s3}/a"):
            return store_for(s3).read_all(f"{s3}/a"), store_for(s3).read_all(f"{s3}/a")

    found, done = difference(read)
    assert found == (b"0123", b"0123")
    assert dict(done.requests) == {"GET": 1}


def test_an_object_that_comes_after_it_was_asked_for_is_seen(s3):
    with prefetch_small_object(f"{s3}/a"):
        store.put(f"{s3}/a", b"0123")
        assert store_for(s3).read_all(f"{s3}/a") == b"0123"
    with prefetch_small_object(f"{s3}/b"), pytest.raises(ObjectNotFoundError):
        store_for(s3).read_all(f"{s3}/b")


def test_another_process_does_not_wait_for_what_this_one_began(s3, monkeypatch):
    store.put(f"{s3}/a", b"0123")
    glance = StoreSnapshot()
    glance.begin(f"{s3}/a", store.get)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert glance.begun(f"{s3}/a") is None
