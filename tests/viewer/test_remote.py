"""A dataset on S3 is looked at by range: only the bytes that are shown cross the wire."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from tests.store.servers import BUCKET, fault_proxy, seaweed
from tests.store.settings import keys, own_settings
from tests.viewer.samples import write_dives

import shoal
from shoal.shard import members_of
from shoal.store import configure


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """A real S3 server behind a proxy that writes down every request; our own settings, gone afterwards."""
    own_settings(monkeypatch, tmp_path)
    with seaweed() as endpoint, fault_proxy(endpoint) as proxy:
        configure(f"s3://{BUCKET}", endpoint=proxy.url, region="us-east-1", credential_provider=keys, timeout=30)
        yield proxy


def tar_bytes(proxy):
    """How many bytes of tars were asked for; a request without a range asks for all, and is not forgiven."""
    total = 0
    for method, path, asked, _ in proxy.requests:
        if method == "GET" and ".tar" in path and ".arrow" not in path:
            assert asked is not None, path
            first, _, last = asked.removeprefix("bytes=").partition("-")
            total += int(last) - int(first) + 1
    return total


def test_only_what_is_shown_is_fetched(bucket, visit):
    root = f"s3://{BUCKET}/dives"
    write_dives(root)
    bucket.requests.clear()
    there = visit(root)
    page = there.page
    expect(page.locator(".card")).to_have_count(24)
    page.wait_for_load_state("networkidle")
    for card in page.locator(".card").all():  # pictures are fetched as they come into view
        card.scroll_into_view_if_needed()
    there.until("[...document.images].every(image => image.complete && image.naturalWidth)")
    source = shoal.Dataset(root).source
    shown = [member for row in range(24) for member in members_of(source.shard_of(row).index, row % 16)]
    pictures = sum(one.size for one in shown if one.field.endswith(("jpg", "npy")))
    texts = sum(one.size for one in shown if one.field in ("txt", "json"))
    # Besides: a tar's first header, and headers and padding between neighbours that one read covers.
    most = pictures + texts + 4096 * 2 * 24
    fetched = tar_bytes(bucket)
    assert 0.9 * (pictures + texts) <= fetched <= most
    sounds = sum(one.size for one in shown if one.field == "wav")
    whole = sum(record.bytes for record in source.manifest.shards)
    assert fetched < whole - sounds - pictures

    bucket.requests.clear()
    there.go("/shards")
    expect(page.locator(".health.sound")).to_have_count(5)
    there.go("/schema")
    assert tar_bytes(bucket) == 0
