"""``shoal index``: index tars of other writers, and import and export indexes of other loaders."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

from shoal.errors import OptionError
from shoal.shard._discovery import ShardList, locate_existing, tars_below
from shoal.shard._foreign_formats import (
    WidsShard,
    check_wids,
    dali_url,
    export_dali_idx,
    export_tar_idx,
    export_wids,
    import_rows,
    import_wids,
)
from shoal.shard._index import save_index
from shoal.shard._journal import commit
from shoal.shard._manifest import Manifest, load_manifest, manifest_url, merge_shards, record_of
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule
from shoal.shard._open_shards import fitting_index, index_shard
from shoal.shard._shard_rows import ShardRows
from shoal.shard._split_names import split_of
from shoal.shard._stored_rows import cached_index_url, index_url
from shoal.shard._table import ShardRef
from shoal.store._registry import store_for
from shoal.store._url import join_url, parent_url, relative_url

from ._options import JsonOption
from ._output import print_json, print_table, print_text, progress

__all__ = ["index"]

Loader = Literal["wids", "energon", "dali"]


@dataclass(frozen=True, slots=True)
class _IndexedShard:
    """One shard and the index it now has."""

    shard: str
    state: Literal["kept", "indexed", "imported"]
    index: ShardRows
    split: str | None = None
    """The split, where ``split.yaml`` lists it."""

    def document(self) -> dict[str, Any]:
        return {"shard": self.shard, "state": self.state, "samples": len(self.index)}


def index(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Tars, patterns or folders.")],
    beside: Annotated[
        bool,
        typer.Option("--beside/--cache", help="Keep the index in .shoal/ beside the tars, or in your cache."),
    ] = True,
    source: Annotated[
        Loader | None, typer.Option("--from", help="Take the index of another loader; for wids, PATH is its JSON.")
    ] = None,
    export: Annotated[Loader | None, typer.Option("--export", help="Write an index for another loader too.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Index again, even where there is an index that fits.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Index tars that were written by others.

    With an index they open at once and can be searched, read at random and verified. The folder becomes a dataset:
    its manifest lists the tars; with --cache nothing is written into it. An index that fits its tar is kept. Indexes
    of other loaders are checked against the tar's headers; they have no checksums and no metadata columns. Exports:
    wids gives .shoal/wids.json; energon gives X.tar.idx and dali X.idx, beside each tar, where these loaders want them.

    \b
    Examples:
      shoal index data/
      shoal index 's3/*.tar' --cache
      shoal index data/ --from energon --export dali
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    found = [_index_path(path, beside, source, force, as_json) for path in paths]
    shards = [each for _, listed in found for each in listed]
    manifests = [_write_manifest(root, listed) for root, listed in found if root is not None]
    exported = _export(export, shards) if export is not None else []
    _print_indexed(shards, [url for url in manifests if url], exported, as_json)


def _index_path(
    path: str, beside: bool, source: Loader | None, force: bool, quiet: bool
) -> tuple[str | None, list[_IndexedShard]]:
    """Index the shards of one path. Returns the dataset's root too, unless indexes are kept in the cache."""
    located, check = _locate(path, source)
    root = _dataset_root(located) if beside else None
    splits = {} if located.listed_splits is None else located.urls_by_split()
    split_of_url = {url: name for name, urls in splits.items() for url in urls}
    done = []
    with progress("indexing", len(located.shards), quiet=quiet) as advance:
        for ref in located.shards:
            indexed = _index_shard(ref, root, located, source, force)
            done.append(replace(indexed, split=split_of_url.get(ref.url)))
            check(done[-1])
            advance(1)
    return root, done


def _locate(path: str, source: Loader | None) -> tuple[ShardList, Callable[[_IndexedShard], None]]:
    """Return the shards, and a function that checks each against the wids JSON where there is one."""
    if source != "wids":
        return locate_existing(path), lambda done: None
    listed = {shard.url: shard for shard in import_wids(path)}
    located = ShardList(tuple(ShardRef(url) for url in listed))
    return located, lambda done: check_wids(listed[done.shard], len(done.index), done.index.facts.size)


def _dataset_root(located: ShardList) -> str:
    """Return the folder of the dataset. Raises OptionError when the manifest would not be of all tars in one folder."""
    if located.root is not None:
        return located.root
    folders = sorted({parent_url(ref.url) for ref in located.shards})
    if len(folders) != 1:
        raise OptionError(
            "The index is kept in one folder",
            expected="shards of one folder",
            found=", ".join(folders),
            hint="index the folder above them, or pass --cache",
        )
    if load_manifest(folders[0]) is None:
        given = {ref.url for ref in located.shards}
        others = [relative_url(url, folders[0]) for url in tars_below(folders[0]) if url not in given]
        if others:
            raise OptionError(
                "The folder holds other tars, which a manifest of these would hide",
                found=", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else ""),
                hint="index the folder, or pass --cache",
            )
    return folders[0]


def _index_shard(
    ref: ShardRef, root: str | None, located: ShardList, source: Loader | None, force: bool
) -> _IndexedShard:
    with closing(store_for(ref.url).open(ref.url)) as reader:
        rule = _rule(located)
        stored = cached_index_url(reader, rule) if root is None else index_url(root, relative_url(ref.url, root))
        fitting = None if force else fitting_index(stored, reader)
        if fitting is not None:
            return _IndexedShard(ref.url, "kept", fitting)
        if source in ("energon", "dali"):
            index = import_rows(source, reader, rule, located.root)
        else:
            index = index_shard(reader, rule)
    save_index(index, stored)
    return _IndexedShard(ref.url, "imported" if source in ("energon", "dali") else "indexed", index)


def _rule(located: ShardList) -> KeyRule:
    return WEBDATASET_RULE if located.manifest is None else located.manifest.rule


def _write_manifest(root: str, shards: list[_IndexedShard]) -> str | None:
    """Add the shards to the manifest, and return its URL; None where nothing changed."""
    before = load_manifest(root)
    after = commit(root, lambda now: _with_shards(now, root, shards))
    return None if after == before else manifest_url(root)


def _with_shards(manifest: Manifest, root: str, shards: list[_IndexedShard]) -> Manifest:
    splits = {record.path: name for name, records in manifest.splits.items() for record in records}
    for each in shards:
        path = relative_url(each.shard, root)
        if path not in splits or each.state != "kept":
            manifest = merge_shards(
                manifest, splits.get(path) or each.split or split_of(path), [record_of(path, each.index)]
            )
    return manifest


def _export(loader: Loader, shards: list[_IndexedShard]) -> list[str]:
    if loader == "wids":
        return _export_wids(shards)
    written = []
    for each in shards:
        url = dali_url(each.shard) if loader == "dali" else f"{each.shard}.idx"
        if loader == "dali":
            export_dali_idx(each.index, url)
        else:
            with closing(store_for(each.shard).open(each.shard)) as reader:
                export_tar_idx(each.index, url, reader)
        written.append(url)
    return written


def _export_wids(shards: list[_IndexedShard]) -> list[str]:
    """Write one JSON per folder, in its sidecar folder, since hubs take a JSON next to the tars for data."""
    folders: dict[str, list[WidsShard]] = {}
    for each in shards:
        listed = WidsShard(each.shard, len(each.index), each.index.facts.size)
        folders.setdefault(parent_url(each.shard), []).append(listed)
    urls = [join_url(folder, ".shoal", "wids.json") for folder in folders]
    for url, listed_shards in zip(urls, folders.values(), strict=True):
        export_wids(listed_shards, url)
    return urls


def _print_indexed(shards: list[_IndexedShard], manifests: list[str], exported: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"shards": [each.document() for each in shards], "manifests": manifests, "exported": exported})
        return
    rows = [(each.shard, each.state, f"{len(each.index):,}") for each in shards]
    print_table(["shard", "state", "samples"], rows, right=["samples"])
    for url in (*manifests, *exported):
        print_text(f"wrote {url}")
