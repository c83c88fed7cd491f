"""Shards written to and read from a real S3 server, with nothing between but the store."""

from __future__ import annotations

import random

import pytest
from tests.store.servers import BUCKET, Fault

import shoal
from shoal import store
from shoal.errors import StoreError
from shoal.formats import webdataset
from shoal.store import configure, get, statistics

SAMPLES = 200


def samples():
    draw = random.Random(0)
    for number in range(SAMPLES):
        yield {"__key__": f"{number:06d}", "bin": draw.randbytes(20_000), "json": {"number": number}}


def write(root, **options):
    with shoal.ShardWriter(f"{root}/train-%06d.tar", max_samples=64, **options) as writer:
        for sample in samples():
            writer.write(sample)


def write_some(writer, count):
    with writer:
        for number, sample in enumerate(samples()):
            if number == count:
                raise KeyboardInterrupt
            writer.write(sample)


def read(root):
    return [(sample["__key__"], sample["bin"], sample["json"]["number"]) for sample in shoal.Dataset(f"{root}/")]


EXPECTED = [(sample["__key__"], sample["bin"], sample["json"]["number"]) for sample in samples()]


def test_a_dataset_is_written_to_a_bucket_and_read_from_it(s3, tmp_path):
    write(s3)
    names = [info.url.removeprefix(f"{s3}/") for info in store.list(s3)]
    assert [name for name in names if name.endswith(".tar")] == [f"train-{number:06d}.tar" for number in range(4)]
    assert not [name for name in names if "journal" in name or "staging" in name]
    same = read(s3) == EXPECTED
    assert same
    dataset = shoal.Dataset(f"{s3}/")
    assert len(dataset) == SAMPLES
    assert dataset[150]["json"] == {"number": 150}
    assert dataset.where("number >= 190")[3]["json"] == {"number": 193}


def test_the_same_bytes_as_on_disk(s3, tmp_path):
    write(s3)
    write(str(tmp_path))
    for info in store.list(str(tmp_path)):
        assert get(f"{s3}/{info.url.removeprefix(str(tmp_path)).lstrip('/')}") == get(info.url)


def test_a_run_that_was_cut_goes_on_after_its_finished_shards(s3):
    writer = shoal.ShardWriter(f"{s3}/train-%06d.tar", max_samples=64)
    with pytest.raises(KeyboardInterrupt):
        write_some(writer, 150)
    before = statistics()
    write(s3, resume=True)
    same = read(s3) == EXPECTED
    assert same
    assert (statistics() - before).requests["PUT"] < 40


def test_a_dataset_is_replaced_in_a_bucket(s3):
    write(s3)
    with shoal.ShardWriter(f"{s3}/train-%06d.tar", overwrite=True) as writer:
        writer.write({"__key__": "only", "txt": "one"})
    assert [sample["__key__"] for sample in shoal.Dataset(f"{s3}/")] == ["only"]
    assert [info.url for info in store.list(s3) if info.url.endswith(".tar")] == [f"{s3}/train-000000.tar"]


def test_an_epoch_over_a_bad_line_is_byte_exact(proxy, broken):
    write(broken)
    kinds = ["reset", "cut", "status", "fewer-bytes"]
    for number in range(12):
        path = f"train-{number % 4:06d}.tar"
        proxy.faults.append(Fault(kinds[number // 3], path=path, status=500, after=number * 60_000))
    same = read(broken) == EXPECTED
    assert same
    assert sum(proxy.happened.values()) >= 8


def test_a_shard_that_cannot_be_sent_is_not_there(proxy, broken):
    configure(f"s3://{BUCKET}", retries=0)
    proxy.faults.append(Fault("status", method="PUT", path="train-000001.tar", status=500, times=100))
    with pytest.raises(StoreError):
        write(broken)
    proxy.faults.clear()
    tars = [info.url for info in store.list(broken) if info.url.endswith(".tar")]
    assert f"{broken}/train-000001.tar" not in tars
    write(broken, resume=True)
    same = read(broken) == EXPECTED
    assert same


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_webdataset_streams_from_a_bucket_and_from_http(http, s3, compression):
    name = "x.tar.gz" if compression else "x.tar"
    with shoal.ShardWriter(f"{s3}/{name}", compression=compression) as writer:
        for sample in samples():
            writer.write(sample)
    http.objects[f"/{name}"] = get(f"{s3}/{name}")
    for url in (f"{s3}/{name}", f"{http.url}/{name}"):
        found = [(each["__key__"], each["bin"], each["json"]["number"]) for each in webdataset.stream(url)]
        same = found == EXPECTED
        assert same


def test_shards_on_an_http_server_are_read(http, s3):
    write(s3)
    for info in store.list(s3):
        http.objects[info.url.removeprefix(s3)] = get(info.url)
    found = [sample["__key__"] for sample in shoal.Dataset(f"{http.url}/train-{{000000..000003}}.tar")]
    assert found == [key for key, _, _ in EXPECTED]
