"""An image's bytes to pixels: JPEG by the fastest decoder that is installed, everything else by Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np

from shoal._optional import require
from shoal.codec._array import Array
from shoal.codec._codec import Buffer, Limits
from shoal.codec._image_spec import JpegDecoder
from shoal.errors import DecodeError

__all__ = ["JPEG_MAGIC", "Factor", "Read", "open_with_pillow", "pixel_reader"]

Mode: TypeAlias = Literal["L", "RGB", "RGBA"] | None
Factor: TypeAlias = Callable[[int, int], int]
"""Given height and width, by how much a decoder may divide them: 1, 2, 4 or 8."""
Read: TypeAlias = Callable[[Buffer, Factor, Array | None], Array]
"""Bytes to pixels. An array that has just their shape may be given to be filled, and is returned if it was."""

# The content decides, not the name, but never formats that start another program (EPS runs Ghostscript) or that are
# not images at all. Listed, because Pillow otherwise tries all it knows on any bytes.
_FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "BMP",
    "DIB",
    "TIFF",
    "GIF",
    "PPM",
    "JPEG2000",
    "AVIF",
    "TGA",
    "ICO",
    "PCX",
    "QOI",
    "SGI",
    "DDS",
    "PSD",
)
JPEG_MAGIC = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_WIDE_MODES = ("I;16", "I;16L", "I;16B", "I", "F")
_STORED_MODES = ("L", "LA", "RGB", "RGBA")


def pixel_reader(mode: Mode, limits: Limits, decoder: JpegDecoder = "fastest") -> Read:
    """The function that reads images as pixels. Raises MissingExtraError when a package is not installed."""
    with_pillow = _pillow_reader(mode, limits)
    if decoder == "simplejpeg" or (decoder == "fastest" and find_spec("simplejpeg")):
        return _jpeg_or(with_pillow, _simplejpeg_reader(mode, limits))
    if decoder == "cv2" or (decoder == "fastest" and find_spec("cv2")):
        return _jpeg_or(with_pillow, _cv2_reader(mode, limits))
    return with_pillow


def _jpeg_or(with_pillow: Read, read_jpeg: Callable[[Buffer, Factor, Array | None], Array | None]) -> Read:
    """Pillow for what is no JPEG, and for JPEG that ``read_jpeg`` gives None for."""

    def read(data: Buffer, factor: Factor, into: Array | None) -> Array:
        pixels = read_jpeg(data, factor, into) if data[:3] == JPEG_MAGIC else None
        return with_pillow(data, factor, into) if pixels is None else pixels

    return read


def open_with_pillow(limits: Limits) -> Callable[[Buffer, Factor], Any]:
    """The function that opens images with Pillow, and reads all of them."""
    opened = _header_with_pillow()

    def open_image(data: Buffer, factor: Factor) -> Any:
        image = opened(data)
        divisor = factor(image.height, image.width) if image.format == "JPEG" else 1
        if divisor > 1:
            # Pillow rounds the quotient of the sizes down to 1, 2, 4 or 8: here it is the divisor, or a little more.
            image.draft(None, (image.width // divisor, image.height // divisor))
        _check_size(image.height, image.width, len(image.getbands()), limits)
        image.load()
        return image

    return open_image


def _header_with_pillow() -> Callable[[Buffer], Any]:
    pillow = require("PIL.Image", extra="images")
    return lambda data: pillow.open(io.BytesIO(data), formats=_FORMATS)


def _check_size(height: int, width: int, channels: int, limits: Limits) -> None:
    if width * height * channels > limits.max_bytes:
        found = f"{width} x {height} x {channels}"
        raise DecodeError(
            "the image is too large", expected=f"at most {limits.max_bytes} bytes", found=found, hint="raise max_bytes"
        )


def _pillow_reader(mode: Mode, limits: Limits) -> Read:
    open_image = open_with_pillow(limits)

    def read(data: Buffer, factor: Factor, into: Array | None) -> Array:
        del into
        image = open_image(data, factor)
        # A copy, because NumPy's view of an image is read-only, and simplejpeg's arrays are not.
        return np.array(image.convert(mode)) if mode else _as_stored(image)

    return read


def _as_stored(image: Any) -> Array:
    if image.mode in _WIDE_MODES:
        pixels = np.array(image)
        # Pillow opens 16-bit PGM as 32-bit integers.
        return pixels.astype(np.uint16) if image.format == "PPM" or image.mode == "I;16B" else pixels
    if image.mode in _STORED_MODES:
        return np.array(image)
    return np.array(image.convert(_nearest_mode(image)))


def _nearest_mode(image: Any) -> str:
    if image.mode == "1":
        return "L"
    return "RGBA" if "transparency" in image.info or image.mode in ("PA", "RGBa", "La") else "RGB"


def _simplejpeg_reader(mode: Mode, limits: Limits) -> Callable[[Buffer, Factor, Array | None], Array | None]:
    simplejpeg = require("simplejpeg", extra="images")

    def read(data: Buffer, factor: Factor, into: Array | None) -> Array | None:
        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(data)
            target = _simplejpeg_target(space, mode)
            if target is None:
                return None
            divisor = factor(height, width)
            height, width = -(-height // divisor), -(-width // divisor)
            _check_size(height, width, 3, limits)
            place = into if _is_for(into, height, width) else None
            pixels: Array = simplejpeg.decode_jpeg(
                data, target, fastdct=False, fastupsample=False, min_height=height, min_width=width, buffer=place
            )
        except DecodeError:
            raise
        except ValueError:
            return None  # Pillow has the last word on damaged files
        if place is not None:
            return place
        return pixels[:, :, 0] if target == "GRAY" else pixels

    return read


def _is_for(into: Array | None, height: int, width: int) -> bool:
    return into is not None and into.shape[:2] == (height, width) and into.flags.c_contiguous


def _simplejpeg_target(space: str, mode: Mode) -> str | None:
    """What to ask simplejpeg for, or None where Pillow must do it to give the same pixels."""
    if space == "Gray":
        return {None: "GRAY", "L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}[mode]
    # The luma plane is not the gray of the clipped colours, and CMYK needs Pillow's conversion.
    return {None: "RGB", "RGB": "RGB", "RGBA": "RGBA"}.get(mode) if space in ("YCbCr", "RGB") else None


def _cv2_reader(mode: Mode, limits: Limits) -> Callable[[Buffer, Factor, Array | None], Array | None]:
    cv2 = require("cv2", extra="images")
    header = _header_with_pillow()
    colours = {"L": cv2.IMREAD_GRAYSCALE, "RGB": cv2.IMREAD_COLOR_RGB}

    def read(data: Buffer, factor: Factor, into: Array | None) -> Array | None:
        del into
        # Older versions of cv2 fill up what is missing of a file that was cut short, and say nothing.
        if _JPEG_END not in bytes(data[-64:]):
            return None
        image = header(data)
        target = _cv2_target(image.mode, mode)
        if target is None:
            return None
        divisor = factor(image.height, image.width)
        _check_size(-(-image.height // divisor), -(-image.width // divisor), 3, limits)
        flags = colours[target] | cv2.IMREAD_IGNORE_ORIENTATION | _CV2_REDUCED[divisor]
        pixels: Array | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        return pixels

    return read


_CV2_REDUCED = {1: 0, 2: 16, 4: 32, 8: 64}
"""The bits of ``IMREAD_REDUCED_COLOR_2`` and so on that say by how much, without the one for blue, green, red."""


def _cv2_target(stored: str, mode: Mode) -> str | None:
    """What to ask cv2 for, or None where Pillow must do it to give the same pixels."""
    if stored == "L":
        return {None: "L", "L": "L", "RGB": "RGB"}.get(mode)
    return {None: "RGB", "RGB": "RGB"}.get(mode) if stored == "RGB" else None
