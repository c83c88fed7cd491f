"""bench: ratios first, for every way to read and write, and nothing left behind."""

from __future__ import annotations

import pytest

import shoal


def test_every_way_is_measured(run, dataset):
    before = sorted(dataset.rglob("*"))
    facts = run("bench", dataset, "--repeats", 1, "--json").json
    assert (facts["samples"], facts["shards"]) == (10, 3)
    assert set(facts["read"]) == {"limit", "sequential", "sequential, unchecked", "random"}
    assert set(facts["write"]) == {"limit", "write"}
    for speeds in (facts["read"], facts["write"]):
        assert speeds["limit"]["ratio"] == 1
        assert all(speed["ratio"] > 0 and speed["bytes_per_second"] > 0 for speed in speeds.values())
    assert sorted(dataset.rglob("*")) == before


def test_ratios_come_first(run, dataset):
    lines = run("bench", dataset, "--repeats", 1).out.splitlines()
    assert lines[0].split()[:4] == ["what", "of", "the", "limit"]
    assert lines[2].startswith("read, sequential")
    assert any("little data" in line for line in lines)


def test_only_so_much_is_taken(run, dataset):
    assert run("bench", dataset, "--repeats", 1, "--bytes", 1, "--json").json["shards"] == 1


def test_writing_goes_where_it_is_told(run, dataset, tmp_path):
    assert run("bench", dataset, "--repeats", 1, "--scratch", tmp_path / "nowhere").code == 1
    (tmp_path / "scratch").mkdir()
    assert run("bench", dataset, "--repeats", 1, "--scratch", tmp_path / "scratch").code == 0
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("compression", ["gzip", "bz2"])
def test_compressed_shards_and_other_stores(run, compression):
    url = f"memory://bench/{compression}"
    with shoal.ShardWriter(f"{url}/a-%06d.tar", compression=compression) as writer:
        for number in range(5):
            writer.write({"txt": f"{number}"})
    assert run("bench", url, "--repeats", 1, "--json").json["samples"] == 5


def test_shards_that_each_number_their_samples_anew_are_measured(run, tmp_path):
    for name in "ab":
        with shoal.ShardWriter(tmp_path / f"{name}.tar") as writer:
            writer.write({"__key__": "000", "txt": name})
    assert run("bench", tmp_path, "--repeats", 1, "--json").json["samples"] == 2
