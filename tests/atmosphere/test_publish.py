"""Seed 002, end to end, on a real server: one account publishes, another finds, loads, verifies and trains."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.atmosphere.conftest import Pet, pets
from tests.atmosphere.servers import HERE, appview_stub
from tests.store.servers import BUCKET

import shoal
from shoal.atmosphere import (
    AtUri,
    Cid,
    StorageBlobs,
    StorageHttp,
    StorageS3,
    lexicons,
    set_default_client,
    validate_record,
)
from shoal.errors import (
    AtmosphereError,
    ChecksumError,
    RecordNotFoundError,
    SchemaError,
    SessionError,
    ShoalWarning,
    TooLargeError,
)
from shoal.shard._open_shards import _index_urls
from shoal.store import configure, put


def shards_in(folder):
    return sorted(Path(folder).glob("*.tar"))


def serve(web, folder):
    """Put a folder's shards on the web; returns their URLs."""
    web.objects.update({f"/{path.name}": path.read_bytes() for path in shards_in(folder)})
    return [f"{web.url}/{path.name}" for path in shards_in(folder)]


def put_into_bucket(place, folder):
    urls = [f"{place}/{path.name}" for path in shards_in(folder)]
    for url, path in zip(urls, shards_in(folder), strict=True):
        put(url, path.read_bytes())
    return urls


def train(dataset):
    """One epoch over batches: a mean of all images, and how many samples there were."""
    total, count = np.zeros(64), 0
    for batch in dataset.shuffled(batch_size=4):
        total += batch.image.sum(axis=0)
        count += len(batch.label)
    return float(total[0]) / count, count


def find_and_train(bob, handle, name):
    """What somebody does who has nothing but the publisher's handle."""
    found = {dataset.name: dataset for dataset in bob.list_datasets(handle)}[name]
    set_default_client(bob)
    dataset = shoal.load_dataset(str(found.uri), split="train")
    assert train(dataset) == (9.5, 20)
    assert [sample.label for sample in dataset] == [pet.label for pet in pets(20)]
    assert [sample.weight for sample in dataset] == [pet.weight for pet in pets(20)]
    return found


def test_blobs_are_published_found_loaded_and_trained_on(alice, bob, folder):
    seen = []
    made = alice.publish_dataset(
        folder, name="pets", description="small animals", tags=["animals"], progress=lambda *of: seen.append(of)
    )
    found = find_and_train(bob, alice.handle, "pets")
    assert found == made
    assert isinstance(found.storage, StorageBlobs)
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in shards_in(folder)]
    assert [blob.checksum.digest for blob in found.storage.blobs] == sums
    assert [blob.cid for blob in found.storage.blobs] == [Cid.of_sha256(digest) for digest in sums]
    assert (found.samples, found.tags, found.description) == (20, ("animals",), "small animals")
    assert found.bytes == sum(os.path.getsize(path) for path in shards_in(folder))
    assert seen == [(found.bytes // 2, found.bytes), (found.bytes, found.bytes)]


def test_urls_are_published_found_loaded_and_trained_on(alice, bob, web, folder):
    made = alice.publish_dataset(serve(web, folder), name="pets", schema=Pet, storage="http", allow_private=True)
    found = find_and_train(bob, alice.handle, "pets")
    assert isinstance(made.storage, StorageHttp)
    assert [shard.url for shard in found.storage.shards] == made.data_urls


def test_a_bucket_is_published_found_loaded_and_trained_on(alice, bob, s3, s3_endpoint, folder):
    made = alice.publish_dataset(put_into_bucket(s3, folder), name="pets", schema=Pet, storage="s3", allow_private=True)
    found = find_and_train(bob, alice.handle, "pets")
    assert isinstance(found.storage, StorageS3)
    assert (found.storage.bucket, found.storage.endpoint) == (BUCKET, s3_endpoint)
    assert made.data_urls == found.data_urls == [f"{s3}/train-00000{number}.tar" for number in (0, 1)]


def test_nothing_is_fetched_before_it_is_needed(alice, bob, web, folder):
    urls = serve(web, folder)
    counted = shoal.load_dataset(folder)  # by its manifest, so each shard's samples are known
    made = alice.publish_dataset(counted, name="pets")
    assert len(bob.load(str(made.uri), split="train")) == 20
    uri = alice.publish_dataset(urls, name="far", schema=Pet, storage="http", allow_private=True).uri
    web.requests.clear()
    dataset = bob.load(str(uri), split="train")
    assert web.requests == []
    dataset[0]
    assert {path for _, path, _ in web.requests} == {"/train-000000.tar", "/train-000001.tar"}


def test_shards_in_place_are_read_by_ranges_when_their_host_is_trusted(alice, bob, web, folder):
    uri = alice.publish_dataset(serve(web, folder), name="pets", schema=Pet, storage="http", allow_private=True).uri
    dataset = bob.load(str(uri), split="train", verify=False)
    assert dataset[3].label == "pet 3"
    assert any(asked for _, _, asked in web.requests)


def test_splits_and_labels_are_kept(alice, bob, tmp_path):
    shoal.write_samples(pets(6), tmp_path / "d" / "train-%06d.tar", max_samples=4, split="train")
    shoal.write_samples(pets(3), tmp_path / "e" / "part-%06d.tar", split="test")
    splits = shoal.DatasetDict(
        {"train": shoal.Dataset(str(tmp_path / "d")), "test": shoal.Dataset(str(tmp_path / "e"))}
    )
    old = alice.publish_dataset(str(tmp_path / "d"), name="pets", version="1.9.0")
    new = alice.publish_dataset(splits, name="pets", version="1.10.0")
    set_default_client(bob)
    loaded = shoal.load_dataset(f"@{alice.handle}/pets")
    assert {name: len(part) for name, part in loaded.items()} == {"train": 6, "test": 3}
    assert loaded["test"].sample_type.__name__ == "Pet"
    assert list(shoal.load_dataset(f"@{alice.handle}/pets@1.9.0")) == ["train"]
    assert bob.get_dataset(f"@{alice.handle}/pets") == new
    assert bob.get_dataset(f"@{alice.did}/pets@1.9.0") == old
    with pytest.raises(RecordNotFoundError, match=r"no such version: expected 1.9.0, 1.10.0, found @.*@3"):
        bob.get_dataset(f"@{alice.handle}/pets@3")


def test_a_dataset_without_a_label_is_found_by_its_name(alice, bob, folder, tmp_path):
    alice.publish_dataset(folder, name="pets")
    shoal.write_samples(pets(3), tmp_path / "new" / "a-%06d.tar")
    newer = alice.publish_dataset(str(tmp_path / "new"), name="pets")
    assert bob.get_dataset(f"@{alice.handle}/pets") == newer


def test_twice_is_once(alice, folder, pds):
    first = alice.publish_dataset(folder, name="pets", description="small", version="1.0.0")
    before = pds.records_of(alice.did)
    assert alice.publish_dataset(folder, name="pets", description="small", version="1.0.0") == first
    assert pds.records_of(alice.did) == before
    said = alice.publish_dataset(folder, name="pets", license="CC0-1.0")
    assert (said.uri, said.license, said.description) == (first.uri, "CC0-1.0", "small")
    assert said.cid != first.cid


def test_shards_are_cut_to_what_the_server_takes(alice, bob, tmp_path):
    shoal.write_samples(pets(40, size=1000), tmp_path / "d" / "train-%06d.tar")
    made = alice.publish_dataset(str(tmp_path / "d"), name="pets", blob_limit=60_000)
    assert len(made.storage.blobs) > 2
    assert max(blob.size for blob in made.storage.blobs) <= 60_000
    assert [sample.label for sample in bob.load(str(made.uri), split="train")] == [pet.label for pet in pets(40)]
    with pytest.raises(TooLargeError, match="a single sample is larger than a blob may be: expected at most 3000"):
        alice.publish_dataset(str(tmp_path / "d"), name="pets-2", blob_limit=3000)
    with pytest.raises(TooLargeError, match="too large for blobs: expected at most 1000 bytes"):
        alice.publish_dataset(str(tmp_path / "d"), name="pets-3", max_blob_bytes=1000)


def test_compressed_shards_become_plain_blobs(alice, bob, tmp_path):
    shoal.write_samples(pets(5), tmp_path / "d", compression="gzip")
    made = alice.publish_dataset(str(tmp_path / "d"), name="pets")
    assert {blob.mime_type for blob in made.storage.blobs} == {"application/x-tar"}
    assert [sample.label for sample in bob.load(str(made.uri), split="train")] == [pet.label for pet in pets(5)]


def test_what_others_cannot_read_is_refused_with_the_reason(alice, web, folder):
    with pytest.raises(
        AtmosphereError, match=r"others cannot read these shards where they are: found http://127.0.0.1"
    ):
        alice.publish_dataset(serve(web, folder), name="pets", schema=Pet, storage="http")
    with pytest.raises(AtmosphereError, match=r"cannot be published as s3: expected s3:// URLs"):
        alice.publish_dataset(folder, name="pets", storage="s3")
    with pytest.raises(AtmosphereError, match="expected http:// or https:// URLs"):
        alice.publish_dataset(folder, name="pets", storage="http")
    assert list(alice.list_datasets()) == []
    auto = alice.publish_dataset(serve(web, folder), name="pets", schema=Pet)
    assert isinstance(auto.storage, StorageBlobs)  # the loopback address is of no use to others


def test_schemas_are_published_once_and_versions_follow_from_what_changed(alice, bob):
    first = alice.publish_schema(Pet)
    assert alice.publish_schema(Pet) == first == f"at://{alice.did}/science.alt.dataset.schema/Pet:1.0.0"
    assert bob.find_schema(first).schema == Pet.__schema__

    @shoal.packable
    class Changed:
        label: str
        legs: int

    schema = shoal.Schema("Pet", Changed.__schema__.fields)
    second = alice.publish_schema(schema)
    assert second.endswith("/Pet:2.0.0")  # older samples have no legs, so they cannot be read as these
    assert [one.version for one in bob.list_schemas(alice.handle)] == ["2.0.0", "1.0.0"]
    assert bob.find_schema(f"@{alice.handle}/Pet").version == "2.0.0"
    assert bob.find_schema(f"@{alice.handle}/Pet@1.0.0").uri == AtUri.parse(first)
    assert bob.get_schema(first)["name"] == "Pet"
    with pytest.raises(SchemaError, match=r"Pet@1.0.0 is something else already"):
        alice.publish_schema(schema, version="1.0.0")


def test_lists_go_past_a_hundred(alice, bob, folder, pds):
    made = alice.publish_dataset(folder, name="pets")
    alice.publish_label("name-0", made.uri)
    values = [record["value"] for record in pds.records_of(alice.did)]
    label = next(value for value in values if value["$type"].endswith(".label"))
    writes = [
        {
            "$type": "com.atproto.repo.applyWrites#create",
            "collection": label["$type"],
            "value": {**label, "name": f"name-{number}"},
        }
        for number in range(1, 120)
    ]
    alice._network.own.procedure("com.atproto.repo.applyWrites", {"repo": alice.did, "writes": writes})
    assert sum(1 for _ in bob.list_labels(alice.handle)) == 120
    assert bob.get_dataset(f"@{alice.handle}/name-0") == made


def test_what_is_deleted_is_gone_with_its_blobs(alice, bob, folder):
    made = alice.publish_dataset(folder, name="pets")
    alice.delete(made.uri)
    with pytest.raises(RecordNotFoundError, match="no such record"):
        bob.get_dataset(str(made.uri))
    with pytest.raises(RecordNotFoundError):
        alice.delete(made.uri)
    assert alice.publish_dataset(folder, name="pets") == alice.get_dataset(str(made.uri))


def test_only_ones_own_records_are_deleted(alice, pds, connect, new_handle, folder):
    made = alice.publish_dataset(folder, name="pets")
    mallory = connect(pds, new_handle())
    with pytest.raises(SessionError, match="a record of others cannot be deleted"):
        mallory.delete(made.uri)
    assert alice.get_dataset(str(made.uri)) == made


def test_a_tampered_shard_is_refused(alice, bob, web, folder):
    uri = alice.publish_dataset(serve(web, folder), name="pets", schema=Pet, storage="http", allow_private=True).uri
    name = "/train-000001.tar"
    spoiled = bytearray(web.objects[name])
    spoiled[700] ^= 1
    web.objects[name] = bytes(spoiled)
    dataset = bob.load(str(uri), split="train")
    with pytest.raises(ChecksumError, match=r"not those that were published.*train-000001.tar"):
        list(dataset)
    web.objects[name] = bytes(spoiled) + bytes(512)
    with pytest.raises(ChecksumError):
        list(dataset)


def test_a_pulled_dataset_is_a_dataset(alice, bob, folder, tmp_path):
    uri = alice.publish_dataset(folder, name="pets").uri
    paths = bob.pull(str(uri), tmp_path / "copy")
    assert [Path(path).read_bytes() for path in paths] == [path.read_bytes() for path in shards_in(folder)]
    copy = shoal.load_dataset(str(tmp_path / "copy"), split="train")
    assert train(copy) == (9.5, 20)
    assert copy[0].label == "pet 0"  # typed, by the schema in the manifest
    assert bob.pull(str(uri), tmp_path / "copy") == paths


def test_what_others_wrote_wrongly_does_not_hide_the_rest(alice, bob, folder, pds):
    made = alice.publish_dataset(folder, name="pets")
    body = {"repo": alice.did, "collection": "science.alt.dataset.entry", "record": {"name": "half"}}
    alice._network.own.procedure("com.atproto.repo.createRecord", body)
    with pytest.warns(ShoalWarning, match="a record is passed over"):
        assert list(bob.list_datasets(alice.handle)) == [made]


def test_older_collections_and_storages_are_read(alice, bob, web, folder, pds):
    urls = serve(web, folder)
    schema = {
        "name": "Pet",
        "version": "1.0.0",
        "fields": [
            {"name": "image", "fieldType": {"$type": "local#ndarray", "dtype": "float32"}, "optional": False},
            {"name": "label", "fieldType": {"$type": "local#primitive", "primitive": "str"}, "optional": False},
            {"name": "weight", "fieldType": {"$type": "local#primitive", "primitive": "float"}, "optional": True},
        ],
        "createdAt": "2025-06-01T00:00:00Z",
    }
    write = alice._network.own.procedure
    old = {"repo": alice.did, "collection": "ac.foundation.dataset.sampleSchema", "rkey": "pet", "record": schema}
    uri = write("com.atproto.repo.putRecord", old)["uri"]
    pattern = urls[0].replace("000000", "{000000..000001}")
    entry = {
        "name": "old pets",
        "schemaRef": uri,
        "storage": {"$type": "ac.foundation.dataset.storageExternal", "urls": [pattern]},
        "metadata": {"split": "train", "createdBy": "somebody"},
        "createdAt": "2025-06-01T00:00:00Z",
    }
    old = {"repo": alice.did, "collection": "ac.foundation.dataset.record", "rkey": "pets", "record": entry}
    uri = write("com.atproto.repo.putRecord", old)["uri"]
    found = bob.get_dataset(f"@{alice.handle}/old pets")
    assert (str(found.uri), found.metadata) == (uri, entry["metadata"])
    with pytest.warns(ShoalWarning, match="published without checksums"):
        dataset = bob.load(uri, split="train")
    assert train(dataset) == (9.5, 20)


def test_everything_written_is_what_its_lexicon_says(alice, web, folder, pds):
    """By our validator, and by the one that the network's own servers use."""
    first = alice.publish_dataset(folder, name="pets", version="1.0.0", tags=["a"], license="CC0", metadata={"x": 0.5})
    alice.publish_dataset(serve(web, folder), name="web", schema=Pet, storage="http", allow_private=True)
    alice.publish_label("other", first.uri, description="again")
    ours = [record["value"] for record in pds.records_of(alice.did)]
    assert len(ours) == 5
    for record in ours:
        validate_record(record)
    assert peer_says(ours) == [None] * len(ours)


def peer_says(records):
    """What ``@atproto/lexicon`` says of each record: None, or what is wrong."""
    script = """
        import { createRequire } from 'node:module'
        import fs from 'node:fs'
        const { Lexicons, jsonToLex } = createRequire(process.cwd() + '/x.mjs')('@atproto/lexicon')
        const { lexicons, records } = JSON.parse(fs.readFileSync(0, 'utf8'))
        const known = new Lexicons(lexicons)
        const said = records.map((record) => {
            try {
                known.assertValidRecord(record.$type, jsonToLex(record))
                return null
            } catch (error) {
                return String(error.message)
            }
        })
        console.log(JSON.stringify(said))
    """
    given = json.dumps({"lexicons": list(lexicons().values()), "records": records})
    command = ["node", "--input-type=module", "-e", script]
    done = subprocess.run(command, input=given, cwd=HERE, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_an_appview_is_asked_first_and_never_needed(alice, pds, connect, folder):
    made = alice.publish_dataset(folder, name="pets", description="small animals")
    with appview_stub() as view:
        view.entries.append({"uri": str(made.uri), "name": "pets"})
        view.schemas.append({"uri": made.schema_ref})
        view.labels["best"] = str(made.uri)
        carol = connect(pds, appview=view.url)
        assert carol.search("pets") == [made]
        assert carol.get_dataset(f"@{alice.handle}/best") == made  # no label of this name is in the repository
        assert carol.appview.list_entries() == carol.appview.search_datasets("pets") == [made.uri]
        assert carol.appview.get_entries([made.uri]) == [carol.appview.get_entry(made.uri)] == view.entries
        assert str(carol.appview.resolve_schema(alice.handle, "Pet")) == made.schema_ref
        assert [str(uri) for uri in carol.appview.list_schemas()] == [made.schema_ref]
        assert carol.appview.list_lenses() == carol.appview.search_lenses(source=AtUri.parse(made.schema_ref)) == []
        assert carol.appview.entry_stats(made.uri)["views"] == 3
        assert carol.appview.resolve_blobs([made.uri]) == [{"uri": str(made.uri)}]
        assert carol.appview.describe() == {"name": "a stub"}
        view.entries[:] = [{"uri": f"at://{alice.did}/science.alt.dataset.entry/{n:013d}"} for n in range(150)]
        assert len(carol.appview.list_entries()) == 150
        view.entries[:] = [{"uri": "http://no.uri"}, {"uri": None}]
        assert carol.appview.list_entries() == carol.search("uri") == []
        view.broken = True
        assert carol.get_dataset(f"@{alice.handle}/pets") == made
        with pytest.warns(ShoalWarning, match="the AppView was not asked"):
            assert carol.search("animals", handles=[alice.handle]) == [made]


def test_a_bucket_that_nobody_configured_is_asked_as_anybody(alice, bob, s3, folder, monkeypatch):
    """A stranger's record names an endpoint: nothing may be signed for it."""
    urls = put_into_bucket(s3, folder)
    uri = alice.publish_dataset(urls, name="pets", schema=Pet, storage="s3", allow_private=True).uri
    from shoal.store import _options

    monkeypatch.setattr(_options, "_CHOSEN", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "not to be used")
    with pytest.raises(AtmosphereError, match="could not be fetched: found status 403"):
        bob.load(str(uri), split="train")[0]
    assert configure("s3://other").endpoint is None


def test_a_shard_at_the_root_of_a_host_has_no_sidecar_above_it():
    assert _index_urls("http://127.0.0.1:80/a.tar") == ("http://127.0.0.1:80/.shoal/index/a.tar.arrow",)
    assert len(_index_urls("s3://bucket/folder/a.tar")) == 2
