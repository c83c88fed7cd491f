"""Image codecs: bytes to pixels, as large as stored or resized to one size, and images to bytes.

JPEG is decoded by simplejpeg or cv2 if installed, other images by Pillow; cv2 or Pillow resize. Pillow encodes PIL
images, arrays and tensors.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from shoal._optional import require
from shoal._typing import AnyArray
from shoal.errors import DecodeError, EncodeError

from ._arrays import as_array
from ._codec import Buffer, Codec, Decoder, EncodeOptions, Encoder, Limits, SizedDecoder
from ._frameworks import tensor
from ._image_spec import IMAGE_FORMS, Fit, ImageForm, ImageSpec, Interpolation, JpegDecoder, Resizer

__all__ = ["IMAGE_CODECS", "image_decoder", "pixel_reader", "shrink_factor"]

_Fill = Callable[[Buffer, AnyArray], None]
_SizePlan = tuple[int, int, int] | None
"""Height and width to decode to, and cv2's interpolation; None if the general decoder must be used."""
_Mode: TypeAlias = Literal["L", "RGB", "RGBA"] | None
_Factor: TypeAlias = Callable[[int, int], int]
"""From height and width to the divisor that a decoder may apply to both: 1, 2, 4 or 8."""
_Read: TypeAlias = Callable[[Buffer, _Factor, AnyArray | None], AnyArray]
"""From bytes to pixels. If the array that is passed has their shape, it may be filled and returned."""
_Resize: TypeAlias = Callable[[AnyArray, AnyArray, Interpolation], None]
"""Fills the second array with the pixels of the first."""


_MAX_CACHED_SIZES = 4096
# Pillow detects the format by content, whatever the field's name is. By default it tries all formats that it knows,
# including those that start another program (EPS runs Ghostscript) and those that are no images.
_DECODED_FORMATS = (
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
_JPEG_END = b"\xff\xd9"
_WIDE_MODES = ("I;16", "I;16L", "I;16B", "I", "F")
_STORED_MODES = ("L", "LA", "RGB", "RGBA")
_MIN_SHRINK_SIDE = 16
"""Below it, several scales of libjpeg-turbo give the same size, so that the scale cannot be chosen by size."""
_CV2_REDUCED = {1: 0, 2: 16, 4: 32, 8: 64}
"""The bits of ``IMREAD_REDUCED_COLOR_2`` and so on for the divisor, without the bit for colour."""


def image_decoder(spec: ImageSpec, limits: Limits) -> Decoder:
    """Return the function that decodes images by ``spec``; a `SizedDecoder` if all its arrays have one size."""
    form = IMAGE_FORMS[spec.form]
    if spec.shape is not None:
        return _sized_decoder(spec, form, spec.shape, limits)
    if form.container == "pil":
        open_image = _pillow_opener(limits)
        return lambda data: open_image(data, _keep_size).convert(form.mode)
    read = pixel_reader(form.mode, limits, spec.decoder)
    return _to_container(form, lambda data: read(data, _keep_size, None))


def _keep_size(height: int, width: int) -> int:
    del height, width
    return 1


def _to_container(form: ImageForm, read: Decoder) -> Decoder:
    if form.container == "torch":
        return lambda data: tensor(_channels_first(_to_unit_range(read(data)) if form.floating else read(data)))
    return (lambda data: _to_unit_range(read(data))) if form.floating else read


def _to_unit_range(pixels: AnyArray, out: AnyArray | None = None) -> AnyArray:
    scaled: AnyArray = np.divide(pixels, np.float32(255), out=out, dtype=np.float32)
    return scaled


def _channels_first(pixels: AnyArray) -> AnyArray:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels


def _sized_decoder(spec: ImageSpec, form: ImageForm, shape: tuple[int, ...], limits: Limits) -> Decoder:
    read, resize = pixel_reader(form.mode, limits, spec.decoder), make_resizer(spec.resizer)
    factor = partial(shrink_factor, spec=spec)

    def decode_into(data: Buffer, out: AnyArray) -> None:
        pixels = read(data, factor, out)
        if pixels is not out:
            fit_pixels(out, pixels, spec, resize)

    levels = SizedDecoder(shape, np.dtype(np.uint8), _fast_decode_into(spec, form.mode, shape, limits, decode_into))

    def decode_floats_into(data: Buffer, out: AnyArray) -> None:
        _to_unit_range(levels(data), out)

    if form.container == "pil":
        from_array = require("PIL.Image", extra="images").fromarray
        return lambda data: from_array(levels(data))
    if form.container == "torch":
        return _to_container(form, levels)
    return SizedDecoder(shape, np.dtype(np.float32), decode_floats_into) if form.floating else levels


def _fast_decode_into(
    spec: ImageSpec, mode: str | None, shape: tuple[int, ...], limits: Limits, general: _Fill
) -> _Fill:
    """Return a faster ``general`` for colour JPEG if simplejpeg and cv2 are used; otherwise return ``general``.

    Threads that decode at the same time compete for the interpreter lock, so this function does little in Python: the
    size to decode to is computed once for each size, and other cases are left to ``general``.
    """
    if mode != "RGB" or spec.fit != "stretch" or not _uses_fast_path(spec):
        return general
    simplejpeg, resize = require("simplejpeg", extra="images"), require("cv2", extra="images").resize
    header, decode = simplejpeg.decode_jpeg_header, simplejpeg.decode_jpeg
    size, plans = (shape[1], shape[0]), dict[tuple[int, int], _SizePlan]()

    def add_plan(height: int, width: int) -> _SizePlan:
        if len(plans) >= _MAX_CACHED_SIZES:
            plans.clear()
        plan = plans[height, width] = _plan_size(height, width, spec, shape, limits)
        return plan

    def decode_into(data: Buffer, out: AnyArray) -> None:
        if data[:3] == _JPEG_MAGIC:
            try:
                height, width, space, _ = header(data)
                plan = plans[height, width] if (height, width) in plans else add_plan(height, width)
                if plan is not None and space == "YCbCr":
                    min_height, min_width, interpolation = plan
                    pixels = decode(
                        data, "RGB", fastdct=False, fastupsample=False, min_height=min_height, min_width=min_width
                    )
                    resized = resize(pixels, size, out, 0, 0, interpolation)
                    if resized is not out:
                        out[...] = resized
                    return
            except ValueError:
                pass  # Pillow decides whether the file is damaged
        general(data, out)

    return decode_into


def _uses_fast_path(spec: ImageSpec) -> bool:
    """Whether simplejpeg decodes and cv2 resizes."""
    decodes = spec.decoder == "simplejpeg" or (spec.decoder == "fastest" and find_spec("simplejpeg") is not None)
    return decodes and (spec.resizer == "cv2" or (spec.resizer == "fastest" and find_spec("cv2") is not None))


def _plan_size(height: int, width: int, spec: ImageSpec, shape: tuple[int, ...], limits: Limits) -> _SizePlan:
    divisor = shrink_factor(height, width, spec)
    height, width = -(-height // divisor), -(-width // divisor)
    if height * width * 3 > limits.max_bytes or (height, width) == shape[:2]:
        return None
    shrinks = height >= shape[0] and width >= shape[1]
    return height, width, _cv2_interpolation(spec.interpolation, shrinks=shrinks)


def pixel_reader(mode: _Mode, limits: Limits, decoder: JpegDecoder = "fastest") -> _Read:
    """Return the function that decodes images to pixels; raise MissingExtraError if a package is not installed."""
    with_pillow = _pillow_reader(mode, limits)
    if decoder == "simplejpeg" or (decoder == "fastest" and find_spec("simplejpeg")):
        return _with_jpeg_reader(with_pillow, _simplejpeg_reader(mode, limits))
    if decoder == "cv2" or (decoder == "fastest" and find_spec("cv2")):
        return _with_jpeg_reader(with_pillow, _cv2_reader(mode, limits))
    return with_pillow


def _with_jpeg_reader(
    with_pillow: _Read, read_jpeg: Callable[[Buffer, _Factor, AnyArray | None], AnyArray | None]
) -> _Read:
    """Read JPEG by ``read_jpeg``, and other images, or JPEG for which it returns None, by Pillow."""

    def read(data: Buffer, factor: _Factor, into: AnyArray | None) -> AnyArray:
        pixels = read_jpeg(data, factor, into) if data[:3] == _JPEG_MAGIC else None
        return with_pillow(data, factor, into) if pixels is None else pixels

    return read


def _pillow_opener(limits: Limits) -> Callable[[Buffer, _Factor], Any]:
    """Return the function that opens images with Pillow and decodes them."""
    open_header = _pillow_header_opener()

    def open_image(data: Buffer, factor: _Factor) -> Any:
        image = open_header(data)
        divisor = factor(image.height, image.width) if image.format == "JPEG" else 1
        if divisor > 1:
            # Pillow rounds the quotient of the sizes down to 1, 2, 4 or 8: it is the divisor or slightly larger here.
            image.draft(None, (image.width // divisor, image.height // divisor))
        _check_size(image.height, image.width, len(image.getbands()), limits)
        image.load()
        return image

    return open_image


def _pillow_header_opener() -> Callable[[Buffer], Any]:
    pillow = require("PIL.Image", extra="images")
    return lambda data: pillow.open(io.BytesIO(data), formats=_DECODED_FORMATS)


def _check_size(height: int, width: int, channels: int, limits: Limits) -> None:
    if width * height * channels > limits.max_bytes:
        raise DecodeError(
            "the image is too large",
            expected=f"at most {limits.max_bytes} bytes",
            found=f"{width} x {height} x {channels}",
            hint="raise max_bytes",
        )


def _pillow_reader(mode: _Mode, limits: Limits) -> _Read:
    open_image = _pillow_opener(limits)

    def read(data: Buffer, factor: _Factor, into: AnyArray | None) -> AnyArray:
        del into
        image = open_image(data, factor)
        # A copy, because NumPy's view of an image is read-only, and simplejpeg's arrays are not.
        return np.array(image.convert(mode)) if mode else _as_stored(image)

    return read


def _as_stored(image: Any) -> AnyArray:
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


def _simplejpeg_reader(mode: _Mode, limits: Limits) -> Callable[[Buffer, _Factor, AnyArray | None], AnyArray | None]:
    simplejpeg = require("simplejpeg", extra="images")

    def read(data: Buffer, factor: _Factor, into: AnyArray | None) -> AnyArray | None:
        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(data)
            target = _simplejpeg_target(space, mode)
            if target is None:
                return None
            divisor = factor(height, width)
            height, width = -(-height // divisor), -(-width // divisor)
            _check_size(height, width, 3, limits)
            fits = into is not None and into.shape[:2] == (height, width) and into.flags.c_contiguous
            buffer = into if fits else None
            pixels: AnyArray = simplejpeg.decode_jpeg(
                data, target, fastdct=False, fastupsample=False, min_height=height, min_width=width, buffer=buffer
            )
        except DecodeError:
            raise
        except ValueError:
            return None  # Pillow decides whether the file is damaged
        if buffer is not None:
            return buffer
        return pixels[:, :, 0] if target == "GRAY" else pixels

    return read


def _simplejpeg_target(space: str, mode: _Mode) -> str | None:
    """Return the colour space to decode to, or None if only Pillow gives the same pixels as for other images."""
    if space == "Gray":
        return {None: "GRAY", "L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}[mode]
    # The luma plane differs from the gray of the clipped colours, and CMYK needs Pillow's conversion.
    return {None: "RGB", "RGB": "RGB", "RGBA": "RGBA"}.get(mode) if space in ("YCbCr", "RGB") else None


def _cv2_reader(mode: _Mode, limits: Limits) -> Callable[[Buffer, _Factor, AnyArray | None], AnyArray | None]:
    cv2 = require("cv2", extra="images")
    header = _pillow_header_opener()
    colours = {"L": cv2.IMREAD_GRAYSCALE, "RGB": cv2.IMREAD_COLOR_RGB}

    def read(data: Buffer, factor: _Factor, into: AnyArray | None) -> AnyArray | None:
        del into
        # Older versions of cv2 fill in the missing part of a truncated file without an error.
        if _JPEG_END not in bytes(data[-64:]):
            return None
        image = header(data)
        target = _cv2_target(image.mode, mode)
        if target is None:
            return None
        divisor = factor(image.height, image.width)
        _check_size(-(-image.height // divisor), -(-image.width // divisor), 3, limits)
        flags = colours[target] | cv2.IMREAD_IGNORE_ORIENTATION | _CV2_REDUCED[divisor]
        pixels: AnyArray | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        return pixels

    return read


def _cv2_target(stored: str, mode: _Mode) -> str | None:
    """Return the mode to decode to, or None if only Pillow gives the same pixels as for other images."""
    if stored == "L":
        return {None: "L", "L": "L", "RGB": "RGB"}.get(mode)
    return {None: "RGB", "RGB": "RGB"}.get(mode) if stored == "RGB" else None


class Box(NamedTuple):
    """A rectangle of an image."""

    top: int
    left: int
    height: int
    width: int

    def crop(self, pixels: AnyArray) -> AnyArray:
        """Return this part of the pixels, as a view."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


def boxes(height: int, width: int, size: tuple[int, int], fit: Fit) -> tuple[Box, Box]:
    """Return the part of an image that is used, and the part of ``size`` that it fills.

    Examples:
        >>> boxes(100, 200, (50, 50), "crop")
        (Box(top=0, left=50, height=100, width=100), Box(top=0, left=0, height=50, width=50))
        >>> boxes(100, 200, (50, 50), "pad")
        (Box(top=0, left=0, height=100, width=200), Box(top=12, left=0, height=25, width=50))
    """
    source, target = Box(0, 0, height, width), Box(0, 0, *size)
    if fit == "crop":
        scale = min(height / size[0], width / size[1])
        return _center(size[0] * scale, size[1] * scale, source), target
    if fit == "pad":
        scale = max(height / size[0], width / size[1])
        return source, _center(height / scale, width / scale, target)
    return source, target


def _center(height: float, width: float, within: Box) -> Box:
    rows, columns = max(1, min(round(height), within.height)), max(1, min(round(width), within.width))
    return Box((within.height - rows) // 2, (within.width - columns) // 2, rows, columns)


def shrink_factor(height: int, width: int, spec: ImageSpec) -> int:
    """Return the divisor that a decoder may apply to the sides, such that the part used is not smaller than its target.

    Only 1, 2, 4 and 8: every decoder supports these, and scales of 5/8 to 7/8 are slower in libjpeg-turbo than none.

    Examples:
        >>> [shrink_factor(side, side, ImageSpec(size=100)) for side in (199, 200, 799, 5000)]
        [1, 2, 4, 8]
    """
    if not isinstance(spec.size, tuple) or not spec.scaled or spec.interpolation == "nearest":
        return 1
    if max(height, width) < _MIN_SHRINK_SIDE:
        return 1
    source, target = boxes(height, width, spec.size, spec.fit)
    limit = min(source.height // target.height, source.width // target.width)
    return next((factor for factor in (8, 4, 2) if factor <= limit), 1)


def fit_pixels(out: AnyArray, pixels: AnyArray, spec: ImageSpec, resize: _Resize) -> None:
    """Fill ``out`` with an image, by the fit and the interpolation of the spec."""
    source_box, target_box = boxes(pixels.shape[0], pixels.shape[1], (out.shape[0], out.shape[1]), spec.fit)
    source, target = source_box.crop(pixels), target_box.crop(out)
    if target.shape != out.shape:
        out[...] = 0
    if source.shape == target.shape:
        target[...] = source
    else:
        resize(source, target, spec.interpolation)


def make_resizer(name: Resizer) -> _Resize:
    """Return the function that resizes; raise MissingExtraError if the package is not installed."""
    if name == "cv2" or (name == "fastest" and find_spec("cv2")):
        return _cv2_resizer()
    return _pillow_resizer()


def _is_smaller(out: AnyArray, pixels: AnyArray) -> bool:
    """Whether neither side of ``out`` is longer than that of ``pixels``."""
    return bool(pixels.shape[0] >= out.shape[0] and pixels.shape[1] >= out.shape[1])


def _cv2_interpolation(interpolation: Interpolation, *, shrinks: bool) -> int:
    cv2 = require("cv2", extra="images")
    if interpolation == "area" and shrinks:  # when enlarging, cv2's "area" is neither area nor linear
        return int(cv2.INTER_AREA)
    return int(cv2.INTER_NEAREST_EXACT if interpolation == "nearest" else cv2.INTER_LINEAR)


def _cv2_resizer() -> _Resize:
    cv2 = require("cv2", extra="images")

    def resize(pixels: AnyArray, out: AnyArray, interpolation: Interpolation) -> None:
        flag = _cv2_interpolation(interpolation, shrinks=_is_smaller(out, pixels))
        resized = cv2.resize(pixels, (out.shape[1], out.shape[0]), dst=out, interpolation=flag)
        if not np.may_share_memory(resized, out):
            out[...] = resized

    return resize


def _pillow_resizer() -> _Resize:
    pillow = require("PIL.Image", extra="images")

    def resize(pixels: AnyArray, out: AnyArray, interpolation: Interpolation) -> None:
        height, width = pixels.shape[:2]
        # Pillow multiplies the colours of RGBA by alpha before it resizes, unlike cv2.
        mode = {2: "L", 3: "RGB"}[pixels.ndim] if pixels.shape[2:] != (4,) else "RGBX"
        image = pillow.frombytes(mode, (width, height), pixels.tobytes())
        size = (out.shape[1], out.shape[0])
        if interpolation == "nearest":
            resized = image.resize(size, pillow.Resampling.NEAREST)
        elif interpolation == "area" and _is_smaller(out, pixels):
            resized = image.resize(size, pillow.Resampling.HAMMING)
        else:  # `resize` would smooth as well
            resized = image.transform(size, pillow.Transform.EXTENT, (0, 0, width, height), pillow.Resampling.BILINEAR)
        out[...] = np.asarray(resized)

    return resize


_TOLERANCE = 0.001  # for rounding errors of float pipelines beyond 0 and 1, as in webdataset
_CHANNELS = (1, 2, 3, 4)
_LOSSY = ("JPEG", "WEBP", "AVIF")
_GRAY_MODES = ("1", "L", "I;16", "I")

# Pillow's name of the format each extension is written in.
_FORMAT_OF_EXTENSION = {
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
        image = _to_bilevel(image)
    elif extension == "pgm" and image.mode == "1":
        image = image.convert("L")
    stream = io.BytesIO()
    image.save(
        stream,
        _FORMAT_OF_EXTENSION[extension],
        **({"quality": options.quality} if _FORMAT_OF_EXTENSION[extension] in _LOSSY else {}),
    )
    return stream.getvalue()


def _to_bilevel(image: Any) -> Any:
    """Convert an image to one bit per pixel; raise EncodeError if it has other colours than black and white."""
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
        pixels = pixels.transpose(1, 2, 0)  # tensors are channels-first, as "torchrgb" decodes them
    return pillow.fromarray(np.ascontiguousarray(_to_integer_pixels(_drop_gray_axis(pixels))))


def _drop_gray_axis(pixels: AnyArray) -> AnyArray:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        return pixels[:, :, 0]
    if pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in _CHANNELS):
        return pixels
    raise EncodeError("this shape is not an image", expected="H x W, or H x W x 1 to 4", found=pixels.shape)


def _to_integer_pixels(pixels: AnyArray) -> AnyArray:
    if pixels.dtype == np.uint8 or (pixels.dtype == np.uint16 and pixels.ndim == 2):
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind == "f":
        return _quantize(pixels)
    raise EncodeError("this type is not an image's", expected="uint8, bool, float, or uint16 H x W", found=pixels.dtype)


def _quantize(pixels: AnyArray) -> AnyArray:
    low, high = (float(pixels.min()), float(pixels.max())) if pixels.size else (0.0, 0.0)
    if not (low > -_TOLERANCE and high < 1 + _TOLERANCE):  # negated, so that NaN is rejected too
        raise EncodeError("float images run from 0 to 1", expected="0 to 1", found=f"{low} to {high}")
    # Rounded, where webdataset truncates: k / 255 must be read as k.
    return np.rint(np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)


def _image_codec(extension: str) -> Codec:
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
    *map(_image_codec, _FORMAT_OF_EXTENSION),
    # Read only: Pillow writes no psd, and scales what it writes as ico.
    Codec("image", ("psd", "ico"), "an image", lambda limits: image_decoder(ImageSpec("numpy"), limits), kind="image"),
)
