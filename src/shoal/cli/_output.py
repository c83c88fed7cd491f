"""Output of the commands: tables for people, JSON documents for programs, progress bars on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from shoal.errors import ShoalError

__all__ = [
    "json_value",
    "print_error_json",
    "print_facts",
    "print_json",
    "print_table",
    "print_text",
    "printable",
    "progress",
    "show_bytes",
    "show_count",
    "show_value",
]

_PIPE_WIDTH = 1000
"""Columns where stdout is not a terminal: lines are not wrapped."""
_MAX_VALUE_CHARS = 60


def print_json(document: Any) -> None:
    """Print the document of a command with ``--json``."""
    typer.echo(json.dumps(document, indent=1, default=str))


def print_error_json(error: Exception) -> None:
    """Print an error as a JSON document."""
    facts: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ShoalError):
        facts |= {"shard": error.shard, "key": error.key, "field": error.field, "offset": error.offset}
    print_json({"error": facts})


def print_text(text: str) -> None:
    """Print a line."""
    typer.echo(text)


def printable(text: str) -> str:
    r"""Return text with control characters escaped, so that names from a dataset cannot control the terminal.

    Examples:
        >>> printable("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _console() -> Console:
    on_terminal = sys.stdout.isatty()
    # Names from datasets are text, whatever brackets they have: no markup, no emoji, no highlighting.
    return Console(
        file=sys.stdout, width=None if on_terminal else _PIPE_WIDTH, markup=False, emoji=False, highlight=False
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table; columns named in ``right`` are right-aligned."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(printable(cell) for cell in row))
    _console().print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        typer.echo(f"{name:<{width}}  {printable(value)}")


def show_bytes(size: float) -> str:
    """Format a number of bytes.

    Examples:
        >>> show_bytes(20480)
        '20.5 kB'
    """
    return decimal(round(size)).replace("bytes", "B").replace("byte", "B")


def show_count(number: int, word: str) -> str:
    """Format a number with its noun.

    Examples:
        >>> show_count(1, "shard"), show_count(2000, "sample")
        ('1 shard', '2,000 samples')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def show_value(value: Any, max_chars: int | None = _MAX_VALUE_CHARS) -> str:
    """Format a field's value: bytes as their size, arrays as type and shape, the rest as text.

    Examples:
        >>> show_value(b"12345"), show_value({"a": 1}), show_value(np.zeros((2, 3), "f4"))
        ('5 B', '{"a": 1}', 'float32 (2, 3)')
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return show_bytes(len(value))
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, str):
        text = value if max_chars is None else " ".join(value.split())
    else:
        text = json.dumps(json_value(value), ensure_ascii=False)
    return text if max_chars is None or len(text) <= max_chars else f"{text[: max_chars - 3]}..."


def json_value(value: Any) -> Any:
    """Return a field's value for JSON: bytes by their size, arrays by type and shape."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": len(value)}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(name): json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    return str(value)


@contextmanager
def progress(words: str, total: int, *, quiet: bool, sizes: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr; yields the function to call with the number of steps done.

    Nothing is shown when ``quiet``, nor where stderr is not a terminal. With ``sizes``, steps are bytes.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    count = TaskProgressColumn() if sizes else MofNCompleteColumn()
    console = Console(file=sys.stderr)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done: bar.advance(task, done)
