"""Images and audio in samples: stored as files, decoded when they are read, written back unchanged."""

from __future__ import annotations

import io
import pickle
from typing import Annotated

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

from shoal import codec
from shoal.errors import DecodeError, SchemaMismatchError
from shoal.sample import PackableSample, packable, unpack
from shoal.schema import Audio, Image

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


@packable
class Photo:
    image: Annotated[NDArray[np.uint8], Image("jpg")]
    label: str = ""


@packable
class Scan:
    pixels: Annotated[NDArray[np.uint8], Image("png")]
    mask: Annotated[NDArray[np.uint8] | None, Image("png")] = None
    pages: list[Annotated[NDArray[np.uint8], Image("png")]] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.pages = self.pages or []


@packable
class Spoken:
    sound: Annotated[tuple[NDArray[np.float32], int], Audio("wav")]


def jpeg(pixels=PIXELS) -> bytes:
    stream = io.BytesIO()
    Pillow.fromarray(pixels).save(stream, "JPEG", quality=30)
    return stream.getvalue()


def test_pixels_are_stored_as_a_file_of_the_format():
    payload = Photo(PIXELS).packed
    stored = msgpack.unpackb(payload)["image"]
    assert stored.startswith(b"\xff\xd8\xff")
    back = Photo.from_bytes(payload)
    assert back.image.shape == PIXELS.shape
    assert back.image.dtype == np.uint8


def test_lossless_formats_come_back_exactly():
    scan = Scan(PIXELS, PIXELS[:, :, 0], [PIXELS, PIXELS[:2]])
    back = Scan.from_bytes(scan.packed)
    assert np.array_equal(back.pixels, PIXELS)
    assert np.array_equal(back.mask, PIXELS[:, :, 0])
    assert [page.shape for page in back.pages] == [(4, 5, 3), (2, 5, 3)]
    assert Scan.from_bytes(Scan(PIXELS).packed).mask is None


def test_a_file_s_bytes_are_kept_as_they_are():
    data = jpeg()
    photo = Photo(data, "x")
    assert photo.image.shape == (4, 5, 3)
    assert msgpack.unpackb(photo.packed)["image"] == data
    again = Photo.from_bytes(photo.packed)
    _ = again.image  # looking does not encode again
    assert again.packed == photo.packed
    assert again == photo


def test_decoding_waits_until_someone_looks():
    payload = msgpack.packb({"image": b"not an image", "label": "x"})
    photo = Photo.from_bytes(payload)
    assert photo.label == "x"
    assert photo.packed == payload
    with pytest.raises(DecodeError) as raised:
        _ = photo.image
    assert raised.value.field == "image"


def test_a_damaged_file_in_a_list_is_told_with_its_path():
    page = msgpack.unpackb(Scan(PIXELS, pages=[PIXELS]).packed)["pages"][0]
    payload = msgpack.packb({**msgpack.unpackb(Scan(PIXELS).packed), "pages": [page, b"no image"]})
    with pytest.raises(DecodeError) as raised:
        Scan.from_bytes(payload)
    assert raised.value.field == "pages[1]"
    with pytest.raises(DecodeError) as raised:
        Scan.from_data({"pixels": page, "pages": [b"no image"]})
    assert raised.value.field == "pages[0]"


def test_a_decoded_image_is_read_only_unless_asked_for():
    payload = Photo(jpeg()).packed
    with pytest.raises(ValueError, match="read-only"):
        Photo.from_bytes(payload).image[0, 0] = 9
    photo = Photo.from_bytes(payload, writable=True)
    photo.image[:] = 0
    assert not Photo.from_bytes(photo.packed).image.any()


def test_a_new_value_replaces_the_file():
    photo = Photo.from_bytes(Photo(jpeg()).packed)
    photo.image = np.zeros((2, 2, 3), np.uint8)
    assert Photo.from_bytes(photo.packed).image.shape == (2, 2, 3)


def test_pil_images_are_taken():
    assert np.array_equal(Scan.from_bytes(Scan(Pillow.fromarray(PIXELS)).packed).pixels, PIXELS)  # type: ignore[arg-type]


def test_sounds_come_back():
    samples = np.linspace(-0.5, 0.5, 160, dtype=np.float32)[:, None]
    back = Spoken.from_bytes(Spoken((samples, 16000)).packed)
    assert back.sound.sample_rate == 16000
    assert np.array_equal(back.sound.samples, samples)
    assert isinstance(back.sound, codec.Audio)


@pytest.mark.parametrize("value", ["x", np.zeros(3, np.complex64), None], ids=repr)
def test_what_is_no_image_is_refused_with_its_field(value):
    with pytest.raises(SchemaMismatchError) as raised:
        _ = Photo(value).packed
    assert raised.value.field == "image"


def test_samples_travel_with_their_files():
    photo = Photo.from_bytes(memoryview(Photo(jpeg()).packed))
    twin = pickle.loads(pickle.dumps(photo))
    assert twin == photo
    assert twin.packed == photo.packed


def test_a_class_with_slots_decodes_at_once():
    from dataclasses import dataclass

    @dataclass(slots=True)
    class Slotted:
        image: Annotated[NDArray[np.uint8], Image("png")]

    from shoal.sample import pack

    assert np.array_equal(unpack(Slotted, pack(Slotted(PIXELS))).image, PIXELS)


class Holder(PackableSample):
    image: Annotated[NDArray[np.uint8], Image("png")]
    inner: Inner


class Inner(PackableSample):
    n: int


def test_an_image_beside_a_class_that_comes_later():
    holder = Holder(PIXELS, Inner(1))
    assert np.array_equal(Holder.from_bytes(holder.packed).image, PIXELS)
    assert holder.packed == Holder.from_bytes(holder.packed).packed
