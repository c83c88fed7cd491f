"""Who may look: those with the token, by the server's own name, from its own pages."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

import shoal
from shoal.errors import OptionError, StoreError
from shoal.viewer import viewing

SAID = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("guard") / "small"
    with shoal.ShardWriter(f"{root}/a-%06d.tar") as writer:
        writer.write({"__key__": "a", "txt": "for your eyes only", "mp3": b"ID3" + bytes(5000), "json": {"n": 1}})
    return root


@pytest.fixture(scope="module")
def address(small):
    with viewing(str(small), token="the-token") as address:
        yield address


def ask(address, path="/", method="GET", host=None, **headers):
    port = urlsplit(address.url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read().decode("utf-8", "replace"),
        )
    finally:
        connection.close()


def cookie(address, token="the-token"):
    return f"shoal-{urlsplit(address.url).port}={token}"


PLACES = [
    "/",
    "/sample/0",
    "/columns",
    "/facets",
    "/shards",
    "/schema",
    "/lenses",
    "/build",
    "/build/state",
    "/suggest",
    "/nowhere",
]
PLACES += [
    "/picture/0?field=txt",
    "/bytes/0?field=mp3",
    "/bytes/0?field=txt&download=1",
    "/peek/0?field=txt",
    "/drawing/0?field=txt",
]


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_told_without_the_token(address, place):
    for headers in ({}, {"Cookie": cookie(address, "wrong")}, {"Cookie": "shoal-1=the-token"}, {"Cookie": "\x01=;;"}):
        status, said, text = ask(address, place, **headers)
        assert status == 403
        assert "eyes" not in text
        assert "small" not in text
        assert SAID.items() <= said.items()
    assert ask(address, f"{place}{'&' if '?' in place else '?'}token=the-toke")[0] == 403


@pytest.mark.parametrize("place", PLACES)
def test_every_answer_has_the_headers_that_keep_it_harmless(address, place):
    status, said, text = ask(address, place, Cookie=cookie(address))
    assert status in (200, 404, 422)
    assert SAID.items() <= said.items()
    policy = said["content-security-policy"]
    assert "default-src 'none'" in policy
    assert not re.search(
        "unsafe|http:|https:|\\*|data:",
        policy.replace("style-src 'unsafe-inline'", "") if "sandbox" in policy else policy,
    )
    if said["content-type"].startswith("text/html"):
        assert "script-src 'self'" in policy
        assert not re.search(r"\son\w+=|\sstyle=|javascript:", text)


def test_the_link_gives_a_cookie_and_loses_the_token(address):
    status, said, _ = ask(address, "/sample/0?where=n%20%3D%201&token=the-token")
    assert (status, said["location"]) == (303, "/sample/0?where=n+%3D+1")
    assert said["set-cookie"] == f"{cookie(address)}; HttpOnly; SameSite=Lax; Path=/"
    status, said, _ = ask(address, "//evil.example/?token=the-token")
    assert (status, said["location"]) == (303, "/evil.example/")


def test_another_name_for_this_address_is_refused(address):
    port = urlsplit(address.url).port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        "localhost:1",
        f"127.0.0.1.evil.example:{port}",
        "",
    ):
        status, _, text = ask(address, "/", host=host or "x", Cookie=cookie(address))
        assert status == 421
        assert "eyes" not in text
    for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
        assert ask(address, "/", host=host, Cookie=cookie(address))[0] == 200


def test_other_sites_can_neither_embed_nor_verify(address):
    mine = {"Cookie": cookie(address)}
    assert ask(address, "/picture/0?field=txt", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors", **mine)[0] == 403
    assert ask(address, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate", **mine)[0] == 200
    assert ask(address, "/shards/0/verify", **mine)[0] == 405
    assert ask(address, "/shards/0/verify", method="POST", Content_Length="0", **mine)[0] == 200
    assert ask(address, "/shards/7/verify", method="POST", Content_Length="0", **mine)[0] == 404


def test_ranges_are_answered_as_asked(address):
    def part(asked):
        status, said, text = ask(address, "/bytes/0?field=mp3", Cookie=cookie(address), Range=asked)
        return status, said.get("content-range"), len(text)

    assert part("bytes=0-2") == (206, "bytes 0-2/5003", 3)
    assert part("bytes=-3") == (206, "bytes 5000-5002/5003", 3)
    assert part("bytes=5000-99999") == (206, "bytes 5000-5002/5003", 3)
    assert part("bytes=5003-") == (416, "bytes */5003", 0)
    assert part("bytes=a-b") == (200, None, 5003)
    assert ask(address, "/bytes/0?field=txt", Cookie=cookie(address))[0] == 500  # no sound: only as a download


def test_who_can_reach_it_is_said(small):
    with viewing(str(small), share="0.0.0.0") as shared:
        assert "any network" in shared.reach
        port = urlsplit(shared.url).port
        token = f"shoal-{port}={shared.url.rpartition('=')[2]}"
        assert ask(shared, "/", Cookie=token)[0] == 200
        assert ask(shared, "/", host=f"10.9.8.7:{port}", Cookie=token)[0] == 200  # an address is nobody's to redirect
        assert ask(shared, "/", host=f"evil.example:{port}", Cookie=token)[0] == 421
        assert ask(shared, "/")[0] == 403
    with viewing(str(small), share="127.0.0.2") as shared:
        assert shared.url.startswith("http://127.0.0.2:")
    with pytest.raises(OptionError, match="no address"), viewing(str(small), share="everyone"):
        pass
    with pytest.raises(StoreError, match="cannot be used"), viewing(str(small), share="203.0.113.7"):
        pass


def test_the_command_prints_the_link_and_stops_at_ctrl_c(small):
    command = [
        sys.executable,
        "-c",
        "import sys; from shoal.cli import main; sys.exit(main())",
        "view",
        str(small),
        "--json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                text += process.stdout.readline()
            said = json.loads(text)
            assert said["reach"] == "Only this machine can reach it."
            path = said["url"].partition("/?")[2]
            port = urlsplit(said["url"]).port
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", f"/?{path}")
            assert connection.getresponse().status == 303
            connection.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
