"""Recordings and transcripts: compared with soundfile and counts in plain Python."""

from __future__ import annotations

import collections
import json

import numpy as np
import pytest
import soundfile
from tests.jobs import speech
from tests.jobs.running import run_json

SPEAKERS = ["ada", "bo", "çelik"]


def write_recordings(folder, count=40):
    """Returns what each transcript says, by key."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    metas = {}
    for number in range(count):
        rate, kind = (8000, "flac") if number % 3 else (16000, "wav")
        length = int(rng.integers(100, 1200))
        shape = (length, 2) if number % 5 == 0 else (length,)
        key = f"u{number:03d}"
        soundfile.write(folder / f"{key}.{kind}", rng.normal(0, 0.1, shape), rate, subtype="PCM_16")
        meta = {"file": f"{key}.{kind}", "text": "größer " * (number % 4), "duration": length / rate}
        metas[key] = meta | {"speaker": SPEAKERS[number % 3], "lang": "de" if number % 2 else None}
    broken = folder / "broken.flac"
    broken.write_bytes((folder / "u001.flac").read_bytes()[:90])
    metas["broken"] = {"file": broken.name, "text": "", "duration": 0.05, "speaker": "ada", "lang": "de"}
    for key, meta in metas.items():
        (folder / f"{key}.json").write_text(json.dumps(meta))
    return dict(sorted(metas.items()))


def test_recordings_are_chosen_decoded_and_bucketed(tmp_path):
    metas = write_recordings(tmp_path / "recordings")
    found = run_json("speech.py", cwd=tmp_path)
    waves = {}
    for key, meta in metas.items():
        if key != "broken":
            samples, rate = soundfile.read(tmp_path / "recordings" / meta["file"], dtype="float32", always_2d=True)
            waves[key] = samples.mean(axis=1, dtype=np.float64), rate

    assert (found["len"], found["fields"]) == (len(metas), ["flac", "json", "wav"])
    assert found["problem"] == ["broken", "flac"]
    assert found["skipped"] == list(waves)
    assert found["waves"] == {key: [len(wave), rate, metas[key]["text"]] for key, (wave, rate) in waves.items()}
    assert found["hours"] == pytest.approx(sum(meta["duration"] for meta in metas.values()) / 3600)
    assert found["by speaker"] == collections.Counter(meta["speaker"] for meta in metas.values())
    between = [key for key, meta in metas.items() if meta["lang"] == "de" and 0.02 <= meta["duration"] <= 0.06]
    assert 1 < len(between) < len(metas)
    assert found["german"] == between
    assert found["short"] == [key for key, meta in metas.items() if meta["duration"] < 0.03]

    chosen = {key for key in waves if metas[key]["duration"] >= 0.03}
    limits = [0, *speech.BOUNDARIES, 1 << 30]
    sizes = {bucket: [] for bucket in range(3)}
    for batch in found["whole"]:
        lengths = [len(waves[key][0]) for key in batch["keys"]]
        bucket = next(number for number in range(3) if lengths[0] < limits[number + 1])
        assert all(limits[bucket] <= length < limits[bucket + 1] for length in lengths)
        assert batch["shape"] == [len(lengths), max(lengths)]
        energies = [float(np.square(waves[key][0]).sum()) for key in batch["keys"]]
        assert batch["sums"] == pytest.approx(energies, rel=1e-9)
        sizes[bucket].append(len(lengths))
    for size, batches in zip(speech.SIZES, sizes.values(), strict=True):
        assert set(batches[:-1]) <= {size}  # only the last of a bucket is short
        assert batches[-1] <= size
    for epoch in ("whole", "resumed", "second"):
        assert sorted(key for batch in found[epoch] for key in batch["keys"]) == sorted(chosen)
    assert found["resumed"] == found["whole"]
    assert found["second"] != found["whole"]
