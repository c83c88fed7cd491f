"""Hugging Face Trainer: the loader is its training data, and its state lies in Trainer's checkpoints.

Run it with ``python examples/hf_trainer.py``.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile

sys.path.pop(0)  # this folder, where accelerate.py would be taken for the package
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import shoal
from shoal.torch import DataLoader

EPOCHS, STOP, STATE = 2, 14, "loader.json"


class Classifier(torch.nn.Module):
    """In or out of a circle; as Trainer wants it, with the loss first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, at: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and what was guessed."""
        logits = self.net(at)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class LoaderState(TrainerCallback):
    """Puts the loader's state into each checkpoint; stops after so many steps."""

    def __init__(self, loader: DataLoader, stop_after: int | None) -> None:
        self.loader, self.stop_after = loader, stop_after

    def on_step_end(self, args: TrainingArguments, state: object, control: object, **_: object) -> None:
        """After each step."""
        if state.global_step == self.stop_after:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: object, control: object, **_: object) -> None:
        """When Trainer has written a checkpoint."""
        folder = pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}")
        (folder / STATE).write_text(json.dumps(self.loader.state_dict()))


class ShoalTrainer(Trainer):
    """A Trainer that reads from a loader of its own."""

    def __init__(self, loader: DataLoader, **options: object) -> None:
        super().__init__(train_dataset=loader, **options)
        self.loader = loader

    def get_train_dataloader(self) -> DataLoader:
        """The loader itself: prepared by Accelerate it would run a batch ahead of its state."""
        return self.loader


def main() -> None:
    """Train once without a break and once with one, and compare."""
    with tempfile.TemporaryDirectory(prefix="shoal-trainer-") as folder:
        shards, output = pathlib.Path(folder, "shards"), pathlib.Path(folder, "output")
        make_data(shards)
        whole, steps = train(shards, output)
        train(shards, output, stop_after=STOP)
        resumed, last = train(shards, output, resume=output / f"checkpoint-{STOP}")
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
    shards: pathlib.Path, output: pathlib.Path, *, stop_after: int | None = None, resume: pathlib.Path | None = None
) -> tuple[torch.nn.Module, int]:
    """``ignore_data_skip``, since the loader goes on by its own state and has nothing to skip."""
    set_seed(0)
    loader = DataLoader(shoal.Dataset(shards), batch_size=32, shuffle=True, seed=7)
    loader = loader.map(lambda batch: {"at": batch["at.npy"], "labels": batch["cls"]})
    if resume is not None:
        loader.load_state_dict(json.loads((resume / STATE).read_text()))
    options = TrainingArguments(
        output_dir=str(output),
        num_train_epochs=EPOCHS,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ignore_data_skip=True,
    )
    model = Classifier()
    trainer = ShoalTrainer(loader, model=model, args=options, callbacks=[LoaderState(loader, stop_after)])
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model, trainer.state.global_step


if __name__ == "__main__":
    main()
