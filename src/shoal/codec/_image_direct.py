"""A colour JPEG straight to its row of a batch, with as little Python for each image as there can be.

Threads decode side by side, but Python runs in one of them at a time: what is known of an image's size is worked out
once for each size, and everything that is not the usual case is left to the general way.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from shoal._optional import require
from shoal.codec._array import Array
from shoal.codec._codec import Buffer, Limits
from shoal.codec._image_read import JPEG_MAGIC
from shoal.codec._image_resize import cv2_interpolation, shrink_factor
from shoal.codec._image_spec import ImageSpec

__all__ = ["Fill", "direct_filler"]

Fill = Callable[[Buffer, Array], None]
_MOST_SIZES = 4096
_Plan = tuple[int, int, int] | None
"""Height and width to decode to, and how to resize; None where the general way must do it."""


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
