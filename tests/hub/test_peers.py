"""What is pushed is read by the real packages, each in a process of its own: they read the environment as they load."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
from PIL import Image
from tests.hub.server import environment

import shoal
from shoal.hub import push_to_hub

HUGGING_FACE = """
    import json, sys
    import datasets, huggingface_hub

    streamed = datasets.load_dataset("tester/pets", split="train", streaming=True)
    rows = [{**row, "jpg": row["jpg"].size} for row in streamed]
    for row in rows:
        row["x.npy"] = [[float(value) for value in line] for line in row["x.npy"]]
    splits = datasets.get_dataset_split_names("tester/pets")
    held_out = datasets.load_dataset("tester/pets", split="held_out", streaming=True)
    whole = datasets.load_dataset("tester/pets", split="held_out")
    files = huggingface_hub.HfFileSystem().glob("datasets/tester/pets/*.tar")
    print(json.dumps({
        "rows": [{name: value for name, value in row.items() if name != "__url__"} for row in rows],
        "splits": splits,
        "held_out": [row["__key__"] for row in held_out],
        "whole": whole["txt"][:],
        "files": files,
        "features": sorted(streamed.features),
    }))
"""

WEBDATASET = """
    import json, sys
    import webdataset

    shards = "{endpoint}/datasets/tester/pets/resolve/main/train-{{000000..000001}}.tar"
    print(json.dumps([sample["__key__"] for sample in webdataset.WebDataset(shards, shardshuffle=False)]))
"""


def picture():
    made = io.BytesIO()
    Image.new("RGB", (8, 6), "red").save(made, "jpeg")
    return made.getvalue()


def sample(split, number):
    """A caption is missing here and there: what `datasets` makes of the first five samples would be no use."""
    made = {
        "__key__": f"{split}{number:03d}",
        "jpg": picture(),
        "json": {"n": number, "tags": ["a"]},
        "cls": number % 2,
    }
    made |= {"x.npy": np.full((2, 2), number, np.float32)}
    return made | ({"txt": f"caption {number}"} if number % 3 else {})


def run(code, hub, tmp_path, token="hf_test"):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment(hub, tmp_path / "home", token)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_datasets_streams_what_is_pushed_without_configuration(hub, tmp_path):
    for split, count in (("train", 12), ("held_out", 4)):
        with shoal.ShardWriter(tmp_path / "d" / f"{split}-%06d.tar", max_samples=6, split=split) as writer:
            for number in range(count):
                writer.write(sample(split, number))
    push_to_hub(tmp_path / "d", "tester/pets", private=True)
    told = run(HUGGING_FACE, hub, tmp_path)
    assert told["splits"] == ["train", "held_out"]
    assert told["held_out"] == [f"held_out{number:03d}" for number in range(4)]
    assert told["whole"] == [None, "caption 1", "caption 2", None]
    assert told["features"] == sorted(["jpg", "json", "cls", "x.npy", "txt", "__key__", "__url__"])
    expected = [
        {
            "__key__": f"train{number:03d}",
            "jpg": [8, 6],
            "json": {"n": number, "tags": ["a"]},
            "cls": number % 2,
            "x.npy": [[float(number)] * 2] * 2,
            "txt": f"caption {number}" if number % 3 else None,
        }
        for number in range(12)
    ]
    assert told["rows"] == expected
    names = ("held_out-000000.tar", "train-000000.tar", "train-000001.tar")
    assert told["files"] == [f"datasets/tester/pets/{name}" for name in names]


def test_webdataset_reads_what_is_pushed(hub, folder, tmp_path):
    push_to_hub(folder, "tester/pets")
    code = WEBDATASET.format(endpoint=hub.url)
    assert run(code, hub, tmp_path, token=None) == [f"train{number:05d}" for number in range(20)]
