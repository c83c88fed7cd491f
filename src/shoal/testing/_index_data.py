"""What the tests of indexes put into them."""

from __future__ import annotations

from itertools import count

from shoal.dataset import Dataset, write_samples
from shoal.sample import packable

__all__ = ["Pet", "Plant", "pets", "plants"]

_FOLDERS = count()


@packable
class Pet:
    """What most datasets of these tests hold."""

    name: str
    legs: int


@packable
class Plant:
    """Something else."""

    name: str
    height: float


def pets(*names: str) -> Dataset[Pet]:
    """A dataset of its own, in memory."""
    return write_samples([Pet(name, 4) for name in names], f"memory://index-tests/{next(_FOLDERS)}")


def plants() -> Dataset[Plant]:
    """A dataset of another type."""
    return write_samples([Plant("oak", 20.0)], f"memory://index-tests/{next(_FOLDERS)}")
