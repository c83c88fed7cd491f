"""Builds that find something there: an interrupted build, a finished one, another dataset."""

from __future__ import annotations

import pytest
from tests.build.built import fails_at_seven, keys, make_images, numbers, picky, tree

import shoal
from shoal.build import LocalEngine
from shoal.build._journal import parse_build_target
from shoal.errors import ErrorBudgetExceeded, ObjectExistsError, WriteError

TWO = LocalEngine(2, "fork")


def test_what_is_done_is_not_done_again(tmp_path):
    shoal.build_shards(numbers(), tmp_path / "out", max_samples=10, workers=1)
    marks = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    report = shoal.build_shards(numbers(), tmp_path / "out", max_samples=10, engine=TWO)
    assert (report.written, report.samples, len(report.shards)) == (0, 50, 5)
    assert marks == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}


def test_another_dataset_is_replaced_only_when_asked(tmp_path):
    shoal.build_shards(numbers(), tmp_path / "out", max_samples=10, workers=1)
    before = tree(tmp_path / "out")
    with pytest.raises(ObjectExistsError):
        shoal.build_shards(numbers(20), tmp_path / "out", workers=1)
    assert tree(tmp_path / "out") == before
    shoal.build_shards(numbers(20), tmp_path / "out", overwrite=True, max_samples=5, engine=TWO)
    assert len(keys(tmp_path / "out")) == 20
    shoal.build_shards(numbers(20), tmp_path / "fresh", max_samples=5, workers=1)
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


def interrupted(source, out, function=fails_at_seven, **options):
    with pytest.raises(ErrorBudgetExceeded):
        shoal.build_shards(source, out, function, max_samples=5, workers=1, **options)
    assert list(out.glob("*.tar"))


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda: {"source": [*numbers(), {"cls": 1}]}, "the source has changed"),
        (lambda: {"function": picky}, "the function has changed"),
        (lambda: {"max_samples": 6}, "max_samples: 5, now 6"),
        (lambda: {"shuffle": True}, "shuffle: False, now True"),
    ],
)
def test_an_interrupted_build_is_not_continued_as_another(tmp_path, change, reason):
    interrupted(numbers(), tmp_path / "out")
    left = tree(tmp_path / "out")
    ask = {"source": numbers(), "function": fails_at_seven, "max_samples": 5, "workers": 1, **change()}
    with pytest.raises(WriteError, match=reason):
        shoal.build_shards(out=tmp_path / "out", **ask)
    assert tree(tmp_path / "out") == left
    report = shoal.build_shards(out=tmp_path / "out", overwrite=True, error_budget=5, **ask)
    assert report.written == len(report.shards)


def test_a_file_that_changed_is_a_changed_source(tmp_path):
    source = make_images(tmp_path / "in", 20)

    def stop(sample):
        if sample["__key__"] == "dog/0010":
            raise ValueError("here")
        return sample

    with pytest.raises(ErrorBudgetExceeded):
        shoal.build_shards(source, tmp_path / "out", stop, max_samples=4, workers=1)
    (source / "cat" / "0001.jpg").write_bytes(b"another")
    with pytest.raises(WriteError, match="the source has changed: its files, their sizes or times"):
        shoal.build_shards(source, tmp_path / "out", stop, max_samples=4, workers=1, error_budget=1)


def test_a_shard_that_somebody_removed_is_built_again(tmp_path):
    interrupted(numbers(), tmp_path / "out", error_budget=1)
    (tmp_path / "out" / "train-000000.tar").unlink()
    report = shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, max_samples=5, workers=1, error_budget=9)
    assert report.samples == len(keys(tmp_path / "out")) == 45


def test_what_a_killed_build_left_half_written_is_swept_and_nothing_of_others(tmp_path):
    out = tmp_path / "out"
    place = parse_build_target(str(out))
    shoal.build_shards(numbers(), out, max_samples=10, workers=1)
    own = [
        f"journal-build-{place.mark}-0000.jsonl",
        f"build-{place.mark}-report.json",
        "index/train-000001.tar.arrow",
        "build/hashes-0123abcd/000000000000.bin",
    ]
    own.append("manifest.json")  # which nobody else is writing while the build holds its lock
    others = ["journal-build-0123456789ab-0000.jsonl", "index/photos.tar.arrow"]
    for name in own + others:
        whole = out / ".shoal" / name
        whole.parent.mkdir(parents=True, exist_ok=True)
        (whole.parent / f".{whole.name}.0123456789abcdef.partial").write_bytes(b"half")
    shoal.build_shards(numbers(), out, max_samples=10, workers=1, overwrite=True)
    left = {path.name for path in out.rglob("*.partial")}
    assert left == {f".{name.rpartition('/')[2]}.0123456789abcdef.partial" for name in others}
