"""The peers and the limits, each reading all bytes of a tar in its own best plain way."""

from __future__ import annotations

import os
import tarfile

import datasets
import webdataset

__all__ = ["Run", "huggingface_read", "pread_slices", "readinto", "tarfile_list", "tarfile_read", "webdataset_read"]


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
