"""Clients and credentials of S3, Google Cloud Storage, Azure and Hugging Face."""

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

from ._base import anew_in_child, enter_obstore
from ._options import CredentialProvider, StoreOptions, options_for, refuse_secrets, shown
from ._statistics import next_endpoint
from ._url import OBJECT_STORES, scheme_of

__all__ = [
    "Address",
    "Clients",
    "HubAccess",
    "address_of",
    "clients_for",
    "forget_clients",
    "hub_access",
    "hub_endpoint",
    "hub_headers",
    "hub_token",
    "s3_settings",
]


# --------------------------------------------------------------------------------------------------- Clients of obstore


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


# ------------------------------------------------------------------------------------------------------ settings of AWS


ENVIRONMENT = (
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
"""What a client depends on: when one of these changes, it is another client."""

_REREAD = timedelta(minutes=15)
"""Keys in a file may be replaced there while we run."""
_PROCESS_TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class S3Settings:
    """What is known of how to reach S3; None where obstore's own chain (container, instance) has to find out."""

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
        "expires_at": datetime.now(UTC) + _REREAD,
    }


def _from_process(command: str) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603 - the user's own config names it, and no shell sees it
        shlex.split(command), capture_output=True, check=True, timeout=_PROCESS_TIMEOUT
    )
    told = json.loads(done.stdout)
    expires = told.get("Expiration")
    return {
        "access_key_id": told["AccessKeyId"],
        "secret_access_key": told["SecretAccessKey"],
        "token": told.get("SessionToken"),
        "expires_at": datetime.fromisoformat(expires) if expires else None,
    }


def _from_boto3(name: str) -> CredentialProvider:
    """Roles and single sign-on are conversations with AWS that boto3 knows how to have."""
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
            "expires_at": datetime.now(UTC) + _REREAD,  # boto3 renews them in time, and is asked again
        }

    return ask


def _profile(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What both files say of a profile; the credentials file has the last word."""
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


# ------------------------------------------------------------------- where the Hugging Face Hub is and who we are there


# The token goes into a header and nowhere else.

HUB_ENVIRONMENT = (
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
)
"""What huggingface_hub reads too."""
_PUBLIC = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How a Hugging Face repository is reached: for other clients that should reach the same one as the same user."""

    endpoint: str
    token: str | None = field(repr=False)


def hub_access(url: str = "hf://") -> HubAccess:
    """How the repository at an ``hf://`` URL is reached, by `configure`, the environment and `hf auth login`.

    Example:
        >>> from shoal.store import configure
        >>> _ = configure("hf://datasets/lab", endpoint="https://hub.example.org", anonymous=True)
        >>> hub_access("hf://datasets/lab/pets")
        HubAccess(endpoint='https://hub.example.org')
    """
    options = options_for(url)
    return HubAccess(hub_endpoint(options, os.environ), hub_token(options, os.environ))


def hub_endpoint(options: StoreOptions, environment: Mapping[str, str]) -> str:
    """The hub's address: the one configured, that of HF_ENDPOINT, or the public one.

    Example:
        >>> hub_endpoint(StoreOptions(), {"HF_ENDPOINT": "https://hub.example.org/"})
        'https://hub.example.org'
    """
    return (options.endpoint or environment.get("HF_ENDPOINT") or _PUBLIC).rstrip("/")


def hub_headers(options: StoreOptions, environment: Mapping[str, str]) -> dict[str, str]:
    """What goes with every request to the hub. Raises AccessDeniedError for a provider that gives no token."""
    token = hub_token(options, environment)
    return {"Authorization": f"Bearer {token}"} if token else {}


def hub_token(options: StoreOptions, environment: Mapping[str, str]) -> str | None:
    """The token: of the provider, of HF_TOKEN, or of the file where `hf auth login` keeps it; None for nobody.

    Example:
        >>> hub_token(StoreOptions(), {"HF_TOKEN": "hf_1234"}), hub_token(StoreOptions(anonymous=True), {})
        ('hf_1234', None)
    """
    if options.anonymous:
        return None
    if options.credential_provider is not None:
        token = options.credential_provider().get("token")
        if not isinstance(token, str) or not token:
            raise AccessDeniedError("the credential provider gave no token", expected="{'token': 'hf_...'}")
        return token
    if environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    named = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    return (named or _kept(environment)).strip() or None


def _kept(environment: Mapping[str, str]) -> str:
    cache = environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = environment.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = os.path.expanduser(environment.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
