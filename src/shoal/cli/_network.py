"""What the commands of the network share: which client, and whose session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from shoal.atmosphere import AtmosphereClient, session_file

__all__ = [
    "AllowPrivateOption",
    "AppViewOption",
    "PdsOption",
    "PlcOption",
    "client_for",
    "keep_session",
]

PdsOption = Annotated[
    str | None,
    typer.Option(
        "--pds", metavar="URL", envvar="SHOAL_PDS_URL", help="The account's server, where its name is no help."
    ),
]
PlcOption = Annotated[
    str | None, typer.Option("--plc", metavar="URL", envvar="SHOAL_PLC_URL", help="The directory of accounts.")
]
AppViewOption = Annotated[
    str | None, typer.Option("--appview", metavar="URL", envvar="SHOAL_APPVIEW", help="An AppView to be asked first.")
]
AllowPrivateOption = Annotated[
    bool,
    typer.Option(
        "--allow-private",
        envvar="SHOAL_ALLOW_PRIVATE",
        help="Ask addresses on this machine and in private networks, and publish them: for a closed network.",
    ),
]


@contextmanager
def client_for(
    pds: str | None, plc: str | None, *, appview: str | None = None, allow_private: bool = False, login: bool = False
) -> Iterator[AtmosphereClient]:
    """A client, logged in by the environment or by the session that was kept, where ``login`` asks for it."""
    with AtmosphereClient(pds, plc, appview=appview, allow_private=allow_private) as client:
        kept = login and _enter(client)
        yield client
        if kept:  # tokens may have been renewed, and the old ones are then worth nothing
            keep_session(client)


def _enter(client: AtmosphereClient) -> bool:
    """Log in; True where that was by the kept session."""
    given = os.environ.get("SHOAL_SESSION"), os.environ.get("SHOAL_HANDLE"), os.environ.get("SHOAL_APP_PASSWORD")
    session, handle, password = given
    if session:
        client.import_session(session)
    elif handle and password:
        client.login(handle, password)
    elif os.path.exists(session_file()):
        with open(session_file(), encoding="utf-8") as file:
            client.import_session(file.read())
        return True
    else:
        client.require_login()
    return False


def keep_session(client: AtmosphereClient) -> str:
    """Write the session down, for this user's eyes only; returns the path."""
    path = session_file()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(client.export_session())
    os.replace(f"{path}.new", path)
    return path
