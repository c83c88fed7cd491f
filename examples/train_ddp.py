"""PyTorch on two processes with DistributedDataParallel: equal steps on uneven data, and an exact stop and resume.

Run it with ``python examples/train_ddp.py``, which starts two processes with torchrun, or with torchrun yourself. The
loader learns its rank from torch.distributed.
"""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import shoal
from shoal.torch import DataLoader

COUNT, EPOCHS, STOP = 333, 2, 8


def main() -> None:
    """Make the data and start the ranks; in a rank, train without a break and with one."""
    if "RANK" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="shoal-ddp-") as folder:
            make_data(pathlib.Path(folder, "shards"))
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            subprocess.run([*torchrun, __file__, folder], check=True)  # noqa: S603 - this file
        return
    dist.init_process_group("gloo")
    folder = pathlib.Path(sys.argv[1])
    whole, steps, seen = train(folder / "shards")
    train(folder / "shards", stop_after=STOP, checkpoint=folder / "checkpoint.pt")
    resumed, rest, _ = train(folder / "shards", resume=folder / "checkpoint.pt")
    same = all(torch.equal(mine, its) for mine, its in zip(whole.parameters(), resumed.parameters(), strict=True))
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, (steps, rest, same, seen))
    if dist.get_rank() == 0:
        report(told)
    del whole, resumed  # models hold the process group, which must end before the interpreter does
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    if not same:
        raise SystemExit(1)


def report(told: list) -> None:
    """What all ranks together did."""
    repeated = sum(len(seen) for *_, seen in told) - len({number for *_, seen in told for number in seen})
    covered = len({number for *_, seen in told for number in seen})
    print(f"steps on each rank: {[steps for steps, *_ in told]} for {COUNT} samples")
    print(f"first epoch: {covered} different samples, {repeated} given twice to make steps equal")
    print(f"stopped after {STOP}, then {[rest for _, rest, *_ in told]} steps more")
    print(f"same weights, bit for bit, on every rank: {all(same for _, _, same, _ in told)}")


def make_data(folder: pathlib.Path) -> None:
    """Points in the plane, in or out of a circle; a number that two ranks do not divide."""
    rng = np.random.default_rng(0)
    points = rng.normal(0, 1, (COUNT, 2)).astype(np.float32)
    samples = [
        {"__key__": f"{number:05d}", "at.npy": at, "cls": int(at @ at < 1.4)} for number, at in enumerate(points)
    ]
    shoal.write_samples(samples, folder, max_samples=100)


def train(
    shards: pathlib.Path,
    *,
    stop_after: int | None = None,
    checkpoint: pathlib.Path | None = None,
    resume: pathlib.Path | None = None,
) -> tuple[torch.nn.Module, int, list[int]]:
    """Returns the model, how many steps there were, and which samples this rank saw in the first epoch."""
    torch.manual_seed(0)
    loader = DataLoader(shoal.Dataset(shards), batch_size=16, shuffle=True, seed=7)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if resume is not None:
        saved = torch.load(resume, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    steps, seen = 0, []
    with loader:  # its threads end with the training
        while loader.epoch < EPOCHS:
            for batch in loader:
                if loader.epoch == 0:
                    seen += map(int, batch["__key__"])
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(batch["at.npy"]), batch["cls"]).backward()
                optimizer.step()
                steps += 1
                if steps == stop_after and checkpoint is not None:
                    if dist.get_rank() == 0:  # one state for all ranks, for any number of them
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save({**state, "loader": loader.state_dict()}, checkpoint)
                    dist.barrier()
                    return model, steps, seen
    return model, steps, seen


if __name__ == "__main__":
    main()
