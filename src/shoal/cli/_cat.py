"""``shoal cat``: one sample, or the bytes of one of its fields."""

from __future__ import annotations

import base64
import json
import re
import sys
from typing import Annotated, Any

import typer

from shoal.dataset import Dataset
from shoal.errors import FieldError, OptionError, SampleKeyError
from shoal.store import store_for

from ._dataset import open_dataset
from ._options import JsonOption, PathArgument, SplitOption
from ._output import json_value, print_facts, print_json, print_text, printable, show_bytes, show_value

__all__ = ["cat"]


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
    fields = None if field is None else field.removeprefix(".")
    dataset = open_dataset(path, split=split, decode=fields is None, quiet=as_json)
    number = _position_of(dataset, which, position)
    if fields is None:
        _show_sample(dataset[number], number, as_json)
    else:
        _show_field(dataset, number, fields, output, as_json)


def _position_of(dataset: Dataset[Any], which: str, is_position: bool) -> int:
    """A key wins over a position: most keys are numbers too."""
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
        print_text(f"\n{printable(name)}:\n{_indented(value)}")


def _indented(value: Any) -> str:
    if isinstance(value, dict | list):
        text = json.dumps(json_value(value), indent=2, ensure_ascii=False)
    else:
        text = show_value(value, longest=None)
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
