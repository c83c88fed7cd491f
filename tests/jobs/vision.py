"""Train on what img2dataset wrote: look at it, then epochs on several ranks, a crash, and more ranks that go on.

``python vision.py FOLDER RUN WORLD_SIZE [CRASH_AFTER]`` prints what is in it and trains, from the checkpoint in RUN if
there is one. Ranks write what they saw to ``RUN/seen-*.jsonl``.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing

import shoal
from shoal.dataset import ParquetDataset
from shoal.torch import DataLoader

EPOCHS, GLOBAL_BATCH, CHOSEN = 2, 12, "original_width >= 400 and status = 'success'"


def look(folder: str) -> dict:
    """Counts of everything, from the index; and the scores that were computed for all URLs, joined to the images."""
    images = shoal.Dataset(folder)
    queries = {
        "all": "width > 0",
        "no caption": "caption is null",
        "no text": "txt is null",
        "german": "txt like '%Katze%'",
        "japanese": "caption like '%猫%'",
        "no cat emoji": "txt not like '%🐱%'",
        "large": "original_width >= 1000 and height between 24 and 24",
        "not similar": "not similarity > 0.5",
    }
    urls = ParquetDataset(f"{folder}/*.parquet", key="key")
    scored = images.join(urls.columns(["score"]))
    numbers = [[image["__key__"], image["score"]] for image in scored]
    return {
        "len": len(images),
        "keys": images.keys(),
        "fields": sorted(images.fields),
        "where": {name: images.where(query).keys() for name, query in queries.items()},
        "captions": {sample["__key__"]: sample.get("txt") for sample in images.columns(["txt"])},
        "failed": urls.where("status = 'failed_to_download'").keys(),
        "scores": numbers,
        "high": scored.where("score > 0.5 and original_width < 1000").keys(),
    }


def train(rank: int, folder: str, run: pathlib.Path, world_size: int, crash_after: int | None) -> None:
    """One rank. The model is a sum of pixels, so that everything it saw can be checked."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)  # MASTER_ADDR and MASTER_PORT say where
    images = shoal.Dataset(folder, decode={"jpg": "rgb8", "json": True}).where(CHOSEN)
    loader = DataLoader(images, batch_size=GLOBAL_BATCH // world_size, shuffle=True, seed=3)
    total = torch.zeros((), dtype=torch.int64)
    step = 0
    if (run / "last.pt").exists():
        saved = torch.load(run / "last.pt")
        loader.load_state_dict(saved["loader"])
        total, step = saved["total"], saved["step"]
    with open(run / f"seen-{step}-{rank}.jsonl", "w") as seen:
        while loader.epoch < EPOCHS:
            for batch in loader:
                sums = batch["jpg"].to(torch.int64).sum(dim=(1, 2, 3))
                everywhere = sums.sum()
                dist.all_reduce(everywhere)
                total += everywhere
                step += 1
                row = {"step": step, "epoch": loader.epoch, "keys": batch["__key__"], "sums": sums.tolist()}
                print(json.dumps({**row, "total": total.item()}), file=seen, flush=True)
                if step % 2 == 0 and rank == 0:
                    torch.save({"loader": loader.state_dict(), "total": total, "step": step}, run / "next.pt")
                    os.replace(run / "next.pt", run / "last.pt")
                if step == crash_after:
                    dist.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, run, world_size, *crash = sys.argv[1:]
    torch.set_num_threads(1)
    print(json.dumps(look(folder)))
    arguments = (folder, pathlib.Path(run), int(world_size), int(crash[0]) if crash else None)
    torch.multiprocessing.start_processes(train, arguments, int(world_size), start_method="fork")
