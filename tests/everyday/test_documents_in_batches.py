"""Values inside documents (json, msgpack, cbor) reach PyTorch, JAX, TensorFlow and Ray loops as they were stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import shoal
import shoal.jax
import shoal.torch
from shoal.errors import OptionError

LATITUDE = 48.858370123
DOCUMENT = {"at": [LATITUDE, 2.294481], "ids": [2**60 + 1, 7], "boxes": [{"xy": [1, 2]}], "name": "tower"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with documents that hold lists, a whole list, and numbers."""
    folder = tmp_path_factory.mktemp("places")
    with shoal.ShardWriter(folder / "a-%06d.tar") as writer:
        for number in range(4):
            writer.write(
                {
                    "__key__": f"k{number}",
                    "json": DOCUMENT,
                    "list.json": [LATITUDE, 2.5],
                    "score.json": LATITUDE,
                    "msgpack": DOCUMENT,
                    "cbor": DOCUMENT,
                    "npy": np.full(3, LATITUDE),
                    "cls": number,
                }
            )
    return folder


def loader_with_workers(dataset: Any, **options: Any) -> Any:
    iterable = shoal.torch.TorchIterableDataset(shoal.DataLoader(dataset, num_workers=0, **options))
    return torch.utils.data.DataLoader(iterable, batch_size=None)


LOADERS = {
    "shoal.torch": lambda dataset, **options: shoal.torch.DataLoader(dataset, num_workers=0, **options),
    "TorchIterableDataset": loader_with_workers,
    "shoal.jax": lambda dataset, **options: shoal.jax.DataLoader(dataset, num_workers=0, **options),
}


@pytest.mark.parametrize("name", LOADERS)
def test_documents_in_a_batch_are_the_stored_values(places: Path, name: str) -> None:
    batch = next(iter(LOADERS[name](shoal.Dataset(places), batch_size=4)))
    for field in ("json", "msgpack", "cbor"):
        assert batch[field] == [DOCUMENT] * 4
        assert type(batch[field][0]["at"]) is list
    assert batch["list.json"] == [[LATITUDE, 2.5]] * 4
    assert batch["cls"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", LOADERS)
def test_documents_in_a_sample_are_the_stored_values(places: Path, name: str) -> None:
    sample = next(iter(LOADERS[name](shoal.Dataset(places), batch_size=None)))
    for field in ("json", "msgpack", "cbor"):
        assert sample[field] == DOCUMENT
        assert type(sample[field]["at"]) is list
    assert sample["list.json"] == [LATITUDE, 2.5]
    assert type(sample["list.json"]) is list


def test_documents_of_a_map_style_dataset_are_the_stored_values(places: Path) -> None:
    dataset = shoal.torch.TorchMapDataset(shoal.Dataset(places))
    for sample in (dataset[1], dataset.__getitems__([1])[0]):
        assert sample["json"] == DOCUMENT
        assert sample["list.json"] == [LATITUDE, 2.5]
        assert sample["npy"].dtype == torch.float64


@pytest.mark.parametrize("collate_fn", [list, None])
def test_lists_of_samples_keep_their_documents(places: Path, collate_fn: Any) -> None:
    batches = shoal.torch.DataLoader(shoal.Dataset(places), batch_size=2, collate_fn=collate_fn or tuple)
    sample = next(iter(batches))[0]
    assert type(sample["npy"]) is torch.Tensor
    if collate_fn is list:
        assert sample["json"] == DOCUMENT


def test_numbers_keep_their_precision(places: Path) -> None:
    batch = next(iter(shoal.torch.DataLoader(shoal.Dataset(places), batch_size=4)))
    assert batch["score.json"].dtype == batch["npy"].dtype == torch.float64
    assert batch["score.json"].tolist() == [LATITUDE] * 4
    assert batch["npy"][0].tolist() == [LATITUDE] * 3
    assert batch["cls"].dtype == torch.int64


@shoal.packable
class Place:
    """A typed sample."""

    at: NDArray[np.float64]
    height: float
    visitors: int
    open: bool
    path: list[float]
    about: dict[str, Any]


def test_typed_fields_become_tensors_and_their_documents_stay(tmp_path: Path) -> None:
    place = Place(np.array([LATITUDE, 2.5]), LATITUDE, 2**60 + 1, True, [LATITUDE, 1.0], {"at": [LATITUDE, 2.5]})
    dataset = shoal.write_samples([place] * 4, str(tmp_path))
    batch = next(iter(shoal.torch.DataLoader(dataset, batch_size=4)))
    assert batch["height"].dtype == torch.float64
    assert batch["height"].tolist() == [LATITUDE] * 4
    assert batch["at"].tolist() == [[LATITUDE, 2.5]] * 4
    assert batch["visitors"].tolist() == [2**60 + 1] * 4
    assert batch["open"].dtype == torch.bool
    assert [row.tolist() for row in batch["path"]] == [[LATITUDE, 1.0]] * 4
    assert batch["about"] == [{"at": [LATITUDE, 2.5]}] * 4
    sample = next(iter(shoal.torch.DataLoader(dataset, batch_size=None)))
    assert sample["path"].tolist() == [LATITUDE, 1.0]
    assert sample["about"] == {"at": [LATITUDE, 2.5]}


@pytest.mark.parametrize("values", [[2**63, 1], [2**63, -1], [2**70, 0], [2**53 + 1, 0.5]])
def test_ints_that_no_array_holds_stay_ints(values: list[Any]) -> None:
    batch = next(iter(shoal.torch.DataLoader([{"n": value} for value in values], batch_size=2)))
    assert batch["n"] == values
    assert list(map(type, batch["n"])) == list(map(type, values))


def test_jax_does_not_cut_ints_off() -> None:
    with pytest.raises(OptionError, match="jax_enable_x64"):
        next(iter(shoal.jax.DataLoader([{"n": 2**40}], batch_size=1, num_workers=0)))


WIDE = {
    "JAX": [np.array([2**40, 1]), [2**40, 1], 2**31, np.array([2**32], np.uint64)],
    "torch": [np.array([2**63], np.uint64), [2**63, 1], [2**63, -1], 2**70],
    "TensorFlow": [np.array([2**63], np.uint64), 2**63],
}


@pytest.mark.parametrize("name", WIDE)
def test_formats_do_not_cut_ints_off(name: str) -> None:
    for value in WIDE[name]:
        dataset = shoal.write_samples([{"txt": "x"}] * 2, f"memory://wide/{name}", overwrite=True)
        wide = dataset.map(lambda sample, value=value: {"n": value}).with_format(name.lower())
        for read in (lambda ds: ds[0], lambda ds: ds[:2], lambda ds: next(iter(ds.ordered(batch_size=2)))):
            with pytest.raises(OptionError, match=f"{name} keeps (32|64) bits of each int"):
                read(wide)


@pytest.mark.parametrize("value", [[2**63, 1], [2**63, -1], [2**70, 0], np.array([2**63], np.uint64), [1, -1]])
def test_numpy_formats_keep_ints(value: Any) -> None:
    dataset = shoal.write_samples([{"txt": "x"}] * 2, "memory://wide/numpy", overwrite=True)
    formatted = dataset.map(lambda _: {"n": value}).with_format("numpy")
    assert formatted[0]["n"].tolist() == list(value)
    assert formatted[:2]["n"].tolist() == [list(value)] * 2


def test_batches_that_a_function_makes_of_columns_become_tensors(places: Path) -> None:
    loader = shoal.torch.DataLoader(shoal.Dataset(places), batch_size=4)
    pairs = loader.map(lambda batch: ({"n": batch["cls"], "json": batch["json"]}, batch["cls"]))
    inputs, labels = next(iter(pairs))
    assert inputs["n"].tolist() == labels.tolist() == [0, 1, 2, 3]
    assert inputs["json"] == [DOCUMENT] * 4
