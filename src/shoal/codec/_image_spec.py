"""What an image is to become, as a value: its form, its size, and what decodes and resizes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    "image_spec_named",
]

Fit: TypeAlias = Literal["stretch", "crop", "pad"]
Interpolation: TypeAlias = Literal["area", "linear", "nearest"]
JpegDecoder: TypeAlias = Literal["fastest", "simplejpeg", "cv2", "pillow"]
Resizer: TypeAlias = Literal["fastest", "cv2", "pillow"]

_MOST_PIXELS = 1 << 30
_SIZED = re.compile(r"(?P<form>[^@]*)@(?P<height>\d{1,9})(x(?P<width>\d{1,9}))?")
_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,)}


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


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """How to decode images, and to which size; ``"rgb8@224"`` and ``"rgb8@224x320"`` are short for some of these.

    Without a size, pixels are the same whichever decoder is installed, and those of webdataset. With one they are what
    the decoder and the resizer make; nothing is decoded larger than needed.

    Attributes:
        form: One of the named forms, such as ``"rgb8"``; with a size, one that says its channels (not ``"numpy"``).
        size: Height and width of every image, or one number for both; None for as large as stored.
        fit: Where the shape differs: ``"stretch"`` the image, ``"crop"`` what sticks out on both sides, or ``"pad"``
            with black (transparent, where there is alpha).
        interpolation: ``"area"``: the mean of what a pixel covers, and linear where the image grows. ``"linear"``:
            between the four nearest pixels; much faster, less smooth. ``"nearest"``: one pixel; for masks and labels.
        scaled: Let the JPEG decoder give 1/2, 1/4 or 1/8 of the size, where that is still not less than is asked for.
        decoder: What decodes JPEG; ``"fastest"`` takes the first of these that is installed. Other images: Pillow.
        resizer: What resizes; ``"fastest"`` likewise.

    Raises:
        OptionError: A value is none of these.

    Example:
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
        for name, kind in (("fit", Fit), ("interpolation", Interpolation), ("decoder", JpegDecoder)):
            _check_among(name, getattr(self, name), get_args(kind))
        _check_among("resizer", self.resizer, get_args(Resizer))
        object.__setattr__(self, "size", _checked_size(self.size))
        if self.size is not None and self.shape is None:
            sized = [name for name, form in IMAGE_FORMS.items() if form.mode is not None]
            hint = "as stored, images of one field may have different channels"
            raise OptionError("this form has no size", expected=" or ".join(sized), found=self.form, hint=hint)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Height, width and channels, where they are known; a gray image has no axis for channels."""
        mode = IMAGE_FORMS[self.form].mode
        return (*self.size, *_CHANNELS[mode]) if isinstance(self.size, tuple) and mode is not None else None

    def __repr__(self) -> str:
        """What is not as usual."""
        said = {name: getattr(self, name) for name in ("size", "fit", "interpolation", "scaled", "decoder", "resizer")}
        usual = {name: field.default for name, field in self.__dataclass_fields__.items()}
        parts = [f"{name}={value!r}" for name, value in said.items() if value != usual[name]]
        return f"ImageSpec({', '.join([repr(self.form), *parts])})"


def image_spec_named(name: str) -> ImageSpec:
    """The spec that ``"rgb8@224"`` or ``"rgb8@224x320"`` (height x width) is short for.

    Raises:
        OptionError: There is no such form, or no size after the sign.

    Example:
        >>> image_spec_named("l8@64x32").size
        (64, 32)
    """
    found = _SIZED.fullmatch(name)
    if found is None:
        expected = "a form with a size, such as 'rgb8@224' or 'rgb8@224x320' (height x width)"
        raise OptionError("no decode spec has this name", expected=expected, found=repr(name))
    return ImageSpec(found["form"], (int(found["height"]), int(found["width"] or found["height"])))


def _check_among(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{name} is unknown", expected=" or ".join(map(repr, known)), found=repr(value))


def _checked_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    both = (size, size) if isinstance(size, int) else size
    whole = isinstance(both, tuple | list) and len(both) == 2 and all(type(side) is int and side > 0 for side in both)
    if not whole or both[0] * both[1] > _MOST_PIXELS:
        expected = f"(height, width) of at least 1 and {_MOST_PIXELS} pixels at most, or one number"
        raise OptionError("this is not the size of an image", expected=expected, found=repr(size))
    return both[0], both[1]
