"""Bytes for a browser: a sound or a video in parts, a picture made here, anything else as a download."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from shoal.errors import DecodeError, FieldError, ShoalError

from ._html import plain, tag
from ._kinds import kind_of, media_type
from ._opened import Opened
from ._pictures import Picture, array_picture, image_picture
from ._places import Place, value_at
from ._plots import line_plot

__all__ = ["Extent", "Part", "part_of", "picture_at", "problem_picture", "stored_bytes"]

_STEP = 1 << 20
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
SANDBOX = "sandbox; default-src 'none'"
"""For bytes of a dataset: should a browser open them all the same, they can do nothing."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of a value: how many, and reading some of them."""

    size: int
    read: Callable[[int, int], bytes]

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Some of them, a megabyte at a time."""
        return (self.read(at, min(at + _STEP, stop)) for at in range(start, stop, _STEP))


@dataclass(frozen=True, slots=True)
class Part:
    """An answer: which bytes, under which status and headers."""

    status: int
    start: int
    stop: int
    headers: dict[str, str]


def stored_bytes(opened: Opened, place: Place) -> Extent:
    """The bytes at a place; of a stored field only those that are asked for are read. Raises ShoalError."""
    source = opened.shards
    if source is not None and place.lens is None and not place.at:
        record = opened.records(np.array([place.number]))[0]
        size = next((member.size for member in record.members if member.field == place.field), None)
        if size is None:
            raise FieldError("the sample has no such field", found=place.field, key=record.key)
        shard = source.shard(record.shard or 0)
        return Extent(size, lambda start, stop: bytes(shard.read_part(record.row, place.field, start, stop)))
    value = value_at(opened, place)
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise FieldError("this value has no bytes of its own", found=type(value).__name__, field=place.field)
    data = bytes(value)
    return Extent(len(data), lambda start, stop: data[start:stop])


def part_of(extent: Extent, place: Place, asked: str | None, *, download: bool) -> Part:
    """What to answer to a request for bytes, perhaps of a range. Raises DecodeError for what is not to be played."""
    headers = {"accept-ranges": "bytes", "content-security-policy": SANDBOX}
    if download:
        headers |= {"content-type": "application/octet-stream", "content-disposition": _attachment(place)}
    else:
        kind = media_type(place.field, extent.read(0, 16))
        if kind is None:
            raise DecodeError("this is no sound and no video", field=place.field, hint="download it")
        headers |= {"content-type": kind, "cache-control": "private, max-age=3600"}
    found = _range(asked, extent.size)
    if found is None:
        return Part(200, 0, extent.size, {**headers, "content-length": str(extent.size)})
    start, stop = found
    if start >= stop:
        return Part(416, 0, 0, {**headers, "content-range": f"bytes */{extent.size}", "content-length": "0"})
    said = {"content-range": f"bytes {start}-{stop - 1}/{extent.size}", "content-length": str(stop - start)}
    return Part(206, start, stop, {**headers, **said})


def _range(asked: str | None, size: int) -> tuple[int, int] | None:
    """The range that was asked for. An open end gets a megabyte: players ask on, and may never want the rest.

    Example:
        >>> _range("bytes=10-19", 100), _range("bytes=-5", 100), _range("bytes=0-", 10**9), _range(None, 100)
        ((10, 20), (95, 100), (0, 1048576), None)
    """
    match = _RANGE.fullmatch(asked or "")
    if match is None or match.group() == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    start = int(first)
    return start, min(size, int(last) + 1 if last else start + _STEP)


def _attachment(place: Place) -> str:
    """A file name that no header, shell or file system trips over."""
    name = ".".join((str(place.number), place.field, *place.at))
    name = re.sub(r"[^\w.-]+", "_", plain(name, 120)).strip(".") or "field"
    return f"attachment; filename*=UTF-8''{quote(name)}"


def picture_at(opened: Opened, place: Place, width: int, plane: int) -> Picture:
    """A picture of the value at a place. Raises ShoalError."""
    value = value_at(opened, place)
    while isinstance(value, dict) and value and not place.at:  # an .npz on a card: its first array
        value = next(iter(value.values()))
    if isinstance(value, np.ndarray):
        return _array(value, plane)
    if isinstance(value, bytes | bytearray | memoryview):
        return image_picture(value, width)
    raise DecodeError("this cannot be drawn", found=type(value).__name__)


def _array(array: np.ndarray[Any, Any], plane: int) -> Picture:
    if array.ndim == 1 and array.size and array.dtype.kind in "biufc":
        return Picture(line_plot(array, alone=True).encode(), "image/svg+xml")
    return array_picture(array, plane)


def drawing(opened: Opened, place: Place) -> bytes:
    """A stored SVG, to be drawn as an image. Raises DecodeError where it is none, or has entities to expand."""
    data = value_at(opened, place)
    if (
        kind_of(place.field) != "svg"
        or not isinstance(data, bytes)
        or len(data) > 1 << 20
        or b"<!" in data.replace(b"<!--", b"")
    ):
        raise DecodeError("this drawing is not drawn", found="no plain SVG of at most a megabyte", hint="download it")
    return data


def problem_picture(error: ShoalError) -> bytes:
    """What is wrong, as a picture, where a picture was asked for."""
    words = plain(error.problem, 48).capitalize()
    found = plain(str(error.found), 52) if error.found is not None else ""
    box = tag("rect", width=320, height=120, fill="#8884", rx=6)
    text = [
        tag(
            "text",
            line,
            x=160,
            y=52 + 22 * at,
            fill="#a33",
            font_size=13,
            text_anchor="middle",
            font_family="sans-serif",
        )
        for at, line in enumerate((words, found))
        if line
    ]
    return tag(
        "svg", box, *text, xmlns="http://www.w3.org/2000/svg", width=320, height=120, viewBox="0 0 320 120"
    ).encode("utf-8", "replace")
