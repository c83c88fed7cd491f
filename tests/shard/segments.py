"""Datasets of the old format as generations of segments, beside a copy of their tars."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.shard._commit import commit
from shoal.shard._generation import Generation, with_split
from shoal.shard._layout import Segment
from shoal.shard._manifest import ShardRecord, load_manifest, record_of
from shoal.shard._member_names import WEBDATASET_RULE
from shoal.shard._rows_file import RowsFile, write_rows_file
from shoal.shard._segment import choose_layout, write_deleted, write_segments
from shoal.shard._stored_rows import load_rows
from shoal.shard._writer import ShardWriter
from shoal.store import join_url, store_for


def write_as_segments(
    root: str, splits: Mapping[str, Iterable[Any]], pattern: str = "{split}-%06d.tar", **options: Any
) -> str:
    """Write samples as a dataset of segments; options of `copy_as_segments` are told from those of a writer."""
    names = {"shards_per_segment", "deleted", "new_lineage"}
    copying = {name: options.pop(name) for name in names & options.keys()}
    old = f"memory://as-segments/{uuid.uuid4()}"
    for split, samples in splits.items():
        with ShardWriter(f"{old}/{pattern}", split=split, root=old, **{"max_samples": 4, **options}) as writer:
            for sample in samples:
                writer.write(sample)
    copy_as_segments(old, root, **copying)
    return root


def copy_as_segments(
    old: str,
    new: str,
    *,
    shards_per_segment: int = 2,
    deleted: Collection[int] = (),
    **options: Any,
) -> Generation:
    """Write the dataset at ``old`` anew, with rows that are deleted, counted over all splits."""
    manifest = load_manifest(old)
    assert manifest is not None
    splits = {}
    first = 0
    for name, records in manifest.splits.items():
        segments = []
        for segment in _segments(old, new, records, shards_per_segment):
            own = np.array([row - first for row in deleted if first <= row < first + segment.rows], np.int64)
            segments.append(replace(segment, deleted=write_deleted(new, segment, own)))
            first += segment.rows
        splits[name] = segments
    return commit_splits(new, splits, metadata=manifest.metadata, schema=manifest.schema, rule=manifest.rule, **options)


def commit_splits(root: str, splits: Mapping[str, Sequence[Segment]], **values: Any) -> Generation:
    """Commit a generation that has these splits."""
    new_lineage = values.pop("new_lineage", False)

    def change(parent: Generation, _: int) -> Generation:
        generation = replace(parent, **{"rule": WEBDATASET_RULE, **values})
        for name, segments in splits.items():
            generation = with_split(generation, name, segments)
        return generation

    return commit(root, change, new_lineage=new_lineage)


def _segments(old: str, new: str, records: Sequence[ShardRecord], shards_per_segment: int) -> list[Segment]:
    scratch = f"memory://rows/{uuid.uuid4()}"
    files = []
    for number, record in enumerate(records):
        source, target = join_url(old, record.path), join_url(new, record.path)
        store_for(target).write_all(target, store_for(source).read_all(source))
        rows = load_rows(old, record.path)
        url = f"{scratch}/{number}"
        write_rows_file(url, replace(record_of(record.path, rows), sha256=record.sha256), rows)
        files.append(RowsFile(url))
    layout = choose_layout([file.summary for file in files[:shards_per_segment]])
    groups = [files[at : at + shards_per_segment] for at in range(0, len(files), shards_per_segment)]
    types = {name: kind for file in files[:shards_per_segment] for name, kind in file.summary.columns.items()}
    return [segment for group in groups for segment in write_segments(new, group, layout, column_types=types)]
