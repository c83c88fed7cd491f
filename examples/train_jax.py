"""JAX: batches that lie over all devices; stop in the middle of an epoch and end with the very same weights.

Run it with ``python examples/train_jax.py``. Without an accelerator it shows itself four devices.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np

import shoal
from shoal.jax import DataLoader

EPOCHS, STOP = 2, 11
Weights = dict[str, jax.Array]


def main() -> None:
    """Train once without a break and once with one, and compare."""
    with tempfile.TemporaryDirectory(prefix="shoal-jax-") as folder:
        shards, checkpoint = pathlib.Path(folder, "shards"), pathlib.Path(folder, "checkpoint")
        make_data(shards)
        whole, losses = train(shards)
        train(shards, stop_after=STOP, checkpoint=checkpoint)
        resumed, rest = train(shards, resume=checkpoint)
    same = all(np.array_equal(whole[name], resumed[name]) for name in whole)
    print(f"without a break on {jax.device_count()} devices: {len(losses)} steps, {losses[0]:.3f} to {losses[-1]:.3f}")
    print(f"stopped after {STOP}, then {len(rest)} steps more, loss {rest[-1]:.3f}")
    print(f"same losses: {losses[STOP:] == rest}; same weights, bit for bit: {same}")
    if not same:
        raise SystemExit(1)


def make_data(folder: pathlib.Path) -> None:
    """A line with noise around it."""
    rng = np.random.default_rng(0)
    slope = rng.normal(0, 1, 8)
    rows = rng.normal(0, 1, (600, 8)).astype(np.float32)
    samples = [
        {"__key__": f"{number:05d}", "x.npy": x, "y.npy": np.array([x @ slope + rng.normal(0, 0.1)], np.float32)}
        for number, x in enumerate(rows)
    ]
    shoal.write_samples(samples, folder, max_samples=200)


def loss_of(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean square of what a small network misses."""
    hidden = jnp.tanh(x @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - y) ** 2)


@jax.jit
def step(weights: Weights, x: jax.Array, y: jax.Array) -> tuple[Weights, jax.Array]:
    """One step of gradient descent."""
    loss, slopes = jax.value_and_grad(loss_of)(weights, x, y)
    return {name: weights[name] - 0.05 * slopes[name] for name in weights}, loss


def train(
    shards: pathlib.Path,
    *,
    stop_after: int | None = None,
    checkpoint: pathlib.Path | None = None,
    resume: pathlib.Path | None = None,
) -> tuple[Weights, list[float]]:
    """Each batch is cut over the devices; ``drop_last`` so that all of them are."""
    dataset = shoal.Dataset(shards)
    loader = DataLoader(dataset, batch_size=40, shuffle=True, seed=7, sharding="batch", drop_last=True)
    one, other = jax.random.split(jax.random.key(0))
    weights: Weights = {"in": jax.random.normal(one, (8, 16)) * 0.3, "out": jax.random.normal(other, (16, 1)) * 0.3}
    if resume is not None:
        weights = {name: jnp.asarray(value) for name, value in np.load(resume.with_suffix(".npz")).items()}
        loader.load_state_dict(json.loads(resume.with_suffix(".json").read_text()))
    losses: list[float] = []
    while loader.epoch < EPOCHS:
        for batch in loader:
            weights, loss = step(weights, batch["x.npy"], batch["y.npy"])
            losses.append(float(loss))
            if len(losses) == stop_after and checkpoint is not None:
                np.savez(checkpoint.with_suffix(".npz"), **{name: np.asarray(value) for name, value in weights.items()})
                checkpoint.with_suffix(".json").write_text(json.dumps(loader.state_dict()))
                return weights, losses
    return weights, losses


if __name__ == "__main__":
    main()
