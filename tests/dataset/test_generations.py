"""What a dataset of segments is: its fingerprint, and the generation that views and loaders are of."""

from __future__ import annotations

import json
import pickle
import shutil
import uuid

import pytest
from tests.shard.segments import write_as_segments

import shoal
from shoal.errors import LoaderStateError, ManifestError
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


# -------------------------------------------------------------------------------------------------- pinned generations


def grow(root, *, count=8):
    """Add samples and delete some of the old ones."""
    ds = shoal.Dataset(root)
    total = len(shoal.Dataset(root, tombstones=False))
    ds.append(map(sample, range(total, total + count))).tombstone(["k001", "k007"])


def test_a_view_that_was_pickled_is_of_the_generation_that_it_was_made_of(tmp_path):
    ds = shoal.Dataset(make(tmp_path))
    views = [ds.where("cls >= 6"), ds, ds.select([7, 1])]
    expected = [view.keys() for view in views]
    pickled = [pickle.dumps(view) for view in views]
    grow(tmp_path)
    assert [pickle.loads(data).keys() for data in pickled] == expected
    assert len(pickle.loads(pickled[1]).refresh()) == 18
    for number in range(9):
        shoal.Dataset(tmp_path).append([sample(100 + number)])
    ds.source.close()  # now nobody keeps that generation
    shoal.Dataset(tmp_path).append([sample(200)])
    assert pickle.loads(pickled[1]).keys() == shoal.Dataset(tmp_path).keys()
    with pytest.raises(ManifestError, match="has changed since this view"):
        pickle.loads(pickled[0]).keys()


OPTIONS = [{}, {"shuffle": True, "seed": 3}, {"shuffle": True, "seed": 3, "window": 4, "block_samples": 2}]


def loader(root, choose=lambda ds: ds, **options):
    return shoal.DataLoader(choose(shoal.Dataset(root)), batch_size=2, num_workers=0, **options)


def keys(batches):
    return [key for batch in batches for key in batch["__key__"]]


VIEWS = [lambda ds: ds, lambda ds: ds.where("cls != 2"), lambda ds: ds.where("cls > 0").exclude(["k004"])]


@pytest.mark.parametrize("choose", VIEWS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_state_resumes_on_a_later_generation_and_new_samples_come_with_the_next_epoch(tmp_path, options, choose):
    root = make(tmp_path)
    before = loader(root, choose, **options)
    batches = iter(before)
    delivered = keys([next(batches)])
    state = before.state_dict()
    assert len(json.dumps(state, separators=(",", ":"))) < 320
    rest = keys(batches)
    grow(root)

    after = loader(root, choose, **options)
    after.load_state_dict(json.loads(json.dumps(state)))
    resumed = iter(after)
    some = keys([next(resumed)])
    again = pickle.loads(pickle.dumps(after))
    third = loader(root, choose, **options)
    third.load_state_dict(after.state_dict())
    assert some + keys(resumed) == rest
    assert some + keys(again) == some + keys(third) == rest
    assert sorted([*delivered, *rest]) == sorted(before.dataset.keys())
    for each in (after, again, third):
        assert each.epoch == 1
        assert sorted(keys(each)) == sorted(after.dataset.keys())


def test_a_state_of_the_same_samples_resumes_in_any_generation_and_lineage(tmp_path):
    root = make(tmp_path / "one")
    before = loader(root, shuffle=True, seed=1)
    batches = iter(before)
    next(batches)
    state = before.state_dict()
    rest = keys(batches)
    shoal.Dataset(root).tombstone(["k002"]).restore()
    for place in (root, make(tmp_path / "two"), make(tmp_path / "one", new_lineage=True)):
        after = loader(place, shuffle=True, seed=1)
        after.load_state_dict(state)
        assert keys(after) == rest


def test_a_state_of_an_epoch_that_is_over_begins_the_next_one_with_all_samples(tmp_path):
    root = make(tmp_path)
    before = loader(root)
    assert len(keys(before)) == 12
    grow(root)
    after = loader(root)
    after.load_state_dict(before.state_dict())
    assert (after.epoch, len(after)) == (1, 9)
    assert keys(after) == shoal.Dataset(root).keys()


def test_a_state_that_does_not_fit_says_why(tmp_path):
    root = make(tmp_path)
    before = loader(root, shuffle=True, seed=1)
    next(iter(before))
    state = before.state_dict()
    grow(root)
    with pytest.raises(LoaderStateError, match="seed is 2 here but 1 in the state"):
        loader(root, shuffle=True, seed=2).load_state_dict(state)
    before.close()
    before.dataset.source.close()
    for number in range(9):
        shoal.Dataset(root).append([sample(100 + number)])
    with pytest.raises(LoaderStateError, match=r"The generation is not kept any more.*start a new run"):
        loader(root, shuffle=True, seed=1).load_state_dict(state)
    make(root, 13, new_lineage=True)
    with pytest.raises(LoaderStateError, match=r"The dataset was replaced.*start a new run"):
        loader(root, shuffle=True, seed=1).load_state_dict(state)


def test_an_epoch_that_is_set_has_all_samples(tmp_path):
    root = make(tmp_path)
    before = loader(root)
    next(iter(before))
    grow(root)
    after = loader(root)
    after.load_state_dict(before.state_dict())
    assert len(after) == 6
    after.set_epoch(4)
    assert keys(after) == shoal.Dataset(root).keys()
