"""What describe says is what counting the samples gives, and it reads no tar."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shoal
from shoal.dataset import Summary

COUNTER = itertools.count()


def written(root, samples, **options):
    with shoal.ShardWriter(f"{root}/data-%06d.tar", **options) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"k{number}", **sample})
    return shoal.Dataset(root)


def some(count):
    return [
        {"json": {"width": n, "name": "ab"[n % 2]}, "bin": b"x" * n, **({"txt": "t"} if n % 3 == 0 else {})}
        for n in range(count)
    ]


def test_fields_and_columns_of_the_whole(tmp_path):
    found = written(tmp_path, some(10), max_samples=4).describe()
    assert (found.samples, found.shards) == (10, 3)
    fields = {one.name: one for one in found.fields}
    assert (fields["bin"].samples, fields["bin"].bytes, fields["bin"].type) == (10, 45, "bytes")
    assert (fields["txt"].samples, fields["txt"].mean_bytes, fields["txt"].type) == (4, 1.0, "text")
    columns = {one.name: one for one in found.columns}
    width = columns["json.width"]
    assert (width.type, width.min, width.max, width.mean, width.distinct, width.nulls) == ("int64", 0, 9, 4.5, 10, 0)
    assert columns["json.name"].top == (("a", 5), ("b", 5))
    assert columns["txt"].nulls == 6
    assert found.bytes == sum(one.bytes for one in found.fields)


def test_only_the_samples_in_view_count(tmp_path):
    dataset = written(tmp_path, some(10), max_samples=4)
    found = dataset.where("name = 'b'").select([4, 0]).describe()  # 9 and 1
    assert (found.samples, found.shards) == (2, 2)
    assert {one.name: one.bytes for one in found.fields}["bin"] == 10
    assert {one.name: one.top for one in found.columns}["json.name"] == (("b", 2),)
    with pytest.raises(TypeError, match="filtered"):
        dataset.filter(bool).describe()


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["x", "y", None]), st.binary(max_size=9)), min_size=1),
    st.data(),
)
def test_it_counts_as_a_loop_does(rows, data):
    root = f"memory://describe/{next(COUNTER)}"
    dataset = written(root, [{"cls": n, "json": {"s": s}, "bin": b} for n, s, b in rows], max_samples=3)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True, min_size=1))
    found = dataset.select(chosen).describe()
    kept = [rows[at] for at in chosen]
    assert found.samples == len(kept)
    assert next(one for one in found.fields if one.name == "bin").bytes == sum(len(b) for _, _, b in kept)
    columns = {one.name: one for one in found.columns}
    numbers = [n for n, _, _ in kept]
    assert (columns["cls"].min, columns["cls"].max) == (min(numbers), max(numbers))
    assert columns["cls"].mean == pytest.approx(sum(numbers) / len(numbers))
    texts = [s for _, s, _ in kept if s is not None]
    assert columns["json.s"].nulls == len(kept) - len(texts)
    assert dict(columns["json.s"].top) == {text: texts.count(text) for text in set(texts)}


def test_a_description_is_a_value_that_reads_well(tmp_path):
    @shoal.packable
    class Typed:
        image: NDArray[np.uint8]
        label: str
        ok: bool

    dataset = shoal.write_samples(
        [Typed(np.zeros(9, np.uint8), f"a long label of number {n}", n > 1) for n in range(3)], tmp_path
    )
    found = dataset.describe()
    text = str(found)
    assert text.splitlines()[0].startswith("3 samples in 1 shard, ")
    assert "Typed@1.0.0(image: array[uint8], label: str, ok: bool)" in text
    assert "true" in text.lower()
    assert "a long label of num…" in text
    again = json.loads(json.dumps(found.to_dict()))
    assert again["columns"][1]["top"] == [[False, 2], [True, 1]]
    assert again["fields"][0]["mean_bytes"] == found.fields[0].mean_bytes
    assert found == dataset.describe()
    assert isinstance(found, Summary)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.samples = 5


def test_columns_that_an_index_lacks_are_named(tmp_path):
    samples = [{"json": {"a": n if n != 3 else "x", "b": n}} for n in range(4)]
    found = written(tmp_path, samples, max_samples=2).describe()
    assert [one.name for one in found.columns] == ["json.b"]
    assert [name for name, _ in found.left_out] == ["json.a"]
    assert found.to_dict()["left_out"]["json.a"]


def test_nothing_in_view_and_columns_of_nulls(tmp_path):
    dataset = written(tmp_path, [{"json": {"a": None, "b": 1.5}} for _ in range(3)])
    columns = {one.name: one for one in dataset.describe().columns}
    assert (columns["json.a"].nulls, columns["json.a"].distinct, columns["json.a"].top) == (3, 0, ())
    empty = dataset.select([]).describe()
    assert (empty.samples, empty.shards, empty.bytes) == (0, 0, 0)
    assert "0 samples in 0 shards" in str(empty)
