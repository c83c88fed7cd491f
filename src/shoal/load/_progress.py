"""A progress bar around a loader, for those who want one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from ._loader import DataLoader

__all__ = ["with_progress"]


def with_progress(loader: DataLoader, description: str | None = None, *, file: TextIO | None = None) -> Iterator[Any]:
    """The batches of one iteration of the loader, with a bar: batches, samples a second, what it is bound by.

    The bar is on stderr, or in ``file``, and only where that is a terminal. It has an end where the loader has a
    length, and begins where a loaded state says.

    Example:
        >>> loader = DataLoader(range(100), batch_size=10)
        >>> sum(len(batch) for batch in with_progress(loader, "training"))
        100
    """
    stream = sys.stderr if file is None else file
    if not stream.isatty():
        yield from loader
        return
    with _bar(stream) as bar:
        task = bar.add_task(description or "batches", total=_total(loader), rate="")
        for number, batch in enumerate(loader):
            stats = loader.stats()
            if number == 0:  # of this epoch, some may have come before the state was saved
                bar.update(task, completed=loader.state_dict()["steps"] - 1)
            bar.update(task, advance=1, rate=f"{stats.rate:,.0f} samples/s, {stats.bound_by}")
            yield batch


def _bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words, rate = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[rate]}", markup=False)
    columns = (words, BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream))


def _total(loader: DataLoader) -> int | None:
    with contextlib.suppress(TypeError):
        return len(loader)
    return None
