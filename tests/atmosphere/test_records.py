"""Records as values and against their lexicons, compared with another implementation of both."""

from __future__ import annotations

import copy
import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.atmosphere.conftest import Pet
from tests.atmosphere.test_publish import peer_says

import shoal
from shoal.atmosphere import (
    AtUri,
    Checksum,
    Cid,
    CodeReference,
    StorageBlobs,
    StorageExternal,
    StorageHttp,
    StorageS3,
    UrlShard,
    lexicon,
    lexicons,
    schema_from_record,
    schema_to_record,
    validate_record,
)
from shoal.atmosphere._records import (
    PublishedDataset,
    PublishedLabel,
    PublishedLens,
    PublishedVerification,
    dataset_from_record,
    dataset_to_record,
    label_from_record,
    label_to_record,
    lens_from_record,
    lens_to_record,
    storage_from_record,
    storage_to_record,
    verification_from_record,
    verification_to_record,
)
from shoal.atmosphere._storage import BlobShard, shard_names
from shoal.errors import AtmosphereError, RecordError
from shoal.sample import class_from_schema, schema_of
from shoal.schema import Default, Field, FloatType, IntType, ListType, RecordType, Schema

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
URI = AtUri(DID, "science.alt.dataset.entry", "3jzfcijpj2z2a")
NOW = "2026-01-01T00:00:00.000Z"
SUM = Checksum("sha256", "ab" * 32)


def blob(size=10):
    return BlobShard(Cid.of_bytes(b"x"), size, checksum=SUM)


STORAGES = [
    StorageHttp((UrlShard("https://a.org/train-0.tar", SUM), UrlShard("https://a.org/test-0.tar", SUM))),
    StorageS3("bucket", (UrlShard("folder/a.tar", SUM),), "eu-west-1", "https://s3.example.org"),
    StorageS3("bucket", (UrlShard("a.tar", SUM),)),
    StorageBlobs((blob(), BlobShard(Cid.of_bytes(b"y"), 5))),
]


def dataset(storage):
    said = ("words", ("a", "b"), "CC0-1.0", {"x": 0.5, "nested": {"y": [1, None, b"z"]}}, 10, 2000, NOW)
    return PublishedDataset(URI, None, "pets", str(URI), storage, *said)


def lens():
    code = CodeReference("https://example.org/r.git", "0" * 40, "a/views.py:shorten", "main")
    return PublishedLens(URI, None, "short", URI, URI, code, code, "words", {"level": 3}, NOW)


def every_record():
    """One of each kind that is written."""
    yield from (dataset_to_record(dataset(storage)) for storage in STORAGES)
    yield schema_to_record(schema_of(Pet), NOW, description="a pet")
    yield label_to_record(PublishedLabel(URI, None, "pets", URI, "1.0.0", "words", NOW))
    yield label_to_record(PublishedLabel(URI, None, "pets", URI, created_at=NOW))
    yield lens_to_record(lens())
    yield verification_to_record(
        PublishedVerification(URI, None, URI, Cid.of_bytes(b""), "codeReview", "ab" * 32, "words", NOW)
    )


@pytest.mark.parametrize("storage", STORAGES, ids=lambda storage: type(storage).__name__)
def test_datasets_come_back(storage):
    made = dataset(storage)
    record = json.loads(json.dumps(dataset_to_record(made)))
    validate_record(record)
    assert dataset_from_record(URI, None, record) == made


def test_the_rest_comes_back():
    label = PublishedLabel(URI, None, "pets", URI, "1.0.0", "words", NOW)
    assert label_from_record(URI, None, label_to_record(label)) == label
    assert lens_from_record(URI, None, lens_to_record(lens())) == lens()
    said = PublishedVerification(URI, None, URI, Cid.of_bytes(b""), "formalProof", None, "", NOW)
    assert verification_from_record(URI, None, verification_to_record(said)) == said


def test_the_lexicons_are_those_that_the_network_reads():
    """Its own library takes all of them, and every kind of record that is written fits."""
    records = list(every_record())
    assert peer_says(records) == [None] * len(records)
    assert {name.rpartition(".")[2] for name in lexicons()} >= {
        *("schema", "entry", "label", "lens", "lensVerification"),
        *("storageHttp", "storageS3", "storageBlobs", "storageExternal"),
        *("schemaType", "arrayFormat", "programmingLanguage", "verificationMethod", "resolveLabel", "resolveSchema"),
    }
    with pytest.raises(RecordError, match="there is no such lexicon"):
        lexicon("a.b.c")


# Where ours asks for more: kinds of storage that readers would not know, blobs as servers give them, base64 that is.
STRICTER = ("$type", "a blob", "a link", "base64", "found nothing", "an object, found [")
SPOILS = [None, "", "x" * 6000, 1, -1, True, [], {}, "at://x", "2026-01-01", ["x"] * 40, {"$type": "a.b.c"}, "https://"]


def spoiled(record, rng):
    """The record with one value somewhere replaced or removed."""
    changed = copy.deepcopy(record)
    places = []

    def walk(node):
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        for name, inner in items:
            if name != "content":  # a document of its own, of which the lexicon says nothing
                places.append((node, name))
                if isinstance(inner, dict | list):
                    walk(inner)

    walk(changed)
    node, name = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.3:
        del node[name]
    else:
        node[name] = rng.choice(SPOILS)
    return changed


def test_the_validator_agrees_with_the_networks_own():
    rng = random.Random(7)
    records = [spoiled(record, rng) for record in every_record() for _ in range(120)]
    records = [record for record in records if str(record.get("$type")) in lexicons()]
    theirs = peer_says(records)
    refused = 0
    for record, peer in zip(records, theirs, strict=True):
        try:
            validate_record(record)
            ours = None
        except RecordError as error:
            ours = str(error)
        refused += ours is not None
        if peer is not None:
            assert ours is not None, (peer, record)
        elif ours is not None:
            assert any(word in ours for word in STRICTER), (ours, record)
    assert 200 < refused < len(records) - 50


@pytest.mark.parametrize(
    "change, path",
    [
        ({"tags": ["a"] * 31}, "$.tags"),
        ({"size": {"samples": 1.5}}, "$.size.samples"),
        ({"size": {"samples": 2**53}}, "$.size.samples"),
        ({"createdAt": "2026-13-01T00:00:00Z"}, "$.createdAt"),
        ({"metadata": {"$bytes": "?"}}, "$.metadata"),
        ({"metadata": {"split": "train"}}, "$.metadata"),
        ({"storage": {"$type": "science.alt.dataset.storageHttp", "shards": []}}, "$.storage.shards"),
        ({"storage": {"$type": "science.alt.dataset.storageExternal", "urls": ["a"]}}, "$.storage.$type"),
        ({"name": "ä" * 101}, "$.name"),
        ({"contentMetadata": {"x": [0.5]}}, "$.contentMetadata.x[0]"),
    ],
)
def test_what_does_not_fit_says_where(change, path):
    with pytest.raises(RecordError) as raised:
        validate_record({**dataset_to_record(dataset(STORAGES[0])), **change})
    assert raised.value.field == path


def test_only_real_checksums_are_written():
    with pytest.raises(RecordError, match="a published shard has a checksum"):
        storage_to_record(StorageHttp((UrlShard("https://a.org/a.tar", Checksum("none", "")),)))
    with pytest.raises(RecordError, match="storageExternal is only read"):
        storage_to_record(StorageExternal(("https://a.org/a.tar",)))


# -------------------------------------------------------------------------------------------------------------- reading

NDARRAY = "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"
NEWER_NDARRAY = "https://json-schema.alt.science/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"


def document(ref):
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"image": {"$ref": ref}, "label": {"type": "string"}, "score": {"type": "number"}},
        "required": ["image", "label"],
    }


@pytest.mark.parametrize("ref", [NDARRAY, NEWER_NDARRAY])
@pytest.mark.parametrize("form", ["atdata", "authoritative", "with $atdataSchemaVersion"])
def test_schemas_of_every_writer_are_read(ref, form):
    head = {"$type": "science.alt.dataset.schema", "name": "ImageSample", "version": "1.2.0", "createdAt": NOW}
    kind = "science.alt.dataset.schema#jsonSchemaFormat"
    if form == "authoritative":
        inner = {"$type": kind, "draft": "draft-07", "content": document(ref)}
    else:
        inner = {"$type": kind, **document(ref), "arrayFormatVersions": {"ndarrayBytes": "1.0.0"}}
    extra = {"$atdataSchemaVersion": 1} if form.startswith("with") else {}
    schema = schema_from_record({**head, "schemaType": "jsonSchema", "schema": inner, **extra})
    assert str(schema) == "ImageSample@1.2.0(image: array, label: str, score: float | None)"
    class_from_schema(schema)


def test_the_oldest_schemas_are_read():
    kinds = {
        "image": {"$type": "ac.foundation.dataset.schema#ndarray", "dtype": "uint8", "shape": [None, None, 3]},
        "label": {"$type": "local#primitive", "primitive": "str"},
        "names": {"$type": "local#array", "items": {"$type": "local#primitive", "primitive": "str"}},
        "raw": {"$type": "local#primitive", "primitive": "bytes"},
        "table": {"$type": "local#dataframe"},
    }
    fields = [{"name": name, "fieldType": kind, "optional": name == "raw"} for name, kind in kinds.items()]
    schema = schema_from_record({"name": "S", "version": "0.1.0", "fields": fields})
    assert [str(field.type) for field in schema.fields] == [
        str(shoal.Array("uint8", (None, None, 3))),
        "str",
        "list[str]",
        "bytes | None",
        "bytes",
    ]


def test_storages_of_every_writer_are_read():
    name = "ac.foundation.dataset.storageExternal"
    old = storage_from_record({"$type": name, "urls": ["https://a.org/{000..002}.tar", "https://b.org/x.tar"]})
    assert [shard.url for shard in old.shards][2:] == ["https://a.org/002.tar", "https://b.org/x.tar"]
    none = {"url": "https://a.org/a.tar", "checksum": {"algorithm": "none", "digest": ""}}
    http = storage_from_record({"$type": "science.alt.dataset.storageHttp", "shards": [none]})
    assert not http.shards[0].checksum.is_real
    link = {"$type": "blob", "ref": {"$link": str(Cid.of_bytes(b""))}, "mimeType": "application/x-tar", "size": 1}
    bare = storage_from_record({"$type": "ac.foundation.dataset.storageBlobs", "blobs": [link]})
    assert bare.blobs[0].size == 1
    plain = dataset_to_record(dataset(STORAGES[0]))
    told = {"sourceUri": "x", "custom": {"a": 1}}
    assert dataset_from_record(URI, None, {**plain, "metadata": told}).metadata == told


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        {"$type": "a.storageFtp", "urls": []},
        {"$type": "a.storageHttp", "shards": []},
        {"$type": "a.storageHttp", "shards": [{}]},
        {"$type": "a.storageS3", "shards": [{"key": "a"}]},
        {"$type": "a.storageBlobs", "blobs": [{"blob": {"ref": {"$link": "no"}, "size": 1, "mimeType": ""}}]},
        {"$type": "a.storageExternal", "urls": ["{0..99999999}.tar"]},
    ],
)
def test_storages_that_make_no_sense_are_refused(record):
    with pytest.raises(AtmosphereError):
        storage_from_record(record)


def test_names_of_shards_are_all_different():
    urls = [
        "https://a.org/x/train-0.tar?sig=1",
        "https://b.org/train-0.tar",
        "https://a.org/",
        "https://a.org/a%2Fb.tar",
    ]
    names = shard_names(StorageHttp(tuple(UrlShard(url, SUM) for url in urls)))
    assert len(set(names)) == 4
    assert not any("/" in name or "?" in name for name in names)


@given(st.recursive(st.floats(allow_nan=False, allow_infinity=False) | st.integers(), st.lists, max_leaves=5))
def test_defaults_that_records_cannot_hold_come_back(value):
    inner = Schema("Inner", (Field("y", FloatType(), Default("2.5")),))
    fields = (
        Field("x", ListType(FloatType()), Default(json.dumps(value))),
        Field("n", IntType(), Default(str(2**60))),
        Field("inner", RecordType(inner)),
    )
    schema = Schema("S", fields, "1.2.3", "words")
    record = json.loads(json.dumps(schema_to_record(schema, NOW)))
    validate_record(record)
    assert schema_from_record(record) == schema


def test_metadata_is_bytes_and_may_hold_floats():
    record = dataset_to_record(dataset(STORAGES[0]))
    assert set(record["metadata"]) == {"$bytes"}
    with pytest.raises(RecordError, match="metadata is plain data"):
        dataset_to_record(
            shoal.atmosphere.PublishedDataset(URI, None, "a", str(URI), STORAGES[0], metadata={"x": object()})
        )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode({"x": 0.5})) == {"x": 0.5}
