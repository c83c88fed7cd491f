"""What was followed, in the local index: a dataset of others as ``handle/name``, with its URI in the metadata."""

from __future__ import annotations

import contextlib
import re

from shoal.errors import AtmosphereError, CatalogError, OptionError, ShoalError
from shoal.local import Entry, LocalIndex, Storage, StoredShard

from ._at_uri import AtUri
from ._followed import Event
from ._lexicon import ENTRY, LEGACY_ENTRIES
from ._network import Network
from ._read import told_records
from ._records import PublishedDataset, dataset_from_record
from ._storage import Checksum, StorageBlobs

__all__ = ["fill"]


def fill(network: Network, index: LocalIndex, event: Event) -> None:
    """Take one event into an index; once more changes nothing. What cannot be kept there is passed over."""
    if event.uri.collection not in (ENTRY, *LEGACY_ENTRIES):
        return
    before = _known(index, event.uri)
    if event.value is None:
        if before is not None:
            index.delete(before.name)
        return
    with contextlib.suppress(AtmosphereError, OptionError):
        dataset = dataset_from_record(event.uri, event.cid, event.value)
        _record(index, dataset, _name(network, dataset))


def _known(index: LocalIndex, uri: AtUri) -> Entry | None:
    """The entry of this URI, whatever it is called."""
    with contextlib.suppress(CatalogError, OptionError):
        for entry in index.search(str(uri.rkey), limit=1000):
            if (entry.metadata or {}).get("uri") == str(uri):
                return entry
    return None


def _name(network: Network, dataset: PublishedDataset) -> str:
    """``handle/name``, in letters that a name may have."""
    try:
        who = network.identities.find(dataset.uri.authority).handle or dataset.uri.authority
    except ShoalError:
        who = dataset.uri.authority
    parts = [re.sub(r"[^\w.-]+", "-", part).strip("-._") for part in (who, *dataset.name.split("/"))]
    return "/".join(part for part in parts if part)[:200].rstrip("/")


def _record(index: LocalIndex, dataset: PublishedDataset, name: str) -> None:
    told = told_records(dataset)
    sums = _checksums(dataset)
    shards = [
        StoredShard(url, str(one.get("split") or "train"), one.get("samples"), int(one.get("bytes") or 0), digest)
        for url, digest, one in zip(dataset.data_urls, sums, told or [{}] * len(sums), strict=True)
    ]
    index.record_dataset(
        name=name,
        cid=str(dataset.cid or dataset.uri),
        storage=Storage(str(dataset.uri)),
        shards=shards,
        schema_ref=dataset.schema_ref,
        description=dataset.description,
        tags=dataset.tags,
        metadata={"uri": str(dataset.uri), "key": str(dataset.uri.rkey), "license": dataset.license},
    )


def _checksums(dataset: PublishedDataset) -> list[str | None]:
    storage = dataset.storage
    if isinstance(storage, StorageBlobs):
        return [blob.cid.sha256 for blob in storage.blobs]
    return [_sha256(shard.checksum) for shard in storage.shards]


def _sha256(checksum: Checksum | None) -> str | None:
    return checksum.digest if checksum is not None and checksum.algorithm == "sha256" else None
