"""Images to values: Pillow, and simplejpeg where it gives the same pixels sooner."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from shoal.codec._array import Array
from shoal.codec._codec import Buffer, Decoder, Limits
from shoal.codec._extra import require
from shoal.codec._torch import tensor
from shoal.errors import DecodeError

__all__ = ["IMAGE_FORMS", "ImageForm", "image_decoder"]


@dataclass(frozen=True, slots=True)
class ImageForm:
    """What an image becomes: a container, its numbers, and its channels; ``mode`` None keeps them as stored."""

    container: Literal["numpy", "torch", "pil"]
    floating: bool
    mode: Literal["L", "RGB", "RGBA"] | None


IMAGE_FORMS = {
    "numpy": ImageForm("numpy", False, None),
    "l8": ImageForm("numpy", False, "L"),
    "rgb8": ImageForm("numpy", False, "RGB"),
    "rgba8": ImageForm("numpy", False, "RGBA"),
    "l": ImageForm("numpy", True, "L"),
    "rgb": ImageForm("numpy", True, "RGB"),
    "rgba": ImageForm("numpy", True, "RGBA"),
    "torchl8": ImageForm("torch", False, "L"),
    "torchrgb8": ImageForm("torch", False, "RGB"),
    "torchrgba8": ImageForm("torch", False, "RGBA"),
    "torchl": ImageForm("torch", True, "L"),
    "torchrgb": ImageForm("torch", True, "RGB"),
    "torch": ImageForm("torch", True, "RGB"),
    "torchrgba": ImageForm("torch", True, "RGBA"),
    "pill": ImageForm("pil", False, "L"),
    "pil": ImageForm("pil", False, "RGB"),
    "pilrgb": ImageForm("pil", False, "RGB"),
    "pilrgba": ImageForm("pil", False, "RGBA"),
}

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
_JPEG_MAGIC = b"\xff\xd8\xff"
_WIDE_MODES = ("I;16", "I;16L", "I;16B", "I", "F")
_STORED_MODES = ("L", "LA", "RGB", "RGBA")


def image_decoder(form: ImageForm, limits: Limits) -> Decoder:
    """The function that turns an image's bytes into ``form``."""
    open_image = _opener(limits)
    if form.container == "pil":
        return lambda data: open_image(data).convert(form.mode)
    read = _jpeg_reader(open_image, form, limits) if find_spec("simplejpeg") else _pillow_reader(open_image, form)
    return _finisher(read, form)


def _opener(limits: Limits) -> Callable[[Buffer], Any]:
    pillow = require("PIL.Image", extra="images")

    def open_image(data: Buffer) -> Any:
        image = pillow.open(io.BytesIO(data), formats=_FORMATS)
        _check_size(image.width, image.height, len(image.getbands()), limits)
        image.load()
        return image

    return open_image


def _check_size(width: int, height: int, channels: int, limits: Limits) -> None:
    if width * height * channels > limits.max_bytes:
        found = f"{width} x {height} x {channels}"
        raise DecodeError(
            "the image is too large", expected=f"at most {limits.max_bytes} bytes", found=found, hint="raise max_bytes"
        )


def _pillow_reader(open_image: Callable[[Buffer], Any], form: ImageForm) -> Callable[[Buffer], Array]:
    def read(data: Buffer) -> Array:
        image = open_image(data)
        # A copy, because NumPy's view of an image is read-only, and simplejpeg's arrays are not.
        return np.array(image.convert(form.mode)) if form.mode else _as_stored(image)

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


def _jpeg_reader(open_image: Callable[[Buffer], Any], form: ImageForm, limits: Limits) -> Callable[[Buffer], Array]:
    simplejpeg = require("simplejpeg", extra="images")
    read_with_pillow = _pillow_reader(open_image, form)

    def read(data: Buffer) -> Array:
        if data[:3] != _JPEG_MAGIC:
            return read_with_pillow(data)
        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(data)
            target = _jpeg_target(space, form.mode)
            if target is None:
                return read_with_pillow(data)
            _check_size(width, height, 3, limits)
            pixels: Array = simplejpeg.decode_jpeg(data, target, fastdct=False, fastupsample=False)
        except ValueError as error:
            if isinstance(error, DecodeError):
                raise
            return read_with_pillow(data)  # Pillow has the last word on damaged files
        return pixels[:, :, 0] if target == "GRAY" else pixels

    return read


def _jpeg_target(space: str, mode: str | None) -> str | None:
    """What to ask simplejpeg for, or None where Pillow must do it to give the same pixels."""
    if space == "Gray":
        return {None: "GRAY", "L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}[mode]
    # The luma plane is not the gray of the clipped colours, and CMYK needs Pillow's conversion.
    return {None: "RGB", "RGB": "RGB", "RGBA": "RGBA"}.get(mode) if space in ("YCbCr", "RGB") else None


def _finisher(read: Callable[[Buffer], Array], form: ImageForm) -> Decoder:
    if form.container == "torch":
        return lambda data: tensor(_channels_first(_scaled(read(data)) if form.floating else read(data)))
    return (lambda data: _scaled(read(data))) if form.floating else read


def _scaled(pixels: Array) -> Array:
    scaled: Array = pixels.astype(np.float32)
    scaled /= 255.0
    return scaled


def _channels_first(pixels: Array) -> Array:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
