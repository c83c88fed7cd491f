"""Every kind of class through a dataset: written, read, and in batches, with what the class itself does honoured."""

from __future__ import annotations

import datetime as dt
import enum
import io
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray
from PIL import Image as PillowImage

import shoal
from shoal.errors import DecodeError, LensNotFoundError, SchemaMismatchError
from shoal.sample import pack, same, schema_of


@shoal.packable
class Loud:
    """A class that computes when a sample is made."""

    label: str
    values: NDArray[np.float32]
    weight: float

    def __post_init__(self) -> None:
        self.label = f"{self.label}!"
        self.values = self.values + 1
        self.weight = self.weight * 2


class Model(pydantic.BaseModel):
    label: str
    count: int = 3

    @pydantic.field_validator("label")
    @classmethod
    def _upper(cls, value: str) -> str:
        return value.upper()


class Struct(msgspec.Struct):
    label: str
    count: int = 3


class LoudStruct(msgspec.Struct):
    label: str

    def __post_init__(self) -> None:
        self.label = f"{self.label}!"


@dataclass
class Existing:
    label: str
    values: NDArray[np.float32]


@dataclass
class OwnConstructor:
    label: str

    def __init__(self, label: str) -> None:
        self.label = label.upper()


@dataclass(slots=True)
class Slotted:
    label: str
    weight: float = 0.5


class Inherited(Loud):
    """A subclass without a decorator of its own."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@shoal.packable
class Rich:
    when: dt.datetime
    colour: Colour
    mode: Literal["a", "b"]
    either: int | str
    anything: Any
    grid: Annotated[NDArray[np.float32], shoal.Array(shape=(2, 3))]
    inner: Existing
    maybe: str | None = None


VALUES = np.arange(3, dtype=np.float32)
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
GRID = np.zeros((2, 3), np.float32)
KINDS = {
    "computing": [Loud("a", VALUES, 1.0), Loud("b", VALUES, 2.0)],
    "inherited": [Inherited("a", VALUES, 1.0), Inherited("b", VALUES, 2.0)],
    "pydantic": [Model(label="a"), Model(label="b", count=4)],
    "struct": [Struct("a"), Struct("b", 4)],
    "computing struct": [LoudStruct("a"), LoudStruct("b")],
    "dataclass": [Existing("a", VALUES), Existing("b", VALUES)],
    "own constructor": [OwnConstructor("a"), OwnConstructor("b")],
    "slots": [Slotted("a"), Slotted("b", 1.5)],
    "rich": [
        Rich(NOON, Colour.RED, "a", 3, {"k": [1, None]}, GRID, Existing("x", VALUES)),
        Rich(NOON, Colour.BLUE, "b", "three", None, GRID + 1, Existing("y", VALUES), "there"),
    ],
}


@pytest.mark.parametrize("samples", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_column_of_a_batch_is_what_its_samples_have(tmp_path, samples, shuffled):
    shoal.write_samples(samples, tmp_path)
    dataset = shoal.Dataset(tmp_path, sample_type=type(samples[0]))
    (batch,) = dataset.shuffled(batch_size=8) if shuffled else dataset.ordered(batch_size=8)
    read = list(batch)
    assert len(read) == 2
    assert type(read[0]) is type(samples[0])
    for name in dataset.schema.names:
        wanted = [getattr(sample, name) for sample in read]
        assert same(list(getattr(batch, name)), wanted), name


@pytest.mark.parametrize("samples", KINDS.values(), ids=KINDS)
def test_data_opened_without_a_type_has_a_class_of_the_same_fields(tmp_path, samples):
    shoal.write_samples(samples, tmp_path)
    dataset = shoal.Dataset(tmp_path)
    assert dataset.sample_type is not type(samples[0])
    assert dataset.schema == schema_of(type(samples[0]))
    assert [pack(sample) for sample in dataset] == [pack(sample) for sample in samples]


def test_what_a_class_computes_is_computed_at_each_reading_and_once(tmp_path):
    dataset = shoal.write_samples(KINDS["computing"], tmp_path)
    # Once when it was made and once when it was read.
    assert [sample.label for sample in dataset] == ["a!!", "b!!"]
    (batch,) = dataset.ordered(4)
    assert batch.label == ["a!!", "b!!"]
    assert batch.values.tolist() == [[2, 3, 4]] * 2
    assert batch.array("weight").tolist() == [4, 8]
    held = shoal.SampleBatch.of(KINDS["computing"])
    assert held.label == ["a!", "b!"]
    assert list(held) == KINDS["computing"]


def test_alternatives_and_repeats_of_plain_shards(tmp_path):
    def png(value: int) -> bytes:
        out = io.BytesIO()
        PillowImage.fromarray(np.full((2, 2, 3), value, np.uint8)).save(out, "png")
        return out.getvalue()

    @shoal.packable
    class Views:
        image: Annotated[NDArray[np.uint8], shoal.Fields("jpg|png|webp")]
        label: Annotated[int, shoal.Fields("cls")]
        more: Annotated[list[NDArray[np.uint8]], shoal.Fields("img*.png")] = ()

    webp = io.BytesIO()
    PillowImage.fromarray(np.full((2, 2, 3), 9, np.uint8)).save(webp, "webp", lossless=True)
    with shoal.ShardWriter(tmp_path / "a-%06d.tar") as writer:
        writer.write({"__key__": "a", "png": png(1), "cls": 3})
        writer.write({"__key__": "b", "webp": webp.getvalue(), "img10.png": png(10), "img2.png": png(2), "cls": 4})
    dataset = shoal.Dataset[Views](tmp_path)
    assert [sample.image.max() for sample in dataset] == [1, 9]
    assert [[int(part.max()) for part in sample.more] for sample in dataset] == [[], [2, 10]]
    (batch,) = dataset.ordered(2)
    assert batch.image.shape == (2, 2, 2, 3)
    assert batch.label == [3, 4]


@shoal.packable
class Photo:
    pixels: Annotated[NDArray[np.uint8], shoal.Image("png")]
    name: str


def test_images_of_one_size_are_one_array_in_a_batch_and_others_a_list(tmp_path):
    alike = shoal.write_samples([Photo(np.full((2, 3, 3), n, np.uint8), str(n)) for n in range(3)], tmp_path / "alike")
    (batch,) = alike.ordered(4)
    assert batch.pixels.shape == (3, 2, 3, 3)
    assert batch.pixels[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert np.array_equal(batch.array("pixels"), batch.pixels)
    sizes = [Photo(np.zeros((n, 3, 3), np.uint8), str(n)) for n in (1, 2)]
    (batch,) = shoal.write_samples(sizes, tmp_path / "sizes").ordered(4)
    assert [image.shape for image in batch.pixels] == [(1, 3, 3), (2, 3, 3)]
    (batch,) = shoal.Dataset[Photo](tmp_path / "sizes").ordered(4, ragged="pad")
    assert batch.pixels.shape == (2, 2, 3, 3)


def test_a_damaged_image_in_a_batch_names_its_sample(tmp_path):
    good = Photo(np.zeros((2, 3, 3), np.uint8), "good")
    shoal.write_samples([good, Photo(b"\x89PNG no more", "bad")], tmp_path)  # a file's bytes are stored as they are
    (batch,) = shoal.Dataset[Photo](tmp_path).ordered(2)
    assert batch.name == ["good", "bad"]
    with pytest.raises(DecodeError) as caught:
        _ = batch.pixels
    assert (caught.value.key, caught.value.field) == ("000000001", "pixels")
    assert caught.value.shard.endswith("shard-000000.tar")


# -- classes change


@shoal.packable
class First:
    name: str
    count: int
    gone: float
    values: NDArray[np.float32]


@shoal.packable(version="2.0.0", aliases={"title": ("name",), "numbers": ("values",)})
class Second:
    title: str
    count: float
    numbers: NDArray[np.float32]
    added: str = "new"
    spare: NDArray[np.float32] | None = None


@pytest.fixture
def older(tmp_path):
    shoal.write_samples([First(f"n{n}", n, 0.5, VALUES + n) for n in range(3)], tmp_path)
    return tmp_path


def test_data_of_an_older_class_is_read_as_a_newer_one_in_samples_and_batches(older):
    dataset = shoal.Dataset[Second](older)
    assert list(dataset) == [Second(f"n{n}", float(n), VALUES + n) for n in range(3)]
    for batch in dataset.ordered(3), dataset.shuffled(3):
        columns = next(batch)
        assert sorted(columns.title) == ["n0", "n1", "n2"]
        assert columns.added == ["new"] * 3
        assert columns.spare == [None] * 3
        assert columns.numbers.shape == (3, 3)
        assert [type(count) for count in columns.count] == [float] * 3
        assert sorted(columns.array("count")) == [0, 1, 2]


@pytest.mark.parametrize(
    "annotation, name, expected",
    [
        (int, "name", "int"),
        (NDArray[np.float64], "values", r"array\[float64\]"),
        (Annotated[NDArray[np.float32], shoal.Array(shape=(4,))], "values", r"array\[float32, \(4,\)\]"),
        (str, "absent", "a value"),
    ],
    ids=["type", "dtype", "shape", "absent"],
)
@pytest.mark.parametrize("batched", [False, True])
def test_data_that_does_not_fit_is_told_with_shard_key_and_field(older, annotation, name, expected, batched):
    kind = shoal.packable(type("Other", (), {"__annotations__": {name: annotation}}))
    dataset = shoal.Dataset(older, sample_type=kind)
    with pytest.raises(SchemaMismatchError, match=f"expected {expected}, found") as caught:
        getattr(next(dataset.ordered(2)), name) if batched else dataset[0]
    assert caught.value.key == "000000000"
    assert caught.value.field == name
    assert caught.value.shard.endswith("shard-000000.tar")


# -- what cannot be


def test_a_writer_names_the_sample_that_does_not_fit_and_goes_on(tmp_path):
    with shoal.ShardWriter(tmp_path / "a-%06d.tar") as writer:
        writer.write(First("a", 1, 0.5, VALUES))
        with pytest.raises(SchemaMismatchError, match="expected int, found str") as caught:
            writer.write(First("b", "two", 0.5, VALUES))
        assert (caught.value.key, caught.value.field) == ("000000001", "count")
        writer.write(First("c", 3, 0.5, VALUES))
    assert [sample.name for sample in shoal.Dataset[First](tmp_path)] == ["a", "c"]


def test_a_class_made_from_the_schema_is_not_the_one_lenses_know_and_that_is_said(older):
    @shoal.packable
    class Short:
        name: str

    @shoal.lens
    def shorten(src: First) -> Short:
        return Short(src.name)

    with pytest.raises(LensNotFoundError, match=r"open the data as Dataset\[First\]"):
        shoal.Dataset(older).as_type(Short)
    assert shoal.Dataset[First](older).as_type(Short)[2] == Short("n2")


def test_untyped_payloads_make_a_dict_of_columns(older):
    (older / ".shoal" / "manifest.json").unlink()
    dataset = shoal.Dataset(older)
    assert dataset.sample_type is shoal.DictSample
    (batch,) = dataset.ordered(4)
    assert list(batch) == ["name", "count", "gone", "values"]
    assert batch["count"] == [0, 1, 2]
    assert batch["values"].shape == (3, 3)


def test_a_writer_that_is_never_closed_says_so(tmp_path):
    writer = shoal.ShardWriter(tmp_path / "a-%06d.tar")
    writer.write({"__key__": "a", "txt": "hi"})
    assert repr(writer) == f"<ShardWriter {tmp_path}/a-%06d.tar: 1 samples, open>"
    with pytest.warns(shoal.ShoalWarning, match="never closed"):
        del writer
    assert not list(tmp_path.glob("*.tar"))


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_writer_that_is_closed_or_was_never_used_says_nothing(tmp_path, end):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unused = shoal.ShardWriter(tmp_path / "a-%06d.tar")
        writer = shoal.ShardWriter(tmp_path / "b-%06d.tar")
        writer.write({"__key__": "a", "txt": "hi"})
        getattr(writer, end)()
        del unused, writer
