"""Search: an AppView where one is configured, what was followed, and named accounts; each dataset once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

from shoal.errors import AtmosphereError, ShoalWarning

from ._appview import AppView
from ._followed import Followed
from ._network import Network
from ._read import get_dataset, list_datasets
from ._records import PublishedDataset

__all__ = ["search"]


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
    places = (_from_appview(network, appview, text, limit), _from_followed(followed, text, limit))
    for place in (*places, *(_from_account(network, who, text) for who in accounts)):
        for dataset in place:
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
            yield get_dataset(network, uri)  # what it says is a hint; the record is where it is
        except AtmosphereError:
            continue


def _from_followed(followed: Followed | None, text: str, limit: int) -> Iterator[PublishedDataset]:
    return iter(() if followed is None else followed.search(text, limit=limit))


def _from_account(network: Network, account: str, text: str) -> Iterator[PublishedDataset]:
    words = text.lower().split()
    for dataset in list_datasets(network, account):
        told = " ".join((dataset.name, dataset.description, dataset.license, *dataset.tags)).lower()
        if all(word in told for word in words):
            yield dataset
