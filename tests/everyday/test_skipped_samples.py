"""``on_error`` and ``error_budget`` mean the same wherever samples are read, decoded, mapped or loaded."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
import shoal.torch
from shoal.errors import ErrorBudgetExceeded, OptionError, ShoalError
from shoal.formats import webdataset, write_format

COUNT, BAD = 12, 5


def write(folder: Path) -> Path:
    """Twelve samples, one of which is changed later."""
    with shoal.ShardWriter(folder / "a-%06d.tar", max_samples=4) as writer:
        for number in range(COUNT):
            broken = number == BAD and folder.name == "decoding"
            value = b"{" if broken else json.dumps({"n": number}).encode()
            writer.write({"__key__": f"k{number:02d}", "cls": number, "json": value})
    return folder


def decoding(folder: Path) -> dict[str, Any]:
    """A field that does not decode."""
    return {"path": write(folder / "decoding")}


def reading(folder: Path) -> dict[str, Any]:
    """A changed byte in a tar."""
    path = write(folder / "reading")
    shard = path / "a-000001.tar"
    data, stamp = bytearray(shard.read_bytes()), shard.stat()
    data[data.index(b'{"n": 5}') + 1] ^= 1
    shard.write_bytes(bytes(data))
    os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return {"path": path}


def mapping(folder: Path) -> dict[str, Any]:
    """A function that fails."""

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["cls"] == BAD:
            raise RuntimeError("five")
        return sample

    return {"path": write(folder / "mapping"), "map": fail}


DAMAGE = {"reading": reading, "decoding": decoding, "mapping": mapping}


def opened(made: dict[str, Any], **options: Any) -> shoal.Dataset[Any]:
    dataset = shoal.Dataset(made["path"], **options)
    return dataset.map(made["map"]) if "map" in made else dataset


def numbers(values: Any) -> list[int]:
    values = list(values)
    if values and isinstance(values[0], dict) and np.ndim(values[0]["cls"]):
        return [int(number) for batch in values for number in batch["cls"]]
    return [int(sample["cls"]) for sample in values]


WAYS: dict[str, Callable[[shoal.Dataset[Any]], Any]] = {
    "iteration": lambda ds: ds,
    "a view": lambda ds: ds.select(range(COUNT)),
    "a view of some": lambda ds: ds.select([11, 5, 4, 0]),
    "ordered": lambda ds: ds.ordered(4),
    "shuffled": lambda ds: ds.shuffled(4, seed=1),
    "shuffled samples": lambda ds: ds.shuffled(seed=1),
    "batched": lambda ds: ds.batched(4),
    "unbatched": lambda ds: ds.batched(4).unbatched(),
    "a format": lambda ds: ds.with_format("numpy").ordered(4),
    "to_pandas": lambda ds: ds.to_pandas().to_dict("records"),
    "concat": lambda ds: shoal.concat([ds, ds]),
    "loader": lambda ds: ds.loader(batch_size=4, num_workers=0),
    "DataLoader": lambda ds: shoal.DataLoader(ds, batch_size=4, shuffle=True, num_workers=2),
    "single samples": lambda ds: shoal.DataLoader(ds, batch_size=None, num_workers=0),
    "batch": lambda ds: ds.batch(4),
    "torch": lambda ds: shoal.torch.DataLoader(ds, batch_size=4, num_workers=0),
    "a sampler": lambda ds: shoal.DataLoader(ds, batch_size=4, sampler=range(COUNT), num_workers=0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_sample_that_fails_is_skipped_and_reported(tmp_path: Path, kind: str, way: str) -> None:
    made = DAMAGE[kind](tmp_path)
    with pytest.raises((ShoalError, RuntimeError)):
        numbers(WAYS[way](opened(made)))
    with pytest.warns(shoal.ShoalWarning, match=r"passed over|skipped"):
        found = numbers(WAYS[way](opened(made, on_error="skip", error_budget=3)))
    expected = [0, 4, 11] if way == "a view of some" else [number for number in range(COUNT) if number != BAD]
    assert sorted(found) == sorted(expected * (2 if way == "concat" else 1))


@pytest.mark.parametrize("way", ["iteration", "ordered", "DataLoader", "single samples", "to_pandas"])
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("budget", [0, 0.05])
def test_more_than_the_budget_is_an_error(tmp_path: Path, kind: str, way: str, budget: float) -> None:
    made = DAMAGE[kind](tmp_path)
    with pytest.raises(ErrorBudgetExceeded, match="at most 0"):
        numbers(WAYS[way](opened(made, on_error="skip", error_budget=budget)))
    with pytest.warns(shoal.ShoalWarning):
        assert len(numbers(WAYS[way](opened(made, on_error="skip", error_budget=0.5)))) == COUNT - 1


@pytest.mark.parametrize("way", ["iteration", "single samples"])
def test_the_budget_is_that_of_one_pass(tmp_path: Path, way: str) -> None:
    dataset = opened(decoding(tmp_path), on_error="skip", error_budget=1)
    passes = WAYS[way](dataset)
    for _ in range(3):
        with pytest.warns(shoal.ShoalWarning):
            assert len(numbers(passes)) == COUNT - 1
    if way == "iteration":
        assert dataset.errors.count == 3


@pytest.mark.parametrize("way", ["iteration", "DataLoader"])
def test_by_default_a_hundredth_may_fail_but_one_at_least(tmp_path: Path, way: str) -> None:
    with shoal.ShardWriter(tmp_path / "a-%06d.tar") as writer:
        for number in range(200):
            writer.write({"__key__": f"k{number:03d}", "cls": number})

    def opened(bad: int) -> Any:
        def fail(sample: dict[str, Any]) -> dict[str, Any]:
            return {**sample, "cls": sample["cls"] // (sample["cls"] >= bad)}

        return shoal.Dataset(tmp_path, on_error="skip").map(fail)

    with pytest.warns(shoal.ShoalWarning):
        assert len(numbers(WAYS[way](opened(2)))) == 198
    with pytest.raises(ErrorBudgetExceeded, match="at most 2"):
        numbers(WAYS[way](opened(3)))


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("way", ["iteration", "DataLoader"])
def test_quarantine_writes_each_one_down(tmp_path: Path, kind: str, way: str) -> None:
    notes = tmp_path / "notes.jsonl"
    dataset = opened(DAMAGE[kind](tmp_path), on_error="quarantine", quarantine=str(notes))
    with pytest.warns(shoal.ShoalWarning):
        assert len(numbers(WAYS[way](dataset))) == COUNT - 1
    (line,) = map(json.loads, notes.read_text().splitlines())
    assert "k05" in f"{line['key']} {line['problem']}"


def test_what_a_loader_is_given_comes_before_the_dataset(tmp_path: Path) -> None:
    made = decoding(tmp_path)
    with pytest.raises(ShoalError):
        numbers(opened(made, on_error="skip").loader(batch_size=4, on_error="raise"))
    with pytest.raises(ErrorBudgetExceeded):
        numbers(opened(made, on_error="skip", error_budget=5).loader(batch_size=4, error_budget=0))
    with pytest.warns(shoal.ShoalWarning):
        assert len(numbers(opened(made).loader(batch_size=4, on_error="skip"))) == COUNT - 1


@pytest.mark.parametrize("kind", DAMAGE)
def test_one_sample_that_is_asked_for_is_never_skipped(tmp_path: Path, kind: str) -> None:
    dataset = opened(DAMAGE[kind](tmp_path), on_error="skip")
    for read in (lambda: dataset[BAD], lambda: dataset[4:6], lambda: dataset.get("k05")):
        with pytest.raises((ShoalError, RuntimeError)):
            read()


def test_a_loader_that_is_left_early_says_what_it_skipped(tmp_path: Path) -> None:
    loader = opened(decoding(tmp_path), on_error="skip").loader(batch_size=4, num_workers=0)
    batches = iter(loader)
    assert len(list(itertools.islice(batches, 2))) == 2
    with pytest.warns(shoal.ShoalWarning, match="skipped 1 sample; the first: .*k05"):
        batches.close()  # type: ignore[attr-defined]


READERS: dict[str, Callable[..., Any]] = {
    "parse": webdataset.parse,
    "stream": lambda path, **options: list(webdataset.stream(path, **options)),
    "grouped": lambda path, **options: webdataset.parse(path, rule=webdataset.KeyRule(group="archive"), **options),
}


@pytest.mark.parametrize("name", READERS)
def test_streams_of_tars_skip_what_does_not_decode(tmp_path: Path, name: str) -> None:
    path = decoding(tmp_path)["path"] / "a-000001.tar"
    options: dict[str, Any] = {"on_decode_error": "raise"}
    with pytest.raises(ShoalError):
        READERS[name](path, **options)
    with pytest.warns(shoal.ShoalWarning, match="DecodeError"):
        found = READERS[name](path, on_error="skip", **options)
    assert [sample["__key__"] for sample in found] == ["k04", "k06", "k07"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", shoal.ShoalWarning)
        with pytest.raises(ErrorBudgetExceeded):
            READERS[name](path, on_error="skip", error_budget=0, **options)
    with pytest.raises(OptionError, match="error_budget"):
        READERS[name](path, on_error="skip", error_budget=0.5)


def test_other_formats_skip_what_does_not_decode(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.json").write_bytes(b"{" if number == 2 else b"{}")
    dataset = shoal.Dataset(tmp_path, format="raw", on_error="skip")
    with pytest.warns(shoal.ShoalWarning):
        assert len(list(dataset)) == 3


ROWS = [{"n": number, "text": f"text {number}"} for number in range(6)]


@pytest.mark.parametrize(
    "ending, kept", [("csv", 17), ("jsonl", 17), ("tfrecord", 17), ("jsonl.gz", 18), ("parquet", 12), ("arrow", 12)]
)
@pytest.mark.parametrize("way", ["iteration", "list", "ordered", "DataLoader", "single samples", "torch", "to_arrow"])
def test_truncated_files_of_other_formats_are_skipped(tmp_path: Path, ending: str, kept: int, way: str) -> None:
    for number in range(3):
        write_format(f"{tmp_path}/{number}.{ending}", ROWS)
    data = (tmp_path / f"1.{ending}").read_bytes()
    (tmp_path / f"1.{ending}").write_bytes(data[:-8])
    ways: dict[str, Callable[[Any], int]] = {
        "iteration": lambda ds: sum(1 for _ in ds),
        "list": lambda ds: len(list(ds)),
        "ordered": lambda ds: sum(len(batch["n"]) for batch in ds.ordered(batch_size=4)),
        "DataLoader": lambda ds: sum(len(batch["n"]) for batch in shoal.DataLoader(ds, batch_size=4)),
        "single samples": lambda ds: sum(1 for _ in shoal.DataLoader(ds, batch_size=None)),
        "torch": lambda ds: sum(len(batch["n"]) for batch in shoal.torch.DataLoader(ds, batch_size=4)),
        "to_arrow": lambda ds: ds.to_arrow().num_rows,
    }
    with pytest.raises(shoal.ShoalError, match=rf"1\.{ending}"):
        ways[way](shoal.Dataset(tmp_path))
    with pytest.warns(shoal.ShoalWarning, match=rf"1 (damaged place|sample).*1\.{ending}"):
        assert ways[way](shoal.Dataset(tmp_path, on_error="skip")) == kept


@shoal.packable
class Row:
    """A typed sample."""

    n: int


def test_typed_samples_that_do_not_decode_are_skipped(tmp_path: Path) -> None:
    with shoal.ShardWriter(tmp_path / "a-%06d.tar") as writer:
        for number in range(6):
            payload = b"\xc1" if number == 3 else b"\x81\xa1n" + bytes([number])
            writer.write({"__key__": f"k{number}", "msgpack": payload})
    for ways in (list, lambda ds: [row for batch in ds.ordered(2) for row in batch]):
        dataset: Any = shoal.Dataset(tmp_path, sample_type=Row, on_error="skip")
        with pytest.warns(shoal.ShoalWarning):
            assert [row.n for row in ways(dataset)] == [0, 1, 2, 4, 5]
    with pytest.warns(shoal.ShoalWarning):
        batches = list(shoal.Dataset(tmp_path, sample_type=Row, on_error="skip").loader(batch_size=2, num_workers=0))
    assert [n for batch in batches for n in np.asarray(batch.n).tolist()] == [0, 1, 2, 4, 5]


WRONG = [-1, 1.0, 1.5, -0.1, float("nan"), True, "many"]


@pytest.mark.parametrize("budget", WRONG)
def test_a_wrong_budget_is_an_error_everywhere(tmp_path: Path, budget: Any) -> None:
    path = write(tmp_path / "fine")
    calls: list[Callable[[], Any]] = [
        lambda: shoal.Dataset(path, on_error="skip", error_budget=budget),
        lambda: shoal.DataLoader(range(3), on_error="skip", error_budget=budget),
        lambda: webdataset.parse(path / "a-000000.tar", on_error="skip", error_budget=budget),
        lambda: shoal.build_shards([{"cls": 1}], tmp_path / "out", error_budget=budget),
    ]
    for call in calls:
        with pytest.raises(OptionError, match="error_budget") as caught:
            call()
        assert isinstance(caught.value, ValueError)


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[list[Any]]]:
    """Run a function on each of two ranks; return what each has."""

    def run(function: Callable[[], Any]) -> list[list[Any]]:
        results = []
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            monkeypatch.setenv("WORLD_SIZE", "2")
            results.append(list(function()))
        return results

    return run


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_all_ranks_take_as_many_steps(tmp_path: Path, on_ranks: Any, kind: str, batch_size: int) -> None:
    made = DAMAGE[kind](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", shoal.ShoalWarning)
        for way in ("loader", "ordered"):

            def batches(way: str = way) -> Iterator[Any]:
                dataset = opened(made, on_error="skip")
                yield from dataset.ordered(batch_size) if way == "ordered" else dataset.loader(batch_size=batch_size)

            first, second = on_ranks(batches)
            assert len(first) == len(second)
            assert set(numbers([*first, *second])) == set(range(COUNT)) - {BAD}
