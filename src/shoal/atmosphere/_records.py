"""Published records as values, and their JSON form: datasets, schemas, labels, lenses and verifications."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.errors import AtmosphereError, RecordError, SchemaError
from shoal.schema._json_schema import schema_from_json, schema_to_json
from shoal.schema._schema import Schema

from ._identifiers import AtUri, Cid
from ._lexicons import ENTRY, LABEL, LENS, LENS_VERIFICATION, NAMESPACE, SCHEMA
from ._storage import (
    BlobShard,
    Checksum,
    Storage,
    StorageBlobs,
    StorageExternal,
    StorageHttp,
    StorageS3,
    UrlShard,
)

__all__ = [
    "METADATA_KEY",
    "CodeReference",
    "PublishedDataset",
    "PublishedLabel",
    "PublishedLens",
    "PublishedSchema",
    "PublishedVerification",
    "dataset_from_record",
    "dataset_to_record",
    "label_from_record",
    "label_to_record",
    "lens_from_record",
    "lens_to_record",
    "published_schema",
    "schema_from_record",
    "schema_to_record",
    "shard_metadata_records",
    "storage_from_record",
    "storage_to_record",
    "to_count",
    "verification_from_record",
    "verification_to_record",
]

METADATA_KEY = "shoal"
"""Key in a dataset's metadata under which the name, split, samples and bytes of each shard are listed."""
_MAX_METADATA_BYTES = 100_000
_MAX_SHARDS = 100_000
"""A few letters of brace notation, {0..999999999}, could ask for any number of shards."""


@dataclass(frozen=True, slots=True)
class PublishedDataset:
    """A dataset's record. It also is an entry of an index: ``name``, ``schema_ref``, ``data_urls``, ``metadata``."""

    uri: AtUri
    cid: Cid | None
    name: str
    schema_ref: str
    storage: Storage
    description: str = ""
    tags: tuple[str, ...] = ()
    license: str = ""
    metadata: dict[str, Any] | None = None
    samples: int | None = None
    bytes: int | None = None
    created_at: str = ""

    @property
    def data_urls(self) -> list[str]:
        """Where the shards are: URLs, or for blobs ``at://DID/blob/CID`` as atdata writes them."""
        if isinstance(self.storage, StorageBlobs):
            return [f"at://{self.uri.authority}/blob/{blob.cid}" for blob in self.storage.blobs]
        prefix = f"s3://{self.storage.bucket}/" if isinstance(self.storage, StorageS3) else ""
        return [prefix + shard.url for shard in self.storage.shards]


@dataclass(frozen=True, slots=True)
class PublishedSchema:
    """A schema's record."""

    uri: AtUri
    cid: Cid | None
    schema: Schema
    description: str = ""
    created_at: str = ""

    @property
    def name(self) -> str:
        """What the class is called."""
        return self.schema.name

    @property
    def version(self) -> str:
        """MAJOR.MINOR.PATCH."""
        return self.schema.version


@dataclass(frozen=True, slots=True)
class PublishedLabel:
    """A name, and a version, that a dataset has."""

    uri: AtUri
    cid: Cid | None
    name: str
    dataset_uri: AtUri
    version: str | None = None
    description: str = ""
    created_at: str = ""


@dataclass(frozen=True, slots=True)
class CodeReference:
    """Where published code is: a function in a file, at a commit of a repository.

    Raises:
        RecordError: The commit is not a full hash: a branch or a tag could be moved.

    Examples:
        >>> CodeReference("https://example.org/r.git", "0" * 40, "views.py:shorten").function
        'shorten'
    """

    repository: str
    commit: str
    path: str
    branch: str | None = None
    language: str | None = "python"

    def __post_init__(self) -> None:
        if re.fullmatch(r"[0-9a-f]{40}", self.commit) is None:
            raise RecordError("code is published at a commit", expected="40 hex digits", found=repr(self.commit))

    @property
    def file(self) -> str:
        """The path of the file in the repository."""
        return self.path.rpartition(":")[0] or self.path

    @property
    def function(self) -> str:
        """The name of the function in the file."""
        return self.path.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class PublishedLens:
    """A lens's record. The code stays where it is, and is run by nobody who did not say yes to it."""

    uri: AtUri
    cid: Cid | None
    name: str
    source_schema: AtUri
    target_schema: AtUri
    getter: CodeReference
    putter: CodeReference
    description: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: str = ""


@dataclass(frozen=True, slots=True)
class PublishedVerification:
    """Somebody's word that a lens, as its record was at a CID, does what it says."""

    uri: AtUri
    cid: Cid | None
    lens: AtUri
    lens_cid: Cid
    method: str
    code_sha256: str | None = None
    description: str = ""
    created_at: str = ""


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact not in (None, "", [], {})}


def storage_to_record(storage: Storage) -> dict[str, Any]:
    """A storage in the JSON form of a record. Raises RecordError for the legacy one, which is only read.

    Examples:
        >>> shard = UrlShard("https://example.org/a.tar", Checksum("sha256", "00" * 32))
        >>> storage_to_record(StorageHttp((shard,)))["shards"][0]["url"]
        'https://example.org/a.tar'
    """
    if isinstance(storage, StorageHttp):
        shards = [{"url": shard.url, "checksum": _checksum_to_record(shard.checksum)} for shard in storage.shards]
        return {"$type": f"{NAMESPACE}.storageHttp", "shards": shards}
    if isinstance(storage, StorageS3):
        keys = [{"key": shard.url, "checksum": _checksum_to_record(shard.checksum)} for shard in storage.shards]
        facts = {"bucket": storage.bucket, "region": storage.region, "endpoint": storage.endpoint, "shards": keys}
        return {"$type": f"{NAMESPACE}.storageS3", **{name: fact for name, fact in facts.items() if fact is not None}}
    if isinstance(storage, StorageBlobs):
        return {"$type": f"{NAMESPACE}.storageBlobs", "blobs": [_blob_to_record(blob) for blob in storage.blobs]}
    raise RecordError("storageExternal is only read", expected="storageHttp, storageS3 or storageBlobs")


def _checksum_to_record(checksum: Checksum | None) -> dict[str, str]:
    if checksum is None or not checksum.is_real:
        raise RecordError("a published shard has a checksum", expected="sha256 and its digest", found=checksum)
    return {"algorithm": checksum.algorithm, "digest": checksum.digest}


def _blob_to_record(shard: BlobShard) -> dict[str, Any]:
    link = {"$type": "blob", "ref": {"$link": str(shard.cid)}, "mimeType": shard.mime_type, "size": shard.size}
    return {"blob": link} if shard.checksum is None else {"blob": link, "checksum": _checksum_to_record(shard.checksum)}


def storage_from_record(record: Any) -> Storage:
    """The storage that a record tells of, in any form that was ever written. Raises RecordError."""
    if not isinstance(record, Mapping):
        raise RecordError("a dataset's record tells no storage", found=type(record).__name__, field="$.storage")
    kind = str(record.get("$type", "")).rpartition(".")[2].removesuffix("#main")
    try:
        storage = _STORAGE_READERS[kind](record)
        count = len(storage.blobs if isinstance(storage, StorageBlobs) else storage.shards)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(
            "a dataset's storage cannot be read",
            expected=", ".join(_STORAGE_READERS),
            found=kind or record,
            field="$.storage",
        ) from error
    if not 0 < count <= _MAX_SHARDS:
        raise RecordError("a dataset's storage is out of bounds", expected=f"1 to {_MAX_SHARDS} shards", found=count)
    return storage


def _checksum_from_record(record: Mapping[str, Any]) -> Checksum | None:
    found = record.get("checksum")
    return Checksum(str(found["algorithm"]), str(found["digest"])) if isinstance(found, Mapping) else None


def _http_from_record(record: Mapping[str, Any]) -> Storage:
    if "shards" not in record:  # before there were checksums
        return _external_from_record(record)
    return StorageHttp(tuple(UrlShard(str(shard["url"]), _checksum_from_record(shard)) for shard in record["shards"]))


def _s3_from_record(record: Mapping[str, Any]) -> Storage:
    shards = tuple(UrlShard(str(shard["key"]), _checksum_from_record(shard)) for shard in record["shards"])
    return StorageS3(str(record["bucket"]), shards, record.get("region"), record.get("endpoint"))


def _blobs_from_record(record: Mapping[str, Any]) -> Storage:
    return StorageBlobs(tuple(_blob_from_record(shard) for shard in record["blobs"]))


def _blob_from_record(shard: Mapping[str, Any]) -> BlobShard:
    blob = shard.get("blob", shard)  # before v0.6 the blobs themselves were in the list
    ref = blob["ref"]
    link = ref["$link"] if isinstance(ref, Mapping) else ref
    return BlobShard(Cid.parse(link), int(blob["size"]), str(blob["mimeType"]), _checksum_from_record(shard))


def _external_from_record(record: Mapping[str, Any]) -> Storage:
    return StorageExternal(tuple(str(url) for url in record["urls"]))


_STORAGE_READERS = {
    "storageHttp": _http_from_record,
    "storageS3": _s3_from_record,
    "storageBlobs": _blobs_from_record,
    "storageExternal": _external_from_record,
}


def dataset_to_record(of: PublishedDataset) -> dict[str, Any]:
    """The record of a dataset, for the lexicon ``science.alt.dataset.entry``."""
    storage = of.storage
    count = len(storage.blobs if isinstance(storage, StorageBlobs) else storage.shards)
    return _present(
        {
            "$type": ENTRY,
            "name": of.name,
            "schemaRef": of.schema_ref,
            "storage": storage_to_record(storage),
            "description": of.description,
            "metadata": _bytes_of(of.metadata) if of.metadata else None,
            "tags": list(of.tags),
            "size": _present({"samples": of.samples, "bytes": of.bytes, "shards": count}),
            "license": of.license,
            "createdAt": of.created_at,
        }
    )


def _bytes_of(metadata: dict[str, Any]) -> dict[str, str]:
    try:
        data = msgspec.msgpack.encode(metadata)
    except (TypeError, msgspec.MsgspecError) as error:
        raise RecordError("metadata is plain data", expected="what MessagePack can say", found=error) from error
    return {"$bytes": base64.b64encode(data).decode().rstrip("=")}


def dataset_from_record(uri: AtUri, cid: Cid | None, record: Mapping[str, Any]) -> PublishedDataset:
    """The dataset that a record tells of, in any form that was ever written. Raises RecordError."""
    try:
        size = record.get("size") or {}
        return PublishedDataset(
            uri,
            cid,
            str(record["name"]),
            str(record["schemaRef"]),
            storage_from_record(record["storage"]),
            str(record.get("description") or ""),
            tuple(str(tag) for tag in record.get("tags") or ()),
            str(record.get("license") or ""),
            _read_metadata(record.get("metadata")),
            to_count(size.get("samples")),
            to_count(size.get("bytes")),
            str(record.get("createdAt") or ""),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(uri, error) from error


def to_count(value: Any) -> int | None:
    """Return a value of a record that is a count; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read_metadata(value: Any) -> dict[str, Any] | None:
    """The metadata of a dataset: MessagePack bytes as the lexicon says, or a plain object as atdata writes."""
    if not isinstance(value, Mapping):
        return None
    if value.keys() != {"$bytes"}:
        return {str(name): inner for name, inner in value.items() if name != "$type"}
    text = str(value["$bytes"])
    if len(text) > 2 * _MAX_METADATA_BYTES:
        raise RecordError("a dataset's metadata is too large", expected=f"at most {_MAX_METADATA_BYTES} bytes")
    try:
        found = msgspec.msgpack.decode(base64.b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError) as error:
        raise RecordError("a dataset's metadata is no MessagePack", field="$.metadata") from error
    return found if isinstance(found, dict) else {"value": found}


def shard_metadata_records(dataset: PublishedDataset) -> list[dict[str, Any]]:
    """Return the metadata that the publisher listed for each shard; empty if there is none or it is malformed."""
    storage, metadata = dataset.storage, dataset.metadata or {}
    listed = metadata.get(METADATA_KEY)
    records = listed.get("shards") if isinstance(listed, Mapping) else None
    count = len(storage.blobs if isinstance(storage, StorageBlobs) else storage.shards)
    if not isinstance(records, list) or len(records) != count:
        return []
    good = all(isinstance(one, dict) and isinstance(one.get("path"), str) and one["path"] for one in records)
    return records if good else []


def _unreadable(uri: AtUri, error: Exception) -> RecordError:
    return RecordError("a record cannot be read", found=f"{type(error).__name__}: {error}", key=str(uri))


def published_schema(uri: AtUri, cid: Cid | None, record: Mapping[str, Any]) -> PublishedSchema:
    """The schema that a record tells of. Raises RecordError."""
    text = str(record.get("description") or "")
    return PublishedSchema(uri, cid, schema_from_record(record), text, str(record.get("createdAt") or ""))


def label_to_record(of: PublishedLabel) -> dict[str, Any]:
    """The record of a label."""
    facts = {"name": of.name, "datasetUri": str(of.dataset_uri), "version": of.version, "description": of.description}
    return _present({"$type": LABEL, **facts, "createdAt": of.created_at})


def label_from_record(uri: AtUri, cid: Cid | None, record: Mapping[str, Any]) -> PublishedLabel:
    """The label that a record tells of. Raises RecordError."""
    try:
        target = AtUri.parse(str(record["datasetUri"]))
        words = str(record.get("description") or ""), str(record.get("createdAt") or "")
        return PublishedLabel(uri, cid, str(record["name"]), target, record.get("version") or None, *words)
    except (KeyError, TypeError, AttributeError, AtmosphereError) as error:
        raise _unreadable(uri, error) from error


def lens_to_record(of: PublishedLens) -> dict[str, Any]:
    """The record of a lens."""
    facts = {"name": of.name, "sourceSchema": str(of.source_schema), "targetSchema": str(of.target_schema)}
    code = {"getterCode": _code_to_record(of.getter), "putterCode": _code_to_record(of.putter)}
    words = {"description": of.description, "metadata": of.metadata, "createdAt": of.created_at}
    return _present({"$type": LENS, **facts, **code, **words})


def _code_to_record(of: CodeReference) -> dict[str, Any]:
    facts = {"repository": of.repository, "commit": of.commit, "path": of.path, "branch": of.branch}
    return _present({**facts, "language": of.language})


def _code_from_record(record: Mapping[str, Any]) -> CodeReference:
    where = str(record["repository"]), str(record["commit"]), str(record["path"])
    return CodeReference(*where, record.get("branch"), record.get("language"))


def lens_from_record(uri: AtUri, cid: Cid | None, record: Mapping[str, Any]) -> PublishedLens:
    """The lens that a record tells of. Raises RecordError."""
    try:
        ends = AtUri.parse(str(record["sourceSchema"])), AtUri.parse(str(record["targetSchema"]))
        code = _code_from_record(record["getterCode"]), _code_from_record(record["putterCode"])
        words = str(record.get("description") or ""), dict(record.get("metadata") or {})
        return PublishedLens(uri, cid, str(record["name"]), *ends, *code, *words, str(record.get("createdAt") or ""))
    except (KeyError, TypeError, AttributeError, AtmosphereError) as error:
        raise _unreadable(uri, error) from error


def verification_to_record(of: PublishedVerification) -> dict[str, Any]:
    """The record of a verification."""
    digest = None if of.code_sha256 is None else {"algorithm": "sha256", "digest": of.code_sha256}
    facts = {"lens": str(of.lens), "lensCommit": str(of.lens_cid), "verificationMethod": of.method}
    words = {"codeHash": digest, "description": of.description, "createdAt": of.created_at}
    return _present({"$type": LENS_VERIFICATION, **facts, **words})


def verification_from_record(uri: AtUri, cid: Cid | None, record: Mapping[str, Any]) -> PublishedVerification:
    """The verification that a record tells of. Raises RecordError."""
    try:
        digest = record.get("codeHash") or {}
        sha256 = str(digest["digest"]) if digest.get("algorithm") == "sha256" else None
        facts = AtUri.parse(str(record["lens"])), Cid.parse(str(record["lensCommit"]))
        method = str(record["verificationMethod"]).rpartition("#")[2]
        words = str(record.get("description") or ""), str(record.get("createdAt") or "")
        return PublishedVerification(uri, cid, *facts, method, sha256, *words)
    except (KeyError, TypeError, AttributeError, AtmosphereError) as error:
        raise _unreadable(uri, error) from error


_SAFE = 2**53 - 1
_AS_TEXT = "x-shoal-json"
"""Where values are kept as JSON text that a record cannot hold: floats, and integers beyond 53 bits."""
_MOST_BYTES = 1 << 20


def schema_to_record(schema: Schema, created_at: str, *, description: str | None = None) -> dict[str, Any]:
    """The record of a schema.

    The whole document is under ``content``, as the lexicon asks. Its words also stand beside it, where atdata looks.

    Examples:
        >>> from shoal.schema import Default, Field, FloatType
        >>> schema = Schema("S", (Field("x", FloatType(), Default("0.5")),))
        >>> record = schema_to_record(schema, "2026-01-01T00:00:00Z")
        >>> record["schema"]["content"]["properties"]["x"]
        {'type': 'number', 'x-shoal-json': {'default': '0.5'}}
        >>> schema_from_record(record) == schema
        True
    """
    document = _without_floats(schema_to_json(schema))
    words = {name: document[name] for name in ("$schema", "type", "properties", "required") if name in document}
    record = {
        "$type": SCHEMA,
        "name": schema.name,
        "version": schema.version,
        "schemaType": "jsonSchema",
        "schema": {
            "$type": f"{SCHEMA}#jsonSchemaFormat",
            "draft": "draft-07",
            "content": document,
            **words,
            "arrayFormatVersions": {"ndarrayBytes": "1.0.0"},
        },
        "createdAt": created_at,
        "atdataSchemaVersion": 1,
    }
    text = description or schema.description
    return {**record, "description": text[:5000]} if text else record


def schema_from_record(record: Mapping[str, Any]) -> Schema:
    """The schema that a record tells of: the lexicon's form, atdata's, and those of before v0.6.

    Only data comes of it: types, names and defaults. Raises RecordError.
    """
    try:
        document = _document(record)
        if len(json.dumps(document)) > _MOST_BYTES:
            raise RecordError("a schema's document is too large", expected=f"at most {_MOST_BYTES} bytes")
        titled = {"title": record["name"], "x-shoal-version": record.get("version", "1.0.0"), **document}
        if record.get("description") and "description" not in titled:
            titled["description"] = record["description"]
        return schema_from_json(titled)
    except RecordError:
        raise
    except (SchemaError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError("a schema's record cannot be read", found=error, field="$.schema") from error


def _document(record: Mapping[str, Any]) -> dict[str, Any]:
    if "fields" in record:
        return _from_fields(record["fields"])
    schema = record["schema"]
    if isinstance(schema.get("content"), Mapping):
        return dict(_with_floats(schema["content"]))
    if "schemaBody" in schema:  # a document as text
        return dict(json.loads(schema["schemaBody"]))
    return dict(_with_floats({name: value for name, value in schema.items() if name != "$type"}))


def _is_safe(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_safe, value.values()))
    if isinstance(value, list):
        return all(map(_is_safe, value))
    return not isinstance(value, float) and (not isinstance(value, int) or abs(value) <= _SAFE)


def _without_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_floats(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    # What holds documents is gone into; anything else, such as a default or an enum, is kept whole.
    kept = {name: inner for name, inner in value.items() if _is_safe(inner) or name in _HOLDERS}
    texts = {name: json.dumps(inner) for name, inner in value.items() if name not in kept}
    kept = {name: _inner(name, inner) for name, inner in kept.items()}
    return {**kept, _AS_TEXT: texts} if texts else kept


_HOLDERS = frozenset({"properties", "items", "anyOf", "oneOf", "allOf", "additionalProperties", "definitions", "$defs"})
_NAMED = frozenset({"properties", "definitions", "$defs"})


def _inner(name: str, value: Any) -> Any:
    if name in _NAMED and isinstance(value, dict):
        return {field: _without_floats(inner) for field, inner in value.items()}
    return _without_floats(value) if name in _HOLDERS else value


def _with_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_floats(inner) for inner in value]
    if not isinstance(value, Mapping):
        return value
    texts: Any = value.get(_AS_TEXT)
    found = {name: _with_floats(inner) for name, inner in value.items() if name != _AS_TEXT or not _is_texts(texts)}
    return {**found, **{name: json.loads(text) for name, text in texts.items()}} if _is_texts(texts) else found


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())


def _from_fields(fields: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of the oldest records: a list of fields, each with a ``fieldType``."""
    properties = {str(field["name"]): _of_field_type(field["fieldType"]) for field in fields}
    required = [str(field["name"]) for field in fields if not field.get("optional", False)]
    return {"type": "object", "properties": properties, "required": required, "x-shoal-order": list(properties)}


_PRIMITIVES = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte", "contentEncoding": "base64"},
}


def _of_field_type(kind: Mapping[str, Any]) -> dict[str, Any]:
    word = str(kind.get("$type", "")).rpartition("#")[2]
    if word == "primitive":
        return dict(_PRIMITIVES[str(kind["primitive"])])
    if word == "array":
        return {"type": "array", "items": _of_field_type(kind["items"])}
    if word in ("ndarray", "structured"):
        facts = {"x-atdata-dtype": kind.get("dtype"), "x-atdata-shape": kind.get("shape")}
        return {"$ref": f"{NAMESPACE}/ndarray", **{name: fact for name, fact in facts.items() if fact is not None}}
    return dict(_PRIMITIVES["bytes"])
