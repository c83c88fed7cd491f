"""build_shards: any source, the same bytes whoever does the work, and nothing lost without a word."""

from __future__ import annotations

import json
import os
import shutil
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.build.built import contents, double, fails_at_seven, make_folder, make_images, picky, split_in_two, tree

import shoal
from shoal.build import LocalEngine
from shoal.build._journal import place_of
from shoal.errors import ErrorBudgetExceeded, ObjectExistsError, OptionError, WorkerError, WriteError
from shoal.formats import write_format
from shoal.shard import load_manifest

TWO = LocalEngine(2, "fork")


def numbers(count=50):
    return [{"__key__": f"k{n:03d}", "cls": n, "txt": f"number {n}"} for n in range(count)]


def samples(root, **options):
    return [
        {name: value for name, value in sample.items() if name != "__url__"}
        for sample in shoal.Dataset(root, **options)
    ]


def keys(root, **options):
    return [sample["__key__"] for sample in shoal.Dataset(root, **options)]


# ---------------------------------------------------------------------------------------------------------- same bytes


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
        for sample in shoal.build._sources.plan_folder(str(source), label_from_folder=True):
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


# ------------------------------------------------------------------------------------------------------------- sources


def folder(tmp_path):
    return make_folder(tmp_path / "in"), None


def glob(tmp_path):
    return str(make_folder(tmp_path / "in") / "*.png"), None


def files(tmp_path):
    return sorted(map(str, make_folder(tmp_path / "in").glob("*"))), None


def table(name):
    def make(tmp_path):
        path = tmp_path / f"table.{name}"
        write_format(path, [{"__key__": f"{n:09d}", "n": n, "words": f"row {n}"} for n in range(20)], max_samples=None)
        return path, None

    make.__name__ = name
    return make


def hugging_face(tmp_path):
    import datasets

    return datasets.Dataset.from_dict({"n": list(range(20)), "words": [f"row {n}" for n in range(20)]}), None


def dataset(tmp_path):
    shoal.write_samples(numbers(20), str(tmp_path / "shards"))
    return shoal.Dataset(tmp_path / "shards").map(picky_cls).select(range(5, 15)), 10


def picky_cls(sample):
    return {**sample, "cls": sample["cls"] + 100}


def shards(tmp_path):
    shoal.write_samples(numbers(20), str(tmp_path / "shards"))
    return tmp_path / "shards", None


def sequence(tmp_path):
    return numbers(20), None


def several(tmp_path):
    return [make_folder(tmp_path / "in", 10), table("csv")(tmp_path)[0], numbers(5)], 35


SOURCES = [
    folder,
    glob,
    files,
    table("csv"),
    table("jsonl"),
    table("parquet"),
    table("arrow"),
    table("tfrecord"),
    hugging_face,
    dataset,
    shards,
    sequence,
    several,
]


@pytest.mark.usefixtures("leaky_peer")
@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_every_source_is_built_from(tmp_path, make):
    source, count = make(tmp_path)
    report = shoal.build_shards(source, tmp_path / "one", max_samples=6, workers=1, keys="number")
    shoal.build_shards(source, tmp_path / "two", max_samples=6, engine=LocalEngine(2, "fork"), keys="number")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert report.samples == len(samples(tmp_path / "one")) == (count or 20)
    assert keys(tmp_path / "one") == [f"{number:09d}" for number in range(count or 20)]


@pytest.mark.usefixtures("leaky_peer")
def test_values_of_a_table_get_names_that_say_their_type(tmp_path):
    source, _ = hugging_face(tmp_path)
    shoal.build_shards(source, tmp_path / "out", workers=1)
    assert samples(tmp_path / "out")[3] == {"__key__": "000000003", "n.json": 3, "words.txt": "row 3"}


def test_paths_in_a_table_are_fetched(tmp_path):
    make_folder(tmp_path / "files", 5)
    rows = [{"photo": f"files/{n:03d}.png", "label": n} for n in range(5)] + [{"photo": "files/gone.png", "label": 5}]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    report = shoal.build_shards(tmp_path / "table.parquet", tmp_path / "out", fetch="photo", engine=TWO, error_budget=1)
    found = samples(tmp_path / "out")
    assert [sample["png"] for sample in found] == [bytes([n]) * (n + 1) for n in range(5)]
    assert found[2]["label.json"] == 2
    assert [(failure.item, failure.key) for failure in report.failures] == [(5, "000000005")]
    assert "no such file" in report.failures[0].reason
    named = shoal.build_shards(
        tmp_path / "table.parquet", tmp_path / "named", fetch={"photo": "image.bin"}, error_budget=0.2, workers=1
    )
    assert "image.bin" in named.shards[0].fields


def test_a_remote_folder_is_built_from_and_to(tmp_path):
    for number in range(10):
        shoal.store.put(f"memory://there/in/a/{number}.txt", f"{number}".encode())
    shoal.build_shards("memory://there/in", "memory://there/out", max_samples=4, workers=1)
    found = shoal.Dataset("memory://there/out")
    assert [sample["txt"] for sample in found] == [f"{number}" for number in range(10)]
    assert found.keys()[0] == "a/0"


# ------------------------------------------------------------------------------------------------------------ functions


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


# ----------------------------------------------------------------------------------------- duplicates, samples, splits


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


# ------------------------------------------------------------------------------------------------- what is there before


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


# --------------------------------------------------------------------------------------------------------- the workers


def dies(sample):
    if sample["cls"] == 33:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_worker_that_is_killed_ends_the_build_and_nothing_is_lost(tmp_path):
    engine = LocalEngine(2, "fork")
    with pytest.raises(WorkerError, match=r"signal 9.*train-000003"):
        shoal.build_shards(numbers(), tmp_path / "out", dies, max_samples=10, engine=engine)
    assert not list(tmp_path.rglob("*.partial"))
    done = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    assert 2 <= len(done) < 5
    shutil.copytree(tmp_path / "out", tmp_path / "kept")
    with pytest.raises(WorkerError):
        shoal.build_shards(numbers(), tmp_path / "out", dies, max_samples=10, engine=engine)
    assert done.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}.items()


def test_a_function_that_others_cannot_get_is_refused(tmp_path):
    with pytest.raises(OptionError, match="top of a module"):
        shoal.build_shards(numbers(), tmp_path / "out", lambda sample: sample, engine=LocalEngine(2, "forkserver"))
    shoal.build_shards(numbers(), tmp_path / "out", lambda sample: sample, engine=LocalEngine(2, "fork"))


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def raises_odd(sample):
    raise OddError(1, 2)


def test_an_error_that_cannot_be_pickled_is_a_failure_like_any_other(tmp_path):
    with pytest.raises(ErrorBudgetExceeded, match="OddError: 1"):
        shoal.build_shards(numbers(), tmp_path / "out", raises_odd, engine=LocalEngine(2, "fork"), max_samples=10)


def test_progress_is_told(tmp_path):
    seen = []
    shoal.build_shards(numbers(), tmp_path / "out", max_samples=10, engine=LocalEngine(2, "fork"), progress=seen.append)
    last = seen[-1]
    assert (last.phase, last.samples, last.total, last.shards, last.failures) == ("building", 50, 50, 5, 0)
    assert last.bytes == sum(512 * 4 for _ in range(50))
    assert last.rate > 0


def test_progress_is_shown_on_stderr(tmp_path, capsys):
    shoal.build_shards(numbers(), tmp_path / "out", workers=1, progress=True)
    captured = capsys.readouterr()
    assert "50/50" in captured.err
    assert captured.out == ""


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


def test_what_a_killed_build_left_half_written_is_swept_and_nothing_of_others(tmp_path):
    out = tmp_path / "out"
    place = place_of(str(out))
    shoal.build_shards(numbers(), out, max_samples=10, workers=1)
    own = [
        f"journal-build-{place.mark}-0000.jsonl",
        f"build-{place.mark}-report.json",
        "index/train-000001.tar.arrow",
        "build/hashes-0123abcd/000000000000.bin",
    ]
    others = ["journal-build-0123456789ab-0000.jsonl", "manifest.json", "index/photos.tar.arrow"]
    for name in own + others:
        whole = out / ".shoal" / name
        whole.parent.mkdir(parents=True, exist_ok=True)
        (whole.parent / f".{whole.name}.0123456789abcdef.partial").write_bytes(b"half")
    shoal.build_shards(numbers(), out, max_samples=10, workers=1, overwrite=True)
    left = {path.name for path in out.rglob("*.partial")}
    assert left == {f".{name.rpartition('/')[2]}.0123456789abcdef.partial" for name in others}
