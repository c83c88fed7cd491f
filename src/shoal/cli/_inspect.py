"""``shoal info``, ``ls``, ``head``, ``cat`` and ``view``: look at a dataset."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from shoal.dataset._dataset import Dataset
from shoal.dataset._tabular import ColumnSummary
from shoal.errors import FieldError, OptionError, SampleKeyError, ShoalError
from shoal.shard._discovery import shards_by_split
from shoal.shard._manifest import ShardRecord
from shoal.shard._source import ShardSource
from shoal.shard._split_names import find_split
from shoal.store._registry import store_for

from ._options import (
    FieldsOption,
    JsonOption,
    LimitOption,
    PathArgument,
    SplitOption,
    WhereOption,
    index_missing_shards,
    open_dataset,
    parse_fields,
    require_shards,
)
from ._output import (
    json_value,
    print_facts,
    print_json,
    print_table,
    print_text,
    printable,
    show_bytes,
    show_count,
    show_value,
)

__all__ = ["cat", "head", "info", "ls", "view"]

DescribeOption = Annotated[
    bool, typer.Option("--describe", help="Also ranges, means and commonest values of each metadata column.")
]
_PAGE_SAMPLES = 1000
"""Samples per table of members, so that a long list is printed as it is read."""


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
    facts = _describe(dataset, path, split, quiet=as_json)
    summary = dataset.describe() if with_values else None
    if summary is not None:
        facts["values"] = summary.to_dict()["columns"]
    print_json(facts) if as_json else _print_info(facts, () if summary is None else summary.columns)


def _describe(dataset: Dataset[Any], path: str, split: str | None, *, quiet: bool) -> dict[str, Any]:
    """Return everything that ``shoal info`` prints, as a JSON document."""
    source = require_shards(dataset)
    splits = _records_by_split(source, split, quiet)
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
        "splits": {name: _count_records(listed) for name, listed in splits.items()},
        "fields": fields,
        "columns": _column_types(source),
        "tombstones": len(dataset.tombstones),
        "metadata": {} if source.manifest is None else source.manifest.metadata,
    }


def _records_by_split(source: ShardSource, split: str | None, quiet: bool) -> dict[str, list[ShardRecord]]:
    manifest = source.manifest
    if manifest is not None:
        names = list(manifest.splits) if split is None else [find_split(split, manifest.splits)]
        return {name: list(manifest.splits[name]) for name in names}
    index_missing_shards(source, quiet=quiet)
    numbers = {ref.url: number for number, ref in enumerate(source.shards)}
    by_split = shards_by_split(numbers) if source.urls_by_split is None else source.urls_by_split()
    return {
        name: [source.index.record(numbers[url], url) for url in urls]
        for name, urls in by_split.items()
        if split is None or name == find_split(split, by_split)
    }


def _count_records(records: list[ShardRecord]) -> dict[str, int]:
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


def _column_types(source: ShardSource) -> dict[str, str]:
    """Return the metadata columns of the first shard and their types; only one index is read."""
    with contextlib.suppress(ShoalError):  # `shoal verify` reports a damaged index
        if source.shards:
            return {name: str(kind) for name, kind in source.index.column_types(1).items()}
    return {}


def _print_info(facts: dict[str, Any], values: Sequence[ColumnSummary]) -> None:
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
    rows = [(name, *_split_cells(total)) for name, total in facts["splits"].items()]
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


def _split_cells(total: dict[str, int]) -> tuple[str, str, str]:
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
        _list_shards(require_shards(Dataset(path, split=split)), split, limit, as_json)


def _list_shards(source: ShardSource, split: str | None, limit: int | None, as_json: bool) -> None:
    index_missing_shards(source, quiet=as_json)
    rows = [
        _shard_row(ref.url, record) for ref, record in zip(source.shards, _list_records(source, split), strict=True)
    ]
    if as_json:
        print_json({"shards": rows[:limit]})
        return
    table = [
        (row["shard"], f"{row['samples']:,}", show_bytes(row["bytes"]), row["compression"] or "none", _format_keys(row))
        for row in rows[:limit]
    ]
    print_table(["shard", "samples", "size", "compression", "keys"], table, right=["samples", "size"])


def _list_records(source: ShardSource, split: str | None) -> Sequence[ShardRecord]:
    """Return the records of the manifest, or where there is none, of the indexes."""
    manifest = source.manifest
    if manifest is not None:
        return manifest.shards if split is None else manifest.splits[find_split(split, manifest.splits)]
    return [source.index.record(number, ref.url) for number, ref in enumerate(source.shards)]


def _shard_row(url: str, record: ShardRecord) -> dict[str, Any]:
    facts = {name: getattr(record, name) for name in ("samples", "bytes", "compression", "first_key", "last_key")}
    return {"shard": url, **facts}


def _format_keys(row: dict[str, Any]) -> str:
    first, last = row["first_key"], row["last_key"]
    return "" if first is None else first if first == last else f"{first} to {last}"


def _list_members(dataset: Dataset[Any], limit: int | None, as_json: bool) -> None:
    source = require_shards(dataset)
    numbers = dataset.rows.between(*slice(limit).indices(len(dataset))[:2])
    if as_json:
        print_json({"samples": list(_locate_samples(source, numbers))})
        return
    for start in range(0, max(len(numbers), 1), _PAGE_SAMPLES):
        rows = [
            row
            for sample in _locate_samples(source, numbers[start : start + _PAGE_SAMPLES])
            for row in _member_rows(sample)
        ]
        print_table(["key", "field", "size", "offset", "shard"], rows, right=["size", "offset"])


def _locate_samples(source: ShardSource, numbers: npt.NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    shards = np.searchsorted(source.starts, numbers, "right") - 1
    keys = source.index.keys(numbers)
    for number, shard, key in zip(numbers.tolist(), shards.tolist(), keys, strict=True):
        members = {each.field: {"size": each.size, "offset": each.offset} for each in source.index.members(number)}
        yield {"position": number, "key": key, "shard": source.shards[shard].url, "fields": members}


def _member_rows(sample: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for field, place in sample["fields"].items():
        yield sample["key"], field, str(place["size"]), str(place["offset"]), sample["shard"]


def head(
    path: PathArgument,
    count: Annotated[int, typer.Option("-n", "--count", min=0, metavar="N", help="How many samples.")] = 5,
    where: WhereOption = None,
    fields: FieldsOption = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the first samples as a table.

    Text and numbers are shown as they are, pictures and other bytes as their size.

    \b
    Examples:
      shoal head data/
      shoal head data/ -n 20 --where "json.width >= 512 and label = 'cat'"
      shoal head data/ --fields json,txt --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    dataset = open_dataset(path, split=split, where=where, fields=parse_fields(fields), quiet=as_json)
    samples = dataset.head(count)
    if as_json:
        print_json({"samples": [_sample_document(sample) for sample in samples], "total": len(dataset)})
        return
    names = list(dict.fromkeys(name for sample in samples for name in sample if not name.startswith("__")))
    rows = [
        (sample["__key__"], *(show_value(sample[name]) if name in sample else "" for name in names))
        for sample in samples
    ]
    print_table(["key", *names], rows)


def _sample_document(sample: dict[str, Any]) -> dict[str, Any]:
    fields = {name: json_value(value) for name, value in sample.items() if not name.startswith("__")}
    return {"key": sample["__key__"], "shard": sample["__url__"], "fields": fields}


def cat(
    path: PathArgument,
    which: Annotated[str, typer.Argument(metavar="KEY", help="A key, or a position when no sample has that key.")],
    field: Annotated[str | None, typer.Option("--field", "-f", metavar="F", help="The bytes of this field.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the field there, not to stdout.")
    ] = None,
    position: Annotated[
        bool, typer.Option("--position", "-p", help="KEY is a position, whatever keys there are.")
    ] = False,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one sample, or the bytes of one field.

    KEY may be a position: 0 is the first sample, -1 the last (after "--", since it looks like an option).

    \b
    Examples:
      shoal cat data/ 000012
      shoal cat data/ 000012 --field jpg -o cat.jpg
      shoal cat data/ --field json -- -1 | jq .
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if field is None and output is not None:
        raise OptionError("one field is written to a file", expected="--field F", found=f"--output {output} alone")
    name = None if field is None else field.removeprefix(".")
    dataset = open_dataset(path, split=split, decode=name is None, quiet=as_json)
    number = _find_position(dataset, which, position)
    if name is None:
        _show_sample(dataset[number], number, as_json)
    else:
        _show_field(dataset, number, name, output, as_json)


def _find_position(dataset: Dataset[Any], which: str, is_position: bool) -> int:
    """Return the position that ``which`` names. A key comes first, since most keys are numbers too."""
    is_number = re.fullmatch(r"-?\d+", which) is not None
    if is_position and not is_number:
        raise OptionError("a position is a whole number", expected="such as 0 or -1", found=repr(which))
    try:
        return int(which) if is_position else dataset.position_of(which)
    except SampleKeyError:
        if not is_number:
            raise
        return int(which)


def _show_sample(sample: dict[str, Any], number: int, as_json: bool) -> None:
    fields = {name: value for name, value in sample.items() if not name.startswith("__")}
    if as_json:
        described = {name: json_value(value) for name, value in fields.items()}
        print_json({"position": number, "key": sample["__key__"], "shard": sample["__url__"], "fields": described})
        return
    print_facts([("key", sample["__key__"]), ("shard", sample["__url__"])])
    for name, value in fields.items():
        print_text(f"\n{printable(name)}:\n{_format_indented(value)}")


def _format_indented(value: Any) -> str:
    if isinstance(value, dict | list):
        text = json.dumps(json_value(value), indent=2, ensure_ascii=False)
    else:
        text = show_value(value, max_chars=None)
    return "\n".join(f"  {printable(line)}" for line in text.splitlines())


def _show_field(dataset: Dataset[Any], number: int, field: str, output: str | None, as_json: bool) -> None:
    sample = dataset[number]
    if field not in sample or field.startswith("__"):
        present = [name for name in sample if not name.startswith("__")]
        raise FieldError(
            "the sample has no such field", expected=" or ".join(present), found=field, key=sample["__key__"]
        )
    data = bytes(sample[field])
    if output is not None:
        store_for(output).write_all(output, data)
    if as_json:
        place = {"position": number, "key": sample["__key__"], "shard": sample["__url__"], "field": field}
        stored = {"output": output} if output is not None else {"base64": base64.b64encode(data).decode()}
        print_json({**place, "bytes": len(data), **stored})
    elif output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        print_text(f"{show_bytes(len(data))} to {output}")


def view(
    path: Annotated[str, typer.Argument(metavar="PATH_OR_URL", help="A tar, a pattern, a folder, a URL or a name.")],
    split: SplitOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port; 0 is a free one.")] = 0,
    share: Annotated[
        str | None,
        typer.Option("--share", metavar="ADDRESS", help="Let others reach it by this address; 0.0.0.0 is all."),
    ] = None,
    sample_type: Annotated[
        str | None, typer.Option("--type", metavar="MODULE:CLASS", help="The class of the samples.")
    ] = None,
    lenses: Annotated[
        list[str] | None,
        typer.Option("--lens", metavar="MODULE:NAME", help="A lens to look through; may be given several times."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in the browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a dataset in the browser.

    Samples, columns, shards, schema, lenses, and a build while it runs.

    Prints a link with a token and serves the page until Ctrl-C. Only this machine can reach it, unless --share says
    by which address others can. Shards are never downloaded: what is shown is read by range.

    \b
    Examples:
      shoal view data/
      shoal view s3://bucket/data --split validation
      shoal view data/ --type my_types:Full --lens my_types:thumbnail
      shoal view data/ --share 192.168.1.20
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    from shoal.viewer._server import viewing

    chosen = None if sample_type is None else _import_name(sample_type, "--type")
    through = [_import_name(name, "--lens") for name in lenses or ()]
    with (
        suppress(KeyboardInterrupt),
        viewing(path, split=split, sample_type=chosen, lenses=through, port=port, share=share) as address,
    ):
        if as_json:
            print_json({"url": address.url, "others": list(address.others), "reach": address.reach})
        else:
            print_text("\n".join((address.url, *address.others, f"{address.reach} Ctrl-C stops it.")))
        sys.stdout.flush()
        if browser:
            typer.launch(address.url)
        _wait_until_stopped()


def _wait_until_stopped() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        stopped.wait()
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        stopped.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def _import_name(text: str, option: str) -> Any:
    """Import ``module:name``, also from the working folder. Raises OptionError."""
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{option} names nothing that can be imported", expected="MODULE:NAME", found=f"{text!r}: {error}"
        ) from error
