"""The newest version is the same one in a local index and in the atmosphere, for datasets and for schemas."""

from __future__ import annotations

import random

import pytest
from tests.atmosphere.conftest import _own_home, alice, bob, connect, new_handle, pds, pets, plc  # noqa: F401 - fixtures

import shoal
from shoal.atmosphere import set_default_client
from shoal.schema import Field, IntType, Schema

# (versions in ascending order, the one that is meant where none is named)
RELEASES = [
    (["1.0.0-alpha", "1.0.0-rc.2", "1.0.0-rc.10"], "1.0.0-rc.10"),
    (["1.0.0-rc.1", "1.0.0-rc.10", "1.0.0"], "1.0.0"),
    (["1.9.0", "1.10.0", "2.0.0-rc.1"], "1.10.0"),
]


def shuffled(versions):
    return random.Random(1).sample(versions, len(versions))


@pytest.mark.parametrize("versions, newest", RELEASES)
def test_datasets_in_a_local_index(tmp_path, versions, newest):
    index = shoal.LocalIndex(tmp_path / "index.db")
    for version in shuffled(versions):
        folder = tmp_path / version
        shoal.write_samples(({"__key__": str(n), "txt": version} for n in range(2)), folder / "train-%06d.tar")
        index.insert_dataset(str(folder), name="pets", version=version)
    assert index.get_dataset("pets").version == newest


@pytest.mark.parametrize("versions, newest", RELEASES)
def test_datasets_in_the_atmosphere(alice, bob, tmp_path, versions, newest):  # noqa: F811 - fixtures
    for version in shuffled(versions):
        shoal.write_samples(pets(1 + versions.index(version)), tmp_path / version / "train-%06d.tar")
        alice.publish_dataset(str(tmp_path / version), name="pets", version=version)
    set_default_client(bob)
    loaded = shoal.load_dataset(f"@{alice.handle}/pets", split="train")
    assert len(loaded) == 1 + versions.index(newest)


@pytest.mark.parametrize("versions, newest", RELEASES)
def test_schemas_in_a_local_index(tmp_path, versions, newest):
    index = shoal.LocalIndex(tmp_path / "index.db")
    for version in shuffled(versions):
        index.publish_schema(Schema("Pet", (Field("size", IntType()),)), version=version)
    assert index.get_schema("Pet")["version"] == newest


@pytest.mark.parametrize("versions, newest", RELEASES)
def test_schemas_in_the_atmosphere(alice, bob, versions, newest):  # noqa: F811 - fixtures
    for version in shuffled(versions):
        alice.publish_schema(Schema("Pet", (Field(f"field_{version}", IntType()),)), version=version)
    assert bob.find_schema(f"@{alice.handle}/Pet").version == newest
