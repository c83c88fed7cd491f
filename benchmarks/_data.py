"""The files every contender reads: made once, kept in ``.bench/``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import webdataset

from ._disk import FOLDER, freshly_cached

__all__ = [
    "FOLDER",
    "SHARDS",
    "image_pax_tar",
    "image_samples",
    "image_tar",
    "large_tar",
    "small_samples",
    "small_tar",
    "tar_of",
]

Sample = dict[str, Any]


def small_samples(count: int = 50_000) -> Iterator[Sample]:
    """Three fields of 1 KB each."""
    rng = np.random.default_rng(1)
    for number in range(count):
        yield {"__key__": f"{number:08d}", **{f"{name}.bin": rng.bytes(1024) for name in "abc"}}


def image_samples(count: int = 20_000) -> Iterator[Sample]:
    """A 20 KB picture's worth of bytes, a JSON of three scalars, a class."""
    rng = np.random.default_rng(2)
    for number in range(count):
        facts = {"width": 256 + number % 512, "height": 512, "label": "cat" if number % 2 else "dog"}
        yield {"__key__": f"{number:08d}", "jpg": rng.bytes(20_000), "json": facts, "cls": number % 10}


def small_tar() -> str:
    """50,000 small samples, plain ustar headers, as webdataset writes them with a whole-number mtime."""
    return _made("small.tar", small_samples)


def image_tar() -> str:
    """20,000 samples of 20 KB, likewise."""
    return _made("image.tar", image_samples)


def image_pax_tar() -> str:
    """The same, as webdataset writes them by default: the time has a fraction, so each member has a PAX header."""
    return _made("image-pax.tar", image_samples, mtime=None)


def tar_of(name: str, samples: list[Sample]) -> str:
    """A tar of these samples."""
    return _made(name, lambda: iter(samples))


def large_tar() -> str:
    """Over 2 GB in one shard."""
    return _made("large.tar", lambda: image_samples(100_000))


def _made(name: str, samples: Callable[[], Iterator[Sample]], mtime: int | None = 0) -> str:
    path = FOLDER / name
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file, webdataset.TarWriter(file, mtime=mtime) as writer:
            for sample in samples():
                writer.write(sample)
        partial.rename(path)
    freshly_cached(path)
    return str(path)


SHARDS = (
    ("1 KB x 3 fields", small_tar),
    ("20 KB jpg + json + cls", image_tar),
    ("20 KB, webdataset's own headers", image_pax_tar),
)
"""The shards that readers are compared on, by what is in them."""
