"""Datasets on the AT Protocol network: publish, find, load, follow.

::

    _client      AtmosphereClient: what users call        _resolver   load_dataset("at://..."), "@handle/name"
    _at_uri _cid _tid   names as parsed values            lexicons/   what every record looks like
    _lexicon _validate  records against their lexicons    _records _schema_record _storage   records as values
    _network     repositories: get, list, put, delete     _identity   handle -> DID -> server
    _service _http _guard   one server; what may be asked _publish _upload _source_shards   datasets outwards
    _read _fetch _mounted _pull   inwards, checked        _lenses _code   lenses by reference, run after a yes
    _search _appview _followed _watch _fill   finding and following

Example:
    >>> from shoal.atmosphere import AtUri, parse_ref
    >>> parse_ref("@alice.test/pets@1.0.0").version
    '1.0.0'
"""

from ._client import AtmosphereClient, AtmosphereResolver, default_client, resolver, set_default_client
from ._firehose import Event, Followed
from ._identifiers import AtUri, Cid, DatasetRef, parse_ref
from ._lenses import CodeOffer
from ._lexicons import lexicon, lexicons, validate_record
from ._open import AppView
from ._pds import Patience, session_file
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
    SourceShard,
    StorageBlobs,
    StorageExternal,
    StorageHttp,
    StorageS3,
    UrlShard,
    shards_of,
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
