"""The peers and the limits, each reading all bytes of a tar in its own best plain way; Lance reads its own format."""

from __future__ import annotations

import os
import pathlib
import shutil
import tarfile
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import webdataset

import shoal

from ._disk import freshly_cached
from ._loader_peers import peer

__all__ = [
    "LANCE_BATCH",
    "Run",
    "huggingface_read",
    "lance_read",
    "lance_take",
    "pread_slices",
    "readinto",
    "tarfile_list",
    "tarfile_read",
    "webdataset_read",
    "written_lance",
]

LANCE_BATCH = 256
"""Samples that Lance reads in order at a time; of 64, 256, 1024 and its default of 8192 it was fastest with this."""


def readinto(path: str, size: int = 1 << 20) -> int:
    """The physical limit: the file's bytes into one buffer, again and again."""
    buffer = bytearray(size)
    total = 0
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            total += got
    return total


Run = tuple[int, int, list[list[tuple[int, int]]]]
"""Where a run of samples starts and stops in a file, and for each field where its bytes lie in the run."""


def pread_slices(path: str, runs: list[Run]) -> int:
    """The bytes of every field of every sample, and nothing else."""
    descriptor = os.open(path, os.O_RDONLY)
    done = 0
    for start, stop, fields in runs:
        data = os.pread(descriptor, stop - start, start)
        columns = [[data[low:high] for low, high in places] for places in fields]
        done += len(columns[0])
    os.close(descriptor)
    return done


def webdataset_read(path: str) -> int:
    """webdataset, undecoded, no shuffle."""
    return sum(1 for _ in webdataset.WebDataset([path], shardshuffle=False, empty_check=False))


def huggingface_read(path: str) -> int:
    """Hugging Face datasets, streaming its webdataset builder, media undecoded."""
    dataset = datasets.load_dataset("webdataset", data_files={"train": path}, split="train", streaming=True)
    return sum(1 for _ in dataset.decode(False))


def written_lance(tar: str) -> str:
    """The path of a Lance dataset with a tar's samples: a column for the keys, and one for the bytes of each field."""
    path = pathlib.Path(tar).with_suffix(".lance")
    if not path.exists():
        partial = path.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        dataset = shoal.Dataset(tar, decode=False)
        columns = [("__key__", pa.string()), *((name.replace(".", "_"), pa.binary()) for name in dataset.fields)]
        schema = pa.schema(columns)  # Lance refuses names with a dot
        batches = pa.RecordBatchReader.from_batches(schema, _record_batches(dataset, schema))
        peer("lance").write_dataset(batches, str(partial))
        partial.rename(path)
    freshly_cached(path)
    return str(path)


def _record_batches(dataset: shoal.Dataset[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in dataset.ordered(LANCE_BATCH):
        values = [batch[name] for name in ("__key__", *dataset.fields)]
        yield pa.record_batch([pa.array(one, kind) for one, kind in zip(values, schema.types, strict=True)], schema)


def lance_read(path: str, *, as_bytes: bool) -> int:
    """Lance, all columns in order: as Arrow, or as a dict of ``bytes`` a sample."""
    batches = peer("lance").dataset(path).to_batches(batch_size=LANCE_BATCH)
    return sum(len(batch.to_pylist() if as_bytes else batch) for batch in batches)


def lance_take(dataset: Any, order: np.ndarray, size: int, *, as_bytes: bool) -> int:
    """Lance, all columns of the samples at these positions, ``size`` at a time; as Arrow or dicts of ``bytes``."""
    tables = (dataset.take(order[at : at + size]) for at in range(0, len(order), size))
    return sum(len(table.to_pylist() if as_bytes else table) for table in tables)


def tarfile_read(path: str) -> int:
    """The standard library, member by member with its bytes."""
    done = 0
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            done += file is not None and len(file.read()) >= 0
    return done


def tarfile_list(path: str) -> int:
    """The standard library, listing only."""
    with tarfile.open(path) as archive:
        return sum(1 for _ in archive)
