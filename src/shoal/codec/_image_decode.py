"""Images to values, as large as they are stored or all of one size."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from shoal._optional import require
from shoal.codec._array import Array
from shoal.codec._codec import Buffer, Decoder, Limits, SizedDecoder
from shoal.codec._image_direct import direct_filler
from shoal.codec._image_read import open_with_pillow, pixel_reader
from shoal.codec._image_resize import fill, resizer, shrink_factor
from shoal.codec._image_spec import IMAGE_FORMS, ImageForm, ImageSpec
from shoal.codec._torch import tensor

__all__ = ["image_decoder"]


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
