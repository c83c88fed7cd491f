"""``shoal head``: the first samples, as a table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ._dataset import open_dataset
from ._options import FieldsOption, JsonOption, PathArgument, SplitOption, WhereOption, parse_fields
from ._output import json_value, print_json, print_table, show_value

__all__ = ["head"]


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
        print_json({"samples": [_document(sample) for sample in samples], "total": len(dataset)})
        return
    names = list(dict.fromkeys(name for sample in samples for name in sample if not name.startswith("__")))
    rows = [
        (sample["__key__"], *(show_value(sample[name]) if name in sample else "" for name in names))
        for sample in samples
    ]
    print_table(["key", *names], rows)


def _document(sample: dict[str, Any]) -> dict[str, Any]:
    fields = {name: json_value(value) for name, value in sample.items() if not name.startswith("__")}
    return {"key": sample["__key__"], "shard": sample["__url__"], "fields": fields}
