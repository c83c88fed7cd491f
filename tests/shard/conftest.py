"""The S3 server of the tests, for those that ask for it."""

from __future__ import annotations

import itertools

import pytest
from tests.shard.children import reach
from tests.store.servers import BUCKET, seaweed
from tests.store.settings import own_settings

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3_endpoint():
    with seaweed() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint, monkeypatch, tmp_path):
    """The URL of a new folder on a real S3 server; settings of the test's own, gone afterwards."""
    own_settings(monkeypatch, tmp_path)
    reach(s3_endpoint)
    return f"s3://{BUCKET}/shard/{next(_NUMBERS):04d}"
