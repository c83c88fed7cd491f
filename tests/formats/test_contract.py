"""What every format promises alike: numbers, order, keys, fields, threads, processes, loaders."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.formats.examples import COUNT, EXAMPLES

import shoal
from shoal.errors import FieldError, ObjectNotFoundError, OptionError, PositionError, SampleKeyError
from shoal.formats import SourceOptions, detect, open_source
from shoal.store import store_for


@pytest.fixture(params=EXAMPLES, ids=lambda e: e.name + ("-rows" if e.reading else ""))
def example(request):
    return request.param


@pytest.fixture
def folder(example, tmp_path):
    return example.make(tmp_path / "data")


@pytest.fixture
def dataset(example, folder):
    found = shoal.Dataset(folder, format=example.name)
    return _told(found, example)


def _told(dataset, example):
    """The dataset, told what its front class would tell the format."""
    described = dataset.described
    told = replace(described, options=replace(described.options, reading=example.reading))
    return dataset._another(told)


def numbers(example, samples):
    return [example.value(sample[example.one]) for sample in samples]


def test_the_folder_says_what_it_is(example, folder):
    if example.name == "raw":  # any file would do, so it has to be asked for
        return
    assert detect(folder) == example.name


def test_length_and_order(example, dataset):
    assert len(dataset) == COUNT
    assert numbers(example, dataset) == list(range(COUNT))
    assert numbers(example, [dataset[n] for n in range(COUNT)]) == list(range(COUNT))


def test_any_positions_in_any_order(example, dataset):
    wanted = [22, 0, 9, 10, 9, -1, 3]
    assert numbers(example, dataset[wanted]) == [n % COUNT for n in wanted]
    with pytest.raises(PositionError):
        dataset[COUNT]
    with pytest.raises(PositionError):
        dataset.source.read(np.array([0, COUNT]))


def test_streams_and_positions_give_the_same(dataset):
    for position, sample in enumerate(dataset):
        again = dataset[position]
        assert sample.keys() == again.keys()
        for name, value in sample.items():
            np.testing.assert_array_equal(value, again[name])
            assert type(value) is type(again[name])


def test_keys(example, dataset):
    expected = [example.keys(n) for n in range(COUNT)]
    assert dataset.keys() == expected
    assert [sample["__key__"] for sample in dataset] == expected
    assert dataset.position_of(expected[13]) == 13
    assert example.value(dataset.get(expected[22])[example.one]) == 22
    assert dataset.source.table(["__key__"]).column(0).to_pylist() == expected
    with pytest.raises(SampleKeyError):
        dataset.get("no such key")
    with pytest.raises(FieldError):
        dataset.source.table(["no such column"])


def test_fields_are_read_alone(example, dataset):
    assert set(dataset.fields) == set(example.fields)
    only = dataset.columns([example.one])
    assert all(set(sample) == {"__key__", "__url__", example.one} for sample in only)
    assert numbers(example, only) == list(range(COUNT))
    assert set(dataset.source.read(np.array([5]), ())[0]) == {"__key__", "__url__"}
    with pytest.raises(FieldError):
        dataset.columns(["no such field"])[0]


def test_values_are_right(dataset):
    for number, sample in enumerate(dataset):
        if "x" in sample:
            np.testing.assert_array_equal(sample["x"], np.arange(number, number + 3))
        if "cls" in sample:
            assert (sample["cls"], sample["class_name"]) == (number // 10, f"class{number // 10}")


def test_several_threads_at_once(example, dataset):
    rng = np.random.default_rng(0)
    wanted = [rng.integers(0, COUNT, 40).tolist() for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda rows: numbers(example, dataset[rows]), wanted))
    assert found == wanted


def test_pickling_opens_it_again(example, dataset):
    part = dataset.select([3, 1])
    assert numbers(example, pickle.loads(pickle.dumps(dataset))) == list(range(COUNT))
    assert numbers(example, pickle.loads(pickle.dumps(part))) == [3, 1]


def test_a_shuffled_loader_gives_each_once_and_resumes(example, dataset):
    def loader():
        return shoal.DataLoader(dataset, batch_size=4, shuffle=True, seed=3)

    def of(batches):
        return [example.value(value) for batch in batches for value in batch[example.one]]

    whole = of(loader())
    assert sorted(whole) == list(range(COUNT))
    assert whole != sorted(whole)
    first = loader()
    batches = iter(first)
    before = of([next(batches), next(batches)])
    state = first.state_dict()
    rest = loader()
    rest.load_state_dict(state)
    assert before + of(rest) == whole


def test_by_url(example, folder):
    root = f"memory://contract/{example.name}{len(example.reading)}"
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store_for(root).write_all(f"{root}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    away = _told(shoal.Dataset(root, format=example.name), example)
    assert numbers(example, away) == list(range(COUNT))
    assert numbers(example, away[[20, 2, 11]]) == [20, 2, 11]
    near = _told(shoal.Dataset(folder, format=example.name), example)
    assert away.source.identity == near.source.identity
    assert away.keys() == near.keys()


def test_an_option_that_it_does_not_have(example, folder):
    with pytest.raises(OptionError, match="no_such_option"):
        open_source(folder, SourceOptions(reading=(("no_such_option", 1),)), format=example.name)


def test_nothing_is_there(example, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectNotFoundError):
        len(shoal.Dataset(tmp_path / "empty", format=example.name))
    with pytest.raises(ObjectNotFoundError):
        len(shoal.Dataset(tmp_path / "missing", format=example.name))


def test_nothing_is_opened_before_it_is_needed(example, tmp_path):
    shoal.Dataset(tmp_path / "missing", format=example.name)
