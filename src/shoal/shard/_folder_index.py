"""Make a folder of tars a dataset: the index goes beside the tars, where everybody who reads them has it.

The rows of tars come from the user's cache, so what was opened before is not scanned again, and a run that was
interrupted goes on where it was. The tars themselves are not touched.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import unquote

import numpy as np

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import ManifestError, ObjectNotFoundError, OptionError, StaleIndexError
from shoal.store._base import ObjectInfo
from shoal.store._concurrency import run_all
from shoal.store._operations import exists
from shoal.store._registry import is_remote, store_for
from shoal.store._url import join_url, local_path, relative_url, scheme_of

from ._arrow_arrays import text_array
from ._changes import append_rows, finish, replace_splits
from ._discovery import SHARD_ENDINGS, files_below, shards_by_split
from ._energon_splits import ENERGON_SPLITS, load_energon_splits
from ._foreign_tars import IndexedTar, IndexOptions, OnIndexed, TarRows, index_tars
from ._generation import Generation, locate
from ._member_names import WEBDATASET_RULE, KeyRule
from ._records import OpenFiles
from ._rows_file import RowBatch, RowSource, RowsSummary
from ._split_table import SegmentRows, SplitTable
from ._tar_header import BLOCK
from ._writing import WriteHead, Writing, unfinished_writes

__all__ = ["PathRows", "index_folder", "index_paths", "paths_by_split", "tars_by_split"]

_SHOWN = 3
_DEFAULT_OPTIONS = IndexOptions()


def tars_by_split(root: str, tars: Iterable[str] | None = None) -> dict[str, list[ObjectInfo]]:
    """Return the tars of a folder without a manifest by split: as Energon's ``split.yaml`` lists them, or by names.

    ``tars`` are the URLs of those that count; without it, all below the folder do. Raises ObjectNotFoundError where
    there are none, and what `load_energon_splits` raises.

    Examples:
        >>> for name in ("a", "val-0", "val-1"):
        ...     _ = store_for("memory://").write_all(f"memory://by-split/{name}.tar", bytes(1024))
        >>> splits = tars_by_split("memory://by-split")
        >>> {name: len(infos) for name, infos in splits.items()}
        {'train': 1, 'validation': 2}
    """
    infos = {info.url: info for info in files_below(root) if info.url.lower().endswith(SHARD_ENDINGS)}
    if tars is not None:
        chosen = {_path(root, url) for url in tars}
        infos = {url: info for url, info in infos.items() if _path(root, url) in chosen}
        missing = chosen - {_path(root, url) for url in infos}
        if missing:
            raise ObjectNotFoundError("Tars not found below the folder", found=_few(sorted(missing)), shard=root)
    if not infos:
        hint = "pack a folder of samples with `shoal pack`"
        raise ObjectNotFoundError("the folder has no tar shards", found=root, hint=hint)
    if exists(join_url(root, ENERGON_SPLITS)):
        splits = load_energon_splits(root, [relative_url(url, root) for url in infos])
        return {name: [infos[url] for url in urls if url in infos] for name, urls in splits.items()}
    return {name: [infos[url] for url in urls] for name, urls in shards_by_split(infos, root).items()}


def paths_by_split(root: str, tars: Iterable[str] | None = None) -> dict[str, dict[str, ObjectInfo]]:
    """As `tars_by_split`, each tar under its path below the folder."""
    splits = tars_by_split(root, tars).items()
    return {name: {_path(root, info.url): info for info in infos} for name, infos in splits}


def index_folder(
    root: str,
    options: IndexOptions = _DEFAULT_OPTIONS,
    *,
    tars: Iterable[str] | None = None,
    exclusive: bool = False,
    on_indexed: OnIndexed | None = None,
) -> Generation:
    """Make the tars below a folder a dataset, or add those that its dataset does not have. Return its generation.

    ``tars`` are the URLs of those that count; without it, all below the folder do. A dataset keeps its key rule; new
    tars go behind those of their split, which `tars_by_split` says. A column whose values do not fit is left out.

    Raises StaleIndexError where tars have changed since they were indexed, and ObjectNotFoundError where tars of the
    dataset are missing. With ``options.force`` neither is an error: all these tars are indexed again, those that are
    missing are left out, and a new lineage begins. Samples that were deleted stay deleted: by their place where the
    tar is the same, by their keys elsewhere.

    Raises ManifestError while somebody writes the dataset, or where a writer was interrupted; TarError with the URL of
    a tar that is damaged; OptionError for another key rule than that of the dataset. Otherwise as `append_rows`.

    Examples:
        >>> from shoal.shard._tar_header import build_header
        >>> tar = build_header(b"k.txt", 5) + b"hello" + bytes(507 + 1024)
        >>> _ = store_for("memory://").write_all("memory://index-folder/val-0.tar", tar)
        >>> index_folder("memory://index-folder").splits["validation"].rows
        1
    """
    while True:
        before = finish(root, exclusive=exclusive)
        _refuse_writers(root)
        options = replace(options, root=root, rule=_rule_of(before, options))
        shards = _known_shards(root, before)
        known = {shard.path: shard for shard in shards}
        splits = paths_by_split(root, tars)
        listed = {path: info for infos in splits.values() for path, info in infos.items()}
        missing = _missing(root, known.keys() - listed.keys()) if tars is None else set[str]()
        if options.force and known:
            return _index_again(root, before, shards, splits, missing, options, exclusive, on_indexed)
        _check_known(root, known, listed, missing)
        if on_indexed is not None:
            for path, info in listed.items():
                if path in known:
                    on_indexed(IndexedTar(info.url, "kept", known[path].samples, info.size))
        new = {
            name: {path: info for path, info in infos.items() if path not in known} for name, infos in splits.items()
        }
        if not any(new.values()):
            return before
        try:
            return _add(root, before, new, options, exclusive, on_indexed)
        except _ChangedError:  # somebody else may have added the same tars
            options, on_indexed = replace(options, force=False), None


class _ChangedError(Exception):
    pass


def _add(
    root: str,
    before: Generation,
    new: Mapping[str, Mapping[str, ObjectInfo]],
    options: IndexOptions,
    exclusive: bool,
    on_indexed: OnIndexed | None,
) -> Generation:
    def check(parent: Generation) -> None:
        _refuse_writers(root)
        if parent.splits != before.splits:
            raise _ChangedError

    infos = {path: info for own in new.values() for path, info in own.items()}
    with index_paths(infos, options, on_indexed) as sources:
        return append_rows(
            root,
            {name: [sources[path] for path in own] for name, own in new.items() if own},
            rule=options.rule,
            on_misfit="omit",
            exclusive=exclusive,
            check=check,
        )


def _index_again(
    root: str,
    before: Generation,
    shards: Sequence[_KnownShard],
    splits: Mapping[str, Mapping[str, ObjectInfo]],
    missing: Collection[str],
    options: IndexOptions,
    exclusive: bool,
    on_indexed: OnIndexed | None,
) -> Generation:
    """Replace all splits by the rows of the tars that are listed, and of those that are neither listed nor missing."""
    infos = {path: info for own in splits.values() for path, info in own.items()}
    paths: dict[str, list[str]] = {name: [] for name in (*before.splits, *splits)}
    for shard in shards:
        if shard.path not in missing:
            paths[shard.split].append(shard.path)
    known = {shard.path: shard for shard in shards}
    for name, own in splits.items():
        paths[name] += [path for path in own if path not in known]
    tables = _tables(root, before)
    with index_paths(infos, options, on_indexed) as new:
        sources: dict[str, list[RowSource]] = {
            name: [new[path] if path in new else _rows_of(tables, known[path]) for path in own]
            for name, own in paths.items()
        }
        deleted = {
            name: _deleted_rows(table, paths[name], new, known) for name, table in tables.items() if table.deleted()
        }
        with Writing.begin(root, WriteHead("index", "*"), exclusive=exclusive) as writing:
            return replace_splits(
                root,
                sources,
                writing,
                before=before,
                deleted=deleted,
                schema=before.schema,
                metadata=before.metadata,
                rule=before.rule,
                on_misfit="omit",
                exclusive=exclusive,
            )


def _deleted_rows(
    table: SplitTable, paths: Sequence[str], new: Mapping[str, PathRows], known: Mapping[str, _KnownShard]
) -> IntArray:
    """Return which rows of the new shards of a split are deleted: those that are now, or have the keys of such."""
    counts = [new[path].rows.record.samples if path in new else known[path].samples for path in paths]
    firsts = dict(zip(paths, np.cumsum([0, *counts]).tolist(), strict=False))
    rows = table.deleted().as_array()
    numbers, starts = table.shard_numbers(rows), table.shard_starts()
    found: list[IntArray] = []
    for number in np.unique(numbers).tolist():
        path, own = table.shard_path(number), rows[numbers == number]
        if path not in firsts:
            continue
        places = own - starts[number]
        if path in new and new[path].rows.digest != known[path].digest:
            keys = set(table.keys(own))
            places = np.array([row for row, key in enumerate(new[path].keys()) if key in keys], np.int64)
        found.append(places + firsts[path])
    return np.concatenate(found) if found else np.empty(0, np.int64)


@contextmanager
def index_paths(
    infos: Mapping[str, ObjectInfo], options: IndexOptions, on_indexed: OnIndexed | None = None
) -> Iterator[dict[str, PathRows]]:
    """Give the rows of tars, each under its path below the root of the dataset; otherwise as `index_tars`."""
    with index_tars(infos.values(), options, on_indexed=on_indexed) as rows:
        yield {path: PathRows(source, path) for path, source in zip(infos, rows, strict=True)}


@dataclass(frozen=True, slots=True)
class PathRows:
    """The rows of a tar under its path below the root: a `RowSource`."""

    rows: TarRows
    path: str

    @property
    def summary(self) -> RowsSummary:
        return self.rows.summary

    def batches(self) -> Iterator[RowBatch]:
        for batch in self.rows.batches():
            place = batch.shards.column_names.index("path")
            shards = batch.shards.set_column(place, batch.shards.schema.field(place), text_array([self.path]))
            yield replace(batch, shards=shards)

    def keys(self) -> list[str]:
        return [key for batch in self.rows.batches() for key in batch.keys.to_pylist()]


# ------------------------------------------------------------------------------------------------- what a dataset has


@dataclass(frozen=True, slots=True)
class _KnownShard:
    """A shard that a dataset has."""

    split: str
    number: int
    path: str
    samples: int
    size: int
    head_crc32: int
    digest: bytes


def _tables(root: str, generation: Generation) -> dict[str, SplitTable]:
    return {name: SplitTable(root, split.segments, OpenFiles()) for name, split in generation.splits.items()}


def _known_shards(root: str, generation: Generation) -> list[_KnownShard]:
    """Return the shards of all splits of a dataset, in the order of their samples."""
    known = []
    for name, table in _tables(root, generation).items():
        columns = table.shards().select(["path", "samples", "bytes", "head_crc32", "digest"]).columns
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        known += [_KnownShard(name, number, *row) for number, row in enumerate(rows)]
    return known


def _missing(root: str, paths: Iterable[str]) -> set[str]:
    """Return which of these paths have no tar; others may be hidden, or be left out by ``split.yaml``."""
    candidates = list(paths)
    checks = [partial(exists, locate(root, path)) for path in candidates]
    are_there = run_all(checks) if is_remote(root) else [check() for check in checks]
    return {path for path, is_there in zip(candidates, are_there, strict=True) if not is_there}


def _rows_of(tables: Mapping[str, SplitTable], shard: _KnownShard) -> SegmentRows:
    """Return the rows of a shard from the segment that has them."""
    table = tables[shard.split]
    segment = table.shard(shard.number).segment
    return SegmentRows(table, segment, range(shard.number, shard.number + 1))


def _rule_of(before: Generation, options: IndexOptions) -> KeyRule:
    if not before.splits:
        return options.rule
    if options.rule not in (WEBDATASET_RULE, before.rule):
        raise OptionError("rule must be the key rule of the dataset", expected=before.rule, found=options.rule)
    return before.rule


def _refuse_writers(root: str) -> None:
    writes = unfinished_writes(root)
    if writes:
        raise ManifestError(
            "The dataset is being written, or its writer was interrupted",
            found=f"{writes[0].head.pattern!r} by {writes[0].head.writer}",
            shard=root,
            hint="Wait for that writer, run it again, or run `shoal repair`",
        )


def _check_known(
    root: str, known: Mapping[str, _KnownShard], listed: Mapping[str, ObjectInfo], missing: Collection[str]
) -> None:
    """Raise an error where tars of the dataset are missing, or are others than those that were indexed."""
    if missing:
        raise ObjectNotFoundError(
            "Tars of the dataset are missing",
            found=_few(sorted(missing)),
            shard=root,
            hint="Restore them, or run `shoal index --force`, which leaves them out",
        )
    paths = [path for path in listed if path in known]
    checks = [partial(_has_changed, listed[path], known[path]) for path in paths]
    have_changed = run_all(checks) if is_remote(root) else [check() for check in checks]
    changed = [path for path, has_changed in zip(paths, have_changed, strict=True) if has_changed]
    if changed:
        raise StaleIndexError(
            "Tars of the dataset changed after they were indexed",
            found=_few(changed),
            shard=root,
            hint="Restore them, or run `shoal index --force`, which indexes them again",
        )


def _has_changed(info: ObjectInfo, shard: _KnownShard) -> bool:
    if info.size != shard.size:
        return True
    with closing(store_for(info.url).open(info.url)) as reader:
        return crc32(reader.read(0, BLOCK)) != shard.head_crc32


def _path(root: str, url: str) -> str:
    """Return the path of a tar below the root, as the manifest has it. Raises OptionError where it is not below it."""
    if scheme_of(root) == scheme_of(url) == "file":
        path = os.path.relpath(local_path(url), local_path(root)).replace(os.sep, "/")
    else:
        path = relative_url(url, root)
        path = unquote(path) if scheme_of(root) in ("http", "https") else path
    if path.startswith("../") or "://" in path:
        raise OptionError("tars must be below the folder", expected=root, found=url)
    return path


def _few(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
