"""repair: what is done with each kind of shard, what is kept, and that nothing is lost on the way."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import threading
from pathlib import Path

import pytest

import shoal
from shoal.build import repair, report_page
from shoal.errors import ObjectExistsError, ObjectNotFoundError, OptionError, StoreError
from shoal.shard import KeyRule, load_index, load_manifest, verify_dataset
from shoal.shard._journal import commit
from shoal.shard._stored_rows import index_url
from shoal.store import MemoryStore, register_store, store_for


@pytest.fixture
def root(tmp_path) -> Path:
    """Twelve samples in three shards."""
    folder = tmp_path / "data"
    with shoal.ShardWriter(folder / "train-%06d.tar", max_samples=4, metadata={"by": "a test"}, hashed=True) as writer:
        for number in range(12):
            writer.write(sample(number))
    return folder


def sample(number: int) -> dict[str, object]:
    return {"__key__": f"k{number:02d}", "bin": bytes([number]) * 700, "txt": f"number {number}"}


def flip(path: Path, what: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 1
    path.write_bytes(data)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def keys(path) -> list[str]:
    return [each["__key__"] for each in shoal.Dataset(path)]


def actions(done) -> list[str]:
    return [shard.action for shard in done.shards]


def test_a_sound_dataset_is_not_touched(root):
    before = files(root)
    done = repair(root)
    assert (actions(done), done.saved, done.lost, done.complete) == (["sound"] * 3, 12, 0, True)
    assert files(root) == before


def test_a_damaged_sample_is_left_out_and_the_shard_as_it_was_is_kept(root):
    flip(root / "train-000001.tar", b"number 6")
    as_it_was = (root / "train-000001.tar").read_bytes()
    others = {name: data for name, data in files(root).items() if name in ("train-000000.tar", "train-000002.tar")}
    done = repair(root)
    assert actions(done) == ["sound", "rewritten", "sound"]
    shard = done.shards[1]
    assert (shard.saved, [lost.key for lost in shard.lost], shard.proof) == (3, ["k06"], "checksums")
    assert "txt" in shard.lost[0].reason
    assert Path(shard.quarantine).read_bytes() == as_it_was
    assert json.loads((Path(shard.quarantine).parent / "report.json").read_text())["lost"][0]["key"] == "k06"
    assert keys(root) == [f"k{number:02d}" for number in range(12) if number != 6]
    assert all(files(root)[name] == data for name, data in others.items())
    record = load_manifest(str(root)).shards[1]
    assert record.sha256 == hashlib.sha256((root / "train-000001.tar").read_bytes()).hexdigest()
    assert load_manifest(str(root)).metadata == {"by": "a test"}
    assert all(report.ok for report in verify_dataset(str(root)))


def test_to_repair_again_changes_nothing(root):
    flip(root / "train-000000.tar", b"number 1")
    repair(root)
    before = files(root)
    assert actions(repair(root)) == ["sound"] * 3
    assert files(root) == before


def test_damage_to_headers_and_filler_costs_no_sample(root):
    data = bytearray((root / "train-000000.tar").read_bytes())
    data[0] ^= 1  # the first header
    data[512 + 700 + 5] ^= 1  # padding
    (root / "train-000000.tar").write_bytes(data)
    done = repair(root)
    assert (done.shards[0].action, done.shards[0].saved, done.lost) == ("rewritten", 4, 0)
    assert len(keys(root)) == 12


def test_members_that_moved_are_found_by_their_headers(root):
    path = root / "train-000002.tar"
    data = path.read_bytes()
    path.write_bytes(data[:100] + data[612:])  # the first header is gone, and everything else moved by 512 bytes
    done = repair(root)
    assert (done.shards[2].saved, [lost.key for lost in done.shards[2].lost]) == (3, ["k08"])
    assert done.shards[2].moved > 4
    path.write_bytes(path.read_bytes()[:2000] + b"x" * 7 + path.read_bytes()[2000:])  # and not by whole blocks
    done = repair(root)
    assert done.shards[2].saved == 2
    assert keys(root)[-2:] == ["k10", "k11"]


def test_dry_run_writes_nothing(root):
    flip(root / "train-000001.tar", b"number 6")
    (root / ".shoal" / "index" / "train-000002.tar.arrow").unlink()
    before = files(root)
    done = repair(root, dry_run=True)
    assert (actions(done), done.lost, done.dry_run) == (["sound", "rewritten", "reindexed"], 1, True)
    assert files(root) == before
    assert actions(repair(root)) == actions(done)


def test_output_leaves_the_dataset_as_it_was(root, tmp_path):
    flip(root / "train-000001.tar", b"number 6")
    before = files(root)
    done = repair(root, output=tmp_path / "whole")
    assert done.output == str(tmp_path / "whole")
    assert files(root) == before
    assert len(keys(tmp_path / "whole")) == 11
    assert (tmp_path / "whole" / "train-000000.tar").read_bytes() == before["train-000000.tar"]
    assert all(report.ok for report in verify_dataset(str(tmp_path / "whole"), split=None))
    with pytest.raises(ObjectExistsError):
        repair(root, output=tmp_path / "whole")
    with pytest.raises(OptionError):
        repair(root, output=root)


@pytest.mark.parametrize("state", ["missing", "no index", "of another tar"])
def test_an_index_that_is_wrong_is_made_anew(root, state):
    stored = root / ".shoal" / "index" / "train-000000.tar.arrow"
    before = stored.read_bytes()
    if state == "missing":
        stored.unlink()
    elif state == "no index":
        stored.write_bytes(b"ARROW1" + bytes(100))
    else:
        shutil.copy(root / ".shoal" / "index" / "train-000001.tar.arrow", stored)
    done = repair(root)
    assert (actions(done), done.lost) == (["reindexed", "sound", "sound"], 0)
    assert len(load_index(str(stored))) == 4
    assert keys(root) == [f"k{number:02d}" for number in range(12)]
    assert state == "missing" or Path(done.shards[0].quarantine).exists()
    assert len(before) > 0


def test_a_tar_that_was_replaced_by_a_longer_one_is_indexed_again(root, tmp_path):
    with shoal.ShardWriter(tmp_path / "new" / "a.tar") as writer:
        for number in range(50):
            writer.write({"__key__": f"new{number}", "txt": "x"})
    shutil.copy(tmp_path / "new" / "a.tar", root / "train-000000.tar")
    assert actions(repair(root, dry_run=True, trust="index"))[0] == "quarantined"
    done = repair(root)
    assert (done.shards[0].action, done.shards[0].saved) == ("reindexed", 50)
    assert len(keys(root)) == 58
    assert load_manifest(str(root)).shards[0].samples == 50


def test_trust_says_whom_to_believe_where_sizes_do_not_tell(root):
    flip(root / "train-000000.tar", b"number 1")
    assert repair(root, dry_run=True).lost == 1
    done = repair(root, trust="tar")
    assert (done.shards[0].action, done.lost) == ("reindexed", 0)
    assert shoal.Dataset(root)[1]["txt"] != "number 1"


def test_a_manifest_that_miscounts_is_put_right(root):
    manifest = load_manifest(str(root))
    first, *rest = manifest.shards
    wrong = shoal.shard.ShardRecord(first.path, 99, first.bytes)
    manifest = shoal.shard.Manifest({"train": (wrong, *rest)}, manifest.metadata)
    commit(str(root), lambda before: manifest)
    done = repair(root)
    assert (actions(done), done.lost) == (["recorded", "sound", "sound"], 95)
    assert load_manifest(str(root)).samples == 12
    assert repair(root).complete


def test_a_shard_that_is_not_there_is_told_of_and_dropped_when_asked(root):
    (root / "train-000001.tar").unlink()
    before = files(root)
    done = repair(root)
    assert (actions(done), done.complete, done.lost) == (["sound", "missing", "sound"], False, 4)
    assert files(root) == before
    repair(root, drop_missing=True)
    assert [record.path for record in load_manifest(str(root)).shards] == ["train-000000.tar", "train-000002.tar"]
    assert len(keys(root)) == 8


def test_a_shard_of_which_nothing_is_whole_leaves_the_dataset_but_is_kept(root):
    junk = bytes(range(256)) * 40
    (root / "train-000001.tar").write_bytes(junk)
    done = repair(root)
    assert (actions(done), done.shards[1].saved, done.lost) == (["sound", "quarantined", "sound"], 0, 4)
    assert not (root / "train-000001.tar").exists()
    assert Path(done.shards[1].quarantine).read_bytes() == junk
    assert len(keys(root)) == 8
    assert repair(root).complete


def test_a_tar_without_manifest_or_index(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(9):
            for name in (f"d/{number}.JPG", f"d/{number}.cls"):
                info = tarfile.TarInfo(name)
                info.size = 600
                archive.addfile(info, io.BytesIO(bytes([number]) * 600))
    data = path.read_bytes()
    path.write_bytes(data[: 7 * 2 * 1536 + 700])  # inside the first member of the eighth sample
    done = repair(path)
    assert (done.shards[0].proof, done.saved) == ("structure", 7)
    with tarfile.open(path) as archive:
        assert archive.getnames() == [f"d/{number}.{end}" for number in range(7) for end in ("JPG", "cls")]
    assert (tmp_path / ".shoal" / "quarantine").is_dir()
    assert Path(done.shards[0].quarantine).read_bytes() == data[: 7 * 2 * 1536 + 700]
    assert repair(path).shards[0].action == "sound"


def test_a_tar_in_a_tar_is_not_taken_for_samples(tmp_path):
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        for number in range(9):
            info = tarfile.TarInfo(f"inner{number}.bin")
            info.size = 100
            archive.addfile(info, io.BytesIO(bytes(100)))
    path = tmp_path / "a.tar"
    places = []
    with tarfile.open(path, "w") as archive:
        for number in range(12):
            info = tarfile.TarInfo(f"{number}.tar")
            info.size = len(inner.getvalue())
            places.append(archive.offset)
            archive.addfile(info, io.BytesIO(inner.getvalue()))
    data = bytearray(path.read_bytes())
    data[places[5]] ^= 1
    path.write_bytes(data)
    done = repair(path)
    with tarfile.open(path) as archive:
        assert set(archive.getnames()) <= {f"{number}.tar" for number in range(12)}
    assert done.saved == 12 - 5
    path.write_bytes(data[: places[9] + 3000])  # cut inside one
    repair(path)
    with tarfile.open(path) as archive:
        assert set(archive.getnames()) <= {f"{number}.tar" for number in range(12)}


def test_decode_leaves_out_what_does_not_decode_where_nothing_else_tells(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(9):
            data = b'{"number": 1}' if number != 3 else b'{"number": '
            info = tarfile.TarInfo(f"{number}.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    data = bytearray(path.read_bytes())
    del data[8 * 1024 + 512 :]
    path.write_bytes(data)
    assert repair(path, dry_run=True).saved == 8
    done = repair(path, decode=True)
    assert "3" in {lost.key for lost in done.shards[0].lost}
    assert done.saved == 7


def test_other_rules_of_names_are_kept(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    with tarfile.open(root / "a.tar", "w") as archive:
        for name in ("a.1.jpg", "a.1.cls", "b.1.jpg", "b.1.cls"):
            info = tarfile.TarInfo(name)
            info.size = 600
            archive.addfile(info, io.BytesIO(name.encode() * 600))
    rule = KeyRule(dot="last")
    url = str(root / "a.tar")
    reader = store_for(url).open(url)
    index = shoal.shard.index_shard(reader, rule)
    reader.close()
    shoal.shard.save_index(index, index_url(str(root), "a.tar"))
    record = shoal.shard.record_of("a.tar", index)
    commit(str(root), lambda before: shoal.shard.Manifest({"train": (record,)}, rule=rule))
    flip(root / "a.tar", b"b.1.jpgb.1.jpg")
    done = repair(root)
    assert (done.saved, [lost.key for lost in done.shards[0].lost]) == (1, ["b.1"])
    with tarfile.open(root / "a.tar") as archive:
        assert archive.getnames() == ["a.1.jpg", "a.1.cls"]
    assert repair(root).complete


def test_nothing_there_raises(tmp_path):
    with pytest.raises(ObjectNotFoundError):
        repair(tmp_path / "nothing" / "*.tar")


class Failing(MemoryStore):
    """A store that stops working at one write, as a full disk or a killed process would."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30
        self._count_lock = threading.Lock()

    def _step(self) -> None:
        with self._count_lock:
            self.left -= 1
            if self.left < 0:
                raise StoreError("no more")

    def write_all(self, url, data):
        self._step()
        return super().write_all(url, data)

    def move(self, url, target):
        self._step()
        super().move(url, target)

    def delete(self, url):
        self._step()
        super().delete(url)


def test_an_interruption_at_any_write_loses_nothing():
    """Whatever step fails: the damaged shard is in its place or in quarantine, and a rerun ends as an unbroken run."""
    store = Failing()
    register_store("failing", store)
    with shoal.ShardWriter("failing://first/a-%06d.tar", max_samples=4) as writer:
        for number in range(12):
            writer.write(sample(number))
    start = {info.url: store.read_all(info.url) for info in store.list("failing://first")}
    hurt = "failing://first/a-000001.tar"
    damaged = start[hurt].replace(b"number 6", b"number X")
    gone = "failing://first/a-000002.tar"
    junk = b"junk" * 3000

    def reset() -> None:
        store.left = 1 << 30
        for info in list(store.list("failing://first")):
            store.delete(info.url)
        for url, data in start.items():
            store.write_all(url, damaged if url == hurt else junk if url == gone else data)

    def dataset() -> dict[str, bytes]:
        urls = [info.url for info in store.list("failing://first")]
        return {url: store.read_all(url) for url in urls if "/quarantine/" not in url}

    reset()
    repair("failing://first", workers=1)
    expected = dataset()
    for steps in range(200):
        reset()
        store.left = steps
        try:
            repair("failing://first", workers=1)
            break
        except StoreError:
            pass
        store.left = 1 << 30
        held = [store.read_all(info.url) for info in store.list("failing://first")]
        assert damaged in held, steps
        assert junk in held, steps
        repair("failing://first", workers=1)
        assert dataset() == expected, steps
    else:
        raise AssertionError("it never ended")
    assert steps > 10


def test_the_page_has_everything_and_is_escaped(root):
    path = root / "train-000001.tar"
    flip(path, b"number 6")
    page = report_page(repair(root))
    assert "k06" in page
    assert "checksums" in page
    evil = shoal.build.ShardRepair(
        "<script>alert(1)</script>", "rewritten", lost=(shoal.build.LostSample("<img src=x>", "&"),)
    )
    page = report_page(shoal.build.Repair("<b>", "x", False, (evil,)))
    assert "<script>" not in page
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page
    assert "http" not in page


def test_a_page_of_a_sound_dataset_says_so(root):
    assert "Every shard is sound" in report_page(repair(root))
