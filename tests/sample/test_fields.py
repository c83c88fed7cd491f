"""Plain WebDataset samples as typed ones."""

from __future__ import annotations

import datetime as dt
import io
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

from shoal.codec import encode
from shoal.errors import DecodeError, OptionError, SchemaMismatchError
from shoal.sample import Fields, PackableSample, from_fields
from shoal.schema import Image

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def png(pixels=PIXELS) -> bytes:
    stream = io.BytesIO()
    Pillow.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


class Picture(PackableSample, aliases={"label": "cls"}):
    image: Annotated[NDArray[np.uint8], Fields("jpg|png|webp")]
    label: int
    width: int
    taken: dt.date | None = None
    tags: tuple[str, ...] = ()


def plain(**changes: Any) -> dict[str, Any]:
    return {
        "__key__": "007",
        "png": png(),
        "cls": b"3",
        "json": b'{"width": 640, "taken": "2024-02-29", "tags": ["a"]}',
        **changes,
    }


def test_fields_are_found_by_name_alias_annotation_and_json():
    picture = from_fields(Picture, plain())
    assert np.array_equal(picture.image, PIXELS)
    assert (picture.label, picture.width, picture.taken, picture.tags) == (3, 640, dt.date(2024, 2, 29), ("a",))


def test_decoded_samples_give_the_same():
    decoded = {"__key__": "007", "png": PIXELS, "cls": 3, "json": {"width": 640, "taken": "2024-02-29", "tags": ["a"]}}
    assert from_fields(Picture, decoded) == from_fields(Picture, plain())


def test_the_first_alternative_wins():
    picture = from_fields(Picture, {**plain(), "webp": b"damaged"})
    assert np.array_equal(picture.image, PIXELS)


def test_repeats_come_in_the_order_of_their_numbers():
    class Several(PackableSample):
        frames: Annotated[list[NDArray[np.uint8]], Fields("img*.png")]

    sample = {
        "img10.png": png(PIXELS[:1]),
        "img2.png": png(PIXELS[:2]),
        "img1.png": png(PIXELS[:3]),
        "other.png": png(),
    }
    assert [frame.shape[0] for frame in from_fields(Several, sample).frames] == [3, 2, 1]


def test_a_name_finds_its_extension():
    class Segmented(PackableSample):
        seg: NDArray[np.uint8]
        depth: NDArray[np.float32]
        note: str
        raw: bytes

    sample = {"seg.png": png(), "depth.npy": encode("npy", np.zeros(2, np.float32)), "note.txt": b"hi", "raw": b"\x00"}
    found = from_fields(Segmented, sample)
    assert np.array_equal(found.seg, PIXELS)
    assert (found.note, found.raw, found.depth.shape) == ("hi", b"\x00", (2,))


def test_a_field_before_an_entry_of_json_and_json_itself_before_meta_json():
    class One(PackableSample):
        txt: str
        n: int

    assert from_fields(One, {"txt": "field", "json": {"txt": "entry", "n": 1}, "meta.json": {"n": 2}}) == One(
        "field", 1
    )


def test_files_stay_files_where_the_class_says_so():
    class Kept(PackableSample):
        png: Annotated[NDArray[np.uint8], Image("png")]
        raw: Annotated[bytes, Fields("png")]

    found = from_fields(Kept, {"png": png()})
    assert found.raw == png()
    assert np.array_equal(found.png, PIXELS)
    assert found.packed.count(png()) == 2


def test_nested_json_becomes_nested_classes():
    class Box(PackableSample):
        x: float
        label: str = ""

    class Boxed(PackableSample):
        boxes: list[Box]

    assert from_fields(Boxed, {"json": b'{"boxes": [{"x": 1}, {"x": 2, "label": "b"}]}'}) == Boxed(
        [Box(1.0), Box(2.0, "b")]
    )


def test_a_missing_field_is_told_with_what_there_is():
    sample = plain()
    del sample["png"]
    with pytest.raises(SchemaMismatchError) as raised:
        from_fields(Picture, sample)
    text = str(raised.value)
    assert "expected jpg|png|webp for image: array[uint8], found cls, json (json: width, taken, tags)" in text
    assert (raised.value.key, raised.value.field) == ("007", "image")


def test_a_value_that_does_not_fit_and_damaged_bytes_have_a_place():
    with pytest.raises(SchemaMismatchError, match=r"expected int, found str \(key 007, field width\)"):
        from_fields(Picture, plain(json={"width": "640"}))
    with pytest.raises(DecodeError, match=r"key 007, field png"):
        from_fields(Picture, plain(png=b"no image"))


def test_bad_patterns_are_refused():
    with pytest.raises(OptionError):
        Fields("jpg|")

    class Single(PackableSample):
        image: Annotated[NDArray[np.uint8], Fields("img*.png")]

    with pytest.raises(SchemaMismatchError, match="expected a list"):
        from_fields(Single, {"img1.png": png()})
