"""Pixels to another size, into an array that is there: by cv2, or by Pillow where that is not installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import numpy as np

from shoal._optional import require
from shoal.codec._array import Array
from shoal.codec._image_spec import Fit, ImageSpec, Interpolation, Resizer

__all__ = ["Resize", "fill", "resizer", "shrink_factor"]

Resize: TypeAlias = Callable[[Array, Array, Interpolation], None]
"""Fills the second array with the pixels of the first."""


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
