"""``shoal atmosphere``: follow the network."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.atmosphere import Event
from shoal.local import default_index

from ._network import AllowPrivateOption, PdsOption, PlcOption, client_for
from ._options import JsonOption
from ._output import print_json, print_text, printable, show_count

__all__ = ["atmosphere_app"]

atmosphere_app = typer.Typer(
    name="atmosphere",
    help="Follow published datasets.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@atmosphere_app.callback()
def atmosphere() -> None:
    """Follow what others publish."""


@atmosphere_app.command("watch")
def watch(
    handles: Annotated[
        list[str] | None, typer.Argument(metavar="[HANDLE]...", help="Accounts to follow; none for all of a service.")
    ] = None,
    service: Annotated[
        str | None, typer.Option("--service", metavar="URL", help="A server or a relay; else the first account's.")
    ] = None,
    idle: Annotated[
        float | None, typer.Option("--idle", min=0, metavar="S", help="Stop when nothing came for so many seconds.")
    ] = None,
    pds: PdsOption = None,
    plc: PlcOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Follow the events of accounts, a server or a relay, until it is stopped.

    It goes on where it was, also after it was killed: no event is missed, and none is counted twice. Datasets are then
    found by `shoal find`, and in the local index (`shoal catalog search`) as handle/name.

    \b
    Examples:
      shoal atmosphere watch alice.bsky.social
      shoal atmosphere watch --service https://relay.example.org
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    with client_for(pds, plc, allow_private=allow_private) as client:
        tell = None if as_json else _tell
        try:
            with default_index() as index:
                count = client.watch(service, handles=handles or None, index=index, on_event=tell, idle=idle)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if as_json:
            print_json({"events": count, "records": len(client.followed)})
        else:
            print_text(f"{show_count(count, 'event')}; {show_count(len(client.followed), 'record')} known")


def _tell(event: Event) -> None:
    name = "" if event.value is None else str(event.value.get("name", ""))
    print_text(f"{event.action:<6}  {event.uri}  {printable(name)}")
