"""Hugging Face Accelerate: the loader is checkpointed with everything else by ``save_state`` and ``load_state``.

Run it with ``python examples/accelerate.py`` or ``accelerate launch examples/accelerate.py``.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

sys.path.pop(0)  # this folder, where this file would be taken for the package

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import shoal
from shoal.torch import DataLoader

EPOCHS, STOP = 2, 14


def main() -> None:
    """Train once without a break and once with one, and compare."""
    with tempfile.TemporaryDirectory(prefix="shoal-accelerate-") as folder:
        shards, checkpoint = pathlib.Path(folder, "shards"), pathlib.Path(folder, "checkpoint")
        make_data(shards)
        whole, steps = train(shards)
        train(shards, stop_after=STOP, checkpoint=checkpoint)
        resumed, rest = train(shards, resume=checkpoint)
    same = all(torch.equal(mine, its) for mine, its in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"without a break: {steps} steps; stopped after {STOP}, then {rest} steps more")
    print(f"same weights, bit for bit: {same}")
    if not same:
        raise SystemExit(1)


def make_data(folder: pathlib.Path) -> None:
    """Points in the plane, in or out of a circle."""
    points = np.random.default_rng(0).normal(0, 1, (600, 2)).astype(np.float32)
    samples = [
        {"__key__": f"{number:05d}", "at.npy": at, "cls": int(at @ at < 1.4)} for number, at in enumerate(points)
    ]
    shoal.write_samples(samples, folder, max_samples=200)


def train(
    shards: pathlib.Path,
    *,
    stop_after: int | None = None,
    checkpoint: pathlib.Path | None = None,
    resume: pathlib.Path | None = None,
) -> tuple[torch.nn.Module, int]:
    """The loader is not prepared: it has the device and the rank itself, and its state is the batch in use's."""
    set_seed(0)
    accelerator = Accelerator()
    loader = DataLoader(shoal.Dataset(shards), batch_size=32, shuffle=True, seed=7, device=accelerator.device)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    model, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 0.01))
    accelerator.register_for_checkpointing(loader)
    if resume is not None:
        accelerator.load_state(str(resume))
    steps = 0
    while loader.epoch < EPOCHS:
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(model(batch["at.npy"]), batch["cls"]))
            optimizer.step()
            steps += 1
            if steps == stop_after and checkpoint is not None:
                accelerator.save_state(str(checkpoint))
                return model, steps
    return model, steps


if __name__ == "__main__":
    main()
