"""From what a user typed to an open dataset."""

from __future__ import annotations

from typing import Any

from shoal.dataset import Dataset
from shoal.errors import FormatError
from shoal.shard import ShardSource

from ._output import progress

__all__ = ["indexed", "open_dataset", "shards_of"]


def open_dataset(
    path: str,
    *,
    split: str | None = None,
    where: str | None = None,
    fields: list[str] | None = None,
    decode: Any = True,
    quiet: bool = True,
) -> Dataset[Any]:
    """The samples that a command is about. Fields that are no valid json, text and so on stay bytes."""
    dataset = Dataset(path, sample_type=dict, split=split, decode=decode, on_decode_error="keep")
    indexed(shards_of(dataset), quiet=quiet)
    if fields is not None:
        dataset = dataset.columns(fields)
    return dataset if where is None else dataset.where(where)


def shards_of(dataset: Dataset[Any]) -> ShardSource:
    """The shards behind a dataset. Raises FormatError when it is not made of tar shards."""
    source = dataset.source
    if not isinstance(source, ShardSource):
        raise FormatError(
            "the command is about tar shards",
            expected="a tar, or a folder of tars",
            found=repr(dataset),
            hint="`shoal view` shows it, and `shoal convert` makes shards of it",
        )
    return source


def indexed(source: ShardSource, *, quiet: bool) -> None:
    """Index the shards that nobody has indexed yet, with a bar, since that reads all their bytes."""
    if all(ref.samples is not None for ref in source.shards):
        return
    with progress("opening", len(source.shards), quiet=quiet) as advance:
        for number in range(len(source.shards)):
            source.shard(number)
            advance(1)
