"""How fast does PLAID write and read with each of its storage backends?"""

from __future__ import annotations

import functools
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._data import FOLDER
from ._measure import Contender, Question, measure

__all__ = ["run"]

BACKENDS = ("webdataset", "cgns", "zarr", "hf_datasets")
FIELDS = tuple(f"field_{number}" for number in range(8))
ONE = f"Base_2_2/Zone/VertexFields/{FIELDS[3]}"
SLOW_WRITERS = {"zarr": 20, "hf_datasets": 2}
SLOW_READERS = {"zarr": 20, "cgns": 50}
"""How many samples are enough to see how long it takes."""
MEGABYTE = 1 << 20


@functools.cache
def make_sample(number: int) -> Any:
    """Ten arrays, together 1 to 20 MB: two coordinates and eight fields on a mesh of its own."""
    from plaid import Sample

    rng = np.random.default_rng(number)
    nodes = int(rng.integers(1 * MEGABYTE, 20 * MEGABYTE)) // 40
    sample = Sample()
    sample.init_base(2, 2, "Base_2_2")
    sample.init_zone(np.array([[nodes, nodes, 0]]), zone="Zone", base="Base_2_2")
    sample.set_nodes(rng.random((nodes, 2), np.float32), "Zone", "Base_2_2")
    for name in FIELDS:
        sample.add_field(name, rng.random(nodes, np.float32))
    return sample


@dataclass(frozen=True)
class Samples:
    """What PLAID calls a generator; other processes find it by name."""

    def __call__(self, shards_ids: list[list[int]]) -> Iterator[Any]:
        return (make_sample(number) for ids in shards_ids for number in ids)


def arrays(sample: Any) -> Iterator[np.ndarray]:
    """The ten arrays of a sample."""
    for axis in "XY":
        yield sample.get_feature_by_path(f"Base_2_2/Zone/GridCoordinates/Coordinate{axis}")
    for name in FIELDS:
        yield sample.get_feature_by_path(f"Base_2_2/Zone/VertexFields/{name}")


def size(numbers: list[int]) -> int:
    return sum(array.nbytes for number in numbers for array in arrays(make_sample(number)))


def run(rounds: int = 5, count: int = 100) -> Question:
    """Compare PLAID's backends at writing and reading one made dataset."""
    import datasets

    import shoal.plaid  # noqa: F401 - registers

    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    numbers = list(range(count))
    question = Question(
        "PLAID's storage backends",
        f"{count} samples of 1 to 20 MB, ten features each, warm. Reading makes PLAID samples and adds up every array "
        "that was asked for; that all backends give the same arrays was seen before. In a later reading the dataset is "
        "open already, as in the second epoch; webdataset compares an array with its checksum before it is first "
        "given out, the others compare nothing. `save_to_disk` is what the backend writes and, but for cgns, PLAID's "
        "own first pass over all samples, of which `shoal.plaid.save_to_disk` spares it most. The disk's row writes, "
        "or maps and adds up, one file.",
        ("work", "backend", "MB/s", "webdataset is faster by"),
    )
    works = [
        ("write", lambda backend: _writing(backend, numbers)),
        ("save_to_disk", lambda backend: _saving(backend, numbers)),
        ("full read, first", lambda backend: _reading(backend, numbers, first=True)),
        ("full read, later", lambda backend: _reading(backend, numbers)),
        ("one feature, later", lambda backend: _reading(backend, numbers, [ONE])),
        (
            "random read, later",
            lambda backend: _reading(backend, np.random.default_rng(0).permutation(numbers).tolist()),
        ),
    ]
    for title, contender in works:
        contenders = [contender(backend) for backend in BACKENDS] + _others(title, numbers)
        found = measure(contenders, rounds if title in ("write", "save_to_disk") else 2 * rounds)
        ours = found["webdataset"].median
        question.rows.extend(
            (title, name, f"{1 / one.median / MEGABYTE:.0f}", f"{one.median / ours:.2f}") for name, one in found.items()
        )
    shutil.rmtree(_place("written"), ignore_errors=True)
    return question


def _place(name: str) -> Path:
    return FOLDER / "plaid" / name


def _fresh() -> None:
    shutil.rmtree(_place("written"), ignore_errors=True)
    _place("written").parent.mkdir(parents=True, exist_ok=True)


def _some(numbers: list[int], most: int | None) -> list[int]:
    return numbers if most is None else numbers[:most]


def _writing(backend: str, numbers: list[int]) -> Contender:
    from plaid.storage.common.preprocessor import preprocess
    from plaid.storage.registry import get_backend

    few = _some(numbers, SLOW_WRITERS.get(backend))
    generators, kwargs = {"train": Samples()}, {"train": {"shards_ids": [few]}}
    schema = preprocess({"train": Samples()}, {"train": {"shards_ids": [few[:2]]}}, verbose=False)[1]

    def write() -> int:
        get_backend(backend).generate_to_disk(_place("written"), generators, schema, gen_kwargs=kwargs)
        return size(few)

    return Contender(backend, write, _fresh)


def _saving(backend: str, numbers: list[int]) -> Contender:
    from plaid import storage

    import shoal.plaid

    few = _some(numbers, SLOW_WRITERS.get(backend))
    save = shoal.plaid.save_to_disk if backend == "webdataset" else storage.save_to_disk
    return Contender(backend, lambda: _save(_place("written"), backend, few, save), _fresh)


def _save(folder: Path, backend: str, numbers: list[int], save: Callable[..., None]) -> int:
    from plaid import Infos

    infos = Infos(owner="us", license="mit")
    save(folder, make_sample, {"train": numbers}, infos, backend, overwrite=True)
    return size(numbers)


def _reading(backend: str, numbers: list[int], features: list[str] | None = None, *, first: bool = False) -> Contender:
    from plaid.storage import init_from_disk, save_to_disk

    folder = _place(f"{backend}-{len(numbers)}")
    if not (folder / "infos.yaml").exists():
        _save(folder, backend, sorted(numbers), save_to_disk)
    opened = list(init_from_disk(folder))
    numbers = _some(numbers, SLOW_READERS.get(backend))
    _check_same(opened[0]["train"], opened[1]["train"], numbers[-2:])

    def open_again() -> None:
        if first:
            opened[:] = init_from_disk(folder)

    def read() -> int:
        dataset, converter = opened[0]["train"], opened[1]["train"]
        total = 0
        for number in numbers:
            sample = converter.to_plaid(dataset, number, features)
            wanted = list(arrays(sample)) if features is None else [sample.get_feature_by_path(features[0])]
            total += sum(array.nbytes for array in wanted if np.isfinite(array.sum()))
        return total

    return Contender(backend, read, open_again)


def _check_same(dataset: Any, converter: Any, numbers: list[int]) -> None:
    for number in numbers:
        found = arrays(converter.to_plaid(dataset, number))
        assert all(np.array_equal(*pair) for pair in zip(found, arrays(make_sample(number)), strict=True))


def _others(title: str, numbers: list[int]) -> list[Contender]:
    """What PLAID makes of ours alone, and what the machine can do at best."""
    from plaid.storage import save_to_disk

    if title == "write":
        return [Contender("the disk", lambda: _write_plainly(numbers), _fresh)]
    if title == "save_to_disk":
        name = "webdataset, by plaid.storage"
        return [
            Contender(name, lambda: _save(_place("written"), "webdataset", numbers, save_to_disk), _fresh),
            Contender("the disk", lambda: _write_plainly(numbers), _fresh),
        ]
    if title == "one feature, later":
        return []
    file = _place("plain.bin")
    if not file.exists() or file.stat().st_size != size(numbers):
        _write_plainly(numbers, file)
    return [Contender("the disk", functools.partial(_read_plainly, file))]


def _write_plainly(numbers: list[int], path: Path | None = None) -> int:
    with open(path or _place("written"), "wb", buffering=0) as file:
        for number in numbers:
            file.writelines(map(np.ascontiguousarray, arrays(make_sample(number))))
    if path is None:
        _place("written").unlink()
    return size(numbers)


def _read_plainly(path: Path) -> int:
    data = np.memmap(path, np.float32, "r")
    step = 1 << 18
    for start in range(0, len(data), step):
        data[start : start + step].sum()
    return data.nbytes


if __name__ == "__main__":
    arguments = [int(each) for each in sys.argv[1:]]
    print(run(*arguments).markdown())
