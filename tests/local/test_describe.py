"""Data that is added to an index where it is."""

from __future__ import annotations

import pytest
from tests.local.samples import samples

import shoal
from shoal.errors import (
    OptionError,
)
from shoal.local import LocalIndex, Repo, verify_entry


def test_other_formats_are_added_where_they_lie_and_inserted_as_samples(tmp_path):
    index = LocalIndex("memory://")
    shoal.write_samples([{"txt": f"number {number}", "cls": number} for number in range(5)], tmp_path / "tars")
    shoal.Dataset(tmp_path / "tars").to_parquet(tmp_path / "tables" / "train.parquet")
    added = index.insert_dataset(str(tmp_path / "tables"), name="added")
    assert (added.samples, list(added.splits), len(added.checksums)) == (None, ["train"], 1)
    assert added.open()[3]["cls"] == 3
    assert [check.ok for check in verify_entry(added)] == [True]
    assert index.search("added")[0] == added
    entry = Repo(tmp_path / "repo", index=index).insert(str(tmp_path / "tables"), name="inserted")
    assert entry.samples == 5
    assert [sample["cls"] for sample in entry.open()] == [0, 1, 2, 3, 4]


def test_data_too_large_to_hash_has_the_address_of_where_it_is(tmp_path):
    index = LocalIndex("memory://")
    shoal.write_samples(samples(), tmp_path / "data")
    entry = index.insert_dataset(tmp_path / "data", name="pets", hashed=False)
    assert (entry.checksums, entry.samples) == ({}, 5)
    assert entry.cid != index.insert_dataset(tmp_path / "data", name="hashed").cid
    assert index.insert_dataset(tmp_path / "data", name="pets", hashed=False) == entry
    shoal.write_samples(samples(7), tmp_path / "data", overwrite=True)
    assert index.insert_dataset(tmp_path / "data", name="pets", hashed=False).version == "1.1.0"


@pytest.mark.parametrize(
    "data", ["filtered", "selected", "mixture", "nothing", 7, [], object(), "missing"], ids=lambda data: str(data)[:8]
)
def test_what_is_no_dataset_in_files_is_not_added(data, tmp_path):
    index = LocalIndex("memory://")
    written = shoal.write_samples(samples(), tmp_path / "data")
    views = {
        "filtered": lambda: written.filter(lambda sample: True),
        "selected": lambda: written.select([1, 2]),
        "mixture": lambda: shoal.concat([written, written]),
        "nothing": lambda: None,
        "missing": lambda: str(tmp_path / "missing.tar"),
    }
    value = views[data]() if isinstance(data, str) else data
    with pytest.raises((OptionError, FileNotFoundError)):
        index.insert_dataset(value, name="pets")
    assert list(index.list_datasets()) == []
