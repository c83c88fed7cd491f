"""How stores are reached: options by prefix, environment, config files; and no secret in any text."""

from __future__ import annotations

import json
import pickle
import sys
import threading

import pytest
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.store.settings import keys

from shoal.errors import OptionError, StoreError
from shoal.store import StoreOptions, configure, get, options_for, put, stat, store_for
from shoal.store._clients import address_of, s3_settings

NOBODY = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}


def test_the_longer_prefix_decides_option_by_option():
    configure(timeout=7)
    configure("s3://a/deep/er", retries=1)
    configure("s3://a", endpoint="http://127.0.0.1:1", retries=3)
    assert options_for("s3://a/deep/er/x").retries == 1
    assert options_for("s3://a/deep/er/x").endpoint == "http://127.0.0.1:1"
    assert options_for("s3://a/deep").retries == 3
    assert options_for("s3://ab/x") == StoreOptions(timeout=7)
    assert options_for("gs://a/x") == StoreOptions(timeout=7)
    configure("s3://", region="eu-west-1")
    assert options_for("s3://any/x").region == "eu-west-1"


def test_setting_one_option_keeps_the_others():
    configure("s3://a/", timeout=7)
    assert configure("s3://a", retries=2) == StoreOptions(timeout=7, retries=2)


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"timeout": 0},
        {"timeout": -1},
        {"retries": -1},
        {"part_size": 100},
        {"endpoint": "127.0.0.1:9000"},
        {"frobnicate": 1},
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(options):
    before = options_for("s3://a")
    with pytest.raises(OptionError):
        configure("s3://a", region="moon", **options)
    assert options_for("s3://a") == before


@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key", "password", "token", "account_key", "sas_key"])
def test_secrets_are_no_options(name):
    with pytest.raises(OptionError, match="credential_provider") as caught:
        configure("s3://a", **{name: "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hunter2@bucket/a.tar",
        "https://me:hunter2@host/a.tar",
        "gs://hunter2@bucket/a",
        "az://name:hunter2@container/a",
        "abfs://c:hunter2@account.dfs.core.windows.net/a",
    ],
)
def test_secrets_in_urls_are_refused_with_what_to_do(url):
    for act in (get, stat, lambda each: put(each, b""), configure, lambda each: list(store_for(each).list(each))):
        with pytest.raises(StoreError, match="credential_provider") as caught:
            act(url)
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(caught.value)


def test_options_show_no_provider():
    text = repr(configure("s3://a", credential_provider=lambda: {"secret_access_key": "hunter2"}))
    assert "provider" not in text


def test_a_signed_url_is_shown_without_its_signature(http):
    http.secret = "X-Amz-Signature=hunter2"
    url = f"{http.url}/none.tar?{http.secret}"
    with pytest.raises(StoreError) as caught:
        get(url)
    assert "hunter2" not in str(caught.value)
    assert "none.tar?..." in str(caught.value)


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


# ------------------------------------------------------------------------------------------------------- AWS's own ways


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


def test_stores_are_found_again_after_pickling(s3):
    store = pickle.loads(pickle.dumps(store_for(s3)))
    store.write_all(f"{s3}/a", b"x")
    assert get(f"{s3}/a") == b"x"


def test_options_are_looked_up_while_others_are_set():
    wrong = []

    def look():
        for _ in range(300):
            try:
                options_for("s3://a/b")
            except RuntimeError as error:
                wrong.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(300):
        configure(f"s3://{number}", retries=1)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_http_headers_come_from_the_provider(http):
    http.objects["/a"] = b"secret bytes"
    http.secret = "Bearer hunter2"
    with pytest.raises(StoreError, match="access denied"):
        get(f"{http.url}/a")
    configure(http.url, credential_provider=lambda: {"headers": {"Authorization": "Bearer hunter2"}})
    assert get(f"{http.url}/a") == b"secret bytes"
    assert keys()["secret_access_key"] not in repr(options_for(http.url))
