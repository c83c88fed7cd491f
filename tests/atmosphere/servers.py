"""A real PDS with a real PLC directory on loopback, and an AppView that answers the calls it is known by."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
from tests.ports import free_port
from tests.store.servers import _Handler, serving

HERE = Path(__file__).parent / "pds"
PASSWORD = "correct-horse-battery"
HTTP = httpx.Client(trust_env=False, timeout=30)


class _Process:
    """A server of serve.mjs: started, stopped, killed, by its own pid."""

    def __init__(self, *arguments):
        self._arguments = [str(argument) for argument in arguments]
        self._running = None

    def start(self):
        assert (HERE / "node_modules").is_dir(), "run `make test`, or `npm ci` in tests/atmosphere/pds"
        self._running = subprocess.Popen(
            ["node", "serve.mjs", *self._arguments],
            cwd=HERE,
            stdin=subprocess.PIPE,  # it ends when this does, however this process ends
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        first = self._running.stdout.readline()
        if not first.startswith(b"{"):
            rest = self._running.communicate()[0]
            raise RuntimeError((first + rest)[-3000:].decode(errors="replace"))

    def stop(self):
        """End it at once: nothing that it was at is finished."""
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
            self._running = None


@dataclass
class Pds:
    """A PDS beside its directory; it can be stopped and started again, and keeps its data."""

    plc: str
    folder: str
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    def __post_init__(self):
        self._process = _Process("pds", self.port, self.folder, self.plc, json.dumps(self.settings))
        self.sessions = {}
        """Of the accounts that were made: a login takes as long as many requests."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        self._process.start()

    def stop(self):
        self._process.stop()

    def account(self, handle):
        """Make an account; returns its DID."""
        facts = {"handle": handle, "email": f"{handle}@mail.test", "password": PASSWORD}
        answer = HTTP.post(f"{self.url}/xrpc/com.atproto.server.createAccount", json=facts)
        assert answer.status_code == 200, answer.text
        made = answer.json()
        session = ":::".join((handle, made["did"], made["accessJwt"], made["refreshJwt"], self.url))
        self.sessions[handle] = json.dumps({"service": self.url, "session": session})
        return made["did"]

    def xrpc(self, method, **params):
        """Ask without any of our code."""
        answer = HTTP.get(f"{self.url}/xrpc/{method}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def records_of(self, did):
        """Each record of an account, as JSON, by the server's own lists."""
        found = []
        for collection in self.xrpc("com.atproto.repo.describeRepo", repo=did)["collections"]:
            cursor = {}
            while cursor is not None:
                asked = {"repo": did, "collection": collection, "limit": 100, **cursor}
                page = self.xrpc("com.atproto.repo.listRecords", **asked)
                found += page["records"]
                cursor = {"cursor": page["cursor"]} if "cursor" in page else None
        return found


@contextlib.contextmanager
def plc_directory():
    port = free_port()
    process = _Process("plc", port)
    process.start()
    try:
        # By name: the server puts the directory's host into documents, where an address is none.
        yield f"http://localhost:{port}"
    finally:
        process.stop()


@contextlib.contextmanager
def personal_server(plc, **settings):
    folder = tempfile.mkdtemp(prefix="shoal-pds-")
    pds = Pds(plc, folder, settings)
    try:
        pds.start()
        yield pds
    finally:
        pds.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def page_network():
    """What a page of the documentation runs on: a server, two accounts, and the environment that says so."""
    with plc_directory() as plc, personal_server(plc) as pds:
        for name in ("alice", "bob"):
            pds.account(f"{name}.test")
        said = {
            "SHOAL_PDS_URL": pds.url,
            "SHOAL_PLC_URL": plc,
            "SHOAL_ALLOW_PRIVATE": "1",
            "ALICE_APP_PASSWORD": PASSWORD,
            "BOB_APP_PASSWORD": PASSWORD,
        }
        before = {name: os.environ.get(name) for name in said}
        os.environ.update(said)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


class AppViewHandler(_Handler):
    """Answers from ``server.entries``, ``server.labels`` and ``server.schemas``; ``asked`` says what was asked."""

    def do_GET(self):
        parts = urlsplit(self.path)
        method = parts.path.removeprefix("/xrpc/science.alt.dataset.")
        params = parse_qs(parts.query)
        self.server.asked.append((method, params))
        answer = getattr(self, f"on_{method}", None)
        if answer is None or self.server.broken:
            return self.reply(501, {"error": "MethodNotImplemented", "message": method})
        return self.reply(*answer(params))

    def reply(self, status, document):
        self.answer(status, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def page(self, word, items, params):
        start, limit = int(params.get("cursor", ["0"])[0]), int(params["limit"][0])
        more = {"cursor": str(start + limit)} if start + limit < len(items) else {}
        return 200, {word: items[start : start + limit], **more}

    def on_searchDatasets(self, params):
        words = params["q"][0].split()
        fitting = [one for one in self.server.entries if all(word in json.dumps(one) for word in words)]
        return self.page("entries", fitting, params)

    def on_listEntries(self, params):
        return self.page("entries", self.server.entries, params)

    def on_listSchemas(self, params):
        return self.page("schemas", self.server.schemas, params)

    def on_listLenses(self, params):
        return self.page("lenses", [], params)

    def on_searchLenses(self, params):
        return self.page("lenses", [], params)

    def on_getEntry(self, params):
        return 200, {"entry": self.server.entries[0]}

    def on_getEntries(self, params):
        return 200, {"entries": [one for one in self.server.entries if one["uri"] in params["uris"]]}

    def on_getEntryStats(self, params):
        return 200, {"views": 3, "searches": 4}

    def on_resolveBlobs(self, params):
        return 200, {"blobs": [{"uri": uri} for uri in params["uris"]]}

    def on_resolveLabel(self, params):
        found = self.server.labels.get(params["name"][0])
        return (404, {"error": "LabelNotFound"}) if found is None else (200, {"uri": found, "cid": "", "label": {}})

    def on_resolveSchema(self, params):
        return 200, {"uri": self.server.schemas[0]["uri"], "cid": "", "record": {}}

    def on_describeService(self, params):
        return 200, {"name": "a stub"}


def appview_stub():
    return serving(AppViewHandler, entries=[], labels={}, schemas=[], asked=[], broken=False)
