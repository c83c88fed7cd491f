"""Errors as pages: what is wrong, where, and what to do."""

from __future__ import annotations

from shoal.errors import (
    FieldError,
    LensNotFoundError,
    MissingExtraError,
    OptionError,
    PositionError,
    QueryError,
    SampleKeyError,
    ShoalError,
    StoreError,
)

from ._html import Html, plain, tag
from ._layout import Frame, page

__all__ = ["not_allowed_page", "problem_page", "status_of", "unknown_page"]

_NOT_THERE = (FieldError, SampleKeyError, PositionError, LensNotFoundError)
_GENERAL = "Check the path, run `shoal verify` on it, and load this page again."


def status_of(error: Exception) -> int:
    """The status that a browser is told."""
    if isinstance(error, QueryError | OptionError):
        return 400
    if isinstance(error, _NOT_THERE):
        return 404
    if isinstance(error, StoreError):
        return 502
    return 500


def problem_page(frame: Frame, error: ShoalError | OSError) -> Html:
    """What went wrong with the data, or with reaching it."""
    problem = error.problem if isinstance(error, ShoalError) else str(error)
    hint = error.hint if isinstance(error, ShoalError) else None
    facts = (
        [("Expected", error.expected), ("Found", error.found), ("Shard", error.shard)]
        if isinstance(error, ShoalError)
        else []
    )
    facts += (
        [("Key", error.key), ("Field", error.field), ("Byte", error.offset)] if isinstance(error, ShoalError) else []
    )
    rows = [tag("div", tag("dt", name), tag("dd", plain(str(what)))) for name, what in facts if what is not None]
    todo = hint or _GENERAL
    if isinstance(error, MissingExtraError):
        todo = f"Install it ({todo}) and start the viewer again."
    again = None if isinstance(error, _NOT_THERE) else tag("a", "Try again", href="", cls="button main")
    back = tag("a", "All samples", href="/", cls="button" if again else "button main")
    return page(
        frame,
        "Something is wrong",
        tag("h1", plain(problem[:1].upper() + problem[1:])),
        tag("dl", *rows, cls="pairs") if rows else None,
        tag("section", tag("h2", "What to do"), tag("pre", plain(todo, 2000), cls="command", tabindex="0"), cls="todo"),
        tag("p", again, back, cls="actions"),
    )


def unknown_page(frame: Frame, title: str, text: str) -> Html:
    """Anything else."""
    link = tag("p", tag("a", "All samples", href="/", cls="button main"), cls="actions")
    return page(frame, title, tag("h1", title), tag("p", text), link)


def not_allowed_page(text: str, todo: str) -> Html:
    """For somebody who has not shown the token: says nothing of the dataset."""
    return page(None, "Not allowed", tag("h1", "Not allowed"), tag("p", text), tag("p", todo))
