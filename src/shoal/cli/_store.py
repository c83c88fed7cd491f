"""``shoal store``: copy, list and remove objects by URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from shoal import store
from shoal.errors import ObjectNotFoundError, OptionError, StoreError
from shoal.store._base import ObjectInfo
from shoal.store._operations import Transferred

from ._options import JsonOption, command_group
from ._output import print_facts, print_json, print_table, print_text, printable, show_bytes, show_count

__all__ = ["STORE_COMMANDS", "store_app", "transfer_bar"]

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="A path or URL: s3://, gs://, az://, http(s)://, hf://.")
]
AtOnceOption = Annotated[int, typer.Option("--at-once", min=1, metavar="N", help="Objects at once.")]

_READ_BYTES = 16 << 20

store_app = command_group("store")


@store_app.callback()
def reach(
    context: typer.Context,
    endpoint: Annotated[str | None, typer.Option("--endpoint", metavar="URL", help="Where the service is.")] = None,
    region: Annotated[str | None, typer.Option("--region", metavar="NAME", help="Of the service.")] = None,
    profile: Annotated[str | None, typer.Option("--profile", metavar="NAME", help="Of the AWS config files.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Sign nothing: for public data.")] = False,
    log: Annotated[str | None, typer.Option("--log", metavar="FILE", help="Log every request, as TSV.")] = None,
) -> None:
    """Copy, list and remove objects by URL.

    Local files, s3://, gs://, az:// and, for reading, http(s):// and hf://. Credentials come from the environment
    (AWS_ACCESS_KEY_ID, ...) or a profile, never from the command line.
    """
    given: dict[str, Any] = {"endpoint": endpoint, "region": region, "profile": profile, "anonymous": anonymous or None}
    store.configure(**{name: value for name, value in given.items() if value is not None})
    if log is not None:
        context.call_on_close(store.op_log(log).close)


def get(
    url: UrlArgument,
    target: Annotated[str, typer.Argument(metavar="PATH", help="A file, a folder, or - for stdout.")] = ".",
    at_once: AtOnceOption = 8,
    as_json: JsonOption = False,
) -> None:
    """Fetch an object, a folder or what a pattern names.

    \b
    Examples:
      shoal store get s3://bucket/a.tar
      shoal store get s3://bucket/data/ local/
      shoal store get 's3://bucket/train-{000000..000009}.tar' local/ --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if target == "-":
        _print_bytes(url)
        return
    is_name = not target.endswith("/") and not os.path.isdir(target) and not _names_several(url)
    with transfer_bar("fetching", as_json) as tell:
        if is_name:
            done = store.copy(url, target, progress=tell, at_once=at_once)
        else:
            done = store.download(url, target, progress=tell, at_once=at_once)
    _print_transfer(done, target, as_json)


def put(
    sources: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, folders or patterns of them.")],
    url: UrlArgument,
    at_once: AtOnceOption = 8,
    as_json: JsonOption = False,
) -> None:
    """Store files, or everything below folders.

    One file is stored as URL, or below it when it ends with /; a folder's files and several files go below it.

    \b
    Examples:
      shoal store put a.tar s3://bucket/b.tar
      shoal store put data/ s3://bucket/data
      shoal store put '*.tar' README.md s3://bucket/data/
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    is_single = len(sources) == 1 and not url.endswith("/") and not _names_several(sources[0])
    with transfer_bar("storing", as_json) as tell:
        if is_single:
            done = store.copy(sources[0], url, progress=tell, at_once=at_once)
        else:
            done = store.upload(sources, url, progress=tell, at_once=at_once)
    _print_transfer(done, url, as_json)


def cp(
    source: UrlArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A path or URL; with / at its end, a folder.")],
    at_once: AtOnceOption = 8,
    as_json: JsonOption = False,
) -> None:
    """Copy an object or a folder, anywhere to anywhere.

    \b
    Examples:
      shoal store cp s3://bucket/a.tar s3://bucket/b.tar
      shoal store cp s3://bucket/data gs://other/data
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with transfer_bar("copying", as_json) as tell:
        done = store.copy(source, target, progress=tell, at_once=at_once)
    _print_transfer(done, target, as_json)


def ls(
    url: UrlArgument,
    depth: Annotated[
        int | None,
        typer.Option("--depth", min=1, metavar="N", help="Levels to go down; folders below are named, not entered."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the objects below a folder, with their sizes.

    All that is below it, whatever folders it is in. With --depth 1 what is in it: objects, and folders with a slash.

    \b
    Examples:
      shoal store ls s3://bucket/data/
      shoal store ls s3://bucket --depth 1 --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    found = store.list(url, depth)
    folders = [] if depth is None else store.folders(url, depth)
    if not found and not folders and not store.exists(url):
        raise ObjectNotFoundError("nothing lies there", found=printable(url))
    if as_json:
        print_json({"objects": [_facts(info) for info in found], "folders": folders})
        return
    rows = [*((show_bytes(info.size), info.url) for info in found), *(("", folder) for folder in folders)]
    print_table(["size", "url"], sorted(rows, key=lambda row: row[1]), right=["size"])
    counts = [show_count(len(found), "object"), *([show_count(len(folders), "folder")] if folders else [])]
    print_text(f"{', '.join(counts)}, {show_bytes(sum(info.size for info in found))}")


def stat(url: UrlArgument, as_json: JsonOption = False) -> None:
    """Show the size and version of an object.

    \b
    Examples:
      shoal store stat s3://bucket/a.tar
      shoal store stat https://host/a.tar --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    facts = _facts(store.stat(url))
    if as_json:
        print_json(facts)
    else:
        print_facts([(name, str(value)) for name, value in facts.items()])


def rm(
    url: UrlArgument,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Everything below the folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove an object, or everything below a folder.

    \b
    Examples:
      shoal store rm s3://bucket/a.tar
      shoal store rm -r s3://bucket/old/
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    try:
        removed = store.delete(url, recursive=recursive)
    except StoreError as error:
        if not recursive and store.store_for(url).is_folder(url):
            error.hint = "it is a folder: -r removes everything below it"
        raise
    if as_json:
        print_json({"removed": removed})
    else:
        print_text(f"removed {show_count(removed, 'object')}")


def mkdir(url: UrlArgument, as_json: JsonOption = False) -> None:
    """Make a folder, where folders are things.

    A bucket has none: names there only look as if they did, and nothing has to be made.

    \b
    Examples:
      shoal store mkdir local/data
      shoal store mkdir s3://bucket/data --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    local = store.scheme_of(url) == "file"
    if local:
        os.makedirs(store.local_path(url), exist_ok=True)
    else:
        store.store_for(url)  # raises where there is no store for such URLs
    if as_json:
        print_json({"url": url, "made": local})
    elif not local:
        print_text("nothing to make: an object store has no folders, only names with slashes")


STORE_COMMANDS = (get, put, cp, ls, stat, rm, mkdir)
for _command in STORE_COMMANDS:
    store_app.command(_command.__name__)(_command)


def _print_bytes(url: str) -> None:
    """Write an object to stdout in parts, since it may be larger than memory."""
    with closing(store.store_for(url).open(url)) as reader:
        for start in range(0, reader.info.size, _READ_BYTES):
            sys.stdout.buffer.write(reader.read(start, min(start + _READ_BYTES, reader.info.size)))
    sys.stdout.buffer.flush()


def _names_several(url: str) -> bool:
    """Whether a URL names a folder or a pattern."""
    if url.endswith("/"):
        return True
    if any(mark in url for mark in "*{[") and not store.exists(url):
        return True
    return store.store_for(url).is_folder(url)


def _facts(info: ObjectInfo) -> dict[str, Any]:
    return {"url": info.url, "size": info.size, "version": info.version}


def _print_transfer(done: Transferred, target: str, as_json: bool) -> None:
    if not done.objects:
        raise OptionError("there was nothing to copy", found=target)
    if as_json:
        print_json({"objects": done.objects, "bytes": done.bytes, "target": target})
    else:
        print_text(f"{show_count(done.objects, 'object')}, {show_bytes(done.bytes)}: {printable(target)}")


@contextmanager
def transfer_bar(words: str, quiet: bool) -> Iterator[store.Progress | None]:
    """Show a progress bar for a transfer, where stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done: bar.update(task, total=done.bytes_in_all, completed=done.bytes)
