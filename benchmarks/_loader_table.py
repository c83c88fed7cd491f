"""The table of a question about loaders."""

from __future__ import annotations

import timeit
from collections.abc import Sequence

from ._loader_turns import Turns
from ._peers import readinto

__all__ = ["HEADER", "WEBDATASET", "best_peer", "loader_rows", "readinto_rate"]

HEADER = (
    "loader",
    "samples a second",
    "x webdataset",
    "x the best peer",
    "of the limit",
    "first batch, ms",
    "CPU s a GB",
)
WEBDATASET = "webdataset, 2 workers"


def best_peer(found: dict[str, Turns]) -> Turns:
    """The fastest that is not ours and not a limit."""
    peers = [one for name, one in found.items() if not name.startswith(("shoal", "limit"))]
    return max(peers, key=lambda one: one.rate)


def loader_rows(found: dict[str, Turns], sample_bytes: float, limit: float) -> list[tuple[str, ...]]:
    """A row each; ``limit`` is in samples a second."""
    base, best = found[WEBDATASET].rate, best_peer(found).rate
    return [_row(one, base, best, sample_bytes, limit) for one in found.values()]


def _row(one: Turns, base: float, best: float, sample_bytes: float, limit: float) -> tuple[str, ...]:
    if not one.rates:
        return (one.name, f"cannot run here: {one.why_not}", "", "", "", "", "")
    return (
        one.name,
        f"{one.rate:,.0f}",
        f"{one.rate / base:.1f}" if base else "",
        f"{one.rate / best:.2f}",
        f"{one.rate / limit:.2f}",
        f"{one.first * 1e3:.0f}",
        f"{one.cpu / sample_bytes * 1e9:.2f}",
    )


def readinto_rate(paths: Sequence[str], samples: int) -> float:
    """The physical limit in samples a second: the files into one buffer by one thread, the best of five."""
    return samples / min(timeit.repeat(lambda: [readinto(path) for path in paths], number=1, repeat=5))
