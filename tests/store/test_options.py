"""Options by URL prefix; and no secret in any message."""

from __future__ import annotations

import pickle
import threading

import pytest
from tests.store.settings import keys

from shoal.errors import OptionError, StoreError
from shoal.store import StoreOptions, configure, get, options_for, put, stat, store_for


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
