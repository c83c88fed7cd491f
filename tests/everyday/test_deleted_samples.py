"""The bytes of deleted samples are published only with a warning, and not at all by what writes samples again."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.atmosphere.conftest import _own_home, alice, connect, new_handle, pds, pets, plc  # noqa: F401 - fixtures
from tests.hub.conftest import hub  # noqa: F401 - a fixture

import shoal
from shoal.errors import AtmosphereError, FormatError, ShoalWarning
from shoal.hub import push_to_hub
from shoal.local import Repo
from shoal.shard import verify_dataset

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
GONE = {2, 3, 17}


def secret(n):
    return f"secret-{n:03d}-".encode() * 50


def write(root, ending="tar"):
    for split, numbers in (("train", range(20)), ("test", range(20, 24))):
        with shoal.ShardWriter(f"{root}/{split}-%06d.{ending}", max_samples=5) as writer:
            for n in numbers:
                writer.write({"__key__": f"k{n:03d}", "bin": secret(n), "json": {"n": n}})
    return str(root)


@pytest.fixture
def folder(tmp_path):
    root = write(tmp_path / "data")
    shoal.Dataset(root).tombstone([f"k{n:03d}" for n in GONE], reason="a person asked")
    return root


def published(blobs):
    """The samples whose bytes are in any of these files."""
    return {n for n in range(24) if any(secret(n) in data for data in blobs)}


def on_hub(hub, name):  # noqa: F811 - a fixture
    return hub.repos["dataset", name].files("main")


def below(root):
    return [path.read_bytes() for path in Path(root).rglob("*") if path.is_file()]


class TestHub:
    def test_a_folder_warns_with_the_count(self, hub, folder):  # noqa: F811
        with pytest.warns(ShoalWarning, match=r"^3 samples marked as deleted .* compact=True"):
            pushed = push_to_hub(folder, "tester/all")
        files = on_hub(hub, "tester/all")
        assert published(files.values()) == set(range(24))
        assert not any(f"k{n:03d}" in files["README.md"].decode() for n in GONE)  # nor on the card
        assert len(shoal.Dataset(pushed.url)) == 21

    @pytest.mark.parametrize("ending", ["tar", "tar.gz"])
    def test_compact_rewrites_the_shards_that_hold_some(self, hub, tmp_path, ending):  # noqa: F811
        root = write(tmp_path / "data", ending)
        gone = {*GONE, *range(20, 24)}  # one shard loses all of its samples
        shoal.Dataset(root).tombstone([f"k{n:03d}" for n in gone])
        before = {path.name: path.read_bytes() for path in Path(root).glob(f"*.{ending}")}
        with pytest.warns(ShoalWarning, match="7 samples"):
            push_to_hub(root, "tester/pets")
        pushed = push_to_hub(root, "tester/pets", compact=True)
        files = on_hub(hub, "tester/pets")
        if ending == "tar":
            assert published(files.values()) == set(range(24)) - gone
        kept = {name for name, data in before.items() if files.get(name) == data}
        assert kept == {f"train-000001.{ending}", f"train-000002.{ending}"}
        assert ".shoal/tombstones.json" not in files
        dataset = shoal.Dataset(pushed.url)
        assert [sample["json"]["n"] for sample in dataset] == [n for n in range(24) if n not in gone]
        assert [
            key
            for key, n in zip(dataset.keys(), dataset.table(["json.n"])["json.n"].to_pylist(), strict=True)
            if n == 4
        ]
        copy = tmp_path / "copy"
        shoal.hub.download(pushed.repo_id, copy)
        assert all(not report.problems for report in verify_dataset(str(copy)))
        with tarfile.open(copy / f"train-000000.{ending}") as tar:
            assert {name.partition(".")[0] for name in tar.getnames()} == {"k000", "k001", "k004"}
        assert {path.name: path.read_bytes() for path in Path(root).glob(f"*.{ending}")} == before

    def test_nothing_deleted_warns_of_nothing(self, hub, tmp_path):  # noqa: F811
        root = write(tmp_path / "data")
        first = push_to_hub(root, "tester/pets")
        assert push_to_hub(root, "tester/pets", compact=True).commit == first.commit

    def test_views_have_no_deleted_samples(self, hub, folder):  # noqa: F811
        dataset = shoal.Dataset(folder)
        views = {
            "where": (dataset.where("n >= 1 and n < 5"), {1, 4}),
            "select": (dataset.select([0, 1, 2]), {0, 1, 4}),
            "whole": (dataset, set(range(24)) - GONE),
            "split": (shoal.Dataset(folder, split="train"), set(range(20)) - GONE),
            "dict": (shoal.load_dataset(folder), set(range(24)) - GONE),
            "other": (shoal.Dataset(folder, split="test"), set(range(20, 24))),
        }
        for name, (view, expected) in views.items():
            push_to_hub(view, f"tester/{name}")
            assert published(on_hub(hub, f"tester/{name}").values()) == expected

    def test_deleted_samples_that_are_shown_are_warned_of(self, hub, folder):  # noqa: F811
        with pytest.warns(ShoalWarning, match="3 samples"):
            push_to_hub(shoal.Dataset(folder, split="train", tombstones=False), "tester/train")

    def test_the_command(self, hub, folder):  # noqa: F811
        from shoal.cli import main

        with pytest.warns(ShoalWarning, match="3 samples"):
            assert main(["hub", "push", folder, "tester/a", "--json"]) == 0
        assert main(["hub", "push", folder, "tester/b", "--compact", "--json"]) == 0
        assert published(on_hub(hub, "tester/b").values()) == set(range(24)) - GONE


def test_what_is_written_again_has_none(folder, tmp_path):
    expected = set(range(24)) - GONE
    shoal.build.reshard(folder, tmp_path / "reshard", workers=1)
    shoal.build.merge([folder], tmp_path / "merge", workers=1)
    shoal.write_samples(shoal.Dataset(folder), tmp_path / "write" / "a-%06d.tar")
    shoal.build_shards(shoal.Dataset(folder), tmp_path / "build", workers=1)
    Repo(str(tmp_path / "repo"), index=shoal.LocalIndex(tmp_path / "a.db")).insert(folder, name="pets")
    Repo(str(tmp_path / "repo2"), index=shoal.LocalIndex(tmp_path / "b.db")).insert(shoal.Dataset(folder), name="pets")
    command = [sys.executable, "-m", "shoal", "convert", folder, str(tmp_path / "convert")]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("reshard", "merge", "write", "build", "repo", "repo2", "convert"):
        assert published(below(tmp_path / name)) == expected, name


def test_the_atmosphere_refuses_shards_with_deleted_samples(alice, tmp_path):  # noqa: F811 - fixtures
    root = str(tmp_path / "pets")
    shoal.write_samples(pets(6), f"{root}/train-%06d.tar")
    index = shoal.LocalIndex(tmp_path / "index.db")
    entry = index.insert_dataset(root, name="pets")
    shoal.Dataset(root).tombstone([shoal.Dataset(root).keys()[0]])
    for data in (root, [f"{root}/train-000000.tar"], shoal.load_dataset(root)):
        with pytest.raises(FormatError, match=r"only whole shards|a view"):
            alice.publish_dataset(data, name="pets")
    with pytest.raises(AtmosphereError, match=r"deleted.*found 1 of pets@1\.0\.0"):
        shoal.promote.promote_to_atmosphere(entry, index, alice)
