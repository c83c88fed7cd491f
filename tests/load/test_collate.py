"""Large arrays that a map returns are copied into their batch: batches equal those of stacked arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.load import DataLoader

SIZE = 100
SHAPE = (60, 80, 5)


def picture(number: int) -> np.ndarray:
    return np.full(SHAPE, number % 251, np.uint8)


def loader(function: Callable[[int], Any], workers: int = 2, **options: Any) -> DataLoader:
    return DataLoader(range(SIZE), batch_size=None, num_workers=workers).map(function).batch(16, **options)


def as_dict(number: int) -> dict[str, Any]:
    return {"image": picture(number), "small": np.array([number]), "number": number}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_held_are_never_overwritten(workers: int) -> None:
    made = loader(as_dict, workers).repeat(3)
    numbers = []
    held = list(made)  # all of them, so that no memory may serve twice
    for batch in held:
        assert type(batch["image"]) is np.ndarray
        assert batch["image"].shape == (len(batch["number"]), *SHAPE)
        assert (batch["image"] == np.stack([picture(number) for number in batch["number"]])).all()
        assert batch["small"].ravel().tolist() == batch["number"]
        numbers += batch["number"]
    assert numbers == [*range(SIZE)] * 3


def test_a_row_that_is_held_holds_its_batch() -> None:
    rows = [batch["image"][3] for _ in range(3) for batch in loader(as_dict)]
    expected = [picture(number) for _ in range(3) for number in range(3, SIZE, 16)]
    assert all((row == other).all() for row, other in zip(rows, expected, strict=True))


@pytest.mark.parametrize("make", [picture, lambda number: (picture(number), number)])
def test_arrays_and_tuples(make: Callable[[int], Any]) -> None:
    for at, batch in enumerate(loader(make)):
        images = batch if make is picture else batch[0]
        first = 16 * at
        assert type(images) is np.ndarray
        assert (images == np.stack([picture(number) for number in range(first, first + len(images))])).all()


def test_arrays_of_other_shapes_and_types() -> None:
    def made(number: int) -> np.ndarray:
        return picture(number)[: 50 + number % 3].astype(np.uint8 if number % 2 else np.int16)

    for at, batch in enumerate(loader(made)):
        assert isinstance(batch, list)
        for number, image in enumerate(batch, 16 * at):
            assert type(image) is np.ndarray
            assert image.dtype == made(number).dtype
            assert (image == made(number)).all()


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
def test_samples_that_fail_or_lack_a_field() -> None:
    def failing(number: int) -> dict[str, Any]:
        if number % 10 == 3:
            raise ValueError
        return as_dict(number)

    made = loader(failing).options(on_error="skip", error_budget=SIZE)
    for batch in made:
        assert type(batch["image"]) is np.ndarray
        assert (batch["image"][:, 0, 0, 0] == batch["number"]).all()

    def lacking(number: int) -> dict[str, Any]:
        return {"number": number, **({"image": picture(number)} if number % 3 else {})}

    for batch in loader(lacking):
        for number, image in zip(batch["number"], batch["image"], strict=True):
            assert image is None if number % 3 == 0 else type(image) is np.ndarray and (image == number).all()


def test_what_a_function_keeps_is_not_changed() -> None:
    kept = as_dict(7)
    image = kept["image"]
    batches = list(loader(lambda _: kept))
    assert kept["image"] is image
    batches[0]["image"][:] = 0
    assert (image == 7).all()
    assert (batches[1]["image"] == 7).all()


def test_a_collate_of_the_users_sees_the_arrays_themselves() -> None:
    seen = [type(image) for batch in loader(picture, collate_fn=list) for image in batch]
    assert seen == [np.ndarray] * SIZE
