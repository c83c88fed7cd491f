"""PyTorch: train, stop in the middle of an epoch, go on in fresh objects, end with the very same weights.

Run it with ``python examples/train_torch.py``; it makes its own data and takes seconds.
"""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np
import torch

import shoal
from shoal.torch import DataLoader

EPOCHS, STOP = 2, 14


def main() -> None:
    """Train once without a break and once with one, and compare."""
    with tempfile.TemporaryDirectory(prefix="shoal-torch-") as folder:
        shards, checkpoint = pathlib.Path(folder, "shards"), pathlib.Path(folder, "checkpoint.pt")
        make_data(shards)
        whole, losses = train(shards)
        train(shards, stop_after=STOP, checkpoint=checkpoint)
        resumed, rest = train(shards, resume=checkpoint)
    same = all(torch.equal(mine, its) for mine, its in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"without a break: {len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(f"stopped after {STOP}, then {len(rest)} steps more, loss {rest[-1]:.3f}")
    print(f"same losses: {losses[STOP:] == rest}; same weights, bit for bit: {same}")
    if not same:
        raise SystemExit(1)


def make_data(folder: pathlib.Path) -> None:
    """Small pictures of two kinds: bright on the left, bright on the right."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(600):
        picture, kind = rng.normal(0, 1, (8, 8)).astype(np.float32), number % 2
        picture[:, 4 * kind : 4 * kind + 4] += 0.7
        samples.append({"__key__": f"{number:05d}", "picture.npy": picture, "cls": kind})
    shoal.write_samples(samples, folder, max_samples=200)


def train(
    shards: pathlib.Path,
    *,
    stop_after: int | None = None,
    checkpoint: pathlib.Path | None = None,
    resume: pathlib.Path | None = None,
) -> tuple[torch.nn.Module, list[float]]:
    """A training loop as anyone's; the loader's state is saved beside the model's."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(shoal.Dataset(shards), batch_size=32, shuffle=True, seed=7, device=device)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    if resume is not None:
        saved = torch.load(resume, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    losses = []
    while loader.epoch < EPOCHS:
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["picture.npy"]), batch["cls"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == stop_after and checkpoint is not None:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "loader": loader.state_dict()}, checkpoint)
                return model, losses
    return model, losses


if __name__ == "__main__":
    main()
