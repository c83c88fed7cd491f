"""A state that does not fit says which setting differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import LoaderStateError


def write(folder: Path, count: int = 20) -> None:
    with shoal.ShardWriter(folder / "a-%06d.tar") as writer:
        for number in range(count):
            writer.write({"__key__": f"k{number}", "cls": number, "txt": "a", "npy": np.arange(4)})


def saved(dataset: shoal.Dataset[Any], **options: Any) -> dict[str, Any]:
    loader = shoal.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "num_workers": 0, **options})
    next(iter(loader))
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return state


OTHERS: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "decode": (lambda folder: shoal.Dataset(folder, decode=False), {}, "decode differs"),
    "decode as a method": (lambda folder: shoal.Dataset(folder).decode(only="cls"), {}, "decode differs"),
    "fields": (lambda folder: shoal.Dataset(folder, fields=["cls"]), {}, "fields differs"),
    "columns": (lambda folder: shoal.Dataset(folder).columns(["cls", "txt"]), {}, "fields differs"),
    "a selection": (lambda folder: shoal.Dataset(folder).select(range(10)), {}, "selected samples"),
    "an order": (lambda folder: shoal.Dataset(folder).select(range(19, -1, -1)), {}, "selected samples"),
    "the seed": (shoal.Dataset, {"seed": 3}, "seed is 3 here but 0 in the state"),
    "the shuffle": (shoal.Dataset, {"shuffle": False}, "order is sequential here but global"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_setting_that_differs_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    opened, options, message = OTHERS[name]
    state = saved(shoal.Dataset(tmp_path))
    loader = shoal.DataLoader(opened(tmp_path), **{"batch_size": 4, "shuffle": True, **options})
    with pytest.raises(LoaderStateError, match=message) as caught:
        loader.load_state_dict(state)
    for other in ("decode", "fields", "selected", "the data"):
        assert (other in str(caught.value)) == (other in message)


def test_other_data_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", 24)
    loader = shoal.DataLoader(shoal.Dataset(tmp_path / "b"), batch_size=4, shuffle=True)
    with pytest.raises(LoaderStateError, match="the data differs") as caught:
        loader.load_state_dict(saved(shoal.Dataset(tmp_path / "a")))
    assert "decode" not in str(caught.value)


def test_several_settings_are_all_named(tmp_path: Path) -> None:
    write(tmp_path)
    loader = shoal.DataLoader(shoal.Dataset(tmp_path, decode=False, fields=["cls"]), batch_size=4, shuffle=True)
    with pytest.raises(LoaderStateError, match=r"fields differs; decode differs|decode differs; fields differs"):
        loader.load_state_dict(saved(shoal.Dataset(tmp_path)))


def test_what_may_change_still_resumes(tmp_path: Path) -> None:
    write(tmp_path)
    state = saved(shoal.Dataset(tmp_path))
    for dataset in (shoal.Dataset(tmp_path), shoal.Dataset(str(tmp_path)).map(lambda sample: sample)):
        loader = shoal.DataLoader(dataset, batch_size=2, shuffle=True, num_workers=0)
        loader.load_state_dict(state)
        assert sum(len(batch["cls"]) for batch in loader) == 16


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"shuffle": True, "window": 8, "block_samples": 2, "lanes": 2}]
)
def test_a_state_stays_short(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path)
    dataset = shoal.Dataset(tmp_path, decode=False, fields=["cls"]).select(range(18))
    assert len(json.dumps(saved(dataset, **options))) < 350
