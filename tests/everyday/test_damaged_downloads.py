"""Shards that were not downloaded completely: an error every time, or skipped and counted; never half a sample."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import warnings

import pytest
from tests.store.servers import ranged_server

import shoal
from shoal.build import verify
from shoal.errors import TarError, TruncatedError
from shoal.formats import webdataset
from shoal.store import store_for

SAMPLES = [{"__key__": f"k{number}", "jpg": f"image {number}".encode(), "txt": f"text {number}"} for number in range(4)]
END = bytes(1024)


def make_tar(samples=SAMPLES, stop=None):
    """A tar of samples with two members of 1 KiB each, and an end marker; or its first ``stop`` members alone."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            for field in ("jpg", "txt"):
                data = sample[field] if isinstance(sample[field], bytes) else sample[field].encode()
                info = tarfile.TarInfo(f"{sample['__key__']}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    data = out.getvalue()
    return data if stop is None else data[: stop * 1024]


HALF = make_tar(stop=3)  # both members of the first sample, one of the second
COMPLETE = make_tar(stop=4)  # two samples, and no end marker, so nobody can know that they are complete
DAMAGED = {"no bytes": b"", "half a sample": HALF, "no end marker": COMPLETE}
COMPRESSIONS = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.xz": lzma.compress}
STORES = ("file", "memory")


@pytest.fixture(params=STORES)
def place(request, tmp_path):
    return str(tmp_path) if request.param == "file" else f"memory://everyday/{os.urandom(8).hex()}"


def put(url, data):
    store_for(url).write_all(url, data)
    return url


def opened(url, **options):
    """Every way to the samples of a shard."""
    return {
        "len": lambda: len(shoal.Dataset(url, **options)),
        "index": lambda: shoal.Dataset(url, **options)[0],
        "iterate": lambda: list(iter(shoal.Dataset(url, **options))),
        "ordered": lambda: list(shoal.Dataset(url, **options).ordered(batch_size=2)),
        "load_dataset": lambda: list(shoal.load_dataset(url, split="train", **options)),
        "loader": lambda: list(shoal.DataLoader(shoal.Dataset(url, **options), batch_size=2)),
        "keys": lambda: shoal.Dataset(url, **options).keys(),
    }


@pytest.mark.parametrize("way", sorted(opened("")))
@pytest.mark.parametrize("ending", COMPRESSIONS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_truncated_shard_is_an_error_every_time(place, damage, ending, way):
    url = put(f"{place}/a{ending}", COMPRESSIONS[ending](DAMAGED[damage]))
    for _ in range(3):
        with pytest.raises(TruncatedError) as caught:
            opened(url)[way]()
        assert caught.value.shard is not None


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_folder_with_one_truncated_shard_is_an_error_every_time(place, damage):
    put(f"{place}/a-0.tar", make_tar())
    put(f"{place}/a-1.tar", DAMAGED[damage])
    for _ in range(2):
        with pytest.raises(TruncatedError, match=r"a-1\.tar"):
            list(shoal.Dataset(place))
        with pytest.raises(TruncatedError, match=r"a-1\.tar"):
            len(shoal.Dataset(place))


@pytest.mark.parametrize("ending", COMPRESSIONS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_skipping_counts_the_damage_and_gives_no_half_sample(place, damage, ending):
    url = put(f"{place}/a{ending}", COMPRESSIONS[ending](DAMAGED[damage]))
    for _ in range(2):
        dataset = shoal.Dataset(url, on_error="skip")
        with pytest.warns(shoal.ShoalWarning, match="damaged"):
            found = list(dataset)
        assert [sample["__key__"] for sample in found] == ([] if damage == "no bytes" else ["k0"])
        assert all(set(sample) >= {"jpg", "txt"} for sample in found)
        assert dataset.errors.count == 1


@pytest.mark.parametrize("damage", ["half a sample", "no end marker"])
def test_a_stream_raises_after_the_complete_samples(damage):
    for read in (webdataset.stream, webdataset.stream_shards):
        samples = read(io.BytesIO(DAMAGED[damage]) if read is webdataset.stream else [io.BytesIO(DAMAGED[damage])])
        assert next(samples)["__key__"] == "k0"
        with pytest.raises(TruncatedError):
            next(samples)
    with pytest.raises(TruncatedError):
        webdataset.parse(io.BytesIO(DAMAGED[damage]))


@pytest.mark.parametrize("ending", COMPRESSIONS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_truncated_shard_on_a_server(damage, ending):
    with ranged_server() as server:
        server.objects[f"/a{ending}"] = COMPRESSIONS[ending](DAMAGED[damage])
        url = f"{server.url}/a{ending}"
        for way in sorted(opened("")):
            with pytest.raises(TruncatedError):
                opened(url)[way]()
        with pytest.warns(shoal.ShoalWarning, match="damaged"):
            found = list(iter(shoal.Dataset(url, on_error="skip")))
        assert [sample["__key__"] for sample in found] == ([] if damage == "no bytes" else ["k0"])


@pytest.mark.parametrize("damage", DAMAGED)
def test_verify_calls_it_damaged(place, damage):
    put(f"{place}/a.tar", DAMAGED[damage])
    for _ in range(2):
        report = verify(f"{place}/a.tar")
        assert not report.ok


@pytest.mark.parametrize("ending", COMPRESSIONS)
@pytest.mark.parametrize("blocks", [1, 2, 20])
def test_a_shard_that_holds_only_its_end_marker_is_empty(place, ending, blocks):
    url = put(f"{place}/a{ending}", COMPRESSIONS[ending](bytes(512 * blocks)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(shoal.Dataset(url)) == 0
        assert list(shoal.Dataset(url)) == []
        put(f"{place}/b{ending}", COMPRESSIONS[ending](make_tar()))
        assert len(shoal.Dataset(place)) == 4


def test_a_shard_with_one_block_of_zeros_at_its_end_is_complete(place):
    assert len(shoal.Dataset(put(f"{place}/a.tar", make_tar(stop=8) + bytes(512)))) == 4


@pytest.mark.parametrize("cut", range(0, 8 * 1024 + 512, 512))
def test_every_cut_is_noticed(tmp_path, cut):
    """With an index of the complete shard, and without one."""
    path = put(str(tmp_path / "a.tar"), make_tar()[:cut])
    with pytest.raises(TarError):
        list(shoal.Dataset(path))


@pytest.mark.parametrize("size", [0, 1024, 3 * 1024, 8 * 1024])
def test_a_shard_that_was_truncated_after_it_was_indexed(tmp_path, size):
    shoal.write_samples(SAMPLES, tmp_path / "data")
    (path,) = (tmp_path / "data").glob("*.tar")
    os.truncate(path, size)
    for _ in range(2):
        with pytest.raises(shoal.ShoalError):
            list(shoal.Dataset(tmp_path / "data"))
        with pytest.raises(shoal.ShoalError):
            shoal.Dataset(tmp_path / "data")[0]
    assert not verify(str(tmp_path / "data")).ok


def test_an_empty_shard_says_nothing_of_the_others(place):
    @shoal.packable
    class Point:
        x: int

    put(f"{place}/0.tar", END)
    put(f"{place}/1.tar", END)
    shoal.write_samples([Point(1), Point(2)], f"{place}/w/a.tar")
    put(f"{place}/2.tar", store_for(place).read_all(f"{place}/w/a.tar"))
    shards = [f"{place}/{number}.tar" for number in range(3)]
    assert list(shoal.Dataset(shards, sample_type=Point)) == [Point(1), Point(2)]
    assert [batch.x for batch in shoal.Dataset(shards, sample_type=Point).ordered(batch_size=2)] == [[1, 2]]
    assert [sample.x for sample in shoal.Dataset(shards)] == [1, 2]
    put(f"{place}/0.jsonl", b"")
    put(f"{place}/1.jsonl", b'{"a": 1, "b": 2}\n')
    lines = shoal.Dataset([f"{place}/{number}.jsonl" for number in range(2)])
    assert lines.fields == ("a", "b")
    assert [sample["b"] for sample in lines.columns(["b"])] == [2]
