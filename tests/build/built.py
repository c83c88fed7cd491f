"""Sources, functions and looks at results that the tests of building share. Functions are here: workers import them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

import shoal

__all__ = [
    "contents",
    "double",
    "fails_at_seven",
    "keys",
    "make_folder",
    "make_images",
    "numbers",
    "picky",
    "samples",
    "split_in_two",
    "tree",
]


def make_images(root: Path, count: int = 40, most: int = 6000) -> Path:
    """Files of random bytes in two folders, as a folder of images by class."""
    rng = np.random.default_rng(5)
    for number in range(count):
        path = root / ("cat" if number % 2 else "dog") / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(int(rng.integers(1, most))))
    return root


def make_folder(root: Path, count: int = 20) -> Path:
    """Captions beside pictures; some have none."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (root / f"{number:03d}.png").write_bytes(bytes([number]) * (number + 1))
        if number % 3:
            (root / f"{number:03d}.txt").write_text(f"picture {number}")
    return root


def tree(root: Any) -> dict[str, str]:
    """Every file below a folder, and what is in it."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(root).rglob("*"))
        if path.is_file()
    }


def contents(root: Any) -> dict[str, str]:
    """What a reader of the dataset sees: shards, indexes and the manifest; not what the build says of itself."""
    return {name: digest for name, digest in tree(root).items() if "/build-" not in name}


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "twice.json": {"size": 2 * sum(len(str(value)) for value in sample.values())}}


def picky(sample: dict[str, Any]) -> dict[str, Any] | None:
    return None if sample["cls"] % 2 else sample


def split_in_two(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"txt": f"{sample['cls']} first"}, {"txt": f"{sample['cls']} second"}]


def fails_at_seven(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["cls"] % 10 == 7 and not os.environ.get("SEVEN_IS_FINE"):
        raise ValueError(f"not {sample['cls']}")
    return sample


def numbers(count: int = 50) -> list[dict[str, Any]]:
    """Samples that are told apart by a number."""
    return [{"__key__": f"k{n:03d}", "cls": n, "txt": f"number {n}"} for n in range(count)]


def samples(root: Any, **options: Any) -> list[dict[str, Any]]:
    """The samples of a dataset, without their shard."""
    return [
        {name: value for name, value in sample.items() if name != "__url__"}
        for sample in shoal.Dataset(root, **options)
    ]


def keys(root: Any, **options: Any) -> list[str]:
    """The keys of a dataset."""
    return [sample["__key__"] for sample in shoal.Dataset(root, **options)]
