"""Translation of obstore's errors into shoal's.

obstore's messages contain complete requests and responses, which may contain signatures. Only the kind of error, the
HTTP status and the service's error code are taken from them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from obstore import exceptions

from shoal.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
)

from ._options import options_for, shown

__all__ = ["OBSTORE_ERRORS", "Failure", "failure_of", "parse_error_code", "translate_failure", "truncated_response"]

OBSTORE_ERRORS: tuple[type[Exception], ...] = (exceptions.BaseError, OSError, ValueError)
"""Errors that a call of obstore may raise."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_THROTTLED = frozenset({429, 503})
_DENIED_CODES = frozenset(
    {
        "AccessDenied",
        "SignatureDoesNotMatch",
        "InvalidAccessKeyId",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
    }
)
_ELSEWHERE_CODES = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_NO_CREDENTIALS = (
    "169.254.169.254",
    "169.254.170.2",
    "/latest/api/token",
    "/latest/meta-data",
    "metadata.google.internal",
)
"""Metadata services of cloud machines: a failed request to one means that no credentials were found."""
_BROKEN = {
    "Connect": "the server cannot be reached",
    "Timeout": "the server did not answer in time",
    "Interrupted": "the connection broke",
    "Request": "the connection broke",
    "Decode": "the answer cannot be understood",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Facts about a failed request."""

    kind: str
    """The name of obstore's error."""
    status: int | None = None
    code: str | None = None
    broken: str | None = None
    """How the connection failed, where it did."""
    no_credentials: bool = False
    retry_after: float | None = None
    """Seconds the server asked us to wait."""

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        if self.no_credentials:
            return False
        return self.status in _TRANSIENT if self.status is not None else self.broken not in (None, "Decode")

    @property
    def throttled(self) -> bool:
        """Whether the server said that there are too many requests."""
        return self.status in _THROTTLED

    @property
    def denied(self) -> bool:
        """Whether other credentials might help."""
        named = self.kind in ("PermissionDeniedError", "UnauthenticatedError") or self.status in (401, 403)
        return named or self.no_credentials or self.code in _DENIED_CODES

    @property
    def elsewhere(self) -> bool:
        """Whether the bucket is in another region than the one asked."""
        return self.status in (301, 307, 308) or self.code in _ELSEWHERE_CODES

    @property
    def summary(self) -> str:
        """A few words for a log."""
        words = [str(self.status) if self.status is not None else None, self.code, self.broken]
        return " ".join(word for word in words if word) or self.kind


def failure_of(error: BaseException) -> Failure:
    """Return the facts in an error of obstore.

    Examples:
        >>> failure_of(exceptions.GenericError("non-2xx status code: 503 Slow Down <Code>SlowDown</Code>")).summary
        '503 SlowDown'
    """
    text = str(error)
    status, code, kind = (found[1] if (found := each.search(text)) else None for each in (_STATUS, _CODE, _KIND))
    if kind is None and status is None and re.search(r"timed ?out", text, re.IGNORECASE):
        kind = "Timeout"
    head = text.partition("Debug source")[0]
    return Failure(
        type(error).__name__,
        int(status) if status else None,
        code,
        kind,
        no_credentials=any(host in head for host in _NO_CREDENTIALS),
    )


def parse_error_code(body: bytes) -> str | None:
    """Return the service's error code in the body of an error response, or None.

    Examples:
        >>> parse_error_code(b"<Error><Code>NoSuchKey</Code></Error>")
        'NoSuchKey'
    """
    found = _CODE.search(body.decode(errors="replace"))
    return None if found is None else found[1]


def truncated_response() -> Failure:
    """Return the failure for a response that ended early though the server did not report an error."""
    return Failure("ShortAnswer", broken="Interrupted")


def translate_failure(failure: Failure, url: str, *, attempts: int = 1) -> StoreError:
    """Return the error to raise for a failed request."""
    place = shown(url)
    tried = f"{attempts} attempts" if attempts > 1 else None
    if failure.code == "NoSuchBucket":
        return ObjectNotFoundError("no such bucket", found=place, hint="check the name and the endpoint")
    if failure.status in (404, 410) or (failure.kind == "FileNotFoundError" and failure.status is None):
        return ObjectNotFoundError("no such object", found=place)
    if failure.kind == "AlreadyExistsError":
        return ObjectExistsError("the object exists already", found=place)
    if failure.kind in ("PreconditionError", "NotModifiedError") or failure.status in (409, 412):
        return ObjectChangedError(
            "the object was replaced while it was in use", found=place, hint="open it again to have the new one"
        )
    if failure.denied:
        return _denied(failure, place)
    if failure.broken == "Timeout":
        return StoreTimeoutError("the server did not answer in time", found=_with(place, tried), hint="see `timeout`")
    hint = "set the bucket's region: shoal.store.configure(region=...)" if failure.elsewhere else None
    if failure.broken == "Connect" and (endpoint := _endpoint_of(url)) is not None:
        hint = f"check the endpoint {endpoint}"
    return StoreError(_reason(failure), found=_with(place, tried), hint=hint)


def _denied(failure: Failure, place: str) -> StoreError:
    if place.startswith("hf://"):
        return AccessDeniedError(
            f"access denied ({failure.summary})",
            found=place,
            hint="set HF_TOKEN, or log in with `hf auth login`, for an account that may read it; "
            "for a gated repository ask for access on its page",
        )
    hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile, or shoal.store.configure(...)"
    if failure.no_credentials:
        return AccessDeniedError(
            "no credentials were found", found=place, hint=f"{hint} with anonymous=True for public data"
        )
    if failure.kind == "UnauthenticatedError" and failure.status is None:
        return AccessDeniedError("the credential provider failed", found=place, hint="call it by hand to see why")
    return AccessDeniedError(f"access denied ({failure.summary})", found=place, hint=f"check the credentials: {hint}")


def _endpoint_of(url: str) -> str | None:
    """Return the configured endpoint of a URL, or None."""
    options = options_for(url)
    endpoint = options.endpoint or ", ".join(options.endpoints)
    if not endpoint and url.startswith(("s3://", "s3a://")):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return endpoint or None


def _reason(failure: Failure) -> str:
    if failure.status is not None:
        return f"the server answered {failure.status}{f' {failure.code}' if failure.code else ''}"
    if failure.broken is not None:
        return _BROKEN.get(failure.broken, "the connection broke")
    if failure.kind == "InvalidPathError":
        return "an object store cannot have this name"
    if failure.kind == "NotSupportedError":
        return "the server cannot do this"
    return f"the store failed ({failure.kind})"


def _with(place: str, tried: str | None) -> str:
    return f"{place} after {tried}" if tried else place
