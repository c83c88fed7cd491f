"""Every error of obstore is translated, without its message."""

from __future__ import annotations

import pytest
from obstore import exceptions

from shoal.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
)
from shoal.store._error_mapping import OBSTORE_ERRORS, failure_of, translate_failure

KINDS = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)]
ANSWER = "Error performing GET http://h/b/k in 1ms - Server returned non-2xx status code: {} : <Code>{}</Code>"


@pytest.mark.parametrize("kind", [*KINDS, FileNotFoundError, ValueError, OSError], ids=lambda kind: kind.__name__)
def test_every_error_of_obstore_is_caught_and_said_without_its_words(kind):
    error = kind("X-Amz-Signature=hunter2")
    assert isinstance(error, OBSTORE_ERRORS)
    ours = translate_failure(failure_of(error), "s3://b/k")
    assert isinstance(ours, StoreError)
    assert "s3://b/k" in str(ours)
    assert "hunter2" not in str(ours)


@pytest.mark.parametrize(
    "text, kind, words",
    [
        (ANSWER.format(404, "NoSuchKey"), ObjectNotFoundError, "no such object"),
        (ANSWER.format(404, "NoSuchBucket"), ObjectNotFoundError, "no such bucket"),
        (ANSWER.format(403, "SignatureDoesNotMatch"), AccessDeniedError, "403 SignatureDoesNotMatch"),
        (ANSWER.format(400, "ExpiredToken"), AccessDeniedError, "ExpiredToken"),
        (ANSWER.format(412, "PreconditionFailed"), ObjectChangedError, "replaced"),
        (ANSWER.format(503, "SlowDown"), StoreError, "503 SlowDown"),
        (ANSWER.format(301, "PermanentRedirect"), StoreError, "region"),
        ("Error performing PUT http://169.254.169.254/latest/api/token in 1ms", AccessDeniedError, "no credentials"),
        ("Generic error\n\nDebug source: HttpError {\n kind: Timeout,", StoreTimeoutError, "in time"),
        ("Generic error\n\nDebug source: HttpError {\n kind: Connect,", StoreError, "cannot be reached"),
        ("Generic error\n\nDebug source: HttpError {\n kind: Interrupted,", StoreError, "broke"),
    ],
)
def test_what_a_text_of_obstore_says(text, kind, words):
    ours = translate_failure(failure_of(exceptions.GenericError(text)), "s3://b/k")
    assert type(ours) is kind
    assert words in str(ours)


def test_an_object_that_exists_already():
    ours = translate_failure(failure_of(exceptions.AlreadyExistsError("x")), "s3://b/k")
    assert type(ours) is ObjectExistsError


@pytest.mark.parametrize(
    "status, passing", [(500, True), (503, True), (429, True), (408, True), (403, False), (416, False)]
)
def test_which_failures_pass(status, passing):
    assert failure_of(exceptions.GenericError(ANSWER.format(status, "X"))).passing is passing
