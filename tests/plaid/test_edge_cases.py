"""What becomes of odd samples: never worse than with PLAID's own backends, and better where they change or fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from plaid.storage import init_from_disk
from tests.plaid import physics
from tests.scale import times

FAILS, CHANGED, KEPT = range(3)


def one_global(name, value):
    def made(number):
        sample = physics.bare_sample()
        sample.add_global(name, value(number))
        return sample

    return made


def two_globals(first, second):
    def made(number):
        sample = one_global(first, lambda number: np.array([number], np.float32))(number)
        sample.add_global(second, np.array([-number], np.float32))
        return sample

    return made


def constant(number):
    sample = one_global("x", lambda _: np.array([1 / 3]))(number)
    sample.add_global("c", np.array([number], np.float32))
    return sample


def missing(number):
    return one_global("x", lambda _: np.ones(3, np.float32))(number) if number == 2 else physics.bare_sample()


# A case: how a sample is made, the global to look at, what becomes of it with us, with zarr and with hf_datasets. The
# last two were seen with pyplaid 1.0.0. hf_datasets starts processes for each dataset, so what it takes is saved all at
# once, and case by case in `make soak` only.
CASES = {
    "float64, variable": (one_global("x", lambda n: np.array([n / 3])), "x", KEPT, KEPT, CHANGED),
    "float64, constant": (constant, "x", CHANGED, CHANGED, CHANGED),
    "float32, variable": (one_global("x", lambda n: np.array([n / 3], np.float32)), "x", KEPT, KEPT, KEPT),
    "int32": (one_global("x", lambda n: np.array([n, 1], np.int32)), "x", KEPT, KEPT, KEPT),
    "int64": (one_global("x", lambda n: np.array([n, 1], np.int64)), "x", KEPT, KEPT, KEPT),
    "text": (one_global("x", lambda n: f"run {n}"), "x", KEPT, CHANGED, KEPT),
    "two axes": (one_global("x", lambda n: np.full((2, 3), n, np.float32)), "x", KEPT, KEPT, KEPT),
    "two underscores in the name": (two_globals("a__b", "c"), "a__b", KEPT, FAILS, KEPT),
    "a dot in the name": (two_globals("a.b", "a.c"), "a.b", KEPT, KEPT, KEPT),
    "names that differ by case": (two_globals("Mach", "mach"), "mach", KEPT, KEPT, KEPT),
    "a name that ends in _times": (two_globals("x_times", "c"), "x_times", FAILS, FAILS, FAILS),
    "uint8": (one_global("x", lambda n: np.array([n], np.uint8)), "x", FAILS, FAILS, FAILS),
    "some samples lack it": (missing, "x", KEPT, KEPT, KEPT),
    "all samples alike": (one_global("x", lambda _: np.ones(1, np.float32)), "x", KEPT, FAILS, FAILS),
}


@dataclass(frozen=True)
class Made:
    """Makes the samples of a case, and can be sent to other processes."""

    case: str

    def __call__(self, number):
        return CASES[self.case][0](number)


def outcome(folder, backend, case):
    """Whether the global comes back as it was, comes back as something else, or does not."""
    make, name, *_ = CASES[case]
    try:
        datasets, converters = init_from_disk(physics.saved(folder / backend, Made(case), {"train": [1, 2]}, backend))
        found = [converters["train"].to_plaid(datasets["train"], place).get_global(name) for place in (0, 1)]
    except (AssertionError, ValueError, UnboundLocalError, KeyError):
        return FAILS
    expected = [make(number).get_global(name) for number in (1, 2)]
    return KEPT if all(map(same, found, expected)) else CHANGED


def same(found, expected):
    if found is None or expected is None:
        return found is expected
    return np.asarray(found).dtype == np.asarray(expected).dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("case", CASES)
def test_the_backend_is_never_worse_than_plaids_own(tmp_path, case, leaky_peer):
    *_, ours, zarr, hf_datasets = CASES[case]
    assert outcome(tmp_path, "webdataset", case) == ours >= max(zarr, hf_datasets)
    assert outcome(tmp_path, "zarr", case) == zarr
    for _ in range(times(0, 1)):
        assert outcome(tmp_path, "hf_datasets", case) == hf_datasets


def all_at_once(number):
    """The globals of all cases that hf_datasets takes, each under a name of its own."""
    sample = physics.bare_sample()
    for place, (make, name, *_, hf_datasets) in enumerate(CASES.values()):
        if hf_datasets != FAILS and (value := make(number).get_global(name)) is not None:
            sample.add_global(f"{name}_{place}", value)
    return sample


def test_what_becomes_of_the_cases_with_hf_datasets(tmp_path, leaky_peer):
    datasets, converters = init_from_disk(
        physics.saved(tmp_path / "taken", all_at_once, {"train": [1, 2]}, "hf_datasets")
    )
    found = [converters["train"].to_plaid(datasets["train"], place) for place in (0, 1)]
    for place, (case, (make, name, *_, hf_datasets)) in enumerate(CASES.items()):
        if hf_datasets == FAILS:
            assert outcome(tmp_path, "hf_datasets", case) == FAILS
        else:
            pairs = [(found[at].get_global(f"{name}_{place}"), make(at + 1).get_global(name)) for at in (0, 1)]
            assert (KEPT if all(same(*pair) for pair in pairs) else CHANGED) == hf_datasets, case
