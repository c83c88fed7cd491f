"""TensorFlow: ``model.fit`` on a loader, stopped in the middle of an epoch, gone on with to the very same weights.

Run it with ``python examples/train_tf.py``; it makes its own data and takes seconds.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import shoal
from shoal.tf import to_tf_dataset

EPOCHS, STOP = 2, 14


class Losses(keras.callbacks.Callback):
    """Notes losses, and stops after so many batches with the model and the loader's state saved."""

    def __init__(self, loader: shoal.DataLoader, stop_after: int | None, checkpoint: pathlib.Path | None) -> None:
        super().__init__()
        self.loader, self.stop_after, self.checkpoint = loader, stop_after, checkpoint
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """After each step."""
        self.losses.append(float(logs["loss"]))
        if len(self.losses) == self.stop_after:
            self.model.save(self.checkpoint.with_suffix(".keras"))
            self.checkpoint.with_suffix(".json").write_text(json.dumps(self.loader.state_dict()))
            self.model.stop_training = True


def main() -> None:
    """Train once without a break and once with one, and compare."""
    tf.config.experimental.enable_op_determinism()
    with tempfile.TemporaryDirectory(prefix="shoal-tf-") as folder:
        shards, checkpoint = pathlib.Path(folder, "shards"), pathlib.Path(folder, "checkpoint")
        make_data(shards)
        whole, losses = train(shards)
        train(shards, stop_after=STOP, checkpoint=checkpoint)
        resumed, rest = train(shards, resume=checkpoint)
    same = all(np.array_equal(mine, its) for mine, its in zip(whole.get_weights(), resumed.get_weights(), strict=True))
    print(f"without a break: {len(losses)} steps")
    print(f"stopped after {STOP}, then {len(rest)} steps more")
    print(f"same weights, bit for bit: {same}")
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
) -> tuple[keras.Model, list[float]]:
    """``fit``, an epoch at a time; no ``prefetch`` after the dataset, since the loader makes batches ahead itself."""
    keras.utils.set_random_seed(0)
    loader = shoal.DataLoader(shoal.Dataset(shards), batch_size=32, shuffle=True, seed=7)
    loader = loader.map(lambda batch: (batch["picture.npy"], np.array(batch["cls"])))
    if resume is None:
        layers = [keras.layers.Flatten(), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((8, 8)), *layers])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    else:
        model = keras.models.load_model(resume.with_suffix(".keras"))
        loader.load_state_dict(json.loads(resume.with_suffix(".json").read_text()))
    notes = Losses(loader, stop_after, checkpoint)
    batches = to_tf_dataset(loader)
    while loader.epoch < EPOCHS and len(notes.losses) != stop_after:
        # An epoch a call: within one, Keras takes every epoch to be as long as the first, which may be a rest.
        epoch = loader.epoch
        model.fit(batches, initial_epoch=epoch, epochs=epoch + 1, callbacks=[notes], shuffle=False, verbose=0)
    return model, notes.losses


if __name__ == "__main__":
    main()
