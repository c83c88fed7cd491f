"""From an index on this machine to the network: `promote_to_atmosphere`.

Example:
    >>> from shoal.promote import promote_to_atmosphere
    >>> promote_to_atmosphere.__name__
    'promote_to_atmosphere'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from shoal.atmosphere import AtmosphereClient, AtUri, SourceShard, schema_from_record, shards_of
from shoal.errors import SchemaError
from shoal.local import Entry
from shoal.protocols import AbstractIndex, IndexEntry
from shoal.schema import Schema

__all__ = ["promote_to_atmosphere"]


def promote_to_atmosphere(
    entry: IndexEntry,
    index: AbstractIndex | None,
    client: AtmosphereClient,
    storage: Literal["auto", "http", "s3", "blobs"] = "auto",
    *,
    name: str | None = None,
    description: str | None = None,
    tags: Iterable[str] | None = None,
    license: str = "",  # noqa: A002 - as the record calls it
    version: str | None = None,
    allow_private: bool = False,
    max_blob_bytes: int = 1_000_000_000,
    progress: Any = None,
) -> str:
    """Publish a dataset of an index, with the schema of its samples; returns its ``at://`` URI.

    Twice gives the same URI: the record's key is made of the name, the schema and the hashes of the shards. ``storage``
    says where others find the bytes. ``auto`` leaves them where they are when everybody can read them there; paths of
    this machine, loopback and private addresses become blobs of the account's server, within ``max_blob_bytes``.
    ``http`` and ``s3`` refuse such places, unless ``allow_private`` says that the network is a closed one.

    Name, description, tags and version are the entry's where they are not given; a version is also published as a
    label, for ``@handle/name@version``. The record is written last, so nobody ever finds half a dataset.

    Raises:
        SessionError: Nobody is logged in.
        SchemaError: The samples have no schema.
        AtmosphereError: Others could not read the data, it is too large for blobs, or the server refuses it.
    """
    client.require_login()
    given: dict[str, Any] = {"description": description, "tags": tags, "version": version}
    said = {word: getattr(entry, word, None) if value is None else value for word, value in given.items()}
    made = client.publish_shards(
        _shards(entry),
        name=name or entry.name,
        schema=_schema(entry, index),
        storage=storage,
        description=said["description"] or "",
        tags=said["tags"] or (),
        license=license,
        metadata=_metadata(entry),
        version=said["version"],
        allow_private=allow_private,
        max_blob_bytes=max_blob_bytes,
        progress=progress,
    )
    return str(made.uri)


def _schema(entry: IndexEntry, index: AbstractIndex | None) -> AtUri | Schema:
    ref = entry.schema_ref
    if ref.startswith("at://"):
        return AtUri.parse(ref)
    if not ref or index is None:
        raise SchemaError(
            "the samples have no schema",
            found=entry.name,
            hint="insert typed samples, or pass schema_ref= to insert_dataset",
        )
    return schema_from_record(index.get_schema(ref))


def _shards(entry: IndexEntry) -> list[SourceShard]:
    if not isinstance(entry, Entry):
        return shards_of(entry.data_urls)
    entry.reach()
    return [
        SourceShard(entry.storage.url(shard.path), shard.split, shard.samples, shard.sha256) for shard in entry.shards
    ]


def _metadata(entry: IndexEntry) -> Mapping[str, Any] | None:
    return entry.metadata or None
