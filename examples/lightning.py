"""Lightning: the loader is the ``train_dataloaders``; its state is in Lightning's checkpoint.

Run it with ``python examples/lightning.py``.
"""

from __future__ import annotations

import logging
import pathlib
import sys
import tempfile

sys.path.pop(0)  # this folder, where this file would be taken for the package

import lightning
import numpy as np
import torch

import shoal
from shoal.torch import DataLoader

EPOCHS, STOP = 2, 14


class Classifier(lightning.LightningModule):
    """In or out of a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def training_step(self, batch: dict, _: int) -> torch.Tensor:
        """The loss of a batch."""
        return torch.nn.functional.cross_entropy(self.net(batch["at.npy"]), batch["cls"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 0.01)


class StopInside(lightning.Callback):
    """Saves a checkpoint and stops after so many steps, wherever that is in an epoch."""

    def __init__(self, step: int, checkpoint: pathlib.Path) -> None:
        self.step, self.checkpoint = step, checkpoint

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        """After each step."""
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.checkpoint)
            trainer.should_stop = True


def main() -> None:
    """Train once without a break and once with one, and compare."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="shoal-lightning-") as folder:
        shards, checkpoint = pathlib.Path(folder, "shards"), pathlib.Path(folder, "inside.ckpt")
        make_data(shards)
        whole, steps = train(shards)
        train(shards, stop=StopInside(STOP, checkpoint))
        resumed, last = train(shards, resume=checkpoint)
    same = all(torch.equal(mine, its) for mine, its in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"without a break: {steps} steps; stopped after {STOP}, gone on with to step {last}")
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
    shards: pathlib.Path, *, stop: StopInside | None = None, resume: pathlib.Path | None = None
) -> tuple[Classifier, int]:
    """Nothing here is about the loader but its name: Lightning asks it for its state, and gives it back."""
    lightning.seed_everything(0, verbose=False)
    loader = DataLoader(shoal.Dataset(shards), batch_size=32, shuffle=True, seed=7)
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[] if stop is None else [stop],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, ckpt_path=resume)
    return model, trainer.global_step


if __name__ == "__main__":
    main()
