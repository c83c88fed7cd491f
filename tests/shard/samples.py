"""Datasets of any layout as hypothesis strategies, and what ``tarfile`` reads of them."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pytest
import zstandard
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.shard.watched import WatchedStore, watched_store

from shoal.shard import WEBDATASET_RULE, KeyRule, ShardMemoryCache, ShardRef, ShardSource, ShardWriter

Row = dict[str, bytes]
ARCHIVE = KeyRule(group="archive")
NAMES = st.sampled_from(["a", "b", "c.d", "txt"])
_COUNTER = itertools.count()
PAYLOADS = st.binary(max_size=20) | st.builds(
    lambda size, seed: random.Random(seed).randbytes(size), st.integers(0, 9000), st.integers(0, 9)
)


@dataclass(frozen=True, repr=False)
class Layout:
    """Samples by shard, and how they are written: ``foreign`` by tarfile, with members in any order."""

    shards: Sequence[Sequence[Row]]
    compression: str | None
    foreign: random.Random | None
    block_bytes: int
    rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", [row for shard in self.shards for row in shard])

    def __repr__(self) -> str:
        sizes = [[{name: len(value) for name, value in row.items()} for row in shard] for shard in self.shards]
        facts = f"{self.compression}, foreign={self.foreign is not None}, block_bytes={self.block_bytes}"
        return f"Layout({str(sizes)[:2000]}, {facts})"


@st.composite
def _shards(draw: Any, alike: bool) -> list[list[Row]]:
    kind = draw(st.sampled_from(["few", "few", "few", "wide", *([] if alike else ["other", "long"])]))
    shards = []
    for number in range(draw(st.integers(1, 4))):
        names: Any = NAMES
        most = 12
        if kind == "other":
            names = NAMES.map(lambda name, number=number: f"{name}{number % 2}")
        elif kind == "wide":  # more fields than are built without a loop
            names, most = st.integers(0, 69).map(lambda at: f"f{at}"), 6
        elif kind == "long":  # as many fields as are indexed row by row
            names, most = st.integers(0, 400).map(lambda at: f"f{at}"), 12
        rows = draw(st.lists(st.dictionaries(names, PAYLOADS, min_size=1, max_size=6), min_size=1, max_size=most))
        if kind in ("wide", "long"):  # so that there are that many
            count = 70 if kind == "wide" else 300
            rows.insert(0, {f"f{at}": bytes([at % 7]) * (at % 11) for at in range(count)})
        elif alike:
            rows.insert(0, {name: name.encode() for name in ("a", "b", "c.d", "txt")})
        shards.append(rows)
    return shards


@st.composite
def datasets(draw: Any, *, kept_in_memory: bool = False) -> Layout:
    """Any dataset: one shard or several, with the same fields or others, some missing, compressed or not.

    Those that are ``kept_in_memory`` have the same fields in each shard, and samples one after the other.
    """
    foreign = not kept_in_memory and draw(st.integers(0, 3)) == 0
    compression = None if foreign else draw(st.sampled_from([None, None, "gzip", "zstd"]))
    order = random.Random(draw(st.integers(0, 9))) if foreign else None
    return Layout(draw(_shards(kept_in_memory)), compression, order, draw(st.sampled_from([2000, 20_000, 1 << 20])))


@dataclass(frozen=True)
class Read:
    """What is read of a dataset."""

    dataset: Layout
    rows: NDArray[np.int64]
    fields: list[str] | None

    @property
    def expected(self) -> list[Row]:
        """The members that come."""
        kept = [self.dataset.rows[row] for row in self.rows.tolist()]
        return [{name: row[name] for name in row if self.fields is None or name in self.fields} for row in kept]


@st.composite
def reads(draw: Any, *, kept_in_memory: bool = False) -> Read:
    """Any rows, in any order, repeated, neighbours, or none; all fields, or some, or one that no sample has."""
    dataset = draw(datasets(kept_in_memory=kept_in_memory))
    last = len(dataset.rows) - 1
    runs = st.tuples(st.integers(0, last), st.integers(0, last)).map(lambda edges: range(min(edges), max(edges) + 1))
    rows = draw(st.lists(st.integers(0, last), max_size=40) | runs)
    names = sorted({name for row in dataset.rows for name in row})
    fields = draw(st.none() | st.lists(st.sampled_from([*names[:60], "none"]), max_size=4, unique=True))
    return Read(dataset, np.array(rows, np.int64), fields)


class Opened:
    """A dataset that was written to a watched store."""

    def __init__(self, dataset: Layout, *, scatters: bool = False, verify: bool = True) -> None:
        self.dataset = dataset
        self.verify = verify
        self.store: WatchedStore = watched_store(scatters=scatters)
        ending = {None: "tar", "gzip": "tar.gz", "zstd": "tar.zst"}[dataset.compression]
        root = f"watched://{next(_COUNTER)}"  # where no tar was whose index is still in the cache
        self.urls = [f"{root}/{number}/x.{ending}" for number in range(len(dataset.shards))]
        self._sources: list[ShardSource] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("shoal.shard._shard_file.BLOCK_BYTES", dataset.block_bytes)
            patched.setattr("shoal.shard._shard_file._COMPRESSED_BLOCK_BYTES", dataset.block_bytes)
            first = 0
            for url, shard in zip(self.urls, dataset.shards, strict=True):
                named = [{"__key__": f"k{first + at}", **row} for at, row in enumerate(shard)]
                if dataset.foreign is not None:
                    self.store.write_all(url, _foreign_tar(named, dataset.foreign))
                else:
                    with ShardWriter(url, compression=dataset.compression) as writer:
                        for sample in named:
                            writer.write(sample)
                first += len(shard)

    def source(self) -> ShardSource:
        """A new source, with its shards open."""
        rule = WEBDATASET_RULE if self.dataset.foreign is None else ARCHIVE
        source = ShardSource([ShardRef(url, rule=rule) for url in self.urls], rule=rule, verify=self.verify)
        self._sources.append(source)
        for number in range(len(self.urls)):
            source.shard(number)
        return source

    def cached(self) -> ShardSource:
        """A new source that reads through memory."""
        source = self.source()
        memory = ShardMemoryCache.over(source, 1 << 30)
        assert memory is not None
        return source.with_memory(memory)

    def by_tarfile(self) -> list[dict[str, Any]]:
        """All samples as ``tarfile`` reads them."""
        found = []
        for url in self.urls:
            samples: dict[str, dict[str, Any]] = {}
            for key, name, data in _members(self.store.read_all(url), self.dataset.compression):
                samples.setdefault(key, {"__key__": key, "__url__": url})[name] = data
            found += samples.values()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._sources:
            source.close()


def _foreign_tar(samples: list[dict[str, Any]], order: random.Random) -> bytes:
    """The samples begin in their order, then their other members come in any."""
    members = [(sample["__key__"], name, sample[name]) for sample in samples for name in list(sample)[1:2]]
    others = [(sample["__key__"], name, sample[name]) for sample in samples for name in list(sample)[2:]]
    order.shuffle(others)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, name, data in [*members, *others]:
            member = tarfile.TarInfo(f"{key}.{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _members(data: bytes, compression: str | None) -> list[tuple[str, str, bytes]]:
    if compression == "gzip":
        data = gzip.decompress(data)
    elif compression == "zstd":
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    found = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            key, _, name = member.name.partition(".")
            content = tar.extractfile(member)
            if content is not None and not key.startswith("__"):
                found.append((key, name, content.read()))
    return found
