"""build, reshard and merge, as a shell runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.build.built import contents, make_folder, make_images

import shoal


def test_a_folder_becomes_a_dataset(run, tmp_path):
    source = make_images(tmp_path / "in")
    done = run(
        "build", source, tmp_path / "out", "--splits", "train=0.75,test=0.25", "--max-samples", 8, "--workers", 1
    )
    assert done.code == 0, done.err
    assert "40 samples in 6 shards" in done.out
    assert "test" in done.out
    assert len(shoal.Dataset(tmp_path / "out", split="test")) == 10
    again = run("build", source, tmp_path / "out", "--splits", "train=0.75,test=0.25", "--max-samples", 8)
    assert "6 shards of them done by an earlier run" in again.out


def test_the_same_as_from_python(run, tmp_path):
    source = make_images(tmp_path / "in")
    words = ("--shuffle", "--seed", 3, "--sample", "0.5", "--max-bytes", "20kB", "--workers", 1)
    assert run("build", source, tmp_path / "one", *words).code == 0
    options = {"shuffle": True, "seed": 3, "sample": 0.5, "max_bytes": 20_000}
    shoal.build_shards(source, tmp_path / "two", workers=1, **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_function_from_a_file(run, tmp_path, monkeypatch):
    (tmp_path / "shout_cli.py").write_text(
        "def shout(sample):\n"
        "    if sample['txt'] == b'picture 7': raise ValueError('seven')\n"
        "    return {'__key__': sample['__key__'], 'txt': sample['txt'].upper()}\n"
    )
    source = make_folder(tmp_path / "in")
    for path in source.glob("*.png"):
        path.unlink()
    words = ("--function", f"{tmp_path / 'shout_cli.py'}:shout", "--workers", 1)
    done = run("build", source, tmp_path / "out", *words)
    assert done.code == 1
    assert "seven" in done.err
    assert "raise --error-budget" in done.err  # in the shell's words
    done = run("build", source, tmp_path / "out", *words, "--error-budget", 1, "--report", tmp_path / "report.json")
    assert done.code == 0, done.err
    assert "failed: item 4 (007): ValueError: seven" in done.out
    assert shoal.Dataset(tmp_path / "out")[0]["txt"] == "PICTURE 1"
    report = json.loads((tmp_path / "report.json").read_text())
    assert [failure["key"] for failure in report["failures"]] == ["007"]


def test_a_table_of_paths(run, tmp_path):
    make_folder(tmp_path / "files", 5)
    lines = ["path,label", *(f"files/{number:03d}.png,{number}" for number in range(5))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    done = run("build", tmp_path / "table.csv", tmp_path / "out", "--fetch", "path=image.png", "--json", "--workers", 1)
    assert done.json["samples"] == 5
    assert set(shoal.Dataset(tmp_path / "out").fields) == {"image.png", "label.json"}


def test_several_sources(run, tmp_path):
    one, two = make_folder(tmp_path / "a", 4), make_folder(tmp_path / "b", 4)
    done = run("build", one, two, tmp_path / "out", "--number-keys", "--dedupe", "--workers", 1)
    assert "4 samples in 1 shard" in done.out
    assert "4 items left out as duplicates" in done.out


def test_reshard(run, dataset, tmp_path):
    done = run("reshard", dataset, tmp_path / "out", "--where", "width >= 300", "--workers", 1, "--json")
    assert done.json["samples"] == 7
    assert done.json["splits"].keys() == {"train", "validation"}


def test_merge(run, dataset, tmp_path):
    done = run("merge", dataset, dataset, tmp_path / "out", "--workers", 1)
    assert done.code == 1
    assert "key is in this shard already" in done.err
    done = run("merge", dataset, dataset, tmp_path / "out", "--keys", "prefix", "--overwrite", "--workers", 1)
    assert done.code == 0, done.err
    assert len(shoal.Dataset(tmp_path / "out")) == 20


@pytest.mark.parametrize(
    "words",
    [
        ("build", "in"),
        ("build", "in", "out", "--splits", "a=x"),
        ("build", "in", "out", "--sample", "few"),
        ("build", "in", "out", "--function", "nothing"),
        ("build", "in", "out", "--function", "no_such_module:f"),
        ("build", "in", "out", "--function", "json:no_such_function"),
        ("build", "in", "out", "--engine", "slurm"),
        ("merge", "in", "in", "out", "--keys", "none"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_told(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    make_folder(Path("in"))
    done = run(*words)
    assert done.code == 2, done.err
    assert done.err.startswith("shoal: ")


def test_what_is_there_is_not_replaced_unless_asked(run, dataset, tmp_path):
    source = make_folder(tmp_path / "in")
    done = run("build", source, dataset, "--workers", 1)
    assert done.code == 1
    assert "--overwrite" in done.err
    assert run("build", source, dataset, "--workers", 1, "--overwrite").code == 0
