"""Speech: recordings and transcripts into shards, chosen by metadata, decoded, bucketed by length, and resumed.

``python speech.py`` makes ``shards/`` of ``recordings/`` and prints what it finds in them.
"""

from __future__ import annotations

import json
import pathlib
import warnings

import numpy as np

import shoal

BOUNDARIES, SIZES = [400, 800], [6, 4, 2]


def pack() -> None:
    """Transcripts name their recording; a sample has a flac or a wav."""
    with shoal.ShardWriter("shards/train-%06d.tar", max_samples=10) as writer:
        for path in sorted(pathlib.Path("recordings").glob("*.json")):
            meta = json.loads(path.read_text())
            sound = path.with_name(meta["file"])
            writer.write({"__key__": path.stem, sound.suffix[1:]: sound.read_bytes(), "json": meta})


def prepare(sample: dict) -> dict:
    """Mono, whatever the file's format is; the transcript as it is."""
    sound = sample["flac"] if "flac" in sample else sample["wav"]
    return {
        "key": sample["__key__"],
        "wave": sound.samples.mean(axis=1, dtype=np.float64),
        "rate": sound.sample_rate,
        "text": sample["json"]["text"],
    }


def length(sample: dict) -> int:
    return len(sample["wave"])


def lines(batches) -> list[dict]:
    """What was in batches, as numbers that can be compared."""
    return [
        {
            "keys": list(batch["key"]),
            "shape": batch["wave"].shape,
            "sums": np.square(batch["wave"]).sum(axis=1).tolist(),
        }
        for batch in batches
    ]


def main() -> dict:
    pack()
    sounds = shoal.Dataset("shards", decode="audio")
    clean = sounds.where("__key__ not like 'broken%'")
    decoded = clean.map(prepare)
    try:
        list(sounds)
        problem = None
    except shoal.DecodeError as error:
        problem = [error.key, error.field]
    warnings.simplefilter("ignore", shoal.ShoalWarning)  # which counts what was skipped
    skipping = sounds.loader(batch_size=4, on_error="skip", error_budget=5).map(lambda batch: batch["__key__"])

    def loader():
        line = clean.where("duration >= 0.03").loader(batch_size=None, shuffle=True, seed=4).map(prepare)
        return line.bucket(BOUNDARIES, batch_sizes=SIZES, length_of=length)

    whole = lines(loader())
    started = loader()
    batches = iter(started)
    first = lines(next(batches) for _ in range(5))
    state = json.dumps(started.state_dict())
    resumed = loader()
    resumed.load_state_dict(json.loads(state))
    return {
        "len": len(sounds),
        "fields": sorted(sounds.fields),
        "problem": problem,
        "skipped": [key for keys in skipping for key in keys],
        "waves": {sample["key"]: [len(sample["wave"]), sample["rate"], sample["text"]] for sample in decoded},
        "hours": sum(sounds.column("duration").to_pylist()) / 3600,
        "by speaker": {speaker: len(sounds.where(f"speaker = '{speaker}'")) for speaker in sounds.unique("speaker")},
        "german": sounds.where("lang = 'de' and duration between 0.02 and 0.06").keys(),
        "short": sounds.columns(["json"]).filter(lambda sample: sample["json"]["duration"] < 0.03).materialize().keys(),
        "whole": whole,
        "resumed": first + lines(resumed),
        "second": lines(resumed),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
