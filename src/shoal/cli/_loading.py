"""Options of the commands that are about loading, spelled once, and the loader's data they lead to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.dataset import Dataset
from shoal.load import Auto

from ._dataset import indexed, shards_of

__all__ = [
    "BatchSizeOption",
    "DecodeOption",
    "DropLastOption",
    "PrefetchOption",
    "RankOption",
    "SeedOption",
    "ShuffleOption",
    "TailOption",
    "WindowOption",
    "WorkersOption",
    "WorldOption",
    "auto_or_number",
    "loaded",
    "ranks",
]

BatchSizeOption = Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Samples a batch on each rank.")]
WorkersOption = Annotated[str, typer.Option("--workers", metavar="N", help="Threads, 0 for none, or auto.")]
PrefetchOption = Annotated[str, typer.Option("--prefetch", metavar="N", help="Batches made ahead, or auto.")]
ShuffleOption = Annotated[bool, typer.Option("--shuffle", help="In a random order.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Fixes the random order.")]
WindowOption = Annotated[
    int | None, typer.Option("--window", min=1, metavar="N", help="Samples that are mixed at a time, at least.")
]
DropLastOption = Annotated[bool, typer.Option("--drop-last", help="Leave out a last batch that is short.")]
TailOption = Annotated[
    str, typer.Option("--tail", metavar="HOW", help="pad, carry, drop or uneven: when ranks do not divide the data.")
]
RankOption = Annotated[int | None, typer.Option("--rank", min=0, metavar="R", help="Which process this is.")]
WorldOption = Annotated[int | None, typer.Option("--world-size", min=1, metavar="N", help="How many processes.")]
DecodeOption = Annotated[
    str, typer.Option("--decode", metavar="HOW", help="yes, no (bytes), or how pictures are: rgb8, torchrgb, pil...")
]


def auto_or_number(name: str, text: str) -> int | Auto:
    """A number, or ``auto``. Raises typer.BadParameter.

    Example:
        >>> auto_or_number("workers", "auto"), auto_or_number("workers", "4")
        ('auto', 4)
    """
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a number nor auto.", param_hint=f"'--{name}'")
    return int(text)


def ranks(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Rank and world size as options have them; a world alone is seen from its first rank.

    Example:
        >>> ranks(None, 8), ranks(None, None)
        ((0, 8), (None, None))
    """
    return (0 if rank is None and world_size is not None else rank), world_size


def loaded(path: str, *, split: str | None, decode: str, quiet: bool) -> Dataset[Any]:
    """The dataset that is loaded, its shards indexed."""
    how: Any = {"yes": True, "no": False}.get(decode, decode)
    dataset: Dataset[Any] = Dataset(path, split=split, decode=how)
    indexed(shards_of(dataset), quiet=quiet)
    return dataset
