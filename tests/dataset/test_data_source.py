"""A user's DataSource as shards of a dataset."""

import gzip
import io
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from shoal import ShardWriter, load_dataset
from shoal.dataset import source_from_data_source
from shoal.errors import ObjectNotFoundError, StoreError
from shoal.store import store_for

COUNTS = {"train": 7, "val": 3, "test": 5}


def fill(root, names=COUNTS):
    """One shard a name, its samples called after it."""
    for name, count in names.items():
        with ShardWriter(f"{root}/{name}-%06d.tar", max_samples=4) as writer:
            for number in range(count):
                writer.write({"__key__": f"{name}{number}", "txt": f"{name} {number}", "json": {"width": number}})


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "pets")
    return tmp_path / "pets"


@pytest.fixture
def bare(folder):
    """The same without what shoal keeps beside the tars."""
    shutil.rmtree(folder / ".shoal")
    return folder


class Source:
    """Shards by name, each opened by a function; counts how often."""

    def __init__(self, openers):
        self.openers = openers
        self.opened = []

    @property
    def shards(self):
        return ((name, self.open_shard(name)) for name in self.list_shards())

    def list_shards(self):
        return list(self.openers)

    def open_shard(self, shard_id):
        self.opened.append(shard_id)
        return self.openers[shard_id]()


class Scrambled(io.FileIO):
    """A file whose bytes on disk are not those that it reads."""

    def readall(self):
        return bytes(255 - byte for byte in super().readall())

    def read(self, size=-1):
        return bytes(255 - byte for byte in super().read(size))


class Pipe(io.RawIOBase):
    """Bytes that come once, in small pieces, and cannot be sought."""

    def __init__(self, data):
        self.rest = data

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self.rest[: min(len(buffer), 1000)]
        self.rest = self.rest[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)


def opened(path):
    return open(path, "rb")


def unbuffered(path):
    return open(path, "rb", buffering=0)


def at_offset(path):
    file = opened(path)
    file.seek(512)
    return file


@pytest.mark.parametrize(
    "opener",
    [
        opened,
        unbuffered,
        lambda path: io.BytesIO(path.read_bytes()),
        lambda path: Pipe(path.read_bytes()),
        lambda path: gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(path.read_bytes()))),
    ],
    ids=["file", "raw", "memory", "pipe", "unpacked"],
)
def test_every_kind_of_stream(bare, opener):
    files = {f"{name}/odd*na?me[{{1..2}}].tar": bare / f"{name}-000000.tar" for name in COUNTS}
    source = Source({name: lambda path=path: opener(path) for name, path in files.items()})
    splits = load_dataset(source)
    assert source.opened == []
    assert splits.num_samples == {"train": 4, "validation": 3, "test": 4}
    assert [found["txt"] for found in splits["test"]] == [f"test {number}" for number in range(4)]
    assert splits["validation"].get("val2")["json"] == {"width": 2}
    assert splits["train"].where("width == 3").keys() == ["train3"]
    assert sorted(source.opened) == sorted(files)  # each once
    assert load_dataset(source, split="test[:1]+val").keys() == ["test0", "val0", "val1", "val2"]


def test_a_stream_that_changes_bytes_is_not_read_behind_its_back(bare, tmp_path):
    plain = (bare / "test-000000.tar").read_bytes()
    (tmp_path / "secret").write_bytes(bytes(255 - byte for byte in plain))
    assert len(load_dataset(Source({"a.tar": lambda: Scrambled(tmp_path / "secret")}), split="train")) == 4


def test_names_without_an_ending_are_known_by_content(bare):
    source = Source({"blob": lambda: opened(bare / "test-000000.tar")})
    assert len(load_dataset(source, split="train")) == 4


def test_a_stream_that_starts_inside_a_file(bare, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 512 + (bare / "test-000000.tar").read_bytes())
    assert len(load_dataset(Source({"a.tar": lambda: at_offset(tmp_path / "big")}), split="train")) == 4


def test_an_index_is_made_once_for_the_same_bytes_and_not_used_for_others(bare):
    def count(name):
        return load_dataset(Source({"a.tar": lambda: io.BytesIO((bare / name).read_bytes())}), split="train").keys()

    assert count("test-000000.tar") == ["test0", "test1", "test2", "test3"]
    assert count("train-000000.tar") == ["train0", "train1", "train2", "train3"]


def test_a_file_that_is_replaced_is_read_anew(bare, tmp_path):
    source = Source({"a.tar": lambda: opened(tmp_path / "now.tar")})
    for name in ("test", "train"):
        shutil.copy(bare / f"{name}-000000.tar", tmp_path / "next.tar")
        os.replace(tmp_path / "next.tar", tmp_path / "now.tar")
        assert load_dataset(source, split="train").keys() == [f"{name}{number}" for number in range(4)]


def test_as_a_source_of_samples(bare):
    source = source_from_data_source(Source({"a.tar": lambda: opened(bare / "test-000000.tar")}))
    assert len(source) == 4
    assert source.find("test2") == 2
    source.close()


def raising(error):
    def opener():
        raise error

    return opener


@pytest.mark.parametrize(
    "opener, match",
    [
        (raising(KeyError("gone")), "KeyError: 'gone'"),
        (raising(PermissionError("no")), "PermissionError: no"),
        (lambda: None, "gave no bytes"),
        (lambda: io.StringIO("text"), "gave no bytes"),
    ],
)
def test_a_source_that_gives_no_bytes(opener, match):
    splits = load_dataset(Source({"train-0.tar": opener}))
    with pytest.raises(StoreError, match=match) as caught:
        len(splits["train"])
    assert caught.value.shard == "train-0.tar"


def test_a_source_without_shards_and_one_that_is_written_to():
    with pytest.raises(ObjectNotFoundError, match="lists no shards"):
        load_dataset(Source({}))
    store = store_for("data-source://9/a.tar")
    for write in (
        store.create,
        lambda url: store.write_all(url, b""),
        lambda url: store.append(url, b""),
        store.delete,
        lambda url: store.move(url, url),
    ):
        with pytest.raises(StoreError, match="only read"):
            write("data-source://9/a.tar")
    with pytest.raises(ObjectNotFoundError, match="no data source has this shard"):
        store.open("data-source://99/a.tar")


def test_the_urls_of_a_source_are_a_folder(bare):
    source = Source({name: lambda: io.BytesIO(b"12345") for name in ("a/b.tar", "c.tar")})
    load_dataset(source)
    url = next(url for url in sorted(resolve_urls(source)))
    root = url.removesuffix("/a/b.tar")
    store = store_for(root)
    assert store.is_folder(root)
    assert not store.is_folder(url)
    assert [(info.url.removeprefix(root), info.size) for info in store.list(root)] == [("/a/b.tar", 5), ("/c.tar", 5)]
    assert [info.url.removeprefix(root) for info in store.list(root, 1)] == ["/c.tar"]
    assert store.read_all(url) == b"12345"


def resolve_urls(source):
    return [ref.url for ref in source_from_data_source(source).shards]


def test_copies_are_gone_when_the_process_is(bare, tmp_path):
    script = f"""
        import io, os, shoal
        class Source:
            @property
            def shards(self): ...
            def list_shards(self):
                return ["a.tar"]
            def open_shard(self, name):
                return io.BytesIO(open({str(bare / "test-000000.tar")!r}, "rb").read())
        assert len(shoal.load_dataset(Source(), split="train")) == 4
        assert len(os.listdir({str(tmp_path / "temp")!r})) == 1
    """
    (tmp_path / "temp").mkdir()
    run(script, {"TMPDIR": str(tmp_path / "temp")})
    assert os.listdir(tmp_path / "temp") == []


def run(script, variables):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
