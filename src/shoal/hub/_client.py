"""huggingface_hub's client, with the endpoint and token that our store uses, retries, and its errors as ours."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.errors import AccessDeniedError, MissingExtraError, ObjectChangedError, ObjectNotFoundError, StoreError
from shoal.store._hub_access import hub_access
from shoal.store._options import configure

if TYPE_CHECKING:
    import huggingface_hub

__all__ = ["client_of", "full_name", "hub_module", "hub_url", "patiently", "use_access", "without_bars"]

T = TypeVar("T")
_FOREIGN = ("huggingface_hub", "httpx", "httpcore", "requests", "urllib3")
"""How the names of the modules begin whose errors the client passes on."""
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_TRIES = 5
_FIRST_WAIT = 0.25
_LONGEST_WAIT = 300.0


def hub_url(repo_id: str, revision: str | None = None, path: str = "") -> str:
    """The ``hf://`` URL of a dataset on the Hub, or of a file in it.

    Examples:
        >>> hub_url("org/pets", "v1", "train-000000.tar")
        'hf://datasets/org/pets@v1/train-000000.tar'
    """
    at = "" if revision is None else f"@{revision.replace('/', '%2F')}"
    return f"hf://datasets/{repo_id}{at}" + (f"/{path}" if path else "")


@dataclass(frozen=True, slots=True)
class _Token:
    """A credential provider that can be sent to other processes, and does not show what it knows."""

    token: str = field(repr=False)

    def __call__(self) -> dict[str, str]:
        return {"token": self.token}


def full_name(repo_id: str, token: str | None, endpoint: str | None) -> str:
    """The name with its owner, who is the user where none is named. Raises AccessDeniedError without a token."""
    if "/" in repo_id:
        return repo_id
    access = hub_access("hf://datasets")
    client = hub_module().HfApi(endpoint=endpoint or access.endpoint, token=token or access.token or False)
    return f"{patiently(client.whoami, f'hf://datasets/{repo_id}')['name']}/{repo_id}"


def use_access(repo_id: str, token: str | None, endpoint: str | None) -> None:
    """Reach the repository so from now on in this process, by its ``hf://`` URLs too."""
    options: dict[str, Any] = {} if token is None else {"credential_provider": _Token(token), "anonymous": False}
    options |= {} if endpoint is None else {"endpoint": endpoint}
    if options:
        configure(hub_url(repo_id), **options)


def hub_module() -> Any:
    """huggingface_hub. Raises MissingExtraError."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("huggingface_hub is not installed", hint="pip install 'shoal[hub]'") from error
    return huggingface_hub


def client_of(repo_id: str) -> huggingface_hub.HfApi:
    """The client for a dataset's repository."""
    access = hub_access(hub_url(repo_id))
    made: huggingface_hub.HfApi = hub_module().HfApi(
        endpoint=access.endpoint, token=access.token or False, library_name="shoal"
    )
    return made


@contextmanager
def without_bars() -> Iterator[None]:
    """The client shows no progress of its own meanwhile."""
    bars = importlib.import_module("huggingface_hub.utils")
    shown = not bars.are_progress_bars_disabled()
    if shown:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bars()


def patiently(call: Callable[[], T], url: str) -> T:
    """What the client answers; tried again when the server is busy, after the time that it asks for.

    The client itself waits so for some of its requests and not for others. Raises StoreError and those below it.
    """
    tried = 0
    while True:
        try:
            return call()
        except Exception as error:
            foreign = _foreign(error)
            if foreign is None:
                raise
            tried += 1
            wait = _wait_before_retry(foreign, tried)
            if wait is None or tried >= _TRIES:
                raise _our_error(foreign, url) from error
        threading.Event().wait(wait)


def _foreign(error: BaseException | None) -> BaseException | None:
    """The error of the client, or of what it uses, that this is or was raised from."""
    while error is not None and not type(error).__module__.startswith(_FOREIGN):
        error = error.__cause__
    return error


def _wait_before_retry(error: BaseException, tried: int) -> float | None:
    """Seconds, or None for an error that stays."""
    answer = getattr(error, "response", None)
    if answer is None:
        passing, asked = type(error).__module__.startswith("http"), ""
    else:
        passing, asked = answer.status_code in _PASSING, answer.headers.get("Retry-After", "")
    wait = float(asked) if asked.strip().isdecimal() else _FIRST_WAIT * 2**tried
    return wait if passing and wait <= _LONGEST_WAIT else None


def _our_error(error: BaseException, url: str) -> StoreError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    hint = "set HF_TOKEN, or log in with `hf auth login`, for an account that may do this"
    if name == "RepositoryNotFoundError":
        return ObjectNotFoundError("no such repository, or a private one", found=url, hint=f"check the name; {hint}")
    if name == "RevisionNotFoundError":
        return ObjectNotFoundError("no such revision", found=url)
    if status in (401, 403) or name == "LocalTokenNotFoundError":
        return AccessDeniedError(f"access denied ({status or 'no token'})", found=url, hint=hint)
    if status in (409, 412):
        return ObjectChangedError("somebody else changed the repository meanwhile", found=url, hint="push again")
    if name == "HFValidationError":
        return ObjectNotFoundError("a repository cannot have this name", found=url, hint=str(error))
    said = f"the hub answered {status}" if status is not None else f"the hub cannot be reached ({name})"
    return StoreError(said, found=url)
