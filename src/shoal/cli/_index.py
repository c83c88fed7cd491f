"""``shoal index``: indexes for tars that were written by others, and for other loaders."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from shoal.errors import ObjectNotFoundError, OptionError
from shoal.shard import (
    WEBDATASET_RULE,
    KeyRule,
    Manifest,
    ShardIndex,
    ShardList,
    ShardRef,
    WidsShard,
    cached_index_url,
    check_wids,
    export_dali_idx,
    export_tar_idx,
    export_wids,
    fitting_index,
    import_dali,
    import_energon,
    import_wids,
    index_shard,
    index_url,
    load_manifest,
    locate_shards,
    manifest_url,
    merge_shards,
    record_of,
    save_index,
    split_of,
    update_manifest,
)
from shoal.store import ObjectReader, base_name, join_url, parent_url, relative_url, store_for

from ._options import JsonOption
from ._output import print_json, print_table, print_text, progress

__all__ = ["index"]

Loader = Literal["wids", "energon", "dali"]


@dataclass(frozen=True, slots=True)
class _Indexed:
    """One shard and the index it now has."""

    shard: str
    stored: str
    state: Literal["kept", "indexed", "imported"]
    index: ShardIndex

    def document(self) -> dict[str, Any]:
        return {"shard": self.shard, "index": self.stored, "state": self.state, "samples": len(self.index)}


def index(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Tars, patterns or folders.")],
    beside: Annotated[
        bool, typer.Option("--beside/--cache", help="Keep indexes in .shoal/ beside the tars, or in the user's cache.")
    ] = True,
    manifest: Annotated[
        bool, typer.Option("--manifest", help="Write a manifest too: the folder becomes a dataset.")
    ] = False,
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

    With an index they open at once and can be searched, read at random and verified. An index that fits its tar is
    kept. Indexes of other loaders are checked against the tar's headers; they have no checksums and no metadata
    columns. Exports: wids gives .shoal/wids.json; energon gives X.tar.idx and dali X.idx, beside each tar, where
    these loaders want them.

    \b
    Examples:
      shoal index data/
      shoal index data/ --manifest
      shoal index 's3/*.tar' --cache
      shoal index data/ --from energon --export dali
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if manifest and not beside:
        raise OptionError("a manifest needs its indexes beside it", expected="--beside", found="--cache --manifest")
    found = [_index_path(path, beside, manifest, source, force, as_json) for path in paths]
    shards = [each for _, listed in found for each in listed]
    manifests = [_write_manifest(root, listed) for root, listed in found if root is not None] if beside else []
    exported = _export(export, shards) if export is not None else []
    _report(shards, [url for url in manifests if url], exported, as_json)


def _index_path(
    path: str, beside: bool, manifest: bool, source: Loader | None, force: bool, quiet: bool
) -> tuple[str | None, list[_Indexed]]:
    """Index what one path names. Gives the dataset's root too, where there is or will be a manifest."""
    located, checks = _located(path, source)
    root = _root(located) if manifest or located.manifest is not None else None
    done = []
    with progress("indexing", len(located.shards), quiet=quiet) as advance:
        for ref in located.shards:
            done.append(_index_shard(ref, root, located, beside, source, force))
            checks(done[-1])
            advance(1)
    return root, done


def _located(path: str, source: Loader | None) -> tuple[ShardList, Callable[[_Indexed], None]]:
    """The shards, and what a wids JSON says of each."""
    if source != "wids":
        return locate_shards(path), lambda done: None
    listed = {shard.url: shard for shard in import_wids(path)}
    located = ShardList(tuple(ShardRef(url) for url in listed))
    return located, lambda done: check_wids(listed[done.shard], done.index)


def _root(located: ShardList) -> str:
    """The folder that holds the dataset. Raises OptionError when the shards have no folder in common."""
    if located.root is not None:
        return located.root
    folders = sorted({parent_url(ref.url) for ref in located.shards})
    if len(folders) != 1:
        raise OptionError("a manifest is about one folder", expected="shards of one folder", found=", ".join(folders))
    return folders[0]


def _index_shard(
    ref: ShardRef, root: str | None, located: ShardList, beside: bool, source: Loader | None, force: bool
) -> _Indexed:
    with closing(store_for(ref.url).open(ref.url)) as reader:
        stored = _stored_at(ref, reader, root, located, beside)
        fitting = None if force else fitting_index(stored, reader)
        if fitting is not None:
            return _Indexed(ref.url, stored, "kept", fitting)
        if source in ("energon", "dali"):
            made = _imported(ref.url, reader, located, source)
        else:
            made = index_shard(reader, _rule(located))
    save_index(made, stored)
    return _Indexed(ref.url, stored, "imported" if source in ("energon", "dali") else "indexed", made)


def _stored_at(ref: ShardRef, reader: ObjectReader, root: str | None, located: ShardList, beside: bool) -> str:
    if not beside:
        return cached_index_url(reader, _rule(located))
    if ref.sidecar is not None:
        return ref.sidecar
    if root is not None:
        return index_url(root, relative_url(ref.url, root))
    return index_url(parent_url(ref.url), base_name(ref.url))


def _rule(located: ShardList) -> KeyRule:
    return WEBDATASET_RULE if located.manifest is None else located.manifest.rule


def _imported(url: str, reader: ObjectReader, located: ShardList, source: Literal["energon", "dali"]) -> ShardIndex:
    if source == "dali":
        return import_dali(_dali_url(url), url, reader, _rule(located))
    beside, database = f"{url}.idx", join_url(located.root or parent_url(url), ".nv-meta", "index.sqlite")
    return import_energon(beside if _exists(beside) else database, url, reader, _rule(located))


def _dali_url(url: str) -> str:
    return f"{url.removesuffix('.tar')}.idx"


def _exists(url: str) -> bool:
    try:
        store_for(url).info(url)
    except ObjectNotFoundError:
        return False
    return True


def _write_manifest(root: str, shards: list[_Indexed]) -> str | None:
    """List the shards in the manifest; None when it says all that already."""
    before = load_manifest(root)
    after = update_manifest(root, lambda now: _with_shards(now, root, shards))
    return None if after == before else manifest_url(root)


def _with_shards(manifest: Manifest, root: str, shards: list[_Indexed]) -> Manifest:
    splits = {record.path: name for name, records in manifest.splits.items() for record in records}
    for each in shards:
        path = relative_url(each.shard, root)
        if path not in splits or each.state != "kept":
            manifest = merge_shards(manifest, splits.get(path) or split_of(path), [record_of(path, each.index)])
    return manifest


def _export(loader: Loader, shards: list[_Indexed]) -> list[str]:
    if loader == "wids":
        return _export_wids(shards)
    written = []
    for each in shards:
        url = _dali_url(each.shard) if loader == "dali" else f"{each.shard}.idx"
        if loader == "dali":
            export_dali_idx(each.index, url)
        else:
            with closing(store_for(each.shard).open(each.shard)) as reader:
                export_tar_idx(each.index, url, reader)
        written.append(url)
    return written


def _export_wids(shards: list[_Indexed]) -> list[str]:
    """One JSON a folder, in the sidecar folder: beside the tars a hub would take it for data."""
    folders: dict[str, list[WidsShard]] = {}
    for each in shards:
        listed = WidsShard(each.shard, len(each.index), each.index.facts.size)
        folders.setdefault(parent_url(each.shard), []).append(listed)
    urls = [join_url(folder, ".shoal", "wids.json") for folder in folders]
    for url, listed_shards in zip(urls, folders.values(), strict=True):
        export_wids(listed_shards, url)
    return urls


def _report(shards: list[_Indexed], manifests: list[str], exported: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"shards": [each.document() for each in shards], "manifests": manifests, "exported": exported})
        return
    rows = [(each.shard, each.state, f"{len(each.index):,}", each.stored) for each in shards]
    print_table(["shard", "state", "samples", "index"], rows, right=["samples"])
    for url in (*manifests, *exported):
        print_text(f"wrote {url}")
