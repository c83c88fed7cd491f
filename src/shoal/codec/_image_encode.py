"""Values to images: PIL images and arrays, by Pillow."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np

from shoal._optional import require
from shoal.codec._codec import Codec, EncodeOptions, Encoder
from shoal.codec._image_decode import image_decoder
from shoal.codec._image_spec import ImageSpec
from shoal.errors import EncodeError

from ._arrays import Array, as_array

__all__ = ["IMAGE_CODECS"]

_TOLERANCE = 0.001  # what rounding in a float pipeline may add at both ends; webdataset allows the same
_CHANNELS = (1, 2, 3, 4)
_LOSSY = ("JPEG", "WEBP", "AVIF")
_GRAY_MODES = ("1", "L", "I;16", "I")

# Pillow's name of the format each extension is written in.
_FORMATS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "jpe": "JPEG",
    "jfif": "JPEG",
    "img": "JPEG",  # as webdataset writes them
    "image": "JPEG",
    "png": "PNG",
    "apng": "PNG",
    "webp": "WEBP",
    "bmp": "BMP",
    "dib": "DIB",
    "tiff": "TIFF",
    "tif": "TIFF",
    "gif": "GIF",
    "ppm": "PPM",
    "pgm": "PPM",
    "pbm": "PPM",
    "pnm": "PPM",
    "jp2": "JPEG2000",
    "j2k": "JPEG2000",
    "avif": "AVIF",
    "tga": "TGA",
    "pcx": "PCX",
    "qoi": "QOI",
    "sgi": "SGI",
    "dds": "DDS",
}


def _encode_image(value: Any, extension: str, options: EncodeOptions) -> bytes:
    image = _as_image(value)
    if extension == "pgm" and image.mode not in _GRAY_MODES:
        raise EncodeError("pgm holds gray images only", expected=" ".join(_GRAY_MODES), found=f"mode {image.mode}")
    if extension == "pbm":
        image = _bilevel(image)
    elif extension == "pgm" and image.mode == "1":
        image = image.convert("L")
    return _save(image, _FORMATS[extension], options)


def _save(image: Any, form: str, options: EncodeOptions) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=form, **({"quality": options.quality} if form in _LOSSY else {}))
    return stream.getvalue()


def _bilevel(image: Any) -> Any:
    """The same image with one bit a pixel; refused rather than dithered where it has more than black and white."""
    gray = image.convert("L")
    histogram = gray.histogram()
    if image.mode not in ("1", "L") or any(histogram[1:255]):
        raise EncodeError("pbm holds black and white only", expected="values 0 and 255", found=f"mode {image.mode}")
    return gray.convert("1", dither=0)


def _as_image(value: Any) -> Any:
    pillow = require("PIL.Image", extra="images")
    if isinstance(value, pillow.Image):
        return value
    pixels = as_array(value)
    if hasattr(value, "detach") and pixels.ndim == 3 and pixels.shape[0] in _CHANNELS:
        pixels = pixels.transpose(1, 2, 0)  # tensors have their channels first, as "torchrgb" gives them
    return pillow.fromarray(np.ascontiguousarray(_as_pixels(_squeezed(pixels))))


def _squeezed(pixels: Array) -> Array:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        return pixels[:, :, 0]
    if pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in _CHANNELS):
        return pixels
    raise EncodeError("this shape is not an image", expected="H x W, or H x W x 1 to 4", found=pixels.shape)


def _as_pixels(pixels: Array) -> Array:
    if pixels.dtype == np.uint8 or (pixels.dtype == np.uint16 and pixels.ndim == 2):
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind == "f":
        return _quantised(pixels)
    raise EncodeError("this type is not an image's", expected="uint8, bool, float, or uint16 H x W", found=pixels.dtype)


def _quantised(pixels: Array) -> Array:
    low, high = (float(pixels.min()), float(pixels.max())) if pixels.size else (0.0, 0.0)
    if not (low > -_TOLERANCE and high < 1 + _TOLERANCE):  # so written that NaN is refused as well
        raise EncodeError("float images run from 0 to 1", expected="0 to 1", found=f"{low} to {high}")
    # Rounded, where webdataset cuts off: k / 255 must come back as k.
    return np.rint(np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)


def _codec(extension: str) -> Codec:
    def encoder(options: EncodeOptions) -> Encoder:
        return partial(_encode_image, extension=extension, options=options)

    return Codec(
        extension,
        (extension,),
        "an image",
        lambda limits: image_decoder(ImageSpec("numpy"), limits),
        encoder,
        kind="image",
    )


IMAGE_CODECS = (
    *map(_codec, _FORMATS),
    # Read only: Pillow writes no psd, and scales what it writes as ico.
    Codec("image", ("psd", "ico"), "an image", lambda limits: image_decoder(ImageSpec("numpy"), limits), kind="image"),
)
