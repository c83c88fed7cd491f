"""The servers, started once a session, and options that are gone after each test."""

from __future__ import annotations

import itertools

import pytest
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, fault_proxy, ranged_server, seaweed
from tests.store.settings import keys, own_settings

from shoal.store import configure, put

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3_endpoint():
    with seaweed() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def _own_options(monkeypatch, tmp_path):
    """What a test configures is gone after it, and the user's own cloud settings are not seen."""
    own_settings(monkeypatch, tmp_path)


def new_folder():
    return f"s3://{BUCKET}/{next(_NUMBERS):06d}"


@pytest.fixture
def s3(s3_endpoint):
    """The URL of a new folder on a real S3 server."""
    configure(f"s3://{BUCKET}", endpoint=s3_endpoint, region="us-east-1", credential_provider=keys, timeout=30)
    return new_folder()


@pytest.fixture
def proxy(s3_endpoint):
    """A proxy that can break things, before the real server; URLs below `s3` go through it."""
    with fault_proxy(s3_endpoint) as server:
        configure(f"s3://{BUCKET}", endpoint=server.url, region="us-east-1", credential_provider=keys, timeout=30)
        yield server


@pytest.fixture
def broken(proxy):
    """The URL of a new folder behind the proxy."""
    return new_folder()


@pytest.fixture
def url(broken, request):
    """The URL of an object behind the proxy: the ``DATA`` of the test's module."""
    put(f"{broken}/a.bin", request.module.DATA)
    return f"{broken}/a.bin"


@pytest.fixture
def http():
    with ranged_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_client(s3_endpoint):
    """Another client of the same server, for what ours does not ask."""
    import boto3
    from botocore.config import Config

    names = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
    config = Config(s3={"addressing_style": "path"}, proxies={})
    client = boto3.client("s3", endpoint_url=s3_endpoint, config=config, **names)
    yield client
    client.close()
