"""Endpoint and token of the Hugging Face Hub. The token is sent in a header and used nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.errors import AccessDeniedError

from ._options import StoreOptions, options_for

__all__ = ["HUB_ENVIRONMENT", "HubAccess", "hub_access", "hub_endpoint", "hub_headers", "hub_token"]

HUB_ENVIRONMENT = (
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
)
"""Variables that decide endpoint and token; huggingface_hub reads the same ones."""
_PUBLIC_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How a Hugging Face repository is reached: for other clients that should reach the same one as the same user."""

    endpoint: str
    token: str | None = field(repr=False)


def hub_access(url: str = "hf://") -> HubAccess:
    """How the repository at an ``hf://`` URL is reached, by `configure`, the environment and `hf auth login`.

    Examples:
        >>> from shoal.store import configure
        >>> _ = configure("hf://datasets/lab", endpoint="https://hub.example.org", anonymous=True)
        >>> hub_access("hf://datasets/lab/pets")
        HubAccess(endpoint='https://hub.example.org')
    """
    options = options_for(url)
    return HubAccess(hub_endpoint(options, os.environ), hub_token(options, os.environ))


def hub_endpoint(options: StoreOptions, environment: Mapping[str, str]) -> str:
    """The hub's address: the one configured, that of HF_ENDPOINT, or the public one.

    Examples:
        >>> hub_endpoint(StoreOptions(), {"HF_ENDPOINT": "https://hub.example.org/"})
        'https://hub.example.org'
    """
    return (options.endpoint or environment.get("HF_ENDPOINT") or _PUBLIC_ENDPOINT).rstrip("/")


def hub_headers(options: StoreOptions, environment: Mapping[str, str]) -> dict[str, str]:
    """What goes with every request to the hub. Raises AccessDeniedError for a provider that gives no token."""
    token = hub_token(options, environment)
    return {"Authorization": f"Bearer {token}"} if token else {}


def hub_token(options: StoreOptions, environment: Mapping[str, str]) -> str | None:
    """The token: of the provider, of HF_TOKEN, or of the file where `hf auth login` keeps it; None for nobody.

    Examples:
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
    return (named or _read_token_file(environment)).strip() or None


def _read_token_file(environment: Mapping[str, str]) -> str:
    cache = environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = environment.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = os.path.expanduser(environment.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
