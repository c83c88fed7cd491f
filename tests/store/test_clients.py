"""Clients of object stores: addresses, environment variables and AWS config files."""

from __future__ import annotations

import json
import sys

import pytest
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY

from shoal.errors import StoreError
from shoal.store import StoreOptions, configure, get, put
from shoal.store._clients import address_of, s3_settings

NOBODY = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}


def test_addresses():
    assert address_of("s3://b/a/c.tar").path == "a/c.tar"
    assert address_of("s3://b").path == ""
    azure = address_of("abfss://box@account.dfs.core.windows.net/a/b")
    assert (azure.bucket, azure.account, azure.path) == ("box", "account", "a/b")
    plain = address_of("https://host:8443/a%20b/c.tar?x=1&y=2")
    assert (plain.root, plain.path, plain.query) == ("https://host:8443", "a b/c.tar", "x=1&y=2")
    with pytest.raises(StoreError, match="bucket"):
        address_of("s3:///a")


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "https://host"])
def test_a_bucket_is_no_object(url):
    with pytest.raises(StoreError, match="this is a"):
        get(url)


def test_an_azure_account_has_to_be_known(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="account"):
        get("az://container/a")


def write_files(tmp_path, config, credentials):
    (tmp_path / "config").write_text(config)
    (tmp_path / "credentials").write_text(credentials)
    return {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }


def test_arguments_then_environment_then_profile(tmp_path):
    files = write_files(
        tmp_path,
        "[default]\nregion = r-default\n[profile lab]\nregion = r-lab\nendpoint_url = http://lab\n",
        "[default]\naws_access_key_id = d\naws_secret_access_key = ds\n"
        "[lab]\naws_access_key_id = l\naws_secret_access_key = ls\naws_session_token = lt\n",
    )
    environment = {**files, "AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "es", "AWS_REGION": "r-env"}

    def found(options, environ):
        settings = s3_settings(options, environ)
        return settings.endpoint, settings.region, settings.provider and settings.provider()["access_key_id"]

    assert found(StoreOptions(), files) == (None, "r-default", "d")
    assert found(StoreOptions(), environment) == (None, "r-env", "e")
    assert found(StoreOptions(profile="lab"), files) == ("http://lab", "r-lab", "l")
    assert found(StoreOptions(profile="lab"), environment) == ("http://lab", "r-env", "l")
    assert found(StoreOptions(), {**files, "AWS_PROFILE": "lab"}) == ("http://lab", "r-lab", "l")
    assert found(StoreOptions(region="r"), environment) == (None, "r", "e")
    assert found(StoreOptions(anonymous=True), environment) == (None, "r-env", None)
    assert found(StoreOptions(credential_provider=lambda: {"access_key_id": "p"}), environment)[2] == "p"
    assert found(StoreOptions(), NOBODY) == (None, None, None)
    both = {**NOBODY, "AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3"}
    assert found(StoreOptions(), both)[0] == "http://s3"
    assert found(StoreOptions(endpoint="http://mine"), both)[0] == "http://mine"
    assert s3_settings(StoreOptions(profile="lab"), files).provider()["token"] == "lt"
    with pytest.raises(StoreError, match="no such AWS profile"):
        s3_settings(StoreOptions(profile="gone"), files)


def test_a_file_that_is_no_config_is_not_quoted(tmp_path):
    files = write_files(tmp_path, "", "aws_secret_access_key hunter2")
    with pytest.raises(StoreError, match="cannot be read") as caught:
        s3_settings(StoreOptions(), files)
    assert "hunter2" not in str(caught.value)


def test_a_process_of_the_profile_gives_credentials(tmp_path):
    program = tmp_path / "keys.py"
    told = {"Version": 1, "AccessKeyId": "p", "SecretAccessKey": "s", "Expiration": "2030-01-01T00:00:00+00:00"}
    program.write_text(f"print({json.dumps(told)!r})")
    files = write_files(tmp_path, f"[default]\ncredential_process = {sys.executable} {program}\n", "")
    told = s3_settings(StoreOptions(), files).provider()
    assert (told["access_key_id"], told["expires_at"].year) == ("p", 2030)


def test_the_environment_is_enough(s3, s3_endpoint, monkeypatch):
    put(f"{s3}/a", b"x")
    configure(f"s3://{BUCKET}", endpoint=None, region=None, credential_provider=None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert get(f"{s3}/a") == b"x"


def test_a_profile_is_enough(s3, s3_endpoint, tmp_path, monkeypatch):
    put(f"{s3}/a", b"x")
    files = write_files(
        tmp_path,
        f"[profile lab]\nendpoint_url = {s3_endpoint}\nregion = us-east-1\n",
        f"[lab]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n",
    )
    for name, path in files.items():
        monkeypatch.setenv(name, path)
    configure(f"s3://{BUCKET}", endpoint=None, region=None, credential_provider=None, profile="lab")
    assert get(f"{s3}/a") == b"x"
