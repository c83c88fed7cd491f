"""Objects that grow while they are sent: parts in parallel, in bounded memory, visible only when whole."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import obstore

from shoal.errors import StoreError

from ._base import ObjectInfo
from ._fetch import Place, RequestFailed, head, version_of_etag
from ._foreign import FOREIGN, failure_of, our_error
from ._gate import Gate, hold_all
from ._options import gates_for, shown
from ._traffic import request

__all__ = ["ObstoreWriter", "put_whole"]

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
        self._shares: list[tuple[Gate, int]] = []
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
