"""What is made of a mixture has its samples, in its order, however it is read."""

from __future__ import annotations

import pickle

import pytest

import shoal


def write(path, count=9):
    return shoal.write_samples(
        ({"__key__": f"{path.name}{number}", "cls": number} for number in range(count)), path, max_samples=4
    )


@pytest.fixture
def mixture(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b", 3)
    return shoal.mix([shoal.Dataset(tmp_path / "a"), shoal.Dataset(tmp_path / "b")], weights=[2, 1], length=12)


MADE = {
    "itself": lambda mixed: mixed,
    "with_epoch": lambda mixed: mixed.with_epoch(30),
    "with_length": lambda mixed: mixed.with_length(12),
    "concat": lambda mixed: mixed.concat(mixed.select([0])),
    "join": lambda mixed: mixed.join(mixed.take(8), fields=["cls"], suffix="_right", missing="skip"),
    "mix": lambda mixed: shoal.mix([mixed, mixed.take(3)]),
    "refresh": lambda mixed: mixed.refresh(),
    "map, refresh": lambda mixed: mixed.map(dict).refresh(),
    "pickle": lambda mixed: pickle.loads(pickle.dumps(mixed)),
    "unpickled epoch": lambda mixed: pickle.loads(pickle.dumps(mixed.with_epoch(15))),
    "where": lambda mixed: mixed.where("cls > 1"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_loader_gives_what_iteration_gives(mixture, name):
    made = MADE[name](mixture)
    keys = [sample["__key__"] for sample in made]
    assert len(keys) == len(made)
    for options in ({"batch_size": 4, "num_workers": 0}, {"batch_size": 5, "num_workers": 2}):
        batches = list(shoal.DataLoader(made, **options))
        assert [key for batch in batches for key in batch["__key__"]] == keys


def test_batches_of_a_mixture(mixture, monkeypatch):
    keys = [sample["__key__"] for sample in mixture]
    batched = mixture.batched(4)
    assert [list(batch["__key__"]) for batch in batched] == [keys[0:4], keys[4:8], keys[8:12]]
    assert [list(batch["__key__"]) for batch in shoal.DataLoader(batched, batch_size=None)] == [
        keys[0:4],
        keys[4:8],
        keys[8:12],
    ]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert [list(batch["__key__"]) for batch in mixture.batched(4)] == [keys[4:8]]


def test_refreshing_mixes_what_is_there_now(mixture, tmp_path):
    assert mixture.refresh().keys() == mixture.keys()
    shoal.Dataset(tmp_path / "b").append([{"__key__": "new", "cls": 9}])
    before, grown = mixture.keys(), mixture.refresh().keys()
    assert (len(grown), grown.count("new")) == (12, 1)
    assert [key for key in grown if key[0] == "a"] == [key for key in before if key[0] == "a"]
    parts = [shoal.Dataset(tmp_path / name) for name in "ab"]
    assert shoal.mix([parts[0].where("cls > 4")], weights=[1], length=6).refresh().keys() == [
        f"a{number}" for number in (5, 6, 7, 8, 5, 6)
    ]
