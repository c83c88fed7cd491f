"""``shoal ls``: the shards of a dataset, or its members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from shoal.dataset import Dataset
from shoal.shard import ShardRecord, ShardSource, members_of, record_of

from ._dataset import indexed, open_dataset, shards_of
from ._options import JsonOption, LimitOption, PathArgument, SplitOption, WhereOption
from ._output import print_json, print_table, show_bytes

__all__ = ["ls"]

_PAGE = 1000
"""Members are printed in tables of so many samples, so that a long list starts at once and is never held whole."""


def ls(
    path: PathArgument,
    members: Annotated[bool, typer.Option("-l", "--members", help="List every member, with size and offset.")] = False,
    where: WhereOption = None,
    limit: LimitOption = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """List shards, or with -l the members of samples.

    --where lists the members of the samples that fit. Offsets count in the tar, unpacked where it is compressed.

    \b
    Examples:
      shoal ls data/
      shoal ls data/train-000000.tar -l --limit 10
      shoal ls data/ --where "label = 'cat'" --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if members or where is not None:
        _list_members(open_dataset(path, split=split, where=where, quiet=as_json), limit, as_json)
    else:
        _list_shards(shards_of(Dataset(path, split=split)), split, limit, as_json)


def _list_shards(source: ShardSource, split: str | None, limit: int | None, as_json: bool) -> None:
    indexed(source, quiet=as_json)
    rows = [_shard_row(ref.url, record) for ref, record in zip(source.shards, _records(source, split), strict=True)]
    if as_json:
        print_json({"shards": rows[:limit]})
        return
    table = [
        (row["shard"], f"{row['samples']:,}", show_bytes(row["bytes"]), row["compression"] or "none", _keys(row))
        for row in rows[:limit]
    ]
    print_table(["shard", "samples", "size", "compression", "keys"], table, right=["samples", "size"])


def _records(source: ShardSource, split: str | None) -> Sequence[ShardRecord]:
    """By the manifest where there is one, so that no shard has to be opened."""
    manifest = source.manifest
    if manifest is not None:
        return manifest.shards if split is None else manifest.splits[split]
    return [record_of(ref.url, source.shard(number).index) for number, ref in enumerate(source.shards)]


def _shard_row(url: str, record: ShardRecord) -> dict[str, Any]:
    facts = {name: getattr(record, name) for name in ("samples", "bytes", "compression", "first_key", "last_key")}
    return {"shard": url, **facts}


def _keys(row: dict[str, Any]) -> str:
    first, last = row["first_key"], row["last_key"]
    return "" if first is None else first if first == last else f"{first} to {last}"


def _list_members(dataset: Dataset[Any], limit: int | None, as_json: bool) -> None:
    source, numbers = shards_of(dataset), dataset.numbers[:limit]
    if as_json:
        print_json({"samples": list(_samples(source, numbers))})
        return
    for start in range(0, max(len(numbers), 1), _PAGE):
        rows = [row for sample in _samples(source, numbers[start : start + _PAGE]) for row in _member_rows(sample)]
        print_table(["key", "field", "size", "offset", "shard"], rows, right=["size", "offset"])


def _samples(source: ShardSource, numbers: npt.NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    shards = np.searchsorted(source.starts, numbers, "right") - 1
    rows = numbers - source.starts[shards]
    for number, shard, row in zip(numbers.tolist(), shards.tolist(), rows.tolist(), strict=True):
        index = source.shard(shard).index
        members = {each.field: {"size": each.size, "offset": each.offset} for each in members_of(index, row)}
        url = source.shards[shard].url
        yield {"position": number, "key": index.keys[row].as_py(), "shard": url, "fields": members}


def _member_rows(sample: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for field, place in sample["fields"].items():
        yield sample["key"], field, str(place["size"]), str(place["offset"]), sample["shard"]
