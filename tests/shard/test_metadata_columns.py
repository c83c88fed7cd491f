"""Metadata columns of MessagePack payloads equal those of decoded payloads, whatever comes first."""

from __future__ import annotations

import itertools
import tarfile
from io import BytesIO

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shoal
from shoal.errors import FieldError, QueryError
from shoal.shard._metadata_columns import (
    ColumnCollector,
    PayloadReader,
    extractor_for,
)

pack = msgspec.msgpack.encode
NAMES = st.sampled_from(["a", "b", "c", 'q"', "\x1f", "dotted.name"])
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 2.0]) | st.sampled_from(["x", "y"])
VALUES = st.recursive(
    SCALARS | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(NAMES, inner, max_size=3)
        | st.dictionaries(st.integers(0, 2), inner, min_size=1, max_size=1)
    ),
    max_leaves=5,
)
PAYLOADS = st.lists(st.dictionaries(NAMES, VALUES, max_size=4) | VALUES, min_size=1, max_size=8)


def columns_of(payloads, cuts):
    collector = ColumnCollector()
    extract = extractor_for("msgpack")
    edges = [0, *sorted(cuts), len(payloads)]
    for start, stop in itertools.pairwise(edges):
        if start < stop:
            collector.add_bytes(list(range(start, stop)), "msgpack", payloads[start:stop], extract)
    found = collector.finish(len(payloads))
    return {name: column.to_pylist() for name, column in found.items()}, set(collector.dropped)


def expected_columns(values):
    """Every scalar under its dotted name, for names under which only scalars of one kind are."""
    cells: dict[str, dict[int, list]] = {}
    other = set()

    def walk(row, name, value, depth):
        if isinstance(value, dict) and depth and all(type(key) is str for key in value):
            other.add(name)
            for key, inner in value.items():
                walk(row, f"{name}.{key}", inner, depth - 1)
        elif isinstance(value, (dict, list, bytes)):
            other.add(name)
        else:
            cells.setdefault(name, {}).setdefault(row, []).append(value)

    for row, value in enumerate(values):
        walk(row, "msgpack", value, 4)
    found = {}
    for name, rows in cells.items():
        kinds = {type(value) for seen in rows.values() for value in seen} - {type(None)}
        plain = len(kinds) < 2 or kinds == {int, float}
        known = {row: [value for value in seen if value is not None] for row, seen in rows.items()}
        if name not in other and plain and all(len(seen) < 2 for seen in known.values()):
            found[name] = [(known.get(row) or [None])[0] for row in range(len(values))]
    return found


class Cut:
    """Where an example is cut, in place of what hypothesis would draw."""

    def __init__(self, cuts):
        self.cuts = cuts

    def draw(self, _):
        return self.cuts


@settings(max_examples=300)
@given(PAYLOADS, st.data())
@example([{}, None], Cut([1]))
@example([{"a": {}}, 5, {"a": 1}], Cut([1, 2]))
def test_columns_are_those_of_decoded_payloads_however_they_are_cut(values, data):
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=4))
    found, _ = columns_of([pack(value) for value in values], cuts)
    assert found == expected_columns(values)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), SCALARS | st.binary(max_size=3), max_size=3), min_size=1))
def test_memory_views_and_bytes_give_the_same(values):
    payloads = [pack(value) for value in values]
    assert columns_of(payloads, []) == columns_of([memoryview(one) for one in payloads], [])


def test_what_is_no_payload_gives_no_values_and_harms_no_other():
    payloads = [pack({"a": 1}), b"", b"\xc1", pack({"a": 2})[:-1], pack({"a": 3, "b": b"x"}), b"\x81\xa1a\xa1\xff"]
    found, dropped = columns_of(payloads, [3])
    assert found == {"msgpack.a": [1, None, None, None, 3, None]}
    assert dropped == {"msgpack.b"}


def test_arrays_are_not_decoded():
    """Nothing as large as the array is allocated for it: what is passed over is a view of the payload."""
    reader = PayloadReader()
    payloads = [
        pack({"image": bytes(5_000_000), "inner": {"more": bytes(1000), "x": n}, "label": "cat"}) for n in (1, 2)
    ]
    parts = {part.name: part.values for part in reader.read(payloads)}
    assert parts == {".inner.x": [1, 2], ".label": ["cat", "cat"]}
    assert sorted(reader.passed) == [".image", ".inner.more"]
    struct = reader._decoder._decode(payloads[0])
    assert type(struct.f0) is msgspec.Raw
    assert type(struct.f1.f0) is msgspec.Raw


def test_maps_with_keys_that_differ_are_still_read():
    payloads = [pack({"votes": {f"k{n}": n}, "label": "x"}) for n in range(100)]
    found, _ = columns_of(payloads, range(100))
    assert found["msgpack.label"] == ["x"] * 100
    assert [found[f"msgpack.votes.k{n}"][n] for n in range(100)] == list(range(100))


@shoal.packable
class Inner:
    x: int
    arr: NDArray[np.float32]


@shoal.packable
class Sample:
    image: NDArray[np.float32]
    label: str
    confidence: float
    inner: Inner
    mask: NDArray[np.uint8] | None = None


def some(count):
    return [
        Sample(
            np.zeros(300_000 if n == 1 else 4, np.float32),
            "cat" if n % 2 else "dog",
            n / 10,
            Inner(n, np.zeros(2, np.float32)),
            None if n < 6 else np.zeros(1, np.uint8),
        )
        for n in range(count)
    ]


def test_typed_datasets_are_queried_without_opening_a_tar(tmp_path):
    dataset = shoal.write_samples(some(10), tmp_path, max_samples=3)
    for tar in tmp_path.glob("*.tar"):
        tar.rename(tar.with_suffix(".away"))
    source = shoal.Dataset(tmp_path).source
    indexes = [shoal.shard.load_index(str(path)) for path in sorted((tmp_path / ".shoal" / "index").iterdir())]
    assert [list(index.columns) for index in indexes] == [
        ["msgpack.label", "msgpack.confidence", "msgpack.inner.x", *(["msgpack.mask"] if number < 2 else [])]
        for number in range(4)
    ]
    for tar in tmp_path.glob("*.away"):
        tar.rename(tar.with_suffix(".tar"))
    assert len(source) == 10
    found = dataset.where("label = 'cat' and confidence > 0.5 and x < 9")
    assert [sample.inner.x for sample in found] == [7]
    with pytest.raises((QueryError, FieldError), match=r"not a scalar|not in the index|not indexed"):
        dataset.where("mask is null")  # None in one shard, arrays in another: null would not tell


def test_a_foreign_tar_of_payloads_is_indexed_alike(tmp_path):
    samples = some(10)
    dataset = shoal.write_samples(samples, tmp_path / "ours")
    with tarfile.open(tmp_path / "foreign.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number, sample in enumerate(samples):
            member = tarfile.TarInfo(f"{number:09d}.msgpack")
            member.size = len(sample.packed)
            tar.addfile(member, BytesIO(sample.packed))
    foreign = shoal.Dataset(tmp_path / "foreign.tar", sample_type=Sample)
    assert foreign.table().equals(dataset.table())
    assert foreign.where("confidence >= 0.3 and label = 'cat'").keys() == [
        "000000003",
        "000000005",
        "000000007",
        "000000009",
    ]


def test_a_field_of_which_nothing_is_a_payload_gives_no_columns():
    assert columns_of([b"\xc1", b""], [1]) == ({}, set())
