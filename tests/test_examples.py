"""The examples run as they are, and each proves what it shows: stopped in mid-epoch, resumed to the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TRAININGS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "demo.py")  # `make demo` runs that one


def test_there_is_one_for_each_framework():
    assert {"accelerate.py", "hf_trainer.py", "lightning.py"} < set(TRAININGS)
    assert {"train_ddp.py", "train_jax.py", "train_tf.py", "train_torch.py"} < set(TRAININGS)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_was_stopped_ends_with_the_same_weights(name, tmp_path):
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env={**env, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped after" in done.stdout
    assert "bit for bit" in done.stdout.splitlines()[-1]
    assert done.stdout.endswith("True\n")
