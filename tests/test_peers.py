"""What is written here is read by everybody, and what others write is read here: with the real programs."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile

import datasets
import numpy as np
import pytest
import webdataset
import zstandard

from shoal import Dataset, ShardWriter
from shoal.shard import ReaderFeed, SampleStream, StreamFeed, decompressed, sniff
from shoal.store import store_for

COMPRESSIONS = [None, "gzip", "bz2", "xz", "zstd"]
TAR_FLAG = {None: [], "gzip": ["--gzip"], "bz2": ["--bzip2"], "xz": ["--xz"], "zstd": ["--zstd"]}
BY_TAR = [name for name in COMPRESSIONS if name != "zstd" or shutil.which("zstd")]
COUNT = 300  # more than one compressed block: a reader that stops at the first is found out


def rows(count=COUNT, size=4000):
    made = np.random.default_rng(7)
    return [
        {
            "__key__": f"{'deep/er/' if n % 3 == 0 else ''}sample{n:05d}" + ("-long" * 30 if n % 50 == 9 else ""),
            "bin": made.bytes(n * 13 % size),
            "seg.png": b"" if n % 4 else made.bytes(700),
            "txt": f"text {n} \u00e4\u20ac".encode(),
        }
        for n in range(count)
    ]


def uniform(count=COUNT):
    """Flat samples with short names: what Hugging Face's schema asks for."""
    return [
        {"__key__": f"k{n:05d}", "label.txt": f"label {n}".encode(), "n.cls": b"%d" % n, "bin": bytes([n % 256]) * n}
        for n in range(count)
    ]


def write(folder, samples, **options):
    with ShardWriter(folder / "shard-%06d.tar", max_samples=120, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer.urls


def bare(sample):
    return {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}


def members(samples):
    return [
        (f"{sample['__key__']}.{field}", data)
        for sample in samples
        for field, data in sample.items()
        if field != "__key__"
    ]


def streamed(path):
    """Without an index, as from a pipe."""
    reader = store_for(str(path)).open(str(path))
    compression = sniff(reader.read(0, 512))
    reader.close()
    with open(path, "rb") as file:
        stream = file if compression is None else decompressed(file, compression)
        return [bare(sample) for sample in SampleStream(StreamFeed(stream), str(path))]


# ---------------------------------------------------------------------------------------------------- written here


@pytest.mark.parametrize("compression", [None, "gzip", "bz2", "xz"])
def test_webdataset_reads_every_shard(tmp_path, leaky_peer, compression):
    urls = write(tmp_path, rows(), compression=compression, metadata={"about": "all"})
    assert len(urls) == 3
    found = webdataset.WebDataset(urls, shardshuffle=False)
    assert [bare(sample) for sample in found] == rows()


def test_webdataset_decodes_what_was_encoded_here(tmp_path, leaky_peer):
    values = {
        "txt": "text",
        "json": {"a": [1, 2.5, None, "x"]},
        "cls": 7,
        "npy": np.arange(6).reshape(2, 3),
        "msg": {"b": 1},
    }
    urls = write(tmp_path, [{"__key__": "k", **values}])
    (found,) = webdataset.WebDataset(urls, shardshuffle=False).decode()
    assert found["npy"].tolist() == values["npy"].tolist()
    assert {name: found[name] for name in ("txt", "json", "cls", "msg")} == {
        name: values[name] for name in ("txt", "json", "cls", "msg")
    }


@pytest.mark.parametrize("compression", BY_TAR)
def test_tar_reads_every_shard(tmp_path, compression):
    for number, url in enumerate(write(tmp_path / "in", rows(), compression=compression)):
        out = tmp_path / "out" / str(number)
        out.mkdir(parents=True)
        subprocess.run(["tar", "--extract", *TAR_FLAG[compression], "--file", url, "--directory", str(out)], check=True)
        for name, data in members(rows()[number * 120 : number * 120 + 120]):
            assert (out / name).read_bytes() == data
        listed = subprocess.run(
            ["tar", "--list", *TAR_FLAG[compression], "--file", url], check=True, capture_output=True, text=True
        )
        assert listed.stderr == ""
        assert len(listed.stdout.splitlines()) == len(members(rows()[number * 120 : number * 120 + 120]))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tarfile_reads_every_shard(tmp_path, compression):
    found = []
    for url in write(tmp_path, rows(), compression=compression):
        data = store_for(url).read_all(url)
        if compression == "zstd":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found += [(member.name, tar.extractfile(member).read()) for member in tar]
    assert found == members(rows())


def test_datasets_reads_every_plain_shard(tmp_path, leaky_peer):
    urls = write(tmp_path, uniform(), metadata={"about": "all"})
    found = datasets.load_dataset("webdataset", data_files={"train": urls}, split="train", streaming=True)
    assert [(row["__key__"], row["label.txt"], row["n.cls"], row["bin"]) for row in found] == [
        (sample["__key__"], sample["label.txt"].decode(), int(sample["n.cls"]), sample["bin"]) for sample in uniform()
    ]


def test_datasets_takes_the_folder_for_a_webdataset(tmp_path, leaky_peer):
    """The sidecars lie where its builder does not look."""
    write(tmp_path, uniform(10))
    found = list(datasets.load_dataset(str(tmp_path), split="train", streaming=True))
    assert [row["__key__"] for row in found] == [sample["__key__"] for sample in uniform(10)]


# --------------------------------------------------------------------------------------------------- written by others


def peer_sample(sample):
    return {"__key__": sample["__key__"], **{name: sample[name] for name in ("bin", "seg.png", "txt")}}


def check_read_here(paths, expected):
    ds = Dataset([str(path) for path in paths], decode=False)
    assert [bare(sample) for sample in ds] == expected
    assert len(ds) == len(expected)
    order = np.random.default_rng(1).permutation(len(expected))[:50]
    assert [bare(sample) for sample in ds[order]] == [expected[n] for n in order]
    assert [sample for path in paths for sample in streamed(path)] == expected


@pytest.mark.parametrize(
    "compress, mtime", [(None, None), (None, 0), (None, 1_700_000_000.25), ("gz", None), ("bz2", None), ("xz", None)]
)
def test_shards_of_webdatasets_tar_writer(tmp_path, compress, mtime):
    """``mtime=None`` is its default: a PAX header before each member."""
    path = tmp_path / "a.tar"
    with open(path, "wb") as file:
        writer = webdataset.TarWriter(file, compress=compress, mtime=mtime)
        for sample in rows():
            writer.write(peer_sample(sample))
        writer.close()
    check_read_here([path], rows())


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz"])
def test_shards_of_webdatasets_shard_writer(tmp_path, ending):
    with webdataset.ShardWriter(f"{tmp_path}/a-%06d{ending}", maxcount=77, verbose=0) as writer:
        for sample in rows():
            writer.write(peer_sample(sample))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 4
    check_read_here(paths, rows())
    assert len(Dataset(tmp_path)) == COUNT


def test_values_of_webdatasets_encoders(tmp_path):
    values = {
        "txt": "text",
        "json": {"a": [1, 2.5, None, "x"]},
        "cls": 7,
        "npy": np.arange(6).reshape(2, 3),
        "mp": {"b": 1},
    }
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "k", **values})
    found = Dataset(tmp_path)[0]
    assert found["npy"].tolist() == values["npy"].tolist()
    assert {name: found[name] for name in ("txt", "json", "cls", "mp")} == {
        name: values[name] for name in ("txt", "json", "cls", "mp")
    }
    assert Dataset(tmp_path).where("cls = 7 and txt = 'text'").keys() == ["k"]


@pytest.mark.parametrize(
    "layout, compression",
    [
        *((layout, None) for layout in ("ustar", "gnu", "pax", "v7", "oldgnu")),
        *(("pax", name) for name in BY_TAR if name),
    ],
)
def test_shards_of_tar(tmp_path, layout, compression):
    longest = 90 if layout in ("v7", "ustar") else 1000  # they have no room for more
    samples = [sample for sample in rows(60) if len(sample["__key__"]) < longest]
    for name, data in members(samples):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "names").write_text("\n".join(name for name, _ in members(samples)))
    path = tmp_path / "a.tar"
    create = ["tar", "--create", f"--format={layout}", *TAR_FLAG[compression], "--file", str(path)]
    subprocess.run([*create, "--directory", str(tmp_path / "in"), "--files-from", str(tmp_path / "names")], check=True)
    check_read_here([path], samples)


def test_the_same_grouping_as_webdataset(tmp_path, leaky_peer):
    """Names that test the rule: both readers give the same keys and fields, and leave out the same members."""
    names = [
        "a.jpg",
        "a.seg.PNG",
        "b.",
        "b..x",
        "d.x/c.y.z",
        "./e.txt",
        "plain",
        "d/plain",
        ".hidden",
        "d/.hidden",
        "h.txt",
        "i.txt",
    ]
    names += ["__meta__", "__meta__/x.json", "__index__.json", "d/__f__/g.txt"]
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(bytes([number])))
    theirs = [bare(sample) for sample in webdataset.WebDataset([str(path)], shardshuffle=False)]
    assert [bare(sample) for sample in Dataset(path, decode=False)] == theirs
    reader = store_for(str(path)).open(str(path))
    assert [bare(sample) for sample in SampleStream(ReaderFeed(reader), str(path))] == theirs
    reader.close()
