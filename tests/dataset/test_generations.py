"""What a dataset of segments is: its fingerprint, and the generation that views and loaders are of."""

from __future__ import annotations

import shutil
import uuid

import pytest
from tests.shard.segments import write_as_segments

import shoal
from shoal.shard._commit import load_generation


def sample(number):
    return {"__key__": f"k{number:03d}", "txt": f"text {number}", "cls": number}


def make(root, count=12, first=0, **options):
    return write_as_segments(str(root), {"train": map(sample, range(first, count))}, **options)


def test_equal_samples_in_equal_shards_have_one_fingerprint(tmp_path):
    one = make(tmp_path / "one")
    shutil.copytree(one, tmp_path / "copy")
    others = [
        str(tmp_path / "copy"),
        make(tmp_path / "two", shards_per_segment=3, pattern="other-%03d.tar"),
        make(f"memory://generations/{uuid.uuid4()}", shards_per_segment=1),
    ]
    grown = make(tmp_path / "grown", 4)
    for number in (4, 8):  # the segments are folded, the lineage is another
        shoal.Dataset(grown).append(map(sample, range(number, number + 4)))
    fingerprint = shoal.Dataset(one).fingerprint
    for other in [*others, grown]:
        assert shoal.Dataset(other).fingerprint == fingerprint
    assert load_generation(grown).lineage != load_generation(one).lineage


@pytest.mark.parametrize(
    "change",
    [
        lambda root: make(root, 13, new_lineage=True),
        lambda root: make(root, 13, 1, new_lineage=True),
        lambda root: make(root, max_samples=6, new_lineage=True),
        lambda root: shoal.Dataset(root).tombstone(["k003"]),
        lambda root: shoal.Dataset(root).append([sample(12)]),
    ],
)
def test_other_samples_have_another_fingerprint(tmp_path, change):
    root = make(tmp_path)
    before = shoal.Dataset(root).fingerprint
    change(root)
    assert shoal.Dataset(root).fingerprint != before


def test_deleting_and_restoring_gives_the_fingerprint_back(tmp_path):
    ds = shoal.Dataset(make(tmp_path))
    assert ds.tombstone(["k003"]).restore().fingerprint == ds.fingerprint


def test_a_fingerprint_costs_no_look_at_the_index(tmp_path):
    root = make(tmp_path)
    fingerprint = shoal.Dataset(root).fingerprint
    shutil.rmtree(tmp_path / ".shoal" / "index")
    assert shoal.Dataset(root, sample_type=dict).fingerprint == fingerprint
