"""Documents to tokens to packed rows of a mixture, with kills: compared with gzip, json and counts in plain Python."""

from __future__ import annotations

import collections
import gzip
import json

import numpy as np
import pytest
from tests.jobs import llm
from tests.jobs.running import run, run_json

import shoal

LENGTH, ROWS, WEIGHTS = llm.LENGTH, llm.ROWS, llm.WEIGHTS


def write_documents(folder):
    """Returns the text of each document by source and id, and the languages."""
    rng = np.random.default_rng(0)
    texts, languages = {"web": {}, "books": {}}, {}
    for source, count in (("web", 120), ("books", 30)):
        (folder / "raw" / source).mkdir(parents=True)
        for part in range(2):
            with gzip.open(folder / "raw" / source / f"part-{part}.jsonl.gz", "wt", encoding="utf-8") as file:
                for number in range(count // 2):
                    key = f"{source}-{part}-{number:03d}"
                    words = [
                        ["naïve", "猫", "loss", "🐱", "of"][word] for word in rng.integers(0, 5, rng.integers(1, 40))
                    ]
                    text = "" if number % 17 == 5 else " ".join(words)
                    language = {"lang": "de"} if number % 3 == 0 else {"lang": None} if number % 3 == 1 else {}
                    file.write(json.dumps({"id": key, "text": text, **language}) + "\n")
                    texts[source][key] = text
                    languages[key] = language.get("lang")
    return texts, languages


def tokens_of(text):
    return [*text.encode(), 0]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The built dataset, what the build printed, and what went in."""
    folder = tmp_path_factory.mktemp("llm")
    texts, languages = write_documents(folder)
    run("llm.py", "build", cwd=folder, code=-9, DIE_AT="web-1-020")
    early = {path.name: path.read_bytes() for path in (folder / "tokens" / "web").glob("*.tar")}
    assert early
    built = run_json("llm.py", "build", cwd=folder)
    for name, data in early.items():  # what was finished is not written again
        assert (folder / "tokens" / "web" / name).read_bytes() == data
    return folder, built, texts, languages


def test_the_built_shards_hold_every_document_once(job):
    folder, built, texts, languages = job
    full = {source: {key: text for key, text in some.items() if text} for source, some in texts.items()}
    assert built["samples"] == {source: len(some) for source, some in full.items()}
    assert built["dropped"] == {source: len(texts[source]) - len(full[source]) for source in texts}
    assert built["tokens"] == {
        source: sum(len(tokens_of(text)) for text in some.values()) for source, some in full.items()
    }
    assert built["german"] == [key for key in full["web"] if languages[key] == "de"]
    assert built["unknown"] == [key for key in full["web"] if languages[key] is None]
    assert built["long"] == [key for key, text in full["web"].items() if len(tokens_of(text)) > 100]
    for source, some in full.items():
        dataset = shoal.Dataset(str(folder / "tokens" / source))
        assert {sample["__key__"]: sample["npy"].tolist() for sample in dataset} == {
            k: tokens_of(t) for k, t in some.items()
        }


def test_packed_rows_of_a_mixture_are_the_documents_in_its_order(job, monkeypatch):
    folder, _, texts, _ = job
    run("llm.py", "train", "run", cwd=folder, code=-9, DIE_AT="2")  # before there is a checkpoint
    run("llm.py", "train", "run", cwd=folder, code=-9, DIE_AT="8")
    run("llm.py", "train", "run", cwd=folder)
    steps = {}
    for path in (folder / "run").glob("rows-*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            again = steps.setdefault(row["step"], row)
            assert again == row  # what was done twice was done alike
    assert sorted(steps) == list(range(1, len(steps) + 1))

    monkeypatch.chdir(folder)
    mixture = llm.mixture()
    order = mixture.loader(batch_size=None, shuffle=True, seed=5)
    for epoch in range(2):
        keys = [sample["__key__"] for sample in order]
        sources = [key.partition("-")[0] for key in keys]
        assert len(keys) == len(mixture) == 100
        for count in range(1, 101):
            assert abs(sources[:count].count("web") - WEIGHTS[0] * count) <= 1
        assert collections.Counter(sources) == {"web": 75, "books": 25}

        line, owners = [], []
        for number, key in enumerate(keys):
            tokens = tokens_of(texts[sources[number]][key])
            line += tokens
            owners += [number] * len(tokens)
        rows = -(-len(line) // LENGTH)
        batches = [steps[step] for step in sorted(steps) if steps[step]["epoch"] == epoch]
        assert [len(batch["npy"]) for batch in batches] == [ROWS] * (rows // ROWS) + [rows % ROWS] * (rows % ROWS > 0)
        tokens, segments, positions = (
            [value for batch in batches for row in batch[name] for value in row]
            for name in ("npy", "segment_ids", "position_ids")
        )
        padding = [0] * (rows * LENGTH - len(line))
        assert tokens == line + padding
        numbers, places = [], []
        for row in range(rows):  # what is cut at a row's end counts from the beginning again in the next
            pieces = collections.Counter(owners[row * LENGTH : (row + 1) * LENGTH])
            for number, length in enumerate(pieces.values(), 1):
                numbers += [number] * length
                places += range(length)
        assert segments == numbers + padding
        assert positions == places + padding


def test_ranks_that_pack_share_all_documents(job):
    folder, _, texts, _ = job
    found = run_json("llm.py", "ranks", cwd=folder)
    assert found["before"] == 6
    assert sorted(found["documents"]) == sorted(tokens_of(text) for text in texts["web"].values() if text)
