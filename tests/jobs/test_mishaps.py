"""What goes wrong around these jobs: the right answer or an error, and never a silent approximation."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from tests.jobs.test_vision import read_tars, write_img2dataset

import shoal
import shoal.torch


def write(folder, rows, max_samples=10):
    """Samples of these JSON objects, whose keys begin anew in each shard."""
    with shoal.ShardWriter(f"{folder}/train-%06d.tar", max_samples=max_samples) as writer:
        for number, row in enumerate(rows):
            writer.write({"__key__": f"{number % max_samples:04d}", "json": row})


WRITERS = {
    "ShardWriter": lambda folder: shoal.ShardWriter(f"{folder}/more-%06d.tar").close(),
    "ShardWriter with samples": lambda folder: write(folder, [{"n": 1}]),
    "write_samples": lambda folder: shoal.write_samples([{"txt": "one"}], folder),
    "build_shards": lambda folder: shoal.build_shards([{"__key__": "a", "txt": "one"}], folder, workers=1),
    "append": lambda folder: shoal.Dataset(folder).append([{"__key__": "a", "txt": "one"}]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writing_into_a_folder_of_downloaded_tars_is_refused(tmp_path, writer):
    folder = tmp_path / "laion"
    write_img2dataset(folder, shards=2)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(shoal.ShoalError):
        WRITERS[writer](str(folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert shoal.Dataset(str(folder)).keys() == list(read_tars(folder))


def test_a_tar_of_no_bytes_among_the_shards(tmp_path):
    write_img2dataset(tmp_path / "laion")
    keys = list(read_tars(tmp_path / "laion"))
    (tmp_path / "laion" / "00001.tar").write_bytes(b"")
    with pytest.raises(shoal.TarError) as caught:
        len(shoal.Dataset(str(tmp_path / "laion")))
    assert caught.value.shard.endswith("00001.tar")
    tolerant = shoal.Dataset(str(tmp_path / "laion"), on_error="skip")
    with pytest.warns(shoal.ShoalWarning):
        found = [sample["__key__"] for sample in tolerant]
    assert found == [key for key in keys if not key.startswith("00001")]
    assert tolerant.errors.count == 1


def test_deleting_a_view_deletes_these_samples_where_keys_come_again(tmp_path):
    write(tmp_path / "data", [{"n": number} for number in range(30)])
    ds = shoal.Dataset(str(tmp_path / "data"))
    left = ds.tombstone(ds.where("n in (3, 14, 25)"))
    expected = [number for number in range(30) if number not in (3, 14, 25)]
    assert [sample["json"]["n"] for sample in left] == expected
    assert [sample["json"]["n"] for sample in shoal.Dataset(str(tmp_path / "data"))] == expected


@pytest.mark.parametrize("reader", ["dataset", "loader"])
def test_a_field_that_does_not_decode_is_passed_over_and_counted(tmp_path, reader):
    with shoal.ShardWriter(f"{tmp_path}/data/train-%06d.tar", max_samples=5) as writer:
        for number in range(12):
            writer.write({"__key__": f"{number:04d}", "json": b"not json" if number == 7 else {"n": number}})
    ds = shoal.Dataset(str(tmp_path / "data"), on_error="skip")
    batches = ds.ordered(batch_size=4) if reader == "dataset" else ds.loader(batch_size=4)
    with pytest.warns(shoal.ShoalWarning):
        found = [row["n"] for batch in batches for row in batch["json"]]
    assert found == [number for number in range(12) if number != 7]


def test_a_query_on_a_field_that_was_added_knows_its_default(tmp_path):
    @shoal.packable
    class Flow:
        mach: float

    shoal.write_samples([Flow(number / 10) for number in range(6)], str(tmp_path / "first"))

    @shoal.packable
    class Flow:
        mach: float
        angle: float = 2.5

    shoal.write_samples([Flow(0.5, 2.5), Flow(0.6, 7.0)], str(tmp_path / "second"))
    old, new = (shoal.Dataset(str(tmp_path / name), sample_type=Flow) for name in ("first", "second"))
    for dataset in (old, new, old.concat(new), new.concat(old)):
        expected = [sample.mach for sample in dataset if sample.angle < 5]
        assert [sample.mach for sample in dataset.where("angle < 5")] == expected


def test_lists_in_json_keep_their_values_in_batches_of_tensors(tmp_path):
    rows = [{"box": [number, 0.1, 1e-9], "ids": [2**40 + number], "names": ["a", "b"]} for number in range(6)]
    write(tmp_path / "data", rows)
    ds = shoal.Dataset(str(tmp_path / "data"))
    batches = list(shoal.torch.DataLoader(ds, batch_size=4))
    found = [row for batch in batches for row in batch["json"]]
    assert [{name: np.asarray(values).tolist() for name, values in row.items()} for row in found] == rows


READERS = {
    "loader": lambda ds: ds.loader(batch_size=4, tail="uneven"),
    "ordered": lambda ds: ds.ordered(batch_size=4),
    "shuffled": lambda ds: ds.shuffled(4, seed=1),
    "batched": lambda ds: ds.batched(4),
    "sampler": lambda ds: shoal.DataLoader(ds, batch_size=4, sampler=list(range(23, -1, -1)), tail="uneven"),
    "batch_sampler": lambda ds: shoal.DataLoader(ds, batch_sampler=[list(range(n, n + 4)) for n in range(0, 24, 4)]),
}


@pytest.mark.parametrize("reader", READERS)
def test_two_ranks_share_the_samples(tmp_path, monkeypatch, reader):
    write(tmp_path / "data", [{"n": number} for number in range(24)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    counts = collections.Counter()
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        try:
            batches = list(READERS[reader](shoal.Dataset(str(tmp_path / "data"))))
        except shoal.ShoalError:
            return  # refused, which is no silent error
        counts.update(row["n"] for batch in batches for row in batch["json"])
    assert counts == dict.fromkeys(range(24), 1)


def test_two_ranks_that_filter_take_equally_many_steps_or_are_refused(tmp_path):
    write(tmp_path / "data", [{"n": number} for number in range(24)])
    kept = shoal.Dataset(str(tmp_path / "data")).filter(lambda sample: sample["json"]["n"] % 2 == 0)
    try:
        steps = [len(list(kept.loader(batch_size=2, rank=rank, world_size=2))) for rank in range(2)]
    except shoal.ShoalError:
        return
    assert steps[0] == steps[1]
