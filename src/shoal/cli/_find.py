"""``shoal find``: datasets on the network."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.atmosphere import PublishedDataset

from ._network import AllowPrivateOption, AppViewOption, PdsOption, PlcOption, client_for
from ._options import JsonOption
from ._output import print_json, print_table, print_text, show_bytes

__all__ = ["find"]


def find(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Words that must all be there; none for everything.")
    ] = "",
    handles: Annotated[
        list[str] | None,
        typer.Option("--of", metavar="HANDLE", help="Look through this account; several times for more."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most this many.")] = 50,
    pds: PdsOption = None,
    plc: PlcOption = None,
    appview: AppViewOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find published datasets by words.

    The words are looked for in names, descriptions, tags and licenses: of what `shoal atmosphere watch` has followed,
    of the accounts named with --of, and by an AppView where one is configured.

    \b
    Examples:
      shoal find cats --of alice.bsky.social
      shoal find "small animals" --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with client_for(pds, plc, appview=appview, allow_private=allow_private) as client:
        found = client.search(text, handles=handles or (), limit=limit)
    if as_json:
        print_json({"datasets": [_facts(dataset) for dataset in found]})
    elif found:
        rows = [(one.name, _shown(one.samples), show_bytes(one.bytes or 0), str(one.uri)) for one in found]
        print_table(["name", "samples", "size", "uri"], rows, right=["samples", "size"])
    else:
        print_text("nothing was found; name accounts with --of, or follow some with `shoal atmosphere watch`")


def _shown(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _facts(one: PublishedDataset) -> dict[str, Any]:
    words = {"name": one.name, "description": one.description, "tags": list(one.tags), "license": one.license}
    return {"uri": str(one.uri), **words, "schema": one.schema_ref, "samples": one.samples, "bytes": one.bytes}
