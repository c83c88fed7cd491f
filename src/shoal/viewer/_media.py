"""Images, audio, video and plots for browsers."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from shoal._typing import AnyArray
from shoal.codec._codec import Buffer
from shoal.errors import DecodeError, FieldError, MissingExtraError, ShoalError

from ._html import Html, plain, show_number, tag
from ._kinds import kind_of, media_type
from ._session import ValuePath, ViewerSession, value_at

__all__ = [
    "array_facts",
    "array_picture",
    "bars",
    "image_picture",
    "line_plot",
    "looks_like_image",
    "part_of",
    "picture_at",
    "problem_picture",
    "slices_in",
    "stored_bytes",
]

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


def stored_bytes(opened: ViewerSession, place: ValuePath) -> Extent:
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


def part_of(extent: Extent, place: ValuePath, asked: str | None, *, download: bool) -> Part:
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

    Examples:
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


def _attachment(place: ValuePath) -> str:
    """A file name that no header, shell or file system trips over."""
    name = ".".join((str(place.number), place.field, *place.at))
    name = re.sub(r"[^\w.-]+", "_", plain(name, 120)).strip(".") or "field"
    return f"attachment; filename*=UTF-8''{quote(name)}"


def picture_at(opened: ViewerSession, place: ValuePath, width: int, plane: int) -> Picture:
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


def drawing(opened: ViewerSession, place: ValuePath) -> bytes:
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


_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "GIF", "PPM", "JPEG2000", "AVIF", "TGA", "ICO", "PCX", "QOI")
_MOST_PIXELS = 64_000_000
_WIDEST = 2048
_AT_ONCE = threading.BoundedSemaphore(2)
"""An image takes memory while it is decoded, and a page asks for many: a few at a time are as fast, and bounded."""

# From dark to light over blue and green, even steps to the eye; the anchors of the map, spread over 256 levels.
_ANCHORS = np.array(
    [
        (13, 20, 53),
        (28, 52, 104),
        (27, 92, 130),
        (23, 131, 138),
        (53, 167, 127),
        (123, 197, 107),
        (204, 218, 108),
        (253, 240, 190),
    ],
    np.float64,
)
_LEVELS = np.linspace(0, 1, 256)
_MAP = np.stack(
    [np.interp(_LEVELS, np.linspace(0, 1, len(_ANCHORS)), _ANCHORS[:, channel]) for channel in range(3)], axis=1
).astype(np.uint8)
_UNKNOWN = np.array((150, 150, 150), np.uint8)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file that this module wrote."""

    data: bytes
    type: str


def require_pillow() -> Any:
    """Pillow's Image module. Raises MissingExtraError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow is not installed", found=error, hint="pip install 'shoal[view]'") from error
    return Image


def image_picture(data: Buffer, width: int) -> Picture:
    """An image file as one of ours, at most so wide and high. Raises DecodeError for what is no image, or too large."""
    pillow = require_pillow()
    width = max(16, min(width, _WIDEST))
    with _AT_ONCE:
        try:
            image = pillow.open(io.BytesIO(data), formats=_FORMATS)
            _refuse_huge(*image.size)
            image.draft(None, (2 * width, 2 * width))  # JPEG only: decodes at a half, a quarter or an eighth
            image.load()
            image = _upright(_in_eight_bits(image))
            image.thumbnail((width, width))
            return _written(image)
        except (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise _no_image(error) from error
        except (pillow.DecompressionBombError, pillow.DecompressionBombWarning, MemoryError) as error:
            raise DecodeError("the image is too large to be shown", found=str(error), hint=_DOWNLOAD) from error


_DOWNLOAD = "download it to look at it elsewhere"


def _no_image(error: Exception) -> DecodeError:
    return (
        error if isinstance(error, DecodeError) else DecodeError("this is no image that can be shown", found=str(error))
    )


def _refuse_huge(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        found = f"{width:,} x {height:,} pixels"
        raise DecodeError("the image is too large to be shown", found=found, hint=_DOWNLOAD)


def _in_eight_bits(image: Any) -> Any:
    """An image of more than 8 bits a pixel as grey, from its darkest to its lightest; others as they are."""
    if image.mode not in ("I;16", "I;16B", "I;16L", "I", "F"):
        return image
    grey = require_pillow().fromarray(_levels(np.asarray(image))[0])
    grey.format = image.format
    return grey


def _upright(image: Any) -> Any:
    """As the camera was held."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image) if image.format in ("JPEG", "TIFF", "WEBP") else image


def _written(image: Any) -> Picture:
    opaque = image.mode not in ("RGBA", "LA", "PA", "La", "RGBa") and "transparency" not in image.info
    if opaque and image.width * image.height > 10_000:
        return Picture(_saved(image.convert("RGB"), "JPEG", quality=85), "image/jpeg")
    return Picture(_saved(image.convert("RGB" if opaque else "RGBA"), "PNG"), "image/png")


def _saved(image: Any, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.info = {}  # no profile, comment or position of the original goes along
    image.save(out, form, **options)
    return out.getvalue()


def _png(pixels: AnyArray) -> Picture:
    return Picture(_saved(require_pillow().fromarray(pixels), "PNG"), "image/png")


def looks_like_image(array: AnyArray) -> bool:
    """Whether an array is most likely pixels: three or four channels, last or first, as bytes or from 0 to 1."""
    if array.ndim != 3 or min(array.shape) == 0:
        return False
    channels = array.shape[-1] in (3, 4) or array.shape[0] in (3, 4)
    large = sorted(array.shape)[1] > 4
    return channels and large and (array.dtype == np.uint8 or _is_unit(array))


def _is_unit(array: AnyArray) -> bool:
    if array.dtype.kind != "f":
        return False
    some = array.reshape(-1)[: 1 << 16]
    return bool(np.isfinite(some).all() and some.size and some.min() >= 0 and some.max() <= 1)


def slices_in(array: AnyArray) -> int:
    """How many planes an array has: one for each combination of the first dimensions."""
    return int(np.prod(array.shape[:-2])) if array.ndim > 2 and not looks_like_image(array) else 1


def as_plane(array: AnyArray, at: int = 0) -> AnyArray:
    """One plane of an array of two dimensions or more, thinned out to what a picture can show."""
    plane = array.reshape(-1, *array.shape[-2:])[at % max(1, slices_in(array))] if array.ndim > 2 else array
    steps = [max(1, -(-length // 1024)) for length in plane.shape]
    return plane[:: steps[0], :: steps[1]]


def array_picture(array: AnyArray, at: int = 0) -> Picture:
    """An array of two dimensions or more as a picture: pixels as they are, else a heat map. Raises DecodeError."""
    if array.dtype.kind not in "biufc" or array.ndim < 2 or array.size == 0:
        raise DecodeError("this array cannot be drawn", found=f"{array.dtype} {array.shape}")
    return _png(_pixels(array) if looks_like_image(array) else _shaded(as_plane(array, at)))


def _pixels(array: AnyArray) -> AnyArray:
    pixels = array if array.shape[-1] in (3, 4) else np.moveaxis(array, 0, -1)
    steps = [max(1, -(-length // 1024)) for length in pixels.shape[:2]]
    pixels = pixels[:: steps[0], :: steps[1]]
    return np.ascontiguousarray(pixels if pixels.dtype == np.uint8 else (pixels * 255).round().astype(np.uint8))


def _shaded(plane: AnyArray) -> AnyArray:
    """Values as colours, from the smallest to the largest; what is no number is grey."""
    levels, known = _levels(plane)
    colours: AnyArray = _MAP[levels]
    colours[~known] = _UNKNOWN
    return colours


def _levels(plane: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Values as 0 to 255, from the smallest to the largest, and which of them are numbers at all."""
    with np.errstate(all="ignore"):
        values = (np.abs(plane) if plane.dtype.kind == "c" else plane).astype(np.float64)
        known = np.isfinite(values)
        low, high = (values[known].min(), values[known].max()) if known.any() else (0.0, 1.0)
        span = high / 2 - low / 2  # halves, since the whole may be more than a number can be
        scaled = np.where(known, (values / 2 - low / 2) / (span if span > 0 else 1), 0)
    return (np.clip(scaled, 0, 1) * 255).astype(np.uint8), known


_WIDTH, _HEIGHT = 320, 120
_POINTS = 320
_LOOKED_AT = 1 << 24


def line_plot(array: AnyArray, *, alone: bool = False) -> Html:
    """An array of one dimension as a line; a long one as the band between its smallest and largest values.

    ``alone``: as an image file, with colours of its own, which suit light and dark.
    """
    values = _numbers(array)
    low, high = _ends(values)
    points = _line(values, low, high) if len(values) <= _POINTS else _band(values, low, high)
    shape = "polyline" if len(values) <= _POINTS else "polygon"
    look = {"fill": "none" if shape == "polyline" else "#2a8f8f", "stroke": "#2a8f8f", "stroke_width": 1.5}
    drawn = tag(shape, points=points, stroke_linejoin="round", **(look if alone else {"cls": f"plot-{shape}"}))
    label = f"{len(array):,} values from {show_number(float(low))} to {show_number(float(high))}"
    return tag(
        "svg",
        tag("title", label),
        drawn,
        xmlns="http://www.w3.org/2000/svg" if alone else None,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        cls="plot",
        width=_WIDTH if alone else None,
        height=_HEIGHT if alone else None,
    )


def _numbers(array: AnyArray) -> AnyArray:
    with np.errstate(all="ignore"):
        return (np.abs(array) if array.dtype.kind == "c" else array).astype(np.float64)


def _ends(values: AnyArray) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _heights(values: AnyArray, low: float, high: float) -> AnyArray:
    with np.errstate(all="ignore"):
        part = (values / 2 - low / 2) / (high / 2 - low / 2)
    part = np.nan_to_num(part, nan=0.0, posinf=1.0, neginf=0.0)
    return _HEIGHT - 6 - np.clip(part, 0, 1) * (_HEIGHT - 12)


def _line(values: AnyArray, low: float, high: float) -> str:
    across = np.linspace(4, _WIDTH - 4, len(values)) if len(values) > 1 else np.array([_WIDTH / 2])
    return _points(across, _heights(values, low, high))


def _band(values: AnyArray, low: float, high: float) -> str:
    edges = np.linspace(0, len(values), _POINTS + 1).astype(np.int64)
    known = np.where(np.isfinite(values), values, low)
    most, least = np.maximum.reduceat(known, edges[:-1]), np.minimum.reduceat(known, edges[:-1])
    across = np.linspace(4, _WIDTH - 4, _POINTS)
    upper, lower = _heights(most, low, high) - 0.5, _heights(least, low, high) + 0.5
    return _points(np.concatenate((across, across[::-1])), np.concatenate((upper, lower[::-1])))


def _points(across: AnyArray, down: AnyArray) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across.tolist(), down.tolist(), strict=True))


def array_facts(array: AnyArray) -> str:
    """Type, shape and range of an array, in a few words.

    Examples:
        >>> array_facts(np.arange(6, dtype=np.float32).reshape(2, 3))
        'float32 · 2 by 3 · 0 to 5, mean 2.5'
    """
    shape = " by ".join(f"{length:,}" for length in array.shape) or "one value"
    said = f"{array.dtype} · {shape}"
    if array.dtype.kind not in "biuf" or array.size == 0:
        return said
    with np.errstate(all="ignore"):
        flat = array.reshape(-1)[:_LOOKED_AT].astype(np.float64)
    known = flat[np.isfinite(flat)]
    if not len(known):
        return f"{said} · no finite value"
    with np.errstate(all="ignore"):
        numbers = f"{show_number(float(known.min()))} to {show_number(float(known.max()))}"
        numbers = f"{numbers}, mean {show_number(float(known.mean()))}"
    missing = len(flat) - len(known)
    return f"{said} · {numbers}{f', {missing:,} not finite' if missing else ''}"


def bars(
    heights: Sequence[float],
    titles: Sequence[str],
    links: Sequence[str] | None = None,
    least: int = 1,
    marks: Sequence[str] | None = None,
) -> Html:
    """Bars side by side, each with a title and perhaps a link, no wider than ``least`` of them would be.

    ``marks`` are classes, which have colours of their own.
    """
    top, step = max([*heights, 1e-12]), _WIDTH / max(least, len(heights))
    drawn = []
    for at, (height, title) in enumerate(zip(heights, titles, strict=True)):
        bar = _bar(at * step, step, max(1.5, height / top * 58) if height else 0, marks[at] if marks else None)
        room = tag("rect", x=f"{at * step:.2f}", y=0, width=f"{step:.2f}", height=60, cls="room")
        parts = [tag("title", title), room, bar]
        drawn.append(tag("a", *parts, href=links[at], aria_label=title) if links else tag("g", *parts))
    about = {"viewBox": f"0 0 {_WIDTH} 60", "preserveAspectRatio": "none", "cls": "bars"}
    if links:
        return tag("svg", *drawn, **about)  # its links have names of their own
    said = f"{len(titles):,} bars, the last one {titles[-1]}" if titles else "no bars"
    return tag("svg", *drawn, **about, role="img", aria_label=said)


def _bar(left: float, step: float, tall: float, mark: str | None) -> Html:
    wide = max(step - min(1, step / 4), 0.3)
    return tag("rect", x=f"{left:.2f}", y=f"{60 - tall:.2f}", width=f"{wide:.2f}", height=f"{tall:.2f}", cls=mark)
