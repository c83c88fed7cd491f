"""The main job in a minute, on data it makes itself: pack, look, ask, read, load, stop and go on, beside webdataset.

Run it with ``make demo``.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import random
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time

import numpy as np
import webdataset
from PIL import Image

import shoal

COUNT = 2000
ANIMALS = ("cat", "dog", "fox", "hen", "bee")


def main() -> None:
    """Show everything, in the order a user would try it."""
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as name:
        folder = pathlib.Path(name)
        make_photos(folder / "photos")
        command(folder, "pack", "photos", "shards", "--max-samples", "500")
        command(folder, "info", "shards")
        command(folder, "head", "shards", "-n", "3", "--where", "animal = 'fox' and width >= 100")
        ask(folder / "shards")
        race(folder / "shards")
        load(folder / "shards")
        command(folder, "dataload", "shards", "--batch-size", "64", "--shuffle", "--decode", "rgb8", "--epochs", "3")
    print(NEXT)


def make_photos(folder: pathlib.Path) -> None:
    """Small JPEGs, each with a caption and a JSON of facts beside it."""
    say(f"Making {COUNT} small JPEGs with captions")
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        animal, width = ANIMALS[number % len(ANIMALS)], int(rng.integers(64, 128))
        pixels = np.kron(rng.integers(0, 255, (8, 8, 3), np.uint8), np.ones((12, 16, 1), np.uint8))[:, :width]
        base = folder / f"{number:06d}"
        Image.fromarray(pixels).save(base.with_suffix(".jpg"), quality=85)
        base.with_suffix(".txt").write_text(f"a picture of a {animal}")
        base.with_suffix(".json").write_text(json.dumps({"animal": animal, "width": width}))


def ask(shards: pathlib.Path) -> None:
    """Open, count, query, and reach samples by position and by key."""
    say("The same from Python")
    dataset = shoal.Dataset(shards, decode="rgb8")
    print(f">>> dataset = shoal.Dataset({shards.name!r}, decode='rgb8'); len(dataset)\n{len(dataset)}")
    found = dataset.where("animal = 'fox' and width >= 100")
    print(f">>> len(dataset.where(\"animal = 'fox' and width >= 100\"))   # no tar was opened for this\n{len(found)}")
    sample = dataset.get("001234")
    print(f">>> dataset.get('001234')['txt'], ['jpg'].shape\n{sample['txt']!r}, {sample['jpg'].shape}")
    print(f">>> dataset[-1]['json']\n{dataset[-1]['json']}")


def race(shards: pathlib.Path) -> None:
    """Read everything in order and at random, and let webdataset read the same files."""
    say("Reading all samples, undecoded: samples a second, best of three")
    dataset = shoal.Dataset(shards, decode=False)
    order = random.Random(0).sample(range(COUNT), COUNT)
    batches = [order[at : at + 250] for at in range(0, COUNT, 250)]
    peer = rate(lambda: webdataset.WebDataset(list(dataset.shards), shardshuffle=False))
    print(f"{'webdataset, in order':32} {peer:12,.0f}")
    for title, samples in (
        ("shoal, in order", lambda: dataset),
        ("shoal, at random", lambda: (sample for batch in batches for sample in dataset[batch])),
    ):
        ours = rate(samples)
        print(f"{title:32} {ours:12,.0f}   {ours / peer:.0f} x webdataset")


def load(shards: pathlib.Path) -> None:
    """Shuffled batches, stopped in the middle, gone on with elsewhere, and timed beside PyTorch's loader."""
    say("Loading shuffled batches; stopped after five, and gone on with by two ranks")
    dataset = shoal.Dataset(shards, decode=False)
    loader = shoal.DataLoader(dataset, batch_size=64, shuffle=True, seed=1)
    batches = iter(loader)
    seen = [key for _ in range(5) for key in next(batches)["__key__"]]
    state = json.dumps(loader.state_dict())
    print(f">>> loader.state_dict()   # {len(state)} bytes\n{state}")
    for rank in range(2):
        other = shoal.DataLoader(dataset, batch_size=32, shuffle=True, seed=1, rank=rank, world_size=2)
        other.load_state_dict(json.loads(state))
        seen += [key for batch in other for key in batch["__key__"]]
    print(f"{len(seen)} samples came, {len(set(seen))} of them different, of {len(dataset)}")
    say("Loading shuffled batches of 64, undecoded: samples a second, best of three")
    peer = torch_rate(list(dataset.shards))
    ours = batch_rate(lambda: shoal.DataLoader(dataset, batch_size=64, shuffle=True))
    if peer is None:
        print("torch is not installed, so there is nothing to compare with")
    else:
        print(f"{'webdataset + torch DataLoader':32} {peer:12,.0f}")
    print(f"{'shoal.DataLoader':32} {ours:12,.0f}" + ("" if peer is None else f"   {ours / peer:.0f} x that"))


def torch_rate(shards: list[str]) -> float | None:
    """What webdataset does under PyTorch's loader with two workers; None where there is no torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    def batches():  # noqa: ANN202 - a loader of torch's
        line = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(500).batched(64, collation_fn=list)
        return torch.utils.data.DataLoader(line, batch_size=None, num_workers=2)

    return batch_rate(batches)


def batch_rate(batches) -> float:  # noqa: ANN001 - any callable that gives an iterable of batches
    """Samples a second, the best of three."""
    return rate(lambda: (None for batch in batches() for _ in (batch["__key__"] if isinstance(batch, dict) else batch)))


def rate(samples) -> float:  # noqa: ANN001 - any callable that gives an iterable of samples
    """Samples a second, the best of three."""
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        count = sum(1 for _ in samples())
        best = max(best, count / (time.perf_counter() - start))
    return best


def command(folder: pathlib.Path, *words: str) -> None:
    """Run the shoal command as a user would."""
    say(f"$ shoal {shlex.join(words)}")
    program = pathlib.Path(sysconfig.get_path("scripts")) / "shoal"
    subprocess.run([program, *words], cwd=folder, check=True)  # noqa: S603 - our own command, with words from here


def say(text: str) -> None:
    """A heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


NEXT = """
What to type next:
  .venv/bin/shoal pack YOUR_FOLDER shards/     pack a folder of your own
  .venv/bin/shoal info shards/                 see what is in it
  .venv/bin/shoal verify shards/               check every byte
  .venv/bin/shoal plan shards/ --world-size 8  what training on eight GPUs will take
  .venv/bin/shoal --help                       everything else
  make test                                    run every test"""


if __name__ == "__main__":
    main()
