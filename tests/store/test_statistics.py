"""Requests are counted, and can be logged."""

from __future__ import annotations

import csv
from datetime import datetime

import pytest
from tests.store.servers import SECRET_KEY, Fault

from shoal.errors import ObjectNotFoundError
from shoal.store import delete, get, op_log, put, stat, statistics, store_for
from shoal.store import list as list_objects

COLUMNS = ["idx", "thread", "op", "client_id", "n_objects", "bytes", "endpoint", "file", "error"]
COLUMNS += ["start", "first_byte", "end", "duration_ns"]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_every_request_is_a_row(s3, s3_endpoint, tmp_path):
    path = tmp_path / "log.tsv"
    with op_log(path):
        put(f"{s3}/a", b"hello")
        stat(f"{s3}/a")
        get(f"{s3}/a")
        list_objects(s3)
        with pytest.raises(ObjectNotFoundError):
            get(f"{s3}/none")
    delete(f"{s3}/a")
    found = rows(path)
    assert list(found[0]) == COLUMNS
    assert [(row["op"], row["bytes"], row["error"]) for row in found] == [
        ("PUT", "5", ""),
        ("HEAD", "0", ""),
        ("GET", "5", ""),
        ("LIST", "0", ""),
        ("GET", "0", "404 NoSuchKey"),
    ]
    assert [row["idx"] for row in found] == ["0", "1", "2", "3", "4"]
    assert {row["file"] for row in found} == {f"{s3}/a", s3, f"{s3}/none"}
    assert {row["endpoint"] for row in found} == {s3_endpoint}
    for row in found:
        times = [datetime.fromisoformat(row[name][:26] + "+00:00") for name in ("start", "first_byte", "end")]
        assert times == sorted(times)
        assert int(row["duration_ns"]) > 0
    assert SECRET_KEY not in path.read_text()


def test_a_second_log_ends_the_first(s3, tmp_path):
    first, second = op_log(tmp_path / "1"), op_log(tmp_path / "2")
    put(f"{s3}/a", b"x")
    first.close()
    second.close()
    second.close()
    put(f"{s3}/a", b"x")
    assert (len(rows(tmp_path / "1")), len(rows(tmp_path / "2"))) == (0, 1)


def test_a_name_cannot_break_a_row(s3, tmp_path, http):
    http.objects["/a\tb"] = b"x"
    with op_log(tmp_path / "log"):
        put(f"{s3}/a b", b"x")
    (row,) = rows(tmp_path / "log")
    assert row["file"] == f"{s3}/a b"


def test_requests_and_bytes_are_counted(s3):
    before = statistics()
    put(f"{s3}/a", bytes(1000))
    reader = store_for(s3).open(f"{s3}/a")
    reader.read_many([0, 10, 500], [10, 20, 600])
    done = statistics() - before
    assert done.requests == {"PUT": 1, "GET": 2}  # opening reads the first 512 bytes, which says as much as HEAD
    assert (done.bytes_written, done.bytes_read) == (1000, 512 + 600)
    assert (done.retries, done.errors, done.in_flight) == (0, 0, 0)
    assert done.seconds > 0


def test_repeated_requests_are_counted_as_such(proxy, broken):
    put(f"{broken}/a", bytes(1000))
    proxy.faults.append(Fault("status", status=500, times=2))
    before = statistics()
    get(f"{broken}/a")
    done = statistics() - before
    assert (done.requests, done.retries, done.errors, done.bytes_read) == ({"GET": 3}, 2, 2, 1000)
