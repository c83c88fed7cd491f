"""A long epoch from afar takes no more memory than a short one."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from tests.scale import times
from tests.store.servers import ACCESS_KEY, SECRET_KEY

import shoal

MEGABYTES = times(330, 4096)
MOST = 300
SCRIPT = """
import sys
import pyarrow.compute, obstore, numpy
import shoal
import shoal.dataset, shoal.load, shoal.store._obstore

def memory(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith(name))

before = memory("VmRSS")
dataset = shoal.Dataset(sys.argv[1], decode=False)
count = size = 0
if sys.argv[2] == "shuffled":
    with shoal.DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=list) as loader:
        for batch in loader:
            count, size = count + len(batch), size + sum(len(sample["bin"]) for sample in batch)
else:
    for sample in dataset:
        count, size = count + 1, size + len(sample["bin"])
print(count, size, memory("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def folder(s3_endpoint):
    """Data that is larger than what may be held."""
    from tests.store.servers import BUCKET

    names = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**names, "AWS_ENDPOINT_URL": s3_endpoint}.items():
            patch.setenv(name, value)
        body = random.Random(0).randbytes(1 << 20)
        url = f"s3://{BUCKET}/memory"
        with shoal.ShardWriter(f"{url}/train-%06d.tar", max_bytes=64 << 20) as writer:
            for number in range(MEGABYTES * 4):
                writer.write({"__key__": f"{number:06d}", "bin": body[: 260_000 + number % 1000], "cls": number})
        yield url


@pytest.mark.parametrize("way", ["in order", "shuffled"])
def test_memory_is_bounded(folder, s3_endpoint, way, tmp_path):
    names = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    environment = {**os.environ, **names, "AWS_ENDPOINT_URL": s3_endpoint}
    command = [sys.executable, "-c", SCRIPT, folder, way]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    count, size, taken = done.stdout.split()
    assert int(count) == MEGABYTES * 4
    assert int(size) > MEGABYTES * 1_000_000
    assert float(taken) < MOST
