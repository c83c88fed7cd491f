"""Datasets that change: samples are added and deleted, nobody sees half of it, and views stay what they were."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import sys

import numpy as np
import pytest

import shoal
from shoal import Dataset, ShardWriter, ShoalWarning
from shoal.cli import main
from shoal.dataset import concat
from shoal.errors import (
    FormatError,
    ManifestError,
    OptionError,
    SampleKeyError,
    SchemaMismatchError,
    UnsafeNameError,
    WriteError,
)
from shoal.shard import verify_dataset
from shoal.store import LocalStore, register_store


def sample(n, name="k"):
    return {"__key__": f"{name}{n:03d}", "json": {"n": n}, "bin": bytes([n]) * 700}


def write(root, samples, pattern="train-%06d.tar", **options):
    with ShardWriter(f"{root}/{pattern}", **{"max_samples": 4, **options}) as writer:
        for each in samples:
            writer.write(each)
    return root


def k(*numbers):
    return [f"k{n:03d}" for n in numbers]


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "data", map(sample, range(10)))


# --------------------------------------------------------------------------------------------------------------- append


def test_samples_are_added_and_what_was_open_stays(root):
    ds = Dataset(root)
    view = ds.where("n >= 8")
    grown = ds.append(map(sample, range(10, 21)), max_samples=5)
    assert ds.keys() == k(*range(10))
    assert view.keys() == k(8, 9)
    assert [bytes(found["bin"][:1]) for found in view] == [bytes([8]), bytes([9])]
    assert grown.keys() == Dataset(root).keys() == k(*range(21))
    assert [os.path.basename(url) for url in grown.shards] == [f"train-{n:06d}.tar" for n in range(6)]
    assert [found["json"]["n"] for found in grown] == list(range(21))
    assert view.refresh().keys() == k(*range(8, 21))
    assert not [problem for report in verify_dataset(root) for problem in report.problems]
    assert grown.fingerprint == Dataset(root).fingerprint != ds.fingerprint
    assert grown.append([]).keys() == grown.keys()


@pytest.mark.parametrize(
    "pattern,added",
    [
        ("train-%06d.tar", "train-000003.tar"),
        ("part{:04d}.tar", "part0003.tar"),
        ("%d.tar", "3.tar"),
        ("a1-%03d-x.tar.gz", "a1-003-x.tar.gz"),
        ("data-%05d.tar.zst", "data-00003.tar.zst"),
    ],
)
def test_new_shards_are_called_and_compressed_as_the_old_ones(tmp_path, pattern, added):
    kind = {"gz": "gzip", "zst": "zstd"}.get(pattern.rpartition(".")[2])
    write(tmp_path, map(sample, range(10)), pattern, compression=kind, metadata={"name": "pets"})
    grown = Dataset(tmp_path).append([sample(10)])
    assert os.path.basename(grown.shards[-1]) == added
    assert [record.compression for record in grown.source.manifest.shards] == [kind] * 4
    assert grown[10]["json"] == {"n": 10}
    assert grown.metadata == {"name": "pets"}


def test_one_tar_without_a_number_gets_numbered_ones_beside_it(tmp_path):
    ds = shoal.write_samples([sample(n) for n in range(3)], tmp_path / "data.tar")
    grown = ds.append([sample(3)])
    assert [os.path.basename(url) for url in grown.shards] == ["data.tar", "data-000000.tar"]
    assert grown.append([sample(4)]).keys() == k(0, 1, 2, 3, 4)
    assert Dataset(tmp_path).keys() == k(0, 1, 2, 3, 4)


def test_shards_in_folders_and_splits(tmp_path):
    for name, start in (("train", 0), ("val", 100)):
        write(tmp_path / name, (sample(n) for n in range(start, start + 6)), "%04d.tar")
        shutil.rmtree(tmp_path / name / ".shoal")
    shoal_command("index", tmp_path)
    with pytest.raises(OptionError, match=r"one split: expected train or validation.*split='train'"):
        Dataset(tmp_path).append([sample(50)])
    grown = Dataset(tmp_path, split="train").append([sample(50)])
    assert grown.keys() == k(0, 1, 2, 3, 4, 5, 50)
    assert os.path.relpath(grown.shards[-1], tmp_path) == "train/0002.tar"
    assert not (tmp_path / "train" / ".shoal").exists()
    assert Dataset(tmp_path, split="validation").keys() == k(100, 101, 102, 103, 104, 105)
    by_pattern = Dataset(f"{tmp_path}/val/*.tar").append([sample(150)])  # whichever way its shards are named
    assert by_pattern.keys() == Dataset(tmp_path, split="validation").keys() == k(100, 101, 102, 103, 104, 105, 150)


def shoal_command(*arguments):
    """What the command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([str(argument) for argument in arguments]) in (0, None)
    return out.getvalue()


@shoal.packable
class Point:
    x: float
    name: str


@shoal.packable
class Renamed:
    x: float
    label: str


def test_typed_samples_are_numbered_on(tmp_path):
    ds = shoal.write_samples([Point(float(n), f"p{n}") for n in range(5)], tmp_path / "p-%06d.tar", max_samples=2)
    grown = ds.append(Point(float(n), f"p{n}") for n in range(5, 9))
    assert grown.keys() == [f"{n:09d}" for n in range(9)]
    assert [point.name for point in grown] == [f"p{n}" for n in range(9)]
    assert [name for batch in grown.ordered(batch_size=4) for name in batch.name] == [f"p{n}" for n in range(9)]
    assert Dataset[Point](tmp_path).append([("mine", Point(1.0, "q"))])["mine"].name == "q"
    with pytest.raises(SchemaMismatchError, match="label"):
        ds.append([Renamed(1.0, "a")])
    with pytest.raises(SchemaMismatchError, match="expected Point, found dict"):
        ds.append([{"__key__": "a", "txt": "hi"}])
    with pytest.raises(SchemaMismatchError, match="sample 10 is of another type"):
        Dataset[Point](tmp_path).append([Point(1.0, "a"), Renamed(1.0, "a")])
    assert len(Dataset(tmp_path)) == 10


def test_typed_samples_in_a_dataset_of_plain_fields(root):
    with pytest.raises(SchemaMismatchError, match="plain fields"):
        Dataset(root).append([Point(1.0, "a")])


@pytest.mark.parametrize(
    "samples,error,match",
    [
        ([sample(20), sample(3)], WriteError, "there already .*k003"),
        ([sample(20), sample(21), sample(20)], WriteError, "there already .*k020"),
        ([sample(20), {"__key__": "a.b", "txt": "x"}], UnsafeNameError, "no dot"),
        ([sample(20), 3], WriteError, "no sample"),
        ([{"__key__": 3, "txt": "x"}], WriteError, "a key is text"),
    ],
)
def test_what_cannot_be_added_leaves_nothing_behind(root, samples, error, match):
    before = sorted(path for path in root.rglob("*") if path.is_file())
    with pytest.raises(error, match=match):
        Dataset(root).append(samples, max_samples=1)
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before
    assert Dataset(root).append([sample(20)]).keys() == k(*range(10), 20)


def test_keys_of_other_splits_and_of_deleted_samples(root):
    write(root, (sample(n) for n in range(3)), "val-%06d.tar")
    ds = Dataset(root, split="validation")
    assert ds.append([sample(5)]).keys() == k(0, 1, 2, 5)  # though train has it
    ds.tombstone(k(1))
    with pytest.raises(WriteError, match="there already"):
        ds.append([sample(1)])


def test_what_cannot_grow(root, tmp_path):
    ds = Dataset(root)
    for view in (ds.select([0]), ds.map(len), ds.columns(["json"]), ds.concat(ds.map(len))):
        with pytest.raises(OptionError, match="not to a view"):
            view.append([sample(20)])
    shutil.rmtree(root / ".shoal")
    with pytest.raises(ManifestError, match=r"no manifest to add to.*shoal index"):
        Dataset(root).append([sample(20)])


def test_a_writer_that_appends(tmp_path):
    write(tmp_path, ({"txt": str(n)} for n in range(6)))
    write(tmp_path, ({"txt": str(n)} for n in range(6, 9)), append=True)
    assert Dataset(tmp_path).keys() == [f"{n:09d}" for n in range(9)]
    write(tmp_path / "new", ({"txt": "1"} for _ in range(2)), append=True)  # to nothing
    assert len(Dataset(tmp_path / "new")) == 2
    for other in ("overwrite", "resume"):
        with pytest.raises(OptionError, match="append"):
            ShardWriter(tmp_path / "x-%06d.tar", append=True, **{other: True})
    (tmp_path / "train-000003.tar").write_bytes(b"a stranger's")
    with pytest.raises(FileExistsError):
        write(tmp_path, [sample(1)], append=True)


# ------------------------------------------------------------------------------------------------------------- kill -9


class DyingStore(LocalStore):
    """The local disk under ``dying://``: the process ends at the n-th thing done to it, before or after it."""

    def __init__(self, last, after):
        self.left, self.after = last, after

    def step(self, action):
        self.left -= 1
        if self.left > 0:
            return action()
        if self.after:
            action()
        os._exit(9)

    def create(self, url):
        return DyingWriter(self, super().create(path_of(url)))

    def write_all(self, url, data):
        return self.step(lambda: LocalStore.write_all(self, path_of(url), data))

    def append(self, url, data):
        return self.step(lambda: LocalStore.append(self, path_of(url), data))

    def delete(self, url):
        return self.step(lambda: LocalStore.delete(self, path_of(url)))

    def info(self, url):
        return super().info(path_of(url))

    def open(self, url):
        return super().open(path_of(url))

    def read_all(self, url):
        return super().read_all(path_of(url))

    def list(self, url, depth=None):
        for found in super().list(path_of(url), depth):
            yield shoal.store.ObjectInfo(f"dying://{found.url}", found.size, found.version)

    def is_folder(self, url):
        return super().is_folder(path_of(url))


class DyingWriter:
    def __init__(self, store, inner):
        self.store, self.inner = store, inner

    def write(self, data):
        self.store.step(lambda: self.inner.write(data))

    def commit(self, *, durable=False):
        return self.store.step(lambda: self.inner.commit(durable=durable))

    def abort(self):
        self.inner.abort()


def path_of(url):
    return url.removeprefix("dying://")


def in_child(action):
    """Run ``action`` in a fork and say how it ended."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the parent must see it
            print("unexpected:", repr(error), file=sys.stderr, flush=True)
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", ["append", "tombstone"])
def test_killed_at_any_step_it_is_the_old_dataset_or_the_new_one(root, tmp_path, verb, after):
    old, new = k(*range(10)), k(*range(15)) if verb == "append" else k(*range(2, 10))
    seen = set()
    for number in range(100):
        target = tmp_path / f"{verb}-{number}"
        shutil.copytree(root, target)

        def action(target=target, number=number):
            register_store("dying", DyingStore(number + 1, after))
            ds = Dataset(f"dying://{target}")
            if verb == "append":
                ds.append(map(sample, range(10, 15)), max_samples=2)
            else:
                ds.tombstone(k(0, 1))

        code = in_child(action)
        found = Dataset(target).keys()
        assert found in (old, new)
        seen.add(tuple(found))
        if found == old:  # and the next one is not in the way of what was left
            again = (
                Dataset(target).append(map(sample, range(10, 15)))
                if verb == "append"
                else Dataset(target).tombstone(k(0, 1))
            )
            assert again.keys() == Dataset(target).keys() == new
            assert [each["json"]["n"] for each in again] == [int(name[1:]) for name in new]
        if code == 0:
            break
        assert code == 9
    assert code == 0
    assert tuple(new) in seen
    assert tuple(old) in seen or after  # after its one step it is done


# -------------------------------------------------------------------------------------------------------------- refresh


def test_a_foreign_folder_where_tars_appear(root, tmp_path):
    shutil.rmtree(root / ".shoal")
    tars = sorted(root.glob("*.tar"))
    late = tars[-1].rename(tmp_path / tars[-1].name)
    for path in (root, str(root / "*.tar"), [str(root / "*.tar")]):
        assert Dataset(path).keys() == k(*range(8))
    held = [Dataset(root), Dataset(root / "*.tar"), Dataset(root).where("n > 5"), Dataset(root).exclude(k(0, 8))]
    assert [len(each) for each in held] == [8, 8, 2, 7]
    late.rename(root / late.name)
    assert [len(each) for each in held] == [8, 8, 2, 7]
    assert [len(each.refresh()) for each in held] == [10, 10, 4, 8]


def double(found):
    return {**found, "twice": found["json"]["n"] * 2}


def test_what_was_chosen_is_chosen_again_and_positions_stay_the_same_samples(root):
    write(root, (sample(n) for n in range(100, 104)), "val-%06d.tar")
    ds = Dataset(root)
    chosen = ds.select([12, 1, 9]).map(double)
    mixed = ds.where("n > 5").select([0, -1]).where("n < 200").exclude(k(6))
    parts = ds.split(a=0.5, b=0.5)
    Dataset(root, split="train").append(map(sample, range(10, 30)))
    assert chosen.refresh().keys() == chosen.keys() == k(102, 1, 9)  # though their numbers are others now
    assert [found["twice"] for found in chosen.refresh()] == [204, 2, 18]
    assert mixed.refresh().keys() == k(103)
    now = ds.refresh()
    assert len(now) == 34
    assert {name: part.refresh().keys() for name, part in parts.items()} == {
        name: part.keys() for name, part in now.split(a=0.5, b=0.5).items()
    }
    both = concat([ds, ds.where("n > 100")]).where("n > 20")
    assert len(both) == 4 + 3
    assert len(both.refresh()) == 9 + 4 + 3
    other = ds.map(double).concat(ds)
    assert len(other.refresh()) == 68
    assert repr(mixed.refresh()).endswith("where(n < 200), exclude(1 keys))")


def test_a_shard_that_is_gone_or_another(root):
    view = Dataset(root).select([0, 9])
    write(root, (sample(n, "new") for n in range(6)), overwrite=True)
    with pytest.raises(ManifestError, match=r"is gone.*train-000002.tar|another now"):
        view.refresh()
    joined = Dataset(root).join(Dataset(root).columns(["json"]), suffix="2").select([1])
    assert joined.refresh().keys() == ["new001"]
    Dataset(root).append([sample(50)])
    with pytest.raises(OptionError, match="cannot be found again"):
        joined.refresh()


# ----------------------------------------------------------------------------------------------------------- tombstones


def test_deleted_samples_stay_away_from_every_opening(root):
    tars = {path: path.read_bytes() for path in root.glob("*.tar")}
    ds = Dataset(root)
    view = ds.where("n > 4")
    left = ds.tombstone(k(3, 7), reason="blurred")
    assert (len(ds), len(view)) == (10, 5)
    kept = k(0, 1, 2, 4, 5, 6, 8, 9)
    openings = [
        left,
        Dataset(root),
        Dataset(root, split="train"),
        Dataset(root / ".shoal" / "manifest.json"),
        Dataset(root / "*.tar"),
        Dataset(sorted(map(str, root.glob("*.tar")))),
        Dataset(root.as_uri()),
        shoal.load_dataset(root, split="train"),
        pickle.loads(pickle.dumps(left)),
        view.refresh().concat(Dataset(root).where("n <= 4")).exclude([]),
    ]
    for opened in openings:
        assert sorted(opened.keys()) == kept
        assert len(opened) == 8
        assert sorted(found["__key__"] for found in opened) == kept
        assert "k003" not in opened
        assert opened.where("n = 3").keys() == []
    assert [found["json"]["n"] for found in left] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert [n for batch in left.ordered(batch_size=3) for n in batch["__key__"]] == kept
    assert left[3]["__key__"] == "k004"
    assert Dataset(root, tombstones=False).keys() == k(*range(10))
    assert {path: path.read_bytes() for path in root.glob("*.tar")} == tars
    assert left.fingerprint == Dataset(root).fingerprint != ds.fingerprint
    assert [(stone.key, stone.reason) for stone in left.tombstones] == [("k003", "blurred"), ("k007", "blurred")]
    assert left.tombstones[0].shard == str(root / "train-000000.tar")


def test_deleting_again_and_restoring(root):
    ds = Dataset(root).tombstone(k(3)).tombstone({"k003", "k004"})
    assert ds.keys() == k(0, 1, 2, 5, 6, 7, 8, 9)
    ds = ds.restore(k(3))
    assert ds.keys() == Dataset(root).keys() == k(0, 1, 2, 3, 5, 6, 7, 8, 9)
    with pytest.raises(SampleKeyError, match=r"no deleted sample.*'k009'"):
        ds.restore(k(4, 9))
    assert len(ds.restore()) == 10
    assert not (root / ".shoal" / "tombstones.json").exists()
    assert ds.restore().tombstones == ()


def test_deleting_what_a_query_finds(root):
    ds = Dataset(root)
    assert ds.tombstone(ds.where("n >= 3")).keys() == k(0, 1, 2)
    assert ds.where("n < 5").tombstone(k(0)).keys() == k(1, 2)


def test_a_key_that_two_splits_have_is_deleted_in_one(root):
    write(root, (sample(n) for n in range(3)), "val-%06d.tar")
    Dataset(root, split="validation").tombstone(k(1))
    assert Dataset(root, split="validation").keys() == k(0, 2)
    assert Dataset(root, split="train").keys() == k(*range(10))
    assert len(Dataset(root)) == 12
    Dataset(root).where("n < 2").tombstone(k(0), repeated="all")
    assert "k000" not in Dataset(root, split="train")


def test_folders_without_a_manifest(root, tmp_path, monkeypatch):
    shutil.rmtree(root / ".shoal")
    inner = root / "more"
    inner.mkdir()
    shutil.copy(root / "train-000002.tar", inner / "extra-0.tar")
    Dataset(root).tombstone(k(0))
    assert Dataset(root / "train-*.tar").keys() == k(*range(1, 10))
    Dataset(inner).tombstone(k(8))
    assert Dataset(root).keys() == Dataset(f"{root}/**/*.tar").keys() == ["k009", *k(*range(1, 10))]
    Dataset(root).where("n = 9").tombstone(k(9), repeated="all")
    assert Dataset(inner / "extra-0.tar").keys() == []
    monkeypatch.chdir(root)
    for path in (".", "./", "train-*.tar", "./train-*.tar"):
        assert "k000" not in Dataset(path), path
        assert "k008" in Dataset(path), path
    monkeypatch.chdir(tmp_path)
    assert "k000" not in Dataset(root.name)
    Dataset(root.name).tombstone(k(1))
    assert "k001" not in Dataset(root)


def test_a_shard_that_was_written_anew_loses_no_samples_to_old_tombstones(root):
    Dataset(root).tombstone(k(1))
    write(root, ({"__key__": f"k{n:03d}", "txt": "other"} for n in range(10)), overwrite=True)
    with pytest.warns(ShoalWarning, match="1 tombstones are of another tar"):
        assert len(Dataset(root)) == 10
    ds = Dataset(root, tombstones=False)
    assert len(ds.restore().refresh()) == 10
    assert not (root / ".shoal" / "tombstones.json").exists()
    Dataset(root).tombstone(k(2))
    assert len(Dataset(root)) == 9


def test_tombstones_that_cannot_be_read_are_never_ignored(root):
    Dataset(root).tombstone(k(1))
    path = root / ".shoal" / "tombstones.json"
    whole = path.read_text()
    for text, match in (
        ("[]", "cannot be read"),
        (whole[:-9], "cannot be read"),
        (whole.replace(": 1,", ": 9,", 1), "newer"),
    ):
        path.write_text(text)
        with pytest.raises(ManifestError, match=match):
            len(Dataset(root))
        assert len(Dataset(root, tombstones=False)) == 10


def test_tombstones_are_json_that_anyone_can_read(root):
    Dataset(root).tombstone(k(1), reason="asked for")
    document = json.loads((root / ".shoal" / "tombstones.json").read_text())
    assert document["shards"]["train-000000.tar"]["rows"] == {"1": {"key": "k001", "reason": "asked for"}}


def test_what_cannot_be_deleted(root):
    ds = Dataset(root)
    with pytest.raises(SampleKeyError, match=r"no sample has this key: found 'x', 'y', 'z' and 1 more"):
        ds.tombstone(["k001", "x", "y", "z", "zz"])
    with pytest.raises(OptionError, match="keys are"):
        ds.tombstone("k001")
    with pytest.raises(OptionError, match="a reason is text"):
        ds.tombstone(k(1), reason=3)
    with pytest.raises(FormatError, match=r"kept with tar shards.*exclude"):
        ds.join(ds, suffix="2").tombstone(k(1))
    assert len(Dataset(root)) == 10


def test_deleted_samples_of_a_concatenation(root, tmp_path):
    other = write(tmp_path / "other", (sample(n, "o") for n in range(5)))
    both = Dataset(root).concat(Dataset(other)).tombstone(["k001", "o002"])
    assert len(both) == 13
    assert len(Dataset(root)) == 9
    assert Dataset(other).keys() == ["o000", "o001", "o003", "o004"]


def test_info_counts_the_deleted(root):
    Dataset(root).tombstone(k(1, 2))
    facts = json.loads(shoal_command("info", root, "--json"))
    assert (facts["samples"], facts["tombstones"]) == (10, 2)
    assert "2 samples of them" in shoal_command("info", root)


def test_the_command_shows_the_sample_that_was_asked_for(root):
    ds = Dataset(root).tombstone(k(1, 2))
    assert [ds.position_of(name) for name in k(0, 3, 9)] == [0, 1, 7]
    assert json.loads(shoal_command("cat", root, "k003", "--json"))["key"] == "k003"
    assert json.loads(shoal_command("cat", root, "1", "--json"))["key"] == "k003"
    assert main(["cat", str(root), "k001"]) != 0
    with pytest.raises(SampleKeyError, match="not in this view"):
        ds.position_of("k001")


def test_typed_batches_of_a_dataset_with_deleted_samples(tmp_path):
    points = [Point(float(n), f"p{n}") for n in range(300)]
    ds = shoal.write_samples(points, tmp_path / "p-%06d.tar", max_samples=70).tombstone(["000000005", "000000299"])
    names = [f"p{n}" for n in range(299) if n != 5]
    assert [name for batch in ds.ordered(batch_size=32) for name in batch.name] == names
    found = [name for batch in ds.shuffled(batch_size=32, seed=4) for name in batch.name]
    assert found != names
    assert sorted(found) == sorted(names)
    assert [point.name for point in ds.shuffled(seed=4)] != names
    assert np.array_equal(next(iter(ds.ordered(batch_size=8))).array("x"), [0, 1, 2, 3, 4, 6, 7, 8])
