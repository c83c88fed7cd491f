"""Clients of obstore: made when first used, one a bucket and set of options, never shared with another process."""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from shoal.errors import AccessDeniedError, OptionError, ShoalError, StoreError

from ._aws import ENVIRONMENT, s3_settings
from ._fork import anew_in_child, enter_obstore
from ._hf_access import HUB_ENVIRONMENT, hub_headers
from ._options import CredentialProvider, StoreOptions, options_for, refuse_secrets, shown
from ._traffic import next_endpoint
from ._url import OBJECT_STORES, scheme_of

__all__ = ["Address", "Clients", "address_of", "clients_for", "forget_clients"]

_MOST_HELD = 64
"""Signed HTTP URLs need a client each."""
_CONNECT_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a URL points: a bucket (or an HTTP host) and a name in it."""

    kind: str
    root: str
    """The URL of the bucket."""
    path: str
    bucket: str
    account: str | None = None
    query: str = ""


@dataclass(frozen=True)
class Clients:
    """Two clients for one bucket, and until when they are good."""

    once: Any = field(repr=False)
    """Tries once: whoever uses it repeats, because it knows from where on."""
    make_patient: Callable[[], Any] = field(repr=False)
    endpoint: str
    expires_at: datetime | None = None

    @functools.cached_property
    def patient(self) -> Any:
        """Repeats by itself: for writing and listing, which begin anew. Who only reads need not wait for it."""
        return self.make_patient()


def address_of(url: str) -> Address:
    """Take a URL apart. Raises StoreError for one without a bucket, or with credentials in it.

    Example:
        >>> address_of("s3://photos/train/a.tar").path
        'train/a.tar'
    """
    refuse_secrets(url)
    scheme = scheme_of(url)
    kind = OBJECT_STORES[scheme]
    if kind == "http":
        parts = urlsplit(url)
        return Address(kind, f"{scheme}://{parts.netloc}", unquote(parts.path).strip("/"), "", query=parts.query)
    bucket, _, path = url[len(scheme) + 3 :].partition("/")
    container, _, host = bucket.partition("@")
    if not container:
        raise StoreError("the URL names no bucket", expected=f"{scheme}://bucket/name", found=url)
    return Address(kind, f"{scheme}://{bucket}", path.strip("/"), container, host.partition(".")[0] or None)


_lock = threading.Lock()
_HELD: OrderedDict[tuple[object, ...], Clients] = OrderedDict()


def clients_for(url: str, address: Address, other_than: str | None = None) -> Clients:
    """The clients that serve ``url`` in this process. Raises StoreError in a forked child that cannot have any.

    Of several endpoints those of the next one, ``other_than`` the one named: ask once for each request.
    """
    enter_obstore(shown(url))
    options = options_for(url)
    if options.endpoints:
        left = tuple(each for each in options.endpoints if each != other_than) or options.endpoints
        options = _at(options, next_endpoint(left, options.balance))
    key = _key(address, options)
    with _lock:
        held = _HELD.get(key)
        if held is not None and (held.expires_at is None or datetime.now(UTC) < held.expires_at):
            _HELD.move_to_end(key)
            return held
        made = _HELD[key] = _made(address, options, shown(url))
        while len(_HELD) > _MOST_HELD:
            _HELD.popitem(last=False)
        return made


def forget_clients(url: str, address: Address) -> bool:
    """Make new clients, with new credentials, when next asked; return whether there is somebody to ask for them."""
    options = options_for(url)
    with _lock:
        for each in [_at(options, endpoint) for endpoint in options.endpoints] or [options]:
            _HELD.pop(_key(address, each), None)
    return address.kind == "s3" or options_for(url).credential_provider is not None


def _at(options: StoreOptions, endpoint: str) -> StoreOptions:
    return replace(options, endpoint=endpoint, endpoints=())


def _key(address: Address, options: StoreOptions) -> tuple[object, ...]:
    facts: tuple[object, ...] = (address.root, address.query, options)
    read = {"s3": ENVIRONMENT, "hf": HUB_ENVIRONMENT}.get(address.kind, ())
    return (*facts, *(os.environ.get(name) for name in read))


def _renew() -> None:
    """Clients of the parent are dead here, and its lock may be held."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    _HELD.clear()


anew_in_child(_renew)


def _made(address: Address, options: StoreOptions, url: str) -> Clients:
    make = {"s3": _s3, "gs": _gs, "az": _az, "http": _http, "hf": _hf}[address.kind]
    try:
        return make(address, options)
    except ShoalError:
        raise
    except Exception as error:  # noqa: BLE001 - obstore's texts may hold what is secret, a provider may raise anything
        raise OptionError(
            "the store cannot be set up", found=url, hint=f"{type(error).__name__}: see its options"
        ) from None


def _s3(address: Address, options: StoreOptions) -> Clients:
    settings = s3_settings(options, os.environ)
    given: dict[str, Any] = {"region": settings.region or "us-east-1"}
    if settings.endpoint is not None:
        given["endpoint"] = settings.endpoint
    if settings.anonymous:
        given["skip_signature"] = True
    elif settings.provider is not None:
        given["credential_provider"] = _whole(settings.provider)
    return _pair(S3Store, address.bucket, given, options, settings.endpoint or "s3.amazonaws.com")


def _gs(address: Address, options: StoreOptions) -> Clients:
    given: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    if options.endpoint is not None:
        given["base_url"] = options.endpoint
    if options.credential_provider is not None:
        given["credential_provider"] = _whole(options.credential_provider)
    return _pair(GCSStore, address.bucket, given, options, options.endpoint or "storage.googleapis.com")


def _az(address: Address, options: StoreOptions) -> Clients:
    given: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    account = address.account or options.account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if account is None:
        raise StoreError(
            "the Azure account is not known",
            found=address.root,
            hint="shoal.store.configure(account=...), AZURE_STORAGE_ACCOUNT_NAME, or abfs://container@account...",
        )
    given["account_name"] = account
    if options.endpoint is not None:
        given["endpoint"] = options.endpoint
    if options.credential_provider is not None:
        given["credential_provider"] = _whole(options.credential_provider)
    return _pair(AzureStore, address.bucket, given, options, options.endpoint or f"{account}.blob.core.windows.net")


def _http(address: Address, options: StoreOptions) -> Clients:
    told = options.credential_provider() if options.credential_provider is not None else {}
    # The query belongs to the whole URL, and obstore keeps that of the base: the name is all path.
    base = f"{address.root}?{address.query}" if address.query else address.root
    clients = _pair(HTTPStore, base, {}, options, address.root, told.get("headers"))
    return replace(clients, expires_at=told.get("expires_at"))


def _hf(address: Address, options: StoreOptions) -> Clients:
    # Where the hub sends a reader on to another host, the client leaves the token behind.
    return _pair(HTTPStore, address.root, {}, options, address.root, hub_headers(options, os.environ))


def _pair(
    kind: Any,
    name: str,
    given: dict[str, Any],
    options: StoreOptions,
    endpoint: str,
    headers: Mapping[str, str] | None = None,
) -> Clients:
    total = timedelta(seconds=options.timeout)
    client: dict[str, Any] = {"timeout": total, "connect_timeout": min(total, _CONNECT_TIMEOUT)}
    # Plain HTTP where the user wrote it, and nowhere else.
    client["allow_http"] = endpoint.startswith("http://")
    if headers is not None:
        client["default_headers"] = dict(headers)
    patience = {"max_retries": options.retries, "retry_timeout": total * (options.retries + 1)}
    make = functools.partial(kind, name, client_options=client, **given)
    return Clients(make(retry_config={"max_retries": 0}), functools.partial(make, retry_config=patience), endpoint)


def _whole(provider: CredentialProvider) -> CredentialProvider:
    """What obstore wants to hear, also from a provider that leaves out what does not apply."""

    def ask() -> Mapping[str, Any]:
        told = dict(provider())
        if not told:
            raise AccessDeniedError("the credential provider gave nothing")
        return {"expires_at": None, **told}

    return ask
