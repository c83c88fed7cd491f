"""bench, dataload and plan: what is measured, what loaders did, and what they would do."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shoal


@pytest.fixture
def many(tmp_path) -> Path:
    """A thousand samples in four shards."""
    root = tmp_path / "many"
    with shoal.ShardWriter(root / "train-%06d.tar", max_samples=250) as writer:
        for number in range(1000):
            writer.write({"bin": bytes(500), "cls": number})
    return root


def test_all_is_read_once_an_epoch(run, many):
    facts = run("dataload", many, "--batch-size", 30, "--shuffle", "--seed", 3, "--epochs", 2, "--json").json
    assert (facts["batches"], facts["samples"]) == (2 * 34, 2000)
    assert facts["bytes"] >= 2000 * 500
    assert facts["samples_per_second"] > 0
    assert facts["interrupted"] is False
    assert facts["shuffle_quality"] > 0.9
    assert 0 < facts["first_batch"] <= facts["seconds"]
    assert re.fullmatch(r"(read|map|collate|consumer)-bound, \d+ % wait", facts["bound_by"])


def test_it_stops_when_told(run, many):
    facts = run("dataload", many, "--batch-size", 10, "--epochs", 100, "--max-batches", 7, "--json").json
    assert (facts["batches"], facts["samples"]) == (7, 70)


@pytest.mark.parametrize("workers", [0, 1])
def test_given_settings_are_kept(run, many, workers):
    facts = run("dataload", many, "--workers", workers, "--prefetch", 3, "--json").json
    assert (facts["workers"], facts["prefetch"]) == (workers, 3)


def test_a_rank_reads_its_part(run, many):
    samples = [
        run("dataload", many, "--rank", rank, "--world-size", 3, "--tail", "uneven", "--json").json["samples"]
        for rank in range(3)
    ]
    assert samples == [334, 333, 333]
    assert run("dataload", many, "--world-size", 3, "--json").json["repeated"] == 0
    assert run("dataload", many, "--rank", 2, "--world-size", 3, "--json").json["repeated"] == 1


def test_bytes_or_values(run, many):
    decoded = run("dataload", many, "--decode", "yes", "--workers", 0, "--json").json
    raw = run("dataload", many, "--decode", "no", "--workers", 0, "--json").json
    assert decoded["samples"] == raw["samples"] == 1000
    assert run("dataload", many, "--decode", "frob").code == 2


def test_the_summary_says_it_in_words(run, many):
    done = run("dataload", many, "--batch-size", 100, "--workers", 1)
    names = [line.partition("  ")[0] for line in done.out.splitlines()]
    assert names[:7] == ["rate", "read", "bound by", "waited", "work", "first batch", "settings"]
    assert "1,000 samples" in done.out
    assert done.err == ""  # nobody looks at a terminal


def test_the_steps_of_autotune_are_shown(run, many):
    done = run("dataload", many, "--batch-size", 1, "--epochs", 3)
    assert "autotune" in done.out
    facts = run("dataload", many, "--batch-size", 1, "--epochs", 3, "--json").json
    assert {"workers", "prefetch", "rate", "wait_share"} == set(facts["tuning"][0])


def test_an_empty_dataset_is_no_trouble(run):
    with shoal.ShardWriter("memory://dataload/empty/a-%06d.tar"):
        pass
    facts = run("dataload", "memory://dataload/empty", "--json").json
    assert (facts["batches"], facts["first_batch"]) == (0, None)
    assert run("dataload", "memory://dataload/empty").code == 0
    assert run("plan", "memory://dataload/empty").code == 0


@pytest.mark.parametrize(
    "words",
    [["--workers", "many"], ["--prefetch", "x"], ["--batch-size", "0"], ["--tail", "cut"], ["--rank", "3"]],
)
def test_wrong_words_are_refused(run, many, words):
    done = run("dataload", many, *words)
    assert (done.code, done.out) == (2, "")


def test_ctrl_c_ends_it_with_the_summary(many):
    """As in a terminal: the table is on stderr while it runs, and the summary on stdout when it was stopped."""
    ours, theirs = pty.openpty()
    program = "import sys; from shoal.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "dataload", str(many), "--epochs", "1000000"]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        text=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while b"samples/s" not in shown:
            shown += os.read(ours, 4096)
        child.send_signal(signal.SIGINT)
        while _goes_on(ours):
            pass
        out, _ = child.communicate()
    finally:
        child.kill()  # it would go on for ever
        os.close(ours)
    assert child.returncode == 130
    assert "Traceback" not in out
    assert "bound by" in out
    assert out.rstrip().endswith("interrupted")


def _goes_on(terminal: int) -> bool:
    try:
        return bool(os.read(terminal, 4096))
    except OSError:  # the other end was closed
        return False


def test_a_plan_says_what_dataload_does(run, many):
    words = ["--batch-size", 30, "--shuffle", "--world-size", 3]
    told = run("plan", many, *words, "--json").json
    done = run("dataload", many, *words, "--workers", 0, "--json").json
    assert (told["steps"], told["rank_samples"]) == (done["batches"], done["samples"])
    assert told["shuffle_quality"] == done["shuffle_quality"]
    assert told["repeated"] == 2
    assert told["held_bytes"] == 0  # three ranks would each keep all of it
    alone = run("plan", many, "--shuffle", "--json").json
    assert alone["held_bytes"] > 1000 * 500  # near, small and shuffled: kept in memory
    in_order = run("plan", many, "--world-size", 3, "--json").json
    assert (in_order["requests"], in_order["held_bytes"]) == (1002, 0)  # a sample each, and two of them twice


def test_a_plan_takes_what_the_network_is_like(run, many):
    told = run("plan", many, "--bandwidth", "1MB", "--latency", 0.5, "--json").json
    assert (told["bandwidth"], told["latency"]) == (1_000_000, 0.5)
    assert told["first_batch_seconds"] == pytest.approx(0.5 * (1 + 2), rel=0.05)  # neighbours come in one go
    every_third = run("plan", many, "--bandwidth", "1MB", "--latency", 0.5, "--world-size", 3, "--json").json
    assert every_third["first_batch_seconds"] == pytest.approx(0.5 * (32 + 2), rel=0.02)


def test_a_plan_measures_what_it_was_not_told(run, many):
    told = run("plan", many, "--json").json
    assert told["bandwidth"] > 0
    assert told["first_batch_seconds"] > 0


def test_a_plan_in_words(run, many):
    out = run("plan", many, "--shuffle", "--window", 100, "--lanes", 4, "--world-size", 3).out
    names = [line.partition("  ")[0] for line in out.splitlines()]
    assert names == [
        "order", "steps", "samples", "requests", "bytes", "over-fetch", "memory", "mixed", "shuffle quality", "time",
    ]  # fmt: skip
    assert "334 a rank of 1,000 in all" in out


def test_the_json_of_both_is_one_document(run, many):
    for command in ("plan", "dataload"):
        assert isinstance(json.loads(run(command, many, "--json").out), dict)


def test_every_way_is_measured(run, dataset):
    before = sorted(dataset.rglob("*"))
    facts = run("bench", dataset, "--repeats", 1, "--json").json
    assert (facts["samples"], facts["shards"]) == (10, 3)
    assert set(facts["read"]) == {"limit", "sequential", "sequential, unchecked", "random"}
    assert set(facts["write"]) == {"limit", "write"}
    for speeds in (facts["read"], facts["write"]):
        assert speeds["limit"]["ratio"] == 1
        assert all(speed["ratio"] > 0 and speed["bytes_per_second"] > 0 for speed in speeds.values())
    assert sorted(dataset.rglob("*")) == before


def test_ratios_come_first(run, dataset):
    lines = run("bench", dataset, "--repeats", 1).out.splitlines()
    assert lines[0].split()[:4] == ["what", "of", "the", "limit"]
    assert lines[2].startswith("read, sequential")
    assert any("little data" in line for line in lines)


def test_only_so_much_is_taken(run, dataset):
    assert run("bench", dataset, "--repeats", 1, "--bytes", 1, "--json").json["shards"] == 1


def test_writing_goes_where_it_is_told(run, dataset, tmp_path):
    assert run("bench", dataset, "--repeats", 1, "--scratch", tmp_path / "nowhere").code == 1
    (tmp_path / "scratch").mkdir()
    assert run("bench", dataset, "--repeats", 1, "--scratch", tmp_path / "scratch").code == 0
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("compression", ["gzip", "bz2"])
def test_compressed_shards_and_other_stores(run, compression):
    url = f"memory://bench/{compression}"
    with shoal.ShardWriter(f"{url}/a-%06d.tar", compression=compression) as writer:
        for number in range(5):
            writer.write({"txt": f"{number}"})
    assert run("bench", url, "--repeats", 1, "--json").json["samples"] == 5


def test_shards_that_each_number_their_samples_anew_are_measured(run, tmp_path):
    for name in "ab":
        with shoal.ShardWriter(tmp_path / f"{name}.tar", append=True) as writer:
            writer.write({"__key__": "000", "txt": name})
    assert run("bench", tmp_path, "--repeats", 1, "--json").json["samples"] == 2
