"""The same samples in every format, made by the libraries that own them wherever there is one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.formats import write_format

COUNT = 23


@dataclass(frozen=True)
class Example:
    """A format, how it is told apart, and what its samples are."""

    name: str
    make: Callable[[Path], Path]
    fields: tuple[str, ...]
    one: str
    """A field whose value is the sample's number."""
    value: Callable[[Any], int] = int
    keys: Callable[[int], str] = "{:09d}".format
    reading: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return self.name


def equal(found: Any, expected: Any) -> None:
    """Assert that two arrays are equal, their types too."""
    np.testing.assert_array_equal(found, expected)
    assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


def vector(number: int) -> np.ndarray:
    return np.arange(number, number + 3, dtype=np.float32)


def _raw(root: Path) -> Path:
    for number in range(COUNT):
        path = root / f"d{number // 10}" / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    return root


def _images(root: Path) -> Path:
    for number in range(COUNT):
        path = root / f"class{number // 10}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(number).encode())
    return root


def _npz(root: Path) -> Path:
    root.mkdir(parents=True)
    for number in range(COUNT):
        np.savez(root / f"{number:03d}.npz", x=vector(number), n=number)
    return root


def _npz_rows(root: Path) -> Path:
    root.mkdir(parents=True)
    for start, stop, save in ((0, 10, np.savez), (10, COUNT, np.savez_compressed)):
        save(root / f"{start:03d}.npz", x=np.stack([vector(n) for n in range(start, stop)]), n=np.arange(start, stop))
    return root


def _hdf5(root: Path) -> Path:
    root.mkdir(parents=True)
    for start, stop in ((0, 10), (10, COUNT)):
        with h5py.File(root / f"{start:03d}.h5", "w") as file:
            file["x"] = np.stack([vector(n) for n in range(start, stop)])
            file.create_dataset("n", data=np.arange(start, stop), chunks=(4,), compression="gzip")
    return root


def _tfrecord(root: Path) -> Path:
    for start, stop in ((0, 10), (10, COUNT)):
        packed = "GZIP" if start else ""
        samples = [{"x": vector(n), "n": n, "s": f"s{n}"} for n in range(start, stop)]
        write_format(root / f"{start:03d}.tfrecord", samples, keys=False, compression_type=packed)
    return root


def _table(start: int, stop: int) -> pa.Table:
    return pa.table({"n": list(range(start, stop)), "x": [vector(n) for n in range(start, stop)]})


def _parquet(root: Path) -> Path:
    root.mkdir(parents=True)
    for start, stop in ((0, 10), (10, COUNT)):
        pq.write_table(_table(start, stop), root / f"{start:03d}.parquet", row_group_size=4)
    return root


def _arrow(root: Path) -> Path:
    root.mkdir(parents=True)
    for start, stop, new in ((0, 10, pa.ipc.new_file), (10, COUNT, pa.ipc.new_stream)):
        table = _table(start, stop)
        with new(root / f"{start:03d}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return root


def _csv(root: Path) -> Path:
    root.mkdir(parents=True)
    for start, stop in ((0, 10), (10, COUNT)):
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["n", "s"])
        writer.writerows([n, f'line "{n}",\nanother'] for n in range(start, stop))
        (root / f"{start:03d}.csv").write_bytes(text.getvalue().encode())
    return root


def _jsonl(root: Path) -> Path:
    root.mkdir(parents=True)
    for start, stop in ((0, 10), (10, COUNT)):
        lines = [json.dumps({"n": n, "x": vector(n).tolist()}) for n in range(start, stop)]
        (root / f"{start:03d}.jsonl").write_text("\n".join(lines))
    return root


def _mds(root: Path) -> Path:
    """Bytes by MDS's layout: the real package's are in golden/."""
    root.mkdir(parents=True)
    shards = []
    for start, stop in ((0, 10), (10, COUNT)):
        items = [np.int64(n).tobytes() + vector(n).tobytes() for n in range(start, stop)]
        name = f"shard.{start:05d}.mds"
        (root / name).write_bytes(_chunk(items, b"{}"))
        shards.append(
            {
                "format": "mds",
                "version": 2,
                "column_names": ["n", "x"],
                "column_encodings": ["int", "ndarray:float32:3"],
                "column_sizes": [8, 12],
                "compression": None,
                "hashes": [],
                "raw_data": {"basename": name, "bytes": 0, "hashes": {}},
                "samples": len(items),
                "size_limit": None,
                "zip_data": None,
            }
        )
    (root / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return root


def _litdata(root: Path) -> Path:
    """Bytes by litData's layout: the real package's are in golden/."""
    root.mkdir(parents=True)
    chunks = []
    for start, stop in ((0, 10), (10, COUNT)):
        items = [
            np.array([8, 12], np.uint32).tobytes() + np.int64(n).tobytes() + vector(n).tobytes()
            for n in range(start, stop)
        ]
        name = f"chunk-0-{start}.bin"
        (root / name).write_bytes(_chunk(items))
        chunks.append({"chunk_bytes": 0, "chunk_size": len(items), "dim": None, "filename": name})
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.dict", "context": '["n", "x"]', "children_spec": [leaf, leaf]}
    config = {"data_format": ["int", "no_header_numpy:9"], "data_spec": json.dumps([1, spec]), "compression": None}
    (root / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return root


def _chunk(items: list[bytes], config: bytes = b"") -> bytes:
    offsets = np.cumsum([0, *map(len, items)]) + 4 * (len(items) + 2) + len(config)
    return np.array([len(items), *offsets], np.uint32).tobytes() + config + b"".join(items)


EXAMPLES = (
    Example("raw", _raw, ("txt",), "txt", keys=lambda n: f"d{n // 10}/{n:03d}.txt"),
    Example(
        "imagefolder",
        _images,
        ("image", "cls", "class_name"),
        "image",
        keys=lambda n: f"class{n // 10}/{n:03d}",
    ),
    Example("npz", _npz, ("x", "n"), "n", keys="{:03d}".format),
    Example("npz", _npz_rows, ("x", "n"), "n", reading=(("rows", True),)),
    Example("hdf5", _hdf5, ("n", "x"), "n"),
    Example("tfrecord", _tfrecord, ("n", "s", "x"), "n"),
    Example("parquet", _parquet, ("n", "x"), "n"),
    Example("arrow", _arrow, ("n", "x"), "n"),
    Example("csv", _csv, ("n", "s"), "n"),
    Example("jsonl", _jsonl, ("n", "x"), "n"),
    Example("mds", _mds, ("n", "x"), "n"),
    Example("litdata", _litdata, ("n", "x"), "n"),
)
