"""Publish a dataset of a local index on the AT Protocol network: `promote_to_atmosphere`.

Examples:
    >>> from shoal.promote import promote_to_atmosphere
    >>> promote_to_atmosphere.__name__
    'promote_to_atmosphere'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from shoal.atmosphere._client import AtmosphereClient
from shoal.atmosphere._identifiers import AtUri
from shoal.atmosphere._publish import SourceShard, shards_of
from shoal.atmosphere._records import schema_from_record
from shoal.dataset._dataset import Dataset
from shoal.errors import AtmosphereError, SchemaError
from shoal.local._entry import Entry
from shoal.protocols import AbstractIndex, IndexEntry
from shoal.schema._schema import Schema

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
    """Publish a dataset of an index, with the schema of its samples; return its ``at://`` URI.

    Publishing twice gives the same URI: the record's key depends on the name, the schema and the hashes of the shards.
    ``storage`` selects where the bytes are read from. ``auto`` leaves them in place if they are public; local paths,
    loopback and private addresses become blobs of the account's server, up to ``max_blob_bytes``. ``http`` and ``s3``
    raise an error for such locations, unless ``allow_private`` is true (for closed networks).

    Name, description, tags and version default to those of the entry; a version is also published as a label, for
    ``@handle/name@version``. The record is written last, so an incomplete dataset is never visible.

    Raises:
        SessionError: The client is not logged in.
        SchemaError: The samples have no schema.
        AtmosphereError: The data is not public, holds deleted samples, is too large for blobs, or is rejected by the
            server.
    """
    client.require_login()
    args: dict[str, Any] = {"description": description, "tags": tags, "version": version}
    settings = {name: getattr(entry, name, None) if value is None else value for name, value in args.items()}
    published = client.publish_shards(
        _shards(entry),
        name=name or entry.name,
        schema=_schema(entry, index),
        storage=storage,
        description=settings["description"] or "",
        tags=settings["tags"] or (),
        license=license,
        metadata=entry.metadata or None,
        version=settings["version"],
        allow_private=allow_private,
        max_blob_bytes=max_blob_bytes,
        progress=progress,
    )
    return str(published.uri)


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
    dataset: Dataset[Any] = Dataset([entry.storage.url(shard.path) for shard in entry.shards])
    if not dataset.is_whole:
        raise AtmosphereError(
            "samples that were deleted are still in the shards, and would be published with them",
            found=f"{len(dataset.source) - len(dataset)} of {entry.reference}",
            hint="write the others as a new dataset with `shoal reshard`, and promote that",
        )
    return [
        SourceShard(entry.storage.url(shard.path), shard.split, shard.samples, shard.sha256) for shard in entry.shards
    ]
