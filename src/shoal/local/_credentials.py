"""S3 credentials, from a mapping or a ``.env`` file; kept in memory, never written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import OptionError
from shoal.store._options import configure, configured, options_for
from shoal.store._url import scheme_of

__all__ = ["Credentials", "CredentialsLike", "check_no_secret", "credentials_of", "reach"]

CredentialsLike = Mapping[str, str] | str | os.PathLike[str]
"""A mapping of AWS's names to their values, or the path of a ``.env`` file that has them."""

_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_KNOWN = (*_ENDPOINTS, *_REGIONS, *_KEYS)
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*")
_SIGNED = re.compile(
    r"[?&](x-amz-(signature|credential|security-token)|x-goog-(signature|credential)|signature|sig|token|awsaccesskeyid"
    r"|access_token|password|secret)=",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Gives the keys to a store that asks. Two of the same keys are one and the same, so clients are kept."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    def __call__(self) -> dict[str, Any]:
        return {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "token": self.token,
        }


@dataclass(frozen=True, slots=True)
class Credentials:
    """What was said of an S3 service: where it is, and who asks."""

    endpoint: str | None = None
    region: str | None = None
    keys: Keys | None = None


def credentials_of(given: CredentialsLike | None) -> Credentials:
    """What a mapping or a ``.env`` file says.

    Raises OptionError for a name that is not one of AWS's in a mapping, and for a key without its secret. Values are
    never in the message.

    Examples:
        >>> credentials_of({"AWS_ENDPOINT": "http://127.0.0.1:9000", "AWS_REGION": "us-east-1"})
        Credentials(endpoint='http://127.0.0.1:9000', region='us-east-1', keys=None)
    """
    if given is None:
        return Credentials()
    values = dict(given) if isinstance(given, Mapping) else _from_file(os.fspath(given))
    unknown = sorted(str(name) for name in values if name not in _KNOWN)
    if unknown and isinstance(given, Mapping):
        raise OptionError("this is no setting of S3", expected=", ".join(_KNOWN), found=unknown[0])
    if not all(isinstance(values.get(name, ""), str) for name in _KNOWN):
        raise OptionError("settings of S3 are texts", expected="a text for each name")
    return Credentials(_first(values, _ENDPOINTS), _first(values, _REGIONS), _keys(values))


def _first(values: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((values[name] for name in names if values.get(name)), None)


def _keys(values: Mapping[str, str]) -> Keys | None:
    access, secret = values.get("AWS_ACCESS_KEY_ID"), values.get("AWS_SECRET_ACCESS_KEY")
    if not access and not secret:
        return None
    if not access or not secret:
        missing = "AWS_SECRET_ACCESS_KEY" if access else "AWS_ACCESS_KEY_ID"
        raise OptionError("half of the S3 credentials is missing", expected=missing)
    return Keys(access, secret, values.get("AWS_SESSION_TOKEN") or None)


def _from_file(path: str) -> dict[str, str]:
    """The lines ``NAME=value`` of a file; quotes around a value are not part of it."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("the file of credentials cannot be read", found=f"{path}: {type(error).__name__}") from None
    found = [match for line in lines if (match := _LINE.fullmatch(line)) and not line.lstrip().startswith("#")]
    return {match[1]: _unquoted(match[2]) for match in found}


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def reach(root: str, endpoint: str | None, region: str | None, given: CredentialsLike | Credentials | None) -> None:
    """Tell the store how to reach what lies below ``root``; what is not said comes from the environment."""
    if scheme_of(root) not in ("s3", "s3a"):
        return
    said = given if isinstance(given, Credentials) else credentials_of(given)
    wanted: dict[str, Any] = {
        "endpoint": said.endpoint or endpoint,
        "region": said.region or region,
        "credential_provider": said.keys,
    }
    wanted = {name: value for name, value in wanted.items() if value is not None}
    now = options_for(root)
    if any(getattr(now, name) != value for name, value in wanted.items()):
        bucket = "/".join(root.split("/")[:3])
        # The bucket, unless somebody said something of it: buckets of one name may be with two services.
        configure(root if bucket in configured() else bucket, **wanted)


def check_no_secret(url: str) -> str:
    """The URL itself. Raises OptionError for one that is signed or has a password in it: an index is read by many.

    Examples:
        >>> check_no_secret("https://host/a.tar")
        'https://host/a.tar'
    """
    host = url.partition("://")[2].partition("/")[0]
    user = host.rpartition("@")[0]
    if _SIGNED.search(url) or ":" in user:
        shown = url.partition("?")[0].replace(f"{user}@", "...@") if user else url.partition("?")[0]
        raise OptionError(
            "a URL with credentials in it is not kept in an index",
            found=f"{shown}?...",
            hint="add it by its plain URL, and let the environment or `credentials=` say who asks",
        )
    return url
