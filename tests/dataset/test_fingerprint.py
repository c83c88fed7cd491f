"""Fingerprints: equal for equal samples in equal order, in every process."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

import shoal
from shoal import Dataset, ShardWriter

COUNT = 60


def sample(n, name="k"):
    return {"__key__": f"{name}{n:03d}", "json": {"width": n * 10, "patient": n // 7}, "cls": n % 5, "txt": f"text {n}"}


def write(root, samples, name="train", **options):
    with ShardWriter(f"{root}/{name}-%06d.tar", **{"max_samples": 7, **options}) as writer:
        for each in samples:
            writer.write(each)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("views"), map(sample, range(COUNT)))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write(tmp_path_factory.mktemp("others"), (sample(n, "o") for n in range(25)))


@pytest.fixture
def ds(folder):
    return Dataset(folder)


@shoal.packable
class Point:
    x: float
    name: str


@shoal.packable
class Elsewhere:
    x: float
    name: int


@shoal.lens
def as_point(found: Point) -> Elsewhere:
    return Elsewhere(found.x, len(found.name))


@pytest.fixture
def points(tmp_path):
    one = shoal.write_samples([Point(float(n), f"p{n}") for n in range(30)], tmp_path / "one-%03d.tar", max_samples=8)
    two = shoal.write_samples([Point(float(n), f"q{n}") for n in range(9)], tmp_path / "two" / "b.tar")
    return one, two


def double(found):
    return {**found, "cls": found["cls"] * 2}


def scaled(factor):
    return lambda found: found["cls"] * factor


def test_equal_openings_have_equal_fingerprints(folder, tmp_path):
    one = Dataset(folder)
    assert one.fingerprint == Dataset(str(folder)).fingerprint == Dataset(folder / "*.tar").fingerprint
    assert len(one.fingerprint) == 16
    assert int(one.fingerprint, 16) >= 0
    copy = tmp_path / "copy"
    copy.mkdir()
    for tar in folder.glob("*.tar"):
        (copy / tar.name).write_bytes(tar.read_bytes())
    assert Dataset(copy).fingerprint == one.fingerprint  # where it lies does not matter
    assert one.select(range(COUNT)).fingerprint == one.fingerprint
    assert one.map(scaled(2)).fingerprint == one.map(scaled(2)).fingerprint
    assert one.where("width > 50").fingerprint == one.select(range(6, COUNT)).fingerprint


def test_whatever_changes_samples_or_order_changes_the_fingerprint(folder, other, tmp_path):
    ds = Dataset(folder)
    write(tmp_path, map(sample, range(COUNT)), max_samples=8)
    found = [
        ds,
        Dataset(other),
        Dataset(tmp_path),
        Dataset(folder, decode=False),
        Dataset(folder, rule=shoal.KeyRule(dot="last")),
        ds.select(range(5)),
        ds.select(range(4, -1, -1)),
        ds.columns(["cls"]),
        ds.columns(["cls", "json"]),
        ds.map(double),
        ds.filter(double),
        ds.map(scaled(2)),
        ds.map(scaled(3)),
        ds.map(lambda found: found["cls"] + 1),
        ds.map(lambda found: found["cls"] + 2),
        ds.map(functools.partial(max, 1)),
        ds.map(functools.partial(max, 2)),
        ds.map(double).map(double),
        ds.concat(ds),
        ds.concat(Dataset(other)),
        Dataset(other).concat(ds),
        ds.map(double).concat(ds),
        ds.exclude(["k001"]),
    ]
    prints = [each.fingerprint for each in found]
    assert len(set(prints)) == len(prints)


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @functools.cached_property
    def twice(self):
        return self.factor * 2

    def __call__(self, found):
        return found["cls"] * self.twice

    def method(self, found):
        return found["cls"] * self.factor


def test_what_functions_hold_counts_and_what_they_keep_to_be_quick_does_not(ds, points):
    one, two, used = Scale(2), Scale(3), Scale(2)
    assert used.twice == 4
    made = [ds.map(one), ds.map(two), ds.map(one.method), ds.map(two.method), ds.map(np.sin), ds.map(len)]
    assert len({each.fingerprint for each in made}) == len(made)
    assert ds.map(used).fingerprint == ds.map(one).fingerprint
    shared = (1.5, "a")
    equal = tuple(iter(shared))
    assert equal is not shared
    twins = [ds.map(functools.partial(min, *pair)) for pair in ((shared, shared), (shared, equal))]
    assert twins[0].fingerprint == twins[1].fingerprint
    small, large = ds.select([0]), ds.select([1])
    assert ds.map(lambda found: small).fingerprint != ds.map(lambda found: large).fingerprint
    looped = [ds]
    looped.append(looped)
    assert ds.map(functools.partial(max, looped)).fingerprint
    seen = points[0].as_type(Elsewhere)
    assert seen.fingerprint == points[0].as_type(Elsewhere).fingerprint != points[0].fingerprint
    assert seen[3].name == 2
    assert seen.fingerprint == points[0].as_type(Elsewhere).fingerprint


def test_a_fingerprint_is_the_same_in_another_process(folder):
    code = (
        "import sys, shoal\n"
        "def keep(found, limit=3, names=frozenset({'a', 'b', 'c'})):\n    return found['cls'] < limit\n"
        f"ds = shoal.Dataset({str(folder)!r}).where('width > 100').filter(keep)\n"
        "print(ds.fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_no_tar_is_read_for_a_fingerprint(tmp_path):
    write(tmp_path, map(sample, range(20)))
    expected = Dataset(tmp_path).fingerprint
    for tar in tmp_path.glob("*.tar"):
        tar.unlink()
    assert Dataset(tmp_path).fingerprint == expected
