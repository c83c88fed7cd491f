"""The plan is arithmetic: every item has one place, limits are kept, shares are exact, and nothing else matters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.build import PlanOptions, plan_shards
from shoal.build._plan import is_sampled, split_by_hash
from shoal.errors import OptionError

SHARES = [(), (("a", 1.0),), (("a", 0.5), ("b", 0.5)), (("a", 0.9), ("b", 0.07), ("c", 0.03))]


@given(
    count=st.integers(0, 300),
    max_samples=st.integers(1, 50),
    max_bytes=st.integers(1, 5000),
    known=st.booleans(),
    shuffle=st.booleans(),
    shares=st.sampled_from(SHARES),
    sample=st.sampled_from([None, 0.0, 0.3, 1.0, 17]),
    seed=st.integers(0, 3),
)
def test_each_item_has_one_place_and_limits_are_kept(
    count, max_samples, max_bytes, known, shuffle, shares, sample, seed
):
    sizes = np.random.default_rng(count).integers(1, 1000, count) if known else None
    options = PlanOptions(max_samples, max_bytes, shuffle, seed, sample, shares)
    plan = plan_shards(count, options, sizes=sizes)
    expected = count if sample is None else min(sample, count) if sample == 17 else round(sample * count)
    assert len(np.unique(plan.items)) == len(plan.items) == expected
    assert ((plan.items >= 0) & (plan.items < max(count, 1))).all()
    assert [shard.start for shard in plan.shards[1:]] == [shard.stop for shard in plan.shards[:-1]]
    assert len({shard.path for shard in plan.shards}) == len(plan.shards)
    for shard in plan.shards:
        own = plan.items_of(shard)
        assert 0 < len(own) <= max_samples
        if known:
            assert sizes[own].sum() <= max_bytes or len(own) == 1
        if not shuffle:
            assert (np.diff(own) > 0).all()
    for name, share in shares:
        assert abs(sum(s.stop - s.start for s in plan.shards if s.split == name) - share * expected) <= 1


@given(count=st.integers(1, 400), limit=st.integers(2000, 20_000))
def test_shards_are_as_few_and_as_equal_as_may_be(count, limit):
    sizes = np.random.default_rng(count).integers(1, 1000, count)
    plan = plan_shards(count, PlanOptions(10_000, limit), sizes=sizes)
    totals = [int(sizes[plan.items_of(shard)].sum()) for shard in plan.shards]
    assert len(totals) <= 1 + sizes.sum() // (limit - 1000)
    assert max(totals) <= sizes.sum() / len(totals) + 2000
    by_count = plan_shards(count, PlanOptions(max_samples=7)).shards
    lengths = {shard.stop - shard.start for shard in by_count}
    assert max(lengths) - min(lengths) <= 1
    assert len(by_count) == -(-count // 7)


def test_a_plan_is_a_function_of_what_is_asked():
    options = PlanOptions(max_samples=9, shuffle=True, seed=3, splits=(("a", 0.8), ("b", 0.2)))
    plan = plan_shards(1000, options)
    assert plan.fingerprint == plan_shards(1000, options).fingerprint
    others = [
        plan_shards(999, options),
        plan_shards(1000, PlanOptions(max_samples=9, shuffle=True, seed=4, splits=options.splits)),
        plan_shards(1000, PlanOptions(max_samples=8, shuffle=True, seed=3, splits=options.splits)),
        plan_shards(1000, options, kept=np.arange(1, 1000)),
    ]
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_a_source_keeps_its_splits():
    runs = {"train": [(0, 4), (7, 9)], "test": [(4, 7)]}
    plan = plan_shards(9, PlanOptions(max_samples=4), splits=runs)
    found = {shard.path: plan.items_of(shard).tolist() for shard in plan.shards}
    assert found == {
        "train-000000.tar": [0, 1, 2],
        "train-000001.tar": [3, 7, 8],
        "test-000000.tar": [4, 5, 6],
    }


def test_a_shuffle_mixes():
    items = plan_shards(10_000, PlanOptions(shuffle=True, seed=1)).items
    assert abs(np.corrcoef(items, np.arange(10_000))[0, 1]) < 0.05


def test_streams_are_shared_out_by_hashes():
    options = PlanOptions(sample=0.5, splits=(("a", 0.75), ("b", 0.25)), seed=2)
    kept = [number for number in range(4000) if is_sampled(number, options)]
    assert 1800 < len(kept) < 2200
    assert 0.7 < sum(split_by_hash(number, options) == "a" for number in kept) / len(kept) < 0.8


@pytest.mark.parametrize(
    "options",
    [
        {"max_samples": 0},
        {"sample": 1.5},
        {"sample": -1},
        {"splits": (("a", 0.5), ("b", 0.4))},
        {"splits": (("a", 0.5), ("a", 0.5))},
        {"splits": (("a/b", 1.0),)},
        {"splits": (("a", 1.0),), "split": "a"},
        {"splits": (("a", 0.5), ("b", 0.5)), "name": "x-%06d.tar"},
    ],
)
def test_what_cannot_be_is_refused(options):
    with pytest.raises(OptionError):
        PlanOptions(**options)
