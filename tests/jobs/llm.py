"""Pre-training data: documents in jsonl.gz become tokens in shards, are mixed, packed into rows, and trained on.

``python llm.py build`` makes ``tokens/`` of ``raw/``; ``python llm.py train RUN`` goes through two epochs, from the
checkpoint in RUN if there is one; ``python llm.py ranks`` packs on two ranks and goes on with three. The environment
variable DIE_AT names the document, or the step, at which the process is killed.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import signal
import sys

import numpy as np

import shoal

LENGTH, ROWS, WEIGHTS, EPOCHS = 64, 8, (0.75, 0.25), 2


def die_at(point: str) -> None:
    """What a machine does that loses power."""
    if os.environ.get("DIE_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def tokenize(document: dict) -> dict | None:
    """Bytes are tokens, 0 ends a document; documents without text are left out."""
    die_at(document["id"])
    if not document["text"]:
        return None
    tokens = np.frombuffer(document["text"].encode() + b"\0", np.uint8).astype(np.uint16)
    meta = {"lang": document.get("lang"), "tokens": len(tokens)}
    return {"__key__": document["__key__"], "npy": tokens, "json": meta}


def build() -> dict:
    """Both sources as shards; a run that was killed is continued."""
    reports = {}
    for source in ("web", "books"):
        documents = shoal.dataset.JsonlDataset(f"raw/{source}/*.jsonl.gz", key="id")
        reports[source] = shoal.build_shards(documents, f"tokens/{source}", tokenize, max_samples=20, workers=1)
    web = shoal.Dataset("tokens/web")
    return {
        "samples": {source: report.samples for source, report in reports.items()},
        "dropped": {source: report.dropped for source, report in reports.items()},
        "tokens": {source: sum(shoal.Dataset(f"tokens/{source}").column("tokens").to_pylist()) for source in reports},
        "german": web.where("lang = 'de'").keys(),
        "unknown": web.where("lang is null").keys(),
        "long": web.where("tokens > 100").keys(),
    }


def mixture() -> shoal.Dataset:
    return shoal.mix([shoal.Dataset("tokens/web"), shoal.Dataset("tokens/books")], WEIGHTS, length=100)


def train(run: pathlib.Path) -> None:
    """Write down each batch's rows, and save the state after every third step."""
    run.mkdir(exist_ok=True)
    packed = mixture().loader(batch_size=None, shuffle=True, seed=5).pack(LENGTH, "npy", how="concat").batch(ROWS)
    step, checkpoint = 0, run / "last.json"
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        packed.load_state_dict(saved["loader"])
        step = saved["step"]
    with open(run / f"rows-{step}.jsonl", "w") as rows:
        while packed.epoch < EPOCHS:
            for batch in packed:
                step += 1
                row = {name: batch[name].tolist() for name in ("npy", "segment_ids", "position_ids")}
                print(json.dumps({"step": step, "epoch": packed.epoch, **row}), file=rows, flush=True)
                if step % 3 == 0:
                    (run / "next.json").write_text(json.dumps({"loader": packed.state_dict(), "step": step}))
                    os.replace(run / "next.json", checkpoint)
                die_at(str(step))


def ranks() -> dict:
    """The documents that were in rows, of two ranks for three steps, then of three ranks for the rest of the epoch."""
    web = shoal.Dataset("tokens/web")
    longest = max(web.column("tokens").to_pylist())

    def loaders(world_size: int) -> list:
        options = {"batch_size": None, "shuffle": True, "seed": 9, "world_size": world_size, "tail": "uneven"}
        return [web.loader(rank=rank, **options).pack(longest, "npy").batch(2) for rank in range(world_size)]

    two = loaders(2)
    running = [iter(rank) for rank in two]
    before = [next(rank) for _ in range(3) for rank in running]
    states = [shoal.State.from_dict(json.loads(json.dumps(rank.state_dict()))) for rank in two]
    three = loaders(3)
    for rank in three:
        rank.load_state_dict(shoal.State.merge(states).to_dict())
    after = [batch for rank in three for batch in rank]
    found = []
    for batch in itertools.chain(before, after):
        for tokens, segments in zip(batch["npy"], batch["segment_ids"], strict=True):
            found += [tokens[segments == number].tolist() for number in range(1, segments.max() + 1)]
    return {"documents": found, "before": len(before)}


if __name__ == "__main__":
    if sys.argv[1] == "build":
        print(json.dumps(build()))
    elif sys.argv[1] == "train":
        train(pathlib.Path(sys.argv[2]))
    else:
        print(json.dumps(ranks()))
