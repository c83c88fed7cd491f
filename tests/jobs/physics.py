"""Simulations: HDF5 files become typed samples, a second campaign has one field more, and PLAID reads and writes too.

``python physics.py`` works in the current folder, on ``first.h5``, ``second.h5`` and ``meshes.npz``.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

import shoal
from shoal.dataset import Hdf5Dataset


@shoal.packable(version="1.0.0")
class Flow:
    pressure: NDArray[np.float64]
    mach: float
    label: str


FirstFlow = Flow


@shoal.packable(version="1.1.0")
class Flow:  # the same type a month later
    pressure: NDArray[np.float64]
    mach: float
    label: str
    angle: float = 2.5
    solver: str = "euler"


def convert(kind: type, source: str, target: str) -> int:
    """Rows of an HDF5 file as typed samples of their class's fields."""
    rows = Hdf5Dataset(source, group="runs")
    names = [name for name in kind.__annotations__ if name in rows.fields]
    samples = (kind(**{name: row[name] for name in names}) for row in rows)
    return len(shoal.write_samples(samples, target, max_samples=15))


def sums(dataset: shoal.Dataset) -> list[float]:
    return [float(sample.pressure.sum()) for sample in dataset]


def campaigns() -> dict:
    """Both campaigns, read as the newer type."""
    counts = [convert(FirstFlow, "first.h5", "first"), convert(Flow, "second.h5", "second")]
    old, new = shoal.Dataset("first", sample_type=Flow), shoal.Dataset("second", sample_type=Flow)
    both = old.concat(new)
    batches = list(both.loader(batch_size=8, shuffle=True, seed=2))
    try:
        old.append([Flow(np.zeros(24), 1.0, "late")])
        problem = None
    except shoal.SchemaMismatchError as error:
        problem = str(error)
    return {
        "counts": counts,
        "as written": [type(shoal.Dataset("first")[0]).__name__, list(shoal.Dataset("first").schema.names)],
        "defaults": [[sample.angle, sample.solver] for sample in old],
        "sums": sums(both),
        "fast": [len(part.where("mach >= 0.5 and label <> 'calm'")) for part in (old, new)],
        "batched": sorted(mach for batch in batches for mach in batch.array("mach").tolist()),
        "batched sums": float(sum(batch.pressure.sum() for batch in batches)),
        "batched angles": sorted(angle for batch in batches for angle in batch.angle),
        "max": max(both, key=lambda sample: sample.mach).label,
        "schema": shoal.Dataset("second").schema.version,
        "refused": problem,
        "after": len(shoal.Dataset("first")),
    }


def grow() -> dict:
    """The second campaign goes on for a day, in the same folder."""
    rng = np.random.default_rng(9)
    more = [Flow(rng.random(24), 9.0 + number, f"more {number}", angle=float(number)) for number in range(5)]
    grown = shoal.Dataset("second").append(more)
    return {"len": len(grown), "last": [sample.label for sample in grown.where("mach >= 9")], "sums": sums(grown)[-5:]}


def plaid() -> dict:
    """The same for meshes, by PLAID's own functions."""
    from plaid import Infos, Sample
    from plaid.storage import init_from_disk

    import shoal.plaid

    stored = np.load("meshes.npz")

    def make_sample(number: int) -> Sample:
        sample = Sample()
        sample.init_base(2, 2, "Base_2_2")
        sample.init_zone(np.array([[50, 50, 0]]), zone="Zone", base="Base_2_2")
        sample.set_nodes(stored["nodes"], "Zone", "Base_2_2")
        sample.add_global("Mach", stored["mach"][number : number + 1])
        sample.add_field("speed", stored["speed"][number])
        if number % 2:
            sample.add_field("wall", stored["wall"][number])
        return sample

    infos = Infos(owner="us", license="cc-by-4.0")
    shoal.plaid.save_to_disk(
        "meshes", make_sample, {"train": range(5), "test": range(5, 8)}, infos, backend="webdataset"
    )
    datasets, converters = init_from_disk("meshes")
    found = {}
    for split in ("train", "test"):
        samples = [converters[split].to_plaid(datasets[split], row) for row in range(len(datasets[split]))]
        walls = [sample.get_field("wall") for sample in samples]
        found[split] = {
            "mach": [float(sample.get_global("Mach")) for sample in samples],
            "speed": [float(sample.get_field("speed").sum()) for sample in samples],
            "wall": [None if wall is None else float(wall.sum()) for wall in walls],
            "nodes": float(samples[0].get_nodes().sum()),
        }
    part = datasets["train"].read(
        1, ["Base_2_2/Zone/VertexFields/speed"], {"Base_2_2/Zone/VertexFields/speed": slice(5, 9)}
    )
    found["part"] = part["Base_2_2/Zone/VertexFields/speed"].tolist()
    return found


if __name__ == "__main__":
    rows = Hdf5Dataset("first.h5", group="runs")
    hdf5 = {
        "len": len(rows),
        "row": rows[3]["mach"],
        "fast": len(list(rows.filter(lambda run: run["mach"] >= 0.5))),
        "fields": sorted(rows.fields),
    }
    print(json.dumps({"hdf5": hdf5, "campaigns": campaigns(), "grow": grow(), "plaid": plaid()}))
