"""Images: from bytes to pixels."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from shoal._optional import require
from shoal.errors import DecodeError

from ._arrays import Array
from ._codec import Buffer, Decoder, Limits, SizedDecoder
from ._frameworks import tensor
from ._image_spec import IMAGE_FORMS, Fit, ImageForm, ImageSpec, Interpolation, JpegDecoder, Resizer

__all__ = ["image_decoder", "pixel_reader", "shrink_factor"]

Fill = Callable[[Buffer, Array], None]
_Plan = tuple[int, int, int] | None
"""Height and width to decode to, and how to resize; None where the general way must do it."""
Mode: TypeAlias = Literal["L", "RGB", "RGBA"] | None
Factor: TypeAlias = Callable[[int, int], int]
"""Given height and width, by how much a decoder may divide them: 1, 2, 4 or 8."""
Read: TypeAlias = Callable[[Buffer, Factor, Array | None], Array]
"""Bytes to pixels. An array that has just their shape may be given to be filled, and is returned if it was."""
Resize: TypeAlias = Callable[[Array, Array, Interpolation], None]
"""Fills the second array with the pixels of the first."""


# ----------------------------------------------------- images to values, as large as they are stored or all of one size


def image_decoder(spec: ImageSpec, limits: Limits) -> Decoder:
    """The function that turns an image's bytes into what ``spec`` says; a `SizedDecoder` where that is known."""
    form = IMAGE_FORMS[spec.form]
    if spec.shape is not None:
        return _sized_decoder(spec, form, spec.shape, limits)
    if form.container == "pil":
        open_image = open_with_pillow(limits)
        return lambda data: open_image(data, _whole).convert(form.mode)
    read = pixel_reader(form.mode, limits, spec.decoder)
    return _finisher(form, lambda data: read(data, _whole, None))


def _whole(height: int, width: int) -> int:
    del height, width
    return 1


def _finisher(form: ImageForm, read: Decoder) -> Decoder:
    if form.container == "torch":
        return lambda data: tensor(_channels_first(_scaled(read(data)) if form.floating else read(data)))
    return (lambda data: _scaled(read(data))) if form.floating else read


def _scaled(pixels: Array, out: Array | None = None) -> Array:
    scaled: Array = np.divide(pixels, np.float32(255), out=out, dtype=np.float32)
    return scaled


def _channels_first(pixels: Array) -> Array:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels


def _sized_decoder(spec: ImageSpec, form: ImageForm, shape: tuple[int, ...], limits: Limits) -> Decoder:
    read, resize = pixel_reader(form.mode, limits, spec.decoder), resizer(spec.resizer)
    factor = partial(_factor, spec)

    def decode_into(data: Buffer, out: Array) -> None:
        pixels = read(data, factor, out)
        if pixels is not out:
            fill(out, pixels, spec, resize)

    filler = direct_filler(spec, form.mode, shape, limits, decode_into)
    levels = SizedDecoder(shape, np.dtype(np.uint8), filler)
    if form.container == "pil":
        image_of = require("PIL.Image", extra="images").fromarray
        return lambda data: image_of(levels(data))
    if form.container == "torch":
        return _finisher(form, levels)
    if form.floating:
        return SizedDecoder(shape, np.dtype(np.float32), lambda data, out: _scale_into(levels(data), out))
    return levels


def _factor(spec: ImageSpec, height: int, width: int) -> int:
    return shrink_factor(height, width, spec)


def _scale_into(pixels: Any, out: Array) -> None:
    _scaled(pixels, out)


# ------------------------------------------------------------------------- a colour JPEG straight to its row of a batch


# Threads decode side by side, but Python runs in one of them at a time: what is known of an image's size is worked out
# once for each size, and everything that is not the usual case is left to the general way.

_MOST_SIZES = 4096


def direct_filler(spec: ImageSpec, mode: str | None, shape: tuple[int, ...], limits: Limits, general: Fill) -> Fill:
    """The function that fills rows; ``general`` where the fastest packages are not there or not wanted."""
    if mode != "RGB" or spec.fit != "stretch" or not _is_chosen(spec):
        return general
    simplejpeg, resize = require("simplejpeg", extra="images"), require("cv2", extra="images").resize
    header, decode = simplejpeg.decode_jpeg_header, simplejpeg.decode_jpeg
    size, plans = (shape[1], shape[0]), dict[tuple[int, int], _Plan]()

    def planned(height: int, width: int) -> _Plan:
        if len(plans) >= _MOST_SIZES:
            plans.clear()
        plan = plans[height, width] = _plan(height, width, spec, shape, limits)
        return plan

    def fill(data: Buffer, out: Array) -> None:
        if data[:3] == JPEG_MAGIC:
            try:
                height, width, space, _ = header(data)
                plan = plans[height, width] if (height, width) in plans else planned(height, width)
                if plan is not None and space == "YCbCr":
                    least_height, least_width, how = plan
                    pixels = decode(
                        data, "RGB", fastdct=False, fastupsample=False, min_height=least_height, min_width=least_width
                    )
                    made = resize(pixels, size, out, 0, 0, how)
                    if made is not out:
                        out[...] = made
                    return
            except ValueError:
                pass  # Pillow has the last word on damaged files
        general(data, out)

    return fill


def _is_chosen(spec: ImageSpec) -> bool:
    """Whether simplejpeg is what decodes, and cv2 what resizes."""
    decodes = spec.decoder == "simplejpeg" or (spec.decoder == "fastest" and find_spec("simplejpeg") is not None)
    return decodes and (spec.resizer == "cv2" or (spec.resizer == "fastest" and find_spec("cv2") is not None))


def _plan(height: int, width: int, spec: ImageSpec, shape: tuple[int, ...], limits: Limits) -> _Plan:
    divisor = shrink_factor(height, width, spec)
    height, width = -(-height // divisor), -(-width // divisor)
    if height * width * 3 > limits.max_bytes or (height, width) == shape[:2]:
        return None
    shrinks = height >= shape[0] and width >= shape[1]
    return height, width, cv2_interpolation(spec.interpolation, shrinks=shrinks)


# ------------------------------------------------------------------------------------------- an image's bytes to pixels


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


# ------------------------------------------------------------------ pixels to another size, into an array that is there


_LEAST_SIDE = 16
"""Below it several scales of libjpeg-turbo give the same size, so that it does not tell which one was used."""


class Box(NamedTuple):
    """A part of an image."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: Array) -> Array:
        """That part, as a view."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


def boxes(height: int, width: int, size: tuple[int, int], fit: Fit) -> tuple[Box, Box]:
    """What is taken of an image, and what of ``size`` it fills.

    Example:
        >>> boxes(100, 200, (50, 50), "crop")
        (Box(top=0, left=50, height=100, width=100), Box(top=0, left=0, height=50, width=50))
        >>> boxes(100, 200, (50, 50), "pad")
        (Box(top=0, left=0, height=100, width=200), Box(top=12, left=0, height=25, width=50))
    """
    whole, target = Box(0, 0, height, width), Box(0, 0, *size)
    if fit == "crop":
        scale = min(height / size[0], width / size[1])
        return _centred(size[0] * scale, size[1] * scale, whole), target
    if fit == "pad":
        scale = max(height / size[0], width / size[1])
        return whole, _centred(height / scale, width / scale, target)
    return whole, target


def _centred(height: float, width: float, within: Box) -> Box:
    high, wide = (max(1, min(round(side), most)) for side, most in ((height, within.height), (width, within.width)))
    return Box((within.height - high) // 2, (within.width - wide) // 2, high, wide)


def shrink_factor(height: int, width: int, spec: ImageSpec) -> int:
    """By how much a decoder may divide the sides: what is taken stays at least as large as what it fills.

    Only by 2, 4 and 8: every decoder has these, and for 5/8 to 7/8 libjpeg-turbo takes longer than for all of it.

    Example:
        >>> [shrink_factor(side, side, ImageSpec(size=100)) for side in (199, 200, 799, 5000)]
        [1, 2, 4, 8]
    """
    if not isinstance(spec.size, tuple) or not spec.scaled or spec.interpolation == "nearest":
        return 1
    if max(height, width) < _LEAST_SIDE:
        return 1
    taken, filled = boxes(height, width, spec.size, spec.fit)
    most = min(taken.height // filled.height, taken.width // filled.width)
    return next((factor for factor in (8, 4, 2) if factor <= most), 1)


def fill(out: Array, pixels: Array, spec: ImageSpec, resize: Resize) -> None:
    """Fill ``out`` with an image, as the spec's fit and interpolation say."""
    taken, filled = boxes(pixels.shape[0], pixels.shape[1], (out.shape[0], out.shape[1]), spec.fit)
    part, place = taken.of(pixels), filled.of(out)
    if place.shape != out.shape:
        out[...] = 0
    if part.shape == place.shape:
        place[...] = part
    else:
        resize(part, place, spec.interpolation)


def resizer(name: Resizer) -> Resize:
    """The function that resizes. Raises MissingExtraError when the package is not installed."""
    if name == "cv2" or (name == "fastest" and find_spec("cv2")):
        return _cv2_resize()
    return _pillow_resize()


def _shrinks(pixels: Array, out: Array) -> bool:
    return bool(pixels.shape[0] >= out.shape[0] and pixels.shape[1] >= out.shape[1])


def cv2_interpolation(interpolation: Interpolation, *, shrinks: bool) -> int:
    """What cv2 calls it."""
    cv2 = require("cv2", extra="images")
    if interpolation == "area" and shrinks:  # else cv2's "area" is neither area nor linear
        return int(cv2.INTER_AREA)
    return int(cv2.INTER_NEAREST_EXACT if interpolation == "nearest" else cv2.INTER_LINEAR)


def _cv2_resize() -> Resize:
    cv2 = require("cv2", extra="images")

    def resize(pixels: Array, out: Array, interpolation: Interpolation) -> None:
        how = cv2_interpolation(interpolation, shrinks=_shrinks(pixels, out))
        made = cv2.resize(pixels, (out.shape[1], out.shape[0]), dst=out, interpolation=how)
        if not np.may_share_memory(made, out):
            out[...] = made

    return resize


def _pillow_resize() -> Resize:
    pillow = require("PIL.Image", extra="images")

    def resize(pixels: Array, out: Array, interpolation: Interpolation) -> None:
        height, width = pixels.shape[:2]
        # Pillow multiplies the colours of RGBA by its alpha first, so that a resized picture differs from cv2's.
        mode = {2: "L", 3: "RGB"}[pixels.ndim] if pixels.shape[2:] != (4,) else "RGBX"
        image = pillow.frombytes(mode, (width, height), pixels.tobytes())
        size = (out.shape[1], out.shape[0])
        if interpolation == "nearest":
            made = image.resize(size, pillow.Resampling.NEAREST)
        elif interpolation == "area" and _shrinks(pixels, out):
            made = image.resize(size, pillow.Resampling.HAMMING)
        else:  # `resize` would smooth, too
            made = image.transform(size, pillow.Transform.EXTENT, (0, 0, width, height), pillow.Resampling.BILINEAR)
        out[...] = np.asarray(made)

    return resize
