"""Settings of AWS: environment, config files and profiles, in the order AWS's own tools use."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from shoal.errors import MissingExtraError, StoreError

from ._options import CredentialProvider, StoreOptions

__all__ = ["ENVIRONMENT", "S3Settings", "s3_settings"]

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
