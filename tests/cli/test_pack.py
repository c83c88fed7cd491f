"""pack, unpack and convert: folders into shards and back, formats into each other, nothing outside the folder."""

from __future__ import annotations

import io
import itertools
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.formats.examples import COUNT, EXAMPLES

import shoal
from shoal.build._folders import plan_folder
from shoal.cli import main
from shoal.errors import UnsafeNameError, WriteError
from shoal.formats import write_format
from shoal.shard import KeyRule, load_manifest


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def read(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def visible(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in read(root).items() if not name.startswith(".")}


PETS = {
    "cats/1.jpg": b"a cat",
    "cats/1.txt": b"one cat",
    "cats/2.jpg": b"b cat",
    "dogs/1.jpg": b"a dog",
    "dogs/1.seg.png": b"mask",
}


@pytest.fixture
def pets(tmp_path) -> Path:
    return write(tmp_path / "pets", PETS)


def test_files_side_by_side_are_one_sample(run, pets, tmp_path):
    done = run("pack", pets, tmp_path / "out", "--json")
    assert done.code == 0
    assert (done.json["samples"], done.json["skipped"]) == (3, [])
    dataset = shoal.Dataset(tmp_path / "out", decode=False)
    assert dataset.keys() == ["cats/1", "cats/2", "dogs/1"]
    assert {name: dataset[2][name] for name in ("jpg", "seg.png")} == {"jpg": b"a dog", "seg.png": b"mask"}


def test_a_webdataset_reader_sees_the_same(run, pets, tmp_path, leaky_peer):
    import webdataset

    run("pack", pets, tmp_path / "out")
    found = webdataset.WebDataset(str(tmp_path / "out" / "shard-000000.tar"), shardshuffle=False)
    assert [sample["__key__"] for sample in found] == ["cats/1", "cats/2", "dogs/1"]


NAMES = st.from_regex(r"(?:[a-z0-9]{1,4}/){0,2}[a-zA-Z0-9_-]{1,5}\.[a-z0-9]{1,4}(?:\.[a-z0-9]{1,3})?", fullmatch=True)


def is_plain(files: dict[str, bytes]) -> bool:
    """No file where another name needs a folder, and nothing that readers take for metadata."""
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    return not folders & set(files) and not any(part.startswith("__") for name in files for part in name.split("/"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(NAMES, st.binary(max_size=600), min_size=1, max_size=12).filter(is_plain),
    compression=st.sampled_from([None, "gzip", "xz"]),
    shard_samples=st.integers(1, 5),
)
def test_there_and_back_again(tmp_path_factory, files, compression, shard_samples):
    tmp_path = tmp_path_factory.mktemp("round")
    folder = write(tmp_path / "files", files)
    chosen = ["--compression", compression] if compression else []
    packed, back = str(tmp_path / "packed"), tmp_path / "back"
    assert main(["pack", str(folder), packed, "--max-samples", str(shard_samples), *chosen]) == 0
    assert main(["unpack", packed, str(back)]) == 0
    assert read(back) == files


def test_the_same_files_give_the_same_bytes(run, tmp_path):
    names = sorted(PETS)
    first = write(tmp_path / "first", {name: PETS[name] for name in names})
    second = write(tmp_path / "second", {name: PETS[name] for name in reversed(names)})
    for path in second.rglob("*"):
        os.utime(path, (1, 1))
    run("pack", first, tmp_path / "a")
    run("pack", second, tmp_path / "b")
    assert read(tmp_path / "a") == read(tmp_path / "b")


def test_labels_from_folders(run, pets, tmp_path):
    done = run("pack", pets, tmp_path / "out", "--label-from-folder", "--split", "validation", "--json")
    assert done.json["classes"] == ["cats", "dogs"]
    dataset = shoal.Dataset(tmp_path / "out", split="validation")
    assert [sample["cls"] for sample in dataset] == [0, 0, 1]
    assert dataset.metadata["classes"] == ["cats", "dogs"]
    assert [path.name for path in (tmp_path / "out").glob("*.tar")] == ["validation-000000.tar"]
    assert [sample["__key__"] for sample in dataset.where("cls = 1")] == ["dogs/1"]


def test_flattened_keys(run, tmp_path):
    folder = write(tmp_path / "f", {"a/1.txt": b"one", "b/2.txt": b"two"})
    assert run("pack", folder, tmp_path / "out", "--flatten").code == 0
    assert shoal.Dataset(tmp_path / "out").keys() == ["1", "2"]


def test_limits_and_patterns(run, tmp_path):
    folder = write(tmp_path / "f", {f"{number:03d}.bin": bytes(5000) for number in range(6)})
    assert run("pack", folder, tmp_path / "o" / "t-%03d.tar", "--max-samples", 4).code == 0
    assert sorted(visible(tmp_path / "o")) == ["t-000.tar", "t-001.tar"]
    assert run("pack", folder, tmp_path / "p", "--max-bytes", "12kB").code == 0
    assert len(visible(tmp_path / "p")) == 3
    assert run("pack", folder, tmp_path / "q", "--max-bytes", "lots").code == 2
    assert run("pack", folder, tmp_path / "q", "--compression", "rar").code == 2
    assert not (tmp_path / "q").exists()


def test_what_is_there_is_replaced_only_when_asked(run, pets, tmp_path):
    out = tmp_path / "out"
    run("pack", pets, out)
    before = read(out)
    (pets / "dogs" / "2.jpg").write_bytes(b"another dog")
    done = run("pack", pets, out)
    assert (done.code, read(out)) == (1, before)
    assert "--overwrite" in done.err
    assert run("pack", pets, out, "--overwrite").code == 0
    assert len(shoal.Dataset(out)) == 4


def test_a_run_that_was_cut_is_resumed(run, pets, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run("pack", pets, whole, "--max-samples", 1)
    hidden = pets / "dogs" / "1.seg.png"
    hidden.chmod(0)
    hidden.unlink()
    hidden.symlink_to(pets / "gone.png")  # the last sample cannot be read
    assert run("pack", pets, cut, "--max-samples", 1).code == 1
    assert load_manifest(str(cut)) is None
    finished = (cut / "shard-000000.tar").stat()
    hidden.unlink()
    hidden.write_bytes(b"mask")
    (pets / "cats" / "1.jpg").unlink()
    (pets / "cats" / "1.jpg").symlink_to(pets / "gone.jpg")  # a finished sample is not read again
    assert run("pack", pets, cut, "--max-samples", 1, "--resume").code == 0
    assert read(cut) == read(whole)
    assert (cut / "shard-000000.tar").stat().st_mtime_ns == finished.st_mtime_ns


def test_hashes_are_kept_when_asked(run, pets, tmp_path):
    run("pack", pets, tmp_path / "out", "--hash")
    assert all(len(record.sha256) == 64 for record in load_manifest(str(tmp_path / "out")).shards)


def test_files_that_make_no_sample_are_counted(run, pets, tmp_path):
    write(pets, {"README": b"x", ".hidden.txt": b"x", ".git/config.txt": b"x"})
    done = run("pack", pets, tmp_path / "out", "--json")
    assert done.json["skipped"] == [".hidden.txt", "README"]
    assert done.json["samples"] == 3
    assert "README" in run("pack", pets, tmp_path / "out2").out


def test_shards_inside_the_folder_are_not_packed_again(run, pets):
    assert run("pack", pets, pets / "out").code == 0
    assert run("pack", pets, pets / "out", "--overwrite").code == 0
    assert len(shoal.Dataset(pets / "out")) == 3
    assert run("pack", pets, pets).code == 2


@pytest.mark.parametrize(
    "files, options, words",
    [
        ({"a.jpg": b"1", "a.JPG": b"2"}, {}, "a.JPG and a.jpg"),
        ({"x/1.txt": b"1", "y/1.txt": b"2"}, {"rule": KeyRule(folders="flatten")}, "x/1.txt and y/1.txt"),
        ({"x/1.txt": b"1", "y/1.jpg": b"2"}, {"rule": KeyRule(folders="flatten")}, "x/1.txt and y/1.jpg"),
        ({"1.jpg": b"1"}, {"label_from_folder": True}, "in no folder"),
        ({"a/1.jpg": b"1", "a/1.cls": b"7"}, {"label_from_folder": True}, "a/1.cls"),
        ({"README": b"1"}, {}, "no files that make samples"),
        ({"__x.txt": b"1"}, {}, "'__x.txt'"),
        ({"a.": b"1"}, {}, "'a.'"),
        ({"a\nb.txt": b"1"}, {}, "a\\\\nb.txt"),
    ],
)
def test_what_cannot_be_packed_names_the_files(tmp_path, files, options, words):
    write(tmp_path / "f", files)
    with pytest.raises((WriteError, UnsafeNameError), match=words.replace(".", r"\.")):
        plan_folder(str(tmp_path / "f"), **options)


def test_a_clash_is_one_sentence_and_leaves_nothing(run, tmp_path):
    folder = write(tmp_path / "f", {"x/1.txt": b"1", "y/1.txt": b"2"})
    done = run("pack", folder, tmp_path / "out", "--flatten")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert not (tmp_path / "out").exists()


def foreign_tar(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    return path


@pytest.mark.parametrize(
    "name",
    ["../x.txt", "a/../../x.txt", "/x.txt", "//x.txt", "..\\x.txt", "a//x.txt", "a/./x.txt", "../.x.txt"],
)
def test_unpack_never_leaves_its_folder(run, tmp_path, name):
    tar = foreign_tar(tmp_path / "evil.tar", name)
    (tmp_path / "deep").mkdir()
    done = run("unpack", tar, tmp_path / "deep" / "out", "--force")
    assert not [path for path in read(tmp_path) if path.endswith("x.txt")]
    assert not Path("/x.txt").exists()
    assert done.code == 1 or "0 samples" in done.out
    if done.code:
        assert "evil.tar" in done.err
        assert done.err.count("\n") == 1


def test_an_absolute_name_into_the_same_folder_is_refused_too(run, tmp_path):
    out = tmp_path / "out"
    done = run("unpack", foreign_tar(tmp_path / "evil.tar", f"{out}/x.txt"), out)
    assert (done.code, out.exists()) == (1, False)
    assert "absolute" in done.err


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_unpack_does_not_follow_links(run, tmp_path, force):
    outside = tmp_path / "outside"
    outside.mkdir()
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").symlink_to(outside)
    (out / "b.txt").symlink_to(outside / "b.txt")
    assert run("unpack", foreign_tar(tmp_path / "1.tar", "a/x.txt"), out, *force).code == 1
    run("unpack", foreign_tar(tmp_path / "2.tar", "b.txt"), out, *force)
    assert read(outside) == {}


def test_unpack_replaces_only_when_forced(run, pets, tmp_path):
    run("pack", pets, tmp_path / "packed")
    out = tmp_path / "out"
    write(out, {"cats/1.txt": b"mine"})
    done = run("unpack", tmp_path / "packed", out)
    assert (done.code, (out / "cats" / "1.txt").read_bytes()) == (1, b"mine")
    assert "--force" in done.err
    assert run("unpack", tmp_path / "packed", out, "--force").code == 0
    assert read(out) == PETS


def test_a_key_in_two_shards_is_not_lost(run, tmp_path):
    for name in ("a", "b"):
        with shoal.ShardWriter(tmp_path / "d" / f"{name}.tar", append=True) as writer:
            writer.write({"__key__": "same", "txt": name})
    done = run("unpack", tmp_path / "d", tmp_path / "out", "--force")
    assert done.code == 1
    assert "one by one" in done.err
    assert (tmp_path / "out" / "same.txt").read_bytes() == b"a"


def test_unpack_some(run, dataset, tmp_path):
    done = run(
        "unpack", dataset, tmp_path / "out", "--where", "label = 'cat'", "--limit", 2, "--fields", "txt,json", "--json"
    )
    assert (done.json["samples"], done.json["files"]) == (2, 4)
    assert sorted(read(tmp_path / "out")) == ["k01.json", "k01.txt", "k03.json", "k03.txt"]
    assert run("unpack", dataset, tmp_path / "val", "--split", "validation").code == 0
    assert len(read(tmp_path / "val")) == 9


def test_unpack_stops_at_damage(run, dataset, tmp_path):
    path = dataset / "train-000000.tar"
    data = bytearray(path.read_bytes())
    data[data.index(b"number 2")] ^= 1
    path.write_bytes(data)
    done = run("unpack", dataset, tmp_path / "out")
    assert done.code == 1
    for word in ("k02", "txt", "crc32"):
        assert word in done.err
    assert not (tmp_path / "out" / "k02.txt").exists()


def test_a_file_where_a_folder_must_be(run, tmp_path):
    tar = foreign_tar(tmp_path / "a.tar", "a.b/c.txt")
    write(tmp_path / "out", {"a.b": b"a file"})
    done = run("unpack", tar, tmp_path / "out")
    assert (done.code, done.err.count("\n")) == (1, 1)


def test_unpack_takes_names_as_tar_writes_them_for_a_dot(run, tmp_path):
    tar = foreign_tar(tmp_path / "dot.tar", "./x.txt")
    assert run("unpack", tar, tmp_path / "out").code == 0
    assert (tmp_path / "out" / "x.txt").is_file()


def test_two_splits_packed_into_one_folder_may_have_the_same_keys(run, tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.txt").write_text(split)
    assert run("pack", tmp_path / "train", tmp_path / "out").code == 0
    assert run("pack", tmp_path / "val", tmp_path / "out", "--split", "val").code == 0
    dataset = shoal.Dataset(tmp_path / "out")
    assert (len(dataset), dataset.get("1")["txt"]) == (2, "train")
    for name in ("val", "validation"):
        for opened in (
            shoal.Dataset(tmp_path / "out", split=name),
            shoal.load_dataset(tmp_path / "out", split=name),
        ):
            assert (len(opened), opened.get("1")["txt"]) == (1, "val")
        assert "val" in run("cat", tmp_path / "out", "1", "--field", "txt", "--split", name).out
    found = run("verify", tmp_path / "out")
    assert found.code == 0
    assert "the same key is in more than one split" in found.out
    assert run("verify", tmp_path / "out", "--strict").code == 1
    assert run("verify", tmp_path / "out", "--strict", "--split", "val").code == 0


TARGETS = {"hdf5": "a.h5", "tfrecord": "a.tfrecord", "parquet": "a.parquet", "arrow": "a.arrow", "webdataset": "shards"}


@pytest.mark.parametrize("example", [e for e in EXAMPLES if not e.reading], ids=repr)
def test_every_format_becomes_shards(run, example, tmp_path):
    root = example.make(tmp_path / "data")
    done = run("convert", root, tmp_path / "out", "--from", example.name, "--max-samples", 10, "--json")
    assert done.code == 0, done.err
    assert done.json["samples"] == COUNT
    assert len(done.json["files"]) == 3
    shards = shoal.Dataset(tmp_path / "out", sample_type=dict)
    field = next(name for name in shards.fields if name.partition(".")[0] == example.one)
    values = [np.asarray(sample[field]).item() for sample in shards]
    assert [int(value) for value in values] == list(range(COUNT))


@pytest.mark.parametrize("first, second", list(itertools.permutations(TARGETS, 2)))
def test_from_each_to_each(run, first, second, tmp_path):
    made = [{"__key__": f"k{n}", "json": {"n": n}, "x.npy": np.arange(3) + n, "raw": bytes([n])} for n in range(6)]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    source = tmp_path / "one" / TARGETS[first]
    write_format(source, made, format=first)
    done = run("convert", source, tmp_path / "two" / TARGETS[second])
    assert done.code == 0, done.err
    assert f"6 samples in 1 file of {second}" in done.out
    found = shoal.Dataset(tmp_path / "two" / TARGETS[second], sample_type=dict)
    assert found.keys() == [f"k{n}" for n in range(6)]
    for n, sample in enumerate(found):
        assert (sample["json"], sample["raw"]) == ({"n": n}, bytes([n]))
        np.testing.assert_array_equal(sample["x.npy"], np.arange(3) + n)


def test_some_fields_and_some_samples(run, tmp_path):
    write_format(tmp_path / "a.parquet", [{"n": n, "s": str(n), "raw": b"x"} for n in range(9)])
    done = run("convert", tmp_path / "a.parquet", tmp_path / "b.jsonl", "--fields", "n,s", "--where", "n > 6")
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert lines == [{"__key__": f"{n:09d}", "n": n, "s": str(n)} for n in (7, 8)]


def test_a_cut_run_goes_on(run, tmp_path, monkeypatch):
    write_format(tmp_path / "a.jsonl", [{"n": n} for n in range(10)])
    original = shoal.ShardWriter.write

    def dies(self, sample):
        if self.samples == 7:
            raise KeyboardInterrupt
        original(self, sample)

    monkeypatch.setattr(shoal.ShardWriter, "write", dies)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        raise SystemExit(run("convert", tmp_path / "a.jsonl", tmp_path / "out", "--max-samples", 3).code)
    monkeypatch.setattr(shoal.ShardWriter, "write", original)
    finished = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert len(finished) == 2
    done = run("convert", tmp_path / "a.jsonl", tmp_path / "out", "--max-samples", 3, "--resume")
    assert done.code == 0, done.err
    for name, written in finished.items():
        assert (tmp_path / "out" / name).stat().st_mtime_ns == written
    assert [s["n.json"] for s in shoal.Dataset(tmp_path / "out", sample_type=dict)] == list(range(10))


def test_what_is_there_stays_unless_told(run, tmp_path):
    write_format(tmp_path / "a.jsonl", [{"n": 1}])
    write_format(tmp_path / "b.parquet", [{"n": 2}])
    done = run("convert", tmp_path / "a.jsonl", tmp_path / "b.parquet")
    assert done.code == 1
    assert "--overwrite" in done.err
    assert run("convert", tmp_path / "a.jsonl", tmp_path / "b.parquet", "--overwrite").code == 0
    assert shoal.Dataset(tmp_path / "b.parquet")[0]["n"] == 1


@pytest.mark.parametrize(
    "args, word",
    [
        (["a.jsonl", "b.parquet", "--to", "mds"], "mds"),
        (["a.jsonl", "b.parquet", "--from", "nothing"], "nothing"),
        (["a.jsonl", "b.parquet", "--resume"], "webdataset"),
        (["a.jsonl", "a.jsonl"], "another DST"),
        (["missing.jsonl", "b.parquet"], "missing"),
        (["a.jsonl", "b.unknown"], "b.unknown"),
        (["a.jsonl", "b.unknown"], "say it with --to"),
    ],
)
def test_misuse(run, args, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_format("a.jsonl", [{"n": 1}])
    done = run("convert", *args)
    assert done.code in (1, 2)
    assert word in done.err
