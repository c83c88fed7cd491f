"""Images: the same pixels as webdataset's for each form; with a size, which pixels and into which memory."""

from __future__ import annotations

import io
import sys

import cv2
import numpy as np
import PIL.Image
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.autodecode import imagespecs

from shoal.codec import ImageSpec, Limits, SizedDecoder, decode, decode_spec, decoders, encode
from shoal.codec._images import boxes, pixel_reader, shrink_factor
from shoal.errors import DecodeError, MissingExtraError

DECODERS = ("simplejpeg", "cv2", "pillow")
RNG = np.random.default_rng(11)
NOISE = RNG.integers(0, 256, (123, 167, 4), dtype=np.uint8)
sides = st.integers(1, 300)
fits = st.sampled_from(["stretch", "crop", "pad"])


def smooth(height, width):
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * y / height, 255 * x / width, 255 - 127 * (y / height + x / width)], axis=2).astype(np.uint8)


def stored(pixels, form="JPEG", mode="RGB", **options):
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).convert(mode).save(stream, form, **options)
    return stream.getvalue()


JPEGS = {
    "colour": stored(NOISE),
    "coarse": stored(NOISE, quality=20),
    "fine": stored(NOISE, quality=100, subsampling=0),
    "progressive": stored(NOISE, progressive=True, subsampling=1),
    "plain rgb": stored(NOISE, keep_rgb=True),
    "gray": stored(NOISE, mode="L"),
    "cmyk": stored(NOISE, mode="CMYK"),
}
OTHERS = {
    "png": stored(NOISE, "PNG"),
    "png alpha": stored(NOISE, "PNG", "RGBA"),
    "png gray": stored(NOISE, "PNG", "L"),
    "png palette": stored(NOISE[:, :, :3], "PNG", "P"),
    "png 16": stored(NOISE, "PNG", "I;16"),
    "webp": stored(NOISE, "WEBP"),
    "bmp": stored(NOISE, "BMP"),
}


def decoded(data, spec, **options):
    return decode("jpg", data, decode_spec({"jpg": spec}, **options))


@given(height=sides, width=sides, size=st.tuples(sides, sides), fit=fits)
def test_boxes_lie_inside_in_the_middle_and_keep_the_shape(height, width, size, fit):
    taken, filled = boxes(height, width, size, fit)
    for box, whole in ((taken, (height, width)), (filled, size)):
        for start, side, most in ((box.top, box.height, whole[0]), (box.left, box.width, whole[1])):
            assert side >= 1
            assert 0 <= most - side - 2 * start <= 1
    if fit == "stretch":
        assert (taken[2:], filled[2:]) == ((height, width), size)
    else:  # each side of one of them is off by less than one pixel
        assert taken[2:] == (height, width) or filled[2:] == size
        scale = (min if fit == "crop" else max)(height / size[0], width / size[1])
        for one, other, by in ((taken.height, filled.height, scale), (taken.width, filled.width, scale)):
            assert abs(one / by - other) < 1 or abs(one - other * by) < 1


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), size=st.tuples(sides, sides), fit=fits)
def test_no_more_is_decoded_than_needed_and_no_less(height, width, size, fit):
    factor = shrink_factor(height, width, ImageSpec(size=size, fit=fit))
    taken, filled = boxes(height, width, size, fit)
    assert factor in (1, 2, 4, 8)
    if factor > 1:
        assert taken.height >= factor * filled.height
        assert taken.width >= factor * filled.width
    if factor < 8 and max(height, width) >= 16:
        assert taken.height < 2 * factor * filled.height or taken.width < 2 * factor * filled.width


def test_labels_are_never_averaged():
    assert shrink_factor(800, 800, ImageSpec(size=10, interpolation="nearest")) == 1
    assert shrink_factor(800, 800, ImageSpec(size=10, scaled=False)) == 1
    assert shrink_factor(800, 800, ImageSpec()) == 1


def test_crop_takes_the_middle_and_pad_adds_a_border():
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = 200
    png = encode("png", pixels)
    assert (decoded(png, ImageSpec(size=10, fit="crop")) == 200).all()
    padded = decoded(encode("png", np.full((20, 60, 3), 200, np.uint8)), ImageSpec(size=30, fit="pad"))
    assert (padded[10:20] == 200).all()
    assert not padded[:10].any()
    assert not padded[20:].any()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("form", ["rgb8", "l8", "rgba8", "numpy", "rgb"])
@pytest.mark.parametrize("name", JPEGS)
def test_without_a_size_every_decoder_gives_the_same_pixels(name, form, decoder):
    expected = decode("jpg", JPEGS[name], decode_spec(form))
    found = decoded(JPEGS[name], ImageSpec(form, decoder=decoder))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", JPEGS)
@pytest.mark.parametrize("form", ["rgb8", "l8", "rgba8"])
@pytest.mark.parametrize("size", [(123, 167), (61, 83), (40, 40), (31, 20), (15, 9), (200, 300)])
def test_with_a_size_every_decoder_gives_the_same_pixels(name, form, size):
    first, *others = (decoded(JPEGS[name], ImageSpec(form, size, decoder=decoder)) for decoder in DECODERS)
    assert all(np.array_equal(first, other) for other in others)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 70), width=st.integers(1, 70), factor=st.sampled_from([1, 2, 4, 8]))
def test_every_decoder_divides_sides_alike(height, width, factor):
    if height < factor or width < factor or max(height, width) < 16:
        factor = 1
    data = stored(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8))
    found = [pixel_reader("RGB", Limits(), decoder)(data, lambda *_: factor, None) for decoder in DECODERS]
    assert found[0].shape == (-(-height // factor), -(-width // factor), 3)
    assert all(np.array_equal(found[0], other) for other in found[1:])


HOW = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST_EXACT}


@pytest.mark.parametrize("interpolation", HOW)
def test_cv2_resizes_what_was_decoded(interpolation):
    whole = simplejpeg.decode_jpeg(JPEGS["colour"])
    spec = ImageSpec(size=(50, 70), interpolation=interpolation, scaled=False)
    assert np.array_equal(decoded(JPEGS["colour"], spec), cv2.resize(whole, (70, 50), interpolation=HOW[interpolation]))


@pytest.mark.parametrize("form", ["l8", "rgb8", "rgba8"])
@pytest.mark.parametrize("size", [(50, 70), (123, 70), (300, 200), (200, 100), (1, 1)])
@pytest.mark.parametrize("interpolation, most", [("linear", 1), ("nearest", 0)])
def test_pillow_resizes_as_cv2_does(form, size, interpolation, most):
    data = OTHERS["png alpha"]
    first, other = (
        decoded(data, ImageSpec(form, size, interpolation=interpolation, resizer=resizer)).astype(int)
        for resizer in ("cv2", "pillow")
    )
    assert np.abs(first - other).max() <= most


@pytest.mark.parametrize("form", ["l8", "rgb8", "rgba8"])
@pytest.mark.parametrize("size", [(50, 70), (30, 167), (122, 160), (10, 10)])
def test_pillow_averages_nearly_as_cv2_does(form, size):
    data = encode("png", np.dstack([smooth(123, 167), smooth(123, 167)[:, :, :1]]))
    first, other = (decoded(data, ImageSpec(form, size, resizer=resizer)).astype(int) for resizer in ("cv2", "pillow"))
    assert np.abs(first - other).max() <= 3


@pytest.mark.parametrize("size", [(200, 300), (200, 100), (60, 300)])
@pytest.mark.parametrize("resizer", ["cv2", "pillow"])
def test_area_is_linear_where_an_image_grows(size, resizer):
    area, linear = (
        decoded(OTHERS["png"], ImageSpec(size=size, interpolation=interpolation, resizer=resizer))
        for interpolation in ("area", "linear")
    )
    assert np.array_equal(area, linear)


@pytest.mark.parametrize("size", [(90, 120), (30, 40), (17, 17)])
@pytest.mark.parametrize("stored_size, levels", [((240, 320), 2), ((243, 325), 10)])
def test_a_scaled_image_is_the_same_picture(size, stored_size, levels):
    data = encode("jpg", smooth(*stored_size))
    scaled, whole = (decoded(data, ImageSpec(size=size, scaled=scaled)).astype(int) for scaled in (True, False))
    # A side that is not a multiple of 8 ends in a part of a pixel, so the picture moves, by less than a pixel.
    assert np.abs(scaled - whole).max() <= levels


@pytest.mark.parametrize("decoder", DECODERS)
def test_no_decoder_turns_an_image(decoder):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    turned = stored(NOISE, exif=exif)
    assert np.array_equal(
        decoded(turned, ImageSpec(decoder=decoder)), decode("jpg", JPEGS["colour"], decode_spec("rgb8"))
    )


@pytest.mark.parametrize("name", [*JPEGS, *OTHERS])
@pytest.mark.parametrize("form, channels", [("l8", ()), ("rgb8", (3,)), ("rgba8", (4,))])
def test_any_image_has_the_size_asked_for(name, form, channels):
    found = decoded({**JPEGS, **OTHERS}[name], f"{form}@20x30")
    assert (found.shape, found.dtype) == ((20, 30, *channels), np.uint8)


@pytest.mark.parametrize("mode", ["l", "rgb", "rgba"])
def test_every_form_holds_the_same_pixels(mode):
    levels = decoded(JPEGS["colour"], f"{mode}8@20x30")
    numbers = decoded(JPEGS["colour"], f"{mode}@20x30")
    assert numbers.dtype == np.float32
    assert np.array_equal(numbers, levels.astype(np.float32) / np.float32(255))
    first = levels.transpose(2, 0, 1) if levels.ndim == 3 else levels
    assert torch.equal(decoded(JPEGS["colour"], f"torch{mode}8@20x30"), torch.from_numpy(first.copy()))
    image = decoded(JPEGS["colour"], f"pil{mode}@20x30")
    assert (image.mode, image.size) == (mode.upper(), (30, 20))
    assert np.array_equal(np.asarray(image), levels)


def test_a_step_is_for_images_only():
    found = decoders(decode_spec("rgb8@4"), ["jpg", "seg.png", "json", "wav", "bin"])
    assert list(found) == ["jpg", "seg.png", "json"]


@pytest.mark.parametrize("form", ["l8", "rgb8", "rgba8", "rgb"])
@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("resizer", ["cv2", "pillow"])
@pytest.mark.parametrize("field", ["jpg", "jpg.gz"])
def test_a_row_is_filled_and_nothing_beside_it(form, fit, resizer, field):
    spec = decode_spec({"jpg": ImageSpec(form, (20, 30), fit=fit, resizer=resizer)})
    decoder = decoders(spec, [field])[field]
    assert isinstance(decoder, SizedDecoder)
    data = encode(field, JPEGS["colour"])
    batch = np.full((3, *decoder.shape), 77, decoder.dtype)
    decoder.decode_into(data, batch[1])
    assert np.array_equal(batch[1], decoder(data))
    assert (batch[0] == 77).all()
    assert (batch[2] == 77).all()


@pytest.mark.parametrize("mode, shape", [("L", (123, 167)), ("RGB", (123, 167, 3)), ("RGBA", (123, 167, 4))])
def test_an_image_of_just_that_size_is_decoded_where_it_belongs(mode, shape):
    out = np.zeros(shape, np.uint8)
    data = JPEGS["gray" if mode == "L" else "colour"]
    assert pixel_reader(mode, Limits(), "simplejpeg")(data, lambda *_: 1, out) is out
    assert np.array_equal(out, decode("jpg", data, decode_spec(f"{mode.lower()}8")))


def test_an_array_of_another_layout_is_filled_too():
    decoder = decoders(decode_spec({"jpg": "rgb8@123x167"}), ["jpg"])["jpg"]
    out = np.zeros((167, 123, 3), np.uint8).transpose(1, 0, 2)
    decoder.decode_into(JPEGS["colour"], out)
    assert np.array_equal(out, decoder(JPEGS["colour"]))


@pytest.mark.parametrize("form", ["torchrgb8", "pil", "numpy"])
def test_other_containers_have_no_place_in_an_array(form):
    size = None if form == "numpy" else 4
    assert not isinstance(decoders(decode_spec({"jpg": ImageSpec(form, size)}), ["jpg"])["jpg"], SizedDecoder)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("size", [None, (123, 167), 20])
def test_a_damaged_image_is_refused_by_every_decoder(decoder, size):
    whole = JPEGS["colour"]
    for data in (b"", b"not an image", whole[:10], whole[: len(whole) // 2], OTHERS["png"][:500]):
        with pytest.raises(DecodeError, match="an image") as caught:
            decoded(data, ImageSpec("rgb8", size, decoder=decoder))
        assert caught.value.field == "jpg"


def test_kept_bytes_stay_bytes():
    spec = decode_spec({"jpg": "rgb8@20"}, on_decode_error="keep")
    assert decode("jpg", b"not an image", spec) == b"not an image"
    assert decode("jpg", JPEGS["colour"], spec).shape == (20, 20, 3)
    assert not isinstance(decoders(spec, ["jpg"])["jpg"], SizedDecoder)


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_is_decoded_is_bounded_not_what_is_stored(decoder):
    whole = ImageSpec(size=40, decoder=decoder, scaled=False)
    most = 62 * 84 * 3
    with pytest.raises(DecodeError, match="too large"):
        decoded(JPEGS["colour"], whole, max_bytes=most)
    assert decoded(JPEGS["colour"], ImageSpec(size=40, decoder=decoder), max_bytes=most).shape == (40, 40, 3)


@pytest.mark.parametrize("option", [{"decoder": "simplejpeg"}, {"decoder": "cv2"}, {"resizer": "cv2", "size": 4}])
def test_a_package_that_was_asked_for_is_named_when_it_is_missing(monkeypatch, option):
    monkeypatch.setitem(sys.modules, option.get("decoder", "cv2"), None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shoal\[images\]'"):
        decoded(JPEGS["colour"], ImageSpec(**option))


def test_pillow_alone_is_enough(monkeypatch):
    monkeypatch.setattr("shoal.codec._images.find_spec", lambda name: None)
    for package in ("simplejpeg", "cv2"):
        monkeypatch.setitem(sys.modules, package, None)
    assert decoded(JPEGS["colour"], "rgb8@20x30").shape == (20, 30, 3)


def test_cv2_stands_in_for_simplejpeg(monkeypatch):
    monkeypatch.setattr("shoal.codec._images.find_spec", lambda name: name == "cv2" or None)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    calls = []
    imdecode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda *given: calls.append(given) or imdecode(*given))
    assert decoded(JPEGS["colour"], "rgb8@20x30").shape == (20, 30, 3)
    assert len(calls) == 1


SMALL_NOISE = np.random.default_rng(7).integers(0, 256, (61, 83, 3), dtype=np.uint8)


def encode_noise(mode, form, **options):
    image = PIL.Image.fromarray(SMALL_NOISE).convert(mode)
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


# Real files of every kind that the decoders take different ways for.
IMAGES = {
    "noise.jpg": encode_noise("RGB", "JPEG", quality=90),
    "coarse.jpg": encode_noise("RGB", "JPEG", quality=10),
    "fine.jpg": encode_noise("RGB", "JPEG", quality=100, subsampling=0),
    "progressive.jpg": encode_noise("RGB", "JPEG", progressive=True, subsampling=1),
    "plain_rgb.jpg": encode_noise("RGB", "JPEG", keep_rgb=True),
    "gray.jpg": encode_noise("L", "JPEG"),
    "cmyk.jpg": encode_noise("CMYK", "JPEG"),
    "rgb.png": encode_noise("RGB", "PNG"),
    "rgba.png": encode_noise("RGBA", "PNG"),
    "gray.png": encode_noise("L", "PNG"),
    "gray_alpha.png": encode_noise("LA", "PNG"),
    "palette.png": encode_noise("P", "PNG"),
    "bits.png": encode_noise("1", "PNG"),
    "deep.png": encode_noise("I;16", "PNG"),
    "lossy.webp": encode_noise("RGB", "WEBP"),
    "alpha.webp": encode_noise("RGBA", "WEBP", lossless=True),
    "a.bmp": encode_noise("RGB", "BMP"),
    "a.tiff": encode_noise("RGB", "TIFF"),
    "a.tif": encode_noise("CMYK", "TIFF"),
    "a.gif": encode_noise("P", "GIF"),
    "a.ppm": encode_noise("RGB", "PPM"),
    "a.pgm": encode_noise("L", "PPM"),
    "a.pbm": encode_noise("1", "PPM"),
    "really_a_png.jpg": encode_noise("RGB", "PNG"),
}


def as_numbers(value):
    if isinstance(value, PIL.Image.Image):
        return np.asarray(value), value.mode
    if isinstance(value, torch.Tensor):
        return value.numpy(), "tensor"
    return value, "array"


@pytest.mark.parametrize("spec", imagespecs)
@pytest.mark.parametrize("field", IMAGES)
def test_every_spec_gives_webdatasets_pixels(wds_decode, field, spec):
    ours, kind = as_numbers(decode(field, memoryview(IMAGES[field]), decode_spec(spec)))
    theirs, expected_kind = as_numbers(wds_decode(field, IMAGES[field], spec))
    assert (kind, ours.dtype, ours.shape) == (expected_kind, theirs.dtype, theirs.shape)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("field", [field for field in IMAGES if field.endswith("jpg")])
@pytest.mark.parametrize("spec", ["rgb8", "l8", "rgba8", "numpy"])
def test_pillow_alone_gives_the_same_pixels(monkeypatch, field, spec):
    with_simplejpeg = decode(field, IMAGES[field], decode_spec(spec))
    monkeypatch.setattr("shoal.codec._images.find_spec", lambda name: None)
    assert np.array_equal(decode(field, IMAGES[field], decode_spec(spec)), with_simplejpeg)


@pytest.mark.parametrize(
    "field, dtype, channels",
    [
        ("noise.jpg", np.uint8, (3,)),
        ("gray.jpg", np.uint8, ()),
        ("cmyk.jpg", np.uint8, (3,)),
        ("rgba.png", np.uint8, (4,)),
        ("gray.png", np.uint8, ()),
        ("gray_alpha.png", np.uint8, (2,)),
        ("palette.png", np.uint8, (3,)),
        ("bits.png", np.uint8, ()),
        ("deep.png", np.uint16, ()),
    ],
)
def test_numpy_gives_pixels_as_stored(field, dtype, channels):
    pixels = decode(field, IMAGES[field], decode_spec("numpy"))
    assert (pixels.dtype, pixels.shape) == (dtype, (61, 83, *channels))
    assert pixels.flags.writeable


@pytest.mark.parametrize("field", IMAGES)
def test_true_leaves_images_as_bytes(field):
    assert decode(field, IMAGES[field], decode_spec(True)) is IMAGES[field]


@pytest.mark.parametrize("field", ["noise.jpg", "rgb.png", "lossy.webp", "a.bmp", "a.gif", "a.ppm"])
@pytest.mark.parametrize("spec", ["rgb8", "pil", "numpy"])
def test_a_damaged_image_is_refused(field, spec):
    for data in (b"", b"not an image", IMAGES[field][:10], IMAGES[field][: len(IMAGES[field]) // 2]):
        with pytest.raises(DecodeError, match="an image") as caught:
            decode(field, data, decode_spec(spec))
        assert caught.value.field == field


def test_a_postscript_file_is_never_run():
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    assert PIL.Image.open(io.BytesIO(postscript)).format == "EPS", "Pillow left to itself would start Ghostscript"
    with pytest.raises(DecodeError, match="UnidentifiedImageError"):
        decode("a.jpg", postscript, decode_spec("rgb8"))


@pytest.mark.parametrize("field", ["noise.jpg", "rgb.png"])
@pytest.mark.parametrize("spec", ["rgb8", "pil", "numpy", "torchrgb"])
def test_an_image_larger_than_allowed_is_refused(field, spec):
    with pytest.raises(DecodeError, match="too large"):
        decode(field, IMAGES[field], decode_spec(spec, max_bytes=61 * 83 * 3 - 1))
    assert decode(field, IMAGES[field], decode_spec(spec, max_bytes=61 * 83 * 3)) is not None
