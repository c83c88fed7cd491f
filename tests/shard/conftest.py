"""The S3 server of the tests, and folders in memory, for those that ask for them."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

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


@pytest.fixture(scope="session")
def shm_folder():
    """A folder in memory where there is one: commits wait for the disk, which no kill or race depends on."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


@pytest.fixture
def shm_path(shm_folder):
    """As ``tmp_path``, in that folder."""
    return Path(tempfile.mkdtemp(dir=shm_folder))
