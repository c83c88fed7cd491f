"""build_shards: functions, budgets, samples and options, and the same bytes for any number of workers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.build.built import (
    contents,
    double,
    fails_at_seven,
    keys,
    make_images,
    numbers,
    picky,
    samples,
    split_in_two,
    tree,
)

import shoal
from shoal.build import LocalEngine
from shoal.errors import ErrorBudgetExceeded, OptionError, WriteError
from shoal.shard import load_manifest

TWO = LocalEngine(2, "fork")


@pytest.mark.parametrize(
    "engine",
    [LocalEngine(2, "fork"), LocalEngine(3, "fork"), LocalEngine(2, "forkserver")],
    ids=lambda engine: f"{engine.start}-{engine.workers}",
)
def test_the_bytes_are_those_of_one_worker(tmp_path, engine):
    source = make_images(tmp_path / "in")
    options = {
        "max_samples": 7,
        "shuffle": True,
        "seed": 3,
        "splits": {"train": 0.8, "test": 0.2},
        "metadata": {"made by": "a test"},
    }
    shoal.build_shards(source, tmp_path / "one", double, workers=1, **options)
    report = shoal.build_shards(source, tmp_path / "other", double, engine=engine, **options)
    assert tree(tmp_path / "one") == tree(tmp_path / "other")
    assert report.samples == len(shoal.Dataset(tmp_path / "other")) == 40
    assert len(keys(tmp_path / "one", split="test")) == 8
    assert keys(tmp_path / "one") != sorted(keys(tmp_path / "one"))


def test_a_folder_gives_what_pack_gives(tmp_path):
    source = make_images(tmp_path / "in")
    with shoal.ShardWriter(
        tmp_path / "packed" / "train-%06d.tar", max_samples=20, metadata={"classes": ["cat", "dog"]}
    ) as writer:
        for sample in shoal.build._folders.plan_folder(str(source), label_from_folder=True):
            writer.write(sample)
    shoal.build_shards(source, tmp_path / "built", max_samples=20, max_bytes=1 << 40, engine=TWO)
    sizes = [shard.samples for shard in load_manifest(str(tmp_path / "built")).shards]
    if sizes == [20, 20]:
        assert contents(tmp_path / "packed") == contents(tmp_path / "built")
    assert [(s["__key__"], s["cls"], s["jpg"]) for s in samples(tmp_path / "packed")] == [
        (s["__key__"], s["cls"], s["jpg"]) for s in samples(tmp_path / "built")
    ]
    assert load_manifest(str(tmp_path / "built")).metadata == {"classes": ["cat", "dog"]}


def test_shards_are_balanced_in_bytes(tmp_path):
    source = make_images(tmp_path / "in", 60)
    report = shoal.build_shards(source, tmp_path / "out", max_bytes=60_000, workers=1)
    sizes = [shard.bytes for shard in report.shards]
    assert len(sizes) > 2
    assert max(sizes) <= 60_000 + 10_240
    assert max(sizes) - min(sizes) <= 20_480


def test_a_function_leaves_out_and_makes_several(tmp_path):
    report = shoal.build_shards(numbers(), tmp_path / "half", picky, max_samples=10, engine=TWO)
    assert (report.samples, report.dropped) == (25, 25)
    assert [sample["cls"] for sample in samples(tmp_path / "half")] == list(range(0, 50, 2))
    report = shoal.build_shards(numbers(4), tmp_path / "more", split_in_two, max_samples=2, workers=1)
    assert keys(tmp_path / "more")[:3] == ["k000-0", "k000-1", "k001-0"]
    assert [shard.samples for shard in report.shards] == [4, 4]


def test_a_shard_of_which_nothing_is_left_is_not_there(tmp_path):
    report = shoal.build_shards(
        numbers(), tmp_path / "out", lambda s: s if s["cls"] > 20 else None, max_samples=10, workers=1
    )
    assert [shard.path for shard in report.shards] == [f"train-{n:06d}.tar" for n in (2, 3, 4)]
    assert len(samples(tmp_path / "out")) == 29


def test_failures_stay_within_a_budget_and_move_nobody(tmp_path):
    whole = shoal.build_shards(numbers(), tmp_path / "whole", max_samples=10, workers=1)
    report = shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, max_samples=10, engine=TWO, error_budget=5)
    assert [(f.item, f.key, f.shard, f.reason) for f in report.failures] == [
        (n, f"k{n:03d}", f"train-{n // 10:06d}.tar", f"ValueError: not {n}") for n in (7, 17, 27, 37, 47)
    ]
    assert not report.ok
    assert [shard.samples for shard in whole.shards] == [10] * 5
    assert [shard.samples for shard in report.shards] == [9] * 5
    assert keys(tmp_path / "out") == [key for key in keys(tmp_path / "whole") if not key.endswith("7")]
    document = json.loads(next((tmp_path / "out" / ".shoal").glob("build-*-report.json")).read_text())
    assert [failure["item"] for failure in document["failures"]] == [7, 17, 27, 37, 47]


@pytest.mark.parametrize("workers", [1, 2])
def test_too_many_failures_end_the_build_and_a_rerun_may_go_on(tmp_path, workers):
    ask = {"max_samples": 10, "engine": LocalEngine(workers, "fork")}
    with pytest.raises(ErrorBudgetExceeded, match=r"not \d?7"):
        shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, error_budget=2, **ask)
    with pytest.raises(shoal.errors.ManifestError, match="not finished"):
        len(shoal.Dataset(tmp_path / "out"))
    report = shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, error_budget=0.1, **ask)
    assert len(report.failures) == 5
    assert report.written < 5
    assert not list(tmp_path.rglob("*.partial"))


def test_failed_items_can_be_tried_again(tmp_path, monkeypatch):
    ask = {"max_samples": 10, "workers": 1, "error_budget": 5}
    shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, **ask)
    whole = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    again = shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, **ask)
    assert again.written == 0
    assert len(again.failures) == 5
    monkeypatch.setenv("SEVEN_IS_FINE", "1")
    fixed = shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, retry=True, **ask)
    assert (fixed.written, fixed.ok, fixed.samples) == (5, True, 50)
    assert [sample["cls"] for sample in samples(tmp_path / "out")] == list(range(50))
    assert whole.keys() == {path.name for path in (tmp_path / "out").glob("*.tar")}


def test_two_samples_of_one_key_are_told_of(tmp_path):
    twice = [{"__key__": "same", "txt": "one"}, {"__key__": "same", "txt": "two"}]
    with pytest.raises(ErrorBudgetExceeded, match="key is in this shard already"):
        shoal.build_shards(twice, tmp_path / "out", workers=1)
    shoal.build_shards(twice, tmp_path / "numbered", keys="number", workers=1)
    assert keys(tmp_path / "numbered") == ["000000000", "000000001"]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_of_equal_items_stays(tmp_path, workers):
    many = [{"__key__": f"k{n}", "txt": f"text {n % 30}", "cls": n} for n in range(100)]
    report = shoal.build_shards(
        many, tmp_path / "out", dedupe=["txt"], engine=LocalEngine(workers, "fork"), max_samples=7
    )
    assert (report.samples, report.duplicates) == (30, 70)
    assert [sample["cls"] for sample in samples(tmp_path / "out")] == list(range(30))
    assert shoal.build_shards(many, tmp_path / "all", dedupe=True, workers=1).duplicates == 0
    assert not list((tmp_path / "out" / ".shoal").rglob("*.bin"))


def test_a_sample_is_drawn_by_the_seed(tmp_path):
    found = [
        tuple(keys(shoal.build_shards(numbers(), tmp_path / f"{seed}-{turn}", sample=12, seed=seed, workers=1).root))
        for seed in (0, 1)
        for turn in (0, 1)
    ]
    assert found[0] == found[1] != found[2] == found[3]
    assert len(found[0]) == 12
    assert list(found[0]) == sorted(found[0])


def test_two_builds_share_a_folder(tmp_path):
    shoal.build_shards(numbers(5), tmp_path / "out" / "a-%03d.tar", split="train", workers=1)
    shoal.build_shards(numbers(7), tmp_path / "out" / "b-%03d.tar", split="test", workers=1)
    assert len(shoal.Dataset(tmp_path / "out", split="train")) == 5
    assert len(shoal.Dataset(tmp_path / "out", split="test")) == 7


@pytest.mark.parametrize(
    "ask",
    [
        {"source": 3},
        {"source": {"txt": "one sample"}},
        {"source": []},
        {"engine": "slurm"},
        {"engine": "ray", "workers": 2},
        {"workers": 0},
        {"keys": "none"},
        {"out": "a.tar"},
        {"out": "a-%d-%d.tar"},
        {"metadata": {"a": print}},
        {"error_budget": -1},
        {"compression": "rar"},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((OptionError, WriteError)):
        shoal.build_shards(**{"source": numbers(3), "out": "out", "workers": None, **ask})


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_shards_are_compressed(tmp_path, compression):
    report = shoal.build_shards(numbers(), tmp_path / "out", compression=compression, engine=TWO, max_samples=20)
    assert {shard.compression for shard in report.shards} == {compression}
    assert [sample["cls"] for sample in samples(tmp_path / "out")] == list(range(50))


def test_large_values_of_unknown_size_are_cut_by_some(tmp_path):
    report = shoal.build_shards(
        [{"npy": np.zeros(100_000)} for _ in range(12)], tmp_path / "out", max_bytes=3_000_000, workers=1
    )
    assert [shard.samples for shard in report.shards] == [3, 3, 3, 3]
