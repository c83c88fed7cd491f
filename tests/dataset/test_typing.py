"""What type checkers see of a dataset: the type of its samples, batches and views."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import shoal
from shoal import Dataset, DatasetDict, DictSample, Lens, SampleBatch


@shoal.packable
class Photo:
    image: NDArray[np.float32]
    label: str
    score: float = 1.0


@shoal.packable
class Named:
    label: str


@shoal.lens
def name_of(src: Photo) -> Named:
    return Named(label=src.label)


@name_of.putter
def rename(view: Named, src: Photo) -> Photo:
    return Photo(src.image, view.label, src.score)


@shoal.lens
def length_of(src: Named) -> int:
    return len(src.label)


# Opening: in brackets, by keyword, by what is written, or without a type.
photos = Dataset[Photo]("photos.tar")
photo = Photo(np.zeros(3, np.float32), "cat")
assert_type(photos, Dataset[Photo])
assert_type(shoal.Dataset[Photo](["a.tar", "b.tar"], decode=False), Dataset[Photo])
assert_type(Dataset("photos.tar", sample_type=Photo), Dataset[Photo])
assert_type(Dataset("photos.tar", sample_type=DictSample), Dataset[DictSample])
assert_type(Dataset("photos.tar"), Dataset[dict[str, Any]])
assert_type(Dataset("photos.tar", sample_type=None, split="train"), Dataset[dict[str, Any]])
assert_type(shoal.write_samples([photo], "photos.tar"), Dataset[Photo])
assert_type(shoal.write_samples((Named(str(n)) for n in range(3)), "names"), Dataset[Named])

# Loading.
assert_type(shoal.load_dataset("photos", split="train"), Dataset[dict[str, Any]])
assert_type(shoal.load_dataset("photos", split="train", sample_type=Photo), Dataset[Photo])
assert_type(shoal.load_dataset("photos"), DatasetDict[dict[str, Any]])
splits = shoal.load_dataset("photos", sample_type=Photo, data_files={"train": "a.tar"})
assert_type(splits, DatasetDict[Photo])
assert_type(splits["train"], Dataset[Photo])
assert_type(splits["train"][0].label, str)
assert_type(splits.only, Dataset[Photo])
assert_type(splits.head(), list[Photo])
assert_type(splits.as_type(Named), Dataset[Named])
assert_type(splits.each(lambda part: part.as_type(Named)), DatasetDict[Named])

# Samples.
assert_type(photos[0], Photo)
assert_type(photos[-1].image, NDArray[np.float32])
assert_type(photos[np.int64(3)], Photo)
assert_type(photos["key"], Photo)
assert_type(photos.get("key").label, str)
assert_type(photos[:3], list[Photo])
assert_type(photos[[3, 1]], list[Photo])
assert_type(photos[np.array([3, 1])], list[Photo])
assert_type(photos.head(), list[Photo])
assert_type(photos.sample_type, type[Photo])
for sample in photos:
    assert_type(sample, Photo)
for plain in Dataset("photos.tar"):
    assert_type(plain, dict[str, Any])

# Batches.
assert_type(photos.ordered(), Iterator[Photo])
assert_type(photos.ordered(None, drop_last=True), Iterator[Photo])
assert_type(photos.ordered(batch_size=4), Iterator[SampleBatch[Photo]])
assert_type(photos.ordered(4, drop_last=True, ragged="pad"), Iterator[SampleBatch[Photo]])
assert_type(photos.shuffled(), Iterator[Photo])
assert_type(photos.shuffled(seed=1), Iterator[Photo])
assert_type(photos.shuffled(batch_size=32), Iterator[SampleBatch[Photo]])
assert_type(photos.shuffled(4, seed=1, drop_last=True), Iterator[SampleBatch[Photo]])
assert_type(Dataset("photos.tar").ordered(4), Iterator[dict[str, Any]])
assert_type(Dataset("photos.tar").shuffled(4, seed=2), Iterator[dict[str, Any]])
for batch in photos.shuffled(batch_size=32):
    assert_type(batch[0], Photo)
    assert_type(batch.samples, list[Photo])
    assert_type(batch.keys, list[str])
    assert_type(batch.array("score"), NDArray[Any])
    assert_type(batch.sample_type, type[Photo])
    assert_type(batch.label, Any)  # a field's column has no type that the class could tell a checker
    for sample in batch:
        assert_type(sample, Photo)
assert_type(SampleBatch.of([photo]), SampleBatch[Photo])


def by_size(anything: Dataset[Any], size: int | None) -> None:
    assert_type(photos.ordered(size), Iterator[Any])
    assert_type(photos.shuffled(size), Iterator[Any])
    assert_type(anything.ordered(4), Iterator[Any])


# Views, and lenses.
assert_type(photos.as_type(Named), Dataset[Named])
assert_type(photos.as_type(Named)[0].label, str)
assert_type(photos.as_type(Named, lens=name_of), Dataset[Named])
assert_type(photos.as_type(Named).ordered(batch_size=16), Iterator[SampleBatch[Named]])
assert_type(photos.map(lambda sample: sample.label), Dataset[str])
assert_type(photos.map(lambda sample: sample.label).ordered(4), Iterator[list[str]])
assert_type(photos.map(name_of), Dataset[Named])
assert_type(photos.map(name_of | length_of), Dataset[int])
assert_type(photos.map(lambda sample: {"label": sample.label}).ordered(2), Iterator[dict[str, Any]])
assert_type(photos.filter(lambda sample: sample.score > 0.5), Dataset[Photo])
assert_type(photos.filter(lambda sample: sample.score > 0.5).materialize(), Dataset[Photo])
assert_type(photos.select([1, 2]), Dataset[Photo])
assert_type(photos.where("score > 0.5"), Dataset[Photo])
assert_type(photos.where(shoal.F.score > 0.5).head(3), list[Photo])
assert_type(photos.columns(["jpg"]), Dataset[dict[str, Any]])
assert_type(name_of, Lens[Photo, Named])
assert_type(name_of.get(photos[0]), Named)
assert_type(name_of.put(Named("x"), photos[0]), Photo)
assert_type(name_of | length_of, Lens[Photo, int])
assert_type(length_of @ name_of, Lens[Photo, int])
"""

WRONG = {
    "a sample has no such field": "photos[0].nothing",
    "nor in a loop": "[one.nothing for one in photos]",
    "nor a sample of a batch": "[batch[0].nothing for batch in photos.ordered(4)]",
    "nor of a view": "photos.as_type(Named)[0].score",
    "nor of a split": "splits['train'][0].nothing",
    "nor of what was written": "shoal.write_samples([photo], 'x')[0].nothing",
    "a dict has no attributes": "Dataset('photos.tar')[0].label",
    "a list of samples is none": "photos[:3].label",
    "a batch is none": "next(photos.ordered(4)).samples.label",
    "without batch_size there are no batches": "next(photos.ordered()).samples",
    "a function reads what is there": "photos.map(lambda sample: sample.nothing)",
    "a filter too": "photos.filter(lambda sample: sample.nothing)",
    "a lens of another type": "photos.map(length_of)",
    "a lens to another type": "photos.as_type(Photo, lens=name_of)",
    "a lens takes samples of its type": "name_of.get(Named('x'))",
    "an option that does not exist": "Dataset('photos.tar', shuffle=True)",
    "an option of batches that does not exist": "photos.ordered(4, window=3)",
    "a type is a class": "Dataset('photos.tar', sample_type=3)",
    "all but the path is by keyword": "shoal.load_dataset('photos', 'train')",
    "one type is not another": "other: Dataset[Named] = photos",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(
        RIGHT + "\n" + "\n".join(f"{line}  # {name}" for name, line in WRONG.items()) + "\n"
    )
    return folder


def run(checker: list[str], folder: Path, file: str) -> str:
    command = [sys.executable, "-m", *checker, str(folder / file)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    "checker",
    [["mypy", "--strict", "--cache-dir", "cache"], ["pyright", "--pythonpath", sys.executable]],
    ids=["mypy", "pyright"],
)
def test_checkers_see_the_type_of_samples_batches_and_views(checker, files):
    right, wrong = run(checker, files, "right.py"), run(checker, files, "wrong.py")
    assert "no issues found" in right or "0 errors" in right, right
    first = (RIGHT + "\n").count("\n") + 1
    missed = [name for number, name in enumerate(WRONG, first) if f"wrong.py:{number}:" not in wrong]
    assert missed == [], wrong
