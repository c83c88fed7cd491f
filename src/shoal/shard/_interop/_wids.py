"""The wids index: one JSON for a dataset, that lists its shards and how many samples each has.

It knows nothing of what is inside a shard, so it becomes a list of shards, not a shard index.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

import msgspec

from shoal.errors import ShardIndexError, StaleIndexError
from shoal.shard._index import ShardIndex
from shoal.store import local_path, parent_url, scheme_of, store_for

from ._foreign_index import SCAN_INSTEAD

__all__ = ["WidsShard", "check_wids", "export_wids", "import_wids"]

_KIND = "wids-shard-index-v1"
_VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class WidsShard:
    """One shard as a wids index lists it."""

    url: str
    """Whole: a relative one has been resolved."""
    nsamples: int
    filesize: int | None = None
    md5sum: str | None = None


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    url: str
    nsamples: Count
    filesize: Count | None = None
    md5sum: str | None = None


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole document, or one of the ``datasets`` in it."""

    kind: str | None = msgspec.field(default=None, name="__kind__")
    wids_version: int | None = None
    name: str | None = None
    base: str | None = None
    source_url: str | None = None
    shardlist: tuple[_Entry, ...] | None = None
    datasets: tuple[_Document, ...] = ()


def import_wids(json_url: str) -> list[WidsShard]:
    """Every shard that a wids JSON lists, in its order, those of its ``datasets`` after its own.

    Relative URLs count from ``base``, else from the folder of the JSON they stand in. A dataset may be in a JSON of its
    own (``source_url``), which may not refer to others in turn. Raises ShardIndexError when it is not such a JSON.

    Example:
        >>> url = "memory://wids/index.json"
        >>> text = b'{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 7}]}'
        >>> _ = store_for(url).write_all(url, text)
        >>> import_wids(url)
        [WidsShard(url='memory://wids/a.tar', nsamples=7, filesize=None, md5sum=None)]
    """
    document = _read(json_url)
    if document.kind is None and document.wids_version is None:
        raise ShardIndexError("this is not a wids index", expected="wids_version 1", found="none", shard=json_url)
    folder = _base(document, parent_url(json_url))
    shards = _resolved(document, folder, json_url)
    for dataset in document.datasets:
        shards += _dataset(dataset, folder, json_url)
    if not shards:
        raise ShardIndexError("the wids index lists no shards", shard=json_url)
    return shards


def _read(url: str) -> _Document:
    data = store_for(url).read_all(url)
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ShardIndexError("this is not a wids index", found=str(error), shard=url) from error
    if document.kind not in (None, _KIND):
        raise ShardIndexError("this is not a wids index", expected=_KIND, found=document.kind, shard=url)
    if document.wids_version not in (None, _VERSION):
        problem, expected = "the wids index is of another version", f"wids_version {_VERSION}"
        raise ShardIndexError(problem, expected=expected, found=document.wids_version, shard=url)
    return document


def _dataset(dataset: _Document, folder: str, json_url: str) -> list[WidsShard]:
    if dataset.source_url is None:
        return _listed(dataset, _base(dataset, folder), json_url)
    url = _joined(folder, dataset.source_url, json_url)
    return _listed(found := _read(url), _base(found, parent_url(url)), url)


def _listed(dataset: _Document, folder: str, json_url: str) -> list[WidsShard]:
    if dataset.datasets or dataset.source_url is not None:
        problem, hint = "a dataset of a wids index refers to another in turn", "list its shards there"
        raise ShardIndexError(problem, found=dataset.source_url or "datasets", shard=json_url, hint=hint)
    if dataset.shardlist is None:
        raise ShardIndexError("a dataset of a wids index has neither shardlist nor source_url", shard=json_url)
    return _resolved(dataset, folder, json_url)


def _resolved(document: _Document, folder: str, json_url: str) -> list[WidsShard]:
    return [
        WidsShard(_joined(folder, entry.url, json_url), entry.nsamples, entry.filesize, entry.md5sum)
        for entry in document.shardlist or ()
    ]


def _base(document: _Document, folder: str) -> str:
    return folder if document.base is None else _joined(folder, document.base, folder)


def _joined(folder: str, url: str, json_url: str) -> str:
    """``url`` as seen from ``folder``."""
    if url.startswith("pipe:"):
        raise ShardIndexError("a wids index names a command in place of a shard", found=url, shard=json_url)
    if "://" in url:
        return url
    root, path = _split_root(folder)
    if not root:
        return os.path.normpath(os.path.join(path, url))
    return root + posixpath.normpath(posixpath.join(path or "/", url)).lstrip("/")


def _split_root(url: str) -> tuple[str, str]:
    """``s3://bucket/`` and the path in it; no root for a plain path."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "", url
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}/", f"/{path}"


def check_wids(shard: WidsShard, index: ShardIndex) -> None:
    """Raise StaleIndexError when a shard, by its own index, is not what the wids index says of it."""
    facts = (("bytes", shard.filesize, index.facts.size), ("samples", shard.nsamples, len(index)))
    for what, stated, found in facts:
        if stated is not None and stated != found:
            problem, expected = "the shard is not what the wids index says", f"{stated} {what}"
            raise StaleIndexError(problem, expected=expected, found=found, shard=shard.url, hint=SCAN_INSTEAD)


def export_wids(shards: Sequence[WidsShard], url: str, *, name: str | None = None) -> None:
    """Write a wids JSON of these shards to ``url``, in their order, so that sample ``i`` is the same one there.

    Shards in the JSON's folder or below are named relative to it, so that the dataset can be moved as a whole.
    """
    folder = parent_url(url)
    entries = tuple(
        _Entry(_seen_from(folder, shard.url), shard.nsamples, shard.filesize, shard.md5sum) for shard in shards
    )
    document = _Document(kind=_KIND, wids_version=_VERSION, name=name, shardlist=entries)
    store_for(url).write_all(url, msgspec.json.format(msgspec.json.encode(document), indent=2))


def _seen_from(folder: str, url: str) -> str:
    """How a JSON in ``folder`` names ``url``."""
    if "://" in url:
        return url.removeprefix(folder.rstrip("/") + "/") if "://" in folder else url
    if scheme_of(folder) != "file":
        return "file://" + quote(os.path.abspath(local_path(url)))
    if os.path.isabs(url) and not os.path.isabs(local_path(folder)):
        return url
    relative = os.path.relpath(local_path(url), local_path(folder)).replace(os.sep, "/")
    return url if os.path.isabs(url) and relative.startswith("../") else relative
