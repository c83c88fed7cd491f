"""Start and stop the viewer's server: `view`, `viewing`, and the address with its token."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import OptionError, StoreError
from shoal.sample._lens import Lens

from ._app import AccessPolicy, require_starlette, viewer_app
from ._session import ViewerSession, ViewOptions

__all__ = ["ViewerAddress", "view", "viewing"]

LOOPBACK = "127.0.0.1"
_START_SECONDS = 30


@dataclass(frozen=True, slots=True)
class ViewerAddress:
    """Where a viewer is, with the token that opens it, and who can reach it there."""

    url: str
    reach: str
    """In words."""
    others: tuple[str, ...] = ()
    """Further addresses of the same viewer."""


class _Viewer:
    """A viewer that is bound to an address, and answers once it runs.

    ``run`` answers until it is stopped by Ctrl-C, or by ``stop`` from another thread.
    """

    def __init__(
        self, looked: ViewOptions, *, port: int = 0, share: str | None = None, token: str | None = None
    ) -> None:
        self._looked = looked
        self._port = port
        self._share = share
        self._token = token
        self._server: Any = None
        self.address: ViewerAddress | None = None

    def open(self) -> ViewerAddress:
        """Open the dataset and bind the address. Raises ShoalError where either cannot be done."""
        require_starlette()
        import uvicorn

        opened = ViewerSession(self._looked)
        _ = opened.dataset  # a path that leads nowhere is told to whoever typed it, not to who opens the link
        host = LOOPBACK if self._share is None else _checked(self._share)
        bound = _bound(host, self._port)
        port = bound.getsockname()[1]
        everywhere = ipaddress.ip_address(host).is_unspecified
        door = AccessPolicy(self._token or secrets.token_urlsafe(24), port, _hosts(host), everywhere)
        app = viewer_app(opened, door)
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", server_header=False)
        self._server = uvicorn.Server(config)
        self._socket = bound
        self.address = _address(host, door)
        return self.address

    def run(self) -> None:
        """Answer until stopped."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` end. Threads that answer finish first."""
        self._server.should_exit = True

    def wait_until_up(self) -> None:
        """Wait until requests are answered. Raises StoreError when that takes too long."""
        ends = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if time.monotonic() > ends:
                raise StoreError("the viewer does not start", found=f"no answer in {_START_SECONDS} s")
            time.sleep(0.005)


def _checked(share: str) -> str:
    try:
        return str(ipaddress.ip_address(share.strip("[]")))
    except ValueError as error:
        raise OptionError(
            "this is no address of this machine",
            expected="a number such as 192.168.1.20, or 0.0.0.0 for all",
            found=repr(share),
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except OSError as error:
        made.close()
        hint = "choose another --port" if port else "name an address of this machine"
        raise StoreError("the address cannot be used", found=f"{host}:{port}: {error.strerror}", hint=hint) from error
    return made


def _hosts(host: str) -> frozenset[str]:
    """By which names the server may be called: its own address, and names that nobody else can own."""
    own = f"[{host}]" if ":" in host else host
    local = {"127.0.0.1", "localhost", "[::1]"}
    address = ipaddress.ip_address(host)
    if address.is_loopback:
        return frozenset({own, *local})
    names = {socket.gethostname().lower()}
    return frozenset({own, *names, *(local if address.is_unspecified else ())})


def _address(host: str, door: AccessPolicy) -> ViewerAddress:
    def url(name: str) -> str:
        return f"http://{f'[{name}]' if ':' in name else name}:{door.port}/?token={door.token}"

    address = ipaddress.ip_address(host)
    if address.is_loopback:
        return ViewerAddress(url(host), "Only this machine can reach it.")
    plainly = "What is sent is not encrypted: everyone on the way can read it."
    if not address.is_unspecified:
        who = f"Everyone who can reach {host} over the network and has the link can look. {plainly}"
        return ViewerAddress(url(host), who)
    found = _own_addresses()
    who = f"Everyone who can reach this machine over any network ({', '.join(found) or 'none found'}) and has the link "
    return ViewerAddress(url(found[0] if found else LOOPBACK), f"{who}can look. {plainly}", tuple(map(url, found[1:])))


def _own_addresses() -> list[str]:
    """The addresses of this machine, as far as its own name tells them."""
    try:
        infos = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(info[4][0]) for info in infos if not str(info[4][0]).startswith("127.")})


@contextlib.contextmanager
def viewing(
    path: str,
    *,
    split: str | None = None,
    sample_type: type[Any] | None = None,
    lenses: Sequence[Lens[Any, Any]] = (),
    port: int = 0,
    share: str | None = None,
    token: str | None = None,
) -> Iterator[ViewerAddress]:
    """A viewer that runs beside the block, in a thread of its own, as in a notebook; it stops when the block ends.

    Args:
        path: A tar, a pattern, a folder, a URL, or a reference such as ``@name`` or ``hf://...``.
        split: Only this split.
        sample_type: The class of the samples, where lenses are to be used and the data does not say.
        lenses: Lenses to look through, besides those that are registered.
        port: The port; 0 takes a free one.
        share: An address of this machine by which others may reach it; 0.0.0.0 for all. Else only this machine can.
        token: The word that opens it; a new one by default.

    Raises:
        MissingExtraError: The extra ``view`` is not installed.
        OptionError: ``share`` is no address.
        StoreError: There is nothing at ``path``, or the address is taken.
        ManifestError: What is there is no dataset.

    Examples:
        >>> import shoal
        >>> from shoal.viewer import viewing
        >>> with shoal.ShardWriter("memory://doc/viewing/a-%06d.tar") as writer:
        ...     writer.write({"__key__": "a", "txt": "hi"})
        >>> with viewing("memory://doc/viewing") as address:
        ...     print(address.url.partition("token")[0], address.reach)
        http://127.0.0.1:.../? Only this machine can reach it.
    """
    viewer = _Viewer(ViewOptions(str(path), split, sample_type, tuple(lenses)), port=port, share=share, token=token)
    address = viewer.open()
    thread = threading.Thread(target=viewer.run, name="shoal-viewer", daemon=True)
    thread.start()
    try:
        viewer.wait_until_up()
        yield address
    finally:
        viewer.stop()
        thread.join()


def view(path: str, **options: Any) -> None:
    """Print the link of a viewer and answer until Ctrl-C. ``options`` are those of `viewing`.

    Raises:
        MissingExtraError: The extra ``view`` is not installed.
    """
    with viewing(path, **options) as address, contextlib.suppress(KeyboardInterrupt):
        print(f"{address.url}\n{address.reach} Ctrl-C stops it.", flush=True)  # noqa: T201 - what it is for
        threading.Event().wait()
