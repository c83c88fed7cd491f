"""Clients of obstore for S3, Google Cloud Storage, Azure, HTTP and the Hugging Face Hub, with their credentials."""

from __future__ import annotations

import configparser
import functools
import importlib
import json
import os
import shlex
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from shoal.errors import AccessDeniedError, MissingExtraError, OptionError, ShoalError, StoreError

from ._fork import enter_obstore, register_after_fork
from ._hub_access import HUB_ENVIRONMENT, hub_headers
from ._options import CredentialProvider, StoreOptions, options_for, refuse_secrets, shown
from ._statistics import next_endpoint
from ._url import OBJECT_STORES, scheme_of

__all__ = [
    "Address",
    "Clients",
    "address_of",
    "clients_for",
    "forget_clients",
    "s3_settings",
]


_MAX_CLIENTS = 64
"""Clients that are cached: each signed HTTP URL needs one of its own."""
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
    """Two clients for one bucket, and when their credentials expire."""

    once: Any = field(repr=False)
    """Tries once: the caller retries, because it knows from which byte on."""
    make_retrying: Callable[[], Any] = field(repr=False)
    endpoint: str
    expires_at: datetime | None = None

    @functools.cached_property
    def retrying(self) -> Any:
        """Retries by itself: for writing and listing, which start over. Created on first use."""
        return self.make_retrying()


def address_of(url: str) -> Address:
    """Take a URL apart. Raises StoreError for one without a bucket, or with credentials in it.

    Examples:
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
_CACHED: OrderedDict[tuple[object, ...], Clients] = OrderedDict()


def clients_for(url: str, address: Address, other_than: str | None = None) -> Clients:
    """Return the clients for ``url``. Raises StoreError in a forked child that cannot have any.

    With several endpoints each call returns clients of the next one, but not of ``other_than``: call once per request.
    """
    enter_obstore(shown(url))
    options = options_for(url)
    if options.endpoints:
        left = tuple(each for each in options.endpoints if each != other_than) or options.endpoints
        options = _with_endpoint(options, next_endpoint(left, options.balance))
    key = _cache_key(address, options)
    with _lock:
        held = _CACHED.get(key)
        if held is not None and (held.expires_at is None or datetime.now(UTC) < held.expires_at):
            _CACHED.move_to_end(key)
            return held
        made = _CACHED[key] = _make_clients(address, options, shown(url))
        while len(_CACHED) > _MAX_CLIENTS:
            _CACHED.popitem(last=False)
        return made


def forget_clients(url: str, address: Address) -> bool:
    """Drop the cached clients of ``url``; return whether new ones may get new credentials."""
    options = options_for(url)
    with _lock:
        for each in [_with_endpoint(options, endpoint) for endpoint in options.endpoints] or [options]:
            _CACHED.pop(_cache_key(address, each), None)
    return address.kind == "s3" or options_for(url).credential_provider is not None


def _with_endpoint(options: StoreOptions, endpoint: str) -> StoreOptions:
    return replace(options, endpoint=endpoint, endpoints=())


def _cache_key(address: Address, options: StoreOptions) -> tuple[object, ...]:
    facts: tuple[object, ...] = (address.root, address.query, options)
    read = {"s3": AWS_ENVIRONMENT, "hf": HUB_ENVIRONMENT}.get(address.kind, ())
    return (*facts, *(os.environ.get(name) for name in read))


def _reset_after_fork() -> None:
    """Clients of the parent do not work in the child, and its lock may be held."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    _CACHED.clear()


register_after_fork(_reset_after_fork)


def _make_clients(address: Address, options: StoreOptions, url: str) -> Clients:
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
        given["credential_provider"] = _with_expiry(settings.provider)
    return _make_pair(S3Store, address.bucket, given, options, settings.endpoint or "s3.amazonaws.com")


def _gs(address: Address, options: StoreOptions) -> Clients:
    given: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    if options.endpoint is not None:
        given["base_url"] = options.endpoint
    if options.credential_provider is not None:
        given["credential_provider"] = _with_expiry(options.credential_provider)
    return _make_pair(GCSStore, address.bucket, given, options, options.endpoint or "storage.googleapis.com")


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
        given["credential_provider"] = _with_expiry(options.credential_provider)
    return _make_pair(
        AzureStore, address.bucket, given, options, options.endpoint or f"{account}.blob.core.windows.net"
    )


def _http(address: Address, options: StoreOptions) -> Clients:
    provided = options.credential_provider() if options.credential_provider is not None else {}
    # The query belongs to the whole URL, and obstore keeps that of the base: the name is all path.
    base = f"{address.root}?{address.query}" if address.query else address.root
    clients = _make_pair(HTTPStore, base, {}, options, address.root, provided.get("headers"))
    return replace(clients, expires_at=provided.get("expires_at"))


def _hf(address: Address, options: StoreOptions) -> Clients:
    # Where the hub sends a reader on to another host, the client leaves the token behind.
    return _make_pair(HTTPStore, address.root, {}, options, address.root, hub_headers(options, os.environ))


def _make_pair(
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
    retries = {"max_retries": options.retries, "retry_timeout": total * (options.retries + 1)}
    make = functools.partial(kind, name, client_options=client, **given)
    return Clients(make(retry_config={"max_retries": 0}), functools.partial(make, retry_config=retries), endpoint)


def _with_expiry(provider: CredentialProvider) -> CredentialProvider:
    """Wrap a provider that may leave out ``expires_at``, which obstore requires."""

    def ask() -> Mapping[str, Any]:
        credentials = dict(provider())
        if not credentials:
            raise AccessDeniedError("the credential provider gave nothing")
        return {"expires_at": None, **credentials}

    return ask


AWS_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)
"""Variables that an S3 client depends on: when one of them changes, a new client is made."""

_REREAD_AFTER = timedelta(minutes=15)
"""Keys in a file may be replaced there while the process runs."""
_PROCESS_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Settings of S3; None where obstore's own chain (container, instance) has to find them."""

    endpoint: str | None
    region: str | None
    anonymous: bool
    provider: CredentialProvider | None = field(repr=False)


def s3_settings(options: StoreOptions, environ: Mapping[str, str]) -> S3Settings:
    """Arguments first, then the environment, then the profile. Raises StoreError for a profile that is not there."""
    name = options.profile or environ.get("AWS_PROFILE") or "default"
    profile = _profile(name, environ)
    if not profile and name != "default":
        raise StoreError("there is no such AWS profile", found=name, hint="look into ~/.aws/config")
    endpoint = options.endpoint or _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    region = options.region or _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION")
    return S3Settings(
        endpoint or profile.get("endpoint_url"),
        region or profile.get("region"),
        options.anonymous,
        None if options.anonymous else _provider(options, environ, name, profile),
    )


def _first(environ: Mapping[str, str], *names: str) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _provider(
    options: StoreOptions, environ: Mapping[str, str], name: str, profile: Mapping[str, str]
) -> CredentialProvider | None:
    if options.credential_provider is not None:
        return options.credential_provider
    if not options.profile and environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return lambda: _from_environment(environ)
    if "aws_access_key_id" in profile:
        return lambda: _from_file(name, environ)
    if "credential_process" in profile:
        return lambda: _from_process(profile["credential_process"])
    if profile.keys() & {"role_arn", "sso_session", "sso_start_url", "source_profile", "web_identity_token_file"}:
        return _from_boto3(name)
    return None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        "access_key_id": environ["AWS_ACCESS_KEY_ID"],
        "secret_access_key": environ["AWS_SECRET_ACCESS_KEY"],
        "token": environ.get("AWS_SESSION_TOKEN"),
    }


def _from_file(name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    profile = _profile(name, environ)
    return {
        "access_key_id": profile["aws_access_key_id"],
        "secret_access_key": profile["aws_secret_access_key"],
        "token": profile.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + _REREAD_AFTER,
    }


def _from_process(command: str) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603 - the user's own config names it, and no shell sees it
        shlex.split(command), capture_output=True, check=True, timeout=_PROCESS_TIMEOUT_S
    )
    document = json.loads(done.stdout)
    expires = document.get("Expiration")
    return {
        "access_key_id": document["AccessKeyId"],
        "secret_access_key": document["SecretAccessKey"],
        "token": document.get("SessionToken"),
        "expires_at": datetime.fromisoformat(expires) if expires else None,
    }


def _from_boto3(name: str) -> CredentialProvider:
    """Return a provider for roles and single sign-on, which only boto3 implements."""
    try:
        boto3: Any = importlib.import_module("boto3")  # ships no types
    except ImportError:
        raise MissingExtraError(
            "this AWS profile uses a role or single sign-on", found=name, hint="pip install boto3"
        ) from None
    session = boto3.session.Session(profile_name=name)

    def ask() -> dict[str, Any]:
        keys = session.get_credentials().get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _REREAD_AFTER,  # boto3 renews them in time, and is asked again
        }

    return ask


def _profile(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a profile's settings from both files; those of the credentials file win."""
    config = environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    section = name if name == "default" else f"profile {name}"
    return {**_section(config, section), **_section(credentials, name)}


def _section(path: str, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(os.path.expanduser(path), encoding="utf-8")
    except configparser.Error:
        raise StoreError("the AWS config file cannot be read", found=path) from None  # its text may hold keys
    return dict(parser.items(section)) if parser.has_section(section) else {}
