"""Options that several commands share, and functions that parse and open what they name."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from shoal.dataset._dataset import Dataset
from shoal.errors import FormatError, OptionError
from shoal.load._options import Auto
from shoal.shard._source import ShardSource

from ._output import progress

__all__ = [
    "BatchSizeOption",
    "DecodeOption",
    "DropLastOption",
    "FieldsOption",
    "JsonOption",
    "LimitOption",
    "LoaderWorkersOption",
    "PathArgument",
    "PrefetchOption",
    "RankOption",
    "ReportOption",
    "SeedOption",
    "ShuffleOption",
    "SplitOption",
    "TailOption",
    "WhereOption",
    "WindowOption",
    "WorkersOption",
    "WorldOption",
    "command_group",
    "default_rank",
    "index_missing_shards",
    "open_dataset",
    "open_for_loading",
    "parse_auto_or_int",
    "parse_bytes",
    "parse_fields",
    "require_shards",
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
BatchSizeOption = Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Samples a batch on each rank.")]
LoaderWorkersOption = Annotated[str, typer.Option("--workers", metavar="N", help="Threads, 0 for none, or auto.")]
PrefetchOption = Annotated[str, typer.Option("--prefetch", metavar="N", help="Batches made ahead, or auto.")]
ShuffleOption = Annotated[bool, typer.Option("--shuffle", help="In a random order.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Fixes the random order.")]
WindowOption = Annotated[
    int | None, typer.Option("--window", min=1, metavar="N", help="Samples that are mixed at a time, at least.")
]
DropLastOption = Annotated[bool, typer.Option("--drop-last", help="Leave out a last batch that is short.")]
TailOption = Annotated[
    str,
    typer.Option("--tail", metavar="HOW", help="pad, carry, drop or uneven: when ranks do not divide the data."),
]
RankOption = Annotated[int | None, typer.Option("--rank", min=0, metavar="R", help="Which process this is.")]
WorldOption = Annotated[int | None, typer.Option("--world-size", min=1, metavar="N", help="How many processes.")]
DecodeOption = Annotated[
    str, typer.Option("--decode", metavar="HOW", help="yes, no (bytes), or how pictures are: rgb8, torchrgb, pil...")
]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def command_group(name: str, **options: Any) -> typer.Typer:
    """Return an application for a group of commands, such as ``shoal store``."""
    return typer.Typer(
        name=name,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def parse_bytes(text: str) -> int:
    """Parse a number of bytes with an optional unit. Raises OptionError.

    Examples:
        >>> parse_bytes("1000"), parse_bytes("2 MB"), parse_bytes("1GiB")
        (1000, 2000000, 1073741824)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError("this is no number of bytes", expected="such as 1000, 500MB or 1GiB", found=repr(text))
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def parse_fields(given: list[str] | None) -> list[str] | None:
    """Return the fields named by ``--fields``; None where it was not given.

    Examples:
        >>> parse_fields(["jpg,json", ".txt"])
        ['jpg', 'json', 'txt']
    """
    if not given:
        return None
    return [name.strip().removeprefix(".") for part in given for name in part.split(",") if name.strip()]


def open_dataset(
    path: str,
    *,
    split: str | None = None,
    where: str | None = None,
    fields: list[str] | None = None,
    decode: Any = True,
    quiet: bool = True,
) -> Dataset[Any]:
    """Open the samples that a command is about. Fields that cannot be decoded stay bytes."""
    dataset = Dataset(path, sample_type=dict, split=split, decode=decode, on_decode_error="keep")
    index_missing_shards(require_shards(dataset), quiet=quiet)
    if fields is not None:
        dataset = dataset.columns(fields)
    return dataset if where is None else dataset.where(where)


def require_shards(dataset: Dataset[Any]) -> ShardSource:
    """Return the shards of a dataset. Raises FormatError when it is not made of tar shards."""
    source = dataset.source
    if not isinstance(source, ShardSource):
        raise FormatError(
            "the command is about tar shards",
            expected="a tar, or a folder of tars",
            found=repr(dataset),
            hint="`shoal view` shows it, and `shoal convert` makes shards of it",
        )
    return source


def index_missing_shards(source: ShardSource, *, quiet: bool) -> None:
    """Index shards that have no index, with a progress bar, since that reads all their bytes."""
    if all(ref.samples is not None for ref in source.shards):
        return
    with progress("opening", len(source.shards), quiet=quiet) as advance:
        for number in range(len(source.shards)):
            source.shard(number)
            advance(1)


def parse_auto_or_int(name: str, text: str) -> int | Auto:
    """Parse a number or ``auto``. Raises typer.BadParameter.

    Examples:
        >>> parse_auto_or_int("workers", "auto"), parse_auto_or_int("workers", "4")
        ('auto', 4)
    """
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a number nor auto.", param_hint=f"'--{name}'")
    return int(text)


def default_rank(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Return rank and world size; the rank is 0 where only the world size is given.

    Examples:
        >>> default_rank(None, 8), default_rank(None, None)
        ((0, 8), (None, None))
    """
    return (0 if rank is None and world_size is not None else rank), world_size


def open_for_loading(path: str, *, split: str | None, decode: str, quiet: bool) -> Dataset[Any]:
    """Open a dataset for a loader, and index its shards."""
    decode_spec: Any = {"yes": True, "no": False}.get(decode, decode)
    dataset: Dataset[Any] = Dataset(path, split=split, decode=decode_spec)
    index_missing_shards(require_shards(dataset), quiet=quiet)
    return dataset
