"""Tars whose members are in no order: indexed reads join the members of a key, streams raise InterleavedKeyError."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile

import pytest
from tests.store.servers import ranged_server

import shoal
from shoal.build import verify
from shoal.errors import DuplicateFieldError, InterleavedKeyError
from shoal.formats import webdataset
from shoal.store import store_for

PAIRS = {f"{number:03d}": {"txt": f"text {number}", "json": {"number": number}} for number in range(40)}


def members_of(samples):
    return [
        (f"{key}.{field}", (json.dumps(value) if field == "json" else value).encode())
        for key, fields in samples.items()
        for field, value in fields.items()
    ]


def make_tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def shuffled(seed=0):
    members = members_of(PAIRS)
    random.Random(seed).shuffle(members)
    return members


def by_field():
    """As ``tar cf a.tar *.txt *.json`` makes them."""
    return sorted(members_of(PAIRS), key=lambda member: member[0].rpartition(".")[2])


LAYOUTS = {"shuffled": shuffled, "by field": by_field}


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    return str(tmp_path / "a.tar") if request.param == "file" else f"memory://unsorted/{os.urandom(8).hex()}/a.tar"


def put(url, members):
    store_for(url).write_all(url, make_tar(members))
    return url


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_index_joins_the_members_of_a_key(url, layout):
    put(url, LAYOUTS[layout]())
    for _ in range(2):  # scanned, and by the cached index
        dataset = shoal.Dataset(url)
        assert len(dataset) == len(PAIRS)
        assert {sample["__key__"]: {"txt": sample["txt"], "json": sample["json"]} for sample in dataset} == PAIRS
        assert sorted(dataset.keys()) == sorted(PAIRS)
        for key in ("000", "017", "039"):
            assert dataset.get(key)["json"] == PAIRS[key]["json"]
        first = dataset[0]["__key__"]
        assert first == LAYOUTS[layout]()[0][0].partition(".")[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_belong_to_the_joined_samples(url, layout):
    put(url, LAYOUTS[layout]())
    dataset = shoal.Dataset(url)
    found = dataset.where("json.number >= 38")
    assert {sample["__key__"]: sample["json"]["number"] for sample in found} == {"038": 38, "039": 39}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_loaders_deliver_complete_samples(url, layout, shuffle):
    put(url, LAYOUTS[layout]())
    loader = shoal.DataLoader(shoal.Dataset(url), batch_size=8, shuffle=shuffle, seed=1)
    found = [(key, text) for batch in loader for key, text in zip(batch["__key__"], batch["txt"], strict=True)]
    assert sorted(found) == [(key, fields["txt"]) for key, fields in PAIRS.items()]


def test_reshard_keeps_every_pair(tmp_path):
    put(str(tmp_path / "a.tar"), shuffled())
    shoal.build.reshard(str(tmp_path / "a.tar"), str(tmp_path / "out"), max_samples=16, workers=1)
    assert {
        sample["__key__"]: {"txt": sample["txt"], "json": sample["json"]} for sample in shoal.Dataset(tmp_path / "out")
    } == PAIRS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streams_raise(layout):
    data = make_tar(LAYOUTS[layout]())
    with pytest.raises(InterleavedKeyError):
        list(webdataset.stream(io.BytesIO(data)))
    with pytest.raises(InterleavedKeyError):
        list(webdataset.stream_shards([io.BytesIO(data)]))
    assert len(list(webdataset.stream(io.BytesIO(data), group="archive"))) == len(PAIRS)


def test_the_same_key_with_the_same_fields_is_a_second_sample(url):
    put(url, [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"2"), ("b.cls", b"2"), ("a.txt", b"3"), ("a.cls", b"3")])
    assert [(sample["__key__"], sample["cls"]) for sample in shoal.Dataset(url)] == [("a", 1), ("b", 2), ("a", 3)]


def test_a_field_that_comes_twice_is_an_error(url):
    put(url, [("a.txt", b"1"), ("b.txt", b"2"), ("b.cls", b"2"), ("a.cls", b"3"), ("c.txt", b""), ("a.txt", b"3")])
    for _ in range(2):
        with pytest.raises(DuplicateFieldError):
            list(shoal.Dataset(url))


def test_verify_accepts_what_the_index_joins_and_names_it(url):
    put(url, shuffled())
    report = verify(url)
    assert report.ok
    assert "key-comes-back" in {finding.rule for finding in report.findings}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("decode", [True, False])
def test_a_shard_on_a_server_is_joined_or_refused(layout, decode):
    """A first pass over a shard without an index may read it as a stream."""
    texts = {key: fields["txt"] for key, fields in PAIRS.items()}
    with ranged_server() as server:
        server.objects["/a.tar"] = make_tar(LAYOUTS[layout]())
        dataset = shoal.Dataset(f"{server.url}/a.tar", sample_type=dict, decode=decode)
        try:
            found = list(iter(dataset))
        except InterleavedKeyError as error:
            assert "shoal index" in str(error)  # noqa: PT017 - either is right
        else:
            assert len(found) == len(PAIRS)
        indexed = shoal.Dataset(f"{server.url}/a.tar")
        assert len(indexed) == len(PAIRS)
        assert {sample["__key__"]: sample["txt"] for sample in indexed} == texts
