"""A dataset in a bucket: written, listed, verified, grown, trained on with a resume, and copied in and out.

``python s3.py write URL`` writes 90 samples, and goes on where a killed run was; ``python s3.py train URL FOLDER``
writes down the keys of two epochs, from the state in FOLDER if there is one; ``python s3.py look URL`` does the rest.
The environment has the endpoint and the credentials, as for AWS's own tools; DIE_AT is when the process is killed.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import numpy as np

import shoal
from shoal import store
from shoal.build import verify

COUNT, EPOCHS = 90, 2


def die_at(step: int) -> None:
    if os.environ.get("DIE_AT") == str(step):
        os.kill(os.getpid(), signal.SIGKILL)


def sample(number: int) -> dict:
    values = np.random.default_rng(number).random(200).astype(np.float32)
    return {"__key__": f"k{number:04d}", "npy": values, "cls": number % 5, "json": {"width": 3 * number}}


def write(url: str) -> None:
    with shoal.ShardWriter(f"{url}/train-%06d.tar", max_samples=20, resume=True) as writer:
        for number in range(COUNT):
            writer.write(sample(number))
            die_at(number)


def train(url: str, folder: pathlib.Path) -> None:
    """The state is saved after every second batch; batches after it come again."""
    state = folder / "state.json"
    loader = shoal.Dataset(url).loader(batch_size=8, shuffle=True, seed=6)
    step = 0
    if state.exists():
        saved = json.loads(state.read_text())
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    with open(folder / f"seen-{step}.jsonl", "w") as seen:
        while loader.epoch < EPOCHS:
            for batch in loader:
                step += 1
                row = {"step": step, "keys": batch["__key__"], "sums": batch["npy"].sum(axis=1, dtype=float).tolist()}
                print(json.dumps(row), file=seen, flush=True)
                if step % 2 == 0:
                    (folder / "next.json").write_text(json.dumps({"loader": loader.state_dict(), "step": step}))
                    os.replace(folder / "next.json", state)
                die_at(step)


def look(url: str) -> dict:
    ds = shoal.Dataset(url)
    checked = verify(url)
    grown = ds.append(sample(number) for number in range(COUNT, COUNT + 7))
    smaller = grown.tombstone(["k0003"], reason="asked")
    local = store.download(url, "copy")
    store.upload("copy", f"{url}-again")
    again = shoal.Dataset(f"{url}-again")
    cached = shoal.Dataset(url, cache="shards")
    return {
        "listed": sorted([info.url.removeprefix(url), info.size] for info in store.list(url)),
        "ok": [checked.ok, checked.samples],
        "len": [len(ds), len(grown), len(smaller), len(shoal.Dataset(url)), len(shoal.Dataset("copy")), len(again)],
        "wide": again.where("width >= 240 and cls <> 1").keys(),
        "classes": grown.columns(["cls"]).map(lambda row: row["cls"])[85:],
        "some": [float(row["npy"].sum(dtype=float)) for row in grown[[3, 96, 50]]],
        "in order": [float(row["npy"].sum(dtype=float)) for row in shoal.Dataset(url)],
        "cached": [[float(row["npy"].sum(dtype=float)) for row in cached] for _ in range(2)],
        "downloaded": local.objects,
    }


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    elif sys.argv[1] == "train":
        train(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        print(json.dumps(look(sys.argv[2])))
