"""``shoal login``: become an account of the network."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer

from shoal.atmosphere import session_file
from shoal.errors import OptionError

from ._network import AllowPrivateOption, PdsOption, PlcOption, client_for, keep_session
from ._options import JsonOption
from ._output import print_json, print_text

__all__ = ["login"]


def login(
    handle: Annotated[str | None, typer.Argument(metavar="HANDLE", help="Such as alice.bsky.social.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep the session in a file that only you can read.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the session that was kept.")] = False,
    pds: PdsOption = None,
    plc: PlcOption = None,
    allow_private: AllowPrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Log in to the AT Protocol network.

    The app password is asked for, or taken from SHOAL_APP_PASSWORD; it is never an argument, never shown and never
    written down. Without --save nothing is kept: set SHOAL_HANDLE and SHOAL_APP_PASSWORD for the other commands. With
    it the session's tokens are written, readable, into a file with mode 0600.

    \b
    Examples:
      shoal login alice.bsky.social --save
      shoal login --forget
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    if forget:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(session_file())
        if as_json:
            print_json({"forgotten": True})
        else:
            print_text("the session is forgotten")
        return
    if handle is None:
        raise OptionError("whose session?", expected="a handle")
    with client_for(pds, plc, allow_private=allow_private) as client:
        client.login(handle, _password())
        path = keep_session(client) if save else None
        if as_json:
            print_json({"handle": client.handle, "did": client.did, "session": path})
        else:
            print_text(f"logged in as {client.handle} ({client.did})" + (f"; session kept in {path}" if path else ""))


def _password() -> str:
    given = os.environ.get("SHOAL_APP_PASSWORD")
    if given:
        return given
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    answer: str = typer.prompt("app password", hide_input=True, err=True)
    return answer
