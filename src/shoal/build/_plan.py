"""Plan which item goes into which shard, and in which order, before anything is written.

The plan depends only on the number and sizes of the items and on the options. So the bytes that are written depend
neither on the number of workers, nor on the engine, nor on interruptions. An item that fails is missing from its own
shard; no other item moves.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal._typing import IntArray
from shoal.errors import OptionError
from shoal.order._permutation import key_of, permute
from shoal.store._pattern import numbered_name

__all__ = ["Plan", "PlanOptions", "PlannedShard", "is_sampled", "plan_shards", "shard_path", "split_by_hash"]

_SAMPLING, _SPLITTING, _SHUFFLING = 1, 2, 3
"""What a permutation is for; each use has its own key."""
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_BISECTIONS = 24


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of a plan. Raises OptionError for invalid ones.

    ``sample`` is a share of the items, or how many of them. ``splits`` are shares by name. Without ``splits``, items
    keep the split their source says, or are all of ``split``.
    """

    max_samples: int = 10_000
    max_bytes: int = 1 << 30
    shuffle: bool = False
    seed: int = 0
    sample: float | None = None
    splits: tuple[tuple[str, float], ...] = ()
    split: str | None = None
    name: str = "{split}-%06d.tar"
    """The pattern of shard names, with ``{split}`` and a number."""

    def __post_init__(self) -> None:
        if self.max_samples < 1 or self.max_bytes < 1:
            found = (self.max_samples, self.max_bytes)
            raise OptionError(
                "a shard holds something", expected="max_samples and max_bytes of at least 1", found=found
            )
        if self.sample is not None and (self.sample < 0 or (type(self.sample) is float and self.sample > 1)):
            raise OptionError("no such sample", expected="a share from 0.0 to 1.0, or a number", found=self.sample)
        self._check_splits()

    def _check_splits(self) -> None:
        names = [name for name, _ in self.splits] or ([] if self.split is None else [self.split])
        bad = next((name for name in names if not _SPLIT_NAME.fullmatch(name)), None)
        if bad is not None:
            raise OptionError("a split's name becomes part of file names", expected="letters and digits", found=bad)
        if self.splits and self.split is not None:
            raise OptionError("items are of one split or of several", expected="split or splits", found="both")
        shares = [share for _, share in self.splits]
        if self.splits and (min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9 or len(set(names)) < len(names)):
            found = ", ".join(f"{name}={share}" for name, share in self.splits)
            raise OptionError("splits are shares of the whole", expected="shares that add up to 1", found=found)
        if self.splits and len(self.splits) > 1 and "{split}" not in self.name:
            raise OptionError("several splits need names of their own", expected="{split} in the name", found=self.name)


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard: the items at positions ``[start, stop)`` of the plan's order."""

    path: str
    split: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Items in the order in which they are written, and where shards begin and end among them."""

    items: IntArray
    shards: tuple[PlannedShard, ...]

    def items_of(self, shard: PlannedShard) -> IntArray:
        """The numbers of the items of a shard, in order."""
        return self.items[shard.start : shard.stop]

    @property
    def fingerprint(self) -> str:
        """Equal for plans that put the same items into the same places."""
        digest = hashlib.sha256(np.ascontiguousarray(self.items).tobytes())
        for shard in self.shards:
            digest.update(f"{shard.path}\0{shard.split}\0{shard.start}\0{shard.stop}\n".encode())
        return digest.hexdigest()


def plan_shards(
    count: int,
    options: PlanOptions,
    *,
    sizes: IntArray | None = None,
    splits: Mapping[str, Sequence[tuple[int, int]]] | None = None,
    kept: IntArray | None = None,
) -> Plan:
    """Plan shards for items ``0`` to ``count - 1``.

    ``sizes`` are the bytes that each takes of a tar: shards of a split are then as equal in bytes as whole items let
    them be, else in items. ``splits`` says which runs of items are of which split, where the source knows. ``kept`` are
    the items that are used at all, in ascending order.

    Examples:
        >>> plan = plan_shards(10, PlanOptions(max_samples=4, splits=(("train", 0.8), ("test", 0.2))))
        >>> [(shard.path, shard.stop - shard.start) for shard in plan.shards]
        [('train-000000.tar', 4), ('train-000001.tar', 4), ('test-000000.tar', 2)]
    """
    chosen = _draw_sample(np.arange(count) if kept is None else kept, options)
    groups, shards, start = [], [], 0
    for number, (split, members) in enumerate(_by_split(chosen, options, splits)):
        own = _shuffle(members, options, number)
        cuts = _cut_shards(len(own), None if sizes is None else sizes[own], options.max_samples, options.max_bytes)
        for place, (first, last) in enumerate(itertools.pairwise(cuts)):
            path = shard_path(options.name, split, place)
            shards.append(PlannedShard(path, split, start + first, start + last))
        groups.append(own)
        start += len(own)
    if len({shard.path for shard in shards}) < len(shards):
        raise OptionError("several splits need names of their own", expected="{split} in the name", found=options.name)
    items = np.concatenate(groups) if groups else np.empty(0, np.int64)
    return Plan(items.astype(np.int64), tuple(shards))


def shard_path(name: str, split: str, number: int) -> str:
    """Return the name of a shard."""
    return numbered_name(name.replace("{split}", split), number)


def _draw_sample(items: IntArray, options: PlanOptions) -> IntArray:
    """Draw a sample by the seed, and return it in the source's order."""
    if options.sample is None:
        return items
    is_share = type(options.sample) is float
    count = round(options.sample * len(items)) if is_share else min(int(options.sample), len(items))
    return (
        items[np.sort(permute(np.arange(count), len(items), key_of(options.seed, _SAMPLING)))] if count else items[:0]
    )


def _by_split(
    items: IntArray, options: PlanOptions, runs: Mapping[str, Sequence[tuple[int, int]]] | None
) -> Iterator[tuple[str, IntArray]]:
    if options.splits:
        yield from _draw_splits(items, options)
    elif options.split is None and runs:
        for split, spans in runs.items():
            edges = np.searchsorted(items, np.array(spans, np.int64).reshape(-1, 2))
            yield split, np.concatenate([items[start:stop] for start, stop in edges.tolist()])
    else:
        yield options.split or "train", items


def _draw_splits(items: IntArray, options: PlanOptions) -> Iterator[tuple[str, IntArray]]:
    """Yield a random part for each split, in the source's order and within one item of its share."""
    mixed = permute(np.arange(len(items)), len(items), key_of(options.seed, _SPLITTING)) if len(items) else items
    edges = [round(len(items) * edge) for edge in np.cumsum([0.0, *(share for _, share in options.splits)]).tolist()]
    for (split, _), start, stop in zip(options.splits, edges[:-1], edges[1:], strict=True):
        yield split, items[np.sort(mixed[start:stop])]


def is_sampled(number: int, options: PlanOptions) -> bool:
    """Whether an item of a stream, which has no length, is in the sample: by a hash of its number."""
    return options.sample is None or int(key_of(options.seed, _SAMPLING, number)) < options.sample * 2.0**64


def split_by_hash(number: int, options: PlanOptions) -> str:
    """The split of an item of a stream: by a hash of its number, so that shares are kept on the average."""
    if not options.splits:
        return options.split or "train"
    point = int(key_of(options.seed, _SPLITTING, number)) / 2.0**64
    edges = np.cumsum([share for _, share in options.splits])
    return options.splits[min(int(np.searchsorted(edges, point, "right")), len(edges) - 1)][0]


def _shuffle(items: IntArray, options: PlanOptions, number: int) -> IntArray:
    if not options.shuffle or not len(items):
        return items
    return items[permute(np.arange(len(items)), len(items), key_of(options.seed, _SHUFFLING, number))]


def _cut_shards(count: int, sizes: IntArray | None, max_samples: int, max_bytes: int) -> list[int]:
    """Return where shards begin, and the end: as few shards as the limits allow, as equal as possible."""
    if not count:
        return [0]
    if sizes is None:
        shards = -(-count // max_samples)
        return [count * number // shards for number in range(shards + 1)]
    ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    best = _fill_shards(ends, max_samples, max_bytes)
    low, high = int(ends[-1]) // (len(best) - 1), max_bytes
    for _ in range(_MAX_BISECTIONS):  # the smallest limit that needs no more shards makes them equal
        if high - low <= max(high >> 12, 1):
            break
        middle = (low + high) // 2
        tried = _fill_shards(ends, max_samples, middle)
        if len(tried) > len(best):
            low = middle
        else:
            best, high = tried, middle
    return best


def _fill_shards(ends: IntArray, max_samples: int, limit: int) -> list[int]:
    """Fill each shard up to the limits; an item larger than ``limit`` is a shard of its own."""
    cuts, at, count = [0], 0, len(ends) - 1
    while at < count:
        fits = int(np.searchsorted(ends, ends[at] + limit, "right")) - 1
        at = min(max(fits, at + 1), at + max_samples, count)
        cuts.append(at)
    return cuts
