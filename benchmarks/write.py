"""How fast are samples written, with index, checksums and metadata?"""

from __future__ import annotations

import shutil
import subprocess

import webdataset

import shoal

from ._data import FOLDER, Sample, image_samples, small_samples, tar_of
from ._disk import settle
from ._measure import Contender, Question, measure

__all__ = ["run"]

_OUT = FOLDER / "written"


def run(rounds: int = 5) -> Question:
    """Write the same samples in every way."""
    question = Question(
        "Write",
        "The same samples, in memory, into one folder. shoal writes shards, indexes, checksums, metadata columns and a "
        "manifest; webdataset's ShardWriter writes shards. The limit is `cat` of a tar of the same samples.",
        ("samples", "writer", "x webdataset", "of cat"),
    )
    # About 100 MB each: the system holds that much back without making the writer wait for the disk.
    small, images = list(small_samples(20_000)), list(image_samples(5000))
    question.rows.extend(_rows("1 KB x 3 fields", tar_of("small-write.tar", small), small, rounds))
    question.rows.extend(_rows("20 KB jpg + json + cls", tar_of("image-write.tar", images), images, rounds))
    return question


def _rows(title: str, path: str, samples: list[Sample], rounds: int) -> list[tuple[str, ...]]:
    found = measure(
        [
            Contender("cat", lambda: _cat(path, len(samples)), _clear),
            Contender("webdataset.ShardWriter", lambda: _webdataset(samples), _clear),
            Contender("shoal.ShardWriter", lambda: _shoal(samples), _clear),
        ],
        rounds,
    )
    shutil.rmtree(_OUT)
    peer, limit = found["webdataset.ShardWriter"].median, found["cat"].median
    return [(title, name, f"{peer / one.median:.1f}", f"{limit / one.median:.2f}") for name, one in found.items()]


def _clear() -> None:
    shutil.rmtree(_OUT, ignore_errors=True)
    settle(FOLDER, 256 << 20)
    _OUT.mkdir()


def _cat(path: str, samples: int) -> int:
    with (_OUT / "cat.tar").open("wb") as out:
        subprocess.run(["cat", path], stdout=out, check=True)
    return samples


def _webdataset(samples: list[Sample]) -> int:
    with webdataset.ShardWriter(str(_OUT / "shard-%06d.tar"), verbose=0) as writer:
        for sample in samples:
            writer.write(sample)
    return len(samples)


def _shoal(samples: list[Sample]) -> int:
    with shoal.ShardWriter(str(_OUT / "shard-%06d.tar"), max_samples=100_000) as writer:
        for sample in samples:
            writer.write(sample)
    return len(samples)


if __name__ == "__main__":
    print(run().markdown())
