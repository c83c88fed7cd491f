"""S3, Google Cloud Storage, Azure and HTTP servers, through obstore.

The name of an object is the part of the URL after the bucket, unchanged; only HTTP URLs are unquoted. Bytes are
requested by `_requests` (retries, versions), which uses `_http` (``Retry-After``), `_concurrency` (limits),
`_clients` and `_error_mapping`. Listing and writing are here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import obstore

from shoal.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
)

from ._base import ObjectInfo, ObjectReader, ObjectWriter
from ._clients import Clients, clients_for
from ._concurrency import ConcurrencyLimit, acquire_all, each_done, run_all
from ._error_mapping import OBSTORE_ERRORS, failure_of, translate_failure
from ._options import concurrency_limits_for, shown
from ._ranges import cut_range, plan_ranges
from ._requests import (
    ObjectLocation,
    ObjectVersion,
    RequestError,
    Response,
    fetch,
    head,
    join_pieces,
    locate,
    object_version,
    stream_range,
    version_of_etag,
)
from ._snapshot import StoreSnapshot, current_snapshot
from ._statistics import request
from ._url import OBJECT_STORES, scheme_of

__all__ = ["ObstoreReader", "ObstoreStore"]


_MAX_COPY_BYTES = 5 << 30
"""S3 copies no larger object in one request."""
_MAX_APPEND_BYTES = 64 << 20
_MAX_UPDATE_TRIES = 20
_FIRST_READ_BYTES = 512
"""Bytes that are read when an object is opened: a tar's first header."""
_PIECE_BYTES = 512 << 10
"""Bytes of one piece of a stream: small enough to be in the processor's cache when it is parsed."""
_INVALID_NAME = re.compile(r"//|/\.\.?/|[\x00-\x1f\x7f]")
"""Names that obstore refuses: empty parts, ``.`` and ``..``, control characters."""
_PAGE_OBJECTS = 1000
_MAX_HEAD_REQUESTS = 32
_MAX_PARTS_IN_FLIGHT = 4
_MAX_PARTS = 10_000
"""Parts of one object on S3."""


class ObstoreReader:
    """Reads ranges of the version that was opened; raises ObjectChangedError if the object was replaced.

    With a size instead of a version, the version is that of the first response, which must be of this size.
    """

    def __init__(self, location: ObjectLocation, known: ObjectVersion | int, first: bytes = b"") -> None:
        self._location = location
        self._known = known if isinstance(known, ObjectVersion) else None
        self._first = first
        self._open = True
        size, version = (known.size, known.version) if isinstance(known, ObjectVersion) else (known, "")
        self.info = ObjectInfo(location.url, size, version)

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.info.size)
        if stop <= len(self._first):
            self._check_open()
            return self._first[start:stop]
        cuts = cut_range(start, stop, self._location.options.part_size) if start < stop else []
        return join_pieces([piece for answer in self._fetch(cuts) for piece in answer.pieces])

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        ends = [min(stop, self.info.size) for stop in stops]
        plan = plan_ranges(starts, ends, most=self._location.options.part_size)
        fetched = [answer.data for answer in self._fetch(list(zip(plan.starts, plan.stops, strict=True)))]
        return [plan.gather(fetched, start, end) for start, end in zip(starts, ends, strict=True)]

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        self._check_open()
        stop = min(stop, self.info.size)
        if start < stop:
            for known, piece in stream_range(self._location, start, stop, self._known, _PIECE_BYTES):
                self._pin(known)
                if piece:
                    yield piece

    def _check_open(self) -> None:
        if not self._open:  # no bytes would look like the end of the object
            raise StoreError("the object is closed", found=shown(self.info.url))

    def _fetch(self, cuts: Sequence[tuple[int, int]]) -> list[Response]:
        self._check_open()
        answers = run_all([partial(fetch, self._location, start, stop, self._known) for start, stop in cuts])
        for answer in answers:
            self._pin(answer.known)
        return answers

    def _pin(self, known: ObjectVersion) -> None:
        """Require this version from now on. Raises ObjectChangedError if it is not of the size that was expected."""
        if self._known is None and known.size == self.info.size:
            self._known = known
        elif self._known is None or known.version != self._known.version:
            problem = "the object was replaced" if self._known else "the object has another size than expected"
            expected = f"{self.info.size} bytes"
            raise ObjectChangedError(problem, expected=expected, found=f"{known.size} at {shown(self.info.url)}")

    def close(self) -> None:
        self._open = False


class ObstoreWriter:
    """Sends parts while the next one is collected; a small object is sent in one request.

    While it is open it owns a share of the requests that may be in flight. If other writers own all shares, it still
    sends one part at a time: waiting for a share could be a deadlock.
    """

    def __init__(self, location: ObjectLocation) -> None:
        self._location = location
        self._part = max(5 << 20, location.options.part_size // 2)
        self._held = bytearray()
        """All bytes so far, as long as the object may be a small one."""
        self._shares: list[tuple[ConcurrencyLimit, int]] = []
        self._file: Any = None
        self._endpoint = ""
        self._sent = 0
        """Bytes passed to obstore, which copies them into parts and sends each part that is full."""
        self._over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes; may raise an error of an earlier part."""
        self._must_be_open()
        rest = memoryview(data).cast("B")
        if self._file is None and len(self._held) + len(rest) <= self._part:
            self._held += rest
            return
        if self._file is None:
            self._file = self._open_upload()
            held, self._held = self._held, bytearray()
            self._send(memoryview(held))
        self._send(rest)

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        """Make the object visible. Raises StoreError, and leaves nothing visible, if it did not arrive completely."""
        self._must_be_open()
        if self._file is None:
            size, version = len(self._held), _put_whole(self._location, self._held)
            self._finish()
            return ObjectInfo(self._location.url, size, version)
        size = self._sent
        self._hand_over(self._file.close, size % self._part)
        self._finish()
        known = head(self._location)
        if known.size != size:
            raise StoreError("another object came in its place", expected=f"{size} bytes", found=known.size)
        return ObjectInfo(self._location.url, size, known.version)

    def abort(self) -> None:
        """Remove all parts. Does nothing after a commit."""
        file = self._file
        self._finish()
        if file is not None:
            with contextlib.suppress(*OBSTORE_ERRORS):
                file.__exit__(StoreError, StoreError("aborted"), None)  # makes obstore abort the upload

    def _must_be_open(self) -> None:
        if self._over:
            raise StoreError("the object is finished", found=shown(self._location.url))

    def _finish(self) -> None:
        self._over, self._file, self._held = True, None, bytearray()
        while self._shares:
            gate, count = self._shares.pop()
            gate.give_back_share(count)

    def _send(self, rest: memoryview) -> None:
        while rest:
            piece = rest[: self._part - self._sent % self._part]
            self._sent, rest = self._sent + len(piece), rest[len(piece) :]
            is_full = self._sent % self._part == 0
            self._hand_over(partial(self._file.write, piece), self._part if is_full else None)

    def _too_many_parts(self) -> StoreError:
        return StoreError(
            "the object has too many parts",
            expected=f"at most {_MAX_PARTS} of {self._part} bytes",
            found=shown(self._location.url),
            hint="shoal.store.configure(part_size=...) makes them larger",
        )

    def _open_upload(self) -> Any:
        clients, places = self._location.clients, _MAX_PARTS_IN_FLIGHT
        self._endpoint = clients.endpoint
        for gate in concurrency_limits_for(self._location.url):
            share = gate.take_share(places)
            places = max(1, share)
            if share:
                self._shares.append((gate, share))
        path = self._location.address.path
        return obstore.open_writer(clients.retrying, path, buffer_size=self._part, max_concurrency=places)

    def _hand_over(self, act: Callable[[], Any], part: int | None) -> None:
        """Call ``act``, which blocks while too many parts are in flight; ``part`` is the size of a full part."""
        if part is not None and self._sent > _MAX_PARTS * self._part:
            raise self._too_many_parts()
        try:
            if part is None:
                _translate_errors(act)
            else:
                with request("PUT", self._location.url, self._endpoint) as made:
                    made.bytes = part
                    _translate_errors(act)
        except RequestError as failed:
            raise translate_failure(failed.failure, self._location.url) from None


class ObstoreStore:
    """Objects under ``s3://``, ``gs://``, ``az://``, ``abfs://``, and for reading ``http://`` and ``https://``."""

    def info(self, url: str) -> ObjectInfo:
        known = _current_version(_locate_object(url))
        return ObjectInfo(url, known.size, known.version)

    def open(self, url: str) -> ObjectReader:
        location = _locate_object(url)
        if location.address.kind == "http":  # not every server has ranges
            return ObstoreReader(location, _current_version(location))
        first = fetch(location, 0, _FIRST_READ_BYTES)  # has size and version as HEAD does, and is usually read first
        return ObstoreReader(location, first.known, first.data)

    def open_sized(self, url: str, size: int) -> ObjectReader:
        return ObstoreReader(_locate_object(url), size)

    def create(self, url: str) -> ObjectWriter:
        return ObstoreWriter(_locate_writable(url))

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        location = _locate_bucket(url, "listed")
        found = _list_all(location) if depth is None else _list_to_depth(location, depth)
        root = location.address.root
        infos = [_listed_info(root, meta) for meta in found]
        marks = _folder_markers(info.url for info in infos if not info.size)
        yield from sorted((info for info in infos if info.url not in marks), key=lambda info: info.url)

    def folders(self, url: str, depth: int) -> Sequence[str]:
        location = _locate_bucket(url, "listed")
        return [f"{location.address.root}/{folder.rstrip('/')}" for folder in _folders_at_depth(location, depth)]

    def read_all(self, url: str) -> bytes:
        location, snapshot = _locate_object(url), current_snapshot()
        if snapshot is None:
            return _read_whole(location)
        if snapshot.is_missing(url):
            raise ObjectNotFoundError("no such object", found=shown(url))
        found = snapshot.objects.get(url)
        if found is None:
            found = _read_and_note(snapshot, location)
        return found

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        location = _locate_writable(url)
        if len(data) <= location.options.part_size:
            return ObjectInfo(url, len(data), _put_whole(location, data))
        writer = ObstoreWriter(location)
        try:
            writer.write(data)
            return writer.commit()
        except BaseException:
            writer.abort()
            raise

    def append(self, url: str, data: bytes) -> None:
        """Read the object, and replace it by a longer one if it has not changed; else try again.

        For journals, which are small: the complete object is sent each time. Raises StoreError over 64 MiB.
        """
        self.update(url, lambda held: _appended(held or b"", data))

    def update(self, url: str, change: Callable[[bytes | None], bytes]) -> None:
        location = _locate_writable(url)
        for _ in range(_MAX_UPDATE_TRIES):
            try:
                held = _fetch_for_update(location)
            except ObjectChangedError:
                continue
            data = change(None if held is None else held.data)  # its errors are the caller's
            try:
                _put_whole(location, data, "create" if held is None else {"e_tag": held.known.etag})
            except (ObjectChangedError, ObjectExistsError):
                continue
            return
        raise StoreError("others keep changing the object", found=url, hint="change it from one process")

    def delete(self, url: str) -> None:
        location = _locate_writable(url)
        try:
            call(location, "DELETE", lambda client: client.delete(location.address.path))
        except ObjectNotFoundError:
            return

    def move(self, url: str, target: str) -> None:
        self.copy(url, target)
        self.delete(url)

    def copy(self, url: str, target: str) -> None:
        """Copy inside one bucket, on the server; objects over 5 GiB are downloaded and uploaded."""
        source, location = _locate_object(url), _locate_writable(target)
        if not self.can_copy(url, target):
            raise StoreError("a store copies only inside one bucket", expected=source.address.root, found=target)
        if head(source).size > _MAX_COPY_BYTES:
            _copy_by_streaming(self.open(url), self.create(target), source.options.part_size)
            return
        path = location.address.path
        call(source, "COPY", lambda client: client.copy(source.address.path, path))

    def can_copy(self, url: str, target: str) -> bool:
        """Whether both URLs are in one bucket, with the same options."""
        if scheme_of(target) not in OBJECT_STORES:
            return False
        source, location = locate(url), locate(target)
        return source.address.root == location.address.root and source.options == location.options

    def is_folder(self, url: str) -> bool:
        location = locate(url)
        if location.address.kind == "http":
            return False  # HTTP has no listing
        snapshot, folder = current_snapshot(), url.rstrip("/")
        if snapshot is not None and folder in snapshot.folders:
            return snapshot.folders[folder]
        if snapshot is not None:
            snapshot.prefetch_sidecar(folder, self.read_all)
        try:
            page = next(_list_pages(location))
        except ObjectNotFoundError:  # the bucket does not exist
            page = []
        if snapshot is not None:
            urls = [f"{location.address.root}/{meta['path']}" for meta in page]
            snapshot.folders[folder] = bool(page)
            snapshot.note_list(folder, urls, whole=len(page) < _PAGE_OBJECTS)
        return bool(page)


def _listed_info(root: str, meta: Any) -> ObjectInfo:
    version = object_version(meta).version
    return ObjectInfo(f"{root}/{meta['path']}", meta["size"], version, meta["last_modified"].timestamp())


def _locate_object(url: str) -> ObjectLocation:
    location = locate(url)
    if not location.address.path:
        raise StoreError(
            "this is a bucket" if location.address.bucket else "this is a server", expected="an object", found=url
        )
    if _INVALID_NAME.search(f"/{location.address.path}/"):
        raise StoreError("an object cannot have this name here", found=repr(shown(url)))
    return location


def _locate_bucket(url: str, wanted: str) -> ObjectLocation:
    location = locate(url)
    if location.address.kind == "http":
        raise StoreError(
            f"objects on an HTTP server cannot be {wanted}",
            found=shown(url),
            hint="name them: https://host/data-{000000..000099}.tar" if wanted == "listed" else None,
        )
    return location


def _locate_writable(url: str) -> ObjectLocation:
    _locate_bucket(url, "written")
    return _locate_object(url)


def _current_version(location: ObjectLocation) -> ObjectVersion:
    try:
        return head(location)
    except ObjectNotFoundError:
        raise
    except StoreError as error:
        if location.address.kind != "http":
            raise
        return _version_by_reading(location, error)


def _version_by_reading(location: ObjectLocation, error: StoreError) -> ObjectVersion:
    """Get size and version from a GET of one byte: URLs signed for GET, and some servers, do not allow HEAD."""
    try:
        return fetch(location, 0, 1).known
    except ObjectNotFoundError:
        raise
    except StoreError:
        raise error from None


def _read_whole(location: ObjectLocation) -> bytes:
    """Read an object of unknown size: one request for the first part, then the rest in parallel."""
    most = location.options.part_size
    try:
        first = fetch(location, 0, most)
    except (ObjectNotFoundError, ObjectChangedError, AccessDeniedError, StoreTimeoutError):
        raise
    except StoreError:  # some servers have no ranges
        return fetch(location, 0, None, _current_version(location)).data
    known = first.known
    cuts = cut_range(most, known.size, most) if known.size > most else []
    rest = run_all([partial(fetch, location, low, high, known) for low, high in cuts])
    return join_pieces([piece for answer in (first, *rest) for piece in answer.pieces])


def _read_and_note(snapshot: StoreSnapshot, location: ObjectLocation) -> bytes:
    begun = snapshot.begun(location.url)
    try:
        data = _read_whole(location) if begun is None else _read_begun(begun, location)
    except ObjectNotFoundError:
        snapshot.note_object(location.url, None)
        raise
    snapshot.note_object(location.url, data)
    return data


def _read_begun(begun: Future[bytes], location: ObjectLocation) -> bytes:
    try:
        return begun.result()
    except ObjectNotFoundError:  # it may have been created since
        return _read_whole(location)


def _fetch_for_update(location: ObjectLocation) -> Response | None:
    try:
        return fetch(location, 0, None)
    except ObjectNotFoundError:
        return None


def _appended(held: bytes, data: bytes) -> bytes:
    if len(held) + len(data) > _MAX_APPEND_BYTES:
        raise StoreError(
            "an object store cannot append, and the object is too large to be stored again",
            expected=f"at most {_MAX_APPEND_BYTES} bytes",
            found=len(held),
            hint="write it as new objects",
        )
    return held + data


def _copy_by_streaming(reader: ObjectReader, writer: ObjectWriter, step: int) -> None:
    try:
        for start in range(0, reader.info.size, step):
            writer.write(reader.read(start, start + step))
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    finally:
        reader.close()


def call(location: ObjectLocation, op: str, ask: Callable[[Any], Any]) -> Any:
    """Make a request that obstore retries itself. Raises the errors of `translate_failure`."""
    clients = location.clients
    try:
        return _request_once(location, op, clients, lambda: ask(clients.retrying))
    except RequestError as failed:
        raise translate_failure(failed.failure, location.url) from None


def _request_once(location: ObjectLocation, op: str, clients: Clients, ask: Callable[[], Any]) -> Any:
    """Raises RequestError."""
    with acquire_all(concurrency_limits_for(location.url)), request(op, location.url, clients.endpoint):
        return _translate_errors(ask)


def _translate_errors(call: Callable[[], Any]) -> Any:
    """Call obstore. Raises RequestError."""
    try:
        return call()
    except OBSTORE_ERRORS as error:
        raise RequestError(failure_of(error)) from None


def _list_all(location: ObjectLocation) -> Iterator[Any]:
    """Yield the metadata of every object whose name starts with the path."""
    for page in _list_pages(location):
        yield from page


def _list_pages(location: ObjectLocation) -> Iterator[list[Any]]:
    """Yield pages of metadata; at least one, which may be empty.

    After a failure it starts again with the client that retries, which most readers never need to create.
    """
    clients, given = location.clients, set[str]()
    try:
        for page in _pages(location, clients, clients.once):
            yield page
            given.update(meta["path"] for meta in page)
        return
    except RequestError as failed:
        if not failed.failure.passing:
            raise translate_failure(failed.failure, location.url) from None
    clients = clients_for(location.url, location.address, other_than=clients.endpoint)
    try:
        for page in _pages(location, clients, clients.retrying):
            yield [meta for meta in page if meta["path"] not in given]
    except RequestError as failed:
        raise translate_failure(failed.failure, location.url) from None


def _pages(location: ObjectLocation, clients: Clients, client: Any) -> Iterator[list[Any]]:
    """Raises RequestError."""
    pages, more = client.list(location.address.path or None, chunk_size=_PAGE_OBJECTS), True
    while more:
        page = list(_request_once(location, "LIST", clients, lambda: next(pages, ())))
        yield page
        more = len(page) == _PAGE_OBJECTS


def _folder_markers(urls: Iterable[str]) -> set[str]:
    """Return those of the empty objects that are only markers of folders: consoles create names that end in a slash.

    obstore removes the slash, and no object has the name without it, so each is requested. There are rarely any.
    """
    return {url for url, there in each_done(_exists, urls, _MAX_HEAD_REQUESTS) if not there}


def _exists(url: str) -> bool:
    try:
        head(locate(url))
    except ObjectNotFoundError:
        return False
    return True


def _list_to_depth(location: ObjectLocation, depth: int) -> Iterator[Any]:
    """List level by level, the folders of one level in parallel."""
    folders = [location.address.path]
    for level in range(depth):
        answers = run_all([_list_folder(location, folder) for folder in folders])
        for answer in answers:
            yield from answer["objects"]
        folders = [folder for answer in answers for folder in answer["common_prefixes"]]
        if not folders or level == depth - 1:
            return


def _folders_at_depth(location: ObjectLocation, depth: int) -> Sequence[str]:
    folders: Sequence[str] = [location.address.path]
    for _ in range(depth):
        answers = run_all([_list_folder(location, folder) for folder in folders])
        folders = [folder for answer in answers for folder in answer["common_prefixes"]]
    return folders


def _list_folder(location: ObjectLocation, folder: str) -> Any:
    return lambda: call(location, "LIST", lambda client: client.list_with_delimiter(folder or None))


def _put_whole(location: ObjectLocation, data: bytes | bytearray | memoryview, mode: Any = "overwrite") -> str:
    """Store an object in one request; return its version. Raises the errors of `translate_failure`."""
    clients, path = location.clients, location.address.path
    try:
        with acquire_all(concurrency_limits_for(location.url)), request("PUT", location.url, clients.endpoint) as made:
            made.bytes = len(data)
            told = _translate_errors(lambda: clients.retrying.put(path, data, mode=mode, use_multipart=False))
    except RequestError as failed:
        raise translate_failure(failed.failure, location.url) from None
    return version_of_etag(told["e_tag"]) if told["e_tag"] else head(location).version
