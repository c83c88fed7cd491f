"""An interactive session, cell by cell: compared with tarfile, json, PIL and counts in plain Python."""

from __future__ import annotations

import ast
import collections
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile

import numpy as np
from PIL import Image
from tests.jobs.running import FOLDER

import shoal

SPECIES = ["owl", "tit", "wren"]


def write_birds(folder, count=100):
    rng = np.random.default_rng(3)
    with shoal.ShardWriter(f"{folder}/train-%06d.tar", max_samples=25) as writer:
        for number in range(count):
            meta = {"width": 40 + number % 37, "species": SPECIES[rng.integers(3)]}
            image = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            label = int(rng.integers(4))
            writer.write(
                {"__key__": f"b{number:04d}", "jpg": image, "txt": f"bird {number}", "cls": label, "json": meta}
            )


def read_birds(folder):
    birds = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, field = member.name.partition(".")
                birds[key][field] = tar.extractfile(member).read()
    return [
        {
            "key": key,
            "jpg": bird["jpg"],
            "txt": bird["txt"].decode(),
            "cls": int(bird["cls"]),
            **json.loads(bird["json"]),
        }
        for key, bird in birds.items()
    ]


def type_cells(folder):
    """What each cell showed, by its first line, and the last line of each traceback."""
    cells = [cell.strip() for cell in (FOLDER / "notebook.py").read_text().split("# %%\n")[1:]]
    program = "".join(f"{cell}\n\nprint('<end>')\n\n" for cell in cells)
    quiet = "import sys; sys.ps1 = sys.ps2 = ''"
    done = subprocess.run(
        [sys.executable, "-i", "-q", "-W", "error", "-c", quiet],
        input=program,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=True,
        timeout=120,
    )
    shown = done.stdout.split("<end>\n")
    assert len(shown) == len(cells) + 1
    errors = [
        line for line in done.stderr.splitlines() if not line.startswith((" ", "Traceback")) and "Error: " in line
    ]
    return dict(zip((cell.splitlines()[0] for cell in cells), shown, strict=False)), errors


def test_a_session_shows_what_is_in_the_tars(tmp_path):
    write_birds(tmp_path / "birds")
    birds = read_birds(tmp_path / "birds")
    shown, errors = type_cells(tmp_path)

    def value(start):
        """What the cell that begins so has shown, as a value."""
        (text,) = [text for cell, text in shown.items() if cell.startswith(start)]
        return ast.literal_eval(text)

    assert shown['ds = shoal.Dataset("birds")'] == "Dataset('birds')\n"
    assert value("len(ds)") == 100
    first = value("ds[0]")
    assert (first["__key__"], first["jpg"], first["cls"]) == ("b0000", birds[0]["jpg"], birds[0]["cls"])
    assert value("ds[-1]") == ("bird 99", birds[3]["cls"], [bird["cls"] for bird in birds[10:13]])
    assert value('ds.get("b0042")["json"]') == {name: birds[42][name] for name in ("width", "species")}
    assert value("ds.head(2)") == "b0001"
    assert value("[type(s") == ["Image", "Image"]
    assert shown["print(ds.describe())"].startswith("100 samples in 4 shards")

    large = [bird for bird in birds if bird["width"] >= 60 and bird["species"] != "owl"]
    assert (
        f"{len(large)} of 100 samples, where(width >= 60 and species != 'owl')"
        in shown["large = ds.where(\"width >= 60 and species <> 'owl'\")"]
    )
    assert value("len(large)") == (len(large), [bird["key"] for bird in large[:3]])
    assert value("frame =") == ((len(large), 2), ["txt", "cls"], sum(bird["cls"] for bird in large))
    assert value("frame.groupby") == collections.Counter(bird["cls"] for bird in large)
    widths = {name: [bird["width"] for bird in birds if bird["species"] == name] for name in SPECIES}
    assert value("ds.table") == {name: round(statistics.fmean(some), 6) for name, some in widths.items()}
    narrow = {name: sum(width < 50 for width in some) for name, some in widths.items()}
    assert value("ds.sql") == [{"species": name, "n": count} for name, count in narrow.items()]

    assert shown["loader = ds.loader(batch_size=16, shuffle=True, seed=0)"].startswith("DataLoader(Dataset('birds')")
    assert value("batch = next") == (["__key__", "__url__", "cls", "jpg", "json", "txt"], 16)
    assert value("again = next") == (True, 0)  # an epoch that was left begins anew
    means = [float(np.asarray(Image.open(io.BytesIO(bird["jpg"]))).mean()) for bird in birds]
    assert value("def brightness") == round(means[7], 6)
    assert value("round(sum(row") == round(sum(means), 6)
    assert value("means =") == (round(sum(means), 6), 5)
    rare = [bird["key"] for bird in birds if bird["cls"] == 2]
    assert value('sample["__key__"]') == rare[0]
    assert shown['rare = ds.filter(lambda s: s["cls"] == 2)'] == "Dataset('birds', filter(<lambda>))\n"
    assert value("rare = rare.materialize") == (len(rare), rare[0])
    assert sum(value("splits =").values()) == 100
    assert value("len(set(splits") == 0
    assert value("parts =") == ({"train": 75, "test": 25}, 100)
    assert value("grown =") == (100, 101, 101, "new")
    assert value("int(ds.column") == sum(bird["width"] for bird in birds)
    fields = ("jpg", "txt", "cls", "json")
    assert value("ds.fields") == (fields, ("txt", "cls", "json.width", "json.species"))
    assert value("sum(sum(batch") == (sum(bird["cls"] for bird in birds), 1)
    assert value("[len(batch") == ([16] * 6 + [4], 2)

    assert [error.split(":")[0].rpartition(".")[2] for error in errors] == [
        "SampleKeyError",
        "PositionError",
        "QueryError",
        "QueryError",
        "TypeError",
    ]
    assert "'b0042'" in errors[0]  # what was meant
    assert "json.width" in errors[2]
