"""Pictures made here: images made small, arrays as heat maps. A browser never gets a dataset's own image file."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.codec import Buffer
from shoal.errors import DecodeError, MissingExtraError

__all__ = ["Picture", "array_picture", "as_plane", "image_picture", "looks_like_image", "require_pillow", "slices_in"]

Array = npt.NDArray[Any]
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


def _png(pixels: Array) -> Picture:
    return Picture(_saved(require_pillow().fromarray(pixels), "PNG"), "image/png")


# --------------------------------------------------------------------------------------------------------------- arrays


def looks_like_image(array: Array) -> bool:
    """Whether an array is most likely pixels: three or four channels, last or first, as bytes or from 0 to 1."""
    if array.ndim != 3 or min(array.shape) == 0:
        return False
    channels = array.shape[-1] in (3, 4) or array.shape[0] in (3, 4)
    large = sorted(array.shape)[1] > 4
    return channels and large and (array.dtype == np.uint8 or _is_unit(array))


def _is_unit(array: Array) -> bool:
    if array.dtype.kind != "f":
        return False
    some = array.reshape(-1)[: 1 << 16]
    return bool(np.isfinite(some).all() and some.size and some.min() >= 0 and some.max() <= 1)


def slices_in(array: Array) -> int:
    """How many planes an array has: one for each combination of the first dimensions."""
    return int(np.prod(array.shape[:-2])) if array.ndim > 2 and not looks_like_image(array) else 1


def as_plane(array: Array, at: int = 0) -> Array:
    """One plane of an array of two dimensions or more, thinned out to what a picture can show."""
    plane = array.reshape(-1, *array.shape[-2:])[at % max(1, slices_in(array))] if array.ndim > 2 else array
    steps = [max(1, -(-length // 1024)) for length in plane.shape]
    return plane[:: steps[0], :: steps[1]]


def array_picture(array: Array, at: int = 0) -> Picture:
    """An array of two dimensions or more as a picture: pixels as they are, else a heat map. Raises DecodeError."""
    if array.dtype.kind not in "biufc" or array.ndim < 2 or array.size == 0:
        raise DecodeError("this array cannot be drawn", found=f"{array.dtype} {array.shape}")
    return _png(_pixels(array) if looks_like_image(array) else _shaded(as_plane(array, at)))


def _pixels(array: Array) -> Array:
    pixels = array if array.shape[-1] in (3, 4) else np.moveaxis(array, 0, -1)
    steps = [max(1, -(-length // 1024)) for length in pixels.shape[:2]]
    pixels = pixels[:: steps[0], :: steps[1]]
    return np.ascontiguousarray(pixels if pixels.dtype == np.uint8 else (pixels * 255).round().astype(np.uint8))


def _shaded(plane: Array) -> Array:
    """Values as colours, from the smallest to the largest; what is no number is grey."""
    levels, known = _levels(plane)
    colours: Array = _MAP[levels]
    colours[~known] = _UNKNOWN
    return colours


def _levels(plane: Array) -> tuple[Array, Array]:
    """Values as 0 to 255, from the smallest to the largest, and which of them are numbers at all."""
    with np.errstate(all="ignore"):
        values = (np.abs(plane) if plane.dtype.kind == "c" else plane).astype(np.float64)
        known = np.isfinite(values)
        low, high = (values[known].min(), values[known].max()) if known.any() else (0.0, 1.0)
        span = high / 2 - low / 2  # halves, since the whole may be more than a number can be
        scaled = np.where(known, (values / 2 - low / 2) / (span if span > 0 else 1), 0)
    return (np.clip(scaled, 0, 1) * 255).astype(np.uint8), known
