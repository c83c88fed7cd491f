"""Datasets on the AT Protocol network: publish, find, load, follow.

Users call `AtmosphereClient`, or `load_dataset` with ``at://...`` or ``@handle/name``. ``_publish`` writes to one's own
repository, ``_open`` and ``_download`` read anybody's, ``_appview`` searches and ``_firehose`` follows. Below them,
``_records`` and ``_storage`` are records as values, ``_lexicons`` validates them, ``_repositories`` gets and puts them,
``_pds`` and ``_http`` make requests, and ``_identity`` finds an account's server.

Examples:
    >>> from shoal.atmosphere import AtUri, parse_ref
    >>> parse_ref("@alice.test/pets@1.0.0").version
    '1.0.0'
"""

from ._appview import AppView
from ._client import AtmosphereClient, AtmosphereResolver, default_client, resolver, set_default_client
from ._firehose import Event, Followed
from ._identifiers import AtUri, Cid, DatasetRef, parse_ref
from ._lenses import CodeOffer
from ._lexicons import lexicon, lexicons, validate_record
from ._pds import Patience, session_file
from ._publish import SourceShard, shards_of
from ._records import (
    CodeReference,
    PublishedDataset,
    PublishedLabel,
    PublishedLens,
    PublishedSchema,
    PublishedVerification,
    schema_from_record,
    schema_to_record,
)
from ._storage import (
    BlobShard,
    Checksum,
    StorageBlobs,
    StorageExternal,
    StorageHttp,
    StorageS3,
    UrlShard,
)

__all__ = [
    "AppView",
    "AtUri",
    "AtmosphereClient",
    "AtmosphereResolver",
    "BlobShard",
    "Checksum",
    "Cid",
    "CodeOffer",
    "CodeReference",
    "DatasetRef",
    "Event",
    "Followed",
    "Patience",
    "PublishedDataset",
    "PublishedLabel",
    "PublishedLens",
    "PublishedSchema",
    "PublishedVerification",
    "SourceShard",
    "StorageBlobs",
    "StorageExternal",
    "StorageHttp",
    "StorageS3",
    "UrlShard",
    "default_client",
    "lexicon",
    "lexicons",
    "parse_ref",
    "resolver",
    "schema_from_record",
    "schema_to_record",
    "session_file",
    "set_default_client",
    "shards_of",
    "validate_record",
]
