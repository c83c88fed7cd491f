"""Search for published datasets: in an AppView, in what was followed, and in the repositories of accounts."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shoal.errors import AtmosphereError, ShoalWarning

from ._identifiers import AtUri
from ._lexicons import NAMESPACE
from ._open import get_dataset, list_datasets
from ._pds import Service
from ._records import PublishedDataset
from ._repositories import Network

if TYPE_CHECKING:
    from ._firehose import Followed

__all__ = ["AppView", "search"]

_PAGE = 100
_MAX_URIS = 25


def search(
    network: Network,
    text: str,
    *,
    appview: AppView | None,
    followed: Followed | None,
    accounts: Iterable[str] = (),
    limit: int = 50,
) -> list[PublishedDataset]:
    """Datasets whose name, description, tags or license have all the words of a text."""
    found: dict[str, PublishedDataset] = {}
    kept = () if followed is None else followed.search(text, limit=limit)
    results = [
        _from_appview(network, appview, text, limit),
        kept,
        *(_from_account(network, who, text) for who in accounts),
    ]
    for datasets in results:
        for dataset in datasets:
            found.setdefault(str(dataset.uri), dataset)
            if len(found) >= limit:
                return list(found.values())
    return list(found.values())


def _from_appview(network: Network, appview: AppView | None, text: str, limit: int) -> Iterator[PublishedDataset]:
    if appview is None:
        return
    try:
        uris = appview.search_datasets(text, limit=limit)
    except AtmosphereError as error:
        warnings.warn(f"the AppView was not asked: {error}", ShoalWarning, stacklevel=4)
        return
    for uri in uris:
        try:
            yield get_dataset(network, uri)  # the AppView's answer is a hint; the repository has the record
        except AtmosphereError:
            continue


def _from_account(network: Network, account: str, text: str) -> Iterator[PublishedDataset]:
    words = text.lower().split()
    for dataset in list_datasets(network, account):
        searched = " ".join((dataset.name, dataset.description, dataset.license, *dataset.tags)).lower()
        if all(word in searched for word in words):
            yield dataset


class AppView:
    """The calls of an AppView for datasets.

    Its answers are hints: records are read from the repositories that they are in. It is never required.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self._service.query(f"{NAMESPACE}.{method}", params)

    def _pages(self, method: str, word: str, limit: int, **params: Any) -> Iterator[dict[str, Any]]:
        cursor, given = None, 0
        while given < limit:
            answer = self._ask(method, limit=min(_PAGE, limit - given), cursor=cursor, **params)
            items = [item for item in answer.get(word) or [] if isinstance(item, dict)]
            yield from items[: limit - given]
            given += len(items)
            before, cursor = cursor, answer.get("cursor")
            if not items or not cursor or cursor == before:
                return

    def search_datasets(
        self, text: str, *, tags: tuple[str, ...] = (), repo: str | None = None, limit: int = 50
    ) -> list[AtUri]:
        """Datasets that fit a text."""
        return _uris(self._pages("searchDatasets", "entries", limit, q=text, tags=list(tags) or None, repo=repo))

    def search_lenses(
        self, *, source: AtUri | None = None, target: AtUri | None = None, limit: int = 50
    ) -> list[AtUri]:
        """Lenses from one schema to another."""
        ends = {"sourceSchema": source and str(source), "targetSchema": target and str(target)}
        return _uris(self._pages("searchLenses", "lenses", limit, **ends))

    def list_entries(self, repo: str | None = None, limit: int = 1000) -> list[AtUri]:
        """Datasets of a repository, or of all."""
        return _uris(self._pages("listEntries", "entries", limit, repo=repo))

    def list_schemas(self, repo: str | None = None, limit: int = 1000) -> list[AtUri]:
        """Schemas of a repository, or of all."""
        return _uris(self._pages("listSchemas", "schemas", limit, repo=repo))

    def list_lenses(self, repo: str | None = None, limit: int = 1000) -> list[AtUri]:
        """Lenses of a repository, or of all."""
        return _uris(self._pages("listLenses", "lenses", limit, repo=repo))

    def resolve_label(self, handle: str, name: str, version: str | None = None) -> AtUri:
        """The dataset that a label names."""
        return _uri_of(self._ask("resolveLabel", handle=handle, name=name, version=version))

    def resolve_schema(self, handle: str, schema_id: str, version: str | None = None) -> AtUri:
        """The schema of this name."""
        return _uri_of(self._ask("resolveSchema", handle=handle, schemaId=schema_id, version=version))

    def get_entry(self, uri: AtUri) -> dict[str, Any]:
        """What the AppView has of a dataset."""
        found = self._ask("getEntry", uri=str(uri))
        return dict(found.get("entry") or found)

    def get_entries(self, uris: list[AtUri]) -> list[dict[str, Any]]:
        """What the AppView has of several datasets."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(uris), _MAX_URIS):
            asked = [str(uri) for uri in uris[start : start + _MAX_URIS]]
            found += self._ask("getEntries", uris=asked).get("entries") or []
        return found

    def entry_stats(self, uri: AtUri) -> dict[str, Any]:
        """How often a dataset was looked for and looked at."""
        return self._ask("getEntryStats", uri=str(uri))

    def resolve_blobs(self, uris: list[AtUri]) -> list[dict[str, Any]]:
        """Where the blobs of datasets can be read."""
        return list(self._ask("resolveBlobs", uris=[str(uri) for uri in uris[:_MAX_URIS]]).get("blobs") or [])

    def describe(self) -> dict[str, Any]:
        """What the AppView says of itself."""
        return self._ask("describeService")


def _uri_of(item: Mapping[str, Any]) -> AtUri:
    return AtUri.parse(str(item.get("uri")))


def _uris(items: Iterator[dict[str, Any]]) -> list[AtUri]:
    found: dict[AtUri, None] = {}
    for item in items:
        try:
            found[_uri_of(item)] = None
        except AtmosphereError:
            continue  # not a URI
    return list(found)
