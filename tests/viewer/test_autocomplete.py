"""Suggestions for completing a condition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.viewer.samples import opened_with

from shoal.viewer._autocomplete import suggestions


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ["n ", '"my value" ', "__key__ "]),
        ("my", ['"my value" ']),
        ("n >= 1 and m", ['"my value" ', "n "][:1]),
        ("n ", ["= ", "!= ", ">= ", "<= ", "> ", "< ", "between ", "in (", "is null", "is not null"]),
        ("n i", ["in (", "is null", "is not null"]),
        ('"my value" = ', ["'cat' ", "'it''s' ", "'dog' "]),
        ('"my value" = \'c', ["'cat' "]),
        ("\"my value\" in ('cat', ", ["'cat' ", "'it''s' ", "'dog' "]),
        ("n = 1 ", ["and ", "or "]),
        ("n = 1 a", ["and "]),
        ("nothing = ", []),
    ],
)
def test_suggestions_fit_the_place(text, expected):
    opened = opened_with(["cat", "cat", "cat", "it's", "it's", "dog"])
    start, found = suggestions(opened, text, len(text))
    assert [one.text for one in found] == expected
    assert text[start:].strip() == text[start:]


@given(st.text(max_size=40), st.integers(0, 40))
def test_suggestions_never_fail(text, at):
    opened = (
        opened_with(["cat"])
        if not hasattr(test_suggestions_never_fail, "opened")
        else test_suggestions_never_fail.opened
    )
    test_suggestions_never_fail.opened = opened
    start, _ = suggestions(opened, text, min(at, len(text)))
    assert 0 <= start <= len(text)
