"""The order of versions is that of Semantic Versioning 2.0.0."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import SchemaError
from shoal.schema import bump_version, newest_version, version_precedence

# The examples of semver.org, section 11, and numbers beyond 64 bits.
ORDER = [
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0-rc.2",
    "1.0.0-rc.10",
    "1.0.0-rc.99999999999999999999999",
    "1.0.0",
    "1.0.1",
    "1.1.0",
    "1.10.0-rc.1",
    "1.10.0",
    "2.0.0",
]
_PARTS = st.integers(0, 30)
_VERSIONS = st.builds(
    lambda a, b, c, tail: f"{a}.{b}.{c}{tail}",
    _PARTS,
    _PARTS,
    _PARTS,
    st.sampled_from(["", "-rc.1", "-rc.2", "-rc.10", "-alpha", "+build.1"]),
)


def test_versions_are_ordered_as_semver_does():
    shuffled = random.Random(0).sample(ORDER, len(ORDER))
    assert sorted(shuffled, key=version_precedence) == ORDER


def test_build_metadata_has_no_precedence():
    assert version_precedence("1.0.0+a") == version_precedence("1.0.0+b") == version_precedence("1.0.0")
    assert newest_version(["1.0.0+b", "1.0.0+a"]) == newest_version(["1.0.0+a", "1.0.0+b"])


@pytest.mark.parametrize("name", ["", "v3", "final", "9.9", "9" * 5000])
def test_a_name_that_is_no_version_comes_before_all_versions(name):
    assert newest_version([name, "0.0.1-alpha"]) == "0.0.1-alpha"
    with pytest.raises(SchemaError, match="not a version"):
        bump_version(name, "patch")


@given(st.lists(_VERSIONS, min_size=1))
def test_the_newest_is_the_highest_release(versions):
    found = newest_version(versions)
    releases = [version for version in versions if "-" not in version]
    assert found in (releases or versions)
    assert all(version_precedence(version) <= version_precedence(found) for version in releases or versions)
