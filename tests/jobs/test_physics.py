"""Simulations in HDF5 and PLAID, with a schema that grows: compared with h5py and NumPy."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from tests.jobs.running import run_json

LABELS = ["calm", "Böe", "storm"]


def write_runs(path, count, seed, **more):
    rng = np.random.default_rng(seed)
    runs = {"pressure": rng.random((count, 24)), "mach": rng.random(count)}
    labels = [f"{LABELS[number % 3]}" for number in range(count)]
    with h5py.File(path, "w") as file:
        for name, values in {**runs, **more}.items():
            file[f"runs/{name}"] = values
        file["runs/label"] = labels
    return {**runs, "label": labels, **more}


def test_campaigns_are_converted_evolved_and_read_together(tmp_path):
    first = write_runs(tmp_path / "first.h5", 40, 1)
    second = write_runs(tmp_path / "second.h5", 25, 2, angle=np.random.default_rng(3).random(25))
    rng = np.random.default_rng(4)
    stored = {"nodes": rng.random((50, 2)).astype(np.float32), "mach": rng.random(8).astype(np.float32)}
    stored |= {"speed": rng.random((8, 50)), "wall": rng.random((8, 50)).astype(np.float32)}
    np.savez(tmp_path / "meshes.npz", **stored)
    found = run_json("physics.py", cwd=tmp_path)

    assert found["hdf5"] == {
        "len": 40,
        "row": first["mach"][3],
        "fast": int((first["mach"] >= 0.5).sum()),
        "fields": ["label", "mach", "pressure"],
    }

    both = found["campaigns"]
    mach = np.concatenate((first["mach"], second["mach"]))
    pressure = np.concatenate((first["pressure"], second["pressure"]))
    assert both["counts"] == [40, 25]
    assert both["as written"] == ["Flow", ["pressure", "mach", "label"]]
    assert both["defaults"] == [[2.5, "euler"]] * 40
    assert both["sums"] == pressure.sum(axis=1).tolist()
    fast = [
        sum(speed >= 0.5 and label != "calm" for speed, label in zip(runs["mach"], runs["label"], strict=True))
        for runs in (first, second)
    ]
    assert both["fast"] == fast
    assert both["batched"] == sorted(mach.tolist())
    assert both["batched sums"] == pytest.approx(pressure.sum(), rel=1e-12)
    assert both["batched angles"] == sorted([2.5] * 40 + second["angle"].tolist())
    assert both["max"] == (first["label"] + second["label"])[int(mach.argmax())]
    assert both["schema"] == "1.1.0"
    assert "angle" in both["refused"]  # the first campaign's folder keeps its type
    assert both["after"] == 40

    rng = np.random.default_rng(9)
    more = [rng.random(24) for _ in range(5)]
    assert found["grow"]["len"] == 30
    assert found["grow"]["last"] == [f"more {number}" for number in range(5)]
    assert found["grow"]["sums"] == [float(values.sum()) for values in more]

    for split, rows in (("train", slice(0, 5)), ("test", slice(5, 8))):
        walls = [float(wall.sum()) if number % 2 else None for number, wall in enumerate(stored["wall"])][rows]
        assert found["plaid"][split] == {
            "mach": stored["mach"][rows].tolist(),
            "speed": stored["speed"][rows].sum(axis=1).tolist(),
            "wall": walls,
            "nodes": float(stored["nodes"].sum()),
        }
    assert found["plaid"]["part"] == stored["speed"][1, 5:9].tolist()
