"""Start a job as its user does: a program of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent


def start(job, *arguments, cwd, **environment):
    """A job as a running process, whose stdout and stderr are pipes."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID")
    clean = {name: value for name, value in os.environ.items() if name not in ranks}
    own = {"SHOAL_CACHE": f"{cwd}/.cache", "SHOAL_HOME": f"{cwd}/.home"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(FOLDER / job), *map(str, arguments)],
        cwd=cwd,
        env={**clean, **own, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(job, *arguments, cwd, code=0, **environment):
    """What a job printed on stdout, once it has ended with this exit code."""
    with start(job, *arguments, cwd=cwd, **environment) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == code, f"{job} ended with {process.returncode}\n{out[-2000:]}\n{errors[-6000:]}"
    return out


def run_json(job, *arguments, cwd, **options):
    """The JSON document that a job printed as its last line."""
    return json.loads(run(job, *arguments, cwd=cwd, **options).splitlines()[-1])
