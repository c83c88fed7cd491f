"""A Hugging Face Hub on loopback: what the real client and `datasets` ask of one, with counts, tokens and faults.

    with serving() as hub:                       # two servers on 127.0.0.1: the hub, and the one its big files lie on
        hub.url                                  # what HF_ENDPOINT would name
        hub.add("org/name", {"a.tar": b"..."})   # a repository without a client
        hub.faults.append(Fault("/resolve/", times=2, status=429, retry_after="0"))
        hub.count("/resolve/"), hub.sent("/resolve/|/blob/")

As at the real one, big files and archives are kept apart (LFS) and `resolve` sends the reader on to another host, which
refuses a request that brings the hub's token along. Everything lives in memory.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

__all__ = ["TOKEN", "USER", "Fault", "Hub", "Repo", "Request", "environment", "serving"]

TOKEN, USER = "hf_test", "tester"
_BIG_BY_NAME = re.compile(
    r"\.(7z|arrow|bin|bz2|gz|h5|idx|npy|npz|parquet|pt|safetensors|tar|tgz|xz|zip|zst|jpe?g|png|wav)$"
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server saw it; ``sent`` and ``received`` count the bytes of the bodies."""

    method: str
    path: str
    range: str | None
    status: int
    received: int
    sent: int
    token: str | None


@dataclass(slots=True)
class Fault:
    """The next ``times`` requests whose path matches are answered so; ``status`` 0 cuts the connection.

    ``after`` lets that many matching requests through first, ``half`` sends half of the right answer before the cut.
    """

    pattern: str
    times: int = 1
    status: int = 503
    retry_after: str | None = None
    method: str | None = None
    after: int = 0
    half: bool = False

    def takes(self, method, path):
        if not re.search(self.pattern, path) or self.method not in (None, method) or self.times == 0:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of one file, and whether the hub keeps them apart (LFS)."""

    data: bytes
    big: bool

    @property
    def sha256(self):
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self):
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()

    @property
    def git_oid(self):
        content = self.pointer if self.big else self.data
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def etag(self):
        return self.sha256 if self.big else self.git_oid


@dataclass(frozen=True, slots=True)
class Commit:
    files: dict[str, Blob]
    message: str
    parent: str | None
    time: float


@dataclass(slots=True)
class Repo:
    """A repository: its commits by oid, and the branches and tags that name some of them."""

    name: str
    private: bool = False
    gated: bool = False
    readers: frozenset[str] = frozenset()
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def commit(self, branch, files, message):
        parent = self.branches.get(branch)
        oid = hashlib.sha1(f"{self.name} {branch} {message} {time.time_ns()}".encode()).hexdigest()
        self.commits[oid] = Commit(files, message, parent, time.time())
        self.branches[branch] = oid
        return oid

    def oid(self, revision):
        return (
            self.branches.get(revision) or self.tags.get(revision) or (revision if revision in self.commits else None)
        )

    def files(self, revision="main"):
        """What a revision holds: the bytes by path."""
        return {path: blob.data for path, blob in self.commits[self.oid(revision)].files.items()}


@dataclass(slots=True)
class Hub:
    """The state that both servers answer from. Set its fields before or between requests."""

    url: str = ""
    blobs_url: str = ""
    tokens: dict[str, str] = field(default_factory=lambda: {TOKEN: USER})
    big_over: int = 64 << 10
    multipart_over: int = 16 << 20
    part_size: int = 8 << 20
    page: int = 1000
    redirects_small: bool = False
    """Whether small files are sent from another path of the hub, as the real one does with those in its cache."""
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    """What is sent instead of the blob with this sha256."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, name, files, *, kind="dataset", branch="main", **facts):
        """Commit these files (path -> bytes) to a repository, which is made where there is none; gives the Repo."""
        repo = self.repos.setdefault((kind, name), Repo(name, **facts))
        if branch not in repo.branches:
            repo.commit(branch, {}, "initial commit")
        if not files:
            return repo
        for data in files.values():
            self.blobs[hashlib.sha256(data).hexdigest()] = data
        held = repo.commits[repo.branches[branch]].files
        added = {path: Blob(data, self.is_big(path, len(data))) for path, data in files.items()}
        repo.commit(branch, held | added, "add")
        return repo

    def is_big(self, path, size):
        return size > self.big_over or bool(_BIG_BY_NAME.search(path))

    def seen(self, pattern="", method=None):
        """The requests so far whose path matches."""
        return [each for each in self.requests if re.search(pattern, each.path) and method in (None, each.method)]

    def count(self, pattern="", method=None):
        return len(self.seen(pattern, method))

    def sent(self, pattern=""):
        """The bytes of the bodies sent so far for paths that match."""
        return sum(each.sent for each in self.seen(pattern))

    def forget(self):
        """Count from here."""
        self.requests.clear()


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    def __init__(self, status, code=None, message="", headers=None):
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, finds its route, answers, and writes down what happened."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def answer_any(self):
        url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = self.read_body()
        self.received, self.noted = len(body), False
        try:
            self.meet_faults()
            self.check_host()
            self.dispatch(unquote(url.path), body)
        except Refused as refused:
            headers = {"X-Error-Message": refused.message, **refused.headers}
            headers |= {"X-Error-Code": refused.code} if refused.code else {}
            self.reply({"error": refused.message}, refused.status, headers)
        except ConnectionError:
            self.close_connection = True  # the reader went away, or a fault says so
            self.note(0, 0)

    def note(self, status, sent):
        """Write the request down, before the answer is sent: whoever has the answer may count at once."""
        if not self.noted:
            token, ranged = self.headers.get("Authorization"), self.headers.get("Range")
            self.hub.requests.append(Request(self.command, self.path, ranged, status, self.received, sent, token))
        self.noted = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer_any  # noqa: N815 - as http.server calls them

    def meet_faults(self):
        self.half = False
        with self.hub.lock:
            fault = next((each for each in self.hub.faults if each.takes(self.command, self.path)), None)
        if fault is None:
            return
        self.half = fault.half
        if fault.status:
            retry = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            raise Refused(fault.status, None, "a fault of the test", retry)
        if not fault.half:
            raise ConnectionResetError

    def check_host(self):
        """Say no to what this server may not be asked."""

    def dispatch(self, path, body):
        asked = "GET" if self.command == "HEAD" else self.command
        for method, pattern, route in self.routes:
            if method != asked or not (found := re.fullmatch(pattern, path)):
                continue
            with self.hub.lock if self.command in ("POST", "DELETE") else contextlib.nullcontext():
                answer = route(self, body, **found.groupdict())
            if answer is not None:
                self.reply(answer)
            return
        raise Refused(404, None, f"no route {self.command} {path}")

    def read_body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def reply(self, answer=b"", status=200, headers=None, kind="application/json"):
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        body = b"" if self.command == "HEAD" else data[: len(data) // 2] if self.half else data
        self.note(status, len(body))
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if self.half:
            raise ConnectionResetError

    def reply_range(self, data, headers):
        """All of ``data``, or what the Range header asks for."""
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        headers = {"Accept-Ranges": "bytes", **headers}
        if not found:
            return self.reply(data, 200, headers, "application/octet-stream")
        first, last, size = *found.groups(), len(data)
        low = int(first) if first else max(0, size - int(last))
        high = min(int(last), size - 1) if first and last else size - 1
        if low >= size:
            return self.reply(b"", 416, {"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {low}-{high}/{size}"
        return self.reply(data[low : high + 1], 206, headers, "application/octet-stream")


class _Blobs(_Handler):
    """The other host: files by their sha256, whole or in parts. A token of the hub is an error here."""

    def check_host(self):
        if "Authorization" in self.headers:
            raise Refused(400, None, "only one way to authenticate is allowed")

    def get(self, _, oid):
        if oid not in self.hub.blobs:
            raise Refused(404)
        self.reply_range(self.hub.lies.get(oid, self.hub.blobs[oid]), {"ETag": f'"{oid}"'})

    def put(self, body, oid, part=None):
        if part:
            self.hub.parts.setdefault(oid, {})[int(part)] = body
        else:
            self.keep(oid, body)
        self.reply(b"", 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def complete(self, body, oid):
        parts = self.hub.parts.pop(oid, {})
        self.keep(oid, b"".join(parts[part["partNumber"]] for part in json.loads(body)["parts"]))
        return {}

    def keep(self, oid, data):
        if hashlib.sha256(data).hexdigest() != oid:
            raise Refused(400, None, "the bytes do not have this sha256")
        self.hub.blobs[oid] = data

    routes = (
        ("GET", r"/blob/(?P<oid>\w+)", get),
        ("PUT", r"/blob/(?P<oid>\w+)(/part/(?P<part>\d+))?", put),
        ("POST", r"/blob/(?P<oid>\w+)/complete", complete),
    )


class _Hub(_Handler):
    """The hub's own interface, as far as its client and `datasets` use it."""

    def user(self):
        sent = self.headers.get("Authorization")
        if sent is None:
            return None
        if (user := self.hub.tokens.get(sent.removeprefix("Bearer "))) is None:
            raise Refused(401, None, "Invalid credentials in Authorization header")
        return user

    def repo(self, kind, name):
        """The repository, if this user may know of it; without a token the hub does not say which it is."""
        repo, user = self.hub.repos.get((kind, name)), self.user()
        hidden = repo is not None and repo.private and not self.may_read(repo)
        if repo is None or hidden:
            raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        if self.command in ("POST", "DELETE"):
            self.check_write(user)
        return repo

    def check_write(self, user):
        if user is None and "/paths-info/" not in self.path:
            raise Refused(401, None, "a token is needed to write")

    def may_read(self, repo):
        user = self.user()
        return user is not None and (user == repo.name.split("/")[0] or user in repo.readers)

    def at(self, kind, name, revision):
        repo = self.repo(kind, name)
        oid = repo.oid(revision)
        if oid is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, oid, repo.commits[oid].files

    # -- repositories

    def whoami(self, _):
        if (user := self.user()) is None:
            raise Refused(401, None, "Invalid username or password")
        token = {"type": "access_token", "accessToken": {"displayName": "t", "role": "write"}}
        return {"type": "user", "id": "1", "name": user, "fullname": user, "orgs": [], "auth": token}

    def create(self, body):
        kind, name, facts = self.named(body)
        url = f"{self.hub.url}/{'' if kind == 'model' else kind + 's/'}{name}"
        if (kind, name) in self.hub.repos:
            return self.reply({"error": "You already created this dataset repo", "url": url}, 409)
        private = bool(facts.get("private") or facts.get("visibility") == "private")
        readers = frozenset([self.user()])
        self.hub.add(name, {}, kind=kind, private=private, readers=readers)
        return {"url": url, "name": name, "id": name}

    def delete(self, body):
        kind, name, _ = self.named(body)
        self.repo(kind, name)
        del self.hub.repos[kind, name]
        return {}

    def named(self, body):
        facts, user = json.loads(body), self.user()
        self.check_write(user)
        return facts.get("type", "model"), f"{facts.get('organization') or user}/{facts['name']}", facts

    def info(self, _, kind, name, revision=None):
        repo, oid, files = self.at(kind, name, revision or "main")
        blobs = self.query.get("blobs")
        siblings = [
            {"rfilename": path} | ({"size": len(blob.data), "blobId": blob.git_oid} if blobs else {})
            for path, blob in sorted(files.items())
        ]
        when = _date(repo.commits[oid].time)
        facts = {"id": name, "author": name.split("/")[0], "sha": oid, "siblings": siblings, "private": repo.private}
        facts |= {"gated": "auto" if repo.gated else False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        return facts | {"_id": oid[:24], "lastModified": when, "createdAt": when, "cardData": {}, "usedStorage": 0}

    def refs(self, _, kind, name):
        repo = self.repo(kind, name)
        heads = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": oid} for n, oid in repo.branches.items()]
        tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": oid} for n, oid in repo.tags.items()]
        return {"branches": heads, "converts": [], "tags": tags}

    def commits(self, _, kind, name, revision):
        repo, oid, _files = self.at(kind, name, revision)
        out = []
        while oid:
            commit = repo.commits[oid]
            date = _date(commit.time)
            out.append({"id": oid, "title": commit.message, "message": "", "authors": [{"user": USER}], "date": date})
            oid = commit.parent
        return out

    def branch(self, body, kind, name, revision):
        repo = self.repo(kind, name)
        if revision in repo.branches:
            return self.reply({"error": "Reference already exists"}, 409)
        start = repo.oid(json.loads(body or b"{}").get("startingPoint") or "main")
        if start is None:
            raise Refused(404, "RevisionNotFound", "Invalid rev id")
        repo.branches[revision] = start
        return {}

    def tag(self, body, kind, name, revision):
        repo, oid, _files = self.at(kind, name, revision)
        tag = json.loads(body)["tag"]
        if tag in repo.tags:
            return self.reply({"error": "Tag reference exists already"}, 409)
        repo.tags[tag] = oid
        return {}

    # -- listings

    def tree(self, _, kind, name, revision, path=None):
        _repo, _oid, files = self.at(kind, name, revision)
        folder = (path or "").strip("/")
        entries = self.tree_entries(files, folder, self.query.get("recursive", "").lower() in ("1", "true"))
        if folder and not entries:
            raise Refused(404, "EntryNotFound", f"{folder} does not exist on {revision}")
        start = int(self.query.get("cursor", "0"))
        more = start + self.hub.page < len(entries)
        address = f"{self.hub.url}{urlsplit(self.path).path}"
        asked = "&".join(f"{k}={quote(v)}" for k, v in self.query.items() if k != "cursor")
        link = {"Link": f'<{address}?{asked}&cursor={start + self.hub.page}>; rel="next"'} if more else {}
        self.reply(entries[start : start + self.hub.page], 200, link)

    def tree_entries(self, files, folder, recursive):
        prefix, below, folders = f"{folder}/" if folder else "", [], set()
        for path in sorted(files):
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            depth = len(parts) if recursive else min(len(parts), 2)
            folders |= {prefix + "/".join(parts[:n]) for n in range(1, depth)}
            if recursive or len(parts) == 1:
                below.append(_entry(path, files[path]))
        return [_folder_entry(each) for each in sorted(folders)] + below

    def paths_info(self, body, kind, name, revision):
        _repo, _oid, files = self.at(kind, name, revision)
        as_json = "json" in self.headers.get("Content-Type", "")
        paths = (json.loads(body) if as_json else parse_qs(body.decode())).get("paths", [])
        found = []
        for path in (each.strip("/") for each in paths):
            if path in files:
                found.append(_entry(path, files[path]))
            elif any(each.startswith(f"{path}/") for each in files):
                found.append(_folder_entry(path))
        return found

    # -- writing

    def preupload(self, body, kind, name, revision):
        _repo, oid, files = self.at(kind, name, revision)
        answers = []
        for asked in json.loads(body)["files"]:
            path, held = asked["path"], files.get(asked["path"])
            mode = "lfs" if self.hub.is_big(path, asked["size"]) else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": held and held.etag})
        return {"commitOid": oid, "files": answers}

    def lfs_batch(self, body, kind, name):
        self.repo((kind or "models")[:-1], name)
        asked = json.loads(body)
        multipart = "multipart" in asked.get("transfers", [])
        return {"transfer": "basic", "objects": [self.lfs_object(each, multipart) for each in asked["objects"]]}

    def lfs_object(self, asked, multipart):
        oid, size = asked["oid"], asked["size"]
        if oid in self.hub.blobs:
            return {"oid": oid, "size": size}
        there = f"{self.hub.blobs_url}/blob/{oid}"
        upload = {"href": there}
        if multipart and size > self.hub.multipart_over:
            count = -(-size // self.hub.part_size)
            parts = {f"{part:05d}": f"{there}/part/{part}" for part in range(1, count + 1)}
            upload = {"href": f"{there}/complete", "header": {"chunk_size": str(self.hub.part_size), **parts}}
        verify = {"href": f"{self.hub.url}/lfs/{oid}/verify"}
        return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}}

    def lfs_verify(self, _, oid):
        if oid not in self.hub.blobs:
            raise Refused(404, None, "object missing")
        return {}

    def commit(self, body, kind, name, revision):
        repo, oid, held = self.at(kind, name, revision)
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit") not in (None, oid):
            raise Refused(412, None, "A commit has happened since. Please refresh and try again.")
        files = dict(held)
        for line in lines:
            self.apply(files, line["key"], line["value"])
        new = repo.commit(revision, files, header["summary"])
        there = f"{self.hub.url}/{'' if kind == 'model' else kind + 's/'}{name}/commit/{new}"
        return {"success": True, "commitOid": new, "commitUrl": there, "hookOutput": ""}

    def apply(self, files, key, value):
        if key == "file":
            files[value["path"]] = Blob(base64.b64decode(value["content"]), big=False)
        elif key == "lfsFile":
            if value["oid"] not in self.hub.blobs:
                raise Refused(400, None, f"LFS pointer {value['oid']} was not uploaded")
            files[value["path"]] = Blob(self.hub.blobs[value["oid"]], big=True)
        elif key == "deletedFile":
            files.pop(value["path"], None)
        elif key == "deletedFolder":
            for path in [each for each in files if each.startswith(value["path"].rstrip("/") + "/")]:
                del files[path]

    # -- reading

    def resolve(self, _, kind, name, revision, path):
        repo, oid, files = self.at((kind or "models")[:-1], name, revision)
        if repo.gated and not self.may_read(repo):
            raise Refused(403 if self.user() else 401, "GatedRepo", "Access to this dataset is restricted")
        if path not in files:
            raise Refused(404, "EntryNotFound", "Entry not found")
        blob = files[path]
        headers = {"X-Repo-Commit": oid, "ETag": f'"{blob.etag}"'}
        if not blob.big and not self.hub.redirects_small:
            return self.reply_range(blob.data, headers)
        if not blob.big:
            there = f"/api/resolve-cache/datasets/{name}/{oid}/{quote(path, safe='')}"
            return self.reply(b"", 307, headers | {"Location": there})
        self.hub.blobs[blob.sha256] = blob.data
        headers |= {"X-Linked-Size": str(len(blob.data)), "X-Linked-Etag": f'"{blob.etag}"'}
        return self.reply(b"", 302, headers | {"Location": f"{self.hub.blobs_url}/blob/{blob.sha256}"})

    def resolve_cache(self, _, name, revision, path):
        repo, oid, files = self.at("dataset", name, revision)
        if repo.private and not self.may_read(repo):
            raise Refused(401, "RepoNotFound", "Repository not found")
        self.reply_range(files[path].data, {"X-Repo-Commit": oid, "ETag": f'"{files[path].etag}"'})

    _api = r"/api/(?P<kind>model|dataset|space)s/(?P<name>[^/]+/[^/]+)"
    _git = r"/((?P<kind>datasets|spaces)/)?(?P<name>[^/]+/[^/]+)"
    routes = (
        ("GET", r"/api/whoami-v2", whoami),
        ("GET", r"/api/agent-harnesses", lambda self, _: {}),
        ("POST", r"/api/validate-yaml", lambda self, _: {"errors": [], "warnings": []}),
        ("POST", r"/api/repos/create", create),
        ("DELETE", r"/api/repos/delete", delete),
        ("GET", _api + r"(/revision/(?P<revision>.+))?", info),
        ("GET", _api + r"/refs", refs),
        ("GET", _api + r"/commits/(?P<revision>.+)", commits),
        ("POST", _api + r"/branch/(?P<revision>.+)", branch),
        ("POST", _api + r"/tag/(?P<revision>.+)", tag),
        ("GET", _api + r"/tree/(?P<revision>[^/]+)(/(?P<path>.+))?", tree),
        ("POST", _api + r"/paths-info/(?P<revision>.+)", paths_info),
        ("POST", _api + r"/preupload/(?P<revision>.+)", preupload),
        ("POST", _api + r"/commit/(?P<revision>.+)", commit),
        ("POST", _git + r"\.git/info/lfs/objects/batch", lfs_batch),
        ("POST", r"/lfs/(?P<oid>\w+)/verify", lfs_verify),
        ("GET", r"/api/resolve-cache/datasets/(?P<name>[^/]+/[^/]+)/(?P<revision>[^/]+)/(?P<path>.+)", resolve_cache),
        ("GET", _git + r"/resolve/(?P<revision>[^/]+)/(?P<path>.+)", resolve),
    )


def _entry(path, blob):
    entry = {"type": "file", "path": path, "size": len(blob.data), "oid": blob.git_oid}
    if blob.big:
        entry["lfs"] = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
    return entry


def _folder_entry(path):
    return {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0}


def _date(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


@contextlib.contextmanager
def serving(**facts):
    """A hub at two free ports of 127.0.0.1, stopped at the end; ``facts`` are fields of :class:`Hub`."""
    hub = Hub(**facts)
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (base,), {"hub": hub})) for base in (_Hub, _Blobs)]
    hub.url, hub.blobs_url = (f"http://127.0.0.1:{each.server_address[1]}" for each in servers)
    threads = [threading.Thread(target=each.serve_forever, args=(0.05,), daemon=True) for each in servers]
    for server, thread in itertools.zip_longest(servers, threads):
        server.daemon_threads = True
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def environment(hub, home, token=TOKEN):
    """What a process that uses this hub must have in its environment before it imports huggingface_hub."""
    facts = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    facts |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    return facts | ({"HF_TOKEN": token} if token else {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})
