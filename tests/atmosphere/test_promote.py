"""From a local index to the network, as seed 002 has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tests.atmosphere.conftest import Pet, pets
from tests.atmosphere.test_publish import find_and_train, put_into_bucket, serve

import shoal
from shoal.atmosphere import StorageBlobs, StorageHttp, StorageS3, set_default_client
from shoal.errors import AtmosphereError, ChecksumError, SchemaError, SessionError, TooLargeError
from shoal.local import LocalIndex, Repo
from shoal.promote import promote_to_atmosphere
from shoal.protocols import AbstractIndex, IndexEntry


@pytest.fixture
def index(tmp_path):
    with LocalIndex(tmp_path / "index.db") as made:
        yield made


def test_the_block_of_the_seed(alice, bob, index, tmp_path):
    repo = Repo(str(tmp_path / "data"), index=index)
    repo.insert(pets(20), name="my-dataset", description="of the seed", tags=["seed"])

    entry = index.get_dataset("my-dataset")
    at_uri = promote_to_atmosphere(entry, index, alice)

    assert at_uri.startswith(f"at://{alice.did}/science.alt.dataset.entry/")
    found = find_and_train(bob, alice.handle, "my-dataset")
    assert (str(found.uri), found.description, found.tags) == (at_uri, "of the seed", ("seed",))
    set_default_client(bob)
    loaded = shoal.load_dataset(f"@{alice.handle}/my-dataset@{entry.version}", split="train")
    assert loaded[7].label == "pet 7"


def test_twice_gives_the_same_uri_and_writes_nothing(alice, index, folder, pds):
    entry = index.insert_dataset(folder, name="pets")
    first = promote_to_atmosphere(entry, index, alice)
    before = pds.records_of(alice.did)
    assert promote_to_atmosphere(entry, index, alice) == first
    assert promote_to_atmosphere(index.get_dataset("pets"), index, alice) == first
    assert pds.records_of(alice.did) == before


def test_where_the_bytes_are_decides_how_they_are_stored(alice, bob, index, web, s3, folder):
    on_web = index.insert_dataset(serve(web, folder), name="web", schema_ref=index.publish_schema(Pet))
    in_bucket = index.insert_dataset(put_into_bucket(s3, folder), name="bucket", schema_ref=index.publish_schema(Pet))
    here = index.insert_dataset(folder, name="here")

    def storage_of(entry, **options):
        return type(alice.get_dataset(promote_to_atmosphere(entry, index, alice, **options)).storage)

    assert storage_of(on_web, name="a") is StorageBlobs  # on loopback, which is no place for others
    assert storage_of(on_web, name="b", allow_private=True) is StorageHttp
    assert storage_of(in_bucket, name="c") is StorageBlobs
    assert storage_of(in_bucket, name="d", allow_private=True) is StorageS3
    assert storage_of(here, name="e", allow_private=True) is StorageBlobs
    for name in "abcde":
        find_and_train(bob, alice.handle, name)
    with pytest.raises(AtmosphereError, match="others cannot read these shards where they are"):
        promote_to_atmosphere(on_web, index, alice, "http", name="f")
    with pytest.raises(AtmosphereError, match="cannot be published as http"):
        promote_to_atmosphere(here, index, alice, "http", name="f")
    with pytest.raises(TooLargeError, match="too large for blobs: expected at most 100 bytes"):
        promote_to_atmosphere(here, index, alice, name="f", max_blob_bytes=100)
    assert "f" not in [dataset.name for dataset in alice.list_datasets()]


def test_another_storage_keeps_the_uri(alice, index, web, folder):
    entry = index.insert_dataset(serve(web, folder), name="web", schema_ref=index.publish_schema(Pet))
    first = promote_to_atmosphere(entry, index, alice, "http", allow_private=True)
    assert promote_to_atmosphere(entry, index, alice, "blobs") == first
    assert isinstance(alice.get_dataset(first).storage, StorageBlobs)
    assert promote_to_atmosphere(entry, index, alice) == first
    assert isinstance(alice.get_dataset(first).storage, StorageBlobs)


def test_data_that_changed_since_it_was_indexed_is_refused(alice, index, web, folder):
    entry = index.insert_dataset(serve(web, folder), name="web", schema_ref=index.publish_schema(Pet))
    web.objects["/train-000000.tar"] += bytes(512)
    with pytest.raises(ChecksumError, match="a shard is not the one that was indexed"):
        promote_to_atmosphere(entry, index, alice, "http", allow_private=True)
    assert list(alice.list_datasets()) == []


def test_what_cannot_be_promoted_says_why(alice, bob, index, tmp_path):
    shoal.write_samples([{"txt": "a cat"}], tmp_path / "plain")
    plain = index.insert_dataset(str(tmp_path / "plain"), name="plain")
    with pytest.raises(SchemaError, match="the samples have no schema"):
        promote_to_atmosphere(plain, index, alice)
    with pytest.raises(SessionError, match="nobody is logged in"):
        promote_to_atmosphere(plain, index, bob)


def test_a_users_own_index_is_enough(alice, bob, folder):
    @dataclass(frozen=True)
    class Mine:
        name: str
        schema_ref: str
        data_urls: list[str]
        metadata: dict[str, object] | None = None

    class Drawer:
        def insert_dataset(self, ds, *, name, schema_ref=None, **options): ...
        def get_dataset(self, ref): ...
        def list_datasets(self): ...
        def publish_schema(self, sample_type, *, version="1.0.0", **options): ...
        def list_schemas(self): ...
        def get_schema(self, ref):
            return {"name": "Pet", "version": "3.0.0", "schema": shoal.schema.schema_to_json(Pet.__schema__)}

    entry = Mine("mine", "pet", [f"{folder}/train-{{000000..000001}}.tar"], {"kept": 0.5})
    assert isinstance(entry, IndexEntry)
    assert isinstance(Drawer(), AbstractIndex)
    uri = promote_to_atmosphere(entry, Drawer(), alice)
    assert bob.get_dataset(uri).metadata["kept"] == 0.5
    assert np.array_equal(bob.load(uri, split="train")[3].image, pets(4)[3].image)
    assert promote_to_atmosphere(Mine("mine", bob.get_dataset(uri).schema_ref, entry.data_urls), None, alice) == uri


def test_the_client_is_an_index(alice):
    assert isinstance(alice, AbstractIndex)
