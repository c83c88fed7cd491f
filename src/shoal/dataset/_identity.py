"""What a source is, told cheaply: the names, counts and sizes of its shards, none of its data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shoal.shard import ShardSource, Source
from shoal.store import base_name

__all__ = ["Finished", "HasColumns", "Identified", "digest_of", "same_folder", "source_identity"]


@runtime_checkable
class Identified(Protocol):
    """A source that says itself what it is."""

    @property
    def identity(self) -> str:
        """Equal for equal sources, in every process."""
        ...


@runtime_checkable
class Finished(Protocol):
    """A source whose samples are what a user is to see already."""

    @property
    def finished_type(self) -> type[Any]:
        """Their type."""
        ...


@runtime_checkable
class HasColumns(Protocol):
    """A source with metadata columns."""

    def column_names(self) -> tuple[str, ...]:
        """Every metadata column."""
        ...


def source_identity(source: Source) -> str:
    """A digest that differs where the samples of a source, or their order, may differ; data is not read for it.

    Where the dataset lies is no part of it, so a copy elsewhere is the same.
    """
    if isinstance(source, Identified):
        return source.identity
    if not isinstance(source, ShardSource):
        return digest_of([type(source).__qualname__, str(len(source)), *source.fields])
    names = same_folder([ref.url for ref in source.shards])
    counts = np.diff(source.starts).tolist()
    sizes = [
        source.shard(number).index.facts.size if ref.size is None else ref.size
        for number, ref in enumerate(source.shards)
    ]
    return digest_of([repr(source.rule), *map(repr, zip(names, counts, sizes, strict=True))])


def same_folder(urls: list[str]) -> list[str]:
    """The names as seen from the folder that holds them all."""
    parts = [url.split("/") for url in urls]
    if len(set(urls)) < 2:
        return [base_name(url) for url in urls]
    columns = enumerate(zip(*parts, strict=False))
    shared = next((at for at, names in columns if len(set(names)) > 1), min(map(len, parts)) - 1)
    return ["/".join(part[shared:]) for part in parts]


def digest_of(texts: Iterable[str]) -> str:
    """One digest of several texts, each told apart from its neighbours."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
