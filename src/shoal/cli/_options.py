"""Options that several commands have, spelled once."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from shoal.errors import OptionError

__all__ = [
    "FieldsOption",
    "JsonOption",
    "LimitOption",
    "PathArgument",
    "ReportOption",
    "SplitOption",
    "WhereOption",
    "WorkersOption",
    "parse_bytes",
    "parse_fields",
]

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A tar, a pattern or a folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
SplitOption = Annotated[str | None, typer.Option("--split", metavar="NAME", help="Only this split.")]
WhereOption = Annotated[
    str | None,
    typer.Option("--where", metavar="EXPR", help='Only samples whose metadata fits, as in "width >= 512".'),
]
FieldsOption = Annotated[
    list[str] | None,
    typer.Option("--fields", metavar="A,B", help="Only these fields; separated by commas, or given several times."),
]
ReportOption = Annotated[
    str | None, typer.Option("--report", metavar="FILE", help="Also write the report as one HTML page.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, metavar="N", help="How many shards at a time; one a processor at most."),
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="At most this many.")]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """A number of bytes as people write it. Raises OptionError.

    Example:
        >>> parse_bytes("1000"), parse_bytes("2 MB"), parse_bytes("1GiB")
        (1000, 2000000, 1073741824)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise OptionError("this is no number of bytes", expected="such as 1000, 500MB or 1GiB", found=repr(text))
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def parse_fields(given: list[str] | None) -> list[str] | None:
    """The fields named by ``--fields``; None when there was none.

    Example:
        >>> parse_fields(["jpg,json", ".txt"])
        ['jpg', 'json', 'txt']
    """
    if not given:
        return None
    return [name.strip().removeprefix(".") for part in given for name in part.split(",") if name.strip()]
