"""Push a dataset to the Hub.

Files are uploaded in batches, which an interrupted push need not send again; then one commit makes them visible.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.dataset._dataset import Dataset
from shoal.errors import ObjectNotFoundError, ShoalWarning
from shoal.shard._journal import commit
from shoal.shard._manifest import Manifest, load_manifest
from shoal.shard._stored_rows import index_path
from shoal.shard._verify import with_hashes
from shoal.store._hub_access import hub_access
from shoal.store._huggingface import HubStore
from shoal.store._operations import Progress, Transferred, copy
from shoal.store._registry import store_for
from shoal.store._url import join_url, local_path, scheme_of

from ._card import Card, CardOptions, made_card
from ._client import client_of, full_name, hub_module, hub_url, patiently, use_access, without_bars
from ._content import TOMBSTONES_PATH, Content, HubFolder, compacted, content_of, manifest_path

if TYPE_CHECKING:
    import huggingface_hub

__all__ = ["Pushed", "push_to_hub"]

_README = "README.md"
_BATCH_FILES, _BATCH_BYTES = 32, 2 << 30
"""What is sent before the next is looked at: an interruption loses no more than the file under way."""
_ZSTD = "`datasets` reads only the first block of zstd-compressed shards; write plain ones, or gzip, for its users"
_DELETED = (
    "{} marked as deleted are still in the shards, and are published with them; pass compact=True to rewrite these"
)
_PER_COMMIT = 1000
"""The Hub gives up on commits that take too long."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push left on the Hub."""

    repo_id: str
    revision: str
    commit: str
    files: int
    bytes: int
    page: str
    """Where people look at it."""

    @property
    def url(self) -> str:
        """This very state of it, for `Dataset` and `load_dataset`."""
        return hub_url(self.repo_id, self.commit)


def push_to_hub(
    dataset: HubFolder | Dataset[Any] | Mapping[str, Dataset[Any]],
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str = "main",
    card: CardOptions | None = None,
    readme: bool = True,
    compact: bool = False,
    message: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
    staging: HubFolder | None = None,
) -> Pushed:
    """Put a dataset on the Hugging Face Hub, with its indexes, its manifest and a card.

    ``dataset`` is a folder or URL of shards, a Dataset or a DatasetDict. A whole folder or split goes as it is; a view
    (``where``, ``select``, ``map``) is written out first, into a temporary folder, which is made in ``staging`` where
    the usual place is small. Tars without an index are indexed. `datasets` streams what is pushed without any
    configuration, and so does ``Dataset(pushed.url)``.

    ``repo_id`` without an owner is the user's own. The repository is made when there is none, ``private`` if so asked;
    ``revision`` is the branch. What the last push named and this one does not is removed; everything else there stays,
    and what people wrote in the card too. Readers see the new dataset whole or not at all, unless it has over a
    thousand files: then its manifest comes last. Files that are there already are not sent again, so a push that was
    interrupted is simply made again. ``progress`` is told what has been sent; without it the client shows bars of its
    own.

    ``token`` and ``endpoint``, when given, are used for the repository from now on; else those of
    ``shoal.store.configure("hf://", ...)``, HF_TOKEN and HF_ENDPOINT, or of `hf auth login`.

    Samples that were deleted with `Dataset.tombstone` are still in the shards of a folder, where every reader of the
    repository can find them. A ShoalWarning says how many; ``compact=True`` rewrites the shards that hold some, without
    them. A view never has deleted samples. Commits made before keep what they have.

    Warns of shards that are compressed with zstd, which `datasets` does not read.

    Raises:
        MissingExtraError: ``huggingface_hub`` is not installed.
        AccessDeniedError: The token may not write there, or there is none.
        ObjectNotFoundError: There is no dataset.
        ObjectChangedError: Somebody else changed the repository meanwhile.
    """
    hub_module()
    repo_id = full_name(repo_id, token, endpoint)
    use_access(repo_id, token, endpoint)
    with ExitStack() as stack:
        if progress is not None:
            stack.enter_context(without_bars())
        home = None if staging is None else os.fspath(staging)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-push-", dir=home))
        content = content_of(dataset, os.path.join(folder, "dataset"))
        if compact:
            content = compacted(content, os.path.join(folder, "compacted"))
        deleted = sum(map(len, content.deleted.values()))
        if deleted:
            warnings.warn(
                _DELETED.format("1 sample" if deleted == 1 else f"{deleted} samples"), ShoalWarning, stacklevel=2
            )
        if any(record.compression == "zstd" for record in content.manifest.shards):
            warnings.warn(_ZSTD, ShoalWarning, stacklevel=2)
        client, url = client_of(repo_id), hub_url(repo_id, None if revision == "main" else revision)
        _make_repository(client, repo_id, private, revision)
        made = made_card(content, repo_id, card or CardOptions(), _readme_there(content, url)) if readme else None
        pushing = _Push(client, repo_id, revision, os.path.join(folder, "copies"), progress)
        commit = pushing.run(content, made, _former_files(url), message)
    HubStore().forget(url)
    page = f"{hub_access(url).endpoint}/datasets/{repo_id}"
    return Pushed(repo_id, revision, commit, *pushing.sent, page)


def _make_repository(client: huggingface_hub.HfApi, repo_id: str, private: bool | None, revision: str) -> None:
    url = hub_url(repo_id)
    patiently(lambda: client.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True), url)
    if revision != "main":
        patiently(lambda: client.create_branch(repo_id, branch=revision, repo_type="dataset", exist_ok=True), url)
    HubStore().forget(url)


def _readme_there(content: Content, url: str) -> str | None:
    """The card that people may have written in: the folder's, else that of the repository."""
    place = content.readme or f"{url}/{_README}"
    try:
        return store_for(place).read_all(place).decode("utf-8", "replace")
    except ObjectNotFoundError:
        return None


def _former_files(url: str) -> set[str]:
    """The files of the dataset that the repository holds now."""
    manifest = load_manifest(url) or Manifest({})
    shards = {record.path for record in manifest.shards}
    cards = {path for path in HubStore().snapshot(url).files if path.startswith(".shoal/card/")}
    return shards | {index_path(path) for path in shards} | cards | {TOMBSTONES_PATH}


class _Push:
    """One push: what is sent, and what was."""

    def __init__(
        self, client: huggingface_hub.HfApi, repo_id: str, revision: str, copies: str, progress: Progress | None
    ) -> None:
        self._client = client
        self._facts: dict[str, Any] = {"repo_id": repo_id, "repo_type": "dataset", "revision": revision}
        self._url = hub_url(repo_id, revision)
        self._copies = copies
        self._progress = progress
        self._in_all = (0, 0)
        self.sent = (0, 0)

    def run(self, content: Content, card: Card | None, former: set[str], message: str | None) -> str:
        """Send everything; returns the commit."""
        sizes = {path: store_for(url).info(url).size for path, url in content.files.items()}
        self._in_all = len(sizes), sum(sizes.values())
        adds = [add for batch in _batches(content.files, sizes) for add in self._send(batch, sizes)]
        small = self._small_files(content, card, {add.path_in_repo: add for add in adds})
        kept = {add.path_in_repo for add in [*adds, *small]}
        there = HubStore().snapshot(self._url).files
        gone = [self._hub.CommitOperationDelete(path) for path in sorted((former - kept) & there.keys())]
        return self._commit(adds, [*small, *gone], message or "Push the dataset with shoal")

    @property
    def _hub(self) -> Any:
        return hub_module()

    def _send(self, batch: Mapping[str, str], sizes: Mapping[str, int]) -> list[Any]:
        """Send the contents of some files; those that the hub has already are not sent. The commit names them later."""
        adds = [self._hub.CommitOperationAdd(path, self._local(url, path)) for path, url in batch.items()]
        patiently(lambda: self._client.preupload_lfs_files(additions=adds, **self._facts), self._url)
        self.sent = self.sent[0] + len(batch), self.sent[1] + sum(sizes[path] for path in batch)
        if self._progress is not None:
            self._progress(Transferred(*self.sent, *self._in_all))
        for add, url in zip(adds, batch.values(), strict=True):
            if scheme_of(url) != "file" and add.path_or_fileobj == b"":  # sent: the copy is not needed any more
                os.remove(self._copy_of(add.path_in_repo))
        return adds

    def _local(self, url: str, path: str) -> str:
        """A file on this machine with what is at ``url``: that of a dataset elsewhere is fetched for the while."""
        if scheme_of(url) == "file":
            return local_path(url)
        copy(url, self._copy_of(path))
        return self._copy_of(path)

    def _copy_of(self, path: str) -> str:
        return os.path.join(self._copies, *path.split("/"))

    def _small_files(self, content: Content, card: Card | None, adds: Mapping[str, Any]) -> list[Any]:
        """What is made for each push: the manifest, which now knows the hash of each shard, and the card."""
        hashes = {record.path: adds[record.path].upload_info.sha256.hex() for record in content.manifest.shards}
        commit(self._copies, lambda before: with_hashes(content.manifest, hashes))
        url = join_url(self._copies, manifest_path())
        files = {manifest_path(): store_for(url).read_all(url)}
        if card is not None:
            files |= {_README: card.text.encode(), **card.pictures}
        elif content.readme is not None:
            files[_README] = store_for(content.readme).read_all(content.readme)
        return [self._hub.CommitOperationAdd(path, data) for path, data in files.items()]

    def _commit(self, adds: Sequence[Any], last: Sequence[Any], message: str) -> str:
        """One commit, or several of which the last names the others' files."""
        first = adds[: max(0, len(adds) - _PER_COMMIT)] if len(adds) > _PER_COMMIT else []
        parts = [first[start : start + _PER_COMMIT] for start in range(0, len(first), _PER_COMMIT)]
        for number, part in enumerate(parts):
            self._commit_one(part, f"{message} (part {number + 1} of {len(parts) + 1})")
        return self._commit_one([*adds[len(first) :], *last], message)

    def _commit_one(self, operations: Sequence[Any], message: str) -> str:
        facts = self._facts
        made = patiently(
            lambda: self._client.create_commit(operations=operations, commit_message=message, **facts), self._url
        )
        return str(made.oid)


def _batches(files: Mapping[str, str], sizes: Mapping[str, int]) -> Iterator[dict[str, str]]:
    batch: dict[str, str] = {}
    size = 0
    for path, url in files.items():
        batch[path] = url
        size += sizes[path]
        if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch
