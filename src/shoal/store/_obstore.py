"""S3, Google Cloud Storage, Azure and HTTP servers, through obstore.

A name in a bucket is what follows the bucket in the URL, letter by letter; only HTTP URLs are unquoted. What a request
for bytes goes through: `_requests` (retries, versions), `_http` (large ones without TLS), `_concurrency` (how many at
once), `_clients` (who is asked), `_error_mapping` (errors). Lists are `_obstore`'s.
"""

from __future__ import annotations

import contextlib
import functools
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
from ._concurrency import ConcurrencyLimit, each_done, hold_all, run_all
from ._error_mapping import FOREIGN, failure_of, our_error
from ._options import gates_for, shown
from ._requests import (
    ObjectVersion,
    Place,
    RequestFailed,
    Response,
    cut_range,
    fetch,
    head,
    joined,
    known_of,
    place_of,
    plan_ranges,
    streamed,
    version_of_etag,
)
from ._snapshot import StoreSnapshot, glance_now
from ._statistics import request
from ._url import OBJECT_STORES, scheme_of

__all__ = ["ObstoreReader", "ObstoreStore"]


# ---------------------------------------------------- s3, Google Cloud Storage, Azure and HTTP servers, through obstore


_LONGEST_COPY = 5 << 30
"""S3 copies no larger object in one request."""
_LONGEST_GROWING = 64 << 20
_MOST_TRIES = 20
_FIRST = 512
"""Bytes that are read when an object is opened: a tar's first header."""
_PIECE = 512 << 10
"""Bytes of one piece of a stream: few enough to be in the processor's cache when they are looked at."""
_IMPOSSIBLE = re.compile(r"//|/\.\.?/|[\x00-\x1f\x7f]")
"""Names that obstore refuses: empty parts, parts of dots, control characters."""


class ObstoreReader:
    """An object as it was when it was opened: ranges of that version, or an error, never of another."""

    def __init__(self, place: Place, known: ObjectVersion, first: bytes = b"") -> None:
        self._place = place
        self._known = known
        self._first = first
        self._open = True
        self.info = ObjectInfo(place.url, known.size, known.version)

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.info.size)
        if stop <= len(self._first):
            self._check_open()
            return self._first[start:stop]
        cuts = cut_range(start, stop, self._place.options.part_size) if start < stop else []
        return joined([piece for answer in self._fetch(cuts) for piece in answer.pieces])

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        ends = [min(stop, self.info.size) for stop in stops]
        plan = plan_ranges(starts, ends, most=self._place.options.part_size)
        fetched = [answer.data for answer in self._fetch(list(zip(plan.starts, plan.stops, strict=True)))]
        return [plan.gather(fetched, start, end) for start, end in zip(starts, ends, strict=True)]

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        self._check_open()
        stop = min(stop, self.info.size)
        if start < stop:
            for _, piece in streamed(self._place, start, stop, self._known, _PIECE):
                if piece:
                    yield piece

    def _check_open(self) -> None:
        if not self._open:  # no bytes would look like the end of the object
            raise StoreError("the object is closed", found=shown(self.info.url))

    def _fetch(self, cuts: Sequence[tuple[int, int]]) -> list[Response]:
        self._check_open()
        return run_all([partial(fetch, self._place, start, stop, self._known) for start, stop in cuts])

    def close(self) -> None:
        self._open = False


class ObstoreStore:
    """Objects under ``s3://``, ``gs://``, ``az://``, ``abfs://``, and for reading ``http://`` and ``https://``."""

    def info(self, url: str) -> ObjectInfo:
        known = _known(_object_place(url))
        return ObjectInfo(url, known.size, known.version)

    def open(self, url: str) -> ObjectReader:
        place = _object_place(url)
        if place.address.kind == "http":  # not every server has ranges
            return ObstoreReader(place, _known(place))
        first = fetch(place, 0, _FIRST)  # says as much as HEAD does, and is mostly what is read first
        return ObstoreReader(place, first.known, first.data)

    def create(self, url: str) -> ObjectWriter:
        return ObstoreWriter(_writable(url))

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        place = _bucket(url, "listed")
        found = list_all(place) if depth is None else list_to(place, depth)
        root = place.address.root
        infos = [ObjectInfo(f"{root}/{meta['path']}", meta["size"], known_of(meta).version) for meta in found]
        marks = markers(info.url for info in infos if not info.size)
        yield from sorted((info for info in infos if info.url not in marks), key=lambda info: info.url)

    def folders(self, url: str, depth: int) -> Sequence[str]:
        place = _bucket(url, "listed")
        return [f"{place.address.root}/{folder.rstrip('/')}" for folder in folders_at(place, depth)]

    def read_all(self, url: str) -> bytes:
        place, glance = _object_place(url), glance_now()
        if glance is None:
            return _whole(place)
        if glance.is_missing(url):
            raise ObjectNotFoundError("no such object", found=shown(url))
        found = glance.objects.get(url)
        if found is None:
            found = _noted(glance, place)
        return found

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        place = _writable(url)
        if len(data) <= place.options.part_size:
            return ObjectInfo(url, len(data), put_whole(place, data))
        writer = ObstoreWriter(place)
        try:
            writer.write(data)
            return writer.commit()
        except BaseException:
            writer.abort()
            raise

    def append(self, url: str, data: bytes) -> None:
        """Read, add, and store again on condition that nobody else did so meanwhile; else once more.

        For journals, which are small: the whole object travels each time. Raises StoreError over 64 MiB.
        """
        self.update(url, lambda held: _longer(held or b"", data))

    def update(self, url: str, change: Callable[[bytes | None], bytes]) -> None:
        place = _writable(url)
        for _ in range(_MOST_TRIES):
            try:
                _update_once(place, change)
            except (ObjectChangedError, ObjectExistsError):
                continue
            return
        raise StoreError("others keep changing the object", found=url, hint="change it from one process")

    def delete(self, url: str) -> None:
        place = _writable(url)
        try:
            call(place, "DELETE", lambda client: client.delete(place.address.path))
        except ObjectNotFoundError:
            return

    def move(self, url: str, target: str) -> None:
        self.copy(url, target)
        self.delete(url)

    def copy(self, url: str, target: str) -> None:
        """Copy inside one bucket, without the bytes coming here; of objects over 5 GiB they do."""
        source, place = _object_place(url), _writable(target)
        if not self.can_copy(url, target):
            raise StoreError("a store copies only inside one bucket", expected=source.address.root, found=target)
        if head(source).size > _LONGEST_COPY:
            _stream(self.open(url), self.create(target), source.options.part_size)
            return
        path = place.address.path
        call(source, "COPY", lambda client: client.copy(source.address.path, path))

    def can_copy(self, url: str, target: str) -> bool:
        """Whether both are in one bucket, reached in one way."""
        if scheme_of(target) not in OBJECT_STORES:
            return False
        source, place = place_of(url), place_of(target)
        return source.address.root == place.address.root and source.options == place.options

    def is_folder(self, url: str) -> bool:
        place = place_of(url)
        if place.address.kind == "http":
            return False  # an HTTP server does not say
        glance, folder = glance_now(), url.rstrip("/")
        if glance is not None and folder in glance.folders:
            return glance.folders[folder]
        if glance is not None:
            glance.begin_beside(folder)
        try:
            page = next(list_pages(place))
        except ObjectNotFoundError:  # there is not even a bucket
            page = []
        if glance is not None:
            urls = [f"{place.address.root}/{meta['path']}" for meta in page]
            glance.folders[folder] = bool(page)
            glance.note_list(folder, urls, whole=len(page) < PAGE)
        return bool(page)


def _object_place(url: str) -> Place:
    place = place_of(url)
    if not place.address.path:
        raise StoreError(
            "this is a bucket" if place.address.bucket else "this is a server", expected="an object", found=url
        )
    if _IMPOSSIBLE.search(f"/{place.address.path}/"):
        raise StoreError("an object cannot have this name here", found=repr(shown(url)))
    return place


def _bucket(url: str, wanted: str) -> Place:
    place = place_of(url)
    if place.address.kind == "http":
        raise StoreError(
            f"objects on an HTTP server cannot be {wanted}",
            found=shown(url),
            hint="name them: https://host/data-{000000..000099}.tar" if wanted == "listed" else None,
        )
    return place


def _writable(url: str) -> Place:
    _bucket(url, "written")
    return _object_place(url)


def _known(place: Place) -> ObjectVersion:
    try:
        return head(place)
    except ObjectNotFoundError:
        raise
    except StoreError as error:
        if place.address.kind != "http":
            raise
        return _known_by_reading(place, error)


def _known_by_reading(place: Place, error: StoreError) -> ObjectVersion:
    """A signed URL for GET, and some servers, allow no HEAD: one byte tells as much."""
    try:
        return fetch(place, 0, 1).known
    except ObjectNotFoundError:
        raise
    except StoreError:
        raise error from None


def _whole(place: Place) -> bytes:
    """In one request when it is small, which is not known before; the rest of a large one in parts at once."""
    most = place.options.part_size
    try:
        first = fetch(place, 0, most)
    except (ObjectNotFoundError, ObjectChangedError, AccessDeniedError, StoreTimeoutError):
        raise
    except StoreError:  # some servers have no ranges
        return fetch(place, 0, None, _known(place)).data
    known = first.known
    cuts = cut_range(most, known.size, most) if known.size > most else []
    rest = run_all([partial(fetch, place, low, high, known) for low, high in cuts])
    return joined([piece for answer in (first, *rest) for piece in answer.pieces])


def _noted(glance: StoreSnapshot, place: Place) -> bytes:
    begun = glance.begun(place.url)
    try:
        data = _whole(place) if begun is None else _whole_early(begun, place)
    except ObjectNotFoundError:
        glance.note_object(place.url, None)
        raise
    glance.note_object(place.url, data)
    return data


def _whole_early(begun: Future[bytes], place: Place) -> bytes:
    try:
        return begun.result()
    except ObjectNotFoundError:  # then: it may have come before the folder was listed, or whoever asks now knows of it
        return _whole(place)


def _update_once(place: Place, change: Callable[[bytes | None], bytes]) -> None:
    try:
        held = fetch(place, 0, None)
    except ObjectNotFoundError:
        put_whole(place, change(None), "create")
        return
    put_whole(place, change(held.data), {"e_tag": held.known.etag})


def _longer(held: bytes, data: bytes) -> bytes:
    if len(held) + len(data) > _LONGEST_GROWING:
        raise StoreError(
            "an object store cannot append, and the object is too large to be stored again",
            expected=f"at most {_LONGEST_GROWING} bytes",
            found=len(held),
            hint="write it as new objects",
        )
    return held + data


def _stream(reader: ObjectReader, writer: ObjectWriter, step: int) -> None:
    try:
        for start in range(0, reader.info.size, step):
            writer.write(reader.read(start, start + step))
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    finally:
        reader.close()


# ----------------------------------------------------------------- what is in a bucket, page by page and level by level


PAGE = 1000
_AT_ONCE = 32


def call(place: Place, op: str, ask: Callable[[Any], Any]) -> Any:
    """One request of a kind that obstore repeats by itself. Raises the errors of `our_error`."""
    clients = place.clients
    try:
        return _asked(place, op, clients, lambda: ask(clients.patient))
    except RequestFailed as failed:
        raise our_error(failed.failure, place.url) from None


def _asked(place: Place, op: str, clients: Clients, ask: Callable[[], Any]) -> Any:
    """Raises RequestFailed."""
    with hold_all(gates_for(place.url)), request(op, place.url, clients.endpoint):
        try:
            return ask()
        except FOREIGN as error:
            raise RequestFailed(failure_of(error)) from None


def list_all(place: Place) -> Iterator[Any]:
    """Everything whose name begins so."""
    for page in list_pages(place):
        yield from page


def list_pages(place: Place) -> Iterator[list[Any]]:
    """At least one page, which may be empty.

    Where something fails it begins anew with the client that repeats by itself: most readers never need to make that.
    """
    clients, given = place.clients, set[str]()
    try:
        for page in _pages(place, clients, clients.once):
            yield page
            given.update(meta["path"] for meta in page)
        return
    except RequestFailed as failed:
        if not failed.failure.passing:
            raise our_error(failed.failure, place.url) from None
    clients = clients_for(place.url, place.address, other_than=clients.endpoint)
    try:
        for page in _pages(place, clients, clients.patient):
            yield [meta for meta in page if meta["path"] not in given]
    except RequestFailed as failed:
        raise our_error(failed.failure, place.url) from None


def _pages(place: Place, clients: Clients, client: Any) -> Iterator[list[Any]]:
    """Raises RequestFailed."""
    pages, more = client.list(place.address.path or None, chunk_size=PAGE), True
    while more:
        page = list(_asked(place, "LIST", clients, lambda: next(pages, ())))
        yield page
        more = len(page) == PAGE


def markers(urls: Iterable[str]) -> set[str]:
    """Which of these empty objects are none: consoles mark folders with a name that ends in a slash.

    obstore loses the slash, and nothing answers to the name without it; so each is asked for. There are rarely any.
    """
    return {url for url, there in each_done(_is_there, urls, _AT_ONCE) if not there}


def _is_there(url: str) -> bool:
    try:
        head(place_of(url))
    except ObjectNotFoundError:
        return False
    return True


def list_to(place: Place, depth: int) -> Iterator[Any]:
    """Level by level, the folders of one level at once."""
    folders = [place.address.path]
    for level in range(depth):
        answers = run_all([_listing(place, folder) for folder in folders])
        for answer in answers:
            yield from answer["objects"]
        folders = [folder for answer in answers for folder in answer["common_prefixes"]]
        if not folders or level == depth - 1:
            return


def folders_at(place: Place, depth: int) -> Sequence[str]:
    folders: Sequence[str] = [place.address.path]
    for _ in range(depth):
        answers = run_all([_listing(place, folder) for folder in folders])
        folders = [folder for answer in answers for folder in answer["common_prefixes"]]
    return folders


def _listing(place: Place, folder: str) -> Any:
    return lambda: call(place, "LIST", lambda client: client.list_with_delimiter(folder or None))


# -------------------------------------------------------------------------------- objects that grow while they are sent


_PARTS_AT_ONCE = 4
_MOST_PARTS = 10_000
"""Of one object, on S3."""


def put_whole(place: Place, data: bytes | bytearray | memoryview, mode: Any = "overwrite") -> str:
    """Store an object in one request; return its version. Raises the errors of `our_error`."""
    clients, path = place.clients, place.address.path
    try:
        with hold_all(gates_for(place.url)), request("PUT", place.url, clients.endpoint) as made:
            made.bytes = len(data)
            told = _told(lambda: clients.patient.put(path, data, mode=mode, use_multipart=False))
    except RequestFailed as failed:
        raise our_error(failed.failure, place.url) from None
    return version_of_etag(told["e_tag"]) if told["e_tag"] else head(place).version


def _told(call: Any) -> Any:
    try:
        return call()
    except FOREIGN as error:
        raise RequestFailed(failure_of(error)) from None


class ObstoreWriter:
    """An object under way: parts are sent while the next one is collected; a small object goes in one request.

    While it is open it has a share of the requests that may be in flight. Where so many writers are open that there is
    no share left, it sends one part at a time all the same: waiting for the others could be waiting for itself.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._part = max(5 << 20, place.options.part_size // 2)
        self._held = bytearray()
        """All of it, as long as it may be a small object."""
        self._shares: list[tuple[ConcurrencyLimit, int]] = []
        self._file: Any = None
        self._endpoint = ""
        self._sent = 0
        """Bytes that were handed over: obstore copies them into parts, and sends each that is full."""
        self._over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the bytes; may raise what went wrong with those taken before."""
        self._must_be_open()
        rest = memoryview(data).cast("B")
        if self._file is None and len(self._held) + len(rest) <= self._part:
            self._held += rest
            return
        if self._file is None:
            self._file = self._opened()
            held, self._held = self._held, bytearray()
            self._send(memoryview(held))
        self._send(rest)

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        """Show the object. Raises StoreError, and leaves nothing visible, when it did not arrive whole."""
        self._must_be_open()
        if self._file is None:
            size, version = len(self._held), put_whole(self._place, self._held)
            self._finish()
            return ObjectInfo(self._place.url, size, version)
        size = self._sent
        self._hand_over(self._file.close, size % self._part)
        self._finish()
        known = head(self._place)
        if known.size != size:
            raise StoreError("another object came in its place", expected=f"{size} bytes", found=known.size)
        return ObjectInfo(self._place.url, size, known.version)

    def abort(self) -> None:
        """Leave nothing behind, in the bucket or of the parts. After a commit, nothing is done."""
        file = self._file
        self._finish()
        if file is not None:
            with contextlib.suppress(*FOREIGN):
                file.__exit__(StoreError, StoreError("aborted"), None)  # how obstore is told to give up its parts

    def _must_be_open(self) -> None:
        if self._over:
            raise StoreError("the object is finished", found=shown(self._place.url))

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
            self._hand_over(functools.partial(self._file.write, piece), self._part if is_full else None)

    def _too_many_parts(self) -> StoreError:
        return StoreError(
            "the object has too many parts",
            expected=f"at most {_MOST_PARTS} of {self._part} bytes",
            found=shown(self._place.url),
            hint="shoal.store.configure(part_size=...) makes them larger",
        )

    def _opened(self) -> Any:
        clients, places = self._place.clients, _PARTS_AT_ONCE
        self._endpoint = clients.endpoint
        for gate in gates_for(self._place.url):
            share = gate.take_share(places)
            places = max(1, share)
            if share:
                self._shares.append((gate, share))
        path = self._place.address.path
        return obstore.open_writer(clients.patient, path, buffer_size=self._part, max_concurrency=places)

    def _hand_over(self, act: Callable[[], Any], part: int | None) -> None:
        """Waits only where as many parts as may be are on their way; ``part`` is the size of one that is now whole."""
        if part is not None and self._sent > _MOST_PARTS * self._part:
            raise self._too_many_parts()
        try:
            if part is None:
                _told(act)
            else:
                with request("PUT", self._place.url, self._endpoint) as made:
                    made.bytes = part
                    _told(act)
        except RequestFailed as failed:
            raise our_error(failed.failure, self._place.url) from None
