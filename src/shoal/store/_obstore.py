"""S3, Google Cloud Storage, Azure and HTTP servers, through obstore.

A name in a bucket is what follows the bucket in the URL, letter by letter; only HTTP URLs are unquoted. What a request
for bytes goes through: `_fetch` (retries, versions), `_plain` (large ones without TLS), `_gate` (how many at once),
`_clients` (who is asked), `_foreign` (errors). Lists are `_lists`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from shoal.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
)

from ._base import ObjectInfo, ObjectReader, ObjectWriter
from ._fetch import Answer, Known, Place, fetch, head, joined, known_of, place_of, streamed
from ._glance import Glance, glance_now
from ._lists import PAGE, call, folders_at, list_all, list_pages, list_to, markers
from ._options import shown
from ._parallel import run_all
from ._ranges import cut_range, plan_ranges
from ._upload import ObstoreWriter, put_whole
from ._url import OBJECT_STORES, scheme_of

__all__ = ["ObstoreReader", "ObstoreStore"]

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

    def __init__(self, place: Place, known: Known, first: bytes = b"") -> None:
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

    def _fetch(self, cuts: Sequence[tuple[int, int]]) -> list[Answer]:
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


def _known(place: Place) -> Known:
    try:
        return head(place)
    except ObjectNotFoundError:
        raise
    except StoreError as error:
        if place.address.kind != "http":
            raise
        return _known_by_reading(place, error)


def _known_by_reading(place: Place, error: StoreError) -> Known:
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


def _noted(glance: Glance, place: Place) -> bytes:
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
