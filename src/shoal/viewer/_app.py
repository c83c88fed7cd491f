"""The routes of the viewer, and the checks of token and origin."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from shoal.dataset._query import F
from shoal.errors import MissingExtraError, QueryError, ShoalError

from ._autocomplete import suggestions
from ._html import (
    Frame,
    Html,
    asked,
    fragment,
    not_allowed_page,
    page,
    plain,
    problem_page,
    show_bytes,
    show_count,
    status_of,
    tag,
    unknown_page,
)
from ._media import SANDBOX, drawing, part_of, picture_at, problem_picture, stored_bytes
from ._page_sample import lenses_page, peek_text, sample_page, schema_page
from ._page_samples import columns_page, facets_part, filter_box, grid_page
from ._page_shards import build_page, build_part, build_state, shards_page, verified_part
from ._session import SampleQuery, ValuePath, ViewerSession
from ._values import hex_dump

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["AccessPolicy", "viewer_app"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
_LOG = logging.getLogger("shoal.viewer")
_STATIC = {
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_KEPT = "private, max-age=3600"


def require_starlette() -> None:
    """Raise MissingExtraError where the packages of the viewer are not installed."""
    try:
        for name in ("starlette", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "the viewer's packages are not installed", found=error, hint="pip install 'shoal[view]'"
        ) from error


def viewer_app(opened: ViewerSession, door: AccessPolicy) -> AsgiApp:
    """The viewer of one dataset, as an ASGI application. Raises MissingExtraError."""
    require_starlette()
    from starlette.applications import Starlette
    from starlette.routing import Route

    site = _Site(opened)
    pages: list[tuple[str, Callable[[Request], Html]]] = [
        ("/", site.grid),
        ("/sample/{position:int}", site.sample),
        ("/columns", site.columns),
        ("/facets", site.facets),
        ("/shards", site.shards),
        ("/schema", site.schema),
        ("/lenses", site.lenses),
        ("/build", site.build),
        ("/build/part", site.build_part),
    ]
    routes = [Route(path, site.shown(make)) for path, make in pages]
    routes += [
        Route("/shards/{number:int}/verify", site.shown(site.verify), methods=["POST"]),
        Route("/build/state", site.build_state),
        Route("/suggest", site.suggest),
        Route("/picture/{number:int}", site.picture),
        Route("/drawing/{number:int}", site.drawing),
        Route("/bytes/{number:int}", site.bytes),
        Route("/peek/{number:int}", site.peek),
        Route("/static/{name}", _static),
    ]
    handlers: dict[Any, Any] = {404: site.not_found, 405: site.not_found, Exception: site.broken}
    return guarded(_quiet(Starlette(routes=routes, exception_handlers=handlers)), door)


def _quiet(app: Any) -> AsgiApp:
    """Starlette raises again what `broken` has logged and made a page of, for servers that log it once more."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(Exception):
            await app(scope, receive, send)

    return run


class _Site:
    """What each address answers."""

    def __init__(self, opened: ViewerSession) -> None:
        self._opened = opened

    def frame(self) -> Frame:
        """What every page says; where the dataset cannot be opened, its path only."""
        looked = self._opened.looked
        try:
            source = self._opened.shards
            dataset = self._opened.dataset
            said = show_count(len(dataset), "sample")
            if source is not None and source.manifest is not None:
                said = f"{said} · {show_bytes(source.manifest.bytes)}"
            return Frame(looked.path, said, self._opened.is_being_written)
        except (ShoalError, OSError):
            return Frame(looked.path, "", bool(self._opened.writes()))

    def shown(self, make: Callable[[Request], Html]) -> Callable[[Request], Response]:
        """An endpoint that answers with a page, also where something is wrong."""

        def endpoint(request: Request) -> Response:
            from starlette.responses import HTMLResponse

            try:
                self._opened.refresh()
                return HTMLResponse(_encoded(make(request)))
            except (ShoalError, OSError) as error:
                self._opened.noticed(error)
                return HTMLResponse(_encoded(self._problem(request, error)), status_of(error))

        return endpoint

    def _problem(self, request: Request, error: ShoalError | OSError) -> Html:
        if isinstance(error, QueryError):
            ask = _ask(request)
            box = filter_box(self._opened, ask, error)
            if request.url.path == "/facets":
                return tag("p", "The condition cannot be understood.", cls="quiet")
            title, there = tag("h1", "Samples", cls="unseen"), _columns_there(self._opened)
            return page(self.frame(), "Filter", title, box, there, here="/", ask=SampleQuery(split=ask.split))
        return problem_page(self.frame(), error)

    def grid(self, request: Request) -> Html:
        number = _number(request, "goto", 0) - 1 if "goto" in request.query_params else _number(request, "page", 0)
        return grid_page(self._opened, self.frame(), _ask(request), number)

    def sample(self, request: Request) -> Html:
        return sample_page(self._opened, self.frame(), _ask(request), request.path_params["position"])

    def columns(self, request: Request) -> Html:
        return columns_page(self._opened, self.frame(), _ask(request))

    def facets(self, request: Request) -> Html:
        return facets_part(self._opened, _ask(request))

    def shards(self, request: Request) -> Html:
        return shards_page(self._opened, self.frame(), _number(request, "start", 0))

    def verify(self, request: Request) -> Html:
        part = verified_part(self._opened, request.path_params["number"])
        if request.headers.get("sec-fetch-dest") == "empty":  # asked for by our script, which puts it into the table
            return part
        back = tag("p", tag("a", "All shards", href="/shards", cls="button main"))
        return page(self.frame(), "Verified", tag("h1", "Verified"), part, back, here="/shards")

    def schema(self, request: Request) -> Html:
        return schema_page(self._opened, self.frame())

    def lenses(self, request: Request) -> Html:
        name = request.query_params.get("lens", "")
        return lenses_page(self._opened, self.frame(), _ask(request), name, _number(request, "page", 0))

    def build(self, request: Request) -> Html:
        return build_page(self._opened, self.frame())

    def build_part(self, request: Request) -> Html:
        return build_part(self._opened)

    def build_state(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse(build_state(self._opened))

    def suggest(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        text = request.query_params.get("where", "")[:4000]
        try:
            start, found = suggestions(self._opened, text, min(_number(request, "at", len(text)), len(text)))
        except ShoalError:
            start, found = 0, []
        return JSONResponse({"start": start, "found": [{"text": one.text, "note": one.note} for one in found]})

    def picture(self, request: Request) -> Response:
        from starlette.responses import Response

        place = _place(request)
        try:
            made = picture_at(self._opened, place, _number(request, "width", 360), _number(request, "plane", 0))
        except ShoalError as error:
            self._opened.noticed(error)
            headers = {"content-security-policy": SANDBOX}
            return Response(problem_picture(error), 422, headers, "image/svg+xml")
        headers = {"cache-control": _KEPT if place.version else "no-store", "content-security-policy": SANDBOX}
        return Response(made.data, 200, headers, made.type)

    def drawing(self, request: Request) -> Response:
        from starlette.responses import Response

        # An attachment is drawn in an <img> all the same, and nowhere else.
        headers = {
            "content-security-policy": f"{SANDBOX}; style-src 'unsafe-inline'",
            "content-disposition": "attachment",
        }
        try:
            return Response(drawing(self._opened, _place(request)), 200, headers, "image/svg+xml")
        except ShoalError as error:
            return Response(problem_picture(error), 422, headers, "image/svg+xml")

    def bytes(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        def answer() -> Response:
            place = _place(request)
            extent = stored_bytes(self._opened, place)
            part = part_of(extent, place, request.headers.get("range"), download="download" in request.query_params)
            return StreamingResponse(extent.pieces(part.start, part.stop), part.status, part.headers)

        return self._plainly(answer)

    def peek(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        return self._plainly(lambda: PlainTextResponse(hex_dump(peek_text(self._opened, _place(request)))))

    def _plainly(self, answer: Callable[[], Response]) -> Response:
        from starlette.responses import PlainTextResponse

        try:
            return answer()
        except (ShoalError, OSError) as error:
            self._opened.noticed(error)
            return PlainTextResponse(str(error).encode("utf-8", "replace"), status_of(error))

    def not_found(self, request: Request, error: Exception) -> Response:
        from starlette.responses import HTMLResponse

        made = unknown_page(self.frame(), "There is no such page", "The address leads nowhere. Go back to the samples.")
        return HTMLResponse(_encoded(made), getattr(error, "status_code", 404))

    def broken(self, request: Request, error: Exception) -> Response:
        from starlette.responses import HTMLResponse

        _LOG.exception("the page %s cannot be made", request.url.path, exc_info=error)
        text = "This is a mistake in the viewer, not in your data. Where it was started, the details are printed."
        return HTMLResponse(_encoded(unknown_page(self.frame(), "The page cannot be made", text)), 500)


def _columns_there(opened: ViewerSession) -> Html | None:
    names = opened.column_names()[:60]
    links = [
        tag("a", plain(name, 60), href=asked("/", SampleQuery(str(F[name].is_not_null()))), cls="button")
        for name in names
    ]
    return (
        tag("section", tag("h2", "Columns you can ask about"), tag("div", *links, cls="chips"), cls="part-of-page")
        if names
        else None
    )


def _static(request: Request) -> Response:
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    data = (resources.files("shoal.viewer") / "static" / name).read_bytes()
    return Response(data, 200, {"cache-control": "no-cache"}, _STATIC[name])


def _encoded(html: Html) -> bytes:
    return fragment(html).encode("utf-8", "replace")


def _ask(request: Request) -> SampleQuery:
    asked = request.query_params
    shuffle = _number(request, "shuffle", 0) if asked.get("shuffle") else None
    return SampleQuery(asked.get("where", "").strip()[:4000], asked.get("split", ""), shuffle)


def _number(request: Request, name: str, default: int) -> int:
    """A whole number of the address; anything else there is the default."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default


def _place(request: Request) -> ValuePath:
    asked = request.query_params
    at = tuple(asked.getlist("at")[:32])
    return ValuePath(request.path_params["number"], asked.get("field", ""), at, asked.get("lens"), asked.get("v", ""))


POLICY = (
    "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
"""On every answer, unless it says otherwise itself."""
_OWN = ("same-origin", "none")
"""What a browser says of requests by our own pages, and of addresses that somebody typed."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """By which names the server may be called, and the token that opens it."""

    token: str
    port: int
    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "[::1]"})
    any_address: bool = False
    """Whether any number of an address will do: it listens at all of the machine's. A name never will: whoever owns a
    name can make it lead here."""

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers tell hosts apart, not ports."""
        return f"shoal-{self.port}"

    def is_called(self, host: str) -> bool:
        """Whether a Host header names this server.

        Examples:
            >>> door = AccessPolicy("secret", 8000)
            >>> door.is_called("localhost:8000"), door.is_called("evil.example:8000"), door.is_called("localhost")
            (True, False, False)
        """
        name, _, port = host.rpartition(":")
        if port != str(self.port):
            return False
        return name.lower() in self.hosts or (self.any_address and _is_address(name.strip("[]")))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def guarded(app: AsgiApp, door: AccessPolicy) -> AsgiApp:
    """The app behind the door: other requests get a page that says what to do, and nothing of the dataset."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        sealed = _sealed(send)
        if not door.is_called(headers.get("host", "")):
            await _refuse(sealed, 421, "This address is not the viewer's own.", "Open the link that it printed.")
        elif headers.get("sec-fetch-site", "none") not in _OWN and headers.get("sec-fetch-mode") != "navigate":
            await _refuse(sealed, 403, "Another site asked for this.", "Open the link that the viewer printed.")
        elif scope["path"].startswith("/static/"):
            await app(scope, receive, sealed)
        elif (rest := _with_token(scope, door)) is not None:
            await _let_in(sealed, door, rest)
        elif _has_cookie(headers.get("cookie", ""), door):
            await app(scope, receive, sealed)
        else:
            todo = "Open the whole link that `shoal view` printed: it ends in a token that opens the door."
            await _refuse(sealed, 403, "The viewer shows its dataset to those who have its link.", todo)

    return answer


def _sealed(send: Send) -> Send:
    """Adds the headers that every answer has."""

    async def sealed(message: Message) -> None:
        if message["type"] == "http.response.start":
            said = {name for name, _ in message.get("headers", ())}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in said]
            message["headers"] = [*message.get("headers", ()), *more]
        await send(message)

    return sealed


def _with_token(scope: Scope, door: AccessPolicy) -> str | None:
    """The same address without the token, where that is right; None where there is none."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = [value for name, value in pairs if name == "token"]
    if not given or not _same(given[0], door.token) or scope["method"] != "GET":
        return None
    rest = urlencode([pair for pair in pairs if pair[0] != "token"])
    path: str = "/" + scope["path"].lstrip("/")  # two slashes would lead to another host
    return f"{path}?{rest}" if rest else path


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _has_cookie(text: str, door: AccessPolicy) -> bool:
    try:
        morsel = SimpleCookie(text).get(door.cookie)
    except CookieError:
        return False
    return morsel is not None and _same(morsel.value, door.token)


async def _let_in(send: Send, door: AccessPolicy, address: str) -> None:
    """From now on the cookie says it: the token is out of the address bar, the history and what is passed on."""
    cookie = f"{door.cookie}={door.token}; HttpOnly; SameSite=Lax; Path=/"
    headers = [
        (b"location", address.encode("latin-1", "replace")),
        (b"set-cookie", cookie.encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, status: int, text: str, todo: str) -> None:
    body = not_allowed_page(text, todo).encode()
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
