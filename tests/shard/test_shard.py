"""Runs of neighbouring rows read together equal rows read one by one, and damage is reported for its member."""

from __future__ import annotations

import io
import itertools
import pathlib
import tarfile
import tempfile
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.shard.watched import watched_store

import shoal
from shoal.errors import ChecksumError, DecodeError, TruncatedError
from shoal.load import predict
from shoal.shard import ShardSource
from shoal.shard._read_plan import MAX_READ_BYTES

values = st.binary(max_size=40) | st.integers(0, 300_000).map(lambda size: b"\xab" * size)
layouts = st.lists(st.dictionaries(st.sampled_from(["a", "b.c", "txt"]), values, min_size=1), min_size=2, max_size=20)


def source_of(folder: pathlib.Path | str, **options: Any) -> ShardSource:
    source = shoal.Dataset(str(folder), decode=False, **options).source
    assert isinstance(source, ShardSource)
    return source


def without_url(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


@given(layouts, st.integers(1, 25), st.booleans(), st.data())
def test_any_neighbours_of_any_layout(layout: list[dict[str, bytes]], most: int, verify: bool, data: Any) -> None:
    samples = [{"__key__": f"k{number}", **row} for number, row in enumerate(layout)]
    with tempfile.TemporaryDirectory() as folder:
        with shoal.ShardWriter(f"{folder}/x-%03d.tar", max_samples=most) as writer:
            for sample in samples:
                writer.write(sample)
        source = source_of(folder, verify=verify)
        first = data.draw(st.integers(0, len(samples) - 2))
        rows = np.arange(first, data.draw(st.integers(first + 2, len(samples))))
        for _ in range(2):
            assert without_url(source.read(rows)) == samples[first : first + len(rows)]
        source.close()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    with shoal.ShardWriter(str(tmp_path / "data" / "x-%03d.tar"), max_samples=50) as writer:
        for number in range(100):
            writer.write({"__key__": f"k{number:03d}", "bin": bytes([number]) * 50_000, "txt": f"text {number}"})
    return tmp_path / "data"


def test_they_are_read_in_few_goes_of_a_few_mebibytes() -> None:
    store = watched_store()
    with shoal.ShardWriter("watched://goes/x.tar") as writer:
        for number in range(100):
            writer.write({"__key__": f"k{number:03d}", "bin": bytes([number]) * 50_000, "txt": f"text {number}"})
    source = source_of("watched://goes")
    rows = np.arange(3, 97)
    source.shard(0)
    store.ranges.clear()
    assert [sample["bin"] for sample in source.read(rows)] == [bytes([row]) * 50_000 for row in rows.tolist()]
    sizes = [stop - start for _, start, stop in store.ranges]
    assert 3 <= len(sizes) <= 4
    assert all(size < MAX_READ_BYTES + 52_000 for size in sizes)
    assert all(one[2] < two[1] for one, two in itertools.pairwise(store.ranges))
    assert [source.estimate(rows).requests, source.estimate(rows).bytes] == [len(sizes), sum(sizes)]


@pytest.mark.parametrize("rows", [[3], [30, 3], [3, 30], [3, 4, 4, 30], [3, 30, 4, 60]])
def test_others_are_read_by_themselves(rows: list[int]) -> None:
    store = watched_store(scatters=True)
    with shoal.ShardWriter("watched://few/x.tar") as writer:
        for number in range(100):
            writer.write({"__key__": f"k{number:03d}", "bin": bytes([number]) * 50_000, "txt": f"text {number}"})
    source = source_of("watched://few")
    source.shard(0)
    store.ranges.clear()
    assert [sample["bin"][0] for sample in source.read(np.array(rows))] == rows
    assert len(store.ranges) == source.estimate(np.array(rows)).requests == len(rows)


@pytest.mark.parametrize("scatters", [False, True])
def test_what_lies_between_is_not_read(scatters: bool) -> None:
    store, file = watched_store(scatters=scatters), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, size in (("a.txt", 1), ("__meta__", 100_000), ("b.txt", 1), ("c.txt", 1)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(b"x" * size))
    store.write_all("watched://a.tar", file.getvalue())
    source = source_of("watched://a.tar")
    source.shard(0)
    store.ranges.clear()
    for rows in (np.array([0, 1]), np.array([1, 0, 2])):
        assert [sample["txt"] for sample in source.read(rows)] == [b"x"] * len(rows)
    assert store.bytes_read < 5000
    source.close()


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damage_is_told_of_its_member(folder: pathlib.Path, damage: str) -> None:
    source = source_of(folder)
    offset = int(source.shard(0).index.fields["txt"].offset[17])
    with (folder / "x-000.tar").open("r+b") as file:  # the same file, which is open
        if damage == "cut":
            file.truncate(offset)
        else:
            file.seek(offset)
            file.write(b"T")
    wrong: type[ChecksumError | TruncatedError] = ChecksumError if damage == "flip" else TruncatedError
    with pytest.raises(wrong) as caught:
        source.read(np.arange(10, 30))
    if isinstance(caught.value, ChecksumError):
        assert (caught.value.key, caught.value.field, caught.value.offset) == ("k017", "txt", offset)
    assert [sample["__key__"] for sample in source.read(np.array([15, 16]))] == ["k015", "k016"]
    source.close()


def test_a_value_that_cannot_be_decoded_is_named(folder: pathlib.Path) -> None:
    def decode(data: bytes) -> str:
        if data == b"text 60":
            raise DecodeError("no")
        return data.decode().upper()

    source = source_of(folder)
    assert [sample["txt"] for sample in source.read(np.array([48, 49, 50]), None, {"txt": decode})] == [
        "TEXT 48",
        "TEXT 49",
        "TEXT 50",
    ]
    with pytest.raises(DecodeError) as caught:
        source.read(np.arange(40, 70), None, {"txt": decode})
    assert caught.value.key == "k060"
    source.close()


def test_a_loader_in_order_reads_so(folder: pathlib.Path) -> None:
    dataset = shoal.Dataset(str(folder), decode=False)
    batches = list(shoal.DataLoader(dataset, batch_size=16, shuffle=False, collate_fn=list))
    assert without_url([sample for batch in batches for sample in batch]) == without_url(list(dataset))
    foretold = predict(shoal.DataLoader(dataset, batch_size=16, shuffle=False, collate_fn=list))
    assert foretold.requests == 8  # seven batches, one of them of two shards
