"""URLs and paths as strings."""

from __future__ import annotations

import pytest

from shoal.store import (
    base_name,
    join_url,
    parent_url,
    relative_url,
    scheme_of,
)


@pytest.mark.parametrize(
    "url, scheme, parent, base",
    [
        ("s3://bucket/data/a.tar", "s3", "s3://bucket/data", "a.tar"),
        ("s3://bucket/a.tar", "s3", "s3://bucket", "a.tar"),
        ("memory://a.tar", "memory", "memory://", "a.tar"),
        ("data/a.tar", "file", "data", "a.tar"),
        ("/a.tar", "file", "/", "a.tar"),
        ("a.tar", "file", ".", "a.tar"),
        ("data/folder/", "file", "data", "folder"),
        ("file:///data/a.tar", "file", "file:///data", "a.tar"),
        ("file:///a.tar", "file", "file:///", "a.tar"),
    ],
)
def test_urls_as_text(url, scheme, parent, base):
    assert (scheme_of(url), parent_url(url), base_name(url)) == (scheme, parent, base)
    assert join_url(parent, base) in (url, url.rstrip("/"), f"./{url}")


@pytest.mark.parametrize("base", ["s3://bucket", "s3://bucket/", "data", "/data", "/", "memory://"])
def test_joined_urls_are_relative_again(base):
    joined = join_url(base, ".shoal", "index", "a.arrow")
    assert joined.startswith(base)
    assert relative_url(joined, base) == ".shoal/index/a.arrow"
