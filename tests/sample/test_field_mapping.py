"""Plain WebDataset samples read as typed ones."""

from __future__ import annotations

import datetime as dt
import io
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image as Pillow

from shoal.codec import encode
from shoal.errors import DecodeError, FieldError, OptionError, SchemaMismatchError
from shoal.sample import Fields, PackableSample, fields_needed, from_fields, partial_mapper
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


class Found(PackableSample, aliases={"d": ("e",)}):
    a: str
    b: Annotated[str, Fields("x|y[1]|z*.txt")]
    c: Annotated[tuple[str, ...], Fields("img*.txt")] = ()
    d: str = "default"


PLAIN_FIELDS = ("a", "a.txt", "x", "y[1]", "img1.txt", "img2.txt", "d", "e.txt", "other")
ENTRIES = st.dictionaries(st.sampled_from("abcde"), st.sampled_from(("json 1", "json 2")))


@st.composite
def plain_samples(draw) -> list[dict[str, Any]]:
    """Samples that have some of the fields of all; what is not text does not fit."""
    usual = draw(st.sets(st.sampled_from(PLAIN_FIELDS)))
    samples = []
    for _ in range(draw(st.integers(1, 3))):
        names = draw(st.sets(st.sampled_from(PLAIN_FIELDS), max_size=2)) ^ usual
        sample: dict[str, Any] = {name: f"in {name}" for name in PLAIN_FIELDS if name in names}
        sample |= {name: draw(ENTRIES) for name in ("json", "meta.json") if draw(st.booleans())}
        samples.append({"__key__": "k", **sample})
    return samples


def found(names: frozenset[str], sample: dict[str, Any]) -> dict[str, Any] | str:
    read = partial_mapper(Found, names)
    assert read is not None
    try:
        return vars(read(sample))
    except SchemaMismatchError as error:
        return f"{error.field}: {error.expected}"


@given(plain_samples(), st.frozensets(st.sampled_from("abcd")))
def test_the_fields_that_are_not_needed_change_nothing(samples, names):
    every = dict.fromkeys(name for sample in samples for name in sample if name != "__key__")
    present = {name: all(name in sample for sample in samples) for name in every}
    needed = fields_needed(Found, names, present)
    for sample in samples:
        some = {name: value for name, value in sample.items() if needed is None or name in (*needed, "__key__")}
        assert found(names, some) == found(names, sample)


def test_a_field_that_every_sample_has_ends_the_search():
    present = {"jpg": True, "a": True, "x": True, "y[1]": True, "z1.txt": True, "json": True, "e.txt": True}
    assert fields_needed(Found, ["a"], present) == ("a",)
    assert fields_needed(Found, ["a"], {**present, "a": False}) == ("a", "json")
    assert fields_needed(Found, ["b"], present) == ("x",)
    assert fields_needed(Found, ["b"], {**present, "x": False}) == ("x", "y[1]")
    assert fields_needed(Found, ["b"], {**present, "x": False, "y[1]": False}) == ("x", "y[1]", "z1.txt")
    assert fields_needed(Found, ["c"], present) == ()
    assert fields_needed(Found, ["d"], present) == ("json", "e.txt")
    assert fields_needed(Found, [], present) == ()
    assert fields_needed(Found, None, present) == ("a", "x", "json", "e.txt")


def test_what_must_be_there_and_is_nowhere_needs_all_so_that_the_error_shows_all():
    assert fields_needed(Found, ["b"], {"jpg": True, "json": True}) is None
    assert fields_needed(Found, ["a"], {"jpg": True}) is None
    with pytest.raises(FieldError):
        fields_needed(Found, ["nothing"], {})


class Sized(PackableSample):
    width: Annotated[int, Fields("size.width|json.size.width")]
    height: Annotated[int, Fields("meta.json.height")] = 0


def test_an_entry_of_json_is_named_as_where_names_it():
    sample = {"json": b'{"size": {"width": 3}, "height": 1}', "meta.json": b'{"height": 2}'}
    assert from_fields(Sized, sample) == Sized(3, 2)
    assert from_fields(Sized, {"json": {"size": {"width": 3}}, "meta.json": {}}) == Sized(3, 0)
    assert fields_needed(Sized, None, {"jpg": True, "json": True, "meta.json": True}) == ("json", "meta.json")
    with pytest.raises(SchemaMismatchError, match=r"json\.size\.width for width"):
        from_fields(Sized, {"json": {"size": 3}})
