"""``shoal cache``: show and clear the disk cache of remote objects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from shoal import store
from shoal.store._cache import CacheEntry

from ._options import JsonOption, command_group
from ._output import print_json, print_table, print_text, printable, show_bytes, show_count

__all__ = ["CACHE_COMMANDS", "cache_app"]

PrefixArgument = Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only objects whose URLs start so.")]

cache_app = command_group("cache", help="Show and clear the local copies of far shards.")


def ls(prefix: PrefixArgument = "", as_json: JsonOption = False) -> None:
    """List what the cache has, least lately used first.

    \b
    Examples:
      shoal cache ls
      shoal cache ls s3://bucket/photos --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    entries = [entry for entry in store.cache_entries() if entry.url.startswith(prefix)]
    if as_json:
        print_json({"folder": store.cache_dir(), "objects": [_facts(entry) for entry in entries]})
        return
    rows = [
        (printable(entry.url), show_bytes(entry.held), show_bytes(entry.size), _last_used(entry)) for entry in entries
    ]
    if rows:
        print_table(("url", "here", "size", "last opened"), rows, right=("here", "size"))
    held = show_bytes(sum(entry.held for entry in entries))
    print_text(f"{show_count(len(entries), 'object')}, {held} in {store.cache_dir()}")


def clear(prefix: PrefixArgument = "", as_json: JsonOption = False) -> None:
    """Remove copies: all, or those of URLs that start so.

    \b
    Examples:
      shoal cache clear
      shoal cache clear s3://bucket/photos
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    count = sum(entry.url.startswith(prefix) for entry in store.cache_entries())
    size = store.clear_cache(prefix)
    if as_json:
        print_json({"objects": count, "bytes": size})
    else:
        print_text(f"removed {show_count(count, 'object')}, {show_bytes(size)}")


CACHE_COMMANDS = (ls, clear)
for _command in CACHE_COMMANDS:
    cache_app.command(_command.__name__)(_command)


def _facts(entry: CacheEntry) -> dict[str, Any]:
    facts = {name: getattr(entry, name) for name in ("url", "version", "size", "held", "folder")}
    return {**facts, "used": datetime.fromtimestamp(entry.used, UTC).isoformat()}


def _last_used(entry: CacheEntry) -> str:
    return f"{datetime.fromtimestamp(entry.used, UTC):%Y-%m-%d %H:%M} UTC"
