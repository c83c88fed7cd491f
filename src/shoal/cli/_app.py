"""The ``shoal`` command: its commands, exit codes and error messages."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

from shoal import __version__
from shoal.errors import ObjectNotFoundError, OptionError, PatternError, QueryError, ShoalError
from shoal.store._registry import no_such_path

from ._build import build, merge, reshard
from ._cache import cache_app
from ._catalog import catalog_app, repo_app
from ._index import index
from ._inspect import cat, head, info, ls, view
from ._output import print_error_json, printable
from ._pack import convert, pack, unpack
from ._performance import bench, dataload, plan
from ._sharing import atmosphere_app, find, hub_app, login, publish, pull
from ._store import store_app
from ._verify import repair, verify

__all__ = ["app", "main"]

COMMANDS = (
    info,
    ls,
    cat,
    head,
    index,
    verify,
    repair,
    pack,
    unpack,
    bench,
    plan,
    dataload,
    convert,
    view,
    build,
    reshard,
    merge,
    login,
    publish,
    find,
    pull,
)

_FAILED, _USAGE_ERROR, _INTERRUPTED = 1, 2, 130
_USAGE_ERRORS = (OptionError, QueryError, PatternError)
"""Errors of the command line, not of the data."""

# Typer brings its own copy of click, or uses the installed one, as its version has it: ask the class it does export.
_ClickError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


class _CommandError(Exception):
    """Carries an error past typer, which takes an EOFError for Ctrl-D: some of shoal's errors are one."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Group(typer.core.TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ShoalError as error:
            raise _CommandError(error) from error
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise _CommandError(error) from error


app = typer.Typer(
    name="shoal",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def shoal(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from. Also: SHOAL_DEBUG=1.")
    ] = False,
) -> None:
    """Datasets in plain tar shards (WebDataset): indexed, searchable, verified, as fast as the disk.

    PATH is a tar, a pattern ('data-{000000..000099}.tar', '*.tar'), or a folder. Every command takes --json and
    then prints one JSON document. The exit code is 0 when all is well, 1 when something is wrong with the data or
    could not be done, 2 when the command was used wrongly.

    \b
    Examples:
      shoal pack photos/ photos-tar/        photos and captions side by side, into shards
      shoal info photos-tar/                what is in it
      shoal head photos-tar/ --where "width >= 512"
      shoal verify photos-tar/              every byte, against the index
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped


for _command in COMMANDS:
    app.command(_command.__name__)(_command)
app.add_typer(store_app)
app.add_typer(cache_app)
app.add_typer(catalog_app)
app.add_typer(repo_app)
app.add_typer(hub_app)
app.add_typer(atmosphere_app)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command with ``args``, or with those of the process, and return its exit code.

    Nothing is raised: an error is one sentence on stderr (with its traceback under ``--debug`` or ``SHOAL_DEBUG=1``),
    and with ``--json`` also a document with the one name ``error`` on stdout.

    Examples:
        >>> main(["--version"])
        shoal ...
        0
    """
    words = list(sys.argv[1:] if args is None else args)
    try:
        code = app(args=words, prog_name="shoal", standalone_mode=False)
    except _CommandError as failure:
        return _report_failure(failure.error, words)
    except _ClickError as error:
        return _report_usage_error(error, words)
    except typer.Abort:
        return _INTERRUPTED
    return code if isinstance(code, int) else 0


def _report_failure(error: Exception, args: list[str]) -> int:
    if isinstance(error, ObjectNotFoundError) and error.problem in ("no such file", "no such folder"):
        error = no_such_path(str(error.found)).with_traceback(error.__traceback__)
    if "--debug" in args or os.environ.get("SHOAL_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
    if "--json" in args:
        print_error_json(error)
    typer.echo(f"shoal: {_format_error(error)}", err=True)
    return _USAGE_ERROR if isinstance(error, _USAGE_ERRORS) else _FAILED


def _format_error(error: Exception) -> str:
    text = str(error) if isinstance(error, ShoalError) or not isinstance(error, OSError) else _format_os_error(error)
    lines = [line for line in text.splitlines() if line.strip(" ^")]  # without marks under a line of the query
    return printable(" ".join(" ".join(lines).split()))


def _format_os_error(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error.strerror or error)


def _report_usage_error(error: Any, args: list[str]) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # `shoal` alone: the help is the answer
        error.show()
        return _USAGE_ERROR
    command = getattr(getattr(error, "ctx", None), "command_path", "shoal")
    message = " ".join(error.format_message().split()).rstrip(".")
    if "--json" in args:
        print_error_json(OptionError(message))
    typer.echo(f"shoal: {message}. See `{command} --help`.", err=True)
    return int(error.exit_code)
