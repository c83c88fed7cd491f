"""JAX: arrays on their devices, sharded over several devices and several processes."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import shoal
from shoal.errors import OptionError
from shoal.jax import DataLoader, as_jax

FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}


def test_batches_are_the_plain_loaders_as_jax_arrays(shards):
    options = {"batch_size": 4, "shuffle": True, "seed": 5}
    dataset = shoal.Dataset(shards)
    batches = list(DataLoader(dataset, **options))
    plain = list(shoal.DataLoader(dataset, **options))
    assert [batch["cls"].tolist() for batch in batches] == [batch["cls"] for batch in plain]
    assert all(isinstance(batch["x.npy"], jax.Array) for batch in batches)
    assert batches[0]["x.npy"].tolist() == plain[0]["x.npy"].tolist()
    assert batches[0]["txt"] == plain[0]["txt"]


def test_it_resumes_in_the_middle_of_an_epoch(shards):
    def loader() -> DataLoader:
        return DataLoader(shoal.Dataset(shards), batch_size=4, shuffle=True, seed=5)

    first = loader()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    again = loader()
    again.load_state_dict(first.state_dict())
    copied = pickle.loads(pickle.dumps(first))
    rest = [batch["cls"].tolist() for batch in batches]
    assert [batch["cls"].tolist() for batch in again] == rest
    assert [batch["cls"].tolist() for batch in copied] == rest


def test_a_batch_that_was_given_does_not_change_later(shards):
    """A buffer is used again only when no array lies over it."""
    loader = DataLoader(shoal.Dataset(shards), batch_size=4)
    batches = list(loader)
    list(loader)
    assert [int(row[0, 0]) for batch in batches for row in batch["x.npy"]] == list(range(50))


def test_other_byte_orders_and_verbs():
    assert as_jax(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]
    loader = DataLoader(range(4), batch_size=None).map(lambda number: np.full(2, number)).batch(2)
    assert [batch.shape for batch in loader] == [(2, 2), (2, 2)]
    with pytest.raises(OptionError, match="sharding"):
        DataLoader(range(4), sharding="rows")


SHARDED = """
import json, jax, numpy as np, shoal
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from shoal.errors import OptionError
from shoal.jax import DataLoader
assert jax.device_count() == 4
rows = np.arange(40 * 6, dtype=np.float32).reshape(40, 6)
total = jax.jit(lambda x: x.sum(1))
for batch, expected in zip(DataLoader(rows, batch_size=8, sharding="batch"), rows.reshape(5, 8, 6), strict=True):
    assert len(batch.sharding.device_set) == 4
    assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 6)}
    assert np.array_equal(np.asarray(total(batch)), expected.sum(1))
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
grid = NamedSharding(mesh, PartitionSpec("data", "model"))
for batch, expected in zip(DataLoader(rows, batch_size=8, sharding=grid), rows.reshape(5, 8, 6), strict=True):
    assert {shard.data.shape for shard in batch.addressable_shards} == {(4, 3)}
    assert np.array_equal(np.asarray(batch), expected)
try:
    list(DataLoader(rows, batch_size=6, sharding="batch"))
except OptionError as error:
    assert "drop_last" in str(error)
else:
    raise AssertionError("six rows over four devices")
print("done")
"""


def test_batches_lie_over_four_devices(program):
    assert program(SHARDED, env=FOUR).endswith("done\n")


PROCESS = """
import json, sys, jax, numpy as np, shoal
address, rank = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, num_processes=2, process_id=rank)
from shoal.jax import DataLoader
loader = DataLoader(np.arange(42), batch_size=4, shuffle=True, seed=3, sharding="batch", drop_last=True)
mine = [[int(x) for shard in batch.addressable_shards for x in np.asarray(shard.data)] for batch in loader]
shapes = {batch.shape for batch in loader}
print(json.dumps([loader.split.rank, mine, sorted(shapes)]))
jax.distributed.shutdown()
"""


def test_two_processes_give_their_parts_of_one_batch():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    import os

    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, address, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    (first, left, shapes), (second, right, _) = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert (first, second) == (0, 1)
    assert shapes == [[8]]
    assert len(left) == len(right) == 6  # 42 samples, 8 a step, the last filled up
    plain = [
        list(
            shoal.DataLoader(np.arange(42), batch_size=4, shuffle=True, seed=3, drop_last=True, rank=rank, world_size=2)
        )
        for rank in range(2)
    ]
    assert [left, right] == [[batch.tolist() for batch in batches] for batches in plain]
