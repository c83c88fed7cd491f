"""Records as databases hold them: JSON documents of a few kinds, read back into values.

::

    head    a dataset's name     its versions, tags, and place in searches
    entry   name@version         what is said of one version
    data    cid.place            where data lies and what it hashes to, and who refers to it
    schema-head, schema          a schema's name; Name@version
    lens-head, lens              a lens's name; Name@version
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from shoal.errors import CatalogError

from ._backend import Key
from ._entry import Storage, StoredShard

__all__ = ["DataRecord", "EntryRecord", "Head", "ThingHead", "VersionRecord", "data_key", "decoded", "encoded"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One version of a name, and the data it stands for."""

    version: str
    data: str


@dataclass(frozen=True, slots=True)
class Head:
    """A dataset's name: its history, oldest first, and its tags."""

    number: int
    versions: tuple[VersionRecord, ...]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """What is said of one version."""

    schema_ref: str
    created_at: float
    metadata: dict[str, Any] | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class DataRecord:
    """Data in one place."""

    cid: str
    storage: Storage
    shards: tuple[StoredShard, ...]
    refs: tuple[str, ...] = ()
    """The versions that stand for it: it is forgotten with the last of them."""


@dataclass(frozen=True, slots=True)
class ThingHead:
    """The versions of a schema or a lens, with a hash of what each one is; oldest first."""

    versions: dict[str, str] = field(default_factory=dict)


def data_key(cid: str, place: str) -> Key:
    """Where data of this content, kept in this place, is recorded."""
    return "data", f"{cid}.{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def encoded(value: Any) -> bytes:
    """A record as its document."""
    return msgspec.json.encode(value)


def decoded(data: bytes, kind: type[T], key: Key) -> T:
    """A document as its record. Raises CatalogError for what none of ours wrote."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CatalogError("a record of the index cannot be read", found=f"{key[0]} {key[1]}: {error}") from error
