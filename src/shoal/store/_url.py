"""Functions on URLs and plain paths as strings."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

__all__ = ["OBJECT_STORES", "base_name", "join_url", "local_path", "parent_url", "relative_url", "scheme_of"]

OBJECT_STORES = {
    **dict.fromkeys(["s3", "s3a"], "s3"),
    "gs": "gs",
    **dict.fromkeys(["az", "abfs", "abfss"], "az"),
    **dict.fromkeys(["http", "https"], "http"),
}
"""Schemes that obstore serves, and the kind of service each one is."""

# Two letters at least, so that a Windows drive ("C:\\data") stays a path.
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case; ``"file"`` for a plain path.

    Examples:
        >>> scheme_of("s3://bucket/a.tar"), scheme_of("data/a.tar")
        ('s3', 'file')
    """
    found = _SCHEME.match(url)
    return found[1].lower() if found else "file"


def local_path(url: str) -> str:
    """The path of the file that a ``file://`` URL or a plain path names."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return os.path.expanduser(url)
    _, slash, path = url[scheme.end() :].partition("/")  # not urlsplit: "#" and "?" are letters of names here
    return unquote(slash + path) or "/"


def join_url(base: str, *parts: str) -> str:
    """Join with single slashes; works for paths and URLs alike.

    Examples:
        >>> join_url("s3://bucket/data/", ".shoal", "manifest.json")
        's3://bucket/data/.shoal/manifest.json'
    """
    joined = base
    for part in parts:
        joined += part if not joined or joined.endswith("/") else f"/{part}"
    return joined


def parent_url(url: str) -> str:
    """The folder that holds ``url``; ``"."`` for a bare name."""
    found = _SCHEME.match(url)
    scheme = found[0] if found else ""
    head, slash, _ = url[len(scheme) :].rstrip("/").rpartition("/")
    return scheme + (head or slash) if scheme else head or slash or "."


def base_name(url: str) -> str:
    """The last part of a URL."""
    return url.rstrip("/").rpartition("/")[2]


def relative_url(url: str, base: str) -> str:
    """``url`` as seen from the folder ``base``, which must hold it."""
    if base in (".", ""):
        return url.removeprefix("./")
    return url.removeprefix(base if base.endswith("/") else f"{base}/")
