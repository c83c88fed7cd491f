"""Ray Data in a process of its own. Starting a cluster is slow, so one test checks everything."""

from __future__ import annotations

PROGRAM = """
import os, sys, logging
os.environ.update(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_usage_stats_enabled="0")
import numpy as np, ray, shoal
from shoal.errors import OptionError
from shoal.ray import ShoalDatasource, to_ray_dataset

dataset = shoal.Dataset(sys.argv[1])
tasks = ShoalDatasource(dataset).get_read_tasks(7)
assert len(tasks) == 7 and sum(task.metadata.num_rows for task in tasks) == 50
assert len(ShoalDatasource(dataset.select([1, 2])).get_read_tasks(7)) == 2
try:
    ShoalDatasource(dataset.filter(bool))
except OptionError as error:
    assert "materialize" in str(error)
else:
    raise AssertionError("a filtered dataset has no length")

ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, object_store_memory=100 << 20)
ray.data.DataContext.get_current().enable_progress_bars = False
made = to_ray_dataset(dataset, override_num_blocks=3)
assert made.count() == 50
rows = sorted(made.take_all(), key=lambda row: row["cls"])
assert [row["cls"] for row in rows] == list(range(50))
assert all(np.array_equal(row["x.npy"], np.full((3, 2), row["cls"], np.float32)) for row in rows)
assert rows[3]["txt"] == "text 3" and rows[3]["__key__"] == "k003"

from shoal.torch import DataLoader
batches = made.select_columns(["x.npy", "cls"]).iter_torch_batches(batch_size=8)
theirs = sorted(n for batch in batches for n in batch["cls"].tolist())
ours = sorted(n for batch in DataLoader(dataset, batch_size=8) for n in batch["cls"].tolist())
assert theirs == ours == list(range(50))
ray.shutdown()
print("done")
"""


def test_ray_reads_every_sample_once(program, shards):
    assert program(PROGRAM, shards, timeout=200).endswith("done\n")
