"""A hub of each test's own, and the real client told to use it."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from tests.hub.server import TOKEN, serving

import shoal
from shoal.store import _huggingface, _options, _requests


def pytest_collection_modifyitems(items):
    """What the real client does with its own HTTP library is not ours to mend."""
    for item in items:
        if "hub" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"))


@pytest.fixture
def hub(monkeypatch):
    """A new local hub. In this process the client may reach it, with the token it gives: nothing else is reached.

    huggingface_hub reads its environment once, as it is imported, which may have been long ago; so its constants are
    set, and the endpoint is passed wherever one can be passed.
    """
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(_options, "_CHOSEN", {})
        monkeypatch.setattr(_requests, "_NOT_BEFORE", {})
        monkeypatch.setattr(_huggingface, "_LISTINGS", OrderedDict())
        yield server
        huggingface_hub.close_session()


def samples(split, count, size=2000):
    """Samples with bytes, JSON, text and a class; their bytes are the same each time."""
    for number in range(count):
        data = random.Random(f"{split}{number}").randbytes(size)
        facts = {"n": number, "split": split}
        yield {
            "__key__": f"{split}{number:05d}",
            "bin": data,
            "json": facts,
            "txt": f"word {number}",
            "cls": number % 3,
        }


def write(root, per_shard=10, size=2000, **splits):
    """A dataset with so many samples in each split."""
    for split, count in splits.items():
        with shoal.ShardWriter(f"{root}/{split}-%06d.tar", max_samples=per_shard) as writer:
            for sample in samples(split, count, size):
                writer.write(sample)
    return str(root)


def files_below(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path):
    """Thirty samples to train with in three shards, and eight to test."""
    return write(tmp_path / "data", train=30, test=8)


@pytest.fixture
def pets(hub, folder):
    """The URL of that dataset on the hub, put there without a client."""
    hub.add("tester/pets", files_below(Path(folder)))
    return "hf://datasets/tester/pets"


@pytest.fixture
def api(hub):
    """The real client of that hub."""
    return huggingface_hub.HfApi(endpoint=hub.url, token=TOKEN)


@pytest.fixture
def http_text(hub):
    """A server that answers everything with a page for people."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
