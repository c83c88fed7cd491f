"""Find the shards that a path, pattern, list, folder or manifest names, and group them by split."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import AccessDeniedError, ManifestError, ObjectNotFoundError, StoreError
from shoal.store._base import ObjectInfo
from shoal.store._pattern import expand_pattern
from shoal.store._registry import no_such_path, store_for
from shoal.store._url import base_name, join_url, parent_url, relative_url, scheme_of

from ._energon_splits import ENERGON_SPLITS, load_energon_splits
from ._journal import is_unfinished, recover
from ._manifest import Manifest, ShardRecord, is_manifest_url, load_manifest, manifest_url
from ._segment_table import OpenGeneration, SegmentTable, open_generation
from ._split_names import find_split, split_alias, split_of
from ._stored_rows import index_url
from ._table import ShardRef
from ._writing import unfinished_writes

__all__ = [
    "SHARD_ENDINGS",
    "ShardList",
    "dataset_root",
    "files_below",
    "is_dataset_folder",
    "is_hidden",
    "locate_dataset",
    "locate_existing",
    "locate_shards",
    "nested_datasets",
    "open_dataset",
    "own_files",
    "shards_by_split",
    "splits_without_manifest",
    "tars_below",
]

SHARD_ENDINGS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")

_FILE = re.compile(r"\.[a-z][a-z0-9]*/?$|[{*?\[]", re.IGNORECASE)
"""What a URL has that is of a file, or of a pattern."""

_NESTED = re.compile(
    r"(.+/)\.shoal/(?:manifest\.json|commit\.json|journal-[^/]*\.jsonl|writing/[^/]*/head\.json)", re.DOTALL
)
"""The files that make a folder below another a dataset of its own."""

_WRITE_HEAD = re.compile(r"\.shoal/writing/[^/]*/head\.json")

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ShardList:
    """Shards in order, and the manifest that named them."""

    shards: Sequence[ShardRef]
    manifest: Manifest | None = None
    root: str | None = None
    listed_splits: Mapping[str, Sequence[str]] | None = None
    """URLs of the shards of each split, where the folder says them: Energon's ``split.yaml``, or its folders."""
    table: SegmentTable | None = None
    """The index of the shards, where a generation of a dataset names them."""

    @property
    def has_splits(self) -> bool:
        """Whether a manifest or the folder says the splits."""
        return self.has_manifest or self.listed_splits is not None

    @property
    def has_manifest(self) -> bool:
        """Whether a manifest names the shards."""
        return self.manifest is not None or self.table is not None

    def urls_by_split(self) -> dict[str, list[str]]:
        """Return the URLs of the shards by split: as the manifest or ``split.yaml`` lists them, else by their names."""
        if self.table is not None:
            return self.table.urls_by_split()
        urls = {ref.url: None for ref in self.shards}
        if self.manifest is not None and self.root is not None:
            splits = self.manifest.splits.items()
            listed = {name: [join_url(self.root, record.path) for record in records] for name, records in splits}
        elif self.listed_splits is not None:
            listed = {name: list(members) for name, members in self.listed_splits.items()}
        else:
            return shards_by_split(urls, self.root)
        return {name: [url for url in members if url in urls] for name, members in listed.items()}


def locate_shards(
    path: PathLike | Iterable[PathLike], split: str | None = None, *, generation: str | None = None
) -> ShardList:
    """The shards that ``path`` names: a tar, a pattern, a list, a folder, or a manifest.

    A folder with a manifest is what the manifest says, other tars in it are not looked at; one without is what
    Energon's ``split.yaml`` lists, else every tar below it. ``split`` keeps the shards of one split, by these lists or
    by their names; ``val`` and ``validation`` are one. Raises ObjectNotFoundError when there is nothing, FieldError
    when the split is not there, naming those there. ``generation`` is the id of one that is not the newest.
    """
    if isinstance(path, (str, os.PathLike)):
        path = os.fspath(path)
        if (located := locate_dataset(path, split, generation=generation)) is not None:
            return located
        if (root := dataset_root(path)) is not None:
            listed = list(store_for(root).list(root))
            if is_unfinished(root) or _is_being_written(root, listed):
                raise ManifestError(
                    "the dataset was not finished",
                    found=root,
                    hint="run its writer again with resume=True, or name the shards that are there: '*.tar'",
                )
            return _folder_without_manifest(root, split, listed)
    urls = expand_pattern(path)
    return ShardList(tuple(ShardRef(url) for url in _of_split(urls, split)))


def locate_dataset(path: str, split: str | None = None, *, generation: str | None = None) -> ShardList | None:
    """The shards that a manifest names, of the folder or the manifest at ``path``; None where there is no manifest.

    Raises FieldError and ManifestError as `locate_shards` and `open_dataset` do.
    """
    if (opened := open_dataset(path, generation)) is not None:
        table = opened.table(split)
        return ShardList(table.shards, None, opened.root, None, table)
    if (root := dataset_root(path)) is None:
        return None
    recover(root)
    if (manifest := load_manifest(root)) is None:
        return None
    records = manifest.shards if split is None else manifest.splits[find_split(split, manifest.splits)]
    return ShardList(tuple(_ref(root, record, manifest) for record in records), manifest, root)


def open_dataset(path: str, generation: str | None = None) -> OpenGeneration | None:
    """Open a generation of the dataset that a folder or a manifest is of; None for any other path.

    It is the newest one, unless its id is given. Raises what `open_generation` raises.
    """
    if is_manifest_url(path):
        return open_generation(parent_url(parent_url(path)), generation)
    if _FILE.search(path) and not (scheme_of(path) == "file" and store_for(path).is_folder(path)):
        return None
    return open_generation(path.rstrip("/") if _is_http(path) else path, generation)


def dataset_root(path: str) -> str | None:
    """The folder that a path names, itself or by its manifest; None for any other path."""
    if is_manifest_url(path):
        return parent_url(parent_url(path))
    if not is_dataset_folder(path):
        return None
    return path.rstrip("/") if _is_http(path) else path


def is_dataset_folder(url: str) -> bool:
    """Whether ``url`` is a folder: one that can be listed, or on an HTTP server, which lists nothing, a manifest's."""
    if store_for(url).is_folder(url):
        return True
    if not _is_http(url) or _FILE.search(url):
        return False
    manifest = manifest_url(url.rstrip("/"))
    try:
        store_for(manifest).info(manifest)
    except (ObjectNotFoundError, AccessDeniedError):  # some servers say the one for the other
        return False
    return True


def _is_http(url: str) -> bool:
    return scheme_of(url) in ("http", "https")


def locate_existing(path: PathLike | Iterable[PathLike], split: str | None = None) -> ShardList:
    """The same, and ObjectNotFoundError also where every one of the named files is missing: so it was a wrong name.

    A manifest names its shards itself; they may all be missing, and are still the dataset's.
    """
    given = path if isinstance(path, (str, os.PathLike)) else list(path)
    located = locate_shards(given, split)
    if located.root is not None or not located.shards:
        return located
    first = located.shards[0].url
    missing = _missing(first)
    if missing is None or any(_missing(ref.url) is None for ref in located.shards[1:]):
        return located
    if scheme_of(first) == "file":
        raise no_such_path(os.fspath(given) if isinstance(given, (str, os.PathLike)) else first)
    raise missing  # a store says more: that a repository is private, that a bucket is another's


def _missing(url: str) -> ObjectNotFoundError | None:
    """The error of a shard that is not there. That something else is wrong with it is another matter."""
    try:
        store_for(url).info(url)
    except ObjectNotFoundError as error:
        return error
    except StoreError:
        return None
    return None


def _is_being_written(root: str, listed: Iterable[ObjectInfo]) -> bool:
    """Whether tars of the folder are those of a writer that has not committed them."""
    if not any(_WRITE_HEAD.fullmatch(relative_url(info.url, root)) for info in listed):
        return False
    return any(not write.head.staged for write in unfinished_writes(root))


def _folder_without_manifest(root: str, split: str | None, listed: Sequence[ObjectInfo]) -> ShardList:
    tars = _own_tars(root, listed)
    if all(relative_url(info.url, root) != ENERGON_SPLITS for info in listed):
        return ShardList(tuple(ShardRef(url) for url in _of_split(tars, split, root)), None, root)
    splits = load_energon_splits(root, [relative_url(url, root) for url in tars])
    members = [url for name in splits for url in splits[name]] if split is None else splits[find_split(split, splits)]
    return ShardList(tuple(ShardRef(url) for url in dict.fromkeys(members)), None, root, splits)


def splits_without_manifest(root: str) -> dict[str, list[str]]:
    """The URLs of a folder's tars by split, as Energon's ``split.yaml`` or their names say."""
    return _folder_without_manifest(root, None, list(store_for(root).list(root))).urls_by_split()


def _ref(root: str, record: ShardRecord, manifest: Manifest) -> ShardRef:
    url, sidecar = join_url(root, record.path), index_url(root, record.path)
    return ShardRef(url, record.samples, sidecar, manifest.rule, tuple(record.fields) or None, record.bytes)


def tars_below(root: str) -> list[str]:
    """Every tar below a folder but for hidden ones and other datasets'. Raises ObjectNotFoundError when there is none.

    A folder below with a manifest, or with an unfinished write, is a dataset of its own.
    """
    return _own_tars(root, store_for(root).list(root))


def _own_tars(root: str, listed: Iterable[ObjectInfo]) -> list[str]:
    tars = [info.url for info in own_files(root, listed) if info.url.lower().endswith(SHARD_ENDINGS)]
    if not tars:
        raise ObjectNotFoundError(
            "the folder has no tar shards", found=root, hint="pack a folder of samples with `shoal pack`"
        )
    return tars


def files_below(root: str) -> list[ObjectInfo]:
    """Every file below a folder, but for hidden ones and those of datasets in folders below. One listing is enough."""
    return own_files(root, store_for(root).list(root))


def own_files(root: str, listed: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Of what a listing of ``root`` gave, the files that are not hidden and not of datasets in folders below."""
    infos = {relative_url(info.url, root): info for info in listed}
    nested = tuple(nested_datasets(infos))
    return [info for path, info in infos.items() if not is_hidden(path) and not (nested and path.startswith(nested))]


def nested_datasets(paths: Iterable[str]) -> list[str]:
    """The folders that are datasets of their own, of a listing's paths.

    Examples:
        >>> nested_datasets(["emb/.shoal/manifest.json", "emb/a.tar", "b.tar"])
        ['emb/']
    """
    return sorted({match[1] for path in paths if (match := _NESTED.fullmatch(path)) is not None})


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder it is in, has a name that begins with a dot."""
    return any(part.startswith(".") for part in path.split("/"))


def shards_by_split(urls: Iterable[str], root: str | None = None) -> dict[str, list[str]]:
    """Shards by the split that their paths below ``root`` name, in order; ``root`` is the folder that holds them all.

    Folders above say nothing, unless the last one is a split's name: ``test/a.tar`` is a test, ``test_run/a.tar`` not.

    Examples:
        >>> shards_by_split(["test_run/val/a.tar", "test_run/b.tar"])
        {'validation': ['test_run/val/a.tar'], 'train': ['test_run/b.tar']}
    """
    urls = list(urls)
    if root is None or any(not url.startswith(root) for url in urls):  # "." and quoted URLs are listed otherwise
        root = _shared_folder(urls)
    above = base_name(root) if split_alias(base_name(root)) else ""
    splits: dict[str, list[str]] = {}
    for url in urls:
        splits.setdefault(split_of(f"{above}/{relative_url(url, root)}"), []).append(url)
    return splits


def _shared_folder(urls: list[str]) -> str:
    names = zip(*(url.split("/")[:-1] for url in urls), strict=False)
    return "/".join(same[0] for same in itertools.takewhile(lambda same: len(set(same)) == 1, names))


def _of_split(urls: list[str], split: str | None, root: str | None = None) -> list[str]:
    if split is None:
        return urls
    splits = shards_by_split(urls, root)
    return splits[find_split(split, splits)]
