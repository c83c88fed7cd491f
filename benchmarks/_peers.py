"""The peers, each reading all bytes of a tar in its own best plain way."""

from __future__ import annotations

import tarfile

import datasets
import webdataset

__all__ = ["huggingface_read", "readinto", "tarfile_list", "tarfile_read", "webdataset_read"]


def readinto(path: str, size: int = 1 << 20) -> int:
    """The physical limit: the file's bytes into one buffer, again and again."""
    buffer = bytearray(size)
    total = 0
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            total += got
    return total


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
