"""`ImageSpec`: how to decode images (their form and size, and the packages that decode and resize them)."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, get_args

from shoal.errors import OptionError

__all__ = [
    "IMAGE_FORMS",
    "Fit",
    "ImageForm",
    "ImageSpec",
    "Interpolation",
    "JpegDecoder",
    "Resizer",
    "parse_image_spec",
]

Fit: TypeAlias = Literal["stretch", "crop", "pad"]
Interpolation: TypeAlias = Literal["area", "linear", "nearest"]
JpegDecoder: TypeAlias = Literal["fastest", "simplejpeg", "cv2", "pillow"]
Resizer: TypeAlias = Literal["fastest", "cv2", "pillow"]

_MAX_PIXELS = 1 << 30
_SIZED_NAME = re.compile(r"(?P<form>[^@]*)@(?P<height>\d{1,9})(x(?P<width>\d{1,9}))?")
_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,)}


@dataclass(frozen=True, slots=True)
class ImageForm:
    """What an image is decoded to: a container, uint8 or float32, and channels; ``mode`` None keeps those stored."""

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


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """How to decode images, and to which size; ``"rgb8@224"`` and ``"rgb8@224x320"`` are short for some of these.

    Without a size, pixels do not depend on the decoder that is installed, and equal those of webdataset. With a size,
    they depend on the decoder and the resizer; no image is decoded larger than needed.

    Attributes:
        form: One of the named forms, such as ``"rgb8"``; with a size, a form with fixed channels (not ``"numpy"``).
        size: Height and width of every image, or one int for both; None for the stored size.
        fit: If the aspect ratio differs: ``"stretch"`` the image, ``"crop"`` it on both sides, or ``"pad"`` it with
            black (transparent, if it has alpha).
        interpolation: ``"area"``: the mean of the area that a pixel covers; linear where the image is enlarged.
            ``"linear"``: between the four nearest pixels; much faster, less smooth. ``"nearest"``: one pixel; for masks
            and labels.
        scaled: Whether the JPEG decoder may decode to 1/2, 1/4 or 1/8 of the stored size, if that is not smaller than
            ``size``.
        decoder: The package that decodes JPEG; ``"fastest"`` takes the first of these that is installed. Pillow decodes
            other images.
        resizer: The package that resizes; ``"fastest"`` takes the first that is installed.

    Raises:
        OptionError: An attribute has another value.

    Examples:
        >>> ImageSpec("rgb8", 224)
        ImageSpec('rgb8', size=(224, 224))
        >>> ImageSpec(size=(224, 320), fit="crop").shape
        (224, 320, 3)
    """

    form: str = "rgb8"
    size: int | tuple[int, int] | None = None
    fit: Fit = "stretch"
    interpolation: Interpolation = "area"
    scaled: bool = True
    decoder: JpegDecoder = "fastest"
    resizer: Resizer = "fastest"

    def __post_init__(self) -> None:
        if self.form not in IMAGE_FORMS:
            near = get_close_matches(str(self.form), IMAGE_FORMS, 3) or list(IMAGE_FORMS)
            raise OptionError("no image form has this name", expected=" or ".join(near), found=repr(self.form))
        _check_among("fit", self.fit, get_args(Fit))
        _check_among("interpolation", self.interpolation, get_args(Interpolation))
        _check_among("decoder", self.decoder, get_args(JpegDecoder))
        _check_among("resizer", self.resizer, get_args(Resizer))
        object.__setattr__(self, "size", _check_image_size(self.size))
        if self.size is not None and self.shape is None:
            sized = [name for name, form in IMAGE_FORMS.items() if form.mode is not None]
            hint = "as stored, images of one field may have different channels"
            raise OptionError("this form has no size", expected=" or ".join(sized), found=self.form, hint=hint)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Height, width and channels if known, or None; a gray image has no axis for channels."""
        mode = IMAGE_FORMS[self.form].mode
        return (*self.size, *_CHANNELS[mode]) if isinstance(self.size, tuple) and mode is not None else None

    def __repr__(self) -> str:
        """Show the form, and the attributes that differ from their defaults."""
        changed = [field.name for field in fields(self)[1:] if getattr(self, field.name) != field.default]
        return f"ImageSpec({', '.join([repr(self.form), *(f'{name}={getattr(self, name)!r}' for name in changed)])})"


def parse_image_spec(name: str) -> ImageSpec:
    """Return the spec of a name such as ``"rgb8@224"`` or ``"rgb8@224x320"`` (height x width).

    Raises:
        OptionError: The form is unknown, or there is no size after the ``@``.

    Examples:
        >>> parse_image_spec("l8@64x32").size
        (64, 32)
    """
    match = _SIZED_NAME.fullmatch(name)
    if match is None:
        expected = "a form with a size, such as 'rgb8@224' or 'rgb8@224x320' (height x width)"
        raise OptionError("no decode spec has this name", expected=expected, found=repr(name))
    return ImageSpec(match["form"], (int(match["height"]), int(match["width"] or match["height"])))


def _check_among(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{name} is unknown", expected=" or ".join(map(repr, known)), found=repr(value))


def _check_image_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else size
    valid = isinstance(sides, tuple | list) and len(sides) == 2 and all(type(n) is int and n > 0 for n in sides)
    if not valid or sides[0] * sides[1] > _MAX_PIXELS:
        expected = f"(height, width) of at least 1 and {_MAX_PIXELS} pixels at most, or one number"
        raise OptionError("this is not the size of an image", expected=expected, found=repr(size))
    return sides[0], sides[1]
