"""A sample that a view leaves out is not read: its damage harms nobody."""

from __future__ import annotations

import tarfile
import warnings

import pytest

import shoal
from shoal.build import reshard

COUNT, BAD = 40, "k0017"

VIEWS = {
    "exclude": lambda ds: ds.exclude([BAD]),
    "tombstone": lambda ds: ds.tombstone([BAD]),
    "where": lambda ds: ds.where(f"__key__ <> '{BAD}'"),
    "select": lambda ds: ds.select([row for row in range(COUNT) if row != 17]),
    "columns": lambda ds: ds.exclude([BAD]).columns(["json", "txt"]),
}

READERS = {
    "iterate": lambda ds, _: [sample["__key__"] for sample in ds],
    "ordered": lambda ds, _: [key for batch in ds.ordered(batch_size=7) for key in batch["__key__"]],
    "listed": lambda ds, _: [sample["__key__"] for samples in ds.listed(7) for sample in samples],
    "slice": lambda ds, _: [sample["__key__"] for sample in ds[:]],
    "loader": lambda ds, _: [key for batch in ds.loader(batch_size=7) for key in batch["__key__"]],
    "shuffled": lambda ds, _: sorted(key for batch in ds.shuffled(7, seed=1) for key in batch["__key__"]),
    "arrow": lambda ds, _: ds.to_arrow()["__key__"].to_pylist(),
    "filter": lambda ds, _: [sample["__key__"] for sample in ds.filter(lambda sample: True)],
    "process_shards": lambda ds, _: [key for keys in ds.process_shards(keys_of).results.values() for key in keys],
    "concat": lambda ds, _: [sample["__key__"] for sample in ds.concat(ds)][: COUNT - 1],
    "write_samples": lambda ds, out: shoal.write_samples(ds, out).keys(),
    "reshard": lambda ds, out: reshard(ds, out, workers=1) and shoal.Dataset(out).keys(),
    "build_shards": lambda ds, out: shoal.build_shards(ds, out, workers=1) and shoal.Dataset(out).keys(),
}


def keys_of(samples):
    return [sample["__key__"] for sample in samples]


def write(folder):
    with shoal.ShardWriter(f"{folder}/train-%06d.tar", max_samples=15) as writer:
        for number in range(COUNT):
            key = f"k{number:04d}"
            json = b"not json" if key == BAD else {"width": number}
            writer.write({"__key__": key, "json": json, "cls": number % 3, "txt": "some text"})


def flip(folder):
    """Change a byte of the bad sample's text."""
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            places = [member.offset_data for member in tar if member.name == f"{BAD}.txt"]
        for place in places:
            data = bytearray(path.read_bytes())
            data[place] ^= 1
            path.write_bytes(data)


@pytest.mark.parametrize(
    "view, reader",
    [("exclude", reader) for reader in READERS] + [(view, "iterate") for view in VIEWS if view != "exclude"],
)
@pytest.mark.parametrize("damage", ["undecodable", "flipped"])
def test_what_is_left_out_is_not_read(tmp_path, damage, view, reader):
    write(tmp_path / "data")
    if damage == "flipped":
        flip(tmp_path / "data")
    whole = shoal.Dataset(str(tmp_path / "data"))
    with pytest.raises(shoal.ShoalError) as caught:
        list(whole)
    assert caught.value.key == BAD
    keys = [f"k{number:04d}" for number in range(COUNT) if f"k{number:04d}" != BAD]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert READERS[reader](VIEWS[view](whole), str(tmp_path / "out")) == keys


def test_damage_in_view_is_still_an_error(tmp_path):
    write(tmp_path / "data")
    view = shoal.Dataset(str(tmp_path / "data")).exclude(["k0003"])
    found = []
    with pytest.raises(shoal.DecodeError) as caught:
        found.extend(sample["__key__"] for sample in view)
    assert caught.value.key == BAD
    assert found == [key for key in (f"k{number:04d}" for number in range(len(found) + 1)) if key != "k0003"]
