"""``shoal pull``: a published dataset into a folder."""

from __future__ import annotations

from typing import Annotated

import typer

from ._network import AllowPrivateOption, AppViewOption, PdsOption, PlcOption, client_for
from ._options import JsonOption
from ._output import print_json, print_text, progress, show_count

__all__ = ["pull"]


def pull(
    ref: Annotated[str, typer.Argument(metavar="REF", help="at://..., @handle/name or @handle/name@version.")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the copy goes.")],
    pds: PdsOption = None,
    plc: PlcOption = None,
    appview: AppViewOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a published dataset into a folder.

    Every shard is checked against its record, and the schema goes into the manifest. A copy that was cut short goes on
    where it was.

    \b
    Examples:
      shoal pull @alice.bsky.social/photos photos/
      shoal pull at://did:plc:.../science.alt.dataset.entry/3k... photos/ --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with client_for(pds, plc, appview=appview, allow_private=allow_private) as client:
        dataset = client.get_dataset(ref)
        with progress("fetching", len(dataset.data_urls), quiet=as_json) as step:
            paths = client.pull(str(dataset.uri), folder, progress=lambda done, total: step(1))
    if as_json:
        print_json({"uri": str(dataset.uri), "folder": folder, "shards": paths})
    else:
        print_text(f"{show_count(len(paths), 'shard')} of {dataset.name}: {folder}")
