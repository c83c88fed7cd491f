"""``shoal info``: what a dataset is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shoal.dataset import ColumnSummary, Dataset
from shoal.errors import ShoalError
from shoal.shard import Manifest, ShardRecord, ShardSource, record_of, split_of

from ._dataset import indexed, shards_of
from ._options import JsonOption, PathArgument, SplitOption
from ._output import print_facts, print_json, print_table, print_text, show_bytes, show_count, show_value

__all__ = ["describe", "info"]


DescribeOption = Annotated[
    bool, typer.Option("--describe", help="Also ranges, means and commonest values of each metadata column.")
]


def info(
    path: PathArgument, split: SplitOption = None, with_values: DescribeOption = False, as_json: JsonOption = False
) -> None:
    """Say what a dataset is: splits, sizes, fields, metadata.

    Where there is a manifest nothing else is read but one shard's index. Tars without one are indexed once, and the
    index is kept in the cache.

    \b
    Examples:
      shoal info data/
      shoal info 'data/train-{000000..000099}.tar'
      shoal info data/ --split validation --json
      shoal info data/ --describe
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    dataset = Dataset(path, split=split)
    facts = describe(dataset, path, split, quiet=as_json)
    summary = dataset.describe() if with_values else None
    if summary is not None:
        facts["values"] = summary.to_dict()["columns"]
    print_json(facts) if as_json else _print(facts, () if summary is None else summary.columns)


def describe(dataset: Dataset[Any], path: str, split: str | None, *, quiet: bool) -> dict[str, Any]:
    """Everything that ``shoal info`` says, as JSON would have it."""
    source = shards_of(dataset)
    splits = _splits(source, split, quiet)
    records = [record for listed in splits.values() for record in listed]
    fields = _field_totals(records)
    samples, payload = sum(record.samples for record in records), sum(each["bytes"] for each in fields.values())
    return {
        "path": path,
        "kind": "dataset" if source.manifest is not None else "shard" if len(records) == 1 else "shards",
        "format": "webdataset",
        "manifest": source.manifest is not None,
        "shards": len(records),
        "samples": samples,
        "bytes": sum(record.bytes for record in records),
        "mean_sample_bytes": round(payload / samples, 1) if samples else 0,
        "compression": sorted({record.compression or "none" for record in records}),
        "splits": {name: _totals(listed) for name, listed in splits.items()},
        "fields": fields,
        "columns": _columns(source),
        "tombstones": len(dataset.tombstones),
        "metadata": {} if source.manifest is None else source.manifest.metadata,
    }


def _splits(source: ShardSource, split: str | None, quiet: bool) -> dict[str, list[ShardRecord]]:
    manifest = source.manifest
    if manifest is not None:
        return {name: list(records) for name, records in _chosen(manifest, split)}
    indexed(source, quiet=quiet)
    splits: dict[str, list[ShardRecord]] = {}
    for number, ref in enumerate(source.shards):
        record = record_of(ref.url, source.shard(number).index)
        splits.setdefault(split or split_of(ref.url.rpartition("/")[2]), []).append(record)
    return splits


def _chosen(manifest: Manifest, split: str | None) -> list[tuple[str, tuple[ShardRecord, ...]]]:
    return [(name, records) for name, records in manifest.splits.items() if split in (None, name)]


def _totals(records: list[ShardRecord]) -> dict[str, int]:
    samples, size = sum(record.samples for record in records), sum(record.bytes for record in records)
    return {"shards": len(records), "samples": samples, "bytes": size}


def _field_totals(records: list[ShardRecord]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for record in records:
        for name, (samples, size) in record.fields.items():
            total = totals.setdefault(name, {"samples": 0, "bytes": 0})
            total["samples"] += samples
            total["bytes"] += size
    return totals


def _columns(source: ShardSource) -> dict[str, str]:
    """The metadata columns of the first shard: one index is enough to see how they look."""
    with contextlib.suppress(ShoalError):  # a damaged index is the business of `shoal verify`
        if source.shards:
            return {name: str(column.type) for name, column in source.shard(0).index.columns.items()}
    return {}


def _print(facts: dict[str, Any], values: Sequence[ColumnSummary]) -> None:
    size = f"{show_bytes(facts['bytes'])}, {show_bytes(facts['mean_sample_bytes'])} a sample"
    print_facts(
        [
            ("path", facts["path"]),
            ("kind", f"{facts['kind']} ({facts['format']}{', with manifest' if facts['manifest'] else ''})"),
            ("size", f"{show_count(facts['samples'], 'sample')} in {show_count(facts['shards'], 'shard')}, {size}"),
            *([("deleted", f"{show_count(facts['tombstones'], 'sample')} of them")] if facts["tombstones"] else []),
            ("compression", ", ".join(facts["compression"]) or "none"),
            *((f"metadata {name}", show_value(value)) for name, value in facts["metadata"].items()),
        ]
    )
    print_text("")
    rows = [(name, *_counts(total)) for name, total in facts["splits"].items()]
    print_table(["split", "shards", "samples", "size"], rows, right=["shards", "samples", "size"])
    print_text("")
    print_table(["field", "samples", "size", "mean"], _field_rows(facts), right=["samples", "size", "mean"])
    if values:
        print_text("")
        cells = [(one.name, one.type, f"{one.nulls:,}", f"{one.distinct:,}", one.shown) for one in values]
        print_table(["column", "type", "nulls", "distinct", "values"], cells, right=["nulls", "distinct"])
    elif facts["columns"]:
        print_text("")
        print_table(["column", "type"], list(facts["columns"].items()))


def _counts(total: dict[str, int]) -> tuple[str, str, str]:
    return f"{total['shards']:,}", f"{total['samples']:,}", show_bytes(total["bytes"])


def _field_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            f"{total['samples']:,}",
            show_bytes(total["bytes"]),
            show_bytes(total["bytes"] / max(total["samples"], 1)),
        )
        for name, total in facts["fields"].items()
    ]
